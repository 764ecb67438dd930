package resilience

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// guardedPause is what a refusal by the breaker or the budget waits before it is returned, so that callers who loop around
// a refusal do not spin.
const guardedPause = 100 * time.Millisecond

// decide ends the call, or waits for the next attempt. The first line that matches counts; the budget is asked last, so
// that a retry which cannot happen costs no token.
func (c *call) decide(f *callback, v Verdict) {
	p := c.policy
	if v.Kind() != KindOK {
		c.now = p.time.now() // rules and listeners may have taken their time
	}
	switch {
	case v.Kind() == KindOK:
		if p.budget != nil {
			p.budget.success(c.at(p.budget.time))
		}
		c.finish(ReasonSucceeded, nil)
	case c.callerEnded():
	case v.Kind() == KindPermanent:
		c.finish(ReasonPermanent, c.untouched())
	case c.cut || c.left() <= 0:
		c.fail(ReasonDeadlineExceeded)
	case c.total >= c.attempts():
		c.fail(ReasonAttemptsExhausted)
	case c.spent && !p.set.nestedRetries:
		p.emit(Event{Kind: EventNestedRetry, Attempt: c.total, Err: c.failed})
		c.fail(ReasonAttemptsExhausted)
	case p.set.drain.isDraining():
		c.fail(ReasonDraining)
	default:
		if delay, ok := c.mayRetry(v); ok {
			c.wait(f, delay)
		}
	}
}

// untouched is the callback's own error; none if it returned a value that a rule called a failure.
func (c *call) untouched() error {
	if c.valued {
		return nil
	}
	return unmarked(c.failed)
}

// attempts is how many attempts this call may make.
func (c *call) attempts() int {
	if c.policy.set.attempts > 1 && isSingleShot(c.ctx) {
		return 1
	}
	return c.policy.set.attempts
}

// mayRetry finds the wait before the next attempt and asks whether it fits, whether the breaker will be open past it, and
// whether the budget pays for it.
func (c *call) mayRetry(v Verdict) (delay time.Duration, ok bool) {
	p := c.policy
	delay = c.delay(v)
	reason := ReasonDeadlineExceeded
	pushback, _ := v.RetryAfter()
	tooLong := pushback > p.set.backoff.Max
	if tooLong {
		reason = ReasonAttemptsExhausted
	}
	if late := !c.fits(delay); late || tooLong {
		c.tooLate(reason, delay, late)
		return 0, false
	}
	if b := p.breaker; b != nil {
		if refused := b.refusesFor(c.at(b.time)); refused > delay {
			if refused == never {
				refused = 0 // nobody knows when to come back
			}
			c.reject(ReasonBreakerOpen, refused)
			return 0, false
		}
	}
	if p.budget != nil && !v.SelfImposed() {
		if retryAfter, paid := p.budget.take(c.sheddable(), c.at(p.budget.time)); !paid {
			c.reject(ReasonBudgetExhausted, retryAfter)
			return 0, false
		}
	}
	return delay, true
}

// fits reports whether another attempt could still end in time after the delay, as the dependency normally goes.
func (c *call) fits(delay time.Duration) bool {
	left := c.left()
	return left == never || later(delay, c.normalLatency()) < left
}

// tooLate ends the call instead of a wait; late says whether it is the deadline that leaves no room for it. What the user's
// code was doing meanwhile may have ended the call already.
func (c *call) tooLate(r Reason, delay time.Duration, late bool) {
	if c.callerEnded() {
		return
	}
	e := c.error(r)
	if late {
		e.wait, e.left = delay, c.left()
	}
	c.failWith(e)
}

// delay is the wait before the next attempt. A pushback replaces every curve.
func (c *call) delay(v Verdict) time.Duration {
	if pushback, ok := v.RetryAfter(); ok {
		return pushback
	}
	b := c.policy.set.backoff
	if b.Delay != nil {
		in := BackoffInput{Attempt: c.total + 1, Verdict: v, Err: c.failed, Remaining: c.left()}
		d := max(0, min(b.Delay(in), b.Max))
		c.now = c.policy.time.now()
		return d
	}
	base := b.base(v)
	if v.Kind() == KindTransient {
		base = c.policy.measuredBase(base, c.now)
	}
	if base == 0 {
		return 0
	}
	return b.curve(base, c.total+1, rand.Float64())
}

