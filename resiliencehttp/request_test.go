package resiliencehttp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

// BR-069: unsafe methods are repeated after a timeout, or hedged.
func TestWhatIsRepeated(t *testing.T) {
	plain := func(r *http.Request) *http.Request { return r }
	withKey := func(r *http.Request) *http.Request { r.Header.Set("Idempotency-Key", "k"); return r }
	tests := []struct {
		method string
		mark   func(*http.Request) *http.Request
		opts   []resiliencehttp.Option
		want   int
	}{
		{method: "GET", want: 3},
		{method: "", want: 3},
		{method: "HEAD", want: 3},
		{method: "PUT", want: 3},
		{method: "DELETE", want: 3},
		{method: "OPTIONS", want: 3},
		{method: "TRACE", want: 3},
		{method: "POST", want: 1},
		{method: "PATCH", want: 1},
		{method: "PROPFIND", want: 1},
		{method: "POST", mark: withKey, want: 3},
		{method: "POST", mark: func(r *http.Request) *http.Request { r.Header["X-Idempotency-Key"] = nil; return r }, want: 3},
		{method: "POST", opts: []resiliencehttp.Option{resiliencehttp.WithRetryUnsafeMethods()}, want: 3},
		{method: "PROPFIND", opts: []resiliencehttp.Option{resiliencehttp.WithRetryUnsafeMethods()}, want: 3},
		{method: "POST", mark: func(r *http.Request) *http.Request { return resiliencehttp.Repeatable(r, "") }, want: 3},
		{method: "GET", mark: resiliencehttp.SingleShot, want: 1},
		{method: "POST", mark: func(r *http.Request) *http.Request { return resiliencehttp.SingleShot(withKey(r)) }, want: 1},
		{method: "POST", mark: func(r *http.Request) *http.Request {
			return resiliencehttp.Repeatable(resiliencehttp.SingleShot(r), "k")
		}, want: 3},
		{method: "GET", mark: func(r *http.Request) *http.Request { return r.WithContext(resilience.SingleShot(r.Context())) }, want: 1},
		{method: "PUT", mark: resiliencehttp.SingleShot, opts: []resiliencehttp.Option{resiliencehttp.WithRetryUnsafeMethods()}, want: 1},
	}
	endings := map[string]func(*http.Request) (*http.Response, error){
		"timeout":            func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() },
		"refused":            func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED },
		"503":                func(*http.Request) (*http.Response, error) { return answer(503, ""), nil },
		"429 and RetryAfter": func(*http.Request) (*http.Response, error) { return withRetryAfter(answer(429, ""), "0"), nil },
	}
	for ending, end := range endings {
		for i, c := range tests {
			t.Run(fmt.Sprintf("%s/%d %s", ending, i, c.method), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := 0
					base := roundTrip(func(r *http.Request) (*http.Response, error) { n++; return end(r) })
					var told events
					p := policyOf(t, resilience.WithAttemptTimeout(time.Second), told.listen(), resilience.WithBreaker(resilience.BreakerConfig{}))
					req := request(t, c.method, "http://a/", nil)
					req.Method = c.method
					mark := c.mark
					if mark == nil {
						mark = plain
					}
					tr := transportOf(t, base, p, c.opts...)
					_, _ = tr.RoundTrip(mark(req))
					require.Equal(t, c.want, n)
					require.Len(t, told.of(resilience.EventAttempt), n)
				})
			})
		}
	}
}

func TestWhatIsNotRepeatedIsNotHedged(t *testing.T) {
	for method, want := range map[string]int64{http.MethodPost: 1, http.MethodPatch: 1, http.MethodPut: 3} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				pool, stop := pipeServer(func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/warm" {
						n.Add(1)
						time.Sleep(100 * time.Millisecond)
					}
				})
				defer stop()
				tr := transportOf(t, pool, policyOf(t, hedged(3)))
				warm(t, tr, "http://a/warm")
				resp, err := tr.RoundTrip(request(t, method, "http://a/", strings.NewReader("data")))
				require.NoError(t, err)
				text(t, resp)
				require.Equal(t, want, n.Load())
				time.Sleep(time.Second) // the handlers of the legs that lost
			})
		})
	}
}

// Trailers are filled in while a body is sent: two bodies at once would fill in the same ones.
func TestARequestWithTrailersIsNotHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trailers := make(chan string, 3)
		pool, stop := pipeServer(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path != "/warm" {
				time.Sleep(100 * time.Millisecond)
				trailers <- r.Trailer.Get("X-Sum")
			}
		})
		defer stop()
		tr := transportOf(t, pool, policyOf(t, hedged(3)))
		warm(t, tr, "http://a/warm")
		req := request(t, http.MethodPut, "http://a/", strings.NewReader("data"))
		req.ContentLength, req.Trailer = -1, http.Header{"X-Sum": nil}
		body := req.Body
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(body, readerFunc(func([]byte) (int, error) {
			req.Trailer.Set("X-Sum", "42")
			return 0, io.EOF
		})), body}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
		require.Len(t, trailers, 1)
		require.Equal(t, "42", <-trailers)
	})
}

func TestMarksDoNotChangeTheRequest(t *testing.T) {
	req := request(t, http.MethodPost, "http://a/", nil)
	marked := resiliencehttp.Repeatable(req, "key-1")
	require.Empty(t, req.Header)
	require.Equal(t, "key-1", marked.Header.Get("Idempotency-Key"))
	require.Equal(t, "key-1", resiliencehttp.Repeatable(marked, "key-2").Header.Get("Idempotency-Key"), "the one that is there stays")
	require.Empty(t, resiliencehttp.Repeatable(req, "").Header)
	require.Equal(t, "k", resiliencehttp.Repeatable(&http.Request{}, "k").Header.Get("Idempotency-Key"))
	require.NotSame(t, req, resiliencehttp.SingleShot(req))
}

func TestSingleAttemptsFeedTheGuards(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNRESET })
	tr := transportOf(t, base, policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 3})))
	for range 3 {
		_, err := tr.RoundTrip(request(t, http.MethodPost, "http://a/", nil))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err := tr.RoundTrip(request(t, http.MethodPost, "http://a/", nil))
	require.ErrorIs(t, err, resilience.ErrBreakerOpen, "one attempt, but guarded")
	require.False(t, errors.Is(err, resilience.ErrAttemptsExhausted))
}

func withRetryAfter(resp *http.Response, values ...string) *http.Response {
	resp.Header["Retry-After"] = values
	return resp
}
