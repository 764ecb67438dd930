package resiliencehttp_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"math"
	"net"
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

// bodies hands out tracked readers of the same data, as a GetBody does.
type bodies struct {
	data []byte
	mu   sync.Mutex
	all  []*tracked
}

func (b *bodies) get() (io.ReadCloser, error) {
	body := &tracked{Reader: bytes.NewReader(b.data)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, body)
	return body, nil
}

func (b *bodies) list() []*tracked {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*tracked(nil), b.all...)
}

func payload(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return data
}

// BR-061: request body is empty or partial on the second attempt.
func TestEveryAttemptSendsTheWholeBody(t *testing.T) {
	data := payload(1 << 20)
	var attempts atomic.Int64
	sums := make(chan [32]byte, 4)
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			sum, _ := hash(r.Body)
			sums <- sum
			return
		}
		switch attempts.Add(1) {
		case 1:
			_, _ = io.CopyN(io.Discard, r.Body, 10)
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		case 2:
			sum, _ := hash(r.Body)
			sums <- sum
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			sum, _ := hash(r.Body)
			sums <- sum
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}
	})
	seen := roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.GetBody == nil || req.ContentLength != int64(len(data)) {
			t.Errorf("GetBody %v, ContentLength %d", req.GetBody == nil, req.ContentLength)
		}
		return s.pool.RoundTrip(req)
	})
	client := &http.Client{Transport: transportOf(t, seen, policyOf(t))}
	req := resiliencehttp.Repeatable(request(t, http.MethodPost, s.URL, bytes.NewReader(data)), "key")
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	text(t, resp)
	want, _ := hash(bytes.NewReader(data))
	for range 3 {
		require.Equal(t, want, <-sums)
	}
	require.EqualValues(t, 3, attempts.Load())
}

func TestEmptyBodiesStayEmpty(t *testing.T) {
	type seen struct {
		length  string
		chunked bool
	}
	var all []seen
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		all = append(all, seen{r.Header.Get("Content-Length"), len(r.TransferEncoding) > 0})
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	tr := transportOf(t, s.pool, policyOf(t))
	for _, body := range []io.Reader{nil, http.NoBody, bytes.NewReader(nil), strings.NewReader("")} {
		all = nil
		resp, err := tr.RoundTrip(request(t, http.MethodPut, s.URL, body))
		require.NoError(t, err)
		text(t, resp)
		require.Equal(t, []seen{{"0", false}, {"0", false}, {"0", false}}, all)
	}
}

// BR-062: a body that cannot be replayed is sent again anyway.
func TestABodyThatCannotBeRepeatedIsSentOnce(t *testing.T) {
	tests := map[string]struct {
		limit  int64
		size   int
		length int64
		want   int
	}{
		"buffered up to the limit":    {limit: 100, size: 100, length: -1, want: 3},
		"one byte too many":           {limit: 100, size: 101, length: -1, want: 1},
		"known to be too large":       {limit: 100, size: 101, length: 101, want: 1},
		"no limit":                    {limit: math.MaxInt64, size: 100, length: -1, want: 3},
		"no buffer":                   {limit: 0, size: 1, length: -1, want: 1},
		"the default is one mebibyte": {limit: -1, size: 1 << 20, length: -1, want: 3},
		"and not more":                {limit: -1, size: 1<<20 + 1, length: -1, want: 1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			data := payload(c.size)
			sums := make(chan [32]byte, 3)
			s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
				sum, _ := hash(r.Body)
				sums <- sum
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "overloaded")
			})
			var opts []resiliencehttp.Option
			if c.limit >= 0 {
				opts = append(opts, resiliencehttp.WithMaxBodyBuffer(c.limit))
			}
			body := &tracked{Reader: bytes.NewReader(data)}
			req := request(t, http.MethodPost, s.URL, body)
			req.ContentLength = c.length
			req.Header.Set("Idempotency-Key", "k")
			resp, err := transportOf(t, s.pool, policyOf(t), opts...).RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.Equal(t, "overloaded", text(t, resp))
			require.EqualValues(t, c.want, s.requests.Load())
			want, _ := hash(bytes.NewReader(data))
			for range c.want {
				require.Equal(t, want, <-sums)
			}
			require.Eventually(t, func() bool { return body.closes.Load() == 1 }, 5*time.Second, time.Millisecond)
			require.False(t, body.misused.Load())
		})
	}
}

