package resilience

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timedBreaker is a breaker whose clock stands at 0, so that now is an argument of everything.
func timedBreaker(t testing.TB, c BreakerConfig) *Breaker {
	t.Helper()
	k := newChecker("test")
	c = c.resolve(k)
	require.NoError(t, k.err())
	return newBreaker(&c, newTimeline(&handClock{}))
}

// call makes one call that takes d and ends at now; it reports whether it was admitted.
func (b *Breaker) call(v Verdict, d, now time.Duration) bool {
	l, _, ok := b.allow(now, nil)
	l.done(v, d, now, nil)
	return ok
}

// warmUp makes 6,000 calls at ten a second, of which one in every fails, and returns when they end.
func (b *Breaker) warmUp(every int) (now time.Duration) {
	for i := range 6000 {
		now += 100 * time.Millisecond
		v := OK
		if every > 0 && i%every == every-1 {
			v = Transient
		}
		b.call(v, 10*time.Millisecond, now)
	}
	return now
}

// open makes it trip and returns when the probes may come.
func (b *Breaker) open(t testing.TB, now time.Duration) time.Duration {
	t.Helper()
	for range 100 {
		b.call(Transient, time.Millisecond, now)
	}
	refused := b.refusesFor(now)
	require.Positive(t, refused)
	return now + refused
}

func TestBreakerDefaults(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	require.Equal(t, BreakerConfig{
		Failures:  RelativeFailures{Multiple: 5, Window: 5 * time.Minute, MinSamples: 100, Floor: 0.05},
		SlowCalls: RelativeSlow{Multiple: 3, Quantile: 0.5, Window: 5 * time.Minute, MinSamples: 20},
		SlowRatio: 0.5, MinCalls: 20, Window: 30 * time.Second,
		OpenFor: 15 * time.Second, MaxOpenFor: 2 * time.Minute, Probes: 1,
	}, *b.config)
}

func TestBreakerDefaultsGiveWayToWhatIsWritten(t *testing.T) {
	for _, c := range []struct {
		written BreakerConfig
		right   func(BreakerConfig) bool
	}{
		{BreakerConfig{Window: time.Minute}, func(c BreakerConfig) bool { return c.Failures.Window == 10*time.Minute }},
		{BreakerConfig{Window: 10 * time.Minute}, func(c BreakerConfig) bool {
			return c.Failures == RelativeFailures{Multiple: Off} && c.SlowCalls.Window == 20*time.Minute
		}},
		{BreakerConfig{Window: 10 * time.Minute, Failures: RelativeFailures{Floor: 0.1, MinSamples: 200}}, func(c BreakerConfig) bool {
			return c.Failures == RelativeFailures{Multiple: Off}
		}},
		{BreakerConfig{Window: time.Hour, SlowCalls: RelativeSlow{MinSamples: 50}}, func(c BreakerConfig) bool {
			return c.SlowCalls == RelativeSlow{Multiple: Off}
		}},
		{BreakerConfig{Window: time.Hour, SlowThreshold: time.Second, SlowRatio: 0.9}, func(c BreakerConfig) bool {
			return c.SlowCalls == RelativeSlow{Multiple: Off} && c.SlowRatio == 0.9
		}},
		{BreakerConfig{Window: time.Hour}, func(c BreakerConfig) bool { return c.SlowCalls == RelativeSlow{Multiple: Off} }},
		{BreakerConfig{OpenFor: time.Hour}, func(c BreakerConfig) bool { return c.MaxOpenFor == time.Hour }},
		{BreakerConfig{MaxOpenFor: time.Second}, func(c BreakerConfig) bool { return c.OpenFor == time.Second }},
		{BreakerConfig{Recovery: Recovery{Fraction: 1, Min: time.Minute}}, func(c BreakerConfig) bool { return c.Recovery.Max == time.Minute }},
		{BreakerConfig{Recovery: Recovery{Fraction: 1, Max: time.Millisecond}}, func(c BreakerConfig) bool { return c.Recovery.Min == time.Millisecond }},
		{BreakerConfig{ConstantsOnly: true, Failures: RelativeFailures{Multiple: Off}}, func(c BreakerConfig) bool {
			return c.Failures.Multiple == Off && c.SlowCalls.Multiple == Off
		}},
	} {
		resolved := *timedBreaker(t, c.written).config
		require.True(t, c.right(resolved), "%+v becomes %+v", c.written, resolved)
		require.Equal(t, resolved, *timedBreaker(t, resolved).config, "resolving it again changes nothing")
	}
}

