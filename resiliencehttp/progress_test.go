package resiliencehttp_test

import (
	"fmt"
	"io"
	"net/http"
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

// drip sends pieces with a pause before each, and then stalls until the client leaves.
func drip(w http.ResponseWriter, r *http.Request, pieces int, pause time.Duration, stall bool) {
	for range pieces {
		time.Sleep(pause)
		_, _ = io.WriteString(w, "drop ")
		_ = http.NewResponseController(w).Flush()
	}
	if stall {
		<-r.Context().Done()
	}
}

func TestAStalledBodyFailsWithinTheBoundAndASlowDripSurvives(t *testing.T) {
	protocols(t, func(t *testing.T, http2 bool) {
		patiently(t, 100*time.Millisecond, func(bound time.Duration) error {
			s := serve(t, http2, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/stall" {
					drip(w, r, 2, 0, true)
					return
				}
				drip(w, r, 20, bound/2, false) // ten times the bound
			})
			var told events
			tr := transportOf(t, s.pool, policyOf(t, resilience.WithAttemptTimeout(bound), told.listen()))
			resp, err := tr.RoundTrip(get(t, s.URL+"/stall"))
			if err != nil {
				return err // not even the headers came within the bound
			}
			start := time.Now()
			data, err := io.ReadAll(resp.Body)
			t.Logf("stalled after %v", time.Since(start))
			require.ErrorIs(t, err, resilience.ErrStalled)
			_, again := resp.Body.Read(make([]byte, 1))
			require.Equal(t, err, again)
			require.NoError(t, resp.Body.Close())
			stalls := told.of(resilience.EventStalled)
			require.Len(t, stalls, 1)
			require.Equal(t, bound, stalls[0].Duration)
			if string(data) != "drop drop " {
				return fmt.Errorf("%q before the stall", data)
			}

			resp, err = tr.RoundTrip(get(t, s.URL+"/drip"))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			data, err = io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			require.Equal(t, strings.Repeat("drop ", 20), string(data))
			require.Len(t, told.of(resilience.EventStalled), 1)
			return nil
		})
	})
}

func TestOnlyAReadThatWaitsIsAStall(t *testing.T) {
	tests := map[string]struct {
		pause time.Duration // of the server
		slow  time.Duration // of the reader, between two reads
		opts  []resilience.Option
		stall bool
	}{
		"just inside":                {pause: time.Second - 1},
		"the bound itself":           {pause: time.Second + 1, stall: true},
		"a slow consumer":            {pause: time.Second - 1, slow: 5 * time.Second},
		"switched off":               {pause: 5 * time.Second, opts: []resilience.Option{resilience.WithProgressBound(false)}},
		"an attempt without a bound": {pause: 5 * time.Second, opts: []resilience.Option{resilience.WithAttemptTimeout(resilience.Unbounded)}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
					_ = http.NewResponseController(w).Flush()
					drip(w, r, 5, c.pause, false)
				})
				defer stop()
				p := policyOf(t, append([]resilience.Option{
					resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(resilience.Unbounded),
				}, c.opts...)...)
				resp, err := transportOf(t, pool, p).RoundTrip(get(t, "http://a/"))
				require.NoError(t, err)
				defer resp.Body.Close()
				var all []byte
				buf := make([]byte, 5)
				for err == nil {
					var n int
					n, err = resp.Body.Read(buf)
					all = append(all, buf[:n]...)
					time.Sleep(c.slow)
				}
				if c.stall {
					require.ErrorIs(t, err, resilience.ErrStalled)
					time.Sleep(time.Minute)
					return
				}
				require.Equal(t, io.EOF, err)
				require.Len(t, all, 25)
			})
		})
	}
}

// A base that does not listen to the context of its requests.
func TestAStallEndsAlsoABodyThatIgnoresTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: read}, nil
		})
		tr := transportOf(t, base, policyOf(t, resilience.WithAttemptTimeout(time.Second)))
		resp, err := tr.RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		go func() { _, _ = io.WriteString(write, "ab") }()
		start := time.Now()
		data, err := io.ReadAll(resp.Body)
		require.Equal(t, "ab", string(data))
		require.ErrorIs(t, err, resilience.ErrStalled)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestReadingAndClosingAtOnce(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { drip(w, r, 1, 0, true) })
	tr := transportOf(t, s.pool, policyOf(t, resilience.WithAttemptTimeout(20*time.Millisecond)))
	for i := range 50 {
		resp, err := tr.RoundTrip(get(t, s.URL))
		if err != nil {
			require.ErrorIs(t, err, resilience.ErrAttemptTimeout) // a busy machine
			continue
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := io.ReadAll(resp.Body)
			if err == nil {
				t.Error("read a body that has no end")
			}
		})
		time.Sleep(time.Duration(i%5) * 6 * time.Millisecond)
		_ = resp.Body.Close()
		wg.Wait()
	}
}

func TestABufferedResponseThatStallsIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
			switch n.Add(1) {
			case 1:
				drip(w, r, 2, 100*time.Millisecond, true)
			case 2:
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, "short")
			default:
				drip(w, r, 20, 900*time.Millisecond, false)
			}
		})
		defer stop()
		var told events
		p := policyOf(t, resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(time.Minute), told.listen())
		resp, err := transportOf(t, pool, p, resiliencehttp.WithBufferedResponses()).RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.EqualValues(t, 3, n.Load())
		require.Equal(t, strings.Repeat("drop ", 20), text(t, resp))
		require.Len(t, told.of(resilience.EventStalled), 1)
		attempts := told.of(resilience.EventAttempt)
		require.ErrorIs(t, attempts[0].Err, resilience.ErrStalled)
		require.ErrorIs(t, attempts[1].Err, io.ErrUnexpectedEOF)
	})
}

const whole = "0123456789abcdefghijklmnopqrstuvwxyz"

// partly serves whole from the offset that is asked for, n bytes of it, and then stalls.
func partly(w http.ResponseWriter, r *http.Request, n int, etag string) {
	from := 0
	w.Header().Set("ETag", etag)
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil && (r.Header.Get("If-Range") == etag || r.URL.Path == "/careless") {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(whole)-1, len(whole)))
		w.Header().Set("Content-Length", fmt.Sprint(len(whole)-from))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		from = 0
		w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
	}
	end := min(len(whole), from+n)
	_, _ = io.WriteString(w, whole[from:end])
	_ = http.NewResponseController(w).Flush()
	if end < len(whole) {
		<-r.Context().Done()
	}
}

func TestADownloadGoesOnWhereItStopped(t *testing.T) {
	tests := map[string]struct {
		each     int // bytes before each stall
		etags    []string
		method   string
		path     string
		header   http.Header
		deadline time.Duration
		requests int
		complete bool
	}{
		"five times":                            {each: 6, requests: 6, complete: true},
		"and not six":                           {each: 5, requests: 6},
		"only with the same ETag":               {each: 20, etags: []string{`"a"`, `"b"`}, requests: 2},
		"not with what a careless server sends": {each: 20, etags: []string{`"a"`, `"b"`}, path: "/careless", requests: 2},
		"not with a weak one":                   {each: 20, etags: []string{`W/"a"`}, requests: 1},
		"not within a range":                    {each: 20, header: http.Header{"Range": {"bytes=0-30"}}, requests: 1},
		"only a GET":                            {each: 20, method: http.MethodPut, requests: 1},
		"and within the deadline":               {each: 6, deadline: 2500 * time.Millisecond, requests: 3},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				pool, stop := pipeServer(func(w http.ResponseWriter, r *http.Request) {
					etag, before := `"v1"`, int(n.Add(1)-1)
					if c.etags != nil {
						etag = c.etags[min(before, len(c.etags)-1)]
					}
					partly(w, r, c.each, etag)
				})
				defer stop()
				var told events
				deadline := c.deadline
				if deadline == 0 {
					deadline = time.Hour
				}
				p := policyOf(t, resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(deadline), told.listen())
				method := c.method
				if method == "" {
					method = http.MethodGet
				}
				req := request(t, method, "http://a"+c.path, nil)
				if c.header != nil {
					req.Header = c.header
				}
				start := time.Now()
				resp, err := transportOf(t, pool, p, resiliencehttp.WithResumedDownloads()).RoundTrip(req)
				require.NoError(t, err)
				data, err := io.ReadAll(resp.Body)
				require.EqualValues(t, c.requests, n.Load())
				switch {
				case c.complete:
					require.NoError(t, err)
					require.Equal(t, whole, string(data))
				case c.deadline > 0:
					require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
					require.Equal(t, c.deadline, time.Since(start))
				default:
					require.ErrorIs(t, err, resilience.ErrStalled)
					require.True(t, strings.HasPrefix(whole, string(data)))
				}
				if c.complete {
					require.Len(t, told.of(resilience.EventStreamResumed), 5)
				}
				require.NoError(t, resp.Body.Close())
				_, err = resp.Body.Read(make([]byte, 1))
				require.Error(t, err)
				require.Equal(t, c.requests, int(n.Load()), "a closed body is not resumed")
			})
		})
	}
}

func TestABrokenDownloadIsResumed(t *testing.T) {
	var n atomic.Int64
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) > 1 {
			partly(w, r, len(whole), `"v1"`)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
		_, _ = io.WriteString(w, whole[:10])
		panic(http.ErrAbortHandler)
	})
	tr := transportOf(t, s.pool, policyOf(t), resiliencehttp.WithResumedDownloads())
	resp, err := tr.RoundTrip(get(t, s.URL))
	require.NoError(t, err)
	require.Equal(t, whole, text(t, resp))
	require.EqualValues(t, 2, n.Load())
}
