package resiliencehttp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func hedged(legs int) resilience.Option {
	return resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MaxConcurrent: legs, MinSamples: 5})
}

// warm has the hedge threshold measured. In a bubble, where an answer takes no time, it is 10 ms then, the least there is.
func warm(t *testing.T, tr *resiliencehttp.Transport, url string) {
	t.Helper()
	for range 10 {
		resp, err := tr.RoundTrip(get(t, url))
		require.NoError(t, err)
		text(t, resp)
	}
}

// BR-054: the winner's body is cut off because a shared context was cancelled.
func TestTheWinnersBodyIsWhole(t *testing.T) {
	const pieces, size = 8, 64 << 10
	protocols(t, func(t *testing.T, http2 bool) {
		for _, winner := range []string{"second leg", "first leg", "no hedge"} {
			t.Run(winner, func(t *testing.T) {
				var leg atomic.Int64
				hedge, left := make(chan struct{}), make(chan struct{})
				s := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/warm" {
						return
					}
					n := leg.Add(1)
					switch {
					case winner == "no hedge":
					case n == 2 && winner == "first leg":
						close(hedge)
						fallthrough
					case n == 1 && winner == "second leg":
						<-r.Context().Done()
						close(left)
						return
					case winner == "first leg":
						<-hedge
					}
					for piece := range pieces {
						if piece == pieces/2 && winner != "no hedge" { // the loser is cancelled while the winner's body is read
							select {
							case <-left:
							case <-time.After(5 * time.Second): // long before the loser's own bound
								t.Error("the loser was not cancelled")
							}
						}
						_, _ = w.Write(make([]byte, size))
						_ = http.NewResponseController(w).Flush()
						time.Sleep(10 * time.Millisecond)
					}
				})
				opts := []resilience.Option{resilience.WithDeadline(30 * time.Second), resilience.WithAttemptTimeout(10 * time.Second)}
				if winner != "no hedge" {
					opts = append(opts, hedged(2))
				}
				tr := transportOf(t, s.pool, policyOf(t, opts...))
				warm(t, tr, s.URL+"/warm")
				before := runtime.NumGoroutine()
				resp, err := tr.RoundTrip(get(t, s.URL))
				require.NoError(t, err)
				n, err := io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				require.EqualValues(t, pieces*size, n)
				if winner != "no hedge" {
					require.EqualValues(t, 2, leg.Load())
				}
				require.NoError(t, resp.Body.Close())
				s.pool.CloseIdleConnections()
				back(t, before)
			})
		}
	})
}

// BR-055: a loser that answers late leaks its body, connection or goroutine.
func TestLosersThatAnswerLateAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var all []*tracked
		legs := 0
		base := roundTrip(func(req *http.Request) (*http.Response, error) { // it ignores the context
			b := newTracked("text")
			mu.Lock()
			all = append(all, b)
			n := legs % 3
			legs++
			mu.Unlock()
			if req.URL.Path != "/warm" {
				time.Sleep([]time.Duration{100, 40, 150}[n] * time.Millisecond)
			}
			return &http.Response{StatusCode: http.StatusOK, Body: b}, nil
		})
		tr := transportOf(t, base, policyOf(t, resilience.WithHedge(resilience.Hedge{Quantile: 0.5, MaxConcurrent: 3, MinSamples: 5, Window: time.Hour})))
		warm(t, tr, "http://a/warm")
		for range 300 {
			warm(t, tr, "http://a/warm") // the threshold stays where it was
			mu.Lock()
			legs = 0
			mu.Unlock()
			resp, err := tr.RoundTrip(get(t, "http://a/"))
			require.NoError(t, err)
			text(t, resp)
			time.Sleep(time.Second)
			mu.Lock()
			require.Equal(t, 3, legs)
			mu.Unlock()
		}
		for _, b := range all {
			require.EqualValues(t, 1, b.closes.Load())
		}
	})
}

func TestLosersGiveTheirConnectionsBack(t *testing.T) {
	var slow atomic.Bool
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		if slow.CompareAndSwap(true, false) {
			time.Sleep(60 * time.Millisecond)
		}
		_, _ = io.WriteString(w, "text")
	})
	tr := transportOf(t, s.pool, policyOf(t, hedged(2)))
	warm(t, tr, s.URL)
	for range 10 {
		slow.Store(true)
		resp, err := tr.RoundTrip(get(t, s.URL))
		require.NoError(t, err)
		text(t, resp)
		warm(t, tr, s.URL)
	}
	s.pool.CloseIdleConnections()
	require.Eventually(t, func() bool { return s.open.Load() == 0 }, 5*time.Second, 10*time.Millisecond, "none in use")
}

// BR-059 (a) and BR-061: legs share neither headers nor bodies.
func TestLegsShareNothing(t *testing.T) {
	data := payload(10_000)
	want, _ := hash(bytes.NewReader(data))
	for _, body := range []string{"GetBody", "buffered"} {
		t.Run(body, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var leg atomic.Int64
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					if req.URL.Path == "/warm" {
						return answer(200, ""), nil
					}
					n := leg.Add(1)
					req.Header.Add("X-Attempt", "x")
					req.URL.RawQuery = "changed"
					sum, _ := hash(req.Body)
					_ = req.Body.Close()
					if sum != want {
						t.Error("another body")
					}
					select {
					case <-req.Context().Done():
						return nil, context.Cause(req.Context())
					case <-time.After(time.Duration(50-10*n) * time.Millisecond):
						return answer(200, "text"), nil
					}
				})
				tr := transportOf(t, base, policyOf(t, hedged(3)))
				warm(t, tr, "http://a/warm")
				req := request(t, http.MethodPut, "http://a/", io.NopCloser(bytes.NewReader(data)))
				if body == "GetBody" {
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
				}
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, "text", text(t, resp))
				require.EqualValues(t, 3, leg.Load())
				require.Empty(t, req.Header)
				require.Empty(t, req.URL.RawQuery)
			})
		})
	}
}

