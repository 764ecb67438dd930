package limit

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/measuredgo/resilience/internal/limit/limitsim"
	"github.com/stretchr/testify/require"
)

// feed is a caller who keeps a core busy: as many calls in flight as it allows, all of the same latency.
type feed struct {
	*Core
	now time.Duration
}

// round feeds samples until a round is complete, and returns the limit then.
func (f *feed) round(latency time.Duration, timeouts int) float64 {
	before := f.rounds
	for f.rounds == before {
		f.now += latency / time.Duration(f.Effective())
		if timeouts > 0 && f.tally.n < timeouts {
			f.Timeout(latency, f.Effective(), f.now)
		} else {
			f.Success(latency, f.Effective(), f.now)
		}
	}
	return f.Limit()
}

// BR-052 (a)
func TestTotalFailureShrinksTheLimitInEachRound(t *testing.T) {
	f := feed{Core: New(Config{Initial: 100, Min: 1, Max: 200})}
	last := f.Limit()
	for range 10 {
		limit := f.round(time.Second, math.MaxInt)
		require.Less(t, limit, last)
		last = limit
	}
	require.LessOrEqual(t, last, 40.0)
	require.LessOrEqual(t, f.Effective(), 40)
}

// BR-052 (b)
func TestOneTimeoutInARoundForbidsGrowth(t *testing.T) {
	f := feed{Core: New(Config{Initial: 100, Min: 1, Max: 200})}
	for range 20 {
		f.round(base, 0)
	}
	before := f.Limit()
	require.InDelta(t, 0.9*before, f.round(base, 1), 0.001)
}

// BR-052 (c)
func TestLimitRestsAtTheMaximum(t *testing.T) {
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 40})}
	for f.Limit() < 40 {
		f.round(base, 0)
	}
	for range 100 {
		require.Equal(t, 40.0, f.round(base, 0))
		require.Equal(t, 40, f.Effective())
	}
}

// BR-052 (d)
func TestSingleCallerIsAdmittedHoweverSlowItBecomes(t *testing.T) {
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 200})}
	one := func(latency time.Duration) {
		f.now += latency
		f.Success(latency, 1, f.now)
		require.GreaterOrEqual(t, f.Effective(), 1)
	}
	for range 1000 {
		one(base)
	}
	for end := f.now + time.Hour; f.now < end; {
		one(1000 * base)
	}
	for range 1000 {
		one(base)
	}
	require.Equal(t, 20.0, f.Limit(), "a lone caller is no load, and no load does not move the limit")

	for range 100 {
		f.round(base, 0)
	}
	require.Greater(t, f.Limit(), 20.0)
}

// The same with a caller who fills the limit, so that it does shrink.
func TestLimitRecoversFromTheMinimum(t *testing.T) {
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 200})}
	for range 20 {
		f.round(base, 0)
	}
	for range 10 {
		f.round(base, 1)
	}
	for f.Limit() > 1 {
		f.round(time.Second, 1)
	}
	require.Equal(t, 1, f.Effective())
	for range 200 {
		f.round(base, 0)
	}
	require.Greater(t, f.Limit(), 20.0)
}

func TestSamplesOfThePauseAreLeftOut(t *testing.T) {
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 200})}
	f.round(base, 1) // cuts, and pauses for one latency
	f.Success(base, 1, f.now+base-1)
	require.Zero(t, f.tally.n)
	f.Success(base, 1, f.now+base)
	require.Equal(t, 1, f.tally.n)
}

func TestFirstSamplesAreDropped(t *testing.T) {
	c := New(Config{Initial: 20, Min: 1, Max: 200})
	for range 20 {
		c.Success(time.Millisecond, 20, base)
	}
	require.Zero(t, c.tally.n)
	c.Success(base, 20, base)
	require.Equal(t, 1, c.tally.n)
}