// A body that is not going to be repeated reaches the server while it is written.
func TestABodyThatIsNotRepeatedIsStreamed(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	})
	read, write := io.Pipe()
	tr := transportOf(t, s.pool, policyOf(t))
	resp, err := tr.RoundTrip(request(t, http.MethodPost, s.URL, read))
	require.NoError(t, err, "the response is there before the body is")
	_, err = io.WriteString(write, "hello")
	require.NoError(t, err)
	require.NoError(t, write.Close())
	require.Equal(t, "hello", text(t, resp))
}

func TestTrailersOfAStreamedBodyAreSent(t *testing.T) {
	got := make(chan string, 1)
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Get("X-Sum")
	})
	read, write := io.Pipe()
	req := request(t, http.MethodPost, s.URL, read)
	req.Trailer = http.Header{"X-Sum": nil}
	go func() {
		_, _ = io.WriteString(write, "data")
		req.Trailer.Set("X-Sum", "42")
		_ = write.Close()
	}()
	resp, err := transportOf(t, s.pool, policyOf(t)).RoundTrip(req)
	require.NoError(t, err)
	text(t, resp)
	require.Equal(t, "42", <-got)
}

// BR-062 (c).
func TestAGetBodyThatFailsEndsTheCall(t *testing.T) {
	errGet := errors.New("no more bodies")
	var bodies []*tracked
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
		b := newTracked("503")
		bodies = append(bodies, b)
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: b}, nil
	})
	own, n := newTracked("data"), 0
	req := request(t, http.MethodPut, "http://a/", own)
	req.GetBody = func() (io.ReadCloser, error) {
		if n++; n > 1 {
			return nil, errGet
		}
		return newTracked("data"), nil
	}
	tr := transportOf(t, base, policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{})))
	resp, err := tr.RoundTrip(req)
	require.Nil(t, resp)
	require.ErrorIs(t, err, errGet)
	require.Len(t, bodies, 1)
	require.EqualValues(t, 1, bodies[0].closes.Load())
	require.EqualValues(t, 1, own.closes.Load())
	require.Zero(t, own.reads.Load())
	require.Equal(t, 1, hostsOf(tr)["http://a"].Breaker().Stats().Calls, "the 503, not the body")
}

