package resiliencehttp_test

import (
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// roundTrip is a base without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func answer(status int, text string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: make(http.Header), Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// policyOf is a policy for tests: no waits, no budget, no measured ceiling.
func policyOf(t testing.TB, opts ...resilience.Option) resilience.Policy {
	t.Helper()
	p, err := resiliencehttp.NewPolicy(append([]resilience.Option{
		resilience.WithBackoff(resilience.NoBackoff()), resilience.WithoutBudget(), resilience.WithoutAttemptCeiling(),
	}, opts...)...)
	require.NoError(t, err)
	return p
}

func transportOf(t testing.TB, base http.RoundTripper, p resilience.Policy, opts ...resiliencehttp.Option) *resiliencehttp.Transport {
	t.Helper()
	tr, err := resiliencehttp.NewTransport(base, p, opts...)
	require.NoError(t, err)
	return tr
}

// server is a real server on loopback that counts its connections, and the pool of a client of its own.
type server struct {
	*httptest.Server
	requests atomic.Int64
	opened   atomic.Int64 // connections that there ever were
	open     atomic.Int64 // connections that there are
	pool     *http.Transport
}

func serve(t testing.TB, http2 bool, handle http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		handle(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.opened.Add(1)
			s.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.open.Add(-1)
		}
	}
	if http2 {
		s.EnableHTTP2 = true
		s.StartTLS()
		s.pool = s.Client().Transport.(*http.Transport)
	} else {
		s.Start()
		s.pool = &http.Transport{}
	}
	t.Cleanup(func() {
		s.pool.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// protocols runs a test over HTTP/1.1 and over HTTP/2.
func protocols(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP/2", func(t *testing.T) { test(t, true) })
}

// patiently tries a test of real time with a bound, and with longer ones if it fails: a machine that is busy with other
// work misses a short one, a fault misses them all.
func patiently(t *testing.T, bound time.Duration, test func(bound time.Duration) error) {
	t.Helper()
	err := test(bound)
	for range 2 {
		if err == nil {
			return
		}
		bound *= 4
		t.Logf("once more with %v: %v", bound, err)
		err = test(bound)
	}
	require.NoError(t, err)
}

// pipeNet connects http.Transport and http.Server in memory, so that a synctest bubble decides what time it is.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
}

func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}
func (n *pipeNet) Close() error   { close(n.done); return nil }
func (n *pipeNet) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// pipeServer is called inside of a bubble. What it returns ends the server and the pool.
func pipeServer(handle http.HandlerFunc) (pool *http.Transport, stop func()) {
	return pipeServerOf(false, handle)
}

func pipeServerOf(http2 bool, handle http.HandlerFunc) (pool *http.Transport, stop func()) {
	n := &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	s := &http.Server{Handler: handle, Protocols: protocols}
	go func() { _ = s.Serve(n) }()
	pool = &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case n.conns <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	return pool, func() {
		pool.CloseIdleConnections()
		_ = s.Close()
	}
}

// tracked is a body that counts how often it is closed and how it is misused.
type tracked struct {
	io.Reader
	closes  atomic.Int64
	reading atomic.Int64
	late    atomic.Int64 // reads that began after it was closed
	misused atomic.Bool
	reads   atomic.Int64
}

func (b *tracked) Read(p []byte) (int, error) {
	b.reads.Add(1)
	// A base may close a body while it reads it, and the read that is on its way then may arrive after the close. Another
	// one may not.
	if b.closes.Load() > 0 && b.late.Add(1) > 1 {
		b.misused.Store(true)
	}
	if b.reading.Add(1) > 1 {
		b.misused.Store(true)
	}
	defer b.reading.Add(-1)
	return b.Reader.Read(p)
}

func (b *tracked) Close() error {
	b.closes.Add(1)
	return nil
}

func newTracked(text string) *tracked { return &tracked{Reader: strings.NewReader(text)} }

// events collects what a policy tells.
type events struct {
	mu   sync.Mutex
	list []resilience.Event
}

func (e *events) listen() resilience.Option {
	return resilience.WithListener(func(ev resilience.Event) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.list = append(e.list, ev)
	})
}

func (e *events) of(kind resilience.EventKind) []resilience.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []resilience.Event
	for _, ev := range e.list {
		if ev.Kind == kind {
			found = append(found, ev)
		}
	}
	return found
}

func get(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

func request(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	require.NoError(t, err)
	return req
}

// text reads a response to its end and closes it.
func text(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(b)
}

// liveHeap is what the program holds, without garbage.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func hash(r io.Reader) (sum [32]byte, n int64) {
	h := sha256.New()
	n, _ = io.Copy(h, r)
	copy(sum[:], h.Sum(nil))
	return sum, n
}

// back waits until there are no more goroutines than before. It looks by itself: require.Eventually has some of its own.
func back(t testing.TB, before int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			require.FailNow(t, "goroutines are left behind", "%d before\n%s", before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
