package resiliencehttp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func loopback(b testing.TB) (url string, base *http.Transport) {
	b.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	base = &http.Transport{}
	b.Cleanup(func() {
		base.CloseIdleConnections()
		s.Close()
	})
	return s.URL, base
}

// guarded is a transport with everything that does not depend on the traffic: breaker, adaptive limiter, budget, measured
// ceiling, deadline header, quota.
func guarded(b testing.TB, base http.RoundTripper) *resiliencehttp.Transport {
	b.Helper()
	p, err := resiliencehttp.NewPolicy(
		resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(200)),
	)
	require.NoError(b, err)
	tr, err := resiliencehttp.NewTransport(base, p)
	require.NoError(b, err)
	return tr
}

func exchange(b testing.TB, rt http.RoundTripper, req *http.Request) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		b.Fatal(err)
	}
	_ = resp.Body.Close()
}

// timed is the least that a person would write by hand: a bound for each request.
func timed(base http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithTimeout(req.Context(), 10*time.Second)
		resp, err := base.RoundTrip(req.WithContext(ctx))
		if err != nil {
			cancel()
			return nil, err
		}
		resp.Body = cancelling{resp.Body, cancel}
		return resp, nil
	})
}

type cancelling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c cancelling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

func BenchmarkTransport(b *testing.B) {
	url, base := loopback(b)
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{{"bare", base}, {"bare with a timeout", timed(base)}, {"resilience", guarded(b, base)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, c.rt, get(b, url))
			}
		})
	}
}

// BenchmarkTransportAlone is what the transport itself costs: its base answers at once.
func BenchmarkTransportAlone(b *testing.B) {
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
	})
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{{"bare", base}, {"resilience", guarded(b, base)}} {
		b.Run(c.name, func(b *testing.B) {
			req := get(b, "http://example.com/")
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, c.rt, req)
			}
		})
	}
}

// TestTransportAllocates holds what a request may cost more than over the bare transport: 25 allocations.
func TestTransportAllocates(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	url, base := loopback(t)
	req := get(t, url)
	per := func(rt http.RoundTripper) float64 {
		return testing.AllocsPerRun(500, func() { exchange(t, rt, req) })
	}
	bare, ours := per(base), per(guarded(t, base))
	t.Logf("bare %.0f, with the transport %.0f allocations", bare, ours)
	require.LessOrEqual(t, ours-bare, 25.0)
}
