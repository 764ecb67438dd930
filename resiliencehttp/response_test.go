package resiliencehttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

// BR-067: attempt timer keeps running and cuts the body stream.
func TestTheAttemptEndsWithTheHeaders(t *testing.T) {
	const bound = 10 * time.Second
	tests := map[string]struct {
		headers  []time.Duration // after which the attempts answer
		body     time.Duration   // how long it streams
		attempts int
		cut      bool
	}{
		"a long body":                     {headers: []time.Duration{100 * time.Millisecond}, body: 5 * time.Second, attempts: 1},
		"late headers are another matter": {headers: []time.Duration{1500 * time.Millisecond, 100 * time.Millisecond}, body: time.Second, attempts: 2},
		"the deadline counts":             {headers: []time.Duration{100 * time.Millisecond}, body: 20 * time.Second, attempts: 1, cut: true},
		"headers just in time":            {headers: []time.Duration{990 * time.Millisecond}, body: 3 * time.Second, attempts: 1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var attempts atomic.Int64
				pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
					wait := c.headers[attempts.Add(1)-1]
					select {
					case <-time.After(wait):
					case <-r.Context().Done():
						return
					}
					for range c.body / (500 * time.Millisecond) {
						_, _ = io.WriteString(w, "piece ")
						_ = http.NewResponseController(w).Flush()
						time.Sleep(500 * time.Millisecond)
					}
				})
				defer stop()
				tr := transportOf(t, pool, policyOf(t, resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(bound)))
				start := time.Now()
				resp, err := tr.RoundTrip(get(t, "http://a/"))
				require.NoError(t, err)
				data, err := io.ReadAll(resp.Body)
				require.EqualValues(t, c.attempts, attempts.Load())
				if c.cut {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
					require.Equal(t, bound, time.Since(start))
				} else {
					require.NoError(t, err)
					require.Len(t, data, 6*int(c.body/(500*time.Millisecond)))
				}
				require.NoError(t, resp.Body.Close())
				time.Sleep(30 * time.Second) // the handler of a body that was cut
			})
		})
	}
}

func TestABodyThatNobodyReadsEndsWithTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ctx context.Context
		b := newTracked("never read")
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			return &http.Response{StatusCode: http.StatusOK, Body: b}, nil
		})
		_, err := transportOf(t, base, policyOf(t, resilience.WithDeadline(3*time.Second))).RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		at, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Now().Add(3*time.Second), at)
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		require.NoError(t, ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(ctx), resilience.ErrDeadlineExceeded)
		require.EqualValues(t, 1, b.closes.Load())
	})
}

func TestTheContextOfAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "mine"))
		var ctx context.Context
		var text string
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			resp := answer(200, text)
			resp.Request = req
			return resp, nil
		})
		tr := transportOf(t, base, policyOf(t))
		send := func(body string) *http.Response {
			text = body
			resp, err := tr.RoundTrip(get(t, "http://a/").WithContext(caller))
			require.NoError(t, err)
			return resp
		}
		resp := send("abc")
		require.NoError(t, ctx.Err())
		require.NoError(t, resp.Request.Context().Err())
		require.Equal(t, "mine", ctx.Value(key{}))
		info, ok := resilience.AttemptFrom(ctx)
		require.True(t, ok)
		require.Equal(t, 1, info.Number)
		require.NoError(t, resp.Body.Close())
		require.Error(t, ctx.Err(), "ends with Close")

		resp = send("abc")
		_, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Error(t, ctx.Err(), "ends with the end of the body")
		_, err = resp.Body.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)

		why := errors.New("changed my mind")
		send("abc")
		cancel(why)
		require.Equal(t, why, context.Cause(ctx), "ends with the caller")
	})
}

func TestWhyABodyCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		defer stop()
		tr := transportOf(t, pool, policyOf(t))
		ctx, cancel := context.WithCancelCause(t.Context())
		resp, err := tr.RoundTrip(get(t, "http://a/").WithContext(ctx))
		require.NoError(t, err)
		why := errors.New("changed my mind")
		time.AfterFunc(time.Second, func() { cancel(why) })
		data, err := io.ReadAll(resp.Body)
		require.Equal(t, "first", string(data))
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, resp.Body.Close())

		resp, err = tr.RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		_, err = resp.Body.Read(make([]byte, 10))
		require.Error(t, err)
		require.NotErrorIs(t, err, context.Canceled, "closed, not cancelled")
	})
}

