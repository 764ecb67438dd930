package resilience

import "time"

// ramp admits a share of the calls that grows from initial to all of them. It draws no lots: a call is admitted whenever
// the shares of the calls so far add up to a whole one, so that equal calls give equal answers.
type ramp struct {
	initial float64
	growth  float64 // per nanosecond
	level   float64 // the share at the time at
	at      time.Duration
	credit  float64
}

// newRamp begins the recovery from an outage of that length.
func newRamp(c Recovery, outage, now time.Duration) ramp {
	length := min(max(c.Fraction*float64(outage), float64(c.Min)), float64(c.Max))
	return ramp{initial: c.Initial, growth: (1 - c.Initial) / length, level: c.Initial, at: now}
}

func (r *ramp) share(now time.Duration) float64 {
	return min(1, r.level+r.growth*float64(max(0, now-r.at)))
}

// next is the sum of the shares if one more call came.
func (r *ramp) next(now time.Duration) float64 { return r.credit + r.share(now) }

func (r *ramp) admit(now time.Duration) bool {
	r.credit = r.next(now)
	if r.credit < 1 {
		return false
	}
	r.credit--
	return true
}

func (r *ramp) halve(now time.Duration) {
	r.level = max(r.initial, r.share(now)/2)
	r.at = now
}

// end is when the share is whole.
func (r *ramp) end() time.Duration {
	return r.at + time.Duration((1-r.level)/r.growth)
}
