package limit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/measuredgo/resilience/internal/limit/limitsim"
	"github.com/stretchr/testify/require"
)

const base = limitsim.Base

var models = []limitsim.Model{limitsim.Exact, limitsim.Exponential, limitsim.LogNormal}

// lengthy marks a test that simulates for seconds. Nothing in it is concurrent, so that the race detector has nothing to
// find and would only make minutes of them.
func lengthy(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("nothing is concurrent here")
	}
	t.Parallel()
}

// few is how many seeds a test runs: all, or two where time is short.
func few(n int) int {
	if testing.Short() {
		return min(n, 2)
	}
	return n
}

// seedsOf are n in a row; the exact model has no chance in it but the dither, and needs one.
func seedsOf(m limitsim.Model, first uint64, n int) []uint64 {
	if m.Exact {
		n = 1
	}
	var all []uint64
	for i := range n {
		all = append(all, first+uint64(i))
	}
	return all
}

// run is one simulation. Its cores are there to be looked at.
type run struct {
	*limitsim.Simulation
	cores []*Core
}

// setting is a scenario before its seed is drawn.
type setting struct {
	law *law
	limitsim.Load
	min int // 0: 1
}

// start has n clients that start together.
func (s setting) start(seed uint64, clients int) *run {
	r := &run{}
	r.Simulation = limitsim.New(s.Load, seed, func(client int) limitsim.Limiter {
		core := newCore(Config{Initial: 20, Min: max(s.min, 1), Max: 200, Seed: seed<<16 + uint64(client)}, s.law)
		r.cores = append(r.cores, core)
		return core
	})
	r.Join(clients)
	return r
}

// span is what several runs showed.
type span []float64

func (s span) sorted() span { return slices.Sorted(slices.Values(s)) }

func (s span) String() string {
	return fmt.Sprintf("median %.3f (%.3f to %.3f)", s.median(), slices.Min(s), slices.Max(s))
}

func (s span) median() float64 { return s.sorted()[len(s)/2] }

func (s span) within(low, high float64) bool { return slices.Min(s) >= low && slices.Max(s) <= high }

// steady is one client in permanent overload, in minutes 2 to 3, against a fixed limit of the capacity.
type steady struct{ limit, goodput, p99 span }

func (s setting) steady(seeds []uint64) (r steady) {
	const from, to = 2 * time.Minute, 3 * time.Minute
	for _, seed := range seeds {
		sim := s.start(seed, 1)
		sim.Run(from)
		got, best := sim.Measure(to), s.MeasureFixed(seed, s.Capacity, from, to)
		r.limit = append(r.limit, got.Limit/float64(s.Capacity))
		r.goodput = append(r.goodput, got.Goodput/best.Goodput)
		r.p99 = append(r.p99, float64(got.P99)/float64(best.P99))
	}
	return r
}

func (r steady) String() string {
	return fmt.Sprintf("limit / C %v, goodput %v, p99 %v", r.limit, r.goodput, r.p99)
}

// good is goal 2 of the law.
func (r steady) good() bool {
	return r.limit.within(0.9, 1.15) && r.goodput.median() >= 0.93 && r.p99.within(0, 1.1)
}

// BR-050
func TestBaselineDoesNotClimbInHalfAnHourOfOverload(t *testing.T) {
	lengthy(t)
	s := setting{law: &standard, Load: limitsim.Load{Model: limitsim.Exact, Capacity: 20, Callers: 100}}
	near := s.steady([]uint64{1})
	t.Log(near)
	require.GreaterOrEqual(t, near.goodput.median(), 0.95)
	require.LessOrEqual(t, near.p99.median(), 1.3)

	sim := s.start(1, 1)
	sim.Run(time.Minute)
	for minute := 2; minute <= 30; minute++ {
		r := sim.Measure(time.Duration(minute) * time.Minute)
		require.GreaterOrEqual(t, r.Low, 16.0, "minute %d", minute)
		require.LessOrEqual(t, r.Top, 28.0, "minute %d", minute)
		require.InDelta(t, base, sim.cores[0].Baseline(), float64(base)/10, "minute %d", minute)
	}
	t.Log("minute 30:", sim.cores[0].Baseline())
}

