package resiliencehttp_test

import (
	"errors"
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

// broken is an answer whose body breaks off behind the text.
func broken(status int, text string, header http.Header, length int64) *http.Response {
	body := io.MultiReader(strings.NewReader(text), readerFunc(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }))
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(body), ContentLength: length}
}

// part is a 206 whose body ends behind the text.
func part(contentRange, text string) *http.Response {
	resp := answer(http.StatusPartialContent, text)
	resp.ContentLength = -1
	resp.Header.Set("Content-Range", contentRange)
	return resp
}

func TestARestThatIsNotTheWholeRestIsNoCleanEnd(t *testing.T) {
	const size = int64(len(whole))
	strong := func() http.Header { return http.Header{"Etag": {`"v1"`}} }
	tests := map[string]struct {
		length int64 // of the first response
		rest   []*http.Response
		want   string
		err    error // nil: a clean end
	}{
		"all of it":             {length: size, rest: []*http.Response{part("bytes 10-35/36", whole[10:])}, want: whole},
		"in two parts":          {length: size, rest: []*http.Response{part("bytes 10-19/36", whole[10:20]), part("bytes 20-35/36", whole[20:])}, want: whole},
		"of unknown length":     {length: -1, rest: []*http.Response{part("bytes 10-19/36", whole[10:20]), part("bytes 20-35/36", whole[20:])}, want: whole},
		"a part and no more":    {length: size, rest: []*http.Response{part("bytes 10-19/36", whole[10:20]), answer(404, "")}, want: whole[:20], err: io.ErrUnexpectedEOF},
		"less than announced":   {length: size, rest: []*http.Response{part("bytes 10-35/36", whole[10:20]), answer(404, "")}, want: whole[:20], err: io.ErrUnexpectedEOF},
		"nothing five times":    {length: size, rest: []*http.Response{part("bytes 10-35/36", ""), part("bytes 10-35/36", ""), part("bytes 10-35/36", ""), part("bytes 10-35/36", ""), part("bytes 10-35/36", "")}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"more than announced":   {length: size, rest: []*http.Response{part("bytes 10-19/36", whole[10:])}, want: whole[:20], err: errors.New("longer than its Content-Range")},
		"broken at the end":     {length: size, rest: []*http.Response{broken(206, whole[10:], http.Header{"Content-Range": {"bytes 10-35/36"}}, -1)}, want: whole},
		"another length":        {length: size, rest: []*http.Response{part("bytes 10-49/50", strings.Repeat("X", 40))}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"another length later":  {length: -1, rest: []*http.Response{part("bytes 10-19/36", whole[10:20]), part("bytes 20-36/37", strings.Repeat("X", 17))}, want: whole[:20], err: io.ErrUnexpectedEOF},
		"an unknown length":     {length: size, rest: []*http.Response{part("bytes 10-35/*", whole[10:])}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"another start":         {length: size, rest: []*http.Response{part("bytes 1-35/36", whole[1:])}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"the end before it":     {length: size, rest: []*http.Response{part("bytes 10-9/36", "")}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"beyond the whole":      {length: size, rest: []*http.Response{part("bytes 10-36/36", whole[10:]+"X")}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"no range":              {length: size, rest: []*http.Response{part("bytes 10-", whole[10:])}, want: whole[:10], err: io.ErrUnexpectedEOF},
		"another Content-Range": {length: size, rest: []*http.Response{part("bytes 10-35/36, 1-2/3", whole[10:])}, want: whole[:10], err: io.ErrUnexpectedEOF},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			n := 0
			base := roundTrip(func(*http.Request) (*http.Response, error) {
				if n++; n == 1 {
					return broken(http.StatusOK, whole[:10], strong(), c.length), nil
				}
				return c.rest[n-2], nil
			})
			resp, err := transportOf(t, base, policyOf(t), resiliencehttp.WithResumedDownloads()).RoundTrip(get(t, "http://a/"))
			require.NoError(t, err)
			data, err := io.ReadAll(resp.Body)
			require.Equal(t, c.want, string(data))
			if c.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err.Error())
			}
			_, again := resp.Body.Read(make([]byte, 1))
			require.Error(t, again)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 1+len(c.rest), n)
		})
	}
}

// A part whose Content-Length contradicts its Content-Range is none.
func TestAPartOfAnotherLengthIsNotAppended(t *testing.T) {
	n := 0
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		if n++; n == 1 {
			return broken(http.StatusOK, whole[:10], http.Header{"Etag": {`"v1"`}}, int64(len(whole))), nil
		}
		resp := part("bytes 10-35/36", whole[10:])
		resp.ContentLength = 25
		return resp, nil
	})
	resp, err := transportOf(t, base, policyOf(t), resiliencehttp.WithResumedDownloads()).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	data, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, whole[:10], string(data))
}

