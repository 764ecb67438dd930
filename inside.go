package resilience

import (
	"context"
	"time"

	"github.com/measuredgo/resilience/internal/inside"
)

func init() { inside.Look, inside.Age, inside.SingleShot = look, age, isSingleShot }

// look is the inside of a policy for the other packages of this module.
func look(v any) inside.Policy {
	p := v.(Policy).p
	if p == nil {
		return inside.Policy{
			Attempts: 1, Deadline: Unbounded, AttemptTimeout: Unbounded,
			Now: time.Now, Timer: standardTime.timer, Emit: func(any) {}, Within: standardTime.within,
		}
	}
	return inside.Policy{
		Attempts: p.set.attempts, Deadline: p.set.deadline, AttemptTimeout: p.set.attemptTimeout,
		ProgressBound: !p.set.noProgressBound, NestedRetries: p.set.nestedRetries, Hedges: p.set.hedge != nil,
		OwnClock: p.time.injected(),
		Now: func() time.Time {
			at, _ := p.time.present()
			return at
		},
		Timer:  p.time.timer,
		Emit:   func(e any) { p.emit(e.(Event)) },
		Within: p.time.within,
	}
}

// age reckons from the start of the attempt, not from when its callback was called: an admit hook comes before.
func age(attempt context.Context) (now time.Time, since time.Duration) {
	a := attemptFrom(attempt)
	now, reading := a.policy.time.present()
	return now, reading - a.began
}

// within is ctx with a deadline d from now on this timeline.
func (t *timeline) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case d == Unbounded:
		return context.WithCancel(ctx)
	case t.injected():
		return withClockTimeout(ctx, t.clock, d, ErrDeadlineExceeded)
	}
	return context.WithTimeoutCause(ctx, d, ErrDeadlineExceeded)
}