func TestOneClientHoldsTheCapacity(t *testing.T) {
	lengthy(t)
	for _, m := range models[1:] {
		for _, capacity := range []int{20, 100} {
			s := setting{law: &standard, Load: limitsim.Load{Model: m, Capacity: capacity, Callers: 5 * capacity}}
			r := s.steady(seedsOf(m, 1, 5))
			t.Logf("%s, C %d: %v", m.Name, capacity, r)
			require.True(t, r.good(), "%s, C %d: %v", m.Name, capacity, r)
		}
	}
}

// change is a dependency that becomes faster or slower for good in minute 5, seen in minute 15.
type change struct{ limit, baseline span }

func (s setting) change(factor float64, seeds []uint64) (r change) {
	for _, seed := range seeds {
		sim := s.start(seed, 1)
		sim.Run(5 * time.Minute)
		sim.Slowdown = factor
		sim.Run(14 * time.Minute)
		r.limit = append(r.limit, sim.Measure(15*time.Minute).Limit)
		r.baseline = append(r.baseline, float64(sim.cores[0].Baseline())/(factor*float64(base)))
	}
	return r
}

func (r change) String() string { return fmt.Sprintf("limit %v, baseline %v", r.limit, r.baseline) }

// good is goal 3 of the law.
func (r change) good() bool { return r.limit.within(16, 60) && r.baseline.within(0.75, 1.25) }

func TestLastingChangeIsLearnedWithinTenMinutes(t *testing.T) {
	lengthy(t)
	for _, m := range models {
		for _, factor := range []float64{4, 1.4, 0.25} {
			s := setting{law: &standard, Load: limitsim.Load{Model: m, Capacity: 20, Callers: 40}}
			r := s.change(factor, seedsOf(m, 31, few(20)))
			t.Logf("%s, %g x: %v", m.Name, factor, r)
			require.True(t, r.good(), "%s, %g x: %v", m.Name, factor, r)
		}
	}
}

func TestCacheHitsDoNotPassForTheBaseline(t *testing.T) {
	lengthy(t)
	for _, hits := range []float64{0.05, 0.2, 0.5} {
		s := setting{law: &standard, Load: limitsim.Load{Capacity: 20, Callers: 100, Model: limitsim.Model{
			Service: limitsim.Cached(hits, limitsim.LogNormalService(100*time.Millisecond, 0.2)),
		}}}
		r := s.steady(seedsOf(s.Model, 1, 5))
		t.Logf("%g: %v", hits, r)
		require.True(t, r.limit.within(0.9, 1.3), "%g: %v", hits, r)
		require.GreaterOrEqual(t, r.goodput.median(), 0.95, "%g: %v", hits, r)
	}
}

// BR-048, with the variant of one cache hit in a thousand; BR-047, for calls that are cancelled look the same from here.
func TestFastFailuresTeachNothing(t *testing.T) {
	t.Parallel()
	for _, hits := range []float64{0, 0.001} {
		s := setting{law: &standard, Load: limitsim.Load{Capacity: 20, Callers: 40, Model: limitsim.Model{
			Service: limitsim.Cached(hits, limitsim.Constant(2*base)),
		}}}
		sim := s.start(1, 1)
		core := sim.cores[0]
		sim.Run(60 * time.Second)
		settled, baseline := core.Limit(), core.Baseline()
		require.InDelta(t, 2*base, baseline, float64(base)/5)
		require.GreaterOrEqual(t, settled, 16.0)

		sim.Ending = limitsim.Fail
		sim.Run(61 * time.Second) // the calls of before have ended
		before := *core
		sim.Run(70 * time.Second)
		require.Equal(t, before, *core, "a fast failure left something behind")

		sim.Ending = limitsim.Succeed
		sim.Run(75 * time.Second)
		require.GreaterOrEqual(t, core.Limit(), 0.8*settled)
		require.InDelta(t, 2*base, core.Baseline(), float64(base)/5)
	}
}

func TestIdleLimitStays(t *testing.T) {
	t.Parallel()
	s := setting{law: &standard, Load: limitsim.Load{
		Model: limitsim.Model{Service: limitsim.Constant(10 * time.Millisecond)}, Callers: 2,
	}}
	r := s.start(1, 1).Measure(20 * time.Minute)
	require.Equal(t, 20.0, r.Low)
	require.Equal(t, 20.0, r.Top)
}

