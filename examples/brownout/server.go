package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// phase is a time during which the dependency behaves in one way.
type phase struct {
	name    string
	about   string
	lasts   time.Duration
	workers int     // requests that the server works on at once; the rest waits in its queue
	errors  float64 // the share that is answered with 503
	tail    float64 // the share that takes ten times as long
	busy    bool    // goroutines that burn the CPU starve this process
}

const maxQueue = 1000 // requests that may wait; more are answered with 503 at once

// server is a dependency with a capacity. It has the habit of real servers that makes brownouts so bad: what is in its queue
// is worked on, whether or not somebody still waits for the answer.
type server struct {
	url     string
	cost    time.Duration // what a request costs a worker on average: half of it to one and a half
	http    *http.Server
	serving sync.WaitGroup
	failed  error // what ended it, if it was not stop

	mu      sync.Mutex // guards what is beneath
	free    sync.Cond  // a worker may be free
	now     *phase
	working int
	waiting int
}

func startServer(ctx context.Context, cost time.Duration, first *phase) (*server, error) {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + l.Addr().String(), cost: cost, now: first}
	s.free.L = &s.mu
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.serving.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.failed = err
		}
	})
	return s, nil
}

func (s *server) phase() *phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *server) enter(p *phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
	s.free.Broadcast()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.work() {
		http.Error(w, "queue full", http.StatusServiceUnavailable)
		return
	}
	now := s.phase()
	if rand.Float64() < now.tail { // a slow path beside the workers: a lost packet, a cold cache
		select {
		case <-time.After(9 * s.cost):
		case <-r.Context().Done():
		}
	}
	if rand.Float64() < now.errors {
		http.Error(w, "something broke", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("42.17 EUR\n"))
}

// work waits for a worker and keeps it busy. It reports false if the queue is full.
func (s *server) work() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == maxQueue {
		return false
	}
	s.waiting++
	for s.working >= s.now.workers {
		s.free.Wait()
	}
	s.waiting--
	s.working++
	s.mu.Unlock()
	time.Sleep(time.Duration((0.5 + rand.Float64()) * float64(s.cost)))
	s.mu.Lock()
	s.working--
	s.free.Signal()
	return true
}

// stop waits for what is being served, and returns what went wrong.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	s.serving.Wait()
	return errors.Join(s.failed, err)
}