func TestAnAttemptTimeoutIsNoCancellation(t *testing.T) {
	protocols(t, func(t *testing.T, http2 bool) {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int64
			pool, stop := pipeServerOf(http2, func(_ http.ResponseWriter, r *http.Request) {
				n.Add(1)
				<-r.Context().Done()
			})
			defer stop()
			tr := transportOf(t, pool, policyOf(t, resilience.WithAttemptTimeout(50*time.Millisecond)))
			start := time.Now()
			_, err := tr.RoundTrip(get(t, "http://a/"))
			require.ErrorIs(t, err, resilience.ErrAttemptTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, context.Canceled)
			require.EqualValues(t, 3, n.Load())
			require.Equal(t, 150*time.Millisecond, time.Since(start))

			tr = transportOf(t, pool, policyOf(t))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err = tr.RoundTrip(get(t, "http://a/").WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}

// Bound and time left date from the start of the attempt, and an admit hook takes of both.
func TestTheTimeOfAnAdmitHookIsTheAttempts(t *testing.T) {
	tests := map[string]struct {
		hook    time.Duration
		headers time.Duration // after which the base answers
		bound   time.Duration // of the attempt
		took    time.Duration
		header  string // "": no request was sent
	}{
		"the bound of the attempt": {hook: 900 * time.Millisecond, headers: time.Minute, bound: time.Second, took: time.Second, header: "100"},
		"the deadline":             {hook: 900 * time.Millisecond, headers: time.Minute, bound: time.Hour, took: 3 * time.Second, header: "2100"},
		"that of the body":         {hook: 900 * time.Millisecond, bound: 2 * time.Second, took: 3 * time.Second, header: "1100"},
		"all of the bound":         {hook: 1500 * time.Millisecond, bound: time.Second, took: 1500 * time.Millisecond},
		"all of the deadline":      {hook: 4 * time.Second, bound: time.Hour, took: 4 * time.Second},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, header := time.Now(), ""
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					header = req.Header.Get("X-Deadline-Ms")
					at, _ := req.Context().Deadline()
					require.Equal(t, start.Add(3*time.Second), at)
					select {
					case <-time.After(c.headers):
					case <-req.Context().Done():
						return nil, req.Context().Err()
					}
					read, _ := io.Pipe()
					return &http.Response{StatusCode: http.StatusOK, Body: read}, nil
				})
				p := policyOf(t, resilience.WithAttempts(1), resilience.WithDeadline(3*time.Second), resilience.WithAttemptTimeout(c.bound),
					resilience.WithProgressBound(false), resilience.WithAdmit(func(context.Context, resilience.AttemptInfo) error {
						time.Sleep(c.hook)
						return nil
					}))
				resp, err := transportOf(t, base, p, resiliencehttp.WithDeadlineHeader("")).RoundTrip(get(t, "http://a/"))
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, c.took, time.Since(start))
				require.Equal(t, c.header, header)
			})
		})
	}
}

// A base that ignores its context answers after the attempt's bound.
func TestAnAnswerThatComesTooLateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*tracked
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			b := newTracked("late")
			all = append(all, b)
			time.Sleep(time.Duration(3-len(all)) * time.Second)
			return &http.Response{StatusCode: http.StatusOK, Body: b}, nil
		})
		tr := transportOf(t, base, policyOf(t, resilience.WithAttemptTimeout(time.Second)))
		resp, err := tr.RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.EqualValues(t, 1, all[0].closes.Load())
		require.EqualValues(t, 1, all[1].closes.Load())
		require.Equal(t, "late", text(t, resp))
	})
}

func TestASwitchedConnectionIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, stop := pipeServer(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw)
		})
		defer stop()
		var ctx context.Context
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			return pool.RoundTrip(req)
		})
		for _, opts := range [][]resiliencehttp.Option{nil, {resiliencehttp.WithBufferedResponses()}, {resiliencehttp.WithResumedDownloads()}} {
			p := policyOf(t, resilience.WithDeadline(200*time.Millisecond), resilience.WithAttemptTimeout(100*time.Millisecond))
			req := get(t, "http://a/")
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := transportOf(t, base, p, opts...).RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
			conn := resp.Body.(io.ReadWriteCloser)
			time.Sleep(time.Hour)
			go func() {
				time.Sleep(time.Hour) // a read that waits is no stall
				_, _ = io.WriteString(conn, "ping")
			}()
			got := make([]byte, 4)
			_, err = io.ReadFull(conn, got)
			require.NoError(t, err)
			require.Equal(t, "ping", string(got))
			require.NoError(t, ctx.Err())
			require.NoError(t, conn.Close())
			require.Error(t, ctx.Err(), "the caller's context is rid of it")
		}
	})
}

// One that is closed at the other end may still be written to.
func TestASwitchedConnectionMayBeHalfClosed(t *testing.T) {
	conn := &halfCloser{Reader: strings.NewReader("bye")}
	var ctx context.Context
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		ctx = req.Context()
		return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: conn}, nil
	})
	resp, err := transportOf(t, base, policyOf(t)).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "bye", string(data))
	require.NoError(t, ctx.Err())
	_, err = resp.Body.(io.Writer).Write([]byte("bye"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.(interface{ CloseWrite() error }).CloseWrite())
	require.Equal(t, "bye, closed", conn.String())
	require.NoError(t, resp.Body.Close())
	require.Error(t, ctx.Err())
}

type halfCloser struct {
	io.Reader
	strings.Builder
}

func (h *halfCloser) Close() error      { return nil }
func (h *halfCloser) CloseWrite() error { h.WriteString(", closed"); return nil }

func TestABodyThatCanBeWrittenStaysOne(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: ours, ContentLength: -1}, nil
	})
	resp, err := transportOf(t, base, policyOf(t)).RoundTrip(request(t, http.MethodConnect, "http://a/", nil))
	require.NoError(t, err)
	tunnel := resp.Body.(io.ReadWriteCloser)
	go func() { _, _ = io.Copy(theirs, theirs) }()
	_, err = io.WriteString(tunnel, "ping")
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(tunnel, got)
	require.NoError(t, err)
	require.ErrorIs(t, tunnel.(interface{ CloseWrite() error }).CloseWrite(), http.ErrNotSupported, "a pipe has no half")
	require.NoError(t, tunnel.Close())
}

// A body of no bytes may end later than the headers: over HTTP/2 in a frame of its own, with trailers.
func TestTheTrailersOfAnEmptyBodyAreNotLost(t *testing.T) {
	answered := make(chan struct{})
	s := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "0")
		w.Header().Set("Trailer", "X-Sum")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-answered:
			w.Header().Set("X-Sum", "42")
		case <-r.Context().Done():
			t.Error("the stream was reset")
		}
	})
	var ctx context.Context
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		ctx = req.Context()
		return s.pool.RoundTrip(req)
	})
	resp, err := transportOf(t, base, policyOf(t)).RoundTrip(get(t, s.URL))
	require.NoError(t, err)
	require.Zero(t, resp.ContentLength)
	require.NoError(t, ctx.Err(), "the response has not ended yet")
	close(answered)
	require.Empty(t, text(t, resp))
	require.Equal(t, "42", resp.Trailer.Get("X-Sum"))
	require.Error(t, ctx.Err())
}

func TestABodyOfNothingIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ctx context.Context
		var body io.ReadCloser
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Length": {"0"}}, Body: body}, nil
		})
		tr := transportOf(t, base, policyOf(t, resilience.WithAttemptTimeout(time.Second)))
		for _, body = range []io.ReadCloser{http.NoBody, &sleeper{d: 5 * time.Second}} {
			resp, err := tr.RoundTrip(get(t, "http://a/"))
			require.NoError(t, err)
			require.Equal(t, body == http.NoBody, ctx.Err() != nil)
			require.Empty(t, text(t, resp), "waiting for no bytes is no stall")
			require.Error(t, ctx.Err(), "nothing is held for it")
		}
	})
}
