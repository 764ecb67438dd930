package resilience

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience/internal/poolprobe"
	"github.com/stretchr/testify/require"
)

// starving lets a test say what the probe of the process reads. Tests that use it must not run in parallel.
type starving struct{ poolprobe.Reading }

func starved(t *testing.T) *starving {
	s := &starving{idle}
	before := queueDelay
	queueDelay = func() poolprobe.Reading { return s.Reading }
	t.Cleanup(func() { queueDelay = before })
	return s
}

var (
	idle = poolprobe.Reading{Delay: time.Millisecond, Normal: time.Millisecond, Samples: 100}
	busy = poolprobe.Reading{Delay: 100 * time.Millisecond, Normal: time.Millisecond, Samples: 100}
)

func TestSaturationExceeded(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		s    Saturation
		r    poolprobe.Reading
		want bool
	}{
		"above both":                  {SaturationAbove(4), poolprobe.Reading{Delay: 50 * ms, Normal: 10 * ms, Samples: 20}, true},
		"above the floor only":        {SaturationAbove(4), poolprobe.Reading{Delay: 30 * ms, Normal: 10 * ms, Samples: 20}, false},
		"above the multiple only":     {SaturationAbove(4), poolprobe.Reading{Delay: 19 * ms, Normal: ms, Samples: 20}, false},
		"exactly the floor":           {SaturationAbove(4), poolprobe.Reading{Delay: 20 * ms, Normal: ms, Samples: 20}, false},
		"exactly the multiple":        {SaturationAbove(4), poolprobe.Reading{Delay: 40 * ms, Normal: 10 * ms, Samples: 20}, false},
		"a hair more":                 {SaturationAbove(4), poolprobe.Reading{Delay: 40*ms + 1, Normal: 10 * ms, Samples: 20}, true},
		"cold":                        {SaturationAbove(4), poolprobe.Reading{Delay: time.Hour, Normal: ms, Samples: 19}, false},
		"nothing known":               {SaturationAbove(4), poolprobe.Reading{}, false},
		"a floor of one's own":        {Saturation{Multiple: 2, Floor: 200 * ms}, poolprobe.Reading{Delay: 150 * ms, Normal: ms, Samples: 20}, false},
		"a minimum of one's own":      {Saturation{Multiple: 2, MinSamples: 5}, poolprobe.Reading{Delay: 150 * ms, Normal: ms, Samples: 5}, true},
		"a multiple that overflows":   {SaturationAbove(1e300), poolprobe.Reading{Delay: time.Hour, Normal: time.Minute, Samples: 20}, false},
		"a process that always waits": {SaturationAbove(4), poolprobe.Reading{Delay: 3 * time.Second, Normal: time.Second, Samples: 20}, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newChecker("test")
			s := c.s.resolve(k)
			require.NoError(t, k.err())
			require.Equal(t, c.want, s.exceeded(c.r))
		})
	}
}

// takes is a callback that succeeds after d.
func takes(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(d)
		return nil
	}
}

// measuring has every term that a starved process would spoil.
func measuring(t *testing.T, opts ...Option) Policy {
	t.Helper()
	p, err := New(append([]Option{
		WithClassifier(RetryAll()), WithMeasuredBackoff(MeasuredBackoff{}), WithHedge(HedgeAt(0.95)), WithSaturation(SaturationAbove(4)),
	}, opts...)...)
	require.NoError(t, err)
	return p
}

func run(t *testing.T, p Policy, times int, d time.Duration) {
	t.Helper()
	for range times {
		require.NoError(t, p.Run(t.Context(), takes(d)))
	}
}

func samples(p Policy) [3]int {
	m := p.Measured()
	return [3]int{m.AttemptCeiling.Samples, m.BackoffBase.Samples, m.HedgeThreshold.Samples}
}

func TestSaturatedProcessLearnsNothing(t *testing.T) {
	probe := starved(t)
	synctest.Test(t, func(t *testing.T) {
		p, exposed := measuring(t), measuring(t, WithoutSaturation())
		for _, p := range []Policy{p, exposed} {
			run(t, p, 30, 40*time.Millisecond)
		}
		before := p.Measured()
		require.Equal(t, Warm, before.AttemptCeiling.State)

		probe.Reading = busy
		for _, p := range []Policy{p, exposed} {
			run(t, p, 30, 45*time.Millisecond)
		}
		after := p.Measured()
		require.Equal(t, before.AttemptCeiling, after.AttemptCeiling)
		require.Equal(t, before.BackoffBase, after.BackoffBase)
		require.Equal(t, before.HedgeThreshold, after.HedgeThreshold)
		require.Equal(t, [3]int{60, 60, 60}, samples(exposed), "without the switch it is learned")
		require.Greater(t, exposed.Measured().AttemptCeiling.Value, before.AttemptCeiling.Value)

		probe.Reading = idle
		run(t, p, 10, 40*time.Millisecond)
		require.Equal(t, [3]int{40, 40, 40}, samples(p), "it resumes when the queue has drained")
	})
}

