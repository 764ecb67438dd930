package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// hedged is a policy whose threshold is warm at minDelay.
func hedged(t testing.TB, h resilience.Hedge, opts ...resilience.Option) resilience.Policy {
	t.Helper()
	h.Quantile, h.MinSamples = 0.9, 1
	if h.MinDelay == 0 {
		h.MinDelay = 100 * time.Millisecond
	}
	if h.Window == 0 {
		h.Window = time.Hour
	}
	p := retrying(append(opts, resilience.WithHedge(h))...)
	require.NoError(t, p.Run(context.Background(), succeed))
	threshold, warm := p.Measured().HedgeThreshold.Get()
	require.True(t, warm)
	require.Equal(t, h.MinDelay, threshold)
	return p
}

// byLeg is a callback whose legs take these times and return these errors.
type byLeg struct {
	mu     sync.Mutex
	took   []time.Duration
	errs   []error
	starts []time.Duration
	begin  time.Time
	deaf   bool
	ended  int
}

func (b *byLeg) fn(ctx context.Context) (int, error) {
	b.mu.Lock()
	if b.starts == nil {
		b.begin = time.Now()
	}
	i := len(b.starts)
	b.starts = append(b.starts, time.Since(b.begin))
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.ended++; b.mu.Unlock() }()
	last := min(i, len(b.took)-1)
	if b.deaf {
		time.Sleep(b.took[last])
	} else {
		timer := time.NewTimer(b.took[last])
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if len(b.errs) > 0 {
		return i + 1, b.errs[min(i, len(b.errs)-1)]
	}
	return i + 1, nil
}

func TestHedgeFirstSuccessWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, h.option())
		h.forget()
		b := &byLeg{took: []time.Duration{10 * time.Second, 50 * time.Millisecond}}
		took := stopwatch()
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.NoError(t, r.Err)
		require.Equal(t, 2, r.Value)
		require.Equal(t, 150*time.Millisecond, took())
		require.Equal(t, 2, r.Total)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond}, b.starts)
		require.Equal(t, []resilience.EventKind{
			resilience.EventHedgeStarted, resilience.EventAttempt, resilience.EventHedgeWon, resilience.EventHedgeDiscarded, resilience.EventSucceeded,
		}, h.kinds())
		require.Equal(t, 2, h.of(resilience.EventAttempt)[0].Attempt)
		var winner, loser resilience.Attempt
		for _, a := range r.Attempts {
			if a.Discarded {
				loser = a
			} else {
				winner = a
			}
		}
		require.Equal(t, resilience.Attempt{Number: 2, Start: 100 * time.Millisecond, Duration: 50 * time.Millisecond, Bound: 10 * time.Second, Hedged: true}, winner)
		require.Equal(t, 150*time.Millisecond, loser.Duration)
		require.Equal(t, 1, loser.Number)
		synctest.Wait()
		require.Equal(t, 2, b.ended, "the loser is cancelled")
	})
}

func TestHedgeThatLosesIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{})
		b := &byLeg{took: []time.Duration{200 * time.Millisecond, time.Hour}}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.Equal(t, 1, r.Value)
		require.Equal(t, 200*time.Millisecond, r.Elapsed)
		synctest.Wait()
		require.Equal(t, 2, b.ended)
	})
}

func TestHedgeColdStaysOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithHedge(resilience.HedgeAt(0.9)))
		me := goroutineID()
		for range 19 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error {
				require.Equal(t, me, goroutineID())
				time.Sleep(time.Millisecond)
				return nil
			}))
		}
		calls := 0
		require.NoError(t, p.Run(t.Context(), func(context.Context) error {
			calls++
			require.Equal(t, me, goroutineID())
			time.Sleep(time.Minute / 12)
			return nil
		}))
		require.Equal(t, 1, calls, "nothing is hedged while the threshold is cold")
		require.NoError(t, p.Run(t.Context(), func(context.Context) error {
			require.NotEqual(t, me, goroutineID(), "warm")
			return nil
		}))
	})
}

