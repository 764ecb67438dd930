package resiliencehttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

// BR-079: propagated deadline: clock skew and hostile values. The value is relative, so that skew has no effect.
func TestInboundDeadline(t *testing.T) {
	tests := map[string]struct {
		values []string
		opts   []resiliencehttp.InboundOption
		want   time.Duration // 0: none
	}{
		"milliseconds":        {values: []string{"2000"}, want: 2 * time.Second},
		"one":                 {values: []string{"1"}, want: time.Millisecond},
		"the largest":         {values: []string{"2147483647"}, want: 2147483647 * time.Millisecond},
		"one more":            {values: []string{"2147483648"}},
		"far more":            {values: []string{"99999999999999999999"}},
		"zero":                {values: []string{"0"}},
		"negative":            {values: []string{"-1"}},
		"a word":              {values: []string{"abc"}},
		"empty":               {values: []string{""}},
		"a fraction":          {values: []string{"1.5"}},
		"NaN":                 {values: []string{"NaN"}},
		"blanks":              {values: []string{"     "}},
		"a sign":              {values: []string{"+5"}},
		"other digits":        {values: []string{"٣"}},
		"the first line":      {values: []string{"300", "100"}, want: 300 * time.Millisecond},
		"none":                {},
		"within the maximum":  {values: []string{"10000"}, opts: []resiliencehttp.InboundOption{resiliencehttp.WithInboundMaximum(10 * time.Second)}, want: 10 * time.Second},
		"beyond the maximum":  {values: []string{"10001"}, opts: []resiliencehttp.InboundOption{resiliencehttp.WithInboundMaximum(10 * time.Second)}},
		"less the reserve":    {values: []string{"2000"}, opts: []resiliencehttp.InboundOption{resiliencehttp.WithInboundReserve(100 * time.Millisecond)}, want: 1900 * time.Millisecond},
		"nothing but reserve": {values: []string{"100"}, opts: []resiliencehttp.InboundOption{resiliencehttp.WithInboundReserve(100 * time.Millisecond)}, want: -1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				called := false
				handler := resiliencehttp.Inbound(c.opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					called = true
					at, ok := r.Context().Deadline()
					switch {
					case c.want == 0:
						require.False(t, ok)
					case c.want < 0:
						require.ErrorIs(t, context.Cause(r.Context()), resilience.ErrDeadlineExceeded)
					default:
						require.Equal(t, c.want, time.Until(at))
						time.Sleep(c.want)
						synctest.Wait()
						require.ErrorIs(t, context.Cause(r.Context()), resilience.ErrDeadlineExceeded)
					}
				}))
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.Header["X-Deadline-Ms"] = c.values
				handler.ServeHTTP(httptest.NewRecorder(), r)
				require.True(t, called)
			})
		})
	}
}

func TestExpiredRequestsAreRejected(t *testing.T) {
	handler := resiliencehttp.Inbound(
		resiliencehttp.WithRejectExpired(), resiliencehttp.WithInboundReserve(50*time.Millisecond), resiliencehttp.WithInboundHeader("x-left"),
	)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for value, want := range map[string]int{"50": 504, "1": 504, "5000": 204, "": 204, "0": 204} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/path", nil)
		r.Header.Set("X-Left", value)
		handler.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, value)
		if want == 504 {
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		}
	}
	w := httptest.NewRecorder()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	require.Equal(t, 204, w.Code, "a client that left is no deadline")
}

func TestInboundCriticality(t *testing.T) {
	for value, want := range map[string]resilience.Criticality{
		"sheddable": resilience.Sheddable, "sheddable-plus": resilience.SheddablePlus, "critical": resilience.Critical,
		"critical-plus": resilience.Critical, "": resilience.Critical, "SHEDDABLE": resilience.Critical, "unknown": resilience.Critical,
	} {
		for _, name := range []string{"", "x-importance"} {
			var got resilience.Criticality
			handler := resiliencehttp.Inbound(resiliencehttp.WithInboundCriticalityHeader(name))(
				http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = resilience.CriticalityFrom(r.Context()) }))
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if name == "" {
				name = "X-Criticality"
			}
			r.Header.Set(name, value)
			handler.ServeHTTP(httptest.NewRecorder(), r)
			require.Equal(t, want, got, value)
		}
	}
}

