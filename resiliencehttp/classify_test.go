package resiliencehttp_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
)

// verdicts sends one request and returns what its attempts were called.
func verdicts(t *testing.T, base http.RoundTripper, url string, opts ...resilience.Option) ([]resilience.Verdict, error) {
	t.Helper()
	var told events
	p := policyOf(t, append(opts, told.listen(), resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 100}))...)
	tr := transportOf(t, base, p)
	resp, err := tr.RoundTrip(get(t, url))
	if err == nil {
		_ = resp.Body.Close()
	}
	var all []resilience.Verdict
	for _, e := range told.of(resilience.EventAttempt) {
		all = append(all, e.Verdict)
	}
	return all, err
}

func TestVerdictsOnStatuses(t *testing.T) {
	tests := []struct {
		status int
		after  string
		want   resilience.Verdict
	}{
		{200, "", resilience.OK},
		{204, "9", resilience.OK},
		{301, "9", resilience.OK},
		{400, "", resilience.OK},
		{401, "", resilience.OK},
		{404, "", resilience.OK},
		{409, "9", resilience.OK},
		{425, "", resilience.OK},
		{408, "", resilience.Transient},
		{408, "3", resilience.Transient.After(3 * time.Second)},
		{429, "", resilience.Throttled},
		{429, "3", resilience.Throttled.After(3 * time.Second)},
		{429, "soon", resilience.Throttled},
		{500, "", resilience.Transient},
		{502, "2", resilience.Transient.After(2 * time.Second)},
		{504, "", resilience.Transient},
		{503, "", resilience.Transient},
		{503, "3", resilience.Throttled.After(3 * time.Second)},
		{503, "0", resilience.Transient},
		{501, "", resilience.Permanent},
		{505, "9", resilience.Permanent},
		{599, "", resilience.Transient},
		{600, "", resilience.Transient},
	}
	for _, c := range tests {
		t.Run(fmt.Sprintf("%d %q", c.status, c.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					resp := answer(c.status, "")
					if c.after != "" {
						resp = withRetryAfter(resp, c.after)
					}
					return resp, nil
				})
				got, err := verdicts(t, base, "http://a/")
				require.NoError(t, err)
				require.Equal(t, c.want, got[0])
				want := 1
				if k := c.want.Kind(); k == resilience.KindTransient || k == resilience.KindThrottled {
					want = 3
				}
				require.Len(t, got, want)
			})
		})
	}
}

// BR-070: errors that cannot get better are retried.
func TestVerdictsOnErrors(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	defer secure.Close()
	picky := httptest.NewUnstartedServer(http.NotFoundHandler())
	picky.Config.ErrorLog = quiet
	picky.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	picky.StartTLS()
	defer picky.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	pool := &http.Transport{}
	defer pool.CloseIdleConnections()
	trusting := picky.Client().Transport
	tests := map[string]struct {
		base http.RoundTripper
		url  string
		want resilience.Verdict
	}{
		"unknown authority":         {pool, secure.URL, resilience.Permanent},
		"a TLS alert":               {trusting, picky.URL, resilience.Permanent},
		"TLS to a plain server":     {pool, "https" + plainServer(t)[4:], resilience.Permanent},
		"unsupported scheme":        {pool, "foo://host/", resilience.Permanent},
		"a port that there is not":  {pool, "http://127.0.0.1:99999/", resilience.Permanent},
		"not HTTP":                  {pool, garbage(t, "SSH-2.0-OpenSSH\r\n"), resilience.Permanent},
		"refused":                   {pool, closed.URL, resilience.Transient},
		"closed without an answer":  {pool, garbage(t, ""), resilience.Transient},
		"closed within the headers": {pool, garbage(t, "HTTP/1.1 200 OK\r\nX: y\r\n"), resilience.Transient},
		"no such host":              {failsWith(&net.DNSError{IsNotFound: true}), "http://a/", resilience.Permanent},
		"no name server":            {failsWith(&net.DNSError{IsTemporary: true}), "http://a/", resilience.Transient},
		"GOAWAY":                    {failsWith(goAway{}), "http://a/", resilience.Transient},
		"somebody else's cancel":    {failsWith(context.Canceled), "http://a/", resilience.Permanent},
		"somebody else's timeout":   {failsWith(context.DeadlineExceeded), "http://a/", resilience.Transient},
		"unexpected end":            {failsWith(fmt.Errorf("x: %w", io.ErrUnexpectedEOF)), "http://a/", resilience.Transient},
		"reset":                     {failsWith(syscall.ECONNRESET), "http://a/", resilience.Transient},
		"a bug":                     {failsWith(fmt.Errorf("nil map")), "http://a/", resilience.Permanent},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := verdicts(t, c.base, c.url)
			require.Error(t, err)
			t.Log(err)
			require.Equal(t, c.want, got[0])
			if c.want == resilience.Permanent {
				require.Len(t, got, 1)
			} else {
				require.Len(t, got, 3)
			}
		})
	}
	_, err := verdicts(t, pool, secure.URL)
	var certificate *tls.CertificateVerificationError
	require.ErrorAs(t, err, &certificate)

	bad := get(t, closed.URL)
	bad.Header["X-Bad"] = []string{"line\nbreak"}
	_, err = transportOf(t, pool, policyOf(t)).RoundTrip(bad)
	require.ErrorContains(t, err, "invalid header")
}