func TestHedgeIsArmedOnlyIf(t *testing.T) {
	slow := []time.Duration{time.Second, time.Second, time.Second, time.Second, time.Second}
	for _, c := range []struct {
		name  string
		hedge resilience.Hedge
		opts  []resilience.Option
		ctx   func(context.Context) context.Context
		want  []time.Duration // starts, in tenths of seconds
	}{
		{name: "armed", want: []time.Duration{0, 1}, opts: []resilience.Option{resilience.WithAttempts(5)}},
		{name: "up to MaxConcurrent", hedge: resilience.Hedge{MaxConcurrent: 4}, opts: []resilience.Option{resilience.WithAttempts(9)}, want: []time.Duration{0, 1, 2, 3}},
		{name: "up to Attempts", hedge: resilience.Hedge{MaxConcurrent: 9}, want: []time.Duration{0, 1, 2}},
		{name: "one attempt", opts: []resilience.Option{resilience.WithAttempts(1)}, want: []time.Duration{0}},
		{name: "single-shot", ctx: resilience.SingleShot, want: []time.Duration{0}},
		{name: "sheddable, not honoured", ctx: func(ctx context.Context) context.Context {
			return resilience.ContextWithCriticality(ctx, resilience.Sheddable)
		}, want: []time.Duration{0, 1}},
		{name: "sheddable", opts: []resilience.Option{resilience.WithCriticality(true)}, ctx: func(ctx context.Context) context.Context {
			return resilience.ContextWithCriticality(ctx, resilience.Sheddable)
		}, want: []time.Duration{0}},
		{name: "no time for it", opts: []resilience.Option{resilience.WithDeadline(100 * time.Millisecond)}, want: []time.Duration{0}},
		{
			name: "budget", opts: []resilience.Option{resilience.WithBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off}), resilience.WithAttempts(5)},
			hedge: resilience.Hedge{MaxConcurrent: 4}, want: []time.Duration{0, 1},
		},
		{name: "limiter full", opts: []resilience.Option{resilience.WithLimiter(resilience.FixedLimit(1))}, want: []time.Duration{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h heard
				p := hedged(t, c.hedge, append(c.opts, h.option())...)
				h.forget()
				ctx := t.Context()
				if c.ctx != nil {
					ctx = c.ctx(ctx)
				}
				b := &byLeg{took: slow}
				_, err := resilience.Do(ctx, p, b.fn)
				require.Equal(t, c.name == "no time for it", err != nil)
				for i := range c.want {
					c.want[i] *= 100 * time.Millisecond
				}
				require.Equal(t, c.want, b.starts)
				require.Empty(t, h.of(resilience.EventHedgeSuppressed), "silent")
				require.Len(t, h.of(resilience.EventHedgeStarted), len(c.want)-1)
			})
		})
	}
}

func TestHedgeIsNotArmedUnlessTheBreakerIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		br := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1, Probes: 5})
		p := hedged(t, resilience.Hedge{}, resilience.WithSharedBreaker(br))
		tripped(t, br)
		time.Sleep(15 * time.Second)
		b := &byLeg{took: []time.Duration{time.Second}}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Len(t, b.starts, 1, "a probe is not hedged")
	})
}

func TestHedgeIsSuppressedWhileTheDependencyIsFailing(t *testing.T) {
	for _, c := range []struct {
		suppressAt float64
		failures   int
		want       int
	}{{0, 4, 2}, {0, 5, 1}, {0.9, 8, 2}, {0.9, 9, 1}, {1, 9, 2}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				br := breakerOf(t, resilience.BreakerConfig{
					ConsecutiveFailures: resilience.Off, FailureRatio: 0.5, Failures: resilience.RelativeFailures{Multiple: resilience.Off},
					SlowCalls: resilience.RelativeSlow{Multiple: resilience.Off},
				})
				var h heard
				p := hedged(t, resilience.Hedge{SuppressAt: c.suppressAt}, resilience.WithSharedBreaker(br), h.option())
				for range 20 - c.failures - 1 { // one is there
					require.NoError(t, p.Run(t.Context(), succeed))
				}
				for range c.failures {
					l, err := br.Allow()
					require.NoError(t, err)
					l.Done(resilience.Transient, time.Millisecond)
				}
				require.Equal(t, 20, br.Stats().Calls)
				require.Equal(t, resilience.StateClosed, br.State())
				h.forget()
				b := &byLeg{took: []time.Duration{time.Second}}
				_, err := resilience.Do(t.Context(), p, b.fn)
				require.NoError(t, err)
				require.Len(t, b.starts, c.want)
				require.Len(t, h.of(resilience.EventHedgeSuppressed), 2-c.want)
			})
		})
	}
}

