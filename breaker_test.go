package resilience_test

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience"
)

// admitted asks for a call that must be admitted.
func admitted(t testing.TB, b *resilience.Breaker) *resilience.Lease {
	t.Helper()
	l, err := b.Allow()
	require.NoError(t, err)
	return &l
}

func refusedBy(t testing.TB, b *resilience.Breaker) {
	t.Helper()
	_, err := b.Allow()
	require.ErrorIs(t, err, resilience.ErrBreakerOpen)
}

// untilHalfOpen sleeps until the breaker admits probes.
func untilHalfOpen(b *resilience.Breaker) { time.Sleep(b.Stats().RetryAfter) }

func TestBreakerRefusesNonsenseAllAtOnce(t *testing.T) {
	_, err := resilience.NewBreaker(resilience.BreakerConfig{
		ConsecutiveFailures: -2, FailureRatio: math.NaN(), SlowRatio: 1.5, MinCalls: -1, Window: time.Millisecond,
		OpenFor: -time.Second, Probes: 1001, ProbeSuccesses: -1, SlowThreshold: -1,
		Failures:  resilience.RelativeFailures{Multiple: math.Inf(1), MinSamples: -1, Floor: 1},
		SlowCalls: resilience.RelativeSlow{Multiple: 1, Quantile: math.NaN(), Window: 2 * time.Hour},
		Recovery:  resilience.Recovery{Fraction: 1, Initial: 2, Min: -1},
	})
	for _, text := range []string{
		"ConsecutiveFailures is -2", "FailureRatio is NaN", "SlowRatio is 1.5", "MinCalls is -1", "Window is 1ms, want 10ms to 1h0m0s",
		"OpenFor is -1s", "Probes is 1001, want 1 to 1000", "ProbeSuccesses is -1", "SlowThreshold is -1ns", "Failures.Multiple is +Inf",
		"Failures.MinSamples is -1", "Failures.Floor is 1", "SlowCalls.Multiple is 1, want more than 1", "SlowCalls.Quantile is NaN",
		"SlowCalls.Window is 2h0m0s", "Recovery.Initial is 2", "Recovery.Min is -1ns",
	} {
		require.ErrorContains(t, err, text)
	}
}

func TestBreakerRefusesContradictions(t *testing.T) {
	for text, c := range map[string]resilience.BreakerConfig{
		"MaxOpenFor is 1s":                {OpenFor: 2 * time.Second, MaxOpenFor: time.Second},
		"Recovery.Max is 1s":              {Recovery: resilience.Recovery{Fraction: 1, Min: 2 * time.Second, Max: time.Second}},
		"Recovery.Fraction is 0":          {Recovery: resilience.Recovery{Initial: 0.1}},
		"false beside Failures":           {ConstantsOnly: true, Failures: resilience.RelativeFailures{Multiple: 4}},
		"false beside SlowCalls":          {ConstantsOnly: true, SlowCalls: resilience.RelativeSlow{MinSamples: 50}},
		"other fields of Failures":        {Failures: resilience.RelativeFailures{Multiple: resilience.Off, Floor: 0.1}},
		"other fields of SlowCalls":       {SlowCalls: resilience.RelativeSlow{Multiple: resilience.Off, Quantile: 0.9}},
		"Failures.Window is 1m0s":         {Failures: resilience.RelativeFailures{Window: time.Minute}},
		"SlowCalls.Window is 30s":         {SlowCalls: resilience.RelativeSlow{Window: 30 * time.Second}},
		"an incident becomes normal befo": {Window: 5 * time.Minute, Failures: resilience.RelativeFailures{Window: 5 * time.Minute}},
	} {
		_, err := resilience.NewBreaker(c)
		require.ErrorContains(t, err, text)
	}
}

