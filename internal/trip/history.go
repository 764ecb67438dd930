package trip

import (
	"math"
	"time"
)

// memory is how many steps the long-term counts reach back: an hour with the
// default window, or some 1,200 results.
const memory = 120

// counts is one step of results. A run is a maximal chain of failures (slow
// calls); it belongs to the step in which it began.
type counts struct{ n, fail, runs, slow, slowRuns uint32 }

func (c counts) plus(d counts) counts {
	return counts{
		n:        c.n + d.n,
		fail:     c.fail + d.fail,
		runs:     c.runs + d.runs,
		slow:     c.slow + d.slow,
		slowRuns: c.slowRuns + d.slowRuns,
	}
}

// sample is the part of counts that is compared.
type sample struct{ n, fail uint32 }

func (s sample) plus(c counts) sample { return sample{s.n + c.n, s.fail + c.fail} }

// history is what is normal, and what is kept out of it. Results are gathered
// in steps; a step that ends is accepted into the normal sample unless it is
// suspect. Suspect steps are pooled: if the suspicion lasts for a whole normal
// window without a break, the pool is the new normal.
type history struct {
	step    counts        // being filled
	stepDue time.Duration // it ends at the first result from then on

	ring     [slots]sample // accepted, the normal sample
	next     uint8         // its oldest step
	failures normal        // its sum
	warm     bool          // it is large enough to be used
	long     longTerm

	holding bool   // a suspicion lasts since heldAt
	tripped bool   // the breaker has tripped while it lasted
	since   sample // suspect results since the suspicion began, or the last trip
	pool    counts // those that become normal if the suspicion does not end
	heldAt  time.Duration
}

// longTerm fades by 1/memory with every accepted step.
type longTerm struct{ n, fail, runs, slow, slowRuns float64 }

func (t *longTerm) add(c counts) {
	const keep = 1 - 1.0/memory
	t.n = t.n*keep + float64(c.n)
	t.fail = t.fail*keep + float64(c.fail)
	t.runs = t.runs*keep + float64(c.runs)
	t.slow = t.slow*keep + float64(c.slow)
	t.slowRuns = t.slowRuns*keep + float64(c.slowRuns)
}

// stepSize returns the results that a step must have before it may end.
func (l *Law) stepSize() uint32 {
	return uint32(max(1, (l.config.NormalSamples+slots-1)/slots))
}

// startStep begins an empty step. While cold its size alone ends it; then it
// also lasts a tenth of the normal window, or of the breaker's age where that
// is less: now-start >= (now-born)/10 is the same as now-start >= (start-born)/9.
func (l *Law) startStep(now time.Duration) {
	l.step = counts{}
	l.stepDue = math.MinInt64
	if l.warm {
		age := now - l.born
		l.stepDue = now + min((l.config.NormalWindow+slots-1)/slots, (age+slots-2)/(slots-1))
	}
}

func (l *Law) endStep(now time.Duration) {
	c := l.step
	if l.warm && l.keepsOut(c) {
		l.keepOut(c, now)
	} else {
		l.release()
		l.accept(c)
	}
	l.startStep(now)
}

// keepsOut reports whether the step c must not become normal yet.
func (l *Law) keepsOut(c counts) bool {
	if l.suspect(sample{c.n, c.fail}) {
		return true
	}
	if !l.holding {
		return false
	}
	t := l.since.plus(c)
	return l.suspect(t) || l.tripped && t.n < uint32(l.config.MinCalls)
}

// suspect asks the rate rule at half the line and a quarter of the evidence.
func (l *Law) suspect(s sample) bool { return l.failures.over(s.n, s.fail, 2, 4) }

func (l *Law) keepOut(c counts, now time.Duration) {
	if !l.holding {
		l.hold(now)
	}
	l.since = l.since.plus(c)
	l.pool = l.pool.plus(c)
	if now-l.heldAt >= l.config.NormalWindow && l.pool.n >= uint32(l.config.NormalSamples) {
		pool := l.pool
		l.ring = [slots]sample{}
		l.next = 0
		l.release()
		l.accept(pool)
	}
}

func (l *Law) hold(now time.Duration) {
	l.holding = true
	l.heldAt = now
	l.since = sample{}
	l.pool = counts{}
}

func (l *Law) release() {
	l.holding = false
	l.tripped = false
}

// holdTripped does the books of a trip. What was pooled before the first trip
// of a hold is dropped: it is the incident that the breaker opened for.
func (l *Law) holdTripped(now time.Duration) {
	switch {
	case !l.warm:
	case l.tripped:
		l.keepOut(l.step, now)
	default:
		if !l.holding {
			l.hold(now)
		}
		l.tripped = true
		l.pool = counts{}
	}
}

// accept makes the step c part of what is normal, in place of the oldest one.
func (l *Law) accept(c counts) {
	l.ring[l.next] = sample{c.n, c.fail}
	l.next = (l.next + 1) % slots
	l.long.add(c)
	var sum sample
	for _, s := range l.ring {
		sum.n += s.n
		sum.fail += s.fail
	}
	l.warm = sum.n >= uint32(l.config.NormalSamples)
	b := burst(l.long.n, l.long.fail, l.long.runs)
	l.failures = newNormal(float64(sum.n), float64(sum.fail), b, l.config.Floor, l.config.Multiple)
	l.limit = l.consecutive()
}
