package resilience

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Unbounded switches a deadline or an attempt timeout off.
const Unbounded time.Duration = math.MaxInt64

// AttemptCeiling bounds an attempt by the dependency's own latency: Multiple × a quantile of the successful attempts of
// the last Window. The tighter of it and the attempt timeout wins; under MinSamples there is no ceiling. A zero field means
// the default, except Multiple.
type AttemptCeiling struct {
	Multiple   float64       // more than 1
	Quantile   float64       // default 0.95; 0.5 to 0.99
	Window     time.Duration // default 5 min
	MinSamples int           // default 20
	Floor      time.Duration // the ceiling never falls under it; default 50 ms
}

// CeilingAbove is the ceiling at multiple × the p95 of the last 5 minutes.
func CeilingAbove(multiple float64) AttemptCeiling { return AttemptCeiling{Multiple: multiple} }

const defaultCeilingFloor = 50 * time.Millisecond

func (a AttemptCeiling) resolve(c *checker) AttemptCeiling {
	a.Quantile = orDefault(a.Quantile, 0.95)
	a.Window = orDefault(a.Window, 5*time.Minute)
	a.MinSamples = orDefault(a.MinSamples, 20)
	a.Floor = orDefault(a.Floor, defaultCeilingFloor)
	c.above("AttemptCeiling.Multiple", a.Multiple, 1)
	c.within("AttemptCeiling.Quantile", a.Quantile, 0.5, 0.99, "0.5 to 0.99")
	c.positive("AttemptCeiling.Window", a.Window)
	c.atLeast("AttemptCeiling.MinSamples", a.MinSamples, 1)
	c.positive("AttemptCeiling.Floor", a.Floor)
	return a
}

// boundBy names what bounds an attempt.
type boundBy uint8

const (
	byNothing  boundBy = iota
	byTimeout          // the attempt timeout
	byCeiling          // the measured ceiling
	byDeadline         // the time left of the policy's deadline
	byDrain            // the time left of a drain's grace
	byCaller           // the time left of the deadline of the caller's context
)

// own reports whether the bound is the attempt's, not the call's.
func (b boundBy) own() bool { return b == byTimeout || b == byCeiling }

// cause is what context.Cause tells the callback when the bound is reached.
func (b boundBy) cause() error {
	if b.own() {
		return ErrAttemptTimeout
	}
	return ErrDeadlineExceeded
}

// ceiling is the measured bound of an attempt, never where there is none.
func (p *policy) ceiling(now time.Duration) time.Duration {
	if t := p.terms.Load(); t != nil && t.ceiling != nil {
		if quantile, warm := t.ceiling.Value(now); warm {
			return p.ceilingOf(quantile, now)
		}
	}
	return never
}

// ceilingOf is the bound that a measured quantile makes. It leaves a hedge the time that the first leg has had: with a
// warm hedge threshold it is at least Multiple × that.
func (p *policy) ceilingOf(quantile, now time.Duration) time.Duration {
	c := p.set.ceiling
	bound := max(scale(quantile, c.Multiple), c.Floor)
	if threshold, warm := p.hedgeThreshold(now); warm {
		bound = max(bound, scale(threshold, c.Multiple))
	}
	return bound
}

// arm is the tightest bound of an attempt that starts now, and which one it is. The time left, which leftBy supplied, wins
// a tie: the call ends with it.
func (p *policy) arm(left time.Duration, leftBy boundBy, now time.Duration) (time.Duration, boundBy) {
	bound, by := left, leftBy
	if t := p.set.attemptTimeout; t < bound {
		bound, by = t, byTimeout
	}
	if c := p.ceiling(now); c < bound {
		bound, by = c, byCeiling
	}
	return bound, by
}

// AttemptInfo is what the context of an attempt, and the hooks, tell about it.
type AttemptInfo struct {
	Policy    string        // its name
	Number    int           // from 1
	Hedged    bool          // a leg beside another one
	Bound     time.Duration // what the attempt may take; Unbounded if nothing bounds it
	Remaining time.Duration // until the deadline of the call, at the attempt's start; Unbounded if there is none
}

// AttemptFrom returns which attempt of which policy the context belongs to: the innermost one.
func AttemptFrom(ctx context.Context) (AttemptInfo, bool) {
	a := attemptFrom(ctx)
	if a == nil {
		return AttemptInfo{}, false
	}
	return a.info(), true
}

type attemptKey struct{}

func attemptFrom(ctx context.Context) *attemptContext {
	if ctx == nil {
		return nil
	}
	a, _ := ctx.Value(attemptKey{}).(*attemptContext)
	return a
}

