package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/hashicorp/go-retryablehttp"
)

// httpSide is an HTTP client with retries, around a transport.
type httpSide struct {
	who       string
	side      side
	transport func(base http.RoundTripper) http.RoundTripper
}

func httpSides() []httpSide {
	return append(oursHTTP(),
		httpSide{"failsafe-go (failsafehttp)", failsafeSide, failsafeTransport},
		httpSide{"go-retryablehttp", peerSide, retryableTransport})
}

// The waits before HTTP retries are short: the scenarios run in real time.
const httpDelay = time.Millisecond

// failsafeTransport has the same stack as usual, with the rules and the Retry-After of failsafehttp.
func failsafeTransport(base http.RoundTripper) http.RoundTripper {
	s := usual()
	retry := failsafehttp.NewRetryPolicyBuilder().WithMaxAttempts(s.attempts).WithBackoff(httpDelay, time.Second).ReturnLastFailure()
	return failsafehttp.NewRoundTripper(base,
		timeout.New[*http.Response](s.deadline), retry.Build(), failsafeBreaker[*http.Response](s),
		failsafeLimiter[*http.Response](s), failsafe.Policy[*http.Response](timeout.New[*http.Response](s.attemptTimeout)))
}

// retryableTransport has retries alone: that is all that there is.
func retryableTransport(base http.RoundTripper) http.RoundTripper {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: base}
	c.Logger, c.RetryMax, c.RetryWaitMin = nil, usual().attempts-1, httpDelay
	return &retryablehttp.RoundTripper{Client: c}
}

// httpRows compare requests over loopback with those of the bare transport.
func httpRows() []row {
	field := []contestant{{name: "bare http.Transport", side: floorSide, start: requests(func(base http.RoundTripper) http.RoundTripper {
		return base
	})}}
	for _, s := range slices.Clone(httpSides()) {
		field = append(field, contestant{name: s.who, side: s.side, start: requests(s.transport)})
	}
	return []row{{
		name: "HTTP: a GET over loopback",
		goal: "≤ 1.05 × bare, ≤ 25 allocs more",
		met: func(r result) bool {
			return r.ours().exact <= 1.05*r.floor().exact && r.ours().allocs <= r.floor().allocs+25
		},
		contestants: field,
	}}
}

func requests(around func(base http.RoundTripper) http.RoundTripper) func() (func(n int), func()) {
	return func() (func(n int), func()) {
		s := newServer(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") })
		pool := &http.Transport{}
		c := &http.Client{Transport: around(pool)}
		run := func(n int) {
			for range n {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.URL, nil)
				if err != nil {
					panic(err)
				}
				resp, err := c.Do(req)
				if err != nil {
					panic(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
		return run, func() {
			pool.CloseIdleConnections()
			s.Close()
		}
	}
}
