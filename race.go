package resilience

import (
	"runtime"
	"strings"
	"time"
)

// hedges reports whether the next attempt is a race: whether another leg might be started at all.
func (c *call) hedges() bool {
	if c.legs == nil {
		return false
	}
	p := c.policy
	threshold, warm := p.hedgeThreshold(c.now)
	return warm && threshold < c.left() && c.total+1 < p.set.attempts &&
		(p.breaker == nil || p.breaker.closed()) && !c.sheddable() && !p.set.drain.isDraining() && !isSingleShot(c.ctx)
}

func (c *call) sheddable() bool {
	return c.policy.set.criticality && CriticalityFrom(c.ctx) == Sheddable
}

// race is one attempt whose legs run on goroutines of their own. It does not hold the call, which would escape with it.
type race struct {
	out    chan *runner
	flying []*runner     // legs
	hook   *runner       // that is asked before another leg, and holds what the leg will; nil: none
	stop   func()        // of the timer for the next leg
	newest time.Duration // when the newest leg started
	asked  bool          // whether one may follow it: that is asked once

	failed   []error
	spent    bool          // a policy beneath a leg that failed has spent its retries
	pushback time.Duration // the longest one of those that failed
	verdict  Verdict       // on the leg that won, or on the last one that failed, with that pushback
}

// race makes one attempt that may have several legs. It ends with the first leg that succeeds, or with the last one that
// fails. Whichever way it ends, no leg that still runs is waited for.
func (c *call) race(f *callback) Verdict {
	if !c.timeLeft() {
		return OK
	}
	if v, ok := c.admitted(); !ok {
		return v
	}
	r := race{out: make(chan *runner, c.policy.set.hedge.MaxConcurrent), stop: func() {}}
	defer r.finish(c)
	due := r.start(c, false)
	for {
		select {
		case done := <-r.out:
			switch {
			case done == r.hook:
				due = r.answered(c)
			case r.take(c, f, done):
				return r.verdict
			case due == nil && !r.asked:
				c.now = c.policy.time.now()
				due = r.due(c) // there is room for another one now
			}
		case <-due:
			c.now = c.policy.time.now()
			if due = nil; len(r.out) == 0 { // else there is an answer, and no need of another leg
				due = r.another(c)
			}
		}
	}
}

// start lets a leg run with what the call holds, and returns what tells when the next one is due.
func (r *race) start(c *call, hedged bool) <-chan time.Time {
	c.total++
	l := &runner{held: c.held, leg: c.legs.leg()}
	c.held = held{}
	l.attempt = c.arm(c.total, hedged)
	r.flying = append(r.flying, l)
	r.newest, r.asked = c.now, false
	go l.run(r.out)
	return r.due(c)
}

// due arms the timer for the next leg, nil where there cannot be one.
func (r *race) due(c *call) <-chan time.Time {
	r.stop()
	r.stop = func() {}
	threshold, warm := c.policy.hedgeThreshold(c.now)
	threshold = max(0, threshold-(c.now-r.newest))
	if !warm || len(r.flying) >= c.policy.set.hedge.MaxConcurrent || c.total >= c.policy.set.attempts || threshold >= c.left() {
		return nil
	}
	due, stop := c.policy.time.timer(threshold)
	r.stop = stop
	return due
}

// another starts another leg, or asks the hook about it, if nothing speaks against it. What does never harms the legs that
// run, and they are not held up by the hook.
func (r *race) another(c *call) <-chan time.Time {
	p := c.policy
	r.asked = true
	if c.gone() || p.breaker != nil && !p.breaker.closed() {
		return nil
	}
	if c.suppressed() {
		p.emit(Event{Kind: EventHedgeSuppressed, Attempt: c.total + 1, Delay: c.now - r.newest})
		return nil
	}
	if !c.admitsHedge() {
		c.settle()
		return nil
	}
	if p.set.beforeAttempt == nil {
		return r.hedge(c)
	}
	r.hook = &runner{held: c.held}
	c.held = held{}
	r.hook.attempt, r.hook.info = c.hook(true)
	go r.hook.run(r.out)
	return nil
}

// answered goes on after the hook has returned.
func (r *race) answered(c *call) <-chan time.Time {
	h := r.hook
	r.hook = nil
	c.held = h.held
	h.check(c)
	c.asked()
	if h.err != nil || c.gone() {
		c.settle()
		return nil
	}
	c.held.attempt.end()
	return r.hedge(c)
}

// hedge starts another leg.
func (r *race) hedge(c *call) <-chan time.Time {
	c.policy.winRate.count(1, 0, c.now)
	c.policy.emit(Event{Kind: EventHedgeStarted, Attempt: c.total + 1, Delay: c.now - r.newest})
	c.now = c.policy.time.now() // a listener may have taken its time
	return r.start(c, true)
}

