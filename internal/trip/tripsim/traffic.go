// Package tripsim plays simulated traffic to trip rules: how often they trip on
// nothing, how soon on an incident, and what they admit meanwhile. The tests of
// package trip run it briefly, bench/breaker at length.
package tripsim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Traffic is a dependency under random, independent arrivals.
type Traffic struct {
	PerSecond float64
	Failing   float64                            // share of the calls
	Burst     int                                // failures come in groups of so many; 0 is 1
	Latency   func(rng *rand.Rand) time.Duration // nil: no latencies at all
}

// Lognormal returns latencies with a median of 10 ms times the factor.
func Lognormal(sigma, factor float64) func(*rand.Rand) time.Duration {
	return func(rng *rand.Rand) time.Duration {
		return time.Duration(10e6 * factor * math.Exp(sigma*rng.NormFloat64()))
	}
}

// TwoModes returns latencies of which 45 % are ten times longer: cache misses.
func TwoModes() func(*rand.Rand) time.Duration {
	hit, miss := Lognormal(0.2, 1), Lognormal(0.2, 10)
	return func(rng *rand.Rand) time.Duration {
		if rng.Float64() < 0.45 {
			return miss(rng)
		}
		return hit(rng)
	}
}

// stream is traffic in time.
type stream struct {
	rng  *rand.Rand
	now  time.Duration
	left int // failures that the present group still owes
}

// next returns when the next call comes and how it ends.
func (s *stream) next(t *Traffic) (failed bool, latency, now time.Duration) {
	s.now += time.Duration(s.rng.ExpFloat64() / t.PerSecond * float64(time.Second))
	if t.Latency != nil {
		latency = t.Latency(s.rng)
	}
	if s.left > 0 {
		s.left--
		return true, latency, s.now
	}
	if t.Failing == 0 {
		return false, latency, s.now
	}
	// Groups of b at a rate of p/(b-(b-1)p) make a share of p.
	b := float64(max(1, t.Burst))
	if s.rng.Float64() < t.Failing/(b-(b-1)*t.Failing) {
		s.left = max(1, t.Burst) - 1
		return true, latency, s.now
	}
	return false, latency, s.now
}
