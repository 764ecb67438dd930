package resilience

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What must never happen to a breaker: that it refuses a dependency for good, or lets nobody else probe.

func TestBreakerLastingSlowdownIsAcceptedAfterOneWindow(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(0)
	slow := func(span time.Duration) {
		for end := now + span; now < end; now += 100 * time.Millisecond {
			b.call(OK, 40*time.Millisecond, now)
		}
	}
	slow(time.Minute)
	require.NotEqual(t, StateClosed, b.stateLocked(now), "40 ms is slow where 10 ms is normal")
	slow(b.config.SlowCalls.Window + b.config.MaxOpenFor)
	require.Equal(t, StateClosed, b.stateLocked(now), b.explain(now))
	accepted := b.load().generation()
	slow(24 * time.Hour)
	require.Equal(t, accepted, b.load().generation(), "it is normal now")
	require.InEpsilon(t, 40*time.Millisecond, b.normalLatency(now), 0.05)
}

func TestBreakerWhoseMeasurementIsTooOldStillSaysWhatItTrippedBy(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(0)
	for b.call(OK, 40*time.Millisecond, now) {
		now += 100 * time.Millisecond
	}
	const why = `\d+ of \d+ calls took longer than 3\dms \(\d+\.\d%, normal 0\.0%\), more than chance explains$`
	require.Regexp(t, "^open for 100ms: "+why, b.explain(now))
	now += time.Hour
	require.True(t, b.call(OK, 40*time.Millisecond, now))
	require.Regexp(t, "^half-open, 0 of 1 probes under way: "+why, b.explain(now))
	require.True(t, b.call(OK, 40*time.Millisecond, now))
	require.True(t, b.closed())
}

func TestBreakerMeasuredThresholdNeedsItsSamples(t *testing.T) {
	for _, samples := range []int{19, 20} {
		b := timedBreaker(t, BreakerConfig{})
		b.slowAbove = 30 * time.Millisecond
		for range samples {
			b.latencies.Record(10*time.Millisecond, 0)
		}
		require.False(t, b.stillSlowLocked(30*time.Millisecond, 0))
		require.Equal(t, samples == 20, b.stillSlowLocked(31*time.Millisecond, 0))
		require.False(t, b.stillSlowLocked(31*time.Millisecond, b.config.SlowCalls.Window))
		require.Equal(t, never, b.slowAbove)
	}
}

func TestBreakerWrittenSlowThresholdNeverGrowsOld(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{SlowThreshold: 30 * time.Millisecond})
	now := b.warmUp(0)
	for end := now + time.Hour; now < end; now += 100 * time.Millisecond {
		b.call(OK, 40*time.Millisecond, now)
	}
	require.NotEqual(t, StateClosed, b.stateLocked(now))
}

// A share that is halved by every slow call would never be whole.
func TestBreakerRecoveryEndsAlthoughCallsAreSlow(t *testing.T) {
	for name, c := range map[string]BreakerConfig{
		"measured": {Recovery: Recovery{Fraction: 0.25}},
		"written":  {SlowThreshold: 30 * time.Millisecond, Recovery: Recovery{Fraction: 0.25}},
	} {
		b := timedBreaker(t, c)
		begin := b.open(t, b.warmUp(0))
		now := begin
		for ; b.stateLocked(now) != StateClosed && now < begin+24*time.Hour; now += 10 * time.Millisecond {
			b.call(OK, 40*time.Millisecond, now)
		}
		alone := b.ramp.until - begin
		require.Greater(t, now-begin, alone/2, name+": slow calls hold the share down")
		require.LessOrEqual(t, now-begin, alone+time.Second, name)
	}
}

