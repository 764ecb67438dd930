// Package resiliencetest is a kit for tests of code that uses a resilience.Policy: dependencies that follow a script
// (Sequence, RoundTripper), a listener that remembers (Recorder), a policy without backoff (Instant), and faults on purpose
// (Injector).
//
// The zero value of each type is ready to use and everything is safe for concurrent use. Nothing here starts a goroutine.
// Time is the standard time package's, so that all of it works in a testing/synctest bubble, or that of the Clock field where
// there is one. A script or faults that make no sense panic where they are written, a call that would hang for ever panics
// itself, with a text that begins with "resiliencetest:".
package resiliencetest
