package resilience

import "time"

// probe is the slot of one admitted probe. An expired one may be taken over.
type probe struct {
	ticket   uint32 // 0: free
	patience uint32 // the breaker's, when it was admitted
	until    time.Duration
}

// takeProbeLocked returns the ticket of a free slot, or of one whose holder has not reported for too long; 0 if there is
// none. Whoever overtakes gets twice the time, or a dependency that takes longer than OpenFor could never show that it is
// well. Holders that had the same time double it only once.
func (b *Breaker) takeProbeLocked(now time.Duration) uint32 {
	for i := range b.probes {
		p := &b.probes[i]
		if b.heldLocked(p, now) {
			continue
		}
		if p.ticket != 0 && p.patience == b.patience {
			b.patience++
		}
		b.ticket++
		if b.ticket == 0 {
			b.ticket = 1
		}
		*p = probe{ticket: b.ticket, patience: b.patience, until: later(now, b.probeForLocked())}
		return b.ticket
	}
	return 0
}

// heldLocked reports whether nobody else may have that slot. More than its time can be left only by a clock that stepped
// back, and twice of it is the limit for the reason of openLeft.
func (b *Breaker) heldLocked(p *probe, now time.Duration) bool {
	left := p.until - now
	return p.ticket != 0 && left > 0 && left <= 2*b.probeForLocked()
}

// probeForLocked is the time that the next probe has.
func (b *Breaker) probeForLocked() time.Duration {
	return doubled(b.config.OpenFor, int(b.patience), maxBreakerOpen)
}

func (b *Breaker) returnProbeLocked(ticket uint32) bool {
	for i := range b.probes {
		if b.probes[i].ticket == ticket {
			b.probes[i] = probe{}
			return true
		}
	}
	return false // overtaken
}

// ramp admits a share of the calls that grows from initial to all of them. It draws no lots: a call is admitted whenever
// the shares of the calls so far add up to a whole one, so that equal calls give equal answers. It takes at most four times
// as long as it takes undisturbed: a closed breaker judges slow calls better.
type ramp struct {
	initial float64
	growth  float64 // per nanosecond
	level   float64 // the share at the time at
	at      time.Duration
	until   time.Duration // then the share is whole, whatever came
	credit  float64
}

// newRamp begins the recovery from an outage of that length.
func newRamp(c Recovery, outage, now time.Duration) ramp {
	length := min(max(c.Fraction*float64(outage), float64(c.Min)), float64(c.Max))
	return ramp{
		initial: c.Initial, growth: (1 - c.Initial) / length, level: c.Initial, at: now, until: later(now, 4*time.Duration(length)),
	}
}

func (r *ramp) share(now time.Duration) float64 {
	if now >= r.until {
		return 1
	}
	return min(1, r.level+r.growth*float64(max(0, now-r.at)))
}

func (r *ramp) admit(now time.Duration) bool {
	r.at = min(r.at, now) // where the clock stepped back, the share grows from there
	r.credit += r.share(now)
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
	return min(r.until, r.at+time.Duration((1-r.level)/r.growth))
}
