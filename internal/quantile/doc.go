// Package quantile measures quantiles of durations over a sliding window.
//
// A [Window] counts the recorded values in logarithmic buckets; a [Term] is
// one quantile of a window, cached so that it can be asked for on every call.
// Both are safe for concurrent use. Nothing here blocks, waits, starts a
// goroutine or reads a clock.
//
// Time is an argument. Every method takes now, a duration since an origin of
// the caller's choice, the same one for all calls. Negative times are as good
// as others. The clock may stand still or step back: see [Window].
//
// # Accuracy
//
// From 1 µs to 1 h a reported quantile differs by at most 5 % from the true
// one, which is the nearest-rank quantile: the value of rank ceil(q*n) among
// the n samples in ascending order. Values below 1 µs, negative ones too, are
// counted as 1 µs, values above 1 h as 1 h, so that what is reported always
// lies between these two.
package quantile
