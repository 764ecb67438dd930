package resilience

import (
	"time"

	"github.com/measuredgo/resilience/internal/inside"
)

func init() { inside.Look, inside.SingleShot = look, isSingleShot }

// look is the inside of a policy for the other packages of this module.
func look(v any) inside.Policy {
	p := v.(Policy).p
	if p == nil {
		return inside.Policy{
			Attempts: 1, Deadline: Unbounded, AttemptTimeout: Unbounded,
			Now: time.Now, Timer: standardTime.timer, Emit: func(any) {},
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
		Timer: p.time.timer,
		Emit:  func(e any) { p.emit(e.(Event)) },
	}
}
