package limitsim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestExactModelStretchesTheLatency(t *testing.T) {
	l := Load{Model: Exact, Capacity: 20, Callers: 100}
	for limit, latency := range map[int]time.Duration{10: Base, 20: Base, 40: 2 * Base, 100: 5 * Base} {
		r := l.MeasureFixed(1, limit, time.Minute, 2*time.Minute)
		require.InDelta(t, latency, r.P50, float64(time.Millisecond), "limit %d", limit)
		require.InDelta(t, float64(limit)/latency.Seconds(), r.Goodput, 0.05*r.Goodput, "limit %d", limit)
		require.Equal(t, float64(limit), r.Limit)
	}
}

// Little's law, and no more than the servers can do.
func TestQueueServesAtItsCapacity(t *testing.T) {
	for _, m := range []Model{Exponential, LogNormal} {
		l := Load{Model: m, Capacity: 20, Callers: 100}
		r := l.MeasureFixed(1, 80, time.Minute, 10*time.Minute)
		require.InDelta(t, 20/Base.Seconds(), r.Goodput, 0.03*r.Goodput, m.Name)
		require.InDelta(t, 80/r.Goodput, r.P50.Seconds(), 0.1*r.P50.Seconds(), m.Name)
	}
}

func TestServicesHaveTheirMean(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		service Service
		mean    time.Duration
	}{
		"constant":    {Constant(Base), Base},
		"exponential": {ExponentialService(Base), Base},
		"lognormal":   {LogNormalService(Base, 1), Base},
		"Pareto":      {Pareto(Base, 3), Base},
		"cached":      {Cached(0.5, Constant(Base)), (Base + time.Millisecond) / 2},
	} {
		sum := 0.0
		const n = 200_000
		for range n {
			sum += c.service(r)
		}
		require.InDelta(t, float64(c.mean), sum/n, 0.02*float64(c.mean), name)
	}
}

func TestEventsComeInOrderAndCallsFirstInFirstOut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h events
	var q queue
	var want []time.Duration
	for i := range 1000 {
		at := time.Duration(r.IntN(500))
		want = append(want, at)
		h.push(event{at: at})
		q.push(call{inFlight: i})
	}
	slices.Sort(want)
	for i := range 1000 {
		require.Equal(t, want[i], h.pop().at)
		require.Equal(t, i, q.pop().inFlight)
	}
	require.True(t, q.empty())
}

func TestClientsWhoLeaveCallNoMore(t *testing.T) {
	s := New(Load{Model: Exact, Capacity: 20, Callers: 10}, 1, func(int) Limiter { return Fixed(10) })
	s.Join(2)
	s.Run(time.Second)
	s.Leave(1)
	s.Run(2 * time.Second)
	require.Equal(t, 10, s.present)
	require.Equal(t, 10.0, s.Measure(3*time.Second).Limit)
}