// What the library supplied itself is no reason to refuse: the message names a field that was written, and what it says is
// accepted there.
func TestBreakerNamesAWrittenFieldWhereNoBaselineIsLongEnough(t *testing.T) {
	type config = resilience.BreakerConfig
	type failures = resilience.RelativeFailures
	type slow = resilience.RelativeSlow
	for text, c := range map[string]struct{ refused, accepted config }{
		"Failures.Multiple is 100, want at most 60 (30m0s / Window), or an": {
			config{Failures: failures{Multiple: 100}}, config{Failures: failures{Multiple: 60}},
		},
		"Failures.Multiple is 5, want at most 4.28 (30m0s / Window)": {
			config{Window: 7 * time.Minute, Failures: failures{Multiple: 5}},
			config{Window: 7 * time.Minute, Failures: failures{Multiple: 4.28}},
		},
		"BreakerConfig.Window is 30m0s, want at most 15m0s (30m0s / Failures.Multiple)": {
			config{Window: 30 * time.Minute, Failures: failures{Multiple: 2}},
			config{Window: 15 * time.Minute, Failures: failures{Multiple: 2}},
		},
		"BreakerConfig.Window is 10m0s, want at most 6m0s (30m0s / Failures.Multiple)": {
			config{Window: 10 * time.Minute, Failures: failures{Window: time.Hour}},
			config{Window: 6 * time.Minute, Failures: failures{Window: time.Hour}},
		},
		"BreakerConfig.Window is 40m0s, want at most 30m0s (30m0s x SlowCalls.Quantile / SlowRatio)": {
			config{Window: 40 * time.Minute, SlowCalls: slow{Multiple: 4}},
			config{Window: 30 * time.Minute, SlowCalls: slow{Multiple: 4}},
		},
		"BreakerConfig.Window is 10m0s, want at most 6m0s (": {
			config{Window: 10 * time.Minute, SlowCalls: slow{Quantile: 0.1}},
			config{Window: 6 * time.Minute, SlowCalls: slow{Quantile: 0.1}},
		},
		"BreakerConfig.Window is 31m0s, want at most 30m0s (": {
			config{Window: 31 * time.Minute, SlowCalls: slow{Window: time.Hour}},
			config{Window: 30 * time.Minute, SlowCalls: slow{Window: time.Hour}},
		},
		"BreakerConfig.Window is 20m0s, want at most 15m0s (": {
			config{Window: 20 * time.Minute, SlowRatio: 1}, config{Window: 15 * time.Minute, SlowRatio: 1},
		},
	} {
		_, err := resilience.NewBreaker(c.refused)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "\n")
		_, err = resilience.NewBreaker(c.accepted)
		require.NoError(t, err, text)
	}
}

func TestBreakerClockThatIsANilPointerIsRefused(t *testing.T) {
	_, err := resilience.NewBreaker(resilience.BreakerConfig{Clock: (*clock.Mock)(nil)})
	require.ErrorContains(t, err, "BreakerConfig.Clock is a nil pointer, want a clock, or nothing")
}

func TestBreakerZeroLeaseAndSecondDoneDoNothing(t *testing.T) {
	var zero resilience.Lease
	zero.Done(resilience.Transient, time.Second)

	b := breakerOf(t, resilience.BreakerConfig{})
	l := admitted(t, b)
	for range 10 {
		l.Done(resilience.Transient, time.Millisecond)
	}
	require.Equal(t, 1, b.Stats().Failures)
	require.Equal(t, resilience.StateClosed, b.State())
}

// BR-025, BR-037: what the caller did wrong, or gave up, says nothing about the dependency.
func TestBreakerNeutralEndsAreNoEvidence(t *testing.T) {
	b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 3})
	for _, v := range []resilience.Verdict{resilience.Permanent, resilience.Throttled, resilience.Limited, resilience.Throttled.After(time.Second)} {
		for range 100 {
			admitted(t, b).Done(v, 5*time.Millisecond)
		}
	}
	require.Zero(t, b.Stats().Calls)
	for range 2 {
		admitted(t, b).Done(resilience.Transient, time.Millisecond)
		admitted(t, b).Done(resilience.Permanent, time.Millisecond)
	}
	require.Equal(t, resilience.StateClosed, b.State())
	admitted(t, b).Done(resilience.Transient.After(time.Second), time.Millisecond)
	require.Equal(t, resilience.StateOpen, b.State(), "a neutral end does not break the row")
}