// A GetBody without result and without error would crash the base, on a goroutine that nobody can recover.
func TestAGetBodyThatReturnsNothingEndsTheCall(t *testing.T) {
	nothing := func() (io.ReadCloser, error) { return nil, nil }
	errGet := errors.New("no more bodies")
	fails := func() (io.ReadCloser, error) { return nil, errGet }
	for name, get := range map[string]func() (io.ReadCloser, error){"GetBody of the request": nothing, "no more bodies": fails} {
		t.Run(name, func(t *testing.T) {
			var told events
			n := 0
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				n++
				_ = req.Body.Close()
				_, err := req.GetBody() // as net/http does when a pooled connection turns out to be dead
				require.ErrorContains(t, err, name)
				return nil, err
			})
			p := policyOf(t, resilience.WithClassifier(resilience.RetryAll()), told.listen())
			for _, asked := range []int{0, 1} {
				n = 0
				req := request(t, http.MethodPut, "http://a/", newTracked("data"))
				req.GetBody = func() (io.ReadCloser, error) {
					if asked++; asked == 2 {
						return newTracked("data"), nil
					}
					return get()
				}
				resp, err := transportOf(t, base, p).RoundTrip(req)
				require.Nil(t, resp)
				require.ErrorContains(t, err, name)
				require.False(t, errors.As(err, new(*resilience.Error)), "permanent")
				require.LessOrEqual(t, n, 1)
				require.LessOrEqual(t, asked, 3, "not retried")
			}
			require.Len(t, told.of(resilience.EventNotRetried), 2)
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
func (f failing) Close() error             { return nil }

// BR-062 (d).
func TestABodyThatCannotBeReadIsNobodysFault(t *testing.T) {
	errRead := &net.OpError{Op: "read", Err: errors.New("disk")} // Transient, were it the dependency's
	protocols(t, func(t *testing.T, http2 bool) {
		s := serve(t, http2, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		for _, way := range []string{"streamed", "GetBody", "buffered"} {
			t.Run(way, func(t *testing.T) {
				seen := 0
				base := roundTrip(func(req *http.Request) (*http.Response, error) { seen++; return s.pool.RoundTrip(req) })
				var told events
				tr := transportOf(t, base, policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{}), told.listen()))
				method, attempts := http.MethodPut, 1
				switch way {
				case "streamed":
					method = http.MethodPost
				case "buffered":
					attempts = 0
				}
				req := request(t, method, s.URL, failing{errRead})
				if way == "GetBody" {
					req.GetBody = func() (io.ReadCloser, error) { return failing{errRead}, nil }
				}
				_, err := tr.RoundTrip(req)
				require.ErrorIs(t, err, errRead)
				require.False(t, errors.As(err, new(*resilience.Error)), "not retried, so untouched")
				require.Equal(t, attempts, seen)
				for _, p := range hostsOf(tr) {
					require.Zero(t, p.Breaker().Stats().Calls)
				}
				require.Len(t, told.of(resilience.EventNotRetried), 1)
			})
		}
	})
}

func TestBufferingABodyTakesOfTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTrip(func(*http.Request) (*http.Response, error) { return answer(200, ""), nil })
		tr := transportOf(t, base, policyOf(t, resilience.WithDeadline(2*time.Second)))
		read, write := io.Pipe()
		start := time.Now()
		_, err := tr.RoundTrip(request(t, http.MethodPut, "http://a/", read))
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(start))
		synctest.Wait()
		_, err = write.Write([]byte("x"))
		require.ErrorIs(t, err, io.ErrClosedPipe, "the caller's reader is closed")

		read, write = io.Pipe()
		defer write.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = tr.RoundTrip(request(t, http.MethodPut, "http://a/", read).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestAPanicOfABodyReadAheadIsTheCallers(t *testing.T) {
	tr := transportOf(t, roundTrip(func(*http.Request) (*http.Response, error) { return answer(200, ""), nil }), policyOf(t))
	b := &tracked{Reader: readerFunc(func([]byte) (int, error) { panic("boom") })}
	require.PanicsWithValue(t, "boom", func() { _, _ = tr.RoundTrip(request(t, http.MethodPut, "http://a/", b)) })
	require.EqualValues(t, 1, b.closes.Load())

	b = &tracked{Reader: readerFunc(func([]byte) (int, error) { runtime.Goexit(); return 0, nil })}
	_, err := tr.RoundTrip(request(t, http.MethodPut, "http://a/", b))
	require.ErrorContains(t, err, "has exited")
	require.EqualValues(t, 1, b.closes.Load())
}

// systemTime is the standard clock, but not known as such.
type systemTime struct{}

func (systemTime) Now() time.Time                         { return time.Now() }
func (systemTime) After(d time.Duration) <-chan time.Time { return time.After(d) }

func TestTheDeadlineOfABodyReadAheadIsNoCancellation(t *testing.T) {
	stuck := func() io.ReadCloser { r, _ := io.Pipe(); return r }
	for name, body := range map[string]func() io.ReadCloser{
		"in the body":    stuck,
		"in the request": func() io.ReadCloser { return newTracked("data") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					_ = req.Body.Close()
					<-req.Context().Done()
					return nil, req.Context().Err()
				})
				tr := transportOf(t, base, policyOf(t, resilience.WithClock(systemTime{}), resilience.WithDeadline(time.Second)))
				start := time.Now()
				_, err := tr.RoundTrip(request(t, http.MethodPut, "http://a/", body()))
				require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, context.Canceled)
				require.Equal(t, time.Second, time.Since(start))
			})
		})
	}
}

