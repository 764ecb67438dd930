package quantile_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience/internal/quantile"
)

const span = 4 * time.Minute

func TestAnEmptyWindowReadsNothing(t *testing.T) {
	w := quantile.New(span)
	value, samples := w.Quantile(0.5, 0)
	require.Zero(t, value)
	require.Zero(t, samples)
	value, above, samples := w.Split(0.5, 3, 0)
	require.Zero(t, value)
	require.Zero(t, above)
	require.Zero(t, samples)
	require.Zero(t, w.Count(0))
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	w := quantile.New(span)
	for i := range 20 {
		w.Record(time.Duration(math.Pow(2, float64(i)))*time.Millisecond, 0)
	}
	for q, rank := range map[float64]int{0: 1, 0.05: 1, 0.051: 2, 0.5: 10, 0.95: 19, 0.96: 20, 1: 20} {
		value, samples := w.Quantile(q, 0)
		require.Equal(t, 20, samples)
		require.InEpsilon(t, math.Pow(2, float64(rank-1))*1e6, float64(value), 0.05, "q %v", q)
	}
}

func TestSplitCountsAboveAMultipleOfTheQuantile(t *testing.T) {
	w := quantile.New(span)
	for range 90 {
		w.Record(10*time.Millisecond, 0)
	}
	for range 7 {
		w.Record(25*time.Millisecond, 0)
	}
	for range 3 {
		w.Record(40*time.Millisecond, 0)
	}
	median, above, samples := w.Split(0.5, 3, 0)
	require.InEpsilon(t, float64(10*time.Millisecond), float64(median), 0.05)
	require.Equal(t, 3, above)
	require.Equal(t, 100, samples)

	_, above, _ = w.Split(0.5, math.MaxFloat64, 0)
	require.Zero(t, above)
}

// The property that a reader of the documentation relies on, without regard
// to how the steps are kept: nothing younger than 3/4 of the span is missing,
// nothing of the span's age is there, and what leaves does so in four parts.
func TestTheWindowSlidesInFourSteps(t *testing.T) {
	w := quantile.New(span)
	const perSecond = 10
	for s := range 1000 {
		now := time.Duration(s) * time.Second
		for range perSecond {
			w.Record(time.Millisecond, now)
		}
		if now < span {
			continue
		}
		n := w.Count(now)
		require.GreaterOrEqual(t, n, perSecond*180)
		require.LessOrEqual(t, n, perSecond*240)
	}

	var levels []int
	for s := 1000; s < 1300; s++ {
		n := w.Count(time.Duration(s) * time.Second)
		if len(levels) == 0 || levels[len(levels)-1] != n {
			levels = append(levels, n)
		}
	}
	require.Equal(t, []int{2200, 1600, 1000, 400, 0}, levels)
}

func TestTheWindowFollowsAChange(t *testing.T) {
	w := quantile.New(span)
	now := time.Duration(0)
	for ; now < span; now += time.Second {
		w.Record(time.Millisecond, now)
	}
	for ; now < 2*span; now += time.Second {
		w.Record(time.Second, now)
	}
	value, _ := w.Quantile(0.01, now)
	require.InEpsilon(t, float64(time.Second), float64(value), 0.05)
}

func TestAClockThatStandsStillKeepsEverything(t *testing.T) {
	w := quantile.New(span)
	for i := 1; i <= 10_000; i++ {
		w.Record(time.Millisecond, -time.Hour)
		if i%1000 == 0 {
			require.Equal(t, i, w.Count(-time.Hour))
		}
	}
}

func TestAClockThatStepsBackThreeQuartersOfTheSpanLosesNothing(t *testing.T) {
	for _, back := range []time.Duration{1, time.Second, time.Minute, 3 * time.Minute} {
		w := quantile.New(span)
		for range 50 {
			w.Record(time.Millisecond, time.Hour)
		}
		earlier := time.Hour - back
		require.Equal(t, 50, w.Count(earlier), back)
		for range 50 {
			w.Record(time.Millisecond, earlier)
		}
		require.Equal(t, 100, w.Count(earlier), back)
		require.Equal(t, 100, w.Count(time.Hour), back)
	}
}

func TestAClockThatStepsBackFartherBeginsAnew(t *testing.T) {
	w := quantile.New(span)
	for range 50 {
		w.Record(time.Millisecond, 10*time.Hour)
	}
	for _, now := range []time.Duration{9 * time.Hour, 0, -30 * 365 * 24 * time.Hour} {
		require.Zero(t, w.Count(now))
		for n := 1; n <= 10; n++ {
			w.Record(time.Millisecond, now)
			require.Equal(t, n, w.Count(now))
		}
		require.Zero(t, w.Count(now+span), "it slides at the earlier time as well")
	}
}

func TestAJumpFarAheadEmptiesTheWindowAndTheWayBackCostsOneStep(t *testing.T) {
	const years = 30 * 365 * 24 * time.Hour
	w := quantile.New(span)
	for s := range 240 {
		w.Record(time.Millisecond, time.Duration(s)*time.Second)
	}
	require.Equal(t, 240, w.Count(239*time.Second))
	require.Zero(t, w.Count(years))
	w.Record(time.Millisecond, years)
	require.Equal(t, 1, w.Count(years))

	require.Equal(t, 180, w.Count(239*time.Second), "back, one step is gone")
	for s := 240; s < 480; s++ {
		w.Record(time.Millisecond, time.Duration(s)*time.Second)
	}
	require.Equal(t, 240, w.Count(479*time.Second), "and none a span later")
}

func TestExtremeTimesAndSpansDoNotPanic(t *testing.T) {
	for _, span := range []time.Duration{1, 2, 3, 4, 5, math.MaxInt64} {
		w := quantile.New(span)
		for _, now := range []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64} {
			w.Record(math.MaxInt64, now)
			w.Record(math.MinInt64, now)
			require.GreaterOrEqual(t, w.Count(now), 2)
		}
	}
}

func TestEverySampleCountsWhenManyMeetAtTheChangeOfAStep(t *testing.T) {
	const goroutines, each = 64, 100
	w := quantile.New(span)
	for round := range 50 {
		now := time.Duration(round) * (7*span + span/4) // an idle gap, and the next place in the ring
		start := make(chan struct{})
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				<-start
				for i := range each {
					w.Record(time.Duration(g*i)*time.Microsecond, now)
				}
			})
		}
		close(start)
		wg.Wait()
		require.Equal(t, goroutines*each, w.Count(now))
	}
}

// Steps change all the time and goroutines disagree about the time: nothing
// may crash or be reported by the race detector, and readings stay sane.
func TestManyRecordAndReadWhileTheStepsChange(t *testing.T) {
	w := quantile.New(span)
	term := quantile.NewTerm(span, 0.9, 20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				now := time.Duration(i+g*3)*span/50 - time.Hour
				w.Record(time.Millisecond, now)
				term.Record(time.Millisecond, now)
				if i%16 == g {
					median, above, samples := w.Split(0.5, 3, now)
					if above != 0 || samples < 0 || median > 2*time.Millisecond {
						t.Errorf("median %v, %d above, %d samples", median, above, samples)
					}
				}
				if value, warm := term.Value(now); warm != (value != 0) || value > 2*time.Millisecond {
					t.Errorf("value %v, warm %v", value, warm)
				}
			}
		})
	}
	wg.Wait()
}