// BR-027: a lease settled in a defer gives the slot back, and a panic is no evidence.
func TestBreakerProbePanicDoesNotLoseTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, leave := range map[string]func(){"panic": func() { panic("v") }, "goexit": runtime.Goexit} {
			b := tripped(t, breakerOf(t, resilience.BreakerConfig{ProbeSuccesses: 1}))
			untilHalfOpen(b)
			done := make(chan any)
			go func() {
				var value any
				defer func() { done <- value }()
				defer func() { value = recover() }()
				verdict := resilience.Permanent
				l := admitted(t, b)
				defer func() { l.Done(verdict, 0) }()
				refusedBy(t, b)
				leave()
			}()
			value := <-done
			if name == "panic" {
				require.Equal(t, "v", value)
			}
			require.Equal(t, resilience.StateHalfOpen, b.State(), name)
			admitted(t, b).Done(resilience.OK, 0)
			require.Equal(t, resilience.StateClosed, b.State(), name)
		}
	})
}

func TestBreakerProbeThatNeverReportsIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{OpenFor: 10 * time.Second, ProbeSuccesses: 1}))
		untilHalfOpen(b)
		lost := admitted(t, b)
		time.Sleep(10*time.Second - 1)
		refusedBy(t, b)
		time.Sleep(time.Nanosecond)
		second := admitted(t, b)
		lost.Done(resilience.Transient, 10*time.Second)
		require.Equal(t, resilience.StateHalfOpen, b.State(), "its late result is ignored")
		refusedBy(t, b)
		second.Done(resilience.OK, 0)
		require.Equal(t, resilience.StateClosed, b.State())
	})
}

// BR-028
func TestBreakerNeutralProbeReturnsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{ProbeSuccesses: 1}))
		untilHalfOpen(b)
		for _, v := range []resilience.Verdict{resilience.Permanent, resilience.Throttled, resilience.Limited} {
			admitted(t, b).Done(v, 0)
			require.Equal(t, resilience.StateHalfOpen, b.State())
		}
		admitted(t, b).Done(resilience.OK, 0)
		require.Equal(t, resilience.StateClosed, b.State())
	})
}

// BR-030
func TestBreakerResultsOfAnEarlierStateDecideNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1, ProbeSuccesses: 1, OpenFor: 10 * time.Second})
		first, second, third := admitted(t, b), admitted(t, b), admitted(t, b)
		time.Sleep(time.Second)
		admitted(t, b).Done(resilience.Transient, 0)
		time.Sleep(2 * time.Second)
		first.Done(resilience.OK, 3*time.Second)
		require.Equal(t, resilience.StateOpen, b.State(), "an old success does not close it")
		untilHalfOpen(b)
		probe := admitted(t, b)
		time.Sleep(time.Second)
		second.Done(resilience.Transient, 0)
		require.Equal(t, resilience.StateHalfOpen, b.State(), "an old failure does not re-open it")
		refusedBy(t, b)
		third.Done(resilience.OK, 0)
		require.Equal(t, resilience.StateHalfOpen, b.State())
		refusedBy(t, b)
		probe.Done(resilience.OK, 4*time.Second)
		require.Equal(t, resilience.StateClosed, b.State())
		require.Zero(t, b.Stats().Calls)
	})
}

