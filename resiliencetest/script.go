package resiliencetest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
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
	made  string     // where, as in "own_test.go:46"; only with t
	over  bool       // t has ended, and would panic if it failed
}

func (s *script[S]) add(newest S) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, newest)
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
	case s.over:
		err = s.refuse("is over, call %d comes after the end of its test", s.calls)
	case s.taken < len(s.steps):
		step = s.steps[s.taken]
		s.taken++
	case s.t != nil:
		err = s.refuse("has %s, this is call %d", plural(len(s.steps), "step"), s.calls)
		s.t.Errorf("%v", err)
	case len(s.steps) > 0:
		step = s.steps[len(s.steps)-1]
	}
	return step, err
}

// refuse is the error of a call that has no step. Nobody shall retry it.
func (s *script[S]) refuse(format string, args ...any) error {
	return resilience.Permanent.Mark(fmt.Errorf("resiliencetest: the script of %s %s", s.made, fmt.Sprintf(format, args...)))
}

// exactly is called by an exported method, whose caller is where the script was made.
func (s *script[S]) exactly(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.t != nil {
		misuse("the script of %s is exact already", s.made)
	}
	_, file, line, _ := runtime.Caller(2)
	s.t, s.made = t, fmt.Sprintf("%s:%d", filepath.Base(file), line)
	t.Cleanup(func() {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = true
		if left := len(s.steps) - s.taken; left > 0 {
			t.Errorf("resiliencetest: the script of %s has %s, %d left at the end of the test", s.made, plural(len(s.steps), "step"), left)
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

// endOf is the channel that closes when ctx ends, for a call that hangs until then.
func endOf(ctx context.Context, method string) <-chan struct{} {
	if ctx.Done() == nil {
		misuse("%s under a context that cannot end", method)
	}
	return ctx.Done()
}

// plural is "1 step" or "2 steps".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func misuse(format string, args ...any) { panic("resiliencetest: " + fmt.Sprintf(format, args...)) }

func checkDelay(method string, d time.Duration) {
	if d < 0 {
		misuse("%s is %v, want 0 or more", method, d)
	}
}
