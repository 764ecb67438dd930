package resiliencehttp

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// retryAfter reads a Retry-After header: whole seconds, or one of the three date forms of HTTP, against the clock. Of
// several lines the first one counts. What is malformed, zero, negative or past is not usable; overflow saturates.
func retryAfter(h http.Header, now func() time.Time) (time.Duration, bool) {
	value := strings.Trim(h.Get("Retry-After"), " \t")
	if value == "" {
		return 0, false
	}
	if seconds, ok := digits(value); ok {
		return saturated(seconds, time.Second), seconds > 0
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	wait := at.Sub(now())
	return wait, wait > 0
}

// digits reads a number that consists of decimal digits only. Overflow saturates.
func digits(s string) (int64, bool) {
	var n int64
	for i := range len(s) {
		d := int64(s[i]) - '0'
		if d < 0 || d > 9 {
			return 0, false
		}
		if n > (math.MaxInt64-d)/10 {
			n = math.MaxInt64
			continue
		}
		n = n*10 + d
	}
	return n, s != ""
}

// saturated is n × unit without overflow; n is not negative.
func saturated(n int64, unit time.Duration) time.Duration {
	if n > math.MaxInt64/int64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n) * unit
}
