package resilience

import "time"

// ReadingState says what a reading is worth. The zero value is NotConfigured.
type ReadingState uint8

const (
	// NotConfigured says that nothing is measured here.
	NotConfigured ReadingState = iota
	// Cold says that there are too few samples so far: only the constants count.
	Cold
	// Warm says that the value is in force.
	Warm
)

// String returns the state in words.
func (s ReadingState) String() string {
	switch s {
	case NotConfigured:
		return "not configured"
	case Cold:
		return "cold"
	case Warm:
		return "warm"
	}
	return "unknown"
}

// Reading is a measured duration and what stands behind it. Value is zero unless State is Warm.
type Reading struct {
	Value               time.Duration
	State               ReadingState
	Samples, MinSamples int
}

// Get returns the value, and true only when it is warm.
func (r Reading) Get() (time.Duration, bool) { return r.Value, r.State == Warm }

// RateReading is a measured share, 0 to 1. Value is zero unless State is Warm.
type RateReading struct {
	Value               float64
	State               ReadingState
	Samples, MinSamples int
}

// CountReading is a measured number. Value is zero unless State is Warm.
type CountReading struct {
	Value int
	State ReadingState
}

// Measured is what a policy measures at the moment, by value. QueueDelay is the process's own, the same for all policies.
type Measured struct {
	AttemptCeiling, BackoffBase, HedgeThreshold, QueueDelay Reading // the policy's own terms
	NormalLatency                                           Reading // of the breaker, likewise the next two
	NormalFailureRate, TripRatio                            RateReading
	ConcurrencyLimit                                        CountReading // of an adaptive limiter
}

// Measured is one look at everything that the policy measures. The zero Policy measures nothing.
func (p Policy) Measured() Measured {
	if p.p == nil {
		return Measured{}
	}
	return p.p.measured(p.p.time.now())
}

func (p *policy) measured(now time.Duration) Measured {
	s := p.set
	var m Measured
	if p.ceilingTerm != nil {
		q, samples := p.ceilingTerm.Reading(now)
		m.AttemptCeiling = reading(min(p.ceilingOf(q, now), s.attemptTimeout), samples, s.ceiling.MinSamples)
	}
	if p.backoffTerm != nil {
		q, samples := p.backoffTerm.Reading(now)
		m.BackoffBase = reading(s.measuredBackoff.clamp(q, s.backoff.Base), samples, s.measuredBackoff.MinSamples)
	}
	if p.hedgeTerm != nil {
		q, samples := p.hedgeTerm.Reading(now)
		m.HedgeThreshold = reading(max(q, s.hedge.MinDelay), samples, s.hedge.MinSamples)
	}
	if s.saturation != nil {
		r := queueDelay()
		m.QueueDelay = reading(r.Delay, r.Samples, s.saturation.MinSamples)
	}
	if p.breaker != nil {
		p.breaker.measured(&m, p.breaker.time.now())
	}
	if l := p.limiter; l != nil && l.adaptive() {
		stats := l.Stats()
		m.ConcurrencyLimit = CountReading{Value: stats.Limit, State: Warm}
		if stats.Baseline == 0 {
			m.ConcurrencyLimit = CountReading{State: Cold}
		}
	}
	return m
}

func reading(value time.Duration, samples, minSamples int) Reading {
	r := Reading{State: Cold, Samples: samples, MinSamples: minSamples}
	if samples >= minSamples {
		r.Value, r.State = value, Warm
	}
	return r
}

// learn feeds the measured terms with a successful attempt. A leg that was started beside another one does not tell how long
// legs take: those that finish are the fast ones of their kind, or they would not have been first.
func (p *policy) learn(took time.Duration, hedged bool, now time.Duration) {
	if p.ceilingTerm == nil && p.backoffTerm == nil && p.hedgeTerm == nil || !p.learning() {
		return
	}
	if p.ceilingTerm != nil {
		p.ceilingTerm.Record(took, now)
	}
	if p.backoffTerm != nil {
		p.backoffTerm.Record(took, now)
	}
	if p.hedgeTerm != nil && !hedged {
		p.hedgeTerm.Record(took, now)
	}
	if p.listened() {
		p.tellAdapted(now)
	}
}

// tellAdapted tells of a measured bound that turned warm or cold, or moved by a quarter since it was last told.
func (p *policy) tellAdapted(now time.Duration) {
	if p.ceilingTerm != nil {
		bound := min(p.ceiling(now), p.set.attemptTimeout)
		if p.ceiling(now) == never {
			bound = 0
		}
		if told := p.toldCeiling.Load(); moved(told, bound) && p.toldCeiling.CompareAndSwap(told, int64(bound)) {
			p.emit(Event{Kind: EventCeilingAdapted, Duration: bound})
		}
	}
	if p.backoffTerm != nil {
		var base time.Duration
		if _, warm := p.backoffTerm.Value(now); warm {
			base = p.measuredBase(p.set.backoff.Base, now)
		}
		if told := p.toldBackoff.Load(); moved(told, base) && p.toldBackoff.CompareAndSwap(told, int64(base)) {
			p.emit(Event{Kind: EventBackoffAdapted, Delay: base})
		}
	}
}

// moved reports whether a bound is worth another event: 0 stands for a cold one.
func moved(told int64, value time.Duration) bool {
	before := time.Duration(told)
	if before == 0 || value == 0 {
		return before != value
	}
	return value >= before+before/4 || value <= before-before/4
}

// measuredBase is the base of the short backoff curve: the written one, or the measured one within its spread.
func (p *policy) measuredBase(base, now time.Duration) time.Duration {
	if p.backoffTerm == nil {
		return base
	}
	median, warm := p.backoffTerm.Value(now)
	if !warm {
		return base
	}
	return p.set.measuredBackoff.clamp(median, base)
}

// hedgeThreshold is how long a leg may take before another one starts, and whether that is known.
func (p *policy) hedgeThreshold(now time.Duration) (time.Duration, bool) {
	if p.hedgeTerm == nil {
		return 0, false
	}
	quantile, warm := p.hedgeTerm.Value(now)
	return max(quantile, p.set.hedge.MinDelay), warm
}
