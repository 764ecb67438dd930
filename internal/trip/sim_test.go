package trip_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience/internal/trip"
	"github.com/measuredgo/resilience/internal/trip/tripsim"
)

// These are short versions; bench/breaker runs the long ones.

func failuresOnly() tripsim.Rule  { return tripsim.NewRecommended(false) }
func withLatencies() tripsim.Rule { return tripsim.NewRecommended(true) }

// scale is what part of a simulation runs: none of it needs the race detector.
func scale() float64 {
	if raceEnabled || testing.Short() {
		return 0.01
	}
	return 1
}

func wrongTrips(newRule func() tripsim.Rule, t tripsim.Traffic, days float64) (trips int) {
	for seed := range uint64(5) {
		trips += tripsim.WrongTrips(newRule(), t, days*scale(), seed)
	}
	return trips
}

func TestHealthyDependencyHardlyEverTrips(t *testing.T) {
	independent := 0
	for _, perSecond := range []float64{0.5, 1, 10} {
		days := min(10, 10/perSecond)
		for _, failing := range []float64{0, 0.001, 0.01, 0.04, 0.1, 0.3} {
			n := wrongTrips(failuresOnly, tripsim.Traffic{PerSecond: perSecond, Failing: failing}, days)
			require.LessOrEqual(t, n, 1, "%v of %v/s", failing, perSecond)
			independent += n
			n = wrongTrips(failuresOnly, tripsim.Traffic{PerSecond: perSecond, Failing: failing, Burst: 3}, days)
			require.LessOrEqual(t, n, 6, "%v of %v/s, in bursts", failing, perSecond)
		}
	}
	require.LessOrEqual(t, independent, 2)
}

func TestUsuallySlowDependencyHardlyEverTrips(t *testing.T) {
	for name, latency := range map[string]func(*rand.Rand) time.Duration{
		"sigma 1": tripsim.Lognormal(1, 1), "sigma 1.5": tripsim.Lognormal(1.5, 1), "two modes": tripsim.TwoModes(),
	} {
		n := wrongTrips(withLatencies, tripsim.Traffic{PerSecond: 1, Latency: latency}, 6)
		require.LessOrEqual(t, n, 2, name)
	}
}

// The rule that compares shares only: in the same harness it shows what the evidence is for.
func TestMultipleOfTheBaselineAloneTripsByChance(t *testing.T) {
	starting := func() tripsim.Rule { return tripsim.NewStarting() }
	n := wrongTrips(starting, tripsim.Traffic{PerSecond: 1, Failing: 0.01}, 10)
	require.Greater(t, float64(n), 1000*scale())
}

func TestIncidentsAreSeenInTime(t *testing.T) {
	sigma := func(s, factor float64) tripsim.Traffic { return tripsim.Traffic{Latency: tripsim.Lognormal(s, factor)} }
	failing := func(share float64) tripsim.Traffic { return tripsim.Traffic{Failing: share} }
	for _, c := range []struct {
		name             string
		normal, incident tripsim.Traffic
		perSecond, want  float64 // median, in seconds
	}{
		{"outage of a spotless one", failing(0), failing(1), 0.1, 54},
		{"outage of a spotless one", failing(0), failing(1), 0.5, 9},
		{"outage of a spotless one", failing(0), failing(1), 1, 4.9},
		{"outage of a spotless one", failing(0), failing(1), 10, 0.4},
		{"outage, normal 1 %", failing(0.01), failing(1), 0.1, 71},
		{"outage, normal 1 %", failing(0.01), failing(1), 0.5, 13},
		{"outage, normal 1 %", failing(0.01), failing(1), 1, 5.9},
		{"outage, normal 1 %", failing(0.01), failing(1), 10, 0.5},
		{"outage, normal 30 %", failing(0.3), failing(1), 0.1, 209},
		{"outage, normal 30 %", failing(0.3), failing(1), 0.5, 40},
		{"outage, normal 30 %", failing(0.3), failing(1), 1, 19},
		{"outage, normal 30 %", failing(0.3), failing(1), 10, 1.9},
		{"half fail, normal 1 %", failing(0.01), failing(0.5), 0.5, 45},
		{"half fail, normal 1 %", failing(0.01), failing(0.5), 1, 18},
		{"half fail, normal 1 %", failing(0.01), failing(0.5), 10, 3},
		{"10 x of 1 %", failing(0.01), failing(0.1), 10, 19},
		{"10 x of 1 %", failing(0.01), failing(0.1), 100, 13},
		{"10 x of 4 %", failing(0.04), failing(0.4), 10, 13},
		{"10 x of 4 %", failing(0.04), failing(0.4), 100, 12},
		{"all x 10", sigma(0.5, 1), sigma(0.5, 10), 1, 15},
		{"all x 10", sigma(0.5, 1), sigma(0.5, 10), 10, 14},
		{"all x 4", sigma(0.5, 1), sigma(0.5, 4), 1, 20},
		{"all x 4", sigma(0.5, 1), sigma(0.5, 4), 10, 20},
		{"all x 10, spread", sigma(1.5, 1), sigma(1.5, 10), 10, 14},
		{"all x 4, spread", sigma(1.5, 1), sigma(1.5, 4), 10, 23},
	} {
		if scale() < 1 && c.perSecond > 1 {
			continue // a quarter of an hour of normal traffic before each
		}
		c.normal.PerSecond, c.incident.PerSecond = c.perSecond, c.perSecond
		newRule := failuresOnly
		if c.normal.Latency != nil {
			newRule = withLatencies
		}
		limit := max(5*time.Minute, time.Duration(60/c.perSecond*float64(time.Second)))
		median, within := tripsim.Median(newRule, c.normal, c.incident, seeds(100), limit)
		require.GreaterOrEqual(t, within, 0.99, "%s at %v/s", c.name, c.perSecond)
		if scale() == 1 {
			require.InEpsilon(t, c.want, median.Seconds(), 0.25, "%s at %v/s", c.name, c.perSecond)
		}
	}
}

