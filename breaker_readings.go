package resilience

import (
	"fmt"
	"time"

	"github.com/measuredgo/resilience/internal/trip"
)

// BreakerStats is what a breaker knew at one moment.
type BreakerStats struct {
	State      BreakerState  // what it would do with a call
	Since      time.Time     // when the state began
	RetryAfter time.Duration // until an open breaker admits probes; 0 in the other states

	Calls    int // of the window; everything in this group is 0 unless closed
	Failures int // of them
	Slow     int // beyond SlowThreshold or the measured bound, whichever counts more

	Consecutive      int // failures since the last success
	ConsecutiveLimit int // how many open it; 0: no number does

	NormalFailureRate float64       // 0 while not Warm
	TripRatio         float64       // of failures in the window, the lower of the written and the measured one; 0: none
	NormalLatency     time.Duration // of successes; 0 while too few are known
	Warm              bool          // the normal failure rate is known
}

// State returns what the breaker would do with a call now. It changes nothing.
func (b *Breaker) State() BreakerState {
	if b.closed() {
		return StateClosed
	}
	now := b.time.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stateLocked(now)
}

// Stats returns one consistent reading. It changes nothing.
func (b *Breaker) Stats() BreakerStats {
	now := b.time.now()
	b.mu.Lock()
	s := BreakerStats{State: b.stateLocked(now), Since: b.time.at(b.sinceLocked(now))}
	if s.State == StateOpen {
		s.RetryAfter = b.openLeft(now)
	}
	calls, failures, slow, late := b.windowLocked(now)
	s.Calls, s.Failures, s.Slow = int(calls), int(failures), int(max(slow, late))
	s.Consecutive, s.ConsecutiveLimit = b.lawLocked().Consecutive()
	s.TripRatio, _ = b.lawLocked().TripRatio()
	s.NormalFailureRate, _, s.Warm = b.normalFailuresLocked()
	b.mu.Unlock()
	s.NormalLatency = b.normalLatency(now)
	return s
}

// sinceLocked is when the state at now began, which may be before anybody asked.
func (b *Breaker) sinceLocked(now time.Duration) time.Duration {
	switch s := b.load().state(); {
	case s == b.stateLocked(now):
		return b.since
	case s == StateOpen:
		return min(time.Duration(b.retryAt.Load()), now)
	default:
		return min(b.ramp.end(), now)
	}
}

// windowLocked is empty unless the breaker is closed: isolating it leaves the counts of the closed period behind.
func (b *Breaker) windowLocked(now time.Duration) (calls, failures, slow, late uint32) {
	if !b.closed() {
		return 0, 0, 0, 0
	}
	b.foldLocked()
	return b.law.Window(now)
}

// normalFailuresLocked returns the normal failure rate and how many results are known of it. It is 0 until it is warm.
func (b *Breaker) normalFailuresLocked() (rate float64, results int, warm bool) {
	if b.config.Failures.Multiple == Off {
		return 0, 0, false
	}
	rate, results, warm = b.lawLocked().Normal()
	if !warm {
		rate = 0
	}
	return rate, results, warm
}

// closed reports whether the breaker admits all calls, and not only because nobody has asked since a recovery ended.
func (b *Breaker) closed() bool { return b.load().state() == StateClosed }

// refusesFor is how long no call at all will be admitted: never where it takes a Reset, 0 where one might be.
func (b *Breaker) refusesFor(now time.Duration) time.Duration {
	switch b.load().state() {
	case StateOpen:
		return b.openLeft(now)
	case StateIsolated:
		return never
	default:
		return 0
	}
}

func (b *Breaker) probesInFlightLocked(now time.Duration) (n int) {
	for i := range b.probes {
		if b.heldLocked(&b.probes[i], now) {
			n++
		}
	}
	return n
}

// normalLatency is the usual duration of successes, 0 while too few are known or where it is not measured. A value serves
// for a second, or every retry would read the whole estimator.
func (b *Breaker) normalLatency(now time.Duration) time.Duration {
	if b.latencies == nil {
		return 0
	}
	if until := time.Duration(b.usualUntil.Load()); until-time.Second <= now && now < until {
		return time.Duration(b.usual.Load())
	}
	r := b.latencyReading(now)
	if r.State == Warm {
		b.usual.Store(int64(r.Value))
		b.usualUntil.Store(int64(later(now, time.Second)))
	}
	return r.Value
}

func (b *Breaker) latencyReading(now time.Duration) Reading {
	if b.latencies == nil {
		return Reading{}
	}
	s := b.config.SlowCalls
	usual, samples := b.latencies.Quantile(s.Quantile, now)
	return reading(usual, samples, s.MinSamples)
}

