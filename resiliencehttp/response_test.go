package resiliencehttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
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
		s := serve(t, http2, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/warm" {
				<-r.Context().Done()
			}
		})
		warm(t, transportOf(t, s.pool, policyOf(t)), s.URL+"/warm") // a handshake takes longer than the bound
		s.requests.Store(0)
		tr := transportOf(t, s.pool, policyOf(t, resilience.WithAttemptTimeout(50*time.Millisecond)))
		_, err := tr.RoundTrip(get(t, s.URL))
		require.ErrorIs(t, err, resilience.ErrAttemptTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 3, s.requests.Load())

		tr = transportOf(t, s.pool, policyOf(t))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err = tr.RoundTrip(get(t, s.URL).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
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
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
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
	p := policyOf(t, resilience.WithDeadline(200*time.Millisecond), resilience.WithAttemptTimeout(100*time.Millisecond))
	var given io.ReadCloser
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		resp, err := s.pool.RoundTrip(req)
		if resp != nil {
			given = resp.Body
		}
		return resp, err
	})
	req := get(t, s.URL)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := transportOf(t, base, p).RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	require.Equal(t, given, resp.Body)
	conn := resp.Body.(io.ReadWriteCloser)
	time.Sleep(300 * time.Millisecond)
	_, err = io.WriteString(conn, "ping")
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, "ping", string(got))
	require.NoError(t, conn.Close())
}

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
	require.NoError(t, tunnel.Close())
}

func TestABodyOfNothingIsLeftAlone(t *testing.T) {
	b := newTracked("")
	var ctx context.Context
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		ctx = req.Context()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Length": {"0"}}, Body: b}, nil
	})
	resp, err := transportOf(t, base, policyOf(t)).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	require.Equal(t, io.ReadCloser(b), resp.Body)
	require.Error(t, ctx.Err(), "nothing is held for it")
}