func TestInboundOptionsAreChecked(t *testing.T) {
	defer func() {
		err := recover().(error)
		for _, part := range []string{"WithInboundMaximum is 0s", "WithInboundReserve is -1ns", "option 3 is <nil>", `WithInboundHeader is "a b"`} {
			require.ErrorContains(t, err, part)
		}
	}()
	resiliencehttp.Inbound(resiliencehttp.WithInboundMaximum(0), resiliencehttp.WithInboundReserve(-1), nil, resiliencehttp.WithInboundHeader("a b"))
}

func TestInboundOptionsAreAlwaysCheckedInTheSameOrder(t *testing.T) {
	for range 20 {
		require.PanicsWithError(t, `resiliencehttp: Inbound: WithInboundHeader is "a b", want the name of a header`+"\n"+
			`resiliencehttp: Inbound: WithInboundCriticalityHeader is "c d", want the name of a header`, func() {
			resiliencehttp.Inbound(resiliencehttp.WithInboundCriticalityHeader("c d"), resiliencehttp.WithInboundHeader("a b"))
		})
	}
}

// hops sends a request through two servers, the second of which never answers by itself, and reports when each of them
// stopped and how much time it was left when the request came, in the order of the hops.
func hops(t *testing.T, deadline, between time.Duration, serve func(http.Handler) (pool *http.Transport, url string)) ([2]time.Duration, [2]time.Duration, error) {
	t.Helper()
	var stopped, left [2]time.Duration
	start := time.Now()
	came := func(hop int, r *http.Request) {
		at, ok := r.Context().Deadline()
		if !ok {
			t.Error("no deadline")
		}
		left[hop] = time.Until(at)
	}
	both := make(chan struct{}, 2)
	inbound := resiliencehttp.Inbound()
	pool, url := serve(inbound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came(1, r)
		<-r.Context().Done()
		stopped[1] = time.Since(start)
		resiliencehttp.WriteProblem(w, r, resilience.ErrDeadlineExceeded)
		both <- struct{}{}
	})))
	once := resilience.WithAttempts(1) // the milliseconds are rounded down: there may be a little left when a hop gives up
	second := transportOf(t, pool, policyOf(t, once), resiliencehttp.WithDeadlineHeader(""))
	pool, first := serve(inbound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came(0, r)
		time.Sleep(between)
		resp, err := second.RoundTrip(get(t, url).WithContext(r.Context()))
		stopped[0] = time.Since(start)
		if err == nil {
			_ = resp.Body.Close()
			err = resilience.ErrDeadlineExceeded
		}
		resiliencehttp.WriteProblem(w, r, err)
		both <- struct{}{}
	})))
	tr := transportOf(t, pool, policyOf(t, once, resilience.WithDeadline(deadline)), resiliencehttp.WithDeadlineHeader(""))
	resp, err := tr.RoundTrip(get(t, first))
	if err == nil { // the milliseconds on the wire are rounded down: a hop may just get its answer through
		require.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
	} else {
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
	}
	for range 2 {
		select {
		case <-both:
		case <-time.After(10 * deadline):
			return [2]time.Duration{}, [2]time.Duration{}, errors.New("a hop was not reached or did not stop")
		}
	}
	return stopped, left, nil
}

// Two hops with a 200 ms deadline both stop, at the same time and not one after the other.
func TestTwoHopsStopTogether(t *testing.T) {
	patiently(t, 200*time.Millisecond, func(deadline time.Duration) error {
		stopped, left, err := hops(t, deadline, 0, func(h http.Handler) (*http.Transport, string) {
			s := serve(t, false, h.ServeHTTP)
			return s.pool, s.URL
		})
		if err == nil {
			t.Logf("a deadline of %v: %v left at the hops, which stopped after %v", deadline, left, stopped)
			require.Less(t, left[0], deadline)
			require.Less(t, left[1], left[0], "it shrinks from hop to hop")
		}
		return err
	})
}

func TestTwoHopsStopAtTheDeadlineItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deadline, between = 200 * time.Millisecond, 30 * time.Millisecond
		stopped, left, err := hops(t, deadline, between, func(h http.Handler) (*http.Transport, string) {
			pool, stop := pipeServer(h.ServeHTTP)
			t.Cleanup(stop)
			return pool, "http://a/"
		})
		require.NoError(t, err)
		require.Equal(t, [2]time.Duration{deadline, deadline}, stopped)
		require.Equal(t, [2]time.Duration{deadline, deadline - between}, left)
	})
}

