package resiliencehttp

import (
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/inside"
)

// alarm calls ring, on a goroutine of its own, when a time has passed on the policy's clock. After stop it can be set
// again. On the standard clock it keeps one timer and no goroutine; a clock of the user's can only be waited for.
type alarm struct {
	ring  func()
	clock func(time.Duration) (<-chan time.Time, func()) // nil: the standard clock

	timer *time.Timer
	quit  func() bool // of the wait that set has begun
}

func newAlarm(look *inside.Policy, ring func()) alarm {
	a := alarm{ring: ring}
	if look.OwnClock {
		a.clock = look.Timer
	}
	return a
}

// set must not run beside another set or a stop.
func (a *alarm) set(d time.Duration) {
	switch {
	case a.clock != nil:
		a.quit = wait(a.clock, d, a.ring)
	case a.timer == nil:
		a.timer = time.AfterFunc(d, a.ring)
	default:
		a.timer.Reset(d)
	}
}

// stop reports whether it came before the bell. It may be called more than once, and from several goroutines; an alarm
// that was never set is stopped.
func (a *alarm) stop() bool {
	switch {
	case a.timer != nil:
		return a.timer.Stop()
	case a.quit != nil:
		return a.quit()
	}
	return true
}

func wait(clock func(time.Duration) (<-chan time.Time, func()), d time.Duration, ring func()) (quit func() bool) {
	fired, release := clock(d)
	over := make(chan struct{})
	var settled atomic.Bool
	go func() {
		select {
		case <-fired:
			if settled.CompareAndSwap(false, true) {
				ring()
			}
		case <-over:
		}
	}()
	return func() bool {
		if !settled.CompareAndSwap(false, true) {
			return false
		}
		release()
		close(over)
		return true
	}
}
