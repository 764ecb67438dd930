package resiliencetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
)

// script is a list of steps and how far it was followed. It is safe for concurrent use: each call takes the next step.
type script[S any] struct {
	mu    sync.Mutex // guards what is beneath
	steps []S
	taken int        // steps that were taken, at most all of them
	calls int        // how often next was asked
	t     testing.TB // nil: the last step repeats
}

func (s *script[S]) add(steps ...S) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// amend changes the newest step.
func (s *script[S]) amend(method string, change func(*S)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) == 0 {
		misuse("%s comes after the step that it belongs to", method)
	}
	change(&s.steps[len(s.steps)-1])
}

// next is the step of this call. An empty script has a zero step for everybody. record runs in the order of the calls, with
// the lock held.
func (s *script[S]) next(record func(call int)) (step S, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	record(s.calls)
	switch {
	case s.taken < len(s.steps):
		step = s.steps[s.taken]
		s.taken++
	case s.t != nil:
		s.t.Helper()
		s.t.Errorf("resiliencetest: call %d of a script of %d steps", s.calls, len(s.steps))
		err = resilience.Permanent.Mark(fmt.Errorf("resiliencetest: the script of %d steps is over", len(s.steps)))
	case len(s.steps) > 0:
		step = s.steps[len(s.steps)-1]
	}
	return step, err
}

func (s *script[S]) exactly(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.t != nil {
		misuse("Exactly was called already")
	}
	s.t = t
	t.Cleanup(func() {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := len(s.steps) - s.taken; left > 0 {
			t.Errorf("resiliencetest: %d of %d steps of the script were not used", left, len(s.steps))
		}
	})
}

func (s *script[S]) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// pause lets d pass, and reports whether it did: ctx may end before.
func pause(ctx context.Context, clock resilience.Clock, d time.Duration) bool {
	if d == 0 {
		return true
	}
	var fired <-chan time.Time
	if clock != nil {
		fired = clock.After(d)
	} else {
		timer := time.NewTimer(d)
		defer timer.Stop()
		fired = timer.C
	}
	select {
	case <-fired:
		return true
	case <-ctx.Done():
		return false
	}
}

// hang blocks until ctx ends.
func hang(ctx context.Context) {
	if ctx.Done() == nil {
		misuse("a call hangs under a context that never ends")
	}
	<-ctx.Done()
}

func misuse(format string, args ...any) { panic("resiliencetest: " + fmt.Sprintf(format, args...)) }

func checkDelay(method string, d time.Duration) {
	if d < 0 {
		misuse("%s is %v, want 0 or more", method, d)
	}
}
