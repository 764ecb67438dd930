package resilience

import (
	"context"
	"sync"
	"time"
)

// Clock is the source of time of a policy or a guard. It is satisfied as it stands by the Clock of
// github.com/benbjohnson/clock, mock and real. Both methods must be safe for concurrent use. They may be called with a lock
// of this package held, and must not call back into it.
type Clock interface {
	Now() time.Time
	// After returns a channel that receives once, when d has passed.
	After(d time.Duration) <-chan time.Time
}

// never is the reading of a timeline that no clock reaches.
const never = Unbounded

// timeline is a clock with an origin. Everything inside the package reckons in readings of a timeline, durations since
// its origin: they are monotonic, eight bytes long and need no time zone. Two parts may exchange readings only if they
// hold the same *timeline.
type timeline struct {
	clock  Clock // nil: the standard time package
	origin time.Time
}

// standardTime is the timeline of everything that has no clock of its own.
var standardTime = &timeline{origin: time.Now()}

func newTimeline(c Clock) *timeline {
	if c == nil {
		return standardTime
	}
	return &timeline{clock: c, origin: c.Now()}
}

// injected reports whether the timeline follows a Clock of the user's, which has nothing to do with the wall clock.
func (t *timeline) injected() bool { return t.clock != nil }

func (t *timeline) now() time.Duration {
	if t.clock != nil {
		return t.clock.Now().Sub(t.origin)
	}
	return time.Since(t.origin)
}

// present is now, as an instant and as a reading, for one look at the clock. The standard clock's instant has today's
// wall time: deadlines made from it stay right when the wall clock was set since the program started.
func (t *timeline) present() (time.Time, time.Duration) {
	if t.clock != nil {
		at := t.clock.Now()
		return at, at.Sub(t.origin)
	}
	at := time.Now()
	return at, at.Sub(t.origin)
}

// at is the instant of a reading, by the clock as it is set now.
func (t *timeline) at(reading time.Duration) time.Time {
	at, now := t.present()
	return at.Add(reading - now)
}

// timer returns a channel that receives when d has passed, and what releases the timer. A Clock cannot stop what After
// has started: there stop does nothing.
func (t *timeline) timer(d time.Duration) (fired <-chan time.Time, stop func()) {
	if t.clock != nil {
		return t.clock.After(d), func() {}
	}
	timer := time.NewTimer(d)
	return timer.C, func() { timer.Stop() }
}

// afterFunc runs f on a goroutine of its own when d has passed, unless stop is called before.
func (t *timeline) afterFunc(d time.Duration, f func()) (stop func()) {
	if t.clock == nil {
		timer := time.AfterFunc(d, f)
		return func() { timer.Stop() }
	}
	fired, stopped := t.clock.After(d), make(chan struct{})
	go func() {
		select {
		case <-fired:
			f()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

// later is now + d without overflow; what is never over is never over, also where the clock reads less than zero.
func later(now, d time.Duration) time.Duration {
	if d == never || d > 0 && now > never-d {
		return never
	}
	return now + d
}

// clockContext is a context whose timeout a Clock measures. The standard package has none, and a Clock can neither call
// back nor be stopped: a goroutine waits, and ends with the timeout, with the parent, or when the context is cancelled.
type clockContext struct {
	context.Context // the parent
	done            chan struct{}

	mu      sync.Mutex // guards outcome
	outcome context.Context
}

// withClockTimeout is context.WithTimeoutCause on a Clock. The context that it returns is a standard one.
func withClockTimeout(parent context.Context, clock Clock, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(expiredContext(parent, cause))
	}
	timed := &clockContext{Context: parent, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(timed)
	fired := clock.After(d)
	go func() {
		select {
		case <-fired:
			timed.finish(expiredContext(parent, cause))
		case <-parent.Done():
			timed.finish(parent)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// expiredContext is done since long ago, for that cause.
func expiredContext(parent context.Context, cause error) context.Context {
	ctx, cancel := context.WithDeadlineCause(parent, time.Unix(1, 0), cause)
	cancel()
	return ctx
}

func (c *clockContext) finish(outcome context.Context) {
	c.mu.Lock()
	c.outcome = outcome
	c.mu.Unlock()
	close(c.done)
}

// ended is the context that tells how this one ended, nil before it did.
func (c *clockContext) ended() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcome
}

func (c *clockContext) Done() <-chan struct{} { return c.done }

func (c *clockContext) Err() error {
	if o := c.ended(); o != nil {
		return o.Err()
	}
	return nil
}

func (c *clockContext) Value(key any) any {
	if o := c.ended(); o != nil {
		return o.Value(key)
	}
	return c.Context.Value(key)
}