func TestCutIsNoDeeperThanDecrease(t *testing.T) {
	for decrease, least := range map[float64]float64{0: 0.7, 0.8: 0.8} {
		f := feed{Core: New(Config{Initial: 50, Min: 1, Max: 200, Decrease: decrease})}
		for range 10 {
			f.round(base, 0)
		}
		before := f.Limit()
		require.InDelta(t, least*before, f.round(4*base, 0), 1)
	}
}

func TestToleranceReplacesTheLawsOwn(t *testing.T) {
	grown := func(tolerance float64) bool {
		f := feed{Core: New(Config{Initial: 50, Min: 1, Max: 200, Tolerance: tolerance})}
		for range 10 {
			f.round(base, 0)
		}
		before := f.Limit()
		for range 5 {
			f.round(base*12/10, 0)
		}
		return f.Limit() > before
	}
	require.False(t, grown(0))
	require.True(t, grown(1))
}

func TestTrustFollowsTheOutcomeOfCuts(t *testing.T) {
	for name, c := range map[string]struct {
		latency, inFlight, want float64 // after a cut that was made at 100 ms and 40 in flight, with a baseline of 50 ms
	}{
		"as a queue does":           {50, 20, 0.6},
		"as far as the baseline":    {50, 10, 0.6},
		"better than expected":      {20, 20, 0.64},
		"not at all":                {100, 20, 0.4},
		"the wrong way":             {200, 20, 0.4},
		"half":                      {100 / math.Sqrt2, 20, 0.5},
		"too small a cut to see it": {100, 38, 0.5},
	} {
		core := New(Config{Initial: 20, Min: 1, Max: 200})
		core.baseline = 50
		core.trial = trial{latency: 100, inFlight: 40, left: 2}
		r := round{latency: c.latency, inFlight: c.inFlight}
		core.learnTrust(r)
		require.Equal(t, 0.5, core.trust, "%s: two rounds tell, not one", name)
		core.learnTrust(r)
		require.InDelta(t, c.want, core.trust, 1e-9, name)
		core.learnTrust(r)
		require.InDelta(t, c.want, core.trust, 1e-9, "%s: once for each cut", name)
	}
}

func TestEpisodeOfCutsEnds(t *testing.T) {
	const young, old = 10 * time.Second, 40 * time.Second
	opened := episode{open: true, limit: 40, trust: 0.5, latency: 100, inFlight: 40}
	trusting := opened
	trusting.trust = 0.8
	for name, c := range map[string]struct {
		episode           episode
		now               time.Duration
		latency, inFlight float64 // now; the baseline is 50, the limit 10
		ends              bool
		baseline, limit   float64
	}{
		"not deep enough to tell":         {trusting, old, 100, 30, false, 50, 10},
		"the latency follows":             {trusting, old, 60, 20, false, 50, 10},
		"slower for good, with trust":     {trusting, young, 100, 20, true, 100, 30},
		"no trust, young":                 {opened, young, 100, 10, false, 50, 10},
		"no trust, old and deep":          {opened, old, 100, 10, true, 100 / 1.075, 30},
		"old and deep, but hardly slower": {opened, old, 75, 10, true, 75 / 1.1, 10},
		"old, but not deep":               {opened, old, 100, 20, true, 100 / 1.1, 10},
		"no episode":                      {episode{}, old, 100, 10, false, 50, 10},
	} {
		core := New(Config{Initial: 20, Min: 1, Max: 200})
		core.baseline, core.limit, core.episode, core.rounds = 50, 10, c.episode, 25
		r := round{latency: c.latency, inFlight: c.inFlight, tolerance: 0.2, now: c.now}
		core.up.add(6, r)
		require.Equal(t, c.ends, core.endEpisode(r), name)
		require.InDelta(t, c.baseline, core.baseline, 1e-9, name)
		require.InDelta(t, c.limit, core.limit, 1e-9, name)
		require.Equal(t, !c.ends && c.episode.open, core.episode.open, name)
		if name == "the latency follows" {
			require.Equal(t, []float64{60, 20}, []float64{core.episode.latency, core.episode.inFlight})
			require.Equal(t, 25, core.episode.round)
		}
	}
}