func TestHedgeDelayCountsFromTheNewestLeg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{MaxConcurrent: 3})
		b := &byLeg{took: []time.Duration{5 * time.Second, 5 * time.Second, 50 * time.Millisecond}}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}, b.starts)
		require.Equal(t, 250*time.Millisecond, r.Elapsed)
	})
}

func TestHedgeBudgetTakesOneTokenForEachLeg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, resilience.BudgetConfig{Fraction: resilience.Off})
		p := hedged(t, resilience.Hedge{MaxConcurrent: 3}, resilience.WithSharedBudget(budget))
		b := &byLeg{took: []time.Duration{250 * time.Millisecond}}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.InDelta(t, 28.5, budget.Stats().Tokens, 0.3, "two tokens, 3 a second come back")
		require.Len(t, b.starts, 3)
	})
}

func TestHedgeLoserIsNoEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		br := breakerOf(t, resilience.BreakerConfig{})
		l := mustLimiter(t, resilience.FixedLimit(5))
		p := hedged(t, resilience.Hedge{}, resilience.WithSharedBreaker(br), resilience.WithSharedLimiter(l))
		calls := br.Stats().Calls
		b := &byLeg{took: []time.Duration{5 * time.Second, 50 * time.Millisecond}, deaf: true, errs: []error{errDown, nil}}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Equal(t, calls+1, br.Stats().Calls)
		require.Equal(t, 1, l.Stats().InFlight, "work that is abandoned counts until it ends")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Zero(t, l.Stats().InFlight)
		require.Zero(t, br.Stats().Failures)
	})
}

func TestHedgeLoserIsRecordedAsALowerBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{})
		before := p.Measured().HedgeThreshold.Samples
		b := &byLeg{took: []time.Duration{5 * time.Second, 50 * time.Millisecond}}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Greater(t, p.Measured().HedgeThreshold.Samples, before)
		require.InEpsilon(t, 150*time.Millisecond, p.Measured().HedgeThreshold.Value, 0.06)
		require.Equal(t, 2, p.Measured().AttemptCeiling.Samples, "the ceiling learns from successes only")
	})
}

func TestHedgeFailedLegDecidesNothingWhileAnotherRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bad := range []error{errDown, resilience.Permanent.Mark(errBug), &resilience.LimitedError{}} {
			p := hedged(t, resilience.Hedge{})
			b := &byLeg{took: []time.Duration{time.Second, 50 * time.Millisecond}, errs: []error{nil, bad}}
			r := resilience.TryDo(t.Context(), p, b.fn)
			require.NoError(t, r.Err)
			require.Equal(t, 1, r.Value)
			require.Equal(t, time.Second, r.Elapsed)
		}
	})
}

func TestHedgeValuesOfLosersAreReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{MaxConcurrent: 3})
		var mu sync.Mutex
		var all []*closer
		b := &byLeg{took: []time.Duration{time.Second, time.Second, 50 * time.Millisecond}, deaf: true}
		v, err := resilience.Do(t.Context(), p, func(ctx context.Context) (*closer, error) {
			_, err := b.fn(ctx)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, &closer{})
			return all[len(all)-1], err
		})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Len(t, all, 3)
		for _, c := range all {
			if c == v {
				require.Zero(t, c.closed)
			} else {
				require.Equal(t, 1, c.closed)
			}
		}
	})
}

func TestHedgeDiscardHookGetsTheLosersValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan int, 10)
		p := hedged(t, resilience.Hedge{}, resilience.OnDiscard(func(n int) { got <- n; panic("is swallowed") }))
		b := &byLeg{took: []time.Duration{time.Second, 50 * time.Millisecond}, deaf: true}
		v, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Equal(t, 2, v)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, got, 1)
		require.Equal(t, 1, <-got)
	})
}

func TestHedgePanicArrivesOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		value := &svcError{3}
		for name, panics := range map[string]int{"first leg": 1, "second leg": 2} {
			var h heard
			l := mustLimiter(t, resilience.FixedLimit(5))
			p := hedged(t, resilience.Hedge{}, h.option(), resilience.WithSharedLimiter(l))
			h.forget()
			func() {
				defer func() { require.Same(t, value, recover(), name) }()
				_ = p.Run(t.Context(), func(ctx context.Context) error {
					info, _ := resilience.AttemptFrom(ctx)
					time.Sleep(150 * time.Millisecond)
					if info.Number == panics {
						panic(value)
					}
					return hang(ctx)
				})
				t.Error("returned")
			}()
			require.Equal(t, []resilience.EventKind{resilience.EventPanicked}, h.terminals(), name)
			require.ErrorContains(t, h.of(resilience.EventPanicked)[0].Err, "TestHedgePanicArrivesOnTheCallersGoroutine", "the leg's own stack")
			time.Sleep(time.Second)
			synctest.Wait()
			require.Zero(t, l.Stats().InFlight, name)
		}
	})
}

func TestHedgeLateLoserThatPanicsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, h.option())
		h.forget()
		require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
			info, _ := resilience.AttemptFrom(ctx)
			if info.Number == 2 {
				return nil
			}
			time.Sleep(time.Second)
			panic("too late")
		}))
		time.Sleep(2 * time.Second)
		require.Len(t, h.of(resilience.EventOrphanedWork), 1)
		require.ErrorContains(t, h.of(resilience.EventOrphanedWork)[0].Err, "too late")
	})
}

func TestHedgeGoexitOfALeg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLimiter(t, resilience.FixedLimit(5))
		p := hedged(t, resilience.Hedge{}, resilience.WithSharedLimiter(l))
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = p.Run(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
			t.Error("returned")
		})
		wg.Wait()
		require.Zero(t, l.Stats().InFlight)
	})
}

func TestHedgeUnderACallerWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		br := breakerOf(t, resilience.BreakerConfig{})
		p := hedged(t, resilience.Hedge{}, h.option(), resilience.WithSharedBreaker(br))
		h.forget()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(150*time.Millisecond, cancel)
		r := p.Try(ctx, hang)
		require.Equal(t, 150*time.Millisecond, r.Elapsed)
		require.Equal(t, resilience.ReasonCancelled, r.Reason)
		require.ErrorIs(t, r.Err, context.Canceled)
		require.Equal(t, []resilience.EventKind{resilience.EventCancelled}, h.terminals())
		require.Zero(t, br.Stats().Failures)
	})
}

func TestHedgeRetriesAfterARaceThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, waits(time.Second), resilience.WithAttempts(3))
		b := &byLeg{took: []time.Duration{150 * time.Millisecond, 60 * time.Millisecond}, errs: []error{errDown, errBug, nil}}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.NoError(t, r.Err)
		require.Equal(t, 3, r.Value)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 1160 * time.Millisecond}, b.starts)
	})
}