func TestBreakerCountsWhatItCountsAhead(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(0) + 10*time.Millisecond
	b.call(OK, 10*time.Millisecond, now)
	require.Positive(t, b.fast.take(b.load().generation()), "nothing was counted without the lock")
	tallies := newTallies()
	tallies[0].word.Store(7<<32 | 3)
	require.Equal(t, uint32(0), tallies.take(6))
	require.Equal(t, uint32(3), tallies.take(7))
	require.Equal(t, uint32(0), tallies.take(7))
	for i := range tallies {
		tallies[i].word.Store(7<<32 | fullTally)
	}
	require.False(t, tallies.add(7), "a full one wants the lock")
	require.True(t, tallies.add(6), "an older generation counts nothing")
	require.True(t, tallies.add(8))
	require.Equal(t, uint32(1), tallies.take(8))
	require.Zero(t, b.strain(now+time.Hour))
}

func TestBreakerStrainIsAShareOfTheTighterTripPoint(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(0) + time.Hour // an empty window
	for range 18 {
		b.call(OK, 10*time.Millisecond, now)
	}
	b.call(Transient, 10*time.Millisecond, now)
	require.Zero(t, b.strain(now), "19 calls are too few")
	for range 6 {
		b.call(OK, 10*time.Millisecond, now)
	}
	require.InDelta(t, 0.04/0.05, b.strain(now), 1e-9)

	b = timedBreaker(t, BreakerConfig{FailureRatio: 0.5, Failures: RelativeFailures{Multiple: Off}})
	for range 18 {
		b.call(OK, 10*time.Millisecond, 0)
	}
	b.call(Transient, 10*time.Millisecond, 0)
	b.call(Transient, 10*time.Millisecond, 0)
	require.InDelta(t, 0.2, b.strain(0), 1e-9)
}

func TestBreakerNormalLatencyIsColdUntilItIsKnown(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	for range 19 {
		b.call(OK, 10*time.Millisecond, 0)
		b.call(Permanent, time.Hour, 0)
	}
	require.Zero(t, b.normalLatency(0))
	b.call(OK, 10*time.Millisecond, 0)
	require.InEpsilon(t, 10*time.Millisecond, b.normalLatency(0), 0.05)
	require.Zero(t, b.normalLatency(time.Hour), "old samples are none")
	require.Zero(t, timedBreaker(t, BreakerConfig{ConstantsOnly: true}).normalLatency(0))
}

func TestBreakerSlowCallsOpenIt(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(0)
	calls := 0
	for b.call(OK, 100*time.Millisecond, now) {
		now += 100 * time.Millisecond
		calls++
	}
	require.InDelta(t, 150, calls, 5, "half of the window")
	now = time.Duration(b.retryAt.Load())
	require.True(t, b.call(OK, 100*time.Millisecond, now))
	require.False(t, b.call(OK, 10*time.Millisecond, now), "a slow probe is a bad one")

	b = timedBreaker(t, BreakerConfig{SlowThreshold: time.Second})
	for range 10 {
		b.call(OK, time.Second, 0)
	}
	for range 10 {
		require.True(t, b.call(OK, time.Second+1, 0))
	}
	require.False(t, b.call(OK, 0, 0))
}

func TestBreakerOpensLongerEachTimeTheProbeFails(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	now := b.open(t, 0)
	for _, period := range []time.Duration{30, 60, 120, 120, 120} {
		period *= time.Second
		require.False(t, b.call(OK, 0, now-1))
		require.True(t, b.call(Transient, 0, now))
		wait := b.refusesFor(now)
		require.GreaterOrEqual(t, wait, period/2)
		require.LessOrEqual(t, wait, period)
		now += wait
	}
	require.True(t, b.call(OK, 0, now))
	require.True(t, b.call(OK, 0, now))
	require.True(t, b.closed())
	now = b.open(t, now) - now
	require.LessOrEqual(t, now, 15*time.Second, "a clean close forgets the growth")
}

// BR-040
func TestBreakersThatTrippedTogetherDoNotProbeTogether(t *testing.T) {
	const n = 1000
	slots := map[time.Duration]int{}
	var sum time.Duration
	for range n {
		b := timedBreaker(t, BreakerConfig{ConsecutiveFailures: 1, OpenFor: 10 * time.Second})
		at := b.open(t, 0)
		require.GreaterOrEqual(t, at, 5*time.Second)
		require.LessOrEqual(t, at, 10*time.Second)
		slots[at/(100*time.Millisecond)]++
		sum += at
	}
	require.InDelta(t, 7.5, (sum / n).Seconds(), 0.3)
	for slot, in := range slots {
		require.Less(t, in, n/10, "slot %d", slot)
	}
}

