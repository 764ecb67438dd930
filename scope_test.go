package resilience_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestScopeDerivesOnePolicyPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		template := retrying(resilience.WithName("db"), resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}), resilience.WithAttempts(1))
		s, err := resilience.NewScope(template, resilience.ScopeConfig[string]{})
		require.NoError(t, err)
		require.Zero(t, s.Len())
		a := s.For("a")
		require.True(t, a == s.For("a"))
		require.False(t, a == s.For("b"))
		require.Equal(t, "db:a", a.Name())
		require.Equal(t, 2, s.Len())
		require.Error(t, a.Run(t.Context(), fail))
		require.Equal(t, resilience.StateOpen, a.Breaker().State())
		require.Equal(t, resilience.StateClosed, s.For("b").Breaker().State())
		require.Equal(t, resilience.StateClosed, template.Breaker().State())
		found := map[string]resilience.Policy{}
		for k, p := range s.All() {
			found[k] = p
		}
		require.Equal(t, map[string]resilience.Policy{"a": a, "b": s.For("b")}, found)
		for range s.All() {
			break
		}
	})
}

func TestScopeIsBoundedAndSparesOpenBreakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		template := retrying(resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}), resilience.WithAttempts(1))
		s, err := resilience.NewScope(template, resilience.ScopeConfig[int]{Max: 4, Name: func(k int) string { return fmt.Sprint("k", k) }})
		require.NoError(t, err)
		require.Error(t, s.For(0).Run(t.Context(), fail))
		open := s.For(0)
		require.Equal(t, "k0", open.Name())
		for k := 1; k < 1000; k++ {
			s.For(k)
			require.LessOrEqual(t, s.Len(), 4)
		}
		require.True(t, open == s.For(0), "an open breaker must not be forgotten by a flood of keys")
		n := 0
		for range s.All() {
			n++
		}
		require.Equal(t, 4, n)
	})
}

func TestScopeGivesASecondChance(t *testing.T) {
	s, err := resilience.NewScope(retrying(), resilience.ScopeConfig[int]{Max: 10})
	require.NoError(t, err)
	hot := s.For(-1)
	for k := range 1000 {
		s.For(k)
		require.True(t, hot == s.For(-1), "used between any two newcomers")
	}
}

func TestScopeOfAllOpenBreakersStillTakesNewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		template := retrying(resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}), resilience.WithAttempts(1))
		s, err := resilience.NewScope(template, resilience.ScopeConfig[int]{Max: 3})
		require.NoError(t, err)
		for k := range 20 {
			require.Error(t, s.For(k).Run(t.Context(), fail))
			require.LessOrEqual(t, s.Len(), 3)
		}
	})
}

func TestScopeSharesWhatIsShared(t *testing.T) {
	b := breakerOf(t, resilience.BreakerConfig{})
	budget := budgetOf(t, resilience.BudgetConfig{})
	s, err := resilience.NewScope(retrying(resilience.WithSharedBreaker(b), resilience.WithSharedBudget(budget), resilience.WithLimiter(resilience.FixedLimit(1))), resilience.ScopeConfig[int]{})
	require.NoError(t, err)
	require.Same(t, b, s.For(1).Breaker())
	require.Same(t, b, s.For(2).Breaker())
	require.Same(t, budget, s.For(2).Budget())
	require.NotSame(t, s.For(1).Limiter(), s.For(2).Limiter())
}

func TestScopeAtItsEdges(t *testing.T) {
	_, err := resilience.NewScope(retrying(), resilience.ScopeConfig[int]{Max: -1})
	require.ErrorContains(t, err, "ScopeConfig.Max")
	zero, err := resilience.NewScope(resilience.Policy{}, resilience.ScopeConfig[int]{})
	require.NoError(t, err)
	require.NoError(t, zero.For(1).Run(t.Context(), succeed))
	nan, err := resilience.NewScope(retrying(), resilience.ScopeConfig[float64]{Max: 2})
	require.NoError(t, err)
	for range 100 {
		require.NoError(t, nan.For(math.NaN()).Run(t.Context(), succeed))
	}
	require.LessOrEqual(t, nan.Len(), 2)
}

func TestScopeIsSafeForConcurrentUse(t *testing.T) {
	s, err := resilience.NewScope(retrying(resilience.WithBreaker(resilience.BreakerConfig{})), resilience.ScopeConfig[int]{Max: 8})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				_ = s.For((i*(g+1))%20).Run(context.Background(), succeed)
				if i%100 == 0 {
					for range s.All() {
					}
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, s.Len(), 8)
}

// markingClock has the search for a victim find marks that were set again: an open breaker asks it what time it is.
type markingClock struct{ mark func() }

func (c *markingClock) Now() time.Time                       { c.mark(); return time.Time{} }
func (c *markingClock) After(time.Duration) <-chan time.Time { return nil }

func TestScopeSparesAnOpenBreakerBesideHotKeys(t *testing.T) {
	c := &markingClock{mark: func() {}}
	template := resilience.MustNew(resilience.WithClock(c), resilience.WithBreaker(resilience.BreakerConfig{}))
	s, err := resilience.NewScope[int](template, resilience.ScopeConfig[int]{Max: 2})
	require.NoError(t, err)
	broken := s.For(1).Breaker()
	broken.Isolate()
	s.For(2)
	c.mark = func() { s.For(2) }
	s.For(3)
	c.mark = func() {}
	require.Same(t, broken, s.For(1).Breaker())
}