// A leg that lost is recorded as a lower bound, and a starved process must not teach that either.
func TestSaturatedProcessDoesNotLearnFromLosingLegs(t *testing.T) {
	probe := starved(t)
	synctest.Test(t, func(t *testing.T) {
		p := measuring(t)
		run(t, p, 30, 20*time.Millisecond)
		race := func() {
			var legs atomic.Int32
			_, err := Do(t.Context(), p, func(ctx context.Context) (int, error) {
				if legs.Add(1) == 1 {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				return 1, nil
			})
			require.NoError(t, err)
			synctest.Wait()
		}
		race()
		require.Equal(t, [3]int{31, 31, 31}, samples(p), "the winner for ceiling and backoff, the loser for the hedge")
		probe.Reading = busy
		race()
		require.Equal(t, [3]int{31, 31, 31}, samples(p))
	})
}

func TestSaturationChangesNothingElse(t *testing.T) {
	down := errors.New("down")
	type outcome struct {
		result   Result[struct{}]
		kinds    []EventKind
		stats    BreakerStats
		inFlight int
		tokens   float64
	}
	play := func(t *testing.T) (o outcome) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			p := measuring(t, WithBackoff(Backoff{Base: 50 * time.Millisecond, Factor: 1, Jitter: JitterNone}), WithoutHedge(),
				WithBreaker(BreakerConfig{}), WithLimiter(AdaptiveLimit(10)),
				WithListener(func(e Event) {
					if e.Kind != EventSaturationDetected && e.Kind != EventCeilingAdapted && e.Kind != EventBackoffAdapted {
						o.kinds = append(o.kinds, e.Kind)
					}
				}))
			run(t, p, 10, 40*time.Millisecond)
			n := 0
			o.result = p.Try(t.Context(), func(ctx context.Context) error {
				if n++; n < 3 {
					return down
				}
				return takes(time.Second)(ctx)
			})
			o.stats = p.Breaker().Stats()
			o.stats.Since = time.Time{}
			o.inFlight, o.tokens = p.Limiter().Stats().InFlight, p.Budget().Stats().Tokens
		})
		return o
	}
	probe := starved(t)
	calm := play(t)
	probe.Reading = busy
	require.Equal(t, calm, play(t), "same attempts, same bounds, same verdicts, same guards")
	require.Equal(t, 3, calm.result.Total)
	require.Equal(t, 13, calm.stats.Calls)
}

func TestSaturationDetectedOncePerEpisodeAndPolicy(t *testing.T) {
	probe := starved(t)
	synctest.Test(t, func(t *testing.T) {
		var told [2][]Event
		var policies [2]Policy
		for i := range policies {
			policies[i] = measuring(t, WithListener(func(e Event) {
				if e.Kind == EventSaturationDetected {
					told[i] = append(told[i], e)
				}
			}))
		}
		all := func() {
			for _, p := range policies {
				run(t, p, 3, time.Millisecond)
			}
		}
		all()
		require.Empty(t, told[0])
		probe.Reading = busy
		all()
		all()
		for i := range told {
			require.Len(t, told[i], 1)
			require.Equal(t, busy.Delay, told[i][0].Duration)
		}
		probe.Reading = idle
		all()
		probe.Reading = busy
		all()
		require.Len(t, told[0], 2, "another episode")
		require.Len(t, told[1], 2)
	})
}

func TestSaturationColdIsNeverSaturated(t *testing.T) {
	probe := starved(t)
	synctest.Test(t, func(t *testing.T) {
		probe.Reading = poolprobe.Reading{Delay: time.Minute, Normal: time.Millisecond, Samples: 19}
		p := measuring(t)
		run(t, p, 5, time.Millisecond)
		require.Equal(t, [3]int{5, 5, 5}, samples(p))
		require.Equal(t, Reading{State: Cold, Samples: 19, MinSamples: 20}, p.Measured().QueueDelay)
		probe.Samples = 20
		run(t, p, 5, time.Millisecond)
		require.Equal(t, [3]int{5, 5, 5}, samples(p))
		require.Equal(t, Reading{Value: time.Minute, State: Warm, Samples: 20, MinSamples: 20}, p.Measured().QueueDelay)
	})
}

// A policy that does not ask starts no probe.
func TestSaturationOffNeverAsks(t *testing.T) {
	asked := 0
	before := queueDelay
	t.Cleanup(func() { queueDelay = before })
	queueDelay = func() poolprobe.Reading {
		asked++
		return idle
	}
	synctest.Test(t, func(t *testing.T) {
		p := measuring(t, WithoutSaturation())
		run(t, p, 3, time.Millisecond)
		require.Equal(t, NotConfigured, p.Measured().QueueDelay.State)
		_ = p.Explain()
		require.Zero(t, asked)
		run(t, measuring(t), 3, time.Millisecond)
		require.Equal(t, 3, asked, "once for each success")
	})
}