// At 100 calls a second some of the calls of every recovery fail if one in a hundred does.
func TestBreakerRecoveryTakesNormalFailuresForNormal(t *testing.T) {
	for every, most := range map[int]int{100: 3, 10: 3, 3: 6} {
		b := timedBreaker(t, BreakerConfig{ConsecutiveFailures: 50, Recovery: Recovery{Fraction: 0.25}})
		now := b.warmUp(every)
		now = b.open(t, now)
		openings, calls := 0, 0
		last := b.load().state()
		rng := rand.New(rand.NewPCG(1, uint64(every)))
		for end := now + 24*time.Hour; b.stateLocked(now) != StateClosed && now < end; now += 10 * time.Millisecond {
			v := OK
			if rng.IntN(every) == 0 {
				v = Transient
			}
			b.call(v, 10*time.Millisecond, now)
			if s := b.load().state(); s != last {
				if last = s; s == StateOpen {
					openings++
				}
			}
			calls++
		}
		require.Equal(t, StateClosed, b.stateLocked(now), "one in %d", every)
		require.LessOrEqual(t, openings, most, "one in %d", every)
	}
}

func TestBreakerRecoveryEndsWithAnotherOutage(t *testing.T) {
	for every, most := range map[int]int{0: 1, 100: 3, 10: 6, 3: 13} {
		b := timedBreaker(t, BreakerConfig{ConsecutiveFailures: 50, Recovery: Recovery{Fraction: 0.25}})
		now := b.open(t, b.warmUp(every))
		for b.load().state() != StateRecovering || b.ramp.share(now) < 0.5 {
			now += time.Millisecond
			b.call(OK, 10*time.Millisecond, now)
		}
		failures := 0
		for ; b.load().state() == StateRecovering; now += time.Millisecond {
			if b.call(Transient, 10*time.Millisecond, now) {
				failures++
			}
		}
		require.Equal(t, StateOpen, b.stateLocked(now))
		require.LessOrEqual(t, failures, most, "one in %d", every)
	}
}

func TestBreakerCallsLongerThanOpenForCloseIt(t *testing.T) {
	for _, probes := range []int{1, 3} {
		for _, d := range []time.Duration{14 * time.Second, 16 * time.Second, 20 * time.Second, 10 * time.Minute, 3 * time.Hour} {
			b := timedBreaker(t, BreakerConfig{Probes: probes})
			begin := b.open(t, 0)
			due := map[time.Duration]Lease{}
			now := begin
			for ; !b.closed() && now < begin+24*time.Hour; now += time.Second {
				if l, ok := due[now]; ok {
					l.done(OK, d, now, nil)
				}
				if l, _, ok := b.allow(now, nil); ok {
					due[now+d] = l
				}
			}
			require.LessOrEqual(t, now-begin, 4*d+time.Minute, "%d probes that take %v", probes, d)
		}
	}
}

func TestBreakerProbesHaveTwiceTheTimeOfThoseThatTheyOvertake(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{Probes: 2, OpenFor: 10 * time.Second})
	now := b.open(t, 0)
	var lost Lease
	takeBoth := func() {
		t.Helper()
		var ok bool
		lost, _, ok = b.allow(now, nil)
		require.True(t, ok)
		_, _, ok = b.allow(now, nil)
		require.True(t, ok)
	}
	takeBoth()
	for _, patience := range []time.Duration{10, 20, 40, 80} {
		patience *= time.Second
		_, _, ok := b.allow(now+patience-1, nil)
		require.False(t, ok, "%v", patience)
		now += patience
		takeBoth()
	}
	for range 20 {
		now += 24 * time.Hour
		takeBoth()
	}

	lost.done(Transient, 0, now, nil)
	require.Equal(t, StateOpen, b.stateLocked(now))
	now += 20 * time.Second
	takeBoth()
	_, _, ok := b.allow(now+10*time.Second-1, nil)
	require.False(t, ok)
	now += 10 * time.Second
	takeBoth() // a new half-open state begins with OpenFor
}

