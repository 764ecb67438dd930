package resilience_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

var (
	errDown = errors.New("the dependency is down")
	errBug  = errors.New("a bug")
)

// svcError is a dependency's own error type.
type svcError struct{ code int }

func (e *svcError) Error() string { return "the service says no" }

// heard remembers what a policy tells.
type heard struct {
	mu  sync.Mutex
	all []resilience.Event
}

func (h *heard) option() resilience.Option { return resilience.WithListener(h.listen) }

func (h *heard) listen(e resilience.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e)
}

func (h *heard) kinds() []resilience.EventKind {
	h.mu.Lock()
	defer h.mu.Unlock()
	var kinds []resilience.EventKind
	for _, e := range h.all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (h *heard) of(k resilience.EventKind) []resilience.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []resilience.Event
	for _, e := range h.all {
		if e.Kind == k {
			found = append(found, e)
		}
	}
	return found
}

func (h *heard) terminals() []resilience.EventKind {
	return slices.DeleteFunc(h.kinds(), func(k resilience.EventKind) bool { return !k.Terminal() })
}

func (h *heard) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = nil
}

// retrying is a policy to which every error is transient, without waits and budget, under these options.
func retrying(opts ...resilience.Option) resilience.Policy {
	return resilience.MustNew(slices.Concat([]resilience.Option{
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithoutBudget(),
	}, opts)...)
}

// bad calls every int a failure.
var bad = resilience.WithRules(resilience.OnResult("bad", func(int) resilience.Verdict { return resilience.Transient }))

// slowAt is a listener that takes that long to hear of such an event.
func slowAt(kind resilience.EventKind, d time.Duration) resilience.Option {
	return resilience.WithListener(func(e resilience.Event) {
		if e.Kind == kind {
			time.Sleep(d)
		}
	})
}

func waits(d time.Duration) resilience.Option {
	return resilience.WithBackoff(resilience.ConstantBackoff(d))
}

func breakerOf(t testing.TB, c resilience.BreakerConfig) *resilience.Breaker {
	t.Helper()
	b, err := resilience.NewBreaker(c)
	require.NoError(t, err)
	return b
}

// tripped opens the breaker.
func tripped(t testing.TB, b *resilience.Breaker) *resilience.Breaker {
	t.Helper()
	for range 1000 {
		l, err := b.Allow()
		if err != nil {
			break
		}
		l.Done(resilience.Transient, time.Millisecond)
	}
	require.Equal(t, resilience.StateOpen, b.State())
	return b
}

// script is a callback that returns these errors, one after the other, and the last one for ever.
type script struct {
	mu      sync.Mutex
	results []error
	calls   int
}

func scripted(results ...error) *script { return &script{results: results} }

func (s *script) fn(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := min(s.calls, len(s.results)-1)
	s.calls++
	return s.results[i]
}

// hang returns when its context ends, with the context's error.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func succeed(context.Context) error { return nil }
func fail(context.Context) error    { return errDown }

// report finds the *Error.
func report(t testing.TB, err error) *resilience.Error {
	t.Helper()
	var e *resilience.Error
	require.ErrorAs(t, err, &e)
	return e
}

// stopwatch returns how much time has passed since.
func stopwatch() func() time.Duration {
	begin := time.Now()
	return func() time.Duration { return time.Since(begin) }
}

// noGoroutineLeft asks for no more goroutines than before. There may be fewer: an earlier test's may have ended meanwhile.
func noGoroutineLeft(t testing.TB, before int) {
	t.Helper()
	for range 100_000 { // those of the runtime come and go
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before, "a goroutine is left")
}