// measured fills in what the breaker measures.
func (b *Breaker) measured(m *Measured, now time.Duration) {
	m.NormalLatency = b.latencyReading(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.windowLocked(now)
	if f := b.config.Failures; f.Multiple != Off {
		rate, results, warm := b.normalFailuresLocked()
		m.NormalFailureRate = RateReading{Value: rate, State: Cold, Samples: results, MinSamples: f.MinSamples}
		if warm {
			m.NormalFailureRate.State = Warm
		}
		m.TripRatio = m.NormalFailureRate
	}
	// A written ratio is in force from the first call on.
	m.TripRatio.Value, _ = b.lawLocked().TripRatio()
	if b.config.FailureRatio > 0 {
		m.TripRatio.State = Warm
	}
}

// strain is the failure rate of the window as a share of the rate that opens the breaker: 0 with fewer than MinCalls, and
// where no rate does.
func (b *Breaker) strain(now time.Duration) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls, failures, _, _ := b.windowLocked(now)
	limit, _ := b.lawLocked().TripRatio()
	if int(calls) < b.config.MinCalls || limit == 0 {
		return 0
	}
	return float64(failures) / float64(calls) / limit
}

// explain says in one line what the breaker does and why.
func (b *Breaker) explain(now time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.stateLocked(now) {
	case StateOpen:
		return fmt.Sprintf("open for %v: %s", brief(max(0, now-b.since)), b.causeLocked())
	case StateHalfOpen:
		return fmt.Sprintf("half-open, %d of %d probes under way: %s", b.probesInFlightLocked(now), len(b.probes), b.causeLocked())
	case StateRecovering:
		return fmt.Sprintf("recovering, admits %s of the calls: %s", percent(b.ramp.share(now)), b.causeLocked())
	case StateIsolated:
		return "isolated until Reset"
	default:
		return "closed; " + b.limitsLocked()
	}
}

// limitsLocked says what opens a closed breaker.
func (b *Breaker) limitsLocked() string {
	text := ""
	or := func(format string, args ...any) {
		if text == "" {
			text = "opens "
		} else {
			text += ", or "
		}
		text += fmt.Sprintf(format, args...)
	}
	rate, results, warm := b.normalFailuresLocked()
	if _, limit := b.lawLocked().Consecutive(); limit > 0 {
		or("after %d failures in a row", limit)
		if b.config.ConsecutiveFailures == 0 && limit > trip.DefaultRun {
			text += fmt.Sprintf(" (%d would be chance at its normal %s)", trip.DefaultRun, percent(rate))
		}
	}
	// A written ratio is always said: the measured one fires below it only if chance cannot explain it.
	if r := b.config.FailureRatio; r > 0 {
		or("at %s of the last %v", percent(r), brief(b.config.Window))
	}
	if r, measured := b.lawLocked().TripRatio(); measured {
		or("at %s of the last %v if chance cannot explain it", percent(r), brief(b.config.Window))
	}
	if d := b.config.SlowThreshold; d > 0 {
		or("when %s of the last %v take longer than %v", percent(b.config.SlowRatio), brief(b.config.Window), d)
	}
	if b.config.Failures.Multiple != Off && !warm {
		cold := fmt.Sprintf("cold: %d of %d results towards its normal failure rate", results, b.config.Failures.MinSamples)
		return orDefault(text, "does not open yet") + " (" + cold + ")"
	}
	return orDefault(text, "never opens by a failure")
}

// causeLocked says why the breaker opened.
func (b *Breaker) causeLocked() string {
	c := b.lawLocked().Cause()
	share := percent(float64(c.Bad) / float64(c.Calls))
	chance := fmt.Sprintf("(%s, normal %s), more than chance explains", share, percent(c.Normal))
	switch c.Rule {
	case trip.Run:
		return fmt.Sprintf("%d failures in a row", c.Bad)
	case trip.Ratio:
		return fmt.Sprintf("%d of %d calls failed (%s, limit %s)", c.Bad, c.Calls, share, percent(b.config.FailureRatio))
	case trip.Rate:
		return fmt.Sprintf("%d of %d calls failed %s", c.Bad, c.Calls, chance)
	case trip.Since:
		return fmt.Sprintf("%d of %d calls failed since suspicion began %s", c.Bad, c.Calls, chance)
	case trip.SlowThreshold:
		return fmt.Sprintf("%d of %d calls took longer than %v (%s, limit %s)",
			c.Bad, c.Calls, b.config.SlowThreshold, share, percent(b.config.SlowRatio))
	case trip.SlowRate:
		return fmt.Sprintf("%d of %d calls took longer than %v %s", c.Bad, c.Calls, brief(b.tripAbove), chance)
	}
	return "unknown"
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// brief rounds a duration to what a reader needs of it.
func brief(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(time.Second)
	case d >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}