// RFC 9110, 8.8.2.2: within the second in which it was sent the body may have changed once more.
func TestOnlyADateThatIsAStrongValidatorIsUsed(t *testing.T) {
	const modified = "Sat, 01 Jan 2000 00:00:00 GMT"
	tests := map[string]struct {
		header http.Header
		want   string // If-Range; "": not resumed
	}{
		"a second before":   {http.Header{"Last-Modified": {modified}, "Date": {"Sat, 01 Jan 2000 00:00:01 GMT"}}, modified},
		"the same second":   {http.Header{"Last-Modified": {modified}, "Date": {modified}}, ""},
		"in the future":     {http.Header{"Last-Modified": {modified}, "Date": {"Fri, 31 Dec 1999 23:59:59 GMT"}}, ""},
		"no date":           {http.Header{"Last-Modified": {modified}}, ""},
		"no usable one":     {http.Header{"Last-Modified": {modified}, "Date": {"tomorrow"}}, ""},
		"not modified":      {http.Header{"Date": {modified}}, ""},
		"beside an ETag":    {http.Header{"Last-Modified": {modified}, "Date": {"Sun, 02 Jan 2000 00:00:00 GMT"}, "Etag": {`"v1"`}}, `"v1"`},
		"beside a weak one": {http.Header{"Last-Modified": {modified}, "Date": {"Sun, 02 Jan 2000 00:00:00 GMT"}, "Etag": {`W/"v1"`}}, ""},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var validators []string
			base := roundTrip(func(req *http.Request) (*http.Response, error) {
				if validators = append(validators, req.Header.Get("If-Range")); len(validators) == 1 {
					return broken(http.StatusOK, whole[:10], c.header, int64(len(whole))), nil
				}
				return part("bytes 10-35/36", whole[10:]), nil
			})
			resp, err := transportOf(t, base, policyOf(t), resiliencehttp.WithResumedDownloads()).RoundTrip(get(t, "http://a/"))
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			if c.want == "" {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.Equal(t, []string{""}, validators)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"", c.want}, validators)
		})
	}
}

func TestADownloadThatMayNotBeRepeatedIsNotResumed(t *testing.T) {
	tests := map[string]struct {
		mark func(*http.Request) *http.Request
		opts []resilience.Option
		want int
	}{
		"may be": {want: 2},
		"marked": {mark: resiliencehttp.SingleShot, want: 1},
		"within a single shot": {mark: func(r *http.Request) *http.Request {
			return r.WithContext(resilience.SingleShot(r.Context()))
		}, want: 1},
		"repeated by a layer above": {mark: func(r *http.Request) *http.Request {
			r.Header.Set("X-Resilience-Retrying", "1")
			return r
		}, want: 1},
		"one attempt": {opts: []resilience.Option{resilience.WithAttempts(1)}, want: 1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var told events
			n := 0
			base := roundTrip(func(*http.Request) (*http.Response, error) {
				if n++; n == 1 {
					return broken(http.StatusOK, whole[:10], http.Header{"Etag": {`"v1"`}}, int64(len(whole))), nil
				}
				return part("bytes 10-35/36", whole[10:]), nil
			})
			req := get(t, "http://a/")
			if c.mark != nil {
				req = c.mark(req)
			}
			tr := transportOf(t, base, policyOf(t, append(c.opts, told.listen())...), resiliencehttp.WithResumedDownloads())
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			require.Equal(t, c.want == 2, err == nil)
			require.Equal(t, c.want, n)
			require.LessOrEqual(t, len(told.of(resilience.EventNestedRetry)), 1)
		})
	}
}

func TestClosingADownloadEndsItsResumption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended time.Duration
		start, n := time.Now(), 0
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			if n++; n == 1 {
				return broken(http.StatusOK, whole[:10], http.Header{"Etag": {`"v1"`}}, int64(len(whole))), nil
			}
			<-req.Context().Done()
			ended = time.Since(start)
			return nil, req.Context().Err()
		})
		p := policyOf(t, resilience.WithAttemptTimeout(time.Minute), resilience.WithDeadline(time.Hour))
		resp, err := transportOf(t, base, p, resiliencehttp.WithResumedDownloads()).RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(resp.Body)
			read <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, resp.Body.Close())
		require.ErrorIs(t, <-read, io.ErrUnexpectedEOF)
		require.Equal(t, time.Second, ended)
		require.Equal(t, 2, n)
	})
}

func TestAResumptionThatFailedIsNotTriedAgain(t *testing.T) {
	n := 0
	base := roundTrip(func(*http.Request) (*http.Response, error) {
		if n++; n == 1 {
			return broken(http.StatusOK, whole[:10], http.Header{"Etag": {`"v1"`}}, int64(len(whole))), nil
		}
		return answer(http.StatusForbidden, ""), nil
	})
	resp, err := transportOf(t, base, policyOf(t), resiliencehttp.WithResumedDownloads()).RoundTrip(get(t, "http://a/"))
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	for range 5 {
		_, again := resp.Body.Read(make([]byte, 1))
		require.Equal(t, err, again)
	}
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 2, n)
}

// The bound of a gap is off for bodies that somebody reads; one that is read inside of the attempt is part of it.
func TestABufferedResponseThatStallsWithoutAProgressBoundIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			if n++; n > 1 {
				return answer(200, "text"), nil
			}
			read, _ := io.Pipe()
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Length": {"0"}}, Body: read}, nil
		})
		p := policyOf(t, resilience.WithAttemptTimeout(time.Second), resilience.WithProgressBound(false))
		start := time.Now()
		resp, err := transportOf(t, base, p, resiliencehttp.WithBufferedResponses()).RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.Equal(t, "text", text(t, resp))
		require.Equal(t, time.Second, time.Since(start))
	})
}