// wait lets the delay pass and says whether the next attempt may come. It ends early with the caller and with the drain.
func (c *call) wait(f *callback, delay time.Duration) {
	p := c.policy
	if p.listened() {
		p.emit(Event{Kind: EventRetrying, Attempt: c.total + 1, Delay: delay, Err: c.failed})
	}
	if c.valued || p.listened() {
		f.release()
		c.valued = false
		c.now = p.time.now()
		if !c.fits(delay) && !p.set.drain.isDraining() { // a listener, or what releases the value, has taken too long
			c.tooLate(ReasonDeadlineExceeded, delay, true)
			return
		}
	}
	if delay > 0 {
		fired, stop := p.time.timer(delay)
		select {
		case <-fired:
		case <-c.ctx.Done():
		case <-p.set.drain.starts():
		}
		stop()
		c.now = p.time.now()
	}
	if !c.callerEnded() && p.set.drain.isDraining() {
		c.fail(ReasonDraining)
	}
}

// callerEnded ends the call if the caller's context is done.
func (c *call) callerEnded() bool {
	err := c.ctx.Err()
	if err == nil {
		return false
	}
	reason := ReasonCancelled
	if errors.Is(err, context.DeadlineExceeded) {
		reason = ReasonDeadlineExceeded
	}
	e := c.error(reason)
	e.cause = context.Cause(c.ctx)
	if c.policy.time.injected() {
		e.Bound = 0 // the caller's deadline is on another clock
	}
	c.failWith(e)
	return true
}

// reject ends the call with a refusal, after the guarded pause.
func (c *call) reject(r Reason, retryAfter time.Duration) {
	e := c.error(r)
	e.RetryAfter = max(e.RetryAfter, retryAfter)
	if pause := min(guardedPause, c.left()); pause > 0 {
		fired, stop := c.policy.time.timer(pause)
		select {
		case <-fired:
		case <-c.ctx.Done():
		}
		stop()
		c.now = c.policy.time.now()
	}
	c.failWith(e)
}

func (c *call) fail(r Reason) { c.failWith(c.error(r)) }

// error is the report on a call that ends now for that reason.
func (c *call) error(r Reason) *Error {
	e := &Error{Policy: c.policy.name, Reason: r, Attempts: c.attemptLog(), Total: c.total, Err: c.failed}
	var limited *LimitedError
	switch {
	case c.cause == nil || c.failed == nil:
	case errors.As(c.failed, &limited):
		e.Err, e.cause = c.cause, c.failed
	case ownedByContext(c.failed):
		e.Err = c.cause
	}
	e.RetryAfter, _ = c.last.RetryAfter()
	e.Bound = c.hit
	if r == ReasonDeadlineExceeded {
		e.Bound = 0
		if c.until != never {
			e.Bound = c.until - c.start
		}
		if c.untilBy == byDrain {
			e.cause = ErrDraining
		}
	}
	return e
}

// failWith ends the call with an *Error, or with the value of the last attempt where that is an answer which somebody must
// read and close.
func (c *call) failWith(e *Error) {
	if c.valued {
		c.finish(e.Reason, nil)
		return
	}
	c.finish(e.Reason, e)
}

// retriesSpent reports whether a policy above would repeat what this one, or one beneath it, has already repeated or was
// not allowed to.
func (c *call) retriesSpent(r Reason) bool {
	switch {
	case c.spent:
		return true
	case c.total == 0 || r == ReasonPermanent || r == ReasonCancelled || c.attempts() == 1:
		return false
	}
	return c.total > 1 || r == ReasonAttemptsExhausted || r == ReasonBudgetExhausted
}

// finish ends the call: the one place where the terminal event comes from.
func (c *call) finish(r Reason, err error) {
	c.settle()
	c.ended, c.reason, c.err = true, r, err
	if r != ReasonSucceeded && c.retriesSpent(r) {
		if above := attemptFrom(c.ctx); above != nil {
			above.spend()
		}
	}
	if c.policy.listened() {
		c.policy.emit(Event{Kind: reasonTable[r].event, Attempt: c.total, Duration: c.now - c.start, Err: err, Reason: r})
	}
}