func TestDitherKeepsTheMeanOfSmallLimits(t *testing.T) {
	c := New(Config{Initial: 2, Min: 1, Max: 200, Seed: 1})
	c.limit = 2.3
	sum := 0
	const draws = 10_000
	for range draws {
		c.redraw()
		require.Contains(t, []int{2, 3}, c.Effective())
		sum += c.Effective()
	}
	require.InDelta(t, 2.3, float64(sum)/draws, 0.02)
}

func TestSameSeedSameRun(t *testing.T) {
	s := setting{law: &standard, Load: limitsim.Load{Model: limitsim.LogNormal, Capacity: 20, Callers: 100}}
	a, b := s.start(7, 2), s.start(7, 2)
	for second := range 60 {
		a.Run(time.Duration(second) * time.Second)
		b.Run(time.Duration(second) * time.Second)
		require.Equal(t, a.cores, b.cores)
	}
}

func TestClockThatStandsStillOrStepsBack(t *testing.T) {
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 200})}
	for i := range 1000 {
		f.Success(base, f.Effective(), -time.Duration(i)*time.Second)
	}
	require.Positive(t, f.rounds, "readings before the origin are readings")
	for range 1000 {
		f.Success(base, f.Effective(), 0)
	}

	f.now = time.Hour
	for range 50 {
		f.round(base, 0)
	}
	require.Greater(t, f.Limit(), 20.0)
}

func TestMemoryIsConstant(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Core{}), uintptr(640))
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := feed{Core: New(Config{Initial: 20, Min: 1, Max: 200})}
	require.Zero(t, testing.AllocsPerRun(1000, func() { f.round(base, 0) }))
}

func FuzzLimitStaysInItsRange(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		samples := make([]byte, 1100)
		for j := range samples {
			samples[j] = byte(r.Uint32())
			if j%11 >= 2+i%8 && j%11 < 10 {
				samples[j] = 0 // latencies of every order of magnitude
			}
		}
		f.Add(uint8(r.Uint32()), uint8(r.Uint32()), uint8(r.Uint32()), samples)
	}
	f.Fuzz(func(t *testing.T, low, width, tolerance uint8, samples []byte) {
		least := int(low) + 1
		most := least + int(width)
		c := New(Config{Initial: (least + most) / 2, Min: least, Max: most, Tolerance: float64(tolerance) / 100, Seed: 1})
		now := time.Duration(0)
		for len(samples) >= 11 {
			kind, repeat := samples[0], int(samples[1])
			latency := time.Duration(binary.LittleEndian.Uint64(samples[2:]))
			now += time.Duration(int8(samples[10])) << (kind >> 3)
			samples = samples[11:]
			for range repeat {
				inFlight := c.Effective() - int(kind&3)
				if kind&4 != 0 && repeat%8 == 0 {
					c.Timeout(latency, inFlight, now)
				} else {
					c.Success(latency, inFlight, now)
				}
				now += time.Duration(kind) << (kind >> 3)
				if !(c.Limit() >= float64(least) && c.Limit() <= float64(most)) || c.Effective() < 1 || c.Effective() > most {
					t.Fatalf("limit %v, effective %d, range %d to %d", c.Limit(), c.Effective(), least, most)
				}
				for _, x := range []float64{c.baseline, c.noise, c.trust, c.knee, c.level, c.up.sum, c.down.sum} {
					if math.IsNaN(x) || math.IsInf(x, 0) || c.Baseline() < 0 {
						t.Fatalf("not finite: %+v", *c)
					}
				}
			}
		}
	})
}

func BenchmarkSample(b *testing.B) {
	c := New(Config{Initial: 20, Min: 1, Max: 200})
	now := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		now += time.Millisecond
		c.Success(base, c.Effective(), now)
	}
}
