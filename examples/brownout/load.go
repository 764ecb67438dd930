package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience"
)

const rate = 200 // calls per second in each lane, however the dependency is doing

// newPolicy has everything that the library offers, for callers who wait that long. What is not written is the default.
func newPolicy(patience time.Duration, more ...resilience.Option) (resilience.Policy, error) {
	return resilience.New(append([]resilience.Option{
		resilience.WithName("prices"),
		resilience.WithDeadline(patience),
		resilience.WithAttemptTimeout(patience * 3 / 4),
		resilience.WithBackoff(resilience.Backoff{Base: patience / 50, ThrottledBase: patience / 20}),
		resilience.WithBreaker(resilience.BreakerConfig{OpenFor: patience / 4, MaxOpenFor: patience / 2}),
		resilience.WithLimiter(resilience.LimiterConfig{Min: 10, Max: 50}), // one client: where it starts again after a brownout
		resilience.WithHedge(resilience.HedgeAt(0.95)),
		resilience.WithSaturation(resilience.Saturation{Multiple: 4, MinSamples: 10}),
		resilience.WithRules(resilience.OnResult("HTTP status", judge)),
		resilience.OnDiscard(release),
	}, more...)...)
}

// judge says what an answer means. Transport errors need no rule: the defaults know them.
func judge(answer *http.Response) resilience.Verdict {
	switch {
	case answer.StatusCode == http.StatusTooManyRequests:
		return resilience.Throttled
	case answer.StatusCode >= http.StatusInternalServerError:
		return resilience.Transient
	}
	return resilience.OK
}

// release drains and closes an answer, also one that was superseded by a retry or by the other leg of a hedge.
func release(answer *http.Response) {
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
}

// lane makes calls to a server of its own, so that lanes run side by side without touching each other.
type lane struct {
	policy   resilience.Policy // the zero Policy: a plain http.Client
	patience time.Duration     // how long the caller of a call waits
	server   *server
	client   *http.Client

	sent, retries, hedges atomic.Int64

	mu    sync.Mutex // guards calls
	calls []call     // in the order in which they ended
}

// call is one call that has ended.
type call struct {
	phase    *phase // in which it began
	took     time.Duration
	sent     int  // requests
	answered bool // with a price, in time
}

func newLane(ctx context.Context, s *show, first *phase, p resilience.Policy) (*lane, error) {
	l := &lane{patience: s.patience}
	if p != (resilience.Policy{}) {
		var err error
		if p, err = p.With(resilience.WithListener(l.count)); err != nil {
			return nil, err
		}
	}
	l.policy = p
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1000
	l.client = &http.Client{Transport: transport}
	var err error
	l.server, err = startServer(ctx, s.cost, first)
	return l, err
}

func (l *lane) count(e resilience.Event) {
	switch e.Kind {
	case resilience.EventRetrying:
		l.retries.Add(1)
	case resilience.EventHedgeStarted:
		l.hedges.Add(1)
	}
}

// drive makes calls at a constant rate until ctx is done, and waits for the last one. It does not slow down when the
// dependency does: users do not either.
func (l *lane) drive(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for next := time.Now(); ctx.Err() == nil; next = next.Add(time.Second / rate) {
		time.Sleep(time.Until(next))
		calls.Go(l.call)
	}
}

func (l *lane) call() {
	c, begin := call{phase: l.server.phase()}, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), l.patience)
	defer cancel()
	var sent atomic.Int64 // the losing leg of a hedge may still be about to send
	answer, err := resilience.Do(ctx, l.policy, func(ctx context.Context) (*http.Response, error) {
		sent.Add(1)
		return l.get(ctx)
	})
	c.took, c.sent = time.Since(begin), int(sent.Load())
	if err == nil {
		c.answered = answer.StatusCode == http.StatusOK && c.took <= l.patience
		release(answer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// get sends one request and reads the whole answer: the context of an attempt ends with the attempt, and with it a body
// that was not read.
func (l *lane) get(ctx context.Context) (*http.Response, error) {
	l.sent.Add(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.server.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := l.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, resilience.Transient.Mark(err) // half an answer: ask again, whatever broke it
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, nil
}

// ended returns the calls that have ended, from number n on.
func (l *lane) ended(n int) []call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls[n:])
}

func (l *lane) stop() error {
	l.client.CloseIdleConnections()
	return l.server.stop()
}

// summary is what some calls amount to.
type summary struct {
	calls, answered, sent int
	p50, p99              time.Duration // of all of them: how long callers waited for an answer or an error
}

func (s summary) share() float64   { return float64(s.answered) / float64(max(s.calls, 1)) }
func (s summary) perCall() float64 { return float64(s.sent) / float64(max(s.calls, 1)) }

// summarize looks at the calls that began in p; nil: at all of them.
func summarize(calls []call, p *phase) summary {
	var s summary
	var took []time.Duration
	for _, c := range calls {
		if p != nil && c.phase != p {
			continue
		}
		s.calls++
		s.sent += c.sent
		if c.answered {
			s.answered++
		}
		took = append(took, c.took)
	}
	if len(took) > 0 {
		slices.Sort(took)
		s.p50, s.p99 = took[len(took)/2], took[len(took)*99/100]
	}
	return s
}