// gone reports whether it is too late for another leg.
func (c *call) gone() bool {
	return c.ctx.Err() != nil || c.left() <= 0 || c.policy.set.drain.isDraining()
}

// check lets a panic or runtime.Goexit of the runner go on, on the goroutine of the call.
func (r *runner) check(c *call) {
	switch {
	case r.exited:
		runtime.Goexit()
	case r.panicked != nil:
		c.panicked = r.panicked
		panic(r.panicked.value)
	}
}

// suppressed asks whether the dependency is failing, or hedges have stopped winning.
func (c *call) suppressed() bool {
	p := c.policy
	if at, b := p.set.hedge.SuppressAt, p.breaker; b != nil && at < 1 && b.strain(c.at(b.time)) >= at {
		return true
	}
	return !p.winRate.allows(c.now)
}

// admitsHedge passes a leg beside others through the guards, which it never waits for. The budget is asked last.
func (c *call) admitsHedge() bool {
	p, h := c.policy, &c.held
	if l := p.limiter; l != nil {
		if h.permit, h.holds = l.tryAcquire(c.at(l.time)); !h.holds {
			return false
		}
	}
	if b := p.breaker; b != nil {
		lease, _, ok := b.allow(c.at(b.time), p.subscriber())
		if !ok {
			return false
		}
		h.lease, h.holds = lease, true
	}
	if p.budget == nil {
		return true
	}
	_, paid := p.budget.take(false, c.at(p.budget.time))
	return paid
}

// take judges a leg that has ended, and reports whether the race is over. From here on the call holds what the leg held,
// its value included: if a rule panics, leave releases it.
func (r *race) take(c *call, f *callback, done *runner) (over bool) {
	p, number, hedged := c.policy, done.attempt.number, done.attempt.hedged
	r.flying = without(r.flying, done)
	c.held = done.held
	done.check(c)
	if f.adopt != nil {
		f.adopt(done.leg, done.err)
	}
	c.now = done.ended // not when this goroutine heard of it
	v, evidence := c.classify(c.held.attempt, done.err, f.verdict(done.err))
	c.record(v, evidence)
	if v.Kind() == KindOK {
		r.verdict = v
		if hedged {
			p.winRate.count(0, 1, c.now)
			p.emit(Event{Kind: EventHedgeWon, Attempt: number})
		}
		return true
	}
	r.fail(c, v)
	if len(r.flying) > 0 {
		f.release()
		return false
	}
	c.spent = r.spent
	if len(r.failed) > 1 {
		c.failed = &legErrors{r.failed}
		c.cause = c.failed
	}
	return true
}

// fail books a leg that failed with the verdict v.
func (r *race) fail(c *call, v Verdict) {
	r.failed = append(r.failed, c.failed)
	r.spent = r.spent || c.spent
	pushback, _ := v.RetryAfter()
	r.pushback = max(r.pushback, pushback)
	r.verdict = v
	if r.pushback > pushback {
		r.verdict = v.After(r.pushback)
	}
}

// finish gives up what is still on its way. It is deferred: panics pass through it.
func (r *race) finish(c *call) {
	p := c.policy
	c.now = p.time.now() // the newest reading may be the end of a leg, or older
	r.stop()
	if r.hook != nil {
		r.hook.giveUp(c)
	}
	for _, l := range r.flying {
		l.giveUp(c)
		a := l.attempt
		took := c.now - a.began
		if t := p.terms.Load(); t != nil && !a.hedged && p.learning() {
			t.hedge.Record(took, c.now) // a lower bound: without it the quantile would forget the slow ones
		}
		c.note(Attempt{
			Number: a.number, Start: a.began - c.start, Duration: took, Bound: a.bound, Verdict: Permanent,
			Hedged: a.hedged, Discarded: true,
		})
	}
	for _, l := range r.flying { // last: a listener may exit
		p.emit(Event{Kind: EventHedgeDiscarded, Attempt: l.attempt.number, Duration: c.now - l.attempt.began})
	}
}

// giveUp has a runner settle itself when it returns, as soon as it can.
func (r *runner) giveUp(c *call) {
	r.attempt.end()
	if b := c.policy.breaker; b != nil {
		r.lease.done(Permanent, 0, c.at(b.time), c.policy.subscriber())
	}
	if !r.state.CompareAndSwap(running, abandoned) {
		go r.late() // it has just returned: releasing its value may take a while, and the winner does not wait
	}
}

func without(flying []*runner, gone *runner) []*runner {
	for i, l := range flying {
		if l == gone {
			return append(flying[:i], flying[i+1:]...)
		}
	}
	return flying
}

// legErrors are the failures of a race in which every leg failed. Its pointer is the error: that can be compared.
type legErrors struct{ all []error }

func (e *legErrors) Error() string {
	texts := make([]string, len(e.all))
	for i, err := range e.all {
		texts[i] = clip(err.Error())
	}
	return strings.Join(texts, "; ")
}

func (e *legErrors) Unwrap() []error { return e.all }