// attemptContext is the context of one attempt. It is one allocation and starts no timer: the standard context that does
// the work, with the right deadline and cause, is made when somebody first calls Done, and from then on answers for it, so
// that child contexts attach to it without a goroutine.
//
// States: fresh -> working (Done was called) -> ended, or fresh -> ended, which takes no lock. An ended one never has a timer.
type attemptContext struct {
	context.Context // the caller's
	policy          *policy
	deadline        time.Time // on the standard clock; zero where nothing bounds the attempt, or under an injected clock
	began           time.Duration
	bound           time.Duration
	remaining       time.Duration
	number          int
	by              boundBy
	hedged          bool
	hook            bool        // it is that of the before-attempt hook, and of no attempt
	spent           atomic.Bool // a policy beneath has spent its retries on this attempt
	state           atomic.Uint32

	mu      sync.Mutex // guards what is beneath, and every change of state but fresh -> ended
	working context.Context
	cancel  context.CancelFunc
}

// The states of an attemptContext.
const (
	contextFresh uint32 = iota
	contextWorking
	contextEnded
)

// until is the reading at which the bound is reached.
func (a *attemptContext) until() time.Duration { return later(a.began, a.bound) }

func (a *attemptContext) info() AttemptInfo {
	return AttemptInfo{
		Policy: a.policy.name, Number: a.number, Hedged: a.hedged, Bound: a.bound, Remaining: a.remaining,
	}
}

// Deadline is the attempt's real bound; under an injected clock, which must not be mixed with the wall clock, it is what
// the caller's context has.
func (a *attemptContext) Deadline() (time.Time, bool) {
	if a.deadline.IsZero() {
		return a.Context.Deadline()
	}
	return a.deadline, true
}

// Done starts the timer of the bound when it is called for the first time.
func (a *attemptContext) Done() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workLocked().Done()
}

// Err does not start a timer: it looks at the clock.
func (a *attemptContext) Err() error {
	if a.state.Load() == contextFresh {
		if err := a.Context.Err(); err != nil {
			return err
		}
		if a.policy.time.now() < a.until() {
			return nil
		}
	}
	a.mu.Lock()
	working := a.workLocked()
	a.mu.Unlock()
	if a.policy.time.injected() && a.Context.Err() != nil {
		<-working.Done() // a goroutine is about to pass it on
	}
	return working.Err() // if the bound is over the standard context says so, and knows the cause
}

// Value also answers for the standard context, which is how context.Cause and child contexts find it.
func (a *attemptContext) Value(key any) any {
	if key == (attemptKey{}) && !a.hook {
		return a
	}
	if _, standard := key.(*int); standard {
		_ = a.Err() // Go 1.25's context.Cause looks for the standard context, by a key of this type, before it asks for Err
	}
	if a.state.Load() == contextFresh {
		return a.Context.Value(key)
	}
	a.mu.Lock()
	working := a.workLocked()
	a.mu.Unlock()
	return working.Value(key)
}

// String names the context in the output of package fmt.
func (a *attemptContext) String() string {
	return fmt.Sprintf("%v.Attempt(%d)", a.Context, a.number)
}

func (a *attemptContext) workLocked() context.Context {
	if a.working != nil {
		return a.working
	}
	ended := !a.state.CompareAndSwap(contextFresh, contextWorking)
	switch {
	case ended || a.by == byNothing || a.by == byCaller:
		a.working, a.cancel = context.WithCancel(a.Context)
	case a.policy.time.injected():
		a.working, a.cancel = withClockTimeout(a.Context, a.policy.time.clock, a.until()-a.policy.time.now(), a.by.cause())
	default:
		a.working, a.cancel = context.WithDeadlineCause(a.Context, a.deadline, a.by.cause())
	}
	if ended {
		a.cancel()
	}
	return a.working
}

// end makes the context done and releases its timer; calling it again does nothing.
func (a *attemptContext) end() {
	if a.state.CompareAndSwap(contextFresh, contextEnded) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Store(contextEnded)
	if a.cancel != nil {
		a.cancel()
	}
}

// overran tells of a callback that has returned a second or more after its bound.
func (a *attemptContext) overran(now time.Duration) {
	if until := a.until(); now >= later(until, time.Second) && a.policy.listened() {
		a.policy.emit(Event{Kind: EventOrphanedWork, Attempt: a.number, Duration: now - until})
	}
}

// spend notes that a policy beneath has spent its retries, however its error is going to be wrapped.
func (a *attemptContext) spend() { a.spent.Store(true) }

func (a *attemptContext) retriesSpent() bool { return a.spent.Load() }