// What reading the body ahead has taken is gone, also for an attempt that nothing else bounds.
func TestReadingABodyAheadTakesOfTheDeadlineUnderAnyClock(t *testing.T) {
	for name, opts := range map[string][]resilience.Option{
		"the standard clock": {},
		"an injected one":    {resilience.WithClock(systemTime{})},
		"and a hedge":        {resilience.WithClock(systemTime{}), hedged(2)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					_ = req.Body.Close()
					<-req.Context().Done()
					return nil, req.Context().Err()
				})
				tr := transportOf(t, base, policyOf(t, append(opts,
					resilience.WithDeadline(10*time.Second), resilience.WithAttemptTimeout(resilience.Unbounded))...))
				slow := readerFunc(func([]byte) (int, error) { time.Sleep(9 * time.Second); return 0, io.EOF })
				start := time.Now()
				_, err := tr.RoundTrip(request(t, http.MethodPut, "http://a/", io.NopCloser(slow)))
				require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
				require.Equal(t, 10*time.Second, time.Since(start))
			})
		})
	}
}

// BR-063, and the 503 that comes before a 10 MiB upload was read.
func TestAnEarlyAnswerToALargeUpload(t *testing.T) {
	repeats := 20
	if raceDetector {
		repeats = 6
	}
	data := payload(10 << 20)
	want, _ := hash(bytes.NewReader(data))
	protocols(t, func(t *testing.T, http2 bool) {
		var n atomic.Int64
		sums := make(chan [32]byte, repeats)
		s := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%4 != 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			sum, _ := hash(r.Body)
			sums <- sum
		})
		tr := transportOf(t, s.pool, policyOf(t, resilience.WithAttempts(4)))
		own, replays := &tracked{Reader: bytes.NewReader(data)}, &bodies{data: data}
		for range repeats {
			own.closes.Store(0)
			req := request(t, http.MethodPut, s.URL, own)
			req.ContentLength, req.GetBody = int64(len(data)), replays.get
			resp, err := tr.RoundTrip(req)
			for err != nil { // the server may reset the connection before its answer has been read
				require.ErrorIs(t, err, resilience.ErrAttemptsExhausted)
				n.Store(0)
				resp, err = tr.RoundTrip(req)
			}
			require.Equal(t, http.StatusOK, resp.StatusCode)
			text(t, resp)
			require.Equal(t, want, <-sums)
			require.Zero(t, own.reads.Load(), "what the caller owns is not read")
		}
		require.Eventually(t, func() bool {
			for _, b := range replays.list() {
				if b.closes.Load() != 1 {
					return false
				}
			}
			return true
		}, 5*time.Second, 10*time.Millisecond, "every body is closed once")
		for _, b := range replays.list() {
			require.False(t, b.misused.Load(), "no read after close, none beside another")
		}
	})
}

func TestARefusedCallClosesItsBody(t *testing.T) {
	base := roundTrip(func(*http.Request) (*http.Response, error) { return answer(200, ""), nil })
	p := policyOf(t, resilience.WithBreaker(resilience.BreakerConfig{}))
	tr := transportOf(t, base, p, resiliencehttp.WithPerHost(false))
	p.Breaker().Isolate()
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		b := newTracked("data")
		_, err := tr.RoundTrip(request(t, method, "http://a/", b))
		require.ErrorIs(t, err, resilience.ErrBreakerOpen)
		require.EqualValues(t, 1, b.closes.Load(), method)
	}
}

func TestUploadsAreNotKeptInMemory(t *testing.T) {
	var before, most int64
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	const size = 64 << 20
	sent := 0
	endless := readerFunc(func(p []byte) (int, error) {
		if sent%(16<<20) == 0 {
			most = max(most, liveHeap()-before)
		}
		if sent >= size {
			return 0, io.EOF
		}
		n := min(len(p), 4096)
		sent += n
		return n, nil
	})
	before = liveHeap()
	resp, err := transportOf(t, s.pool, policyOf(t)).RoundTrip(request(t, http.MethodPut, s.URL, endless))
	require.NoError(t, err)
	text(t, resp)
	require.Less(t, most, int64(8<<20))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