func TestBreakerRecoveryAdmitsAGrowingShareEvenly(t *testing.T) {
	c := BreakerConfig{ProbeSuccesses: 1, Recovery: Recovery{Fraction: 0.5, Initial: 0.1, Min: 10 * time.Second, Max: 10 * time.Second}}
	recovering := func() (*Breaker, time.Duration) {
		b := timedBreaker(t, c)
		now := b.open(t, 0)
		require.True(t, b.call(OK, 0, now))
		require.Equal(t, StateRecovering, b.stateLocked(now))
		return b, now
	}
	b, start := recovering()
	admitted := map[time.Duration]int{}
	var pattern []bool
	for i := range 10_000 {
		now := start + time.Duration(i)*time.Millisecond
		ok := b.call(OK, 0, now)
		pattern = append(pattern, ok)
		if ok {
			admitted[(now-start)/time.Second]++
		}
	}
	for second, n := range admitted {
		require.InDelta(t, 145+90*float64(second), n, 3, "second %d", second)
	}
	require.True(t, b.call(OK, 0, start+10*time.Second))
	require.True(t, b.closed())

	b, start = recovering()
	for i, want := range pattern {
		require.Equal(t, want, b.call(OK, 0, start+time.Duration(i)*time.Millisecond), "it draws no lots")
	}

	b, start = recovering()
	now := start + 5*time.Second
	b.call(OK, 0, now)
	for !b.call(Transient, 0, now) {
	}
	require.Equal(t, StateOpen, b.stateLocked(now), "a failure re-opens")
}

func TestBreakerRecoverySlowsDownWithASlowCall(t *testing.T) {
	r := newRamp(Recovery{Fraction: 0.25, Initial: 0.05, Min: time.Second, Max: 30 * time.Second}, 40*time.Second, 0)
	require.InDelta(t, 0.05, r.share(0), 1e-9)
	require.InDelta(t, 0.525, r.share(5*time.Second), 1e-9)
	r.halve(5 * time.Second)
	require.InDelta(t, 0.2625, r.share(5*time.Second), 1e-9)
	r.halve(5 * time.Second)
	r.halve(5 * time.Second)
	r.halve(5 * time.Second)
	require.InDelta(t, 0.05, r.share(5*time.Second), 1e-9, "not below where it began")
	require.InDelta(t, 15, r.end().Seconds(), 1e-6)
	require.InDelta(t, 1, r.share(time.Hour), 0)
}

func TestBreakerExplains(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	for range 40 {
		b.call(OK, 10*time.Millisecond, 0)
	}
	require.Equal(t, "closed; opens after 5 failures in a row (cold: 40 of 100 results towards its normal failure rate)", b.explain(0))

	now := b.warmUp(0)
	require.Equal(t, "closed; opens after 5 failures in a row, or at 5.0% of the last 30s if chance cannot explain it", b.explain(now))
	b.open(t, now)
	require.Equal(t, "open for 7s: 5 failures in a row", b.explain(now+7*time.Second))
	require.Equal(t, "half-open, 0 of 1 probes under way: 5 failures in a row", b.explain(now+15*time.Second))
	b.Isolate()
	require.Equal(t, "isolated until Reset", b.explain(now))

	b = timedBreaker(t, BreakerConfig{})
	now = b.warmUp(3)
	require.Regexp(t, `^closed; opens after 2\d failures in a row \(5 would be chance at its normal 33\.\d%\), or at 66\.\d% of the last 30s if chance cannot explain it$`, b.explain(now))

	b = timedBreaker(t, BreakerConfig{ConsecutiveFailures: Off})
	now = b.warmUp(100)
	for i := 0; b.closed(); i++ {
		now += 100 * time.Millisecond
		b.call([]Verdict{OK, Transient}[i%2], 10*time.Millisecond, now)
	}
	require.Regexp(t, `^open for 0s: \d+ of \d+ calls failed \(\d+\.\d%, normal 1\.\d%\), more than chance explains$`, b.explain(now))

	b = timedBreaker(t, BreakerConfig{ConstantsOnly: true, ConsecutiveFailures: Off, FailureRatio: 0.5, SlowThreshold: time.Second})
	require.Equal(t, "closed; opens at 50.0% of the last 30s, or when 50.0% of the last 30s take longer than 1s", b.explain(0))
	for range 20 {
		b.call(OK, 2*time.Second, 0)
	}
	require.Equal(t, "open for 0s: 20 of 20 calls took longer than 1s (100.0%, limit 50.0%)", b.explain(0))
	b.Reset()
	for range 20 {
		b.call(Transient, 0, 0)
	}
	require.Equal(t, "open for 0s: 20 of 20 calls failed (100.0%, limit 50.0%)", b.explain(0))
	b = timedBreaker(t, BreakerConfig{ConstantsOnly: true, ConsecutiveFailures: Off})
	require.Equal(t, "closed; never opens by a failure", b.explain(0))
}

