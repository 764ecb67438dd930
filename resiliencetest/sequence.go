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
// It is safe for concurrent use; steps may be added while it is called. It must not be copied once it is in use.
type Sequence[T any] struct {
	// Clock is the clock of delays; nil: the standard time package. Set it before the first call. It is called concurrently.
	Clock resilience.Clock

	script script[step[T]]
	infos  []resilience.AttemptInfo // guarded by script.mu
}

type step[T any] struct {
	delay time.Duration
	do    func(ctx context.Context) (T, error) // nil: the zero T and no error
}

// Return adds one step for each value, which returns it without an error. No value at all panics: it would add nothing.
func (s *Sequence[T]) Return(values ...T) *Sequence[T] {
	if len(values) == 0 {
		misuse("Sequence.Return without a value")
	}
	for _, v := range values {
		s.Do(func(context.Context) (T, error) { return v, nil })
	}
	return s
}

// Fail adds one step for each error, which returns it with the zero T. A nil error panics: that is Return. No error at all
// panics: it would add nothing.
func (s *Sequence[T]) Fail(errs ...error) *Sequence[T] {
	if len(errs) == 0 {
		misuse("Sequence.Fail without an error")
	}
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

// Hang adds a step that blocks until the context of its call ends, and returns the context's error. The call panics under a
// context that cannot end.
func (s *Sequence[T]) Hang() *Sequence[T] {
	return s.Do(func(ctx context.Context) (v T, _ error) {
		<-endOf(ctx, "Sequence.Hang")
		return v, ctx.Err()
	})
}

// Do adds a step of your own; a nil fn panics. It runs on the goroutine of the call, with no lock held, and as a last step that
// repeats it may be called concurrently.
func (s *Sequence[T]) Do(fn func(ctx context.Context) (T, error)) *Sequence[T] {
	if fn == nil {
		misuse("the function of Sequence.Do is nil")
	}
	s.script.add(step[T]{do: fn})
	return s
}

// After delays the newest step by d; one that has begun keeps its delay. If the context of the call ends before, the step is
// over and the context's error is returned. A negative d panics, and so does After without a step.
func (s *Sequence[T]) After(d time.Duration) *Sequence[T] {
	checkDelay("the delay of Sequence.After", d)
	s.script.amend("Sequence.After", func(newest *step[T]) { newest.delay = d })
	return s
}

// Exactly makes the script exact: a call beyond its last step fails the test, and gets an error marked Permanent; a step
// that was not used until the end of the test fails it too. Failures name the line that calls Exactly. After the end of the
// test, which is when t runs its cleanups, each call gets an error marked Permanent and fails nothing. A second Exactly panics.
func (s *Sequence[T]) Exactly(t testing.TB) *Sequence[T] {
	t.Helper()
	s.script.exactly(t)
	return s
}

// Call takes the next step, and blocks as long as that says. It is the callback for resilience.Do and TryDo, and may be called
// concurrently.
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

// Run is Call without the value: the callback for Policy.Run and Policy.Try. It may be called concurrently.
func (s *Sequence[T]) Run(ctx context.Context) error {
	_, err := s.Call(ctx)
	return err
}

// Calls returns how many calls there were so far, those without a step among them.
func (s *Sequence[T]) Calls() int { return s.script.count() }

// Attempts returns a copy of what resilience.AttemptFrom told about each call, in order; zero for a call outside of a policy.
func (s *Sequence[T]) Attempts() []resilience.AttemptInfo {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	return slices.Clone(s.infos)
}
