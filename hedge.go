package resilience

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

// Hedge starts another leg of an attempt when the newest one takes longer than almost all of them: after
// max(Quantile of the first legs of the last Window, MinDelay). There is no fixed delay, on purpose: in a brownout it hedges every
// call. Under MinSamples nothing is hedged. A zero field means the default, except Quantile.
//
// The first leg that succeeds wins, and never waits for the others: they are cancelled, their values are released (see
// OnDiscard), and their goroutines end when the callback returns. A callback under a hedge has to be safe to run beside
// itself.
type Hedge struct {
	Quantile      float64       // at least 0.5 and less than 1: the share of legs that is not followed by another one
	MaxConcurrent int           // legs of one call at once, the first one included; default 2, at most 100
	MinSamples    int           // default 20
	MinDelay      time.Duration // default 10 ms
	Window        time.Duration // default 30 s
	SuppressAt    float64       // no leg starts while the breaker's failure rate is at or above this share of its trip point; default 0.5, 1 = never
	WinRate       WinRate       // zero = off
}

// HedgeAt hedges at a live quantile: with 0.95 one call in twenty.
func HedgeAt(quantile float64) Hedge { return Hedge{Quantile: quantile} }

func (h Hedge) resolve(c *checker) Hedge {
	h.MaxConcurrent = orDefault(h.MaxConcurrent, 2)
	h.MinSamples = orDefault(h.MinSamples, 20)
	h.MinDelay = orDefault(h.MinDelay, 10*time.Millisecond)
	h.Window = orDefault(h.Window, 30*time.Second)
	h.SuppressAt = orDefault(h.SuppressAt, 0.5)
	if !(h.Quantile >= 0.5 && h.Quantile < 1) {
		c.refuse("Hedge.Quantile", h.Quantile, "at least 0.5 and less than 1")
	}
	if h.MaxConcurrent < 2 || h.MaxConcurrent > 100 {
		c.refuse("Hedge.MaxConcurrent", h.MaxConcurrent, "2 to 100")
	}
	c.atLeast("Hedge.MinSamples", h.MinSamples, 1)
	c.positive("Hedge.MinDelay", h.MinDelay)
	c.positive("Hedge.Window", h.Window)
	c.within("Hedge.SuppressAt", h.SuppressAt, 0, 1, "more than 0 and at most 1")
	if h.WinRate != (WinRate{}) {
		h.WinRate = h.WinRate.resolve(c)
	}
	return h
}

// legMaker makes legs of a callback. The callbacks themselves implement it: a func in an interface is no allocation, so a
// call that is not hedged pays nothing for the possibility.
type legMaker interface{ leg() leg }

// leg is one run of a callback that may outlive the call, with the value that it returns.
type leg interface {
	call(ctx context.Context) error
	discard(hooks []any) // releases the value
}

type errorCallback func(context.Context) error

func (f errorCallback) leg() leg                       { return f }
func (f errorCallback) call(ctx context.Context) error { return f(ctx) }
func (f errorCallback) discard([]any)                  {}

type valueCallback[T any] func(context.Context) (T, error)

func (f valueCallback[T]) leg() leg { return &valueLeg[T]{fn: f} }

type valueLeg[T any] struct {
	fn    valueCallback[T]
	value T
}

func (l *valueLeg[T]) call(ctx context.Context) (err error) {
	l.value, err = l.fn(ctx)
	return err
}

func (l *valueLeg[T]) discard(hooks []any) { discard(hooks, l.value) }

// runner is a leg on its way, or the hook that is asked before one. Its goroutine owns what is beneath state until it has
// handed the runner over.
//
// States: running -> finished (its goroutine handed it over, and whoever receives it settles it), or running -> abandoned
// (the race is over, and its goroutine settles it at the end of the callback). One compare-and-swap decides.
type runner struct {
	held
	leg   leg         // nil: the hook
	info  AttemptInfo // for the hook
	state atomic.Int32

	err      error
	ended    time.Duration // when the callback returned
	panicked *legPanic
	exited   bool // runtime.Goexit
}

const (
	running int32 = iota
	finished
	abandoned
)

// legPanic is a panic on its way from a leg to the goroutine of the call.
type legPanic struct {
	value any
	stack []byte
}

// Error quotes the stack, which the goroutine that panics in the end does not have.
func (p *legPanic) Error() string {
	return fmt.Sprintf("a leg of the hedge panicked: %v\n%s", p.value, p.stack)
}

// run makes the leg's attempt, or asks the hook, and hands the runner over; out has room for every runner of the race.
func (r *runner) run(out chan<- *runner) {
	returned := false
	defer func() {
		r.ended = r.attempt.policy.time.now()
		if !returned {
			if v := recover(); v != nil {
				r.panicked = &legPanic{v, debug.Stack()}
			} else {
				r.exited = true
			}
		}
		if r.state.CompareAndSwap(running, finished) {
			out <- r
			return
		}
		r.late()
	}()
	if r.leg == nil {
		r.err = r.attempt.policy.set.beforeAttempt(r.attempt, r.info)
	} else {
		r.err = answer(r.attempt, r.leg.call)
	}
	returned = true
}

// late settles a leg that lost before it returned. Nobody is there any more to panic: a listener hears of it.
func (r *runner) late() {
	p := r.attempt.policy
	if l := p.limiter; l != nil {
		r.permit.release(outcomeIgnored, l.time.now())
	}
	switch {
	case r.panicked != nil:
		p.emit(Event{Kind: EventOrphanedWork, Attempt: r.attempt.number, Err: r.panicked})
		return
	case r.err == nil && !r.exited && r.leg != nil:
		r.leg.discard(p.set.discards)
	}
	r.attempt.overran(r.ended)
}

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
	out     chan *runner
	flying  []*runner // legs
	hook    *runner   // that is asked before another leg, and holds what the leg will; nil: none
	failed  []error
	spent   bool          // a policy beneath a leg that failed has spent its retries
	stop    func()        // of the timer for the next leg
	newest  time.Duration // when the newest leg started
	asked   bool          // whether one may follow it: that is asked once
	verdict Verdict       // on the leg that won; of those that failed the last one, or the one with the longest pushback
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
	c.now = p.time.now()
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
	longest, _ := r.verdict.RetryAfter()
	if pushback, _ := v.RetryAfter(); pushback >= longest || v.Kind() == KindPermanent {
		r.verdict = v
	}
}

// finish gives up what is still on its way. It is deferred: panics pass through it.
func (r *race) finish(c *call) {
	p := c.policy
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