// BR-074: the middleware writes nothing while the handler runs: a handler that ignores its deadline answers alone.
func TestAHandlerThatIgnoresItsDeadlineAnswersAlone(t *testing.T) {
	protocols(t, func(t *testing.T, http2 bool) {
		s := serve(t, http2, resiliencehttp.Inbound()(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 20 {
				w.Header().Set("X-Step", fmt.Sprint(i))
				_, _ = w.Write(make([]byte, 1024))
				time.Sleep(5 * time.Millisecond)
			}
			if r.Context().Err() == nil {
				t.Error("the deadline was 20 ms")
			}
		})).ServeHTTP)
		done := make(chan error)
		for range 20 {
			go func() {
				req := get(t, s.URL)
				req.Header.Set("X-Deadline-Ms", "20")
				resp, err := s.pool.RoundTrip(req)
				if err == nil {
					var n int64
					n, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK || n != 20*1024 {
						err = fmt.Errorf("%s with %d bytes", resp.Status, n)
					}
				}
				done <- err
			}()
		}
		for range 20 {
			require.NoError(t, <-done)
		}
	})
}

// BR-075: panics stay on the goroutine of the request, with their value and stack.
func TestAPanicOfTheHandlerPassesThrough(t *testing.T) {
	value := &struct{ x int }{1}
	for name, c := range map[string]struct{ panics any }{"abort": {http.ErrAbortHandler}, "a pointer": {value}} {
		t.Run(name, func(t *testing.T) {
			handler := resiliencehttp.Inbound()(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { thisOnePanics(c.panics) }))
			defer func() {
				require.Equal(t, c.panics, recover())
				stack := make([]byte, 16<<10)
				require.Contains(t, string(stack[:runtime.Stack(stack, false)]), "thisOnePanics")
			}()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		})
	}
}

//go:noinline
func thisOnePanics(v any) { panic(v) }

// BR-076: Flush, Hijack and per-response deadlines stop working behind the middleware.
func TestTheResponseWriterIsTheServers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("x", 1<<20)), 0o600))
	inbound := resiliencehttp.Inbound(resiliencehttp.WithInboundMaximum(5 * time.Second))
	seen := make(chan struct{})
	s := serve(t, false, inbound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		switch r.URL.Path {
		case "/controller":
			for _, err := range []error{
				c.SetWriteDeadline(time.Now().Add(time.Minute)), c.SetReadDeadline(time.Now().Add(time.Minute)), c.EnableFullDuplex(), c.Flush(),
			} {
				if err != nil {
					t.Error(err)
				}
			}
			if _, ok := w.(http.Flusher); !ok {
				t.Error("no Flusher")
			}
			if _, ok := w.(io.ReaderFrom); !ok {
				t.Error("no ReaderFrom")
			}
		case "/events":
			_, _ = io.WriteString(w, "data: 0\n\n")
			_ = c.Flush()
			select { // a writer that held it back would do so until the handler returns
			case <-seen:
			case <-time.After(4 * time.Second):
				t.Error("the event was held back")
			}
		case "/file":
			f, err := os.Open(name)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			_, _ = io.Copy(w, f)
		case "/hijack":
			conn, _, err := c.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				defer conn.Close()
				time.Sleep(150 * time.Millisecond) // the handler, and its deadline, are gone
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
			}()
		}
	})).ServeHTTP)
	send := func(path, deadline string) *http.Response {
		req := get(t, s.URL+path)
		req.Header.Set("X-Deadline-Ms", deadline)
		resp, err := s.pool.RoundTrip(req)
		require.NoError(t, err)
		return resp
	}
	text(t, send("/controller", "5000"))
	require.Len(t, text(t, send("/file", "5000")), 1<<20)
	require.Equal(t, "mine", text(t, send("/hijack", "100")))
	resp := send("/events", "5000")
	_, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	close(seen)
	_ = resp.Body.Close()
}

// BR-077: a client that stalls in the middle of its body is for the handler's read deadline, which works behind Inbound.
func TestAStalledUploadEndsWithTheReadDeadline(t *testing.T) {
	ended := make(chan error, 10)
	s := serve(t, false, resiliencehttp.Inbound()(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Deadline()
		_ = http.NewResponseController(w).SetReadDeadline(at)
		_, err := io.ReadAll(r.Body)
		ended <- err
	})).ServeHTTP)
	for range 10 {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nX-Deadline-Ms: 100\r\nContent-Length: 4096\r\n\r\n%s", strings.Repeat("x", 44))
		require.NoError(t, err)
	}
	for range 10 {
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
	}
}
