package resiliencehttp

import (
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
)

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"30", " 10 ", "-5", "1.5", "0x10", "18446744074", "99999999999999999999", "Sat, 01 Jan 2000 00:00:20 GMT", "120, 60", ""} {
		f.Add(s)
	}
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value string) {
		wait, ok := retryAfter(http.Header{"Retry-After": {value}}, func() time.Time { return now })
		if ok != (wait > 0) {
			t.Fatalf("%q: %v %v", value, wait, ok)
		}
		trimmed := strings.Trim(value, " \t")
		n, number := new(big.Int).SetString(trimmed, 10)
		if !number || strings.ContainsAny(trimmed, "+-_") {
			if at, err := http.ParseTime(trimmed); ok && (err != nil || at.Sub(now) != wait) {
				t.Fatalf("%q is %v", value, wait)
			}
			return
		}
		exact := new(big.Int).Mul(n, big.NewInt(int64(time.Second)))
		if want := big.NewInt(int64(wait)); exact.Cmp(want) != 0 && (exact.IsInt64() || wait != resilience.Unbounded) {
			t.Fatalf("%q is %v", value, wait)
		}
	})
}

func FuzzInboundDeadline(f *testing.F) {
	for _, s := range []string{"200", "0", "-1", "2147483648", "1.5", "NaN", "     ", "99999999999999999999"} {
		f.Add(s, int64(time.Second), int64(time.Millisecond))
	}
	f.Fuzz(func(t *testing.T, value string, maximum, reserve int64) {
		s := inbound{maximum: max(0, time.Duration(maximum)), reserve: max(0, time.Duration(reserve))}
		left, ok := s.left(value)
		if !ok {
			if left != 0 {
				t.Fatalf("%q: %v", value, left)
			}
			return
		}
		given := left + s.reserve
		if given < time.Millisecond || given >= 1<<31*time.Millisecond || s.maximum > 0 && given > s.maximum {
			t.Fatalf("%q: %v", value, left)
		}
		if strings.Trim(value, "0123456789") != "" {
			t.Fatalf("%q was taken for a number", value)
		}
	})
}

func FuzzInboundCriticality(f *testing.F) {
	for _, s := range []string{"sheddable", "critical-plus", "", "Critical"} {
		f.Add(s)
	}
	handler := Inbound()(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Got", resilience.CriticalityFrom(r.Context()).String())
	}))
	f.Fuzz(func(t *testing.T, value string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["X-Criticality"] = []string{value}
		handler.ServeHTTP(w, r)
		got := w.Header().Get("Got")
		if got == "critical-plus" || got != value && got != "critical" {
			t.Fatalf("%q is %s", value, got)
		}
	})
}

func FuzzQuota(f *testing.F) {
	f.Add(`"default";r=50;t=30`, `"default";q=100;w=60`, "", "", "")
	f.Add(`"a, b";r=0;t=5, c;r=1`, `"a, b";q=10`, "", "", "")
	f.Add("", "", "100", "0", "1700000000")
	f.Add("", "", "100", "0", "1700000000000")
	f.Add(`"\";r=0;t=1`, `;=`, "9223372036854775808", "-1", "1e9")
	now := time.Unix(1_700_000_000-30, 0)
	f.Fuzz(func(t *testing.T, state, policy, limit, remaining, reset string) {
		h := http.Header{"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}}
		if state != "" {
			h["Ratelimit"], h["Ratelimit-Policy"] = []string{state}, []string{policy}
		}
		var q quota
		q.observe(h, now, 0.1)
		if left := q.blocked(func() time.Time { return now }); left < 0 || left > maxReset {
			t.Fatalf("blocked for %v", left)
		}
	})
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 10-35/36", "bytes 0-0/1", "bytes 10-35/*", "bytes */36", "bytes 9-3/36", "bytes 0-36/36", "Bytes 0-1/2", "bytes 1-18446744073709551616/2"} {
		f.Add(s)
	}
	form := regexp.MustCompile(`^bytes [0-9]+-[0-9]+/[0-9]+$`)
	f.Fuzz(func(t *testing.T, value string) {
		first, last, total, ok := contentRange(value)
		if ok && (!form.MatchString(value) || first < 0 || first > last || last >= total) {
			t.Fatalf("%q is %d-%d/%d", value, first, last, total)
		}
	})
}

func FuzzHostKey(f *testing.F) {
	for _, s := range []string{"Example.com:80", "example.com.:443", "[::1]:8080", "a:", "", ":", "a:80:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		for _, r := range host {
			if r >= 0x80 {
				return // beyond ASCII upper and lower case are no pairs
			}
		}
		key := keyOf(&url.URL{Scheme: "http", Host: host})
		if upper := keyOf(&url.URL{Scheme: "HTTP", Host: strings.ToUpper(host)}); upper != key {
			t.Fatalf("%q is %v, in capitals %v", host, key, upper)
		}
		if len(key.host) > len(host) {
			t.Fatalf("%q is %v", host, key)
		}
	})
}
