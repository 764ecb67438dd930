package main

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// floor is the least code for the same protection: deadline, attempts, budget, attempt timeout with a measured ceiling,
// breaker with a window, adaptive limit. It has no events, no log, no classification, no options, one tuning for all.
type floor struct {
	settings
	tokens   atomic.Int64 // of the retry budget, in tenths
	breaker  floorBreaker
	limiter  floorLimiter
	latency  floorHistogram
	hedgeAll bool // legs on goroutines, with a timer for the second one
}

var epoch = time.Now()

func newFloor(s settings) stack {
	f := &floor{settings: s}
	f.breaker.settings, f.limiter.highest = s, int64(s.limit)
	f.limiter.limit.Store(int64(min(20, s.limit)))
	f.tokens.Store(300)
	return f
}

func newFloorHedged(s settings) stack {
	f := newFloor(s).(*floor)
	f.hedgeAll = true
	return f
}

func (f *floor) call(ctx context.Context, fn func(context.Context) error) error {
	now := time.Since(epoch)
	end := now + f.deadline
	if d, ok := ctx.Deadline(); ok {
		end = min(end, d.Sub(epoch))
	}
	for attempt := 1; ; attempt++ {
		err := f.attempt(ctx, fn, now, end)
		if err == nil {
			if t := f.tokens.Load(); t < 300 {
				f.tokens.Add(1)
			}
			return nil
		}
		now = time.Since(epoch)
		if attempt == f.attempts || err == errOpen || ctx.Err() != nil || now+f.delay >= end { //nolint:errorlint // never wrapped
			return err
		}
		if !f.roomyBudget && f.tokens.Add(-10) < 0 {
			f.tokens.Add(10)
			return err
		}
		if f.delay > 0 {
			select {
			case <-time.After(f.delay):
			case <-ctx.Done():
				return ctx.Err()
			}
			now = time.Since(epoch)
		}
	}
}

func (f *floor) attempt(ctx context.Context, fn func(context.Context) error, now, end time.Duration) (err error) {
	if !f.limiter.acquire() {
		return errLimited
	}
	defer f.limiter.release()
	if !f.breaker.allow(now) {
		return errOpen
	}
	until := min(end, now+min(f.attemptTimeout, f.latency.ceiling(now)))
	if f.hedgeAll {
		err = f.race(ctx, fn, until)
	} else {
		c := &lazyContext{Context: ctx, deadline: epoch.Add(until)}
		err = fn(c)
		c.end()
	}
	done := time.Since(epoch)
	f.breaker.done(err == nil, done)
	if err == nil {
		f.latency.record(done - now)
		f.limiter.learn(done - now)
	}
	return err
}

// race runs a leg, and another one if the first takes long.
func (f *floor) race(ctx context.Context, fn func(context.Context) error, until time.Duration) error {
	ctx, cancel := context.WithDeadline(ctx, epoch.Add(until))
	defer cancel()
	out := make(chan error, 2)
	leg := func() { out <- fn(ctx) }
	go leg()
	second := time.NewTimer(max(10*time.Millisecond, f.latency.p95()))
	defer second.Stop()
	for flying := 1; ; {
		select {
		case err := <-out:
			if flying--; err == nil || flying == 0 {
				return err
			}
		case <-second.C:
			flying++
			go leg()
		}
	}
}

// lazyContext has a deadline and makes the context that keeps it when somebody first waits for it.
type lazyContext struct {
	context.Context
	deadline time.Time
	mu       sync.Mutex
	ended    bool
	working  context.Context
	cancel   context.CancelFunc
}

func (c *lazyContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *lazyContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.working == nil {
		c.working, c.cancel = context.WithDeadline(c.Context, c.deadline)
		if c.ended {
			c.cancel()
		}
	}
	return c.working.Done()
}

func (c *lazyContext) Err() error {
	select {
	case <-c.Done():
		return c.working.Err()
	default:
		return nil
	}
}

func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	working := c.working
	c.mu.Unlock()
	if working != nil {
		return working.Value(key)
	}
	return c.Context.Value(key)
}

