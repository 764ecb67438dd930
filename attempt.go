package resilience

import (
	"context"
	"errors"
	"time"
)

// left is the time until the deadline.
func (c *call) left() time.Duration {
	if c.until == never {
		return never
	}
	return c.until - c.now
}

// timeLeft ends the call if nothing is left.
func (c *call) timeLeft() bool {
	if c.left() > 0 {
		return true
	}
	c.fail(ReasonDeadlineExceeded)
	return false
}

// admitted passes limiter, breaker and the before-attempt hook. The limiter goes first, so that a call which it refuses
// cannot spend a probe. Where it returns false, the call has ended or v is the outcome of the attempt.
func (c *call) admitted() (v Verdict, ok bool) {
	if err := c.acquire(); err != nil {
		if !c.ended {
			v = c.limited(err)
		}
		return v, false
	}
	if b := c.policy.breaker; b != nil {
		lease, retryAfter, ok := b.allow(c.at(b.time), c.policy.subscriber())
		if !ok {
			c.settle()
			c.reject(ReasonBreakerOpen, retryAfter)
			return v, false
		}
		c.held.lease, c.held.holds = lease, true
		if lease.probe != 0 && c.policy.listened() {
			c.now = c.policy.time.now() // a listener that was told may have taken its time
		}
	}
	if c.policy.set.beforeAttempt == nil {
		return v, true
	}
	ctx, info := c.hook(false)
	defer ctx.end()
	err := c.policy.set.beforeAttempt(ctx, info)
	c.asked()
	if err == nil || ownedByContext(err) {
		if c.callerEnded() || !c.timeLeft() {
			return v, false
		}
	}
	if err != nil {
		c.finish(ReasonPermanent, err)
	}
	return v, err == nil
}

// hook is what the before-attempt hook of the next attempt gets. Its context ends with the call's deadline, and is not that
// of an attempt.
func (c *call) hook(hedged bool) (*attemptContext, AttemptInfo) {
	n, left := c.total+1, c.left()
	ctx := c.context(left, c.untilBy, n, hedged)
	ctx.hook = true
	bound, _ := c.policy.arm(left, c.untilBy, c.now)
	return ctx, AttemptInfo{Policy: c.policy.name, Number: n, Hedged: hedged, Bound: bound, Remaining: left}
}

// asked takes note of a hook that has returned. Its time is the call's, but not the dependency's.
func (c *call) asked() {
	c.now = c.policy.time.now()
	if l := c.policy.limiter; l != nil {
		c.held.permit.admitted = c.at(l.time)
	}
}

// acquire takes a permit, if need be after a wait in the limiter's queue.
func (c *call) acquire() error {
	l, h := c.policy.limiter, &c.held
	if l == nil {
		return nil
	}
	if h.permit, h.holds = l.tryAcquire(c.at(l.time)); h.holds {
		return nil
	}
	permit, err := l.wait(c.ctx, c.left(), c.at(l.time))
	c.now = c.policy.time.now()
	if err != nil {
		c.callerEnded()
		return err
	}
	h.permit, h.holds = permit, true
	if !c.timeLeft() {
		return ErrDeadlineExceeded
	}
	return nil
}

// limited books a refusal by the limiter as the outcome of an attempt.
func (c *call) limited(err error) Verdict {
	c.total++
	v := judgeError(nil, err)
	c.outcome(err, false)
	c.note(Attempt{Number: c.total, Start: c.now - c.start, Verdict: v, Err: err})
	return v
}

// arm makes the context of attempt number n.
func (c *call) arm(n int, hedged bool) *attemptContext {
	bound, by := c.policy.arm(c.left(), c.untilBy, c.now)
	return c.context(bound, by, n, hedged)
}

func (c *call) context(bound time.Duration, by boundBy, n int, hedged bool) *attemptContext {
	a := &attemptContext{
		Context: c.ctx, policy: c.policy, began: c.now, bound: bound, by: by, remaining: c.left(), number: n, hedged: hedged,
	}
	if by != byNothing && !c.policy.time.injected() {
		a.deadline = c.begin.Add(a.until() - c.start)
	}
	return a
}

// answer is what the admit hook or the callback makes of the attempt.
func answer(a *attemptContext, invoke func(context.Context) error) error {
	if admit := a.policy.set.admit; admit != nil {
		if err := admit(a, a.info()); err != nil {
			return err
		}
	}
	return invoke(a)
}