// The caller may use the request again when the call has returned, also if a leg only now gets past its hook.
func TestALegDoesNotReadTheCallersRequestAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var legs atomic.Int64
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/warm" {
				return answer(200, ""), nil
			}
			legs.Add(1)
			if req.Header.Get("X-Mine") != "" {
				t.Error("the request of another call")
			}
			time.Sleep(60 * time.Millisecond)
			return answer(200, "text"), nil
		})
		tr := transportOf(t, base, policyOf(t, hedged(2), resilience.WithAdmit(func(_ context.Context, a resilience.AttemptInfo) error {
			if a.Hedged {
				time.Sleep(time.Second)
			}
			return nil
		})))
		warm(t, tr, "http://a/warm")
		req := get(t, "http://a/")
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		req.Header.Set("X-Mine", "1")
		require.Equal(t, "text", text(t, resp))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, legs.Load(), "a leg that is too late sends nothing")
	})
}

func TestTheWinnerDoesNotWaitForTheGetBodyOfALoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path != "/warm" {
				_ = req.Body.Close()
			}
			return answer(200, "text"), nil
		})
		tr := transportOf(t, base, policyOf(t, hedged(2)))
		warm(t, tr, "http://a/warm")
		req := request(t, http.MethodPut, "http://a/", strings.NewReader("data"))
		var asked atomic.Int64
		req.GetBody = func() (io.ReadCloser, error) {
			if asked.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			return newTracked("data"), nil
		}
		start := time.Now()
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, "text", text(t, resp))
		require.Equal(t, 10*time.Millisecond, time.Since(start))
		time.Sleep(time.Hour)
	})
}

func TestABufferedLegThatLostStopsDownloading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var legs, sent atomic.Int64
		pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/warm" {
				return
			}
			if legs.Add(1) == 2 {
				_, _ = io.WriteString(w, "text")
				return
			}
			for range 100 {
				if _, err := io.WriteString(w, "piece "); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				sent.Add(1)
				time.Sleep(100 * time.Millisecond)
			}
		})
		defer stop()
		tr := transportOf(t, pool, policyOf(t, hedged(2)), resiliencehttp.WithBufferedResponses())
		warm(t, tr, "http://a/warm")
		start := time.Now()
		resp, err := tr.RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.Equal(t, "text", text(t, resp))
		require.Equal(t, 10*time.Millisecond, time.Since(start))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, sent.Load())
	})
}

// What bounds the body of a leg that is read into memory is the gap between two reads, as for any other attempt.
func TestABufferedLegMayTakeLongerThanItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/warm" {
				drip(w, r, 5, 900*time.Millisecond, false)
			}
		})
		defer stop()
		p := policyOf(t, hedged(2), resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(time.Minute))
		tr := transportOf(t, pool, p, resiliencehttp.WithBufferedResponses())
		warm(t, tr, "http://a/warm")
		resp, err := tr.RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("drop ", 5), text(t, resp))
		time.Sleep(time.Minute)
	})
}

func TestDrainingIsBounded(t *testing.T) {
	tests := map[string]func() io.ReadCloser{
		"a body that hangs":             func() io.ReadCloser { r, _ := io.Pipe(); return r },
		"one that ignores being closed": func() io.ReadCloser { return &sleeper{d: time.Minute} },
		"one without end": func() io.ReadCloser {
			return io.NopCloser(readerFunc(func(p []byte) (int, error) { return len(p), nil }))
		},
		"one that cannot be closed": func() io.ReadCloser { return &unclosable{} },
		"one that panics":           func() io.ReadCloser { return io.NopCloser(readerFunc(func([]byte) (int, error) { panic("boom") })) },
		"none":                      func() io.ReadCloser { return http.NoBody },
		"nil":                       func() io.ReadCloser { return nil },
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					if n++; n == 1 {
						return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: body()}, nil
					}
					return answer(200, "text"), nil
				})
				start := time.Now()
				resp, err := transportOf(t, base, policyOf(t)).RoundTrip(get(t, "http://a/"))
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
				require.Equal(t, "text", text(t, resp))
				time.Sleep(time.Hour) // a read that sleeps ends on its own
			})
		})
	}
}

type sleeper struct{ d time.Duration }

func (s *sleeper) Read([]byte) (int, error) { time.Sleep(s.d); return 0, io.EOF }
func (s *sleeper) Close() error             { time.Sleep(s.d); return nil }

type unclosable struct{}

func (u *unclosable) Read([]byte) (int, error) { time.Sleep(time.Minute); return 0, io.EOF }
func (u *unclosable) Close() error             { panic("boom") }

// A response of somebody else's client, which a callback of resilience.Do returns, is released like our own.
func TestForeignResponsesAreReleasedToo(t *testing.T) {
	var all []*tracked
	_, err := resilience.Do(t.Context(), policyOf(t), func(context.Context) (*http.Response, error) {
		b := newTracked(strings.Repeat("x", 1000))
		all = append(all, b)
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: b}, nil
	})
	require.NoError(t, err)
	require.Len(t, all, 3)
	for i, b := range all {
		require.EqualValues(t, min(1, 2-i), b.closes.Load())
		require.Equal(t, i < 2, b.reads.Load() > 0)
	}
}