func TestRedirectsWithoutEndAreNotRetried(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	client := &http.Client{Transport: transportOf(t, s.pool, policyOf(t))}
	resp, err := client.Get(s.URL)
	require.ErrorContains(t, err, "10 redirects")
	_ = resp.Body.Close()
	require.EqualValues(t, 10, s.requests.Load())
}

func TestHTTP2StreamErrorsAreTransient(t *testing.T) {
	s := serve(t, true, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	got, err := verdicts(t, s.pool, s.URL)
	require.ErrorContains(t, err, "stream error")
	require.Equal(t, []resilience.Verdict{resilience.Transient, resilience.Transient, resilience.Transient}, got)
}

type failure struct{ err error }

func failsWith(err error) http.RoundTripper { return failure{err} }

func (f failure) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

type goAway struct{}

func (goAway) Error() string {
	return `http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=""`
}

func plainServer(t *testing.T) string {
	return serve(t, false, func(http.ResponseWriter, *http.Request) {}).URL
}

// garbage is a server that answers every connection with that text.
func garbage(t *testing.T, text string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

// BR-019: Retry-After seconds: huge, negative, malformed.
func TestRetryAfter(t *testing.T) {
	const own = time.Second
	tests := map[string]struct {
		values []string
		wait   time.Duration // of the second attempt; 0: there is none
	}{
		"seconds":            {[]string{"30"}, 30 * time.Second},
		"blanks":             {[]string{" 10 "}, 10 * time.Second},
		"longer than Max":    {[]string{"61"}, 0},
		"overflows int64 ns": {[]string{"9223372037"}, 0},
		"wraps to +290 ms":   {[]string{"18446744074"}, 0},
		"largest int64":      {[]string{"9223372036854775807"}, 0},
		"beyond int64":       {[]string{"99999999999999999999"}, 0},
		"zero":               {[]string{"0"}, own},
		"negative":           {[]string{"-5"}, own},
		"empty":              {[]string{""}, own},
		"a word":             {[]string{"abc"}, own},
		"a fraction":         {[]string{"1.5"}, own},
		"hexadecimal":        {[]string{"0x10"}, own},
		"a sign":             {[]string{"+10"}, own},
		"a list":             {[]string{"120, 60"}, own},
		"two lines":          {[]string{"7", "9"}, 7 * time.Second},
		"first line counts":  {[]string{"abc", "7"}, own},
		"IMF-fixdate":        {[]string{"Sat, 01 Jan 2000 00:00:20 GMT"}, 20 * time.Second}, // the bubble's clock starts at midnight
		"RFC 850":            {[]string{"Saturday, 01-Jan-00 00:00:20 GMT"}, 20 * time.Second},
		"asctime":            {[]string{"Sat Jan  1 00:00:20 2000"}, 20 * time.Second},
		"a date in the past": {[]string{"Fri, 31 Dec 1999 23:59:59 GMT"}, own},
		"this very moment":   {[]string{"Sat, 01 Jan 2000 00:00:00 GMT"}, own},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				start := time.Now()
				base := roundTrip(func(*http.Request) (*http.Response, error) {
					at = append(at, time.Since(start))
					if len(at) == 1 {
						return withRetryAfter(answer(429, "slow down"), c.values...), nil
					}
					return answer(200, ""), nil
				})
				p := policyOf(t, resilience.WithDeadline(5*time.Minute), resilience.WithBackoff(resilience.Backoff{
					Base: own, ThrottledBase: own, Max: time.Minute, Jitter: resilience.JitterNone,
				}))
				resp, err := transportOf(t, base, p).RoundTrip(get(t, "http://a/"))
				require.NoError(t, err)
				if c.wait == 0 {
					require.Len(t, at, 1, "not waited for: the answer comes back at once")
					require.Equal(t, 429, resp.StatusCode)
					require.Zero(t, time.Since(start))
					return
				}
				require.Equal(t, []time.Duration{0, c.wait}, at)
			})
		})
	}
}

func TestARetryAfterBeyondTheDeadlineIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, start := 0, time.Now()
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			n++
			return withRetryAfter(answer(429, ""), "31"), nil
		})
		p := policyOf(t, resilience.WithDeadline(30*time.Second), resilience.WithBackoff(resilience.Backoff{Max: time.Hour}))
		resp, err := transportOf(t, base, p).RoundTrip(get(t, "http://a/"))
		require.NoError(t, err)
		require.Equal(t, 429, resp.StatusCode)
		require.Equal(t, 1, n)
		require.Zero(t, time.Since(start))
	})
}

// The clock that a date is compared with is the policy's.
func TestRetryAfterFollowsThePolicysClock(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC))
	var n atomic.Int64
	for _, body := range []int{0, 4} {
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			n.Add(1)
			resp := withRetryAfter(answer(429, "text"[:body]), mock.Now().Add(20*time.Second).Format(http.TimeFormat))
			resp.Header.Set("Content-Length", strconv.Itoa(body))
			return resp, nil
		})
		got, err := verdicts(t, base, "http://a/", resilience.WithClock(mock), resilience.WithAttempts(1))
		require.NoError(t, err)
		require.Equal(t, []resilience.Verdict{resilience.Throttled.After(20 * time.Second)}, got)
	}
}