func (c *lazyContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

// floorBreaker opens after so many failures in a row or at a share of the window of ten steps.
type floorBreaker struct {
	settings
	openUntil atomic.Int64
	inARow    atomic.Int64
	steps     [10]struct{ number, calls, failures atomic.Int64 }
}

func (b *floorBreaker) allow(now time.Duration) bool {
	until := b.openUntil.Load()
	if until == 0 {
		return true
	}
	// Half-open: whoever moves the time is the probe.
	return int64(now) >= until && b.openUntil.CompareAndSwap(until, int64(now+b.openFor))
}

func (b *floorBreaker) done(ok bool, now time.Duration) {
	number := int64(now / (3 * time.Second))
	s := &b.steps[number%10]
	if s.number.Load() != number {
		s.number.Store(number)
		s.calls.Store(0)
		s.failures.Store(0)
	}
	s.calls.Add(1)
	if ok {
		if b.inARow.Load() != 0 {
			b.inARow.Store(0)
		}
		if b.openUntil.Load() != 0 {
			b.openUntil.Store(0)
		}
		return
	}
	s.failures.Add(1)
	var calls, failures int64
	for i := range b.steps {
		if step := &b.steps[i]; step.number.Load() > number-10 {
			calls += step.calls.Load()
			failures += step.failures.Load()
		}
	}
	if b.inARow.Add(1) >= int64(b.consecutive) || calls >= 20 && float64(failures) >= b.failureRatio*float64(calls) {
		b.openUntil.Store(int64(now + b.openFor))
	}
}

// floorLimiter lowers its limit while calls take twice as long as the fastest did.
type floorLimiter struct {
	inFlight, limit  atomic.Int64
	highest          int64
	fastest, average atomic.Int64
	samples          atomic.Int64
}

func (l *floorLimiter) acquire() bool {
	if l.inFlight.Add(1) > l.limit.Load() {
		l.inFlight.Add(-1)
		return false
	}
	return true
}

func (l *floorLimiter) release() { l.inFlight.Add(-1) }

func (l *floorLimiter) learn(took time.Duration) {
	average := l.average.Load()
	l.average.Store(average + (int64(took)-average)/16)
	if f := l.fastest.Load(); f == 0 || int64(took) < f {
		l.fastest.Store(int64(took))
	}
	if l.samples.Add(1)%128 != 0 {
		return
	}
	switch limit := l.limit.Load(); {
	case l.average.Load() > 2*l.fastest.Load():
		l.limit.Store(max(1, limit*9/10))
	case l.inFlight.Load()*2 > limit:
		l.limit.Store(min(l.highest, limit+1))
	}
}

// floorHistogram counts latencies in 2 buckets per doubling; what it tells is worked out once a second.
type floorHistogram struct {
	buckets [96]atomic.Uint64
	due     atomic.Int64
	known   atomic.Int64 // the p95
}

func (h *floorHistogram) record(took time.Duration) {
	u := uint64(max(took, 4))
	octave := bits.Len64(u) - 1
	h.buckets[min(95, octave*2+int(u>>(octave-1)&1))].Add(1)
}

func (h *floorHistogram) ceiling(now time.Duration) time.Duration {
	if int64(now) >= h.due.Load() {
		h.due.Store(int64(now + time.Second))
		h.work()
	}
	if p := h.p95(); p > 0 {
		return max(50*time.Millisecond, 3*p)
	}
	return time.Hour
}

func (h *floorHistogram) p95() time.Duration { return time.Duration(h.known.Load()) }

func (h *floorHistogram) work() {
	total, above := uint64(0), uint64(0)
	for i := range h.buckets {
		total += h.buckets[i].Load()
	}
	if total < 20 {
		return
	}
	for i := len(h.buckets) - 1; i >= 0; i-- {
		if above += h.buckets[i].Load(); above*20 > total {
			h.known.Store(int64(3+i&1) << (i / 2) / 2)
			return
		}
	}
}