func TestBreakerMeasured(t *testing.T) {
	var m Measured
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(100)
	b.measured(&m, now)
	require.Equal(t, Warm, m.NormalLatency.State)
	require.Equal(t, Warm, m.NormalFailureRate.State)
	require.InDelta(t, 0.01, m.NormalFailureRate.Value, 0.003)
	require.InDelta(t, 0.05, m.TripRatio.Value, 0.01)

	m = Measured{}
	timedBreaker(t, BreakerConfig{FailureRatio: 0.4}).measured(&m, 0)
	require.Equal(t, RateReading{State: Cold, MinSamples: 100}, m.NormalFailureRate)
	require.Equal(t, RateReading{Value: 0.4, State: Warm, MinSamples: 100}, m.TripRatio)

	m = Measured{}
	timedBreaker(t, BreakerConfig{ConstantsOnly: true}).measured(&m, 0)
	require.Equal(t, Measured{}, m)
}

// told calls f with each change, after the lock is gone.
type told func(kind EventKind, d time.Duration)

func (f told) breakerChanged(kind EventKind, d time.Duration) { f(kind, d) }

// cycle opens, half-opens and closes the breaker from now on, telling to, and returns when it ends.
func (b *Breaker) cycle(to subscriber, now time.Duration) time.Duration {
	for b.closed() {
		l, _, _ := b.allow(now, to)
		l.done(Transient, 0, now, to)
	}
	now = time.Duration(b.retryAt.Load())
	for range 2 {
		l, _, _ := b.allow(now, to)
		l.done(OK, 0, now, to)
	}
	return now
}

// BR-034
func TestBreakerListenerMayAskAndCallTheBreaker(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	var kinds []EventKind
	now := time.Duration(0)
	to := told(func(kind EventKind, _ time.Duration) {
		kinds = append(kinds, kind)
		b.Stats()
		b.State()
		b.explain(now)
		l, _, _ := b.allow(now, nil)
		l.done(Permanent, 0, now, nil)
	})
	for range 1000 {
		now = b.cycle(to, now)
	}
	want := []EventKind{EventBreakerOpened, EventBreakerHalfOpened, EventBreakerClosed}
	require.Equal(t, slices.Repeat(want, 1000), kinds)
}

// BR-034: while one listener sleeps, other calls are decided.
func TestBreakerSlowListenerHoldsNobodyUp(t *testing.T) {
	b := timedBreaker(t, BreakerConfig{})
	asleep, wake := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var kinds []EventKind
	to := told(func(kind EventKind, _ time.Duration) {
		mu.Lock()
		first := len(kinds) == 0
		kinds = append(kinds, kind)
		mu.Unlock()
		if first {
			close(asleep)
			<-wake
		}
	})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for range 5 {
			l, _, _ := b.allow(0, to)
			l.done(Transient, 0, 0, to)
		}
	}()
	<-asleep
	for range 100 {
		_, _, ok := b.allow(0, to)
		require.False(t, ok)
	}
	b.Reset()
	b.cycle(to, 0) // its news wait for the sleeper, it does not
	mu.Lock()
	require.Len(t, kinds, 1)
	mu.Unlock()
	close(wake)
	<-finished
	require.Equal(t, []EventKind{EventBreakerOpened, EventBreakerOpened, EventBreakerHalfOpened, EventBreakerClosed}, kinds)
}

func TestBreakerListenerThatNeverReturnsLosesNoNews(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("listener") }, "goexit": runtime.Goexit} {
		b := timedBreaker(t, BreakerConfig{})
		var kinds []EventKind
		to := told(func(kind EventKind, _ time.Duration) {
			kinds = append(kinds, kind)
			if kind == EventBreakerOpened {
				l, _, _ := b.allow(time.Hour, told(func(k EventKind, _ time.Duration) { kinds = append(kinds, k) }))
				l.done(Permanent, 0, time.Hour, nil)
				leave()
			}
		})
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			defer func() { _ = recover() }()
			for range 5 {
				l, _, _ := b.allow(0, to)
				l.done(Transient, 0, 0, to)
			}
		}()
		<-finished
		require.Equal(t, []EventKind{EventBreakerOpened, EventBreakerHalfOpened}, kinds, name)
		b.Reset()
		kinds = nil
		b.cycle(told(func(k EventKind, _ time.Duration) { kinds = append(kinds, k) }), 2*time.Hour)
		require.Len(t, kinds, 3, name)
	}
}
