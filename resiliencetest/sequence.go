package resiliencetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
)

// Sequence is a dependency that follows a script: each call takes the next step, and when there are no more, the last one
// repeats. See Exactly for a script that must not repeat. The zero Sequence returns the zero T and no error, and counts.
//
//	var s resiliencetest.Sequence[string]
//	s.Fail(errDown).Return("receipt")
//	receipt, err := resilience.Do(ctx, policy, s.Call)
//
// It is safe for concurrent use; steps may be added while it is called.
type Sequence[T any] struct {
	Clock resilience.Clock // of delays; nil: the standard time package. Set it before the first call

	script script[step[T]]
	infos  []resilience.AttemptInfo // guarded by script.mu
}

type step[T any] struct {
	delay time.Duration
	do    func(ctx context.Context) (T, error) // nil: the zero T and no error
}

// Return adds one step for each value, which returns it without an error.
func (s *Sequence[T]) Return(values ...T) *Sequence[T] {
	for _, v := range values {
		s.Do(func(context.Context) (T, error) { return v, nil })
	}
	return s
}

// Fail adds one step for each error, which returns it with the zero T. A nil error panics: that is Return.
func (s *Sequence[T]) Fail(errs ...error) *Sequence[T] {
	for i, err := range errs {
		if err == nil {
			misuse("error %d of Sequence.Fail is nil", i+1)
		}
		s.Do(func(context.Context) (v T, _ error) { return v, err })
	}
	return s
}

// Panic adds a step that panics with v.
func (s *Sequence[T]) Panic(v any) *Sequence[T] {
	return s.Do(func(context.Context) (T, error) { panic(v) })
}

// Hang adds a step that blocks until the context of its call ends, and returns the context's error. A context that cannot
// end panics.
func (s *Sequence[T]) Hang() *Sequence[T] {
	return s.Do(func(ctx context.Context) (v T, _ error) {
		hang(ctx)
		return v, ctx.Err()
	})
}

// Do adds a step of your own.
func (s *Sequence[T]) Do(fn func(ctx context.Context) (T, error)) *Sequence[T] {
	if fn == nil {
		misuse("the function of Sequence.Do is nil")
	}
	s.script.add(step[T]{do: fn})
	return s
}

// After delays the newest step by d. If the context of the call ends before, the step is over and its context's error is
// returned.
func (s *Sequence[T]) After(d time.Duration) *Sequence[T] {
	checkDelay("the delay of Sequence.After", d)
	s.script.amend("Sequence.After", func(newest *step[T]) { newest.delay = d })
	return s
}

// Exactly makes the script exact: a call beyond its last step fails the test, and gets an error marked Permanent; a step
// that was not used until the end of the test fails it too.
func (s *Sequence[T]) Exactly(t testing.TB) *Sequence[T] {
	t.Helper()
	s.script.exactly(t)
	return s
}

// Call takes the next step. It is the callback for resilience.Do and TryDo.
func (s *Sequence[T]) Call(ctx context.Context) (T, error) {
	var zero T
	info, _ := resilience.AttemptFrom(ctx)
	next, err := s.script.next(func(int) { s.infos = append(s.infos, info) })
	switch {
	case err != nil:
		return zero, err
	case !pause(ctx, s.Clock, next.delay):
		return zero, ctx.Err()
	case next.do == nil:
		return zero, nil
	}
	return next.do(ctx)
}

// Run is Call without the value: the callback for Policy.Run and Policy.Try.
func (s *Sequence[T]) Run(ctx context.Context) error {
	_, err := s.Call(ctx)
	return err
}

// Calls returns how many calls there were.
func (s *Sequence[T]) Calls() int { return s.script.count() }

// Attempts returns what resilience.AttemptFrom told about each call, in order; zero for a call outside of a policy.
func (s *Sequence[T]) Attempts() []resilience.AttemptInfo {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	return slices.Clone(s.infos)
}