// BR-032: a thousand goroutines at the moment the open state ends.
func TestBreakerHalfOpenLetsNoHerdThrough(t *testing.T) {
	repeats := 100
	if testing.Short() {
		repeats = 10
	}
	for _, c := range []struct {
		probes, successes int
		v                 resilience.Verdict
		after             resilience.BreakerState
	}{
		{1, 1, resilience.Transient, resilience.StateOpen},
		{3, 1, resilience.Transient, resilience.StateOpen},
		{3, 3, resilience.OK, resilience.StateClosed},
	} {
		for range repeats {
			synctest.Test(t, func(t *testing.T) {
				b := tripped(t, breakerOf(t, resilience.BreakerConfig{Probes: c.probes, ProbeSuccesses: c.successes}))
				untilHalfOpen(b)
				var calls atomic.Int32
				var herd sync.WaitGroup
				for range 1000 {
					herd.Go(func() {
						l, err := b.Allow()
						if err != nil {
							return
						}
						calls.Add(1)
						time.Sleep(time.Second)
						l.Done(c.v, time.Second)
					})
				}
				herd.Wait()
				require.Equal(t, int32(c.probes), calls.Load())
				require.Equal(t, c.after, b.State())
				if c.after == resilience.StateOpen {
					require.Zero(t, time.Since(b.Stats().Since), "open since the probe failed")
				}
			})
		}
	}
}

// BR-032: more successes are needed than may probe at once.
func TestBreakerAdmitsFurtherProbesAsEarlierOnesFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{Probes: 2, ProbeSuccesses: 5}))
		untilHalfOpen(b)
		first, second := admitted(t, b), admitted(t, b)
		refusedBy(t, b)
		for range 3 {
			first.Done(resilience.OK, 0)
			first = admitted(t, b)
			refusedBy(t, b)
		}
		second.Done(resilience.OK, 0)
		require.Equal(t, resilience.StateHalfOpen, b.State())
		first.Done(resilience.OK, 0)
		require.Equal(t, resilience.StateClosed, b.State())
	})
}

// A probe that is still under way holds no slot of the next half-open state.
func TestBreakerForgetsTheProbesOfAnEarlierHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{Probes: 2, OpenFor: 10 * time.Second, MaxOpenFor: 10 * time.Second}))
		for range 10 {
			untilHalfOpen(b)
			admitted(t, b)
			admitted(t, b).Done(resilience.Transient, 0)
			require.Equal(t, resilience.StateOpen, b.State())
		}
	})
}

// BR-033
func TestBreakerRefusalsAndLateFailuresDoNotStretchTheOpenState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 5, ProbeSuccesses: 1, OpenFor: 10 * time.Second})
		var late []*resilience.Lease
		for range 5 {
			late = append(late, admitted(t, b))
		}
		tripped(t, b)
		wait := b.Stats().RetryAfter
		half := time.Now().Add(wait)
		for range 1000 {
			time.Sleep(wait / 1001)
			refusedBy(t, b)
		}
		for _, l := range late {
			l.Done(resilience.Transient, 9*time.Second)
		}
		require.Equal(t, time.Until(half), b.Stats().RetryAfter)
		untilHalfOpen(b)
		require.Equal(t, resilience.StateHalfOpen, b.State())
		admitted(t, b).Done(resilience.OK, 0)
		require.Equal(t, resilience.StateClosed, b.State())
		require.Zero(t, b.Stats().Calls)
		for range 4 {
			admitted(t, b).Done(resilience.Transient, 0)
		}
		require.Equal(t, resilience.StateClosed, b.State())
		require.Equal(t, 4, b.Stats().Failures)
	})
}

// BR-036, through the breaker: a share is exact at every per cent.
func TestBreakerRatioIsExact(t *testing.T) {
	for p := 1; p <= 100; p++ {
		b := breakerOf(t, resilience.BreakerConfig{
			ConsecutiveFailures: resilience.Off, ConstantsOnly: true, FailureRatio: float64(p) / 100, MinCalls: 100,
		})
		for range 100 - p {
			admitted(t, b).Done(resilience.OK, 0)
		}
		for range p {
			require.Equal(t, resilience.StateClosed, b.State(), "%d %%", p)
			admitted(t, b).Done(resilience.Transient, 0)
		}
		require.Equal(t, resilience.StateOpen, b.State(), "%d %%", p)
	}
}