func TestBreakerReopensWhereNormalIsTotalFailure(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{ConsecutiveFailures: Off, FailureRatio: 0.5, MinCalls: 200})
	for range 200 {
		b.call(Transient, time.Millisecond, 0)
	}
	now := time.Duration(b.retryAt.Load())
	probes := 0
	for b.call(Transient, time.Millisecond, now) {
		probes++
		require.LessOrEqual(t, probes, 14)
	}
	require.Equal(t, StateOpen, b.stateLocked(now))
}

func TestBreakerLateFailureAfterTheRampDoesNotReopen(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{Recovery: Recovery{Fraction: 0.25}})
	now := b.open(t, 0)
	b.call(OK, 0, now)
	b.call(OK, 0, now)
	l, _, ok := b.allow(now, nil)
	for ; !ok; l, _, ok = b.allow(now, nil) {
		now += 10 * time.Millisecond
	}
	now += 10 * time.Second
	require.Equal(t, StateClosed, b.stateLocked(now))
	heard := &changes{}
	l.done(Transient, 10*time.Second, now, heard)
	require.Equal(t, StateClosed, b.stateLocked(now))
	require.Equal(t, []string{"breaker closed"}, heard.list)
	run, _ := b.law.Consecutive()
	require.Zero(t, run, "the call was admitted before it closed")
}

// backTo sets the clock of a timed breaker.
func (b *Breaker) backTo(now time.Duration) time.Duration {
	b.time.clock.(*handClock).reading = now
	return now
}

func TestBreakerClockThatStepsBackDoesNotKeepItOpen(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.open(t, 0)
	begin := b.since
	now = b.backTo(now - 2*b.config.MaxOpenFor)
	require.Equal(t, StateOpen, b.State(), "by less than it could have been open")
	require.Positive(t, b.Stats().RetryAfter)
	require.Equal(t, b.Stats().RetryAfter, b.refusesFor(now))
	require.Contains(t, b.explain(now), "open for 0s: ")

	now = b.backTo(begin - time.Hour)
	s := b.Stats()
	require.Equal(t, StateHalfOpen, s.State)
	require.Zero(t, s.RetryAfter)
	require.True(t, b.time.at(now).Equal(s.Since), "not in the future")
	require.Zero(t, b.refusesFor(now))
	require.Contains(t, b.explain(now), "half-open, 0 of 1 probes under way: ")
	require.True(t, b.call(OK, 0, now))
	require.True(t, b.call(OK, 0, now))
	require.True(t, b.closed())
}

func TestBreakerClockThatStepsBackDoesNotHoldTheSlotOfAProbe(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.open(t, 0)
	b.allow(now, nil)
	now -= time.Hour
	require.Zero(t, b.probesInFlightLocked(now))
	require.Zero(t, b.refusesFor(now))
	_, _, ok := b.allow(now, nil)
	require.True(t, ok)
}

func TestBreakerClockThatStepsBackDoesNotStopTheRamp(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{Recovery: Recovery{Fraction: 0.25, Min: 10 * time.Second}})
	now := b.open(t, 0)
	b.call(OK, 0, now)
	b.call(OK, 0, now)
	now -= time.Hour
	require.Equal(t, StateRecovering, b.stateLocked(now))
	b.call(OK, 0, now)
	require.Equal(t, StateRecovering, b.stateLocked(now+10*time.Second-time.Millisecond))
	require.Equal(t, StateClosed, b.stateLocked(now+10*time.Second+time.Millisecond))
}

// Callers read the clock before they look at the breaker: another one may have changed it since, at a later time.
func TestBreakerCallerWithAnOlderReadingSeesNoStepBack(t *testing.T) {
	for range 100 {
		b := timedBreaker(t, BreakerConfig{MaxOpenFor: time.Second})
		now := b.open(t, time.Hour)
		_, _, ok := b.allow(time.Hour-999*time.Millisecond, nil)
		require.False(t, ok, "it has just opened")

		_, _, ok = b.allow(now, nil)
		require.True(t, ok)
		_, _, ok = b.allow(now-999*time.Millisecond, nil)
		require.False(t, ok, "the probe has just begun")
	}
}