func TestHedgeWinRateLoopHoldsHedgesThatDoNotWinBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{Window: time.Minute, WinRate: resilience.WinRate{Minimum: 0.5}}, h.option(), resilience.WithoutAttemptCeiling())
		share := func(d time.Duration, wins bool) float64 {
			h.forget()
			for begin := time.Now(); time.Since(begin) < d; {
				for range 20 { // keep the quantile at the shortest delay
					require.NoError(t, p.Run(t.Context(), succeed))
				}
				b := &byLeg{took: []time.Duration{time.Second, time.Hour}}
				if wins {
					b.took = []time.Duration{time.Second, 800 * time.Millisecond}
				}
				_, err := resilience.Do(t.Context(), p, b.fn)
				require.NoError(t, err)
			}
			started, suppressed := float64(len(h.of(resilience.EventHedgeStarted))), float64(len(h.of(resilience.EventHedgeSuppressed)))
			if wins {
				require.Len(t, h.of(resilience.EventHedgeWon), int(started))
			}
			return started / (started + suppressed)
		}
		require.Equal(t, 1.0, share(9*time.Second, false), "too few samples")
		require.InDelta(t, 0.5, share(30*time.Second, false), 0.25, "halved each quarter of the window")
		require.InDelta(t, 0.18, share(15*time.Second, false), 0.13)
		share(5*time.Minute, false)
		require.InDelta(t, 0.15, share(20*time.Minute, false), 0.13, "down to MinAllowance, and up again with too few samples")
		share(5*time.Minute, true)
		require.Equal(t, 1.0, share(5*time.Minute, true), "it returns")
	})
}

// hedgeTrial runs calls with lognormal latency and returns the share of hedged calls and the latencies.
func hedgeTrial(t *testing.T, q float64, calls int, opts ...resilience.Option) (share float64, latencies []time.Duration) {
	t.Helper()
	const callers = 20
	var h struct {
		sync.Mutex
		started, measured int
	}
	var counting bool
	opts = append(opts, resilience.WithListener(func(e resilience.Event) {
		if e.Kind == resilience.EventHedgeStarted {
			h.Lock()
			if counting {
				h.started++
			}
			h.Unlock()
		}
	}))
	p := retrying(append(opts, resilience.WithoutAttemptCeiling())...)
	latency := func(rng *rand.Rand) time.Duration {
		return time.Duration(float64(50*time.Millisecond) * math.Exp(0.5*rng.NormFloat64()))
	}
	run := func(n int) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		for g := range callers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), uint64(n))) //nolint:gosec // a test
				var mine []time.Duration
				for range n / callers {
					took := stopwatch()
					first, second := latency(rng), latency(rng)
					err := p.Run(t.Context(), func(ctx context.Context) error {
						d := first
						if info, _ := resilience.AttemptFrom(ctx); info.Hedged {
							d = second
						}
						timer := time.NewTimer(d)
						defer timer.Stop()
						select {
						case <-timer.C:
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					})
					if err != nil {
						t.Error(err)
					}
					mine = append(mine, took())
				}
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, mine...)
			})
		}
		wg.Wait()
	}
	run(2000) // warms up
	latencies = nil
	h.Lock()
	counting = true
	h.Unlock()
	run(calls)
	return float64(h.started) / float64(calls), latencies
}

func p99(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)*99/100]
}

func TestHedgeShareIsOneMinusQ(t *testing.T) {
	calls := 100_000
	if testing.Short() || resilience.RaceEnabled {
		calls = 10_000
	}
	t.Logf("%-10s %10s %10s %10s", "quantile", "1 - q", "hedged", "p99")
	for _, q := range []float64{0, 0.95, 0.9} {
		synctest.Test(t, func(t *testing.T) {
			opts := []resilience.Option{resilience.WithoutHedge()}
			if q > 0 {
				opts = []resilience.Option{resilience.WithHedge(resilience.HedgeAt(q))}
			}
			if q == 0 {
				calls := calls / 5
				_, latencies := hedgeTrial(t, q, calls, opts...)
				t.Logf("%-10s %10s %10s %10v", "none", "-", "-", p99(latencies).Round(100*time.Microsecond))
				return
			}
			share, latencies := hedgeTrial(t, q, calls, opts...)
			t.Logf("%-10v %9.1f%% %9.2f%% %10v", q, 100*(1-q), 100*share, p99(latencies).Round(100*time.Microsecond))
			require.InDelta(t, 1-q, share, 0.01)
		})
	}
}