// BR-038: an idle gap, and many goroutines at the instant after it.
func TestBreakerWindowLosesNothingAfterAnIdleGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: resilience.Off, Window: 10 * time.Second})
		for _, v := range []resilience.Verdict{resilience.Transient, resilience.OK} {
			time.Sleep(time.Minute)
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for range 100 {
						admitted(t, b).Done(v, 0)
					}
				})
			}
			all.Wait()
			require.Equal(t, 6400, b.Stats().Calls)
			time.Sleep(11 * time.Second)
			require.Zero(t, b.Stats().Calls)
		}
	})
}

func TestBreakerIsolateHoldsUntilReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		for range 200 {
			admitted(t, b).Done(resilience.OK, 10*time.Millisecond)
		}
		under := admitted(t, b)
		require.Equal(t, 200, b.Stats().Calls)
		b.Isolate()
		require.Zero(t, b.Stats().Calls, "only a closed one has a window")
		time.Sleep(24 * time.Hour)
		refusedBy(t, b)
		under.Done(resilience.OK, time.Hour)
		require.Equal(t, resilience.StateIsolated, b.State())
		b.Reset()
		s := b.Stats()
		require.Equal(t, resilience.StateClosed, s.State)
		require.Zero(t, s.Calls)
		require.True(t, s.Warm, "what is normal stays")
		admitted(t, b).Done(resilience.OK, 0)
	})
}

func TestBreakerStatsAreOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{FailureRatio: 0.9})
		begin := time.Now()
		time.Sleep(time.Second)
		for range 300 {
			admitted(t, b).Done(resilience.OK, 10*time.Millisecond)
		}
		admitted(t, b).Done(resilience.Transient, 0)
		admitted(t, b).Done(resilience.Transient, 0)
		s := b.Stats()
		require.InEpsilon(t, 10*time.Millisecond, s.NormalLatency, 0.05)
		require.True(t, begin.Equal(s.Since))
		s.NormalLatency, s.Since = 0, time.Time{}
		require.Equal(t, resilience.BreakerStats{Calls: 302, Failures: 2, Consecutive: 2, ConsecutiveLimit: 5, TripRatio: 0.05, Warm: true}, s)
		tripped(t, b)
		s = b.Stats()
		require.Equal(t, resilience.StateOpen, s.State)
		require.True(t, time.Now().Equal(s.Since))
		half := s.Since.Add(s.RetryAfter)
		time.Sleep(time.Minute)
		s = b.Stats()
		require.Equal(t, resilience.StateHalfOpen, s.State, "it follows from the clock")
		require.True(t, half.Equal(s.Since))
		require.Zero(t, s.RetryAfter)
	})
}

// Everything at once, for the race detector: at the end nothing is held and the breaker still works.
func TestBreakerUnderRacingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{Probes: 2, OpenFor: 10 * time.Millisecond, Recovery: resilience.Recovery{Fraction: 0.1, Min: time.Millisecond}})
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				for j := range 500 {
					l, err := b.Allow()
					if err != nil {
						time.Sleep(time.Millisecond)
						continue
					}
					if j%50 == 0 {
						time.Sleep(time.Millisecond)
					}
					l.Done([]resilience.Verdict{resilience.OK, resilience.OK, resilience.Transient, resilience.Permanent}[(i+j/20)%4], time.Millisecond)
					if i == 0 && j%100 == 99 {
						b.Reset()
					}
					b.Stats()
				}
			})
		}
		all.Wait()
		time.Sleep(time.Hour)
		for range 10 {
			if l, err := b.Allow(); err == nil {
				l.Done(resilience.OK, 0)
			}
			time.Sleep(time.Minute)
		}
		require.Equal(t, resilience.StateClosed, b.State())
	})
}

func TestBreakerStateNames(t *testing.T) {
	for s, name := range []string{"closed", "open", "half-open", "recovering", "isolated", "unknown"} {
		require.Equal(t, name, resilience.BreakerState(s).String())
	}
}
