package quantile_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience/internal/quantile"
)

func record(t *quantile.Term, n int, value, now time.Duration) {
	for range n {
		t.Record(value, now)
	}
}

func requireWarm(t *testing.T, term *quantile.Term, want, now time.Duration) {
	t.Helper()
	value, warm := term.Value(now)
	require.True(t, warm)
	require.InEpsilon(t, float64(want), float64(value), 0.05)
}

func requireCold(t *testing.T, term *quantile.Term, now time.Duration) {
	t.Helper()
	value, warm := term.Value(now)
	require.False(t, warm)
	require.Zero(t, value)
}

func TestATermTurnsWarmWithTheVerySampleThatCompletesIt(t *testing.T) {
	for _, minSamples := range []int{1, 2, 20, 64, 65, 1000, 1001} {
		term := quantile.NewTerm(span, 0.95, minSamples)
		for range minSamples {
			requireCold(t, term, 0)
			term.Record(10*time.Millisecond, 0)
		}
		requireWarm(t, term, 10*time.Millisecond, 0)
	}
}

func TestATermWithoutSamplesIsCold(t *testing.T) {
	for _, minSamples := range []int{-1, 0, 1} {
		term := quantile.NewTerm(span, 0.95, minSamples)
		requireCold(t, term, 0)
		term.Record(time.Second, 0)
		requireWarm(t, term, time.Second, 0)
	}
}

// Asked at every tick, the answers come from the cache as often as can be.
func TestATermTurnsColdSoonAfterItsSamplesHaveExpired(t *testing.T) {
	const tick = time.Second / 8
	term := quantile.NewTerm(span, 0.95, 20)
	record(term, 1000, 10*time.Millisecond, 0)
	var warmUntil time.Duration
	for now := time.Duration(0); now < 2*span; now += tick {
		if _, warm := term.Value(now); warm {
			warmUntil = now
		}
	}
	require.GreaterOrEqual(t, warmUntil, 3*span/4)
	require.Less(t, warmUntil, span+span/64)
}

func TestUnderSixtyFourSamplesAValueIsAlwaysFresh(t *testing.T) {
	term := quantile.NewTerm(span, 1, 1)
	for i := range 63 {
		value := time.Duration(i+1) * time.Second
		term.Record(value, 0)
		requireWarm(t, term, value, 0)
	}
}

func TestAValueIsAtMostOneSixtyFourthOfItsSamplesOld(t *testing.T) {
	term := quantile.NewTerm(span, 1, 20)
	record(term, 6400, time.Millisecond, 0)
	requireWarm(t, term, time.Millisecond, 0)

	record(term, 100, time.Second, 0)
	requireWarm(t, term, time.Millisecond, 0)
	term.Record(time.Second, 0)
	requireWarm(t, term, time.Second, 0)
}

func TestAValueIsAtMostOneSixtyFourthOfTheSpanOld(t *testing.T) {
	for _, direction := range []time.Duration{1, -1} {
		term := quantile.NewTerm(span, 1, 20)
		record(term, 6400, time.Millisecond, time.Hour)
		requireWarm(t, term, time.Millisecond, time.Hour)
		term.Record(time.Second, time.Hour)
		requireWarm(t, term, time.Millisecond, time.Hour+direction*(span/64-1))
		requireWarm(t, term, time.Second, time.Hour+direction*span/64)
	}
}

func TestReadingIsFreshAndTellsAColdTermToo(t *testing.T) {
	term := quantile.NewTerm(span, 1, 20)
	value, samples := term.Reading(0)
	require.Zero(t, value)
	require.Zero(t, samples)

	record(term, 5, time.Millisecond, 0)
	value, samples = term.Reading(0)
	require.InEpsilon(t, float64(time.Millisecond), float64(value), 0.05)
	require.Equal(t, 5, samples)

	record(term, 6395, time.Millisecond, 0)
	term.Value(0)
	term.Record(time.Second, 0)
	value, samples = term.Reading(0)
	require.InEpsilon(t, float64(time.Second), float64(value), 0.05)
	require.Equal(t, 6401, samples)
}

func TestATermGoesOnAfterAJumpFarAheadAndBack(t *testing.T) {
	const years = 30 * 365 * 24 * time.Hour
	term := quantile.NewTerm(span, 0.5, 20)
	record(term, 20, time.Millisecond, 0)
	requireWarm(t, term, time.Millisecond, 0)
	requireCold(t, term, years)
	requireWarm(t, term, time.Millisecond, 0)
	record(term, 20, time.Second, years)
	requireWarm(t, term, time.Second, years)
	requireCold(t, term, span)
	record(term, 20, time.Minute, span)
	requireWarm(t, term, time.Minute, span)
}

// Whatever the cache holds and whoever fills it meanwhile, a sample whose
// Record has returned is one that Value knows when it decides between cold
// and warm.
func TestATermTurnsWarmWhileOthersAsk(t *testing.T) {
	var current atomic.Pointer[quantile.Term]
	current.Store(quantile.NewTerm(span, 0.5, 1))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				current.Load().Value(0)
			}
		})
	}
	defer wg.Wait()
	defer stop.Store(true)
	for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
		term := quantile.NewTerm(span, 0.5, 1)
		current.Store(term)
		term.Record(time.Millisecond, 0) // makes the step first, which takes a while
		requireWarm(t, term, time.Millisecond, 0)
	}
}

// Two goroutines whose clocks are more than a window apart take the cache
// from each other all the time. Neither may see a part of what the other has
// written.
func TestACachedValueIsNeverMixedFromTwo(t *testing.T) {
	term := quantile.NewTerm(span, 0.5, 1)
	start := time.Now()
	var wg sync.WaitGroup
	for value, now := range map[time.Duration]time.Duration{
		time.Millisecond: 0,
		time.Second:      span + span/4,
	} {
		term.Record(value, now)
		wg.Go(func() {
			for time.Since(start) < 200*time.Millisecond {
				for range 1000 {
					if got, _ := term.Value(now); got < value*9/10 || got > value*11/10 {
						t.Errorf("%v instead of %v", got, value)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
