// Package trip decides when a circuit breaker opens, and when its probes have
// shown enough to close it again.
//
// A share of failures that is large against the normal share proves nothing
// while the counts are small, so every measured rule asks one more question:
// would chance explain it? The answer is a likelihood ratio between two
// samples, the judged one and the normal one. Constants that a user wrote are
// exact and are never asked.
//
// A [Law] has no lock and no clock and allocates nothing. now is always the
// time since an arbitrary fixed origin. A clock that stands still or steps back
// counts into the current slot.
package trip

import (
	"math"
	"time"
)

// DefaultRun is the consecutive limit while nothing is known about the
// dependency, and the least one that is ever derived from a measurement.
const DefaultRun = 5

// Config says what trips. Nothing is validated here.
//
// Counts are kept in 32 bits, which holds an hour at a million calls a second:
// both windows must be at most an hour.
type Config struct {
	Window   time.Duration // the span that is judged, in ten slots
	MinCalls int           // below it no share is judged

	Consecutive  int     // failures in a row; 0: adapts to the normal rate; negative: never
	FailureRatio float64 // exact share of failures; 0: none
	SlowRatio    float64 // exact share of calls beyond a written threshold, and the floor of the measured slow rule

	Multiple      float64       // of the normal failure rate; 0: no measured failure rule, and 5 in a row
	Floor         float64       // least failure rate that matters, whatever is normal
	NormalWindow  time.Duration // what is normal is learnt over this span
	NormalSamples int           // results until it is known
	SlowSamples   int           // latencies until a normal slow share is known

	ProbeSuccesses int // exact number in a row; 0: the score decides
}

// Rule names what tripped.
type Rule uint8

// The rules, in the order in which they are asked.
const (
	None          Rule = iota
	Run                // so many failures in a row
	Ratio              // the written share of failures
	Rate               // the failure rate of the window, against normal
	Since              // the failure rate since the suspicion began, against normal
	SlowThreshold      // the written share of calls beyond the written threshold
	SlowRate           // the share of slow calls of the window, against normal
)

// Cause is a trip and what it rested on.
type Cause struct {
	Rule   Rule
	Calls  uint32  // size of the judged sample
	Bad    uint32  // failures in it, or slow calls
	Normal float64 // the normal share, for the measured rules
}

// A Law is fed the results of one closed breaker. Make one with [New]; it is
// not safe for concurrent use.
type Law struct {
	config Config
	born   time.Duration
	cause  Cause

	window     window
	run        uint32 // failures since the last success
	limit      uint32 // failures in a row that trip
	slowBefore bool   // the last result was a slow success

	history
	slows    normal // slow successes outside of the window, as of the last Latency
	outdated uint32 // slow calls of the window that were not slow by that reading
}

// New returns the law of a breaker that is closed since now.
func New(c Config, now time.Duration) Law {
	l := Law{config: c, born: now, window: newWindow(c.Window, now)}
	l.limit = l.consecutive()
	l.startStep(now)
	return l
}

// Due returns the instant until which a fast success changes no decision but
// the counts, so that several may be kept back and told in one [Law.Fold].
func (l *Law) Due() time.Duration { return min(l.window.end, l.stepDue) }

// Fold counts n successes, none of them slow, that came after the last result
// and before Due.
func (l *Law) Fold(n uint32) {
	if n == 0 {
		return
	}
	l.run = 0
	l.slowBefore = false
	l.step.n += n
	l.window.add(tally{n: n})
}

// Succeed counts a success. It is slow if it took unusually long for this
// dependency, and late if it took longer than the written threshold.
func (l *Law) Succeed(slow, late bool, now time.Duration) Rule {
	l.advance(now)
	l.run = 0
	l.step.n++
	t := tally{n: 1}
	if slow {
		t.slow = 1
		l.step.slow++
		if !l.slowBefore {
			l.step.slowRuns++
		}
	}
	l.slowBefore = slow
	if late {
		t.late = 1
	}
	l.window.add(t)
	if !slow && !late {
		return None
	}
	return l.decide(l.judgeSlow(slow, late), now)
}

// Fail counts a failure. It is late if it took longer than the written
// threshold.
func (l *Law) Fail(late bool, now time.Duration) Rule {
	l.advance(now)
	l.slowBefore = false
	if l.run == 0 {
		l.step.runs++
	}
	l.run++
	l.step.n++
	l.step.fail++
	t := tally{n: 1, fail: 1}
	if late {
		t.late = 1
	}
	l.window.add(t)
	rule := l.judgeFailure()
	if rule == None && late {
		rule = l.judgeSlow(false, true)
	}
	return l.decide(rule, now)
}