func TestHeavyTailsWithoutLoadDoNotPassForOverload(t *testing.T) {
	lengthy(t)
	for _, m := range []limitsim.Model{limitsim.LogNormal, {Name: "Pareto 1.5", Service: limitsim.Pareto(base, 1.5)}} {
		s := setting{law: &standard, Load: limitsim.Load{Model: m, Callers: 40}}
		var limits span
		for _, seed := range seedsOf(m, 1, few(5)) {
			sim := s.start(seed, 1)
			sim.Run(2 * time.Minute)
			limits = append(limits, sim.Measure(10*time.Minute).Limit)
		}
		t.Logf("%s: %v", m.Name, limits)
		require.True(t, limits.within(38, 200), "%s: %v", m.Name, limits)
	}
}

// shares is the sum of the limits of many clients that start together, minutes 2 to 4.
func (s setting) shares(clients int, seeds []uint64) (sums span) {
	for _, seed := range seeds {
		sim := s.start(seed, clients)
		sim.Run(2 * time.Minute)
		sums = append(sums, sim.Measure(4*time.Minute).Limit)
	}
	return sums
}

func TestManyClientsShareTheCapacity(t *testing.T) {
	lengthy(t)
	for _, m := range models {
		s := setting{law: &standard, Load: limitsim.Load{Model: m, Capacity: 100, Callers: 60}}
		sums := s.shares(10, seedsOf(m, 1, few(5)))
		t.Logf("%s, ten clients: %v", m.Name, sums)
		require.True(t, sums.within(85, 140), "%s: %v", m.Name, sums)

		s.Capacity = 300
		sums = s.shares(50, seedsOf(m, 1, few(2)))
		t.Logf("%s, fifty clients: %v", m.Name, sums)
		require.True(t, sums.within(270, 420), "%s: %v", m.Name, sums)
	}
}

func TestClientsComeAndGo(t *testing.T) {
	lengthy(t)
	for _, m := range models {
		s := setting{law: &standard, Load: limitsim.Load{Model: m, Capacity: 300, Callers: 60}}
		var grown, shrunk span
		for _, seed := range seedsOf(m, 1, few(2)) {
			sim := s.start(seed, 10)
			sim.Run(3 * time.Minute)
			sim.Join(40)
			sim.Run(6 * time.Minute)
			grown = append(grown, sim.Measure(8*time.Minute).Limit)

			sim = s.start(seed, 50)
			sim.Run(3 * time.Minute)
			sim.Leave(40)
			sim.Run(6 * time.Minute)
			shrunk = append(shrunk, sim.Measure(8*time.Minute).Limit)
		}
		t.Logf("%s: 10 to 50 %v, 50 to 10 %v", m.Name, grown, shrunk)
		require.True(t, grown.within(270, 750), "%s: %v", m.Name, grown)
		require.True(t, shrunk.within(255, 390), "%s: %v", m.Name, shrunk)
	}
}

// A constant that can be broken without a red test is not held by anything.
func TestEachRuleIsNeeded(t *testing.T) {
	lengthy(t)
	t.Run("evidence", func(t *testing.T) {
		broken := standard
		broken.decided = 1
		s := setting{law: &broken, Load: limitsim.Load{Model: limitsim.Exponential, Capacity: 20, Callers: 100}}
		r := s.steady(seedsOf(s.Model, 1, 5))
		require.False(t, r.good(), "a bare threshold does as well: %v", r)
	})
	t.Run("pause", func(t *testing.T) {
		broken := standard
		broken.pause = 0
		s := setting{law: &broken, Load: limitsim.Load{Model: limitsim.LogNormal, Capacity: 100, Callers: 500}}
		r := s.steady(seedsOf(s.Model, 1, 5))
		require.False(t, r.good(), "samples of the old limit do no harm: %v", r)
	})
	t.Run("starvation", func(t *testing.T) {
		broken := standard
		broken.starvation = time.Duration(1<<63 - 1)
		s := setting{law: &broken, Load: limitsim.Load{Model: limitsim.Exponential, Capacity: 20, Callers: 40}}
		r := s.change(1.4, seedsOf(s.Model, 31, 20))
		require.False(t, r.good(), "nobody starves: %v", r)
	})
	t.Run("minimum", func(t *testing.T) {
		s := setting{law: &standard, Load: limitsim.Load{Model: limitsim.Exact, Capacity: 100, Callers: 60}}
		small := s.shares(50, []uint64{1})
		s.min = 4
		large := s.shares(50, []uint64{1})
		require.True(t, small.within(85, 140), "%v", small)
		require.True(t, large.within(200, 300), "%v", large)
	})
}