func seeds(n int) int { return max(5, int(float64(n)*scale())) }

func TestLastingNewNormalIsAccepted(t *testing.T) {
	for _, c := range []struct {
		share    float64
		from, to int
	}{{0.2, 15, 40}, {0.4, 25, 40}} {
		trips := 0
		n := seeds(20)
		for seed := range n {
			played := tripsim.Play(failuresOnly(), tripsim.Traffic{PerSecond: 10}, func(at time.Duration) float64 {
				if at > 0 {
					return c.share
				}
				return 0.01
			}, c.to, uint64(seed))
			trips += tripsim.Sum(played, c.from, c.to).Trips
		}
		fiveMinutes := float64(c.to-c.from) / 5 * float64(n)
		require.LessOrEqual(t, float64(trips)/fiveMinutes, 0.2, "%v", c.share)
	}
}

func TestRampIsNotAbsorbed(t *testing.T) {
	seen := 0
	n := seeds(20)
	for seed := range n {
		played := tripsim.Play(failuresOnly(), tripsim.Traffic{PerSecond: 10}, func(at time.Duration) float64 {
			return 0.01 + 0.19*min(1, at.Minutes()/10)
		}, 5, uint64(seed))
		if tripsim.Sum(played, 0, 5).Trips > 0 {
			seen++
		}
	}
	require.GreaterOrEqual(t, float64(seen), 0.95*float64(n))
}

func TestHalfOpenTellsHealthyFromDead(t *testing.T) {
	for _, c := range []struct {
		normal    float64
		low, high float64
	}{{0.3, 0.92, 0.94}, {0.01, 0.975, 0.985}} {
		score := scoreAt(c.normal)
		rng := rand.New(rand.NewPCG(1, 2))
		closed := 0
		const n = 100_000
		for range n {
			s := score
			step := trip.Undecided
			for step == trip.Undecided {
				if rng.Float64() < c.normal {
					step = s.Fail()
				} else {
					step = s.Succeed(false)
				}
			}
			if step == trip.Close {
				closed++
			}
		}
		require.GreaterOrEqual(t, float64(closed)/n, c.low, "normal %v", c.normal)
		require.LessOrEqual(t, float64(closed)/n, c.high, "normal %v", c.normal)

		outage := score
		probes := 1
		for outage.Fail() == trip.Undecided {
			probes++
		}
		require.LessOrEqual(t, probes, 3, "normal %v", c.normal)
	}
}

// scoreAt returns the score of a dependency of which exactly that share fails.
func scoreAt(share float64) trip.Score {
	c := tripsim.Defaults()
	c.Consecutive = -1
	l := trip.New(c, 0)
	for i := range 1000 {
		now := time.Duration(i) * time.Second
		if int(float64(i)*share) < int(float64(i+1)*share) {
			l.Fail(false, now)
		} else {
			l.Succeed(false, false, now)
		}
	}
	return l.Score()
}