// Latency takes a reading of the latency estimator, which must hold the
// successes counted so far and no others: above of its samples are slow. Slow
// calls of the window are what is judged, so they are no part of normal.
//
// The calls of the window were compared with earlier readings, and the median
// of a dependency with two modes jumps between them. So many calls as the window
// has counted as slow beyond above cannot be slow by this reading.
func (l *Law) Latency(above, samples uint64, now time.Duration) {
	l.window.roll(now)
	w := l.window.sum
	n := float64(samples) - float64(w.n-w.fail)
	if n < float64(l.config.SlowSamples) {
		l.slows = normal{}
		return
	}
	f := float64(above) - float64(w.slow)
	l.outdated = uint32(max(0, -f))
	b := burst(l.long.n, l.long.slow, l.long.slowRuns)
	l.slows = newNormal(n, min(max(0, f), n), b, l.config.SlowRatio, 2)
}

// Closed starts afresh after the breaker was anything but closed. What is
// normal stays.
func (l *Law) Closed(now time.Duration) {
	l.forget()
	l.window.roll(now)
	l.startStep(now)
}

// Window returns the counts of the window.
func (l *Law) Window(now time.Duration) (calls, failures, slow, late uint32) {
	l.window.roll(now)
	w := l.window.sum
	return w.n, w.fail, w.slow, w.late
}

// Cause returns the last trip.
func (l *Law) Cause() Cause { return l.cause }

// Consecutive returns the failures in a row so far, and how many trip; a limit
// of 0 means that no number does.
func (l *Law) Consecutive() (run, limit int) {
	if l.limit == math.MaxUint32 {
		return int(l.run), 0
	}
	return int(l.run), int(l.limit)
}

// Normal returns the normal failure rate and how many results it rests on. Until
// it is warm it takes no part in any decision.
func (l *Law) Normal() (rate float64, results int, warm bool) {
	n := int(l.failures.n)
	if !l.warm {
		n += int(l.step.n)
	}
	return l.failures.share(), n, l.warm
}

// TripRatio returns the failure rate at which the breaker may open: the written
// one or the line of the measured rule, whichever is lower, and 0 for neither.
func (l *Law) TripRatio() (ratio float64, measured bool) {
	ratio = l.config.FailureRatio
	if l.warm && l.config.Multiple > 0 && (ratio == 0 || l.failures.line < ratio) {
		return l.failures.line, true
	}
	return ratio, false
}

// advance moves the window and ends the step if this result is the one it
// waited for.
func (l *Law) advance(now time.Duration) {
	l.window.roll(now)
	if now >= l.stepDue && l.step.n >= l.stepSize() {
		l.endStep(now)
	}
}

func (l *Law) judgeFailure() Rule {
	if l.run >= l.limit {
		return l.because(Run, l.run, l.run, 0)
	}
	w := l.window.sum
	enough := w.n >= uint32(l.config.MinCalls)
	// Division, not multiplication: 7 of 100 is 0.07, but 0.07*100 is above 7.
	if r := l.config.FailureRatio; enough && r > 0 && float64(w.fail)/float64(w.n) >= r {
		return l.because(Ratio, w.n, w.fail, 0)
	}
	if !l.warm {
		return None
	}
	if enough && l.failures.over(w.n, w.fail, 1, 1) {
		return l.because(Rate, w.n, w.fail, l.failures.share())
	}
	if !l.holding {
		return None
	}
	t := l.since.plus(l.step)
	if t.n >= uint32(l.config.MinCalls) && l.failures.over(t.n, t.fail, 1, 1) {
		return l.because(Since, t.n, t.fail, l.failures.share())
	}
	return None
}

func (l *Law) judgeSlow(slow, late bool) Rule {
	w := l.window.sum
	if w.n < uint32(l.config.MinCalls) {
		return None
	}
	if late && float64(w.late)/float64(w.n) >= l.config.SlowRatio {
		return l.because(SlowThreshold, w.n, w.late, 0)
	}
	if n := w.slow - min(w.slow, l.outdated); slow && l.slows.over(w.n, n, 1, 1) {
		return l.because(SlowRate, w.n, n, l.slows.share())
	}
	return None
}

func (l *Law) because(rule Rule, calls, bad uint32, usual float64) Rule {
	l.cause = Cause{Rule: rule, Calls: calls, Bad: bad, Normal: usual}
	return rule
}

// decide does the books of a trip.
func (l *Law) decide(rule Rule, now time.Duration) Rule {
	if rule != None {
		l.holdTripped(now)
		l.forget()
	}
	return rule
}

// forget drops everything that belongs to the present closed period.
func (l *Law) forget() {
	l.window.clear()
	l.run = 0
	l.slowBefore = false
	l.since = sample{}
	l.step = counts{}
}

// consecutive returns how many failures in a row trip.
func (l *Law) consecutive() uint32 {
	switch {
	case l.config.Consecutive < 0:
		return math.MaxUint32
	case l.config.Consecutive > 0:
		return uint32(l.config.Consecutive)
	case !l.warm || l.config.Multiple == 0:
		return DefaultRun
	}
	b := l.failures.burst
	return max(runLimit(l.failures.share(), b), runLimit(l.long.fail/l.long.n, b))
}
