package resilience

import (
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
)

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
	Value               time.Duration // in force while Warm
	State               ReadingState  // what it is worth
	Samples, MinSamples int           // how many there are, and how many make it warm
}

// Get returns the value, and true only when it is warm.
func (r Reading) Get() (time.Duration, bool) { return r.Value, r.State == Warm }

// RateReading is a measured share, 0 to 1. Value is zero unless State is Warm.
type RateReading struct {
	Value               float64      // in force while Warm
	State               ReadingState // what it is worth
	Samples, MinSamples int          // how many there are, and how many make it warm
}

// CountReading is a measured number. Value is zero unless State is Warm.
type CountReading struct {
	Value int          // in force while Warm
	State ReadingState // what it is worth
}

// Measured is what a policy measures at the moment, by value. QueueDelay is the process's own, the same for all policies.
type Measured struct {
	AttemptCeiling, BackoffBase, HedgeThreshold, QueueDelay Reading      // the policy's own terms
	NormalLatency                                           Reading      // of the breaker
	NormalFailureRate, TripRatio                            RateReading  // of the breaker: what is normal, and what opens it
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
	t := p.terms.Load()
	if t == nil {
		t = newTerms(s) // nothing learned yet: what it would be made of
	}
	if t.ceiling != nil {
		q, samples := t.ceiling.Reading(now)
		m.AttemptCeiling = reading(min(p.ceilingOf(q, now), s.attemptTimeout), samples, s.ceiling.MinSamples)
	}
	if t.backoff != nil {
		q, samples := t.backoff.Reading(now)
		m.BackoffBase = reading(s.measuredBackoff.clamp(q, s.backoff.Base), samples, s.measuredBackoff.MinSamples)
	}
	if t.hedge != nil {
		q, samples := t.hedge.Reading(now)
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

// terms are the policy's own measurements. A nil one is not configured.
type terms struct {
	ceiling, backoff, hedge *quantile.Term
	shared                  bool // ceiling and backoff have the same window, and so the same samples
}

func newTerms(s *settings) *terms {
	t := &terms{}
	if s.measuresCeiling {
		t.ceiling = quantile.NewTerm(s.ceiling.Window, s.ceiling.Quantile, s.ceiling.MinSamples)
	}
	if m := s.measuredBackoff; m != nil {
		t.shared = t.ceiling != nil && m.Window == s.ceiling.Window
		if t.shared {
			t.backoff = t.ceiling.Another(m.Quantile, m.MinSamples)
		} else {
			t.backoff = quantile.NewTerm(m.Window, m.Quantile, m.MinSamples)
		}
	}
	if h := s.hedge; h != nil {
		t.hedge = quantile.NewTail(h.Window, h.Quantile, h.MinSamples)
	}
	return t
}

// learn feeds the measured terms with a successful attempt. A leg that was started beside another one does not tell how long
// legs take: those that finish are the fast ones of their kind, or they would not have been first.
func (p *policy) learn(took time.Duration, hedged bool, now time.Duration) {
	t := p.terms.Load()
	if t == nil {
		p.terms.CompareAndSwap(nil, newTerms(p.set))
		t = p.terms.Load()
	}
	if *t == (terms{}) || !p.learning() {
		return
	}
	if t.ceiling != nil {
		t.ceiling.Record(took, now)
	}
	if t.backoff != nil && !t.shared {
		t.backoff.Record(took, now)
	}
	if t.hedge != nil && !hedged {
		t.hedge.Record(took, now)
	}
	if p.listened() {
		p.tellAdapted(now)
	}
}

// tellAdapted tells of a measured bound that turned warm or cold, or moved by a quarter since it was last told.
func (p *policy) tellAdapted(now time.Duration) {
	var bound, base time.Duration // 0: cold
	if c := p.ceiling(now); c != never {
		bound = min(c, p.set.attemptTimeout)
	}
	if moved(&p.toldCeiling, bound) {
		p.emit(Event{Kind: EventCeilingAdapted, Duration: bound})
	}
	if b, warm := p.warmBase(p.set.backoff.Base, now); warm {
		base = b
	}
	if moved(&p.toldBackoff, base) {
		p.emit(Event{Kind: EventBackoffAdapted, Delay: base})
	}
}

// moved reports whether a bound is worth another event, and notes it as told: 0 stands for a cold one.
func moved(told *atomic.Int64, value time.Duration) bool {
	old := told.Load()
	before := time.Duration(old)
	switch {
	case before == value:
		return false
	case before != 0 && value != 0 && value < before+before/4 && value > before-before/4:
		return false
	}
	return told.CompareAndSwap(old, int64(value))
}

// measuredBase is the base of the short backoff curve: the written one, or the measured one within its spread.
func (p *policy) measuredBase(base, now time.Duration) time.Duration {
	if measured, warm := p.warmBase(base, now); warm {
		return measured
	}
	return base
}

func (p *policy) warmBase(base, now time.Duration) (time.Duration, bool) {
	t := p.terms.Load()
	if t == nil || t.backoff == nil {
		return 0, false
	}
	median, warm := t.backoff.Value(now)
	return p.set.measuredBackoff.clamp(median, base), warm
}

// hedgeThreshold is how long a leg may take before another one starts, and whether that is known.
func (p *policy) hedgeThreshold(now time.Duration) (time.Duration, bool) {
	t := p.terms.Load()
	if t == nil || t.hedge == nil {
		return 0, false
	}
	threshold, warm := t.hedge.Value(now)
	return max(threshold, p.set.hedge.MinDelay), warm
}