// classify says what an attempt is to the call, and what it is to the breaker; value is the verdict on its value. What
// decides about endings is the state of the contexts when the callback returned, not the text of its error.
func (c *call) classify(a *attemptContext, err error, value Verdict) (v, evidence Verdict) {
	c.outcome(err, err == nil)
	if err == nil {
		return value, c.judged(a, value)
	}
	c.spent = a.retriesSpent()
	callerErr, over := c.ctx.Err(), c.now >= a.until()
	c.cut = callerErr != nil || over && !a.by.own()
	if !c.cut || c.cause == nil || !ownedByContext(err) {
		c.cause = c.failed // else it only says that it was told to stop
	}
	switch {
	case cancelled(callerErr):
		return Permanent, Permanent
	case c.cut && c.now-a.began < c.normalLatency():
		return Transient, Permanent // it was not given the time that it normally needs
	case c.cut:
		return Transient, Transient
	case over:
		c.failed = &attemptTimeoutError{bound: a.bound, err: c.failed}
		c.cause, c.hit = c.failed, a.bound
		return Transient, Transient
	}
	v = judgeError(c.policy.set.rules, err)
	return v, v
}

// judged books what a rule said of a value, and returns what that is to the breaker.
func (c *call) judged(a *attemptContext, v Verdict) (evidence Verdict) {
	if v.Kind() == KindOK {
		return v
	}
	c.failed = &resultError{v}
	c.cause, c.spent = c.failed, a.retriesSpent()
	if cancelled(c.ctx.Err()) {
		return Permanent
	}
	return v
}

// cancelled reports whether a caller whose context ended with err has left, and has not just run out of time.
func cancelled(err error) bool { return err != nil && !errors.Is(err, context.DeadlineExceeded) }

// outcome begins the books of an attempt, of which nothing is known but what it returned.
func (c *call) outcome(err error, valued bool) {
	c.failed, c.valued, c.cut, c.hit, c.spent = err, valued, false, 0, false
}

// record feeds what the attempt taught, with one reading for all.
func (c *call) record(v, evidence Verdict) {
	p, h, a := c.policy, &c.held, c.held.attempt
	took := c.now - a.began
	a.end()
	if v.Kind() == KindOK {
		p.learn(took, a.hedged, c.now)
	}
	if b := p.breaker; b != nil {
		h.lease.done(evidence, took, c.at(b.time), p.subscriber())
	}
	switch {
	case v.Kind() == KindOK:
		c.release(outcomeSuccess)
	case c.hit > 0:
		c.release(outcomeTimeout)
	default:
		c.release(outcomeIgnored)
	}
	h.attempt, h.holds = nil, false
	a.overran(c.now)
	if v.Kind() == KindOK && !c.logsAll && !p.listened() {
		return
	}
	c.note(Attempt{
		Number: a.number, Start: a.began - c.start, Duration: took, Bound: a.bound, Verdict: v, Err: c.failed, Hedged: a.hedged,
	})
}

// release settles the permit of an attempt.
func (c *call) release(o outcome) {
	l := c.policy.limiter
	if l == nil {
		return
	}
	if limit, changed := c.held.permit.release(o, c.at(l.time)); changed && c.policy.listened() {
		c.policy.emit(Event{Kind: EventLimitChanged, Limit: limit})
	}
}

// note writes the attempt log, which keeps the first 4 and the last 12, and tells of the attempt.
func (c *call) note(a Attempt) {
	if c.policy.listened() && !a.Discarded {
		c.policy.emit(Event{Kind: EventAttempt, Attempt: a.Number, Verdict: a.Verdict, Duration: a.Duration, Err: a.Err})
	}
	const first, all = 4, 16
	switch {
	case c.first.Number == 0:
		c.first = a // a retry that succeeds needs no more of the log, and no allocation for it
	case c.log == nil:
		c.log = append(make([]Attempt, 0, first), c.first, a)
	case len(c.log) < all:
		c.log = append(c.log, a)
	default:
		copy(c.log[first:], c.log[first+1:])
		c.log[all-1] = a
	}
}

func (c *call) attemptLog() []Attempt {
	if c.log == nil && c.first.Number > 0 {
		c.log = []Attempt{c.first}
	}
	return c.log
}

// at is the newest reading on the timeline of a guard, which may follow a clock of its own.
func (c *call) at(t *timeline) time.Duration {
	if t == c.policy.time {
		return c.now
	}
	return t.now()
}

func (c *call) normalLatency() time.Duration {
	if b := c.policy.breaker; b != nil {
		return b.normalLatency(c.at(b.time))
	}
	return 0
}

// settle gives back what an attempt holds that was not judged.
func (c *call) settle() {
	h := &c.held
	if h.attempt != nil {
		h.attempt.end()
	}
	if !h.holds {
		return
	}
	h.holds = false
	if b := c.policy.breaker; b != nil {
		h.lease.done(Permanent, 0, c.at(b.time), c.policy.subscriber())
	}
	c.release(outcomeIgnored)
}
