package quantile_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/measuredgo/resilience/internal/quantile"
)

// exceeded is the share of draws that lie above the tail of as many other draws.
func exceeded(q float64, draw func() time.Duration) float64 {
	const n = 20_000
	w := quantile.New(time.Minute)
	for range n {
		w.Record(draw(), 0)
	}
	tail, _ := w.Tail(q, 0)
	above := 0
	for range n {
		if draw() > tail {
			above++
		}
	}
	return float64(above) / n
}

func lognormal(rng *rand.Rand, median time.Duration, sigma float64) func() time.Duration {
	return func() time.Duration { return time.Duration(float64(median) * math.Exp(sigma*rng.NormFloat64())) }
}

func TestTailIsExceededByOneMinusQ(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for _, q := range []float64{0.5, 0.9, 0.95, 0.99} {
		for _, sigma := range []float64{0.3, 0.5, 1, 1.5} {
			for _, median := range []time.Duration{50 * time.Millisecond, 51 * time.Millisecond, 53 * time.Millisecond} {
				require.InDelta(t, 1-q, exceeded(q, lognormal(rng, median, sigma)), 0.01, "q %v, sigma %v", q, sigma)
			}
		}
	}
}

// All samples of a narrow distribution fall into one bucket, and where in it is chance: half of the medians below lie above
// what stands for their bucket.
func TestTailOfANarrowDistributionIsNotExceededByAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test
	for median := 50 * time.Millisecond; median < 60*time.Millisecond; median += time.Millisecond {
		for _, q := range []float64{0.9, 0.95, 0.99} {
			require.LessOrEqual(t, exceeded(q, lognormal(rng, median, 0.001)), 4.2*(1-q), "q %v, median %v", q, median)
		}
	}
}

func TestTailOfConstantLatencyIsALittleAboveIt(t *testing.T) {
	for v := 50 * time.Millisecond; v < 60*time.Millisecond; v += time.Millisecond {
		w := quantile.New(time.Minute)
		for range 20 {
			w.Record(v, 0)
		}
		tail, _ := w.Tail(0.95, 0)
		require.Greater(t, tail, v)
		require.LessOrEqual(t, float64(tail), 1.02*float64(v))
	}
}

func TestTailOfNothing(t *testing.T) {
	value, samples := quantile.New(time.Minute).Tail(0.9, 0)
	require.Zero(t, value)
	require.Zero(t, samples)
}

func TestTermsOfTheSameSamples(t *testing.T) {
	median := quantile.NewTerm(time.Minute, 0.5, 10)
	high := median.Another(0.99, 20)
	for i := range 19 {
		median.Record(time.Duration(i+1)*10*time.Millisecond, 0)
	}
	value, warm := median.Value(0)
	require.True(t, warm)
	require.InEpsilon(t, 100*time.Millisecond, value, 0.05)
	_, warm = high.Value(0)
	require.False(t, warm, "it has a minimum of its own")
	high.Record(200*time.Millisecond, 0)
	value, warm = high.Value(0)
	require.True(t, warm)
	require.InEpsilon(t, 200*time.Millisecond, value, 0.05)
	_, samples := median.Reading(0)
	require.Equal(t, 20, samples)
}

func TestTailTermUsesTheTail(t *testing.T) {
	term, window := quantile.NewTail(time.Minute, 0.9, 1), quantile.New(time.Minute)
	for range 100 {
		term.Record(53*time.Millisecond, 0)
		window.Record(53*time.Millisecond, 0)
	}
	value, _ := term.Value(0)
	tail, _ := window.Tail(0.9, 0)
	require.Equal(t, tail, value)
	require.Greater(t, value, 53*time.Millisecond)
}
