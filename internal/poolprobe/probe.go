// Package poolprobe measures how long a goroutine that is ready to run waits
// for a processor, for the process as a whole.
//
// A probe is a goroutine that takes the time, yields once and takes the time
// again. The yield is the measurement: a fresh goroutine runs next on the
// processor of the one that started it and so jumps the queue, however long
// that is, and a timer's goroutine does the same; one that yields goes to the
// tail of the global queue and waits as other work does.
//
// Probes are started by those who ask, at most four a second and one at a
// time. A process that never asks starts none, and each of them ends by
// itself: nothing is left running when nobody asks.
package poolprobe

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
)

const (
	// interval is the least time between the starts of two probes.
	interval = 250 * time.Millisecond

	// current is how long a measured delay stands for the present. It leaves
	// room for a process that asks once in some seconds, each time reading the
	// probe that the time before has started.
	current = 5 * time.Second

	// baseline is the time over which the normal delay is taken.
	baseline = time.Hour
)

// A Reading tells how long ready goroutines wait.
type Reading struct {
	// Delay is the delay measured last, or the age of the probe that is still
	// waiting if that is more. It is zero while nothing newer than five seconds
	// is known, as after a pause, until the next probe returns.
	Delay time.Duration

	// Normal is the median delay of the last hour, at the last probe; at least
	// 1 µs once there is one. An overload can move it only by lasting for half
	// of the probes of that hour, and it makes them rarer.
	Normal time.Duration

	// Samples is the number of probes that Normal was taken from. It is zero if
	// the last one ended more than an hour ago.
	Samples int
}

// Delay returns the newest reading of this process and starts a probe if none
// is waiting and the last one began at least 250 ms ago.
//
// It may be called concurrently, never blocks, and allocates only when it
// starts a probe. It reads the process's own monotonic clock. Inside a
// testing/synctest bubble that is the bubble's clock: both inside and outside,
// what was measured by the other clock does not count.
func Delay() Reading {
	return process.delay()
}

var process = newProber(sinceStart())

// sinceStart returns a clock that tells the time since now.
func sinceStart() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// A prober owns the probes of one process. All methods may be called
// concurrently.
type prober struct {
	clock  func() time.Duration
	yield  func()
	delays *quantile.Window
	newest atomic.Pointer[probe] // nil before the first one
}

// A probe is one measurement, under way or done. began and before do not
// change; result is written once, before done is set.
type probe struct {
	began  time.Duration
	before result // of the probe before this one
	done   atomic.Bool
	result result
}

type result struct {
	at time.Duration
	Reading
}

func newProber(clock func() time.Duration) *prober {
	return &prober{clock: clock, yield: runtime.Gosched, delays: quantile.New(baseline)}
}

// delay loads the newest probe before it reads the clock, so that no time in
// it can be later than now unless the clock has stepped back.
func (p *prober) delay() Reading {
	newest := p.newest.Load()
	if newest == nil {
		p.start(&probe{began: p.clock()}, nil)
		return Reading{}
	}
	if !newest.done.Load() {
		now := p.clock()
		r := newest.before.reading(now)
		// An age of more than the baseline is the distance of two clocks.
		if age := now - newest.began; age <= baseline {
			r.Delay = max(r.Delay, age)
		}
		return r
	}
	now := p.clock()
	// A step back counts as due, or a clock that was far ahead once would
	// silence the probe until it is there again.
	if now-newest.began >= interval || now < newest.began {
		p.start(&probe{began: now, before: newest.result}, newest)
	}
	return newest.result.reading(now)
}

// start makes next the newest probe and lets it run, unless another goroutine
// has replaced the one before it already. A probe that is not done is never
// replaced, so that there is one at a time; it cannot be stuck for good, since
// all that it waits for is a processor.
func (p *prober) start(next, before *probe) {
	if p.newest.CompareAndSwap(before, next) {
		go p.run(next)
	}
}

func (p *prober) run(next *probe) {
	stamp := p.clock()
	p.yield()
	now := p.clock()
	next.result = p.measured(now-stamp, now)
	next.done.Store(true)
}

func (p *prober) measured(delay, now time.Duration) result {
	p.delays.Record(delay, now)
	normal, samples := p.delays.Quantile(0.5, now)
	return result{at: now, Reading: Reading{Delay: delay, Normal: normal, Samples: samples}}
}

// reading tells what is left of r now.
func (r result) reading(now time.Duration) Reading {
	switch age := now - r.at; {
	case age < 0 || age > baseline: // age < 0: measured by another clock
		return Reading{}
	case age > current:
		return Reading{Normal: r.Normal, Samples: r.Samples}
	default:
		return r.Reading
	}
}