func TestHedgeLoadInABrownoutStaysAtOneMinusQ(t *testing.T) {
	calls := 20_000
	if testing.Short() || resilience.RaceEnabled {
		calls = 8_000
	}
	synctest.Test(t, func(t *testing.T) {
		const q, callers = 0.9, 20
		var mu sync.Mutex
		var slowdown float64 = 1
		hedges, total := 0, 0
		p := retrying(resilience.WithHedge(resilience.HedgeAt(q)), resilience.WithoutAttemptCeiling())
		phase := func(n int, slow float64) float64 {
			mu.Lock()
			slowdown, hedges, total = slow, 0, 0
			mu.Unlock()
			var wg sync.WaitGroup
			for g := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 9)) //nolint:gosec // a test
					for range n / callers {
						mu.Lock()
						total++
						mu.Unlock()
						draw := [2]float64{rng.NormFloat64(), rng.NormFloat64()}
						_ = p.Run(t.Context(), func(ctx context.Context) error {
							info, _ := resilience.AttemptFrom(ctx)
							u := draw[0]
							mu.Lock()
							if info.Hedged {
								hedges++
								u = draw[1]
							}
							d := time.Duration(float64(50*time.Millisecond) * slowdown * math.Exp(0.5*u))
							mu.Unlock()
							timer := time.NewTimer(d)
							defer timer.Stop()
							select {
							case <-timer.C:
								return nil
							case <-ctx.Done():
								return ctx.Err()
							}
						})
					}
				})
			}
			wg.Wait()
			return float64(hedges) / float64(total)
		}
		phase(4000, 1)
		healthy := phase(calls, 1)
		onset := phase(callers*120, 10) // twice the 30 s window
		during := phase(calls, 10)
		t.Logf("extra load: healthy %.2f%%, onset %.2f%%, brownout %.2f%%", 100*healthy, 100*onset, 100*during)
		require.InDelta(t, 1-q, healthy, 0.015)
		require.InDelta(t, 1-q, during, 0.015, "a quantile that moves with the dependency does not hedge every call")
	})
}

// BR-055
func TestLoserThatAnswersLateLeaksItsValueOrGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{MinDelay: 10 * time.Millisecond, MaxConcurrent: 3}, resilience.WithoutAttemptCeiling())
		synctest.Wait()
		before := runtime.NumGoroutine()
		var mu sync.Mutex
		open, handed := 0, 0
		closed := map[*tracked]int{}
		for range 1000 {
			took := stopwatch()
			v, err := resilience.Do(t.Context(), p, func(ctx context.Context) (*tracked, error) {
				info, _ := resilience.AttemptFrom(ctx)
				time.Sleep([]time.Duration{100, 50, 150}[(info.Number-1)%3] * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				open++
				return &tracked{close: func(c *tracked) { mu.Lock(); open--; closed[c]++; mu.Unlock() }}, nil
			})
			require.NoError(t, err)
			require.Less(t, took(), 101*time.Millisecond)
			handed++
			require.NoError(t, v.Close())
			time.Sleep(time.Second)
		}
		synctest.Wait()
		require.Equal(t, 1000, handed)
		require.Zero(t, open)
		for _, n := range closed {
			require.Equal(t, 1, n, "exactly once each")
		}
		noGoroutineLeft(t, before)
	})
}

type tracked struct{ close func(*tracked) }

func (t *tracked) Close() error { t.close(t); return nil }

// BR-056
func TestEarlyFailureEndsTheRace(t *testing.T) {
	e1, e2, e3 := errors.New("e1"), errors.New("e2"), errors.New("e3")
	synctest.Test(t, func(t *testing.T) {
		second := resilience.Hedge{MinDelay: time.Second, MaxConcurrent: 3}
		// (a) A failed leg with nothing beside it ends the race: the retry starts at once, it does not wait for the hedge's delay.
		p := hedged(t, second)
		b := &byLeg{took: []time.Duration{5 * time.Millisecond, 10 * time.Millisecond}, errs: []error{e1, nil}}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.NoError(t, r.Err)
		require.Equal(t, 15*time.Millisecond, r.Elapsed)
		// (b)
		p = hedged(t, second)
		b = &byLeg{took: []time.Duration{5 * time.Second, 0, 0}, errs: []error{nil, e2, e3}}
		r = resilience.TryDo(t.Context(), p, b.fn)
		require.NoError(t, r.Err)
		require.Equal(t, 5*time.Second, r.Elapsed)
		require.Len(t, b.starts, 3)
		// (c)
		p = hedged(t, second)
		b = &byLeg{took: []time.Duration{2500 * time.Millisecond, 2500 * time.Millisecond, time.Second}, errs: []error{e1, e2, e3}}
		r = resilience.TryDo(t.Context(), p, b.fn)
		require.Equal(t, 3500*time.Millisecond, r.Elapsed, "when the last has failed")
		for _, e := range []error{e1, e2, e3, resilience.ErrAttemptsExhausted} {
			require.ErrorIs(t, r.Err, e)
		}
		require.Equal(t, 3, r.Total)
	})
}

