package quantile

import (
	"sync/atomic"
	"time"
)

// steps is how many steps the window slides in.
const steps = 4

// A Window counts the values of the last span, in four steps of span/4 each:
// a reading covers the step that now lies in, as far as it has come, and the
// three steps before it. A sample is therefore seen for at least 3/4 of the
// span and never after the whole span.
//
// A clock that steps back by up to 3/4 of the span loses nothing: the steps
// ahead of now count too, as far as they are less than four steps away. By
// more, the window begins anew at the earlier time; steps left farther ahead
// do not count, and each gives way to the first sample that needs its place.
// So a jump far ahead and back, or a sample that comes a span late, costs one
// of the four steps for each step that it recorded into.
//
// A Window is made by [New]; the zero value is not usable. All methods may be
// called concurrently and none blocks. A sample recorded just while its step
// expires may be counted in another step. A reading that overlaps with other
// calls may miss their samples, or a part of a step that is expiring.
//
// A Window that never recorded takes less than 100 bytes. There are up to five
// steps of 72 bytes; each takes 128 bytes more for every seventh of the range,
// on a logarithmic scale, that a sample ever fell into: in all 1 KB if the
// values stay within one of them, 2.3 KB from 1 ms to 1 s, 4.9 KB from 1 µs
// to 1 h. What is allocated once is used again from then on; only where
// goroutines meet at the change of a step may one of them allocate instead. A
// step counts up to 2^32-1 samples of one bucket.
type Window struct {
	width uint64                      // of a step, in nanoseconds
	ring  [steps]atomic.Pointer[step] // step n is at n%steps
	spare atomic.Pointer[step]        // all zero, for the next change of step
	turns atomic.Int32                // goroutines inside turn
}

// New returns an empty estimator of the values recorded during the last span,
// which must be positive.
func New(span time.Duration) *Window {
	return &Window{width: stepWidth(span)}
}

func stepWidth(span time.Duration) uint64 {
	return uint64(max(span/steps, 1))
}

// Record counts one value.
func (w *Window) Record(value, now time.Duration) {
	n := w.number(now)
	s := w.ring[n%steps].Load()
	if s == nil || s.number.Load() != n {
		s = w.turn(n)
	}
	s.count(value)
}

// number tells which step now lies in: now/width, rounded down for negative
// times too, which the complement -(now+1) of both sides does. Only the
// difference of two numbers and the remainder by steps have a meaning, and
// both are the same signed or not.
func (w *Window) number(now time.Duration) uint64 {
	if now < 0 {
		return ^(uint64(^now) / w.width)
	}
	return uint64(now) / w.width
}

// turn returns step n and puts it into the ring if it is not there yet, in
// the place of the one that it follows there (or precedes, if the clock
// stepped back).
//
// Nobody waits: a goroutine that finds the spare step taken makes one.
//
// A step that leaves the ring is reused only if no other goroutine is in
// here. Another one might have loaded it as old and be about to replace it;
// if it were back in the ring by then, with samples, they would be thrown
// away. Whoever enters after the swap loads a later step, so turns == 1 seen
// after the swap rules that out. Otherwise the step is left to the garbage
// collector, which reuses nothing that is still referred to.
func (w *Window) turn(n uint64) *step {
	w.turns.Add(1)
	defer w.turns.Add(-1)

	place := &w.ring[n%steps]
	old := place.Load()
	if old != nil && old.number.Load() == n {
		return old
	}
	next := w.spare.Swap(nil)
	if next == nil {
		next = new(step)
	}
	next.number.Store(n)
	if !place.CompareAndSwap(old, next) {
		w.spare.CompareAndSwap(nil, next)
		return place.Load()
	}
	if old != nil && w.turns.Load() == 1 {
		old.clear()
		w.spare.CompareAndSwap(nil, old)
	}
	return next
}

// Count returns the number of samples in the window.
func (w *Window) Count(now time.Duration) int {
	var c counts
	w.read(&c, now)
	return c.samples
}

// Quantile returns the q-quantile of the window, 0 < q <= 1, and the number
// of samples that it was taken from; 0, 0 if there is none. It is always
// computed anew; [Term] is the way to a cheap one.
func (w *Window) Quantile(q float64, now time.Duration) (value time.Duration, samples int) {
	var c counts
	w.read(&c, now)
	return c.quantile(q), c.samples
}

// Tail returns a value that about 1-q of the samples lie above, and never many
// more. It is what single values are to be compared with; Quantile is the
// better estimate of the quantile itself. 0, 0 if there are no samples.
func (w *Window) Tail(q float64, now time.Duration) (value time.Duration, samples int) {
	var c counts
	w.read(&c, now)
	return c.tail(q), c.samples
}

// Split returns the q-quantile of the window and how many of its samples lie
// above multiple times that quantile, more precisely above [Edge] of it. Both
// come from the same counters, read once.
func (w *Window) Split(q, multiple float64, now time.Duration) (quantile time.Duration, above, samples int) {
	var c counts
	w.read(&c, now)
	quantile = c.quantile(q)
	x := min(multiple*float64(quantile), float64(highest))
	return quantile, c.above(time.Duration(x)), c.samples
}

// Above returns how many samples of the window lie above x, more precisely
// above [Edge] of x.
func (w *Window) Above(x, now time.Duration) (above, samples int) {
	var c counts
	w.read(&c, now)
	return c.above(x), c.samples
}

// read adds up the steps less than four steps away from now, on either side.
func (w *Window) read(c *counts, now time.Duration) {
	n := w.number(now)
	for i := range w.ring {
		s := w.ring[i].Load()
		if s == nil {
			continue
		}
		if away := int64(s.number.Load() - n); -steps < away && away < steps {
			c.add(s)
		}
	}
}
