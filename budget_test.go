package resilience_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func budgetOf(t testing.TB, c resilience.BudgetConfig) *resilience.Budget {
	t.Helper()
	b, err := resilience.NewBudget(c)
	require.NoError(t, err)
	return b
}

// spend takes up to n tokens: one retry each.
func spend(ctx context.Context, b *resilience.Budget, n int) (taken int) {
	p := retrying(resilience.WithSharedBudget(b), resilience.WithAttempts(2), resilience.WithDeadline(time.Nanosecond*1000))
	for range n {
		if p.Try(ctx, fail).Total == 2 {
			taken++
		}
	}
	return taken
}

func TestBudgetArithmetic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			c        resilience.BudgetConfig
			capacity float64
		}{
			{resilience.BudgetConfig{}, 30},
			{resilience.BudgetConfig{MinPerSecond: 1}, 10},
			{resilience.BudgetConfig{MinPerSecond: 0.01}, 1},
			{resilience.BudgetConfig{MinPerSecond: resilience.Off}, 1},
			{resilience.BudgetConfig{Fraction: 1, MinPerSecond: 100}, 1000},
		} {
			b := budgetOf(t, c.c)
			require.Equal(t, resilience.BudgetStats{Tokens: c.capacity, Capacity: c.capacity}, b.Stats(), "starts full")
		}

		b := budgetOf(t, resilience.BudgetConfig{})
		require.Equal(t, 30, spend(t.Context(), b, 40))
		at := b.Stats()
		require.Less(t, at.Tokens, 1.0)
		require.InDelta(t, 1, at.Spent, 0.05)
		time.Sleep(time.Second)
		require.InDelta(t, at.Tokens+3, b.Stats().Tokens, 1e-6, "3 per second of time")
		time.Sleep(time.Hour)
		require.Equal(t, 30.0, b.Stats().Tokens, "never above its capacity")
		require.Zero(t, b.Stats().Spent)
	})
}

func TestBudgetTakesDepositsOfSuccessfulCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgetOf(t, resilience.BudgetConfig{Fraction: 0.25, MinPerSecond: 1})
		p := retrying(resilience.WithSharedBudget(b), resilience.WithDeadline(time.Microsecond), resilience.WithAttempts(2))
		for range 8 {
			require.Error(t, p.Run(t.Context(), fail))
		}
		require.Equal(t, 2.0, b.Stats().Tokens)
		for range 4 {
			require.NoError(t, p.Run(t.Context(), succeed))
		}
		require.Equal(t, 3.0, b.Stats().Tokens)
		calls := 0
		require.NoError(t, p.Run(t.Context(), func(context.Context) error {
			calls++
			if calls == 1 {
				return errDown
			}
			return nil
		}))
		require.Equal(t, 2.25, b.Stats().Tokens, "a call deposits once, and its retry took one")
		require.Error(t, p.Run(t.Context(), scripted(resilience.Permanent.Mark(errBug)).fn))
		require.Equal(t, 2.25, b.Stats().Tokens, "a failure deposits nothing and, not retried, costs nothing")
	})
}

func TestExhaustedBudgetIsAGuardedRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		b := budgetOf(t, resilience.BudgetConfig{MinPerSecond: 1, Fraction: resilience.Off})
		require.Equal(t, 10, spend(t.Context(), b, 10))
		p := retrying(resilience.WithSharedBudget(b), h.option())
		took := stopwatch()
		s := scripted(errDown)
		r := p.Try(t.Context(), s.fn)
		require.Equal(t, 1, s.calls)
		require.Equal(t, 100*time.Millisecond, took())
		require.Equal(t, resilience.ReasonBudgetExhausted, r.Reason)
		require.ErrorIs(t, r.Err, resilience.ErrBudgetExhausted)
		require.ErrorIs(t, r.Err, errDown, "the original error is kept")
		require.InDelta(t, time.Second, report(t, r.Err).RetryAfter, float64(110*time.Millisecond), "one token in one second")
		require.Equal(t, []resilience.EventKind{resilience.EventAttempt, resilience.EventRejectedByBudget}, h.kinds())

		require.NoError(t, p.Run(t.Context(), succeed), "first attempts cost nothing")
	})
}

func TestSheddableRetriesLeaveHalfOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spent := func(c resilience.Criticality, on bool) int {
			b := budgetOf(t, resilience.BudgetConfig{MinPerSecond: 1})
			p := retrying(resilience.WithSharedBudget(b), resilience.WithCriticality(on), resilience.WithAttempts(2),
				resilience.WithDeadline(time.Microsecond))
			n := 0
			for range 20 {
				if p.Try(resilience.ContextWithCriticality(t.Context(), c), fail).Total == 2 {
					n++
				}
			}
			return n
		}
		require.Equal(t, 5, spent(resilience.Sheddable, true))
		require.Equal(t, 10, spent(resilience.Sheddable, false), "nobody asked to honour it")
		require.Equal(t, 10, spent(resilience.SheddablePlus, true))
		require.Equal(t, 10, spent(resilience.Critical, true))
		require.Equal(t, 10, spent(resilience.CriticalPlus, true))
	})
}

func TestThrottledIsChargedAndLimitedIsExempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			err  error
			want float64
		}{
			{resilience.Transient.Mark(errDown), 28},
			{resilience.Throttled.Mark(errDown), 28},
			{resilience.Limited.Mark(errDown), 30},
			{&resilience.LimitedError{}, 30},
		} {
			b := budgetOf(t, resilience.BudgetConfig{})
			require.Error(t, retrying(resilience.WithSharedBudget(b)).Run(t.Context(), scripted(c.err).fn))
			require.Equal(t, c.want, b.Stats().Tokens, "%v", c.err)
		}
	})
}

func TestBudgetIsPrivateUnlessShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithBudget(resilience.BudgetConfig{}))
		require.Error(t, p.Run(t.Context(), fail))
		require.Equal(t, 28.0, p.Budget().Stats().Tokens)
		d := p.MustWith(resilience.WithName("derived"))
		require.NotSame(t, p.Budget(), d.Budget())
		require.Equal(t, 30.0, d.Budget().Stats().Tokens, "fresh")

		shared := budgetOf(t, resilience.BudgetConfig{})
		p = p.MustWith(resilience.WithSharedBudget(shared))
		require.Same(t, shared, p.Budget())
		require.Same(t, shared, p.MustWith(resilience.WithName("x")).Budget(), "shared objects stay shared")
		require.Nil(t, p.MustWith(resilience.WithoutBudget()).Budget())
		require.NotNil(t, resilience.MustNew().Budget(), "on by default")
	})
}

func TestBudgetRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]resilience.BudgetConfig{
		"NaN": {Fraction: math.NaN()}, "Inf": {Fraction: math.Inf(1)}, "negative": {Fraction: -0.1}, "percent": {Fraction: 10},
		"NaN/s": {MinPerSecond: math.NaN()}, "Inf/s": {MinPerSecond: math.Inf(1)}, "negative/s": {MinPerSecond: -3}, "huge/s": {MinPerSecond: math.MaxFloat64},
	} {
		_, err := resilience.NewBudget(c)
		require.ErrorContains(t, err, "BudgetConfig.", name)
		_, err = resilience.New(resilience.WithBudget(c))
		require.ErrorContains(t, err, "BudgetConfig.", name)
	}
}

func TestRetryStormIsHeldToItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgetOf(t, resilience.BudgetConfig{})
		p := retrying(resilience.WithSharedBudget(b))
		calls, attempts := 0, 0
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 10 { // 100 calls a second for 100 seconds, all of which fail
			wg.Go(func() {
				for range 1000 {
					r := p.Try(t.Context(), fail)
					mu.Lock()
					calls++
					attempts += r.Total
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 10000, calls)
		require.LessOrEqual(t, attempts-calls, 30+3*210, "a full bucket and 3 per second")
		require.Greater(t, attempts-calls, 300)
	})
}