// BR-057; a budget that refuses a hedge is silent (behaviour.md section 8), it raises no suppression.
func TestEmptyBudgetKillsTheAttemptsThatRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{MinDelay: 20 * time.Millisecond, MaxConcurrent: 3}, h.option(),
			resilience.WithBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off})) // one token, for ever
		for _, want := range []int32{2, 1, 1} {
			var calls atomic.Int32
			took := stopwatch()
			require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
				mine := calls.Add(1)
				time.Sleep(200 * time.Millisecond)
				if mine == 1 && ctx.Err() != nil {
					t.Error("the running attempt was cancelled")
				}
				return nil
			}))
			require.Equal(t, 200*time.Millisecond, took())
			require.Equal(t, want, calls.Load())
			time.Sleep(time.Second)
		}
		require.Empty(t, h.of(resilience.EventHedgeSuppressed))
		require.Empty(t, h.of(resilience.EventRejectedByBudget))
	})
}

// A leg that fails makes room for another one, whose delay counts from the newest leg.
func TestHedgeLegThatFailsMakesRoomForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{MaxConcurrent: 2})
		b := &byLeg{took: []time.Duration{10 * time.Second, 30 * time.Millisecond, 10 * time.Millisecond}, errs: []error{nil, errDown, nil}}
		took := stopwatch()
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.NoError(t, r.Err)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}, b.starts)
		require.Equal(t, 210*time.Millisecond, took())
		synctest.Wait()
	})
}

// A hook or a rule that panics while legs run must not keep what the leg held.
func TestHedgePanicOfAHookOrARuleGivesEverythingBack(t *testing.T) {
	for name, opt := range map[string]func(armed *bool) resilience.Option{
		"before-attempt hook of a further leg": func(armed *bool) resilience.Option {
			return resilience.WithBeforeAttempt(func(_ context.Context, a resilience.AttemptInfo) error {
				if *armed && a.Hedged {
					panic("hook")
				}
				return nil
			})
		},
		"before-attempt hook of the first leg": func(armed *bool) resilience.Option {
			return resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error {
				if *armed {
					panic("hook")
				}
				return nil
			})
		},
		"result rule": func(armed *bool) resilience.Option {
			return resilience.WithRules(resilience.OnResult("panics", func(int) resilience.Verdict {
				if *armed {
					panic("rule")
				}
				return resilience.OK
			}))
		},
		"error rule": func(armed *bool) resilience.Option {
			return resilience.WithRules(resilience.OnError("panics", resilience.Transient, func(error) bool {
				if *armed {
					panic("rule")
				}
				return false
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				armed := false
				br := breakerOf(t, resilience.BreakerConfig{})
				limiter, err := resilience.NewLimiter(resilience.FixedLimit(5))
				require.NoError(t, err)
				p := hedged(t, resilience.Hedge{}, opt(&armed), resilience.WithSharedBreaker(br), resilience.WithSharedLimiter(limiter))
				armed = true
				leg := &byLeg{took: []time.Duration{200 * time.Millisecond, 10 * time.Millisecond}}
				if name == "error rule" {
					leg.errs = []error{errDown}
				}
				require.Panics(t, func() { _, _ = resilience.Do(t.Context(), p, leg.fn) })
				synctest.Wait()
				require.Zero(t, limiter.Stats().InFlight)
				require.Equal(t, resilience.StateClosed, br.State())
			})
		})
	}
}
