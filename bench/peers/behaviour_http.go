package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// server counts what it sees.
type server struct {
	*httptest.Server
	requests, connections atomic.Int64
}

func newServer(handle http.HandlerFunc) *server {
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		handle(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.Start()
	return s
}

// watched is a transport that knows which bodies of its responses were closed.
type watched struct {
	http.RoundTripper
	mu     sync.Mutex
	bodies []*watchedBody
}

type watchedBody struct {
	io.ReadCloser
	superseded bool
	closed     atomic.Bool
}

func (b *watchedBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	b := &watchedBody{ReadCloser: resp.Body, superseded: resp.StatusCode == http.StatusServiceUnavailable}
	w.mu.Lock()
	w.bodies = append(w.bodies, b)
	w.mu.Unlock()
	resp.Body = b
	return resp, nil
}

// ask makes one request of each transport of its own connection pool.
func askHTTP(handle http.HandlerFunc, question func(c *http.Client, s *server, w *watched) fmt.Stringer) []outcome {
	var outcomes []outcome
	for _, side := range httpSides() {
		s := newServer(handle)
		pool := &http.Transport{}
		w := &watched{RoundTripper: pool}
		c := &http.Client{Transport: side.transport(w)}
		outcomes = append(outcomes, outcome{side.who, question(c, s, w)})
		pool.CloseIdleConnections()
		s.Close()
	}
	return outcomes
}

// pushedBack is what became of a request to which the server said: come back in an hour.
type pushedBack struct {
	took   time.Duration
	status int // of the response that the caller got, 0 if there was none
	err    error
}

func (p pushedBack) String() string {
	text := "gave up at once"
	if p.took > 150*time.Millisecond {
		text = fmt.Sprintf("waited %v for a retry that could not come", p.took.Round(50*time.Millisecond))
	}
	switch {
	case p.status != 0:
		return fmt.Sprintf("%s; the caller got the %d", text, p.status)
	case errors.Is(p.err, context.DeadlineExceeded):
		return text + "; the caller got a deadline error, the server's answer is lost"
	}
	return text + "; the caller got an error"
}

func longRetryAfter() []outcome {
	return askHTTP(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}, func(c *http.Client, s *server, _ *watched) fmt.Stringer {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			return pushedBack{err: err}
		}
		began := time.Now()
		resp, err := c.Do(req)
		p := pushedBack{took: time.Since(began), err: err}
		if err == nil {
			p.status = resp.StatusCode
			_ = resp.Body.Close()
		}
		return p
	})
}

// superseded is what became of the responses that were not the last.
type superseded struct{ responses, closed, connections, succeeded int }

func (s superseded) String() string {
	return fmt.Sprintf("%d of %d superseded bodies closed, %d connections for %d requests that succeeded",
		s.closed, s.responses, s.connections, s.succeeded)
}

func supersededBodies() []outcome {
	var turn atomic.Int64
	return askHTTP(func(w http.ResponseWriter, _ *http.Request) {
		if turn.Add(1)%3 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 2<<10))
	}, func(c *http.Client, s *server, w *watched) fmt.Stringer {
		turn.Store(0)
		var found superseded
		for range 20 {
			resp, err := c.Get(s.URL)
			if err != nil {
				continue
			}
			if _, err := io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode == http.StatusOK {
				found.succeeded++
			}
			_ = resp.Body.Close()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, b := range w.bodies {
			if b.superseded {
				found.responses++
				if b.closed.Load() {
					found.closed++
				}
			}
		}
		found.connections = int(s.connections.Load())
		return found
	})
}

// posted is how often the server saw a request that nobody said was safe to repeat.
type posted struct{ times int }

func (p posted) String() string {
	if p.times == 1 {
		return "sent once"
	}
	return fmt.Sprintf("sent %d times", p.times)
}

func posts() []outcome {
	return askHTTP(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
	}, func(c *http.Client, s *server, _ *watched) fmt.Stringer {
		resp, err := c.Post(s.URL, "text/plain", strings.NewReader("one order"))
		if err == nil {
			_ = resp.Body.Close()
		}
		return posted{int(s.requests.Load())}
	})
}
