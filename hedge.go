package resilience

import (
	"context"
	"fmt"
	"runtime/debug"
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
