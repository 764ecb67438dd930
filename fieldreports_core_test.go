package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// BR-001
func TestBackoffSleepGoesOnAfterTheCallerHasCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goroutines := runtime.NumGoroutine()
		p := retrying(waits(10 * time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second, cancel)
		took := stopwatch()
		s := scripted(errDown)
		err := p.Run(ctx, s.fn)
		require.Equal(t, 2*time.Second, took())
		require.Equal(t, 1, s.calls)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errDown)
		synctest.Wait()
		noGoroutineLeft(t, goroutines)
	})
}

// BR-002
func TestWaitingForARetryThatCannotStartBeforeTheDeadline(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     []resilience.Option
		callers  time.Duration
		err      error
		attempts int
		needed   string
		left     string
	}{
		{"a", []resilience.Option{resilience.WithBackoff(resilience.Backoff{Max: time.Hour})}, time.Hour, resilience.Transient.After(time.Minute).Mark(errDown), 1, "1m0s", "30s"},
		{"b", []resilience.Option{waits(10 * time.Second)}, 5 * time.Second, errDown, 1, "10s", "5s"},
		{"c, a tie", []resilience.Option{waits(10 * time.Second), resilience.WithDeadline(10 * time.Second)}, time.Hour, errDown, 1, "10s", "10s"},
		{"d", []resilience.Option{waits(9999 * time.Millisecond), resilience.WithDeadline(10 * time.Second), resilience.WithAttempts(2)}, time.Hour, errDown, 2, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.callers)
				defer cancel()
				begin := time.Now()
				var starts, deadlines []time.Duration
				err := retrying(c.opts...).Run(ctx, func(ctx context.Context) error {
					d, _ := ctx.Deadline()
					starts, deadlines = append(starts, time.Since(begin)), append(deadlines, d.Sub(begin))
					return c.err
				})
				require.Len(t, starts, c.attempts)
				require.ErrorIs(t, err, errDown)
				if c.attempts == 2 {
					require.Equal(t, 9999*time.Millisecond, starts[1])
					require.Equal(t, 10*time.Second, deadlines[1])
					return
				}
				require.Zero(t, time.Since(begin))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, c.needed)
				require.ErrorContains(t, err, c.left)
			})
		})
	}
}

// BR-003
func TestAttemptTimeoutReplacesAShorterCallerDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		calls := 0
		err := retrying(resilience.WithAttemptTimeout(10*time.Second)).Run(ctx, func(ctx context.Context) error {
			calls++
			d, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, 3*time.Second, d.Sub(begin))
			return hang(ctx)
		})
		require.Equal(t, 3*time.Second, time.Since(begin))
		require.Equal(t, 1, calls)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, resilience.ErrAttemptTimeout)

		begin = time.Now()
		var starts, deadlines []time.Duration
		err = retrying(resilience.WithDeadline(5*time.Second), resilience.WithAttemptTimeout(2*time.Second), resilience.WithAttempts(math.MaxInt)).
			Run(t.Context(), func(ctx context.Context) error {
				d, _ := ctx.Deadline()
				starts, deadlines = append(starts, time.Since(begin)), append(deadlines, d.Sub(begin))
				return hang(ctx)
			})
		require.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second}, starts)
		require.Equal(t, []time.Duration{2 * time.Second, 4 * time.Second, 5 * time.Second}, deadlines)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
	})
}

// BR-004; (b) behaviour.md section 2 wins: an attempt that the caller's deadline cut is evidence while the baseline is cold.
func TestAttemptTimeoutIsMistakenForTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		var cause error
		calls := 0
		fn := func(ctx context.Context) error {
			calls++
			if calls > 1 {
				return nil
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}
		took := stopwatch()
		require.NoError(t, retrying(resilience.WithDeadline(10*time.Second), resilience.WithAttemptTimeout(time.Second), resilience.WithSharedBreaker(b)).Run(t.Context(), fn))
		require.Equal(t, time.Second, took())
		require.Equal(t, 2, calls)
		require.Equal(t, 2, b.Stats().Calls)
		require.Equal(t, 1, b.Stats().Failures)
		require.ErrorIs(t, cause, resilience.ErrAttemptTimeout)

		b = breakerOf(t, resilience.BreakerConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		calls, took = 0, stopwatch()
		require.ErrorIs(t, retrying(resilience.WithAttemptTimeout(5*time.Second), resilience.WithSharedBreaker(b)).Run(ctx, fn), resilience.ErrDeadlineExceeded)
		require.Equal(t, time.Second, took())
		require.Equal(t, 1, calls)
		require.Equal(t, 1, b.Stats().Failures)

		b = breakerOf(t, resilience.BreakerConfig{})
		s := scripted(fmt.Errorf("remote: %w", context.DeadlineExceeded))
		p := resilience.MustNew(resilience.WithSharedBreaker(b), resilience.WithBackoff(resilience.NoBackoff()))
		require.ErrorIs(t, p.Run(t.Context(), s.fn), resilience.ErrAttemptsExhausted)
		require.Equal(t, 3, s.calls)
		require.Equal(t, 3, b.Stats().Failures)
	})
}

// BR-005
func TestDeadContextRunsTheFunctionOrEatsAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := gridBreaker(t, resilience.StateHalfOpen)
		l := mustLimiter(t, resilience.FixedLimit(1))
		budget := budgetOf(t, resilience.BudgetConfig{})
		p := retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), resilience.WithSharedBudget(budget))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := p.Try(ctx, func(context.Context) error { t.Error("called"); return nil })
		require.ErrorIs(t, r.Err, context.Canceled)
		require.Zero(t, r.Total)
		require.Zero(t, l.Stats().InFlight)
		require.Equal(t, 30.0, budget.Stats().Tokens)
		require.NoError(t, p.Run(t.Context(), succeed), "admitted as the probe, at the same instant")

		live := func(fn func(context.Context) error) func(context.Context) error {
			return func(ctx context.Context) error {
				require.NoError(t, ctx.Err())
				return fn(ctx)
			}
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took := stopwatch()
		r = retrying(resilience.WithAttempts(10), waits(10*time.Millisecond)).Try(ctx, live(hang))
		require.Equal(t, 1, r.Total)
		require.Equal(t, time.Second, took())

		var starts []time.Duration
		begin := time.Now()
		r = retrying(resilience.WithDeadline(time.Second), resilience.WithAttempts(10), waits(200*time.Millisecond)).Try(t.Context(), live(func(ctx context.Context) error {
			starts = append(starts, time.Since(begin))
			timer := time.NewTimer(400 * time.Millisecond)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return errDown
		}))
		require.Equal(t, []time.Duration{0, 600 * time.Millisecond}, starts)
		require.Equal(t, time.Second, r.Elapsed)
		require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
	})
}

// BR-007
func TestChildContextsPileUpUnderALongLivedParent(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	defer cancel()
	calls := 100_000
	if testing.Short() || resilience.RaceEnabled {
		calls = 20_000
	}
	p := retrying(resilience.WithAttemptTimeout(time.Hour), resilience.WithDeadline(time.Hour))
	goroutines := runtime.NumGoroutine()
	var sampled []context.Context
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // a heap
	}
	var before int64
	for i := range calls {
		if i == 1000 {
			before = heap()
		}
		sample := i%(calls/100) == 0
		require.NoError(t, p.Run(parent, func(ctx context.Context) error {
			if i%2 == 0 {
				ctx.Done()
			}
			if sample {
				sampled = append(sampled, ctx)
			}
			return nil
		}))
		if sample {
			require.Error(t, sampled[len(sampled)-1].Err())
		}
	}
	require.Less(t, heap()-before, int64(1<<20))
	noGoroutineLeft(t, goroutines)
	runtime.KeepAlive(sampled)
}

// BR-009
func TestStateOfOneCallLeaksIntoTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithDeadline(5*time.Second), resilience.WithAttempts(math.MaxInt))
		time.Sleep(time.Minute)
		calls, took := 0, stopwatch()
		err := p.Run(t.Context(), func(context.Context) error { calls++; time.Sleep(time.Second); return errDown })
		require.Equal(t, 5, calls)
		require.Equal(t, 5*time.Second, took())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errDown)

		p = retrying(resilience.WithBackoff(resilience.Backoff{Jitter: resilience.JitterNone}), resilience.WithAttempts(5))
		one := func() {
			n, begin := 0, time.Now()
			var starts []time.Duration
			if err := p.Run(t.Context(), func(context.Context) error {
				n++
				starts = append(starts, time.Since(begin))
				if n < 5 {
					return errDown
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			ms := time.Millisecond
			if fmt.Sprint(starts) != fmt.Sprint([]time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}) {
				t.Error(starts)
			}
		}
		one()
		one()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(one)
		}
		wg.Wait()
	})
}

// BR-010
func TestExponentialBackoffOverflowsAndTurnsIntoNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none := resilience.JitterNone
		var h heard
		p := retrying(h.option(), resilience.WithDeadline(time.Hour), resilience.WithAttempts(math.MaxInt),
			resilience.WithBackoff(resilience.Backoff{Base: 100 * time.Millisecond, Max: time.Second, Jitter: none}))
		r := p.Try(t.Context(), fail)
		require.Equal(t, 3603, r.Total)
		retries := h.of(resilience.EventRetrying)
		for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			require.Equal(t, want*time.Millisecond, retries[i].Delay)
		}
		for _, n := range []int{37, 64, 1024, 1025} {
			require.Equal(t, time.Second, retries[n-1].Delay, n)
		}

		last := time.Duration(0) // (b) without a cap of its own it settles on the documented maximum, 30 s
		for _, d := range delays(t, 5001, errDown, resilience.WithBackoff(resilience.Backoff{Base: time.Second, Jitter: none})) {
			require.Positive(t, d)
			require.GreaterOrEqual(t, d, last)
			last = d
		}
		require.Equal(t, 30*time.Second, last)
		last = 0
		for _, d := range delays(t, 100, errDown, resilience.WithBackoff(resilience.Backoff{Base: time.Second, Max: 100 * 24 * time.Hour, Jitter: none, Factor: 1.5})) {
			require.Positive(t, d)
			require.GreaterOrEqual(t, d, last)
			last = d
		}

		var sum time.Duration
		all := delays(t, 2025, errDown, resilience.WithBackoff(resilience.Backoff{Base: 2 * time.Second}))
		for i, d := range all {
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.LessOrEqual(t, d, 30*time.Second)
			if i >= 1024 {
				sum += d
			}
		}
		require.InDelta(t, 15*time.Second, sum/1000, float64(time.Second))

		for _, d := range delays(t, 30, errDown, resilience.WithBackoff(resilience.Backoff{Base: time.Hour, Factor: 10, Jitter: none})) {
			require.Equal(t, time.Hour, d, "a base above the default maximum is the maximum")
		}
	})
}

// BR-011; 0 can occur under full jitter, which the doc of JitterFull says.
func TestJitterOfZeroOrOneNanosecondPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, make([]time.Duration, 9), delays(t, 10, errDown, resilience.WithBackoff(resilience.NoBackoff())))
		for _, d := range delays(t, 10, errDown, resilience.WithBackoff(resilience.Backoff{Base: 1, Max: 1})) {
			require.LessOrEqual(t, d, time.Duration(1))
		}
		want := 300 * time.Millisecond
		for _, d := range delays(t, 7, errDown, resilience.WithBackoff(resilience.Backoff{Base: 300 * time.Millisecond, Jitter: resilience.JitterNone})) {
			require.Equal(t, want, d)
			want *= 2
		}
		_, err := resilience.New(resilience.WithBackoff(resilience.Backoff{Jitter: 200}))
		require.ErrorContains(t, err, "Backoff.Jitter")
		var sum time.Duration
		zeros := 0
		for _, d := range delays(t, 10_001, errDown, resilience.WithBackoff(resilience.Backoff{Factor: 1})) {
			sum += d
			if d == 0 {
				zeros++
			}
		}
		require.InDelta(t, 50*time.Millisecond, sum/10_000, float64(2*time.Millisecond))
		require.LessOrEqual(t, zeros, 10)
	})
}

// BR-012; there is no source to inject: the generator of math/rand/v2 is safe for concurrent use.
func TestSharedRandomSourceCorruptsUnderConcurrentRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 1000
		if testing.Short() || resilience.RaceEnabled {
			runs = 100
		}
		var calls, outside atomic.Int64
		p := retrying(resilience.WithBackoff(resilience.Backoff{Base: 10 * time.Millisecond}), resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventRetrying && (e.Delay < 0 || e.Delay > 10*time.Millisecond) {
				outside.Add(1)
			}
		}))
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range runs {
					n := 0
					_ = p.Run(t.Context(), func(context.Context) error {
						calls.Add(1)
						n++
						if n == 1 {
							return errDown
						}
						return nil
					})
				}
			})
		}
		wg.Wait()
		require.Equal(t, int64(128*runs), calls.Load())
		require.Zero(t, outside.Load())
	})
}

// BR-013
func TestAttemptCountsAreOffByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 3; n++ {
			s := scripted(errDown)
			require.Error(t, retrying(resilience.WithAttempts(n)).Run(t.Context(), s.fn))
			require.Equal(t, n, s.calls)
		}
		for _, n := range []int{0, -1, math.MinInt} {
			_, err := resilience.New(resilience.WithAttempts(n))
			require.ErrorContains(t, err, "WithAttempts")
		}
		s := scripted(errDown)
		require.Error(t, retrying(resilience.WithAttempts(math.MaxInt), resilience.WithDeadline(time.Second), waits(time.Millisecond)).Run(t.Context(), s.fn))
		require.Equal(t, 1000, s.calls)
		s = scripted(errDown)
		require.Error(t, retrying().Run(t.Context(), s.fn))
		require.Equal(t, 3, s.calls)
		require.Contains(t, resilience.MustNew().String(), "3 attempts", "visible where the policy is printed")
	})
}

// BR-014; (a) the refusal comes after the guarded pause of 100 ms, (b) behaviour.md wins: a limiter's refusal is retried on the long curve.
func TestRefusalsOfTheOwnGuardsBurnTheRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1, OpenFor: time.Minute}))
		budget := budgetOf(t, resilience.BudgetConfig{})
		p := retrying(h.option(), resilience.WithSharedBreaker(b), resilience.WithSharedBudget(budget), resilience.WithAttempts(5), waits(time.Second))
		time.Sleep(time.Second)
		s, took := scripted(errDown), stopwatch()
		require.ErrorIs(t, p.Run(t.Context(), s.fn), resilience.ErrBreakerOpen)
		require.Equal(t, 100*time.Millisecond, took())
		require.Zero(t, s.calls)
		require.Len(t, h.all, 1)
		require.Equal(t, 30.0, budget.Stats().Tokens)

		b = breakerOf(t, resilience.BreakerConfig{})
		l := mustLimiter(t, resilience.FixedLimit(1))
		_, err := l.Acquire(t.Context())
		require.NoError(t, err)
		p = retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), resilience.WithSharedBudget(budget))
		for range 100 {
			require.ErrorIs(t, p.Run(t.Context(), s.fn), resilience.ErrLimited)
		}
		require.Zero(t, s.calls)
		require.Zero(t, b.Stats().Calls)
		require.Equal(t, resilience.StateClosed, b.State())
		require.Equal(t, 30.0, budget.Stats().Tokens)
	})
}

// BR-015
func TestNestedPoliciesMultiplyTheAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for layers, wants := range map[int][2]int{2: {3, 9}, 3: {3, 27}} {
			for i, optIn := range []bool{false, true} {
				leaf, retries := 0, 0
				call := func(ctx context.Context) error {
					leaf++
					d, _ := ctx.Deadline()
					require.Equal(t, time.Second, time.Until(d), "the smallest deadline of all layers")
					return errDown
				}
				for layer := range layers {
					p := retrying(resilience.WithNestedRetries(optIn), resilience.WithDeadline(time.Duration(layers-layer)*time.Second),
						resilience.WithListener(func(e resilience.Event) {
							if e.Kind == resilience.EventRetrying {
								retries++
							}
						}))
					inner := call
					call = func(ctx context.Context) error { return p.Run(ctx, inner) }
				}
				require.ErrorIs(t, call(t.Context()), errDown)
				require.Equal(t, wants[i], leaf)
				require.Equal(t, leaf-1, retries, "the retries of all layers together")
			}
		}
	})
}

// BR-016
func TestDoNotRetryMarkerLeaksOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var texts []string
		for n := 1; n <= 3; n++ {
			budget := budgetOf(t, resilience.BudgetConfig{Fraction: 1})
			p := retrying(resilience.WithAttempts(n), resilience.WithSharedBudget(budget))
			r := p.Try(t.Context(), func(context.Context) error { return resilience.Permanent.Mark(nil) })
			require.True(t, r.Err == nil)
			require.Equal(t, resilience.ReasonSucceeded, r.Reason)
			require.Equal(t, 1, r.Total)
			for _, err := range []error{resilience.Permanent.Mark(errDown), fmt.Errorf("ctx: %w", resilience.Permanent.Mark(errDown))} {
				r = p.Try(t.Context(), scripted(err).fn)
				require.Equal(t, 1, r.Total)
				require.ErrorIs(t, r.Err, errDown)
				texts = append(texts, r.Err.Error())
			}
		}
		require.Equal(t, texts[:2], texts[2:4])
		require.Equal(t, texts[:2], texts[4:])
	})
}

// BR-019, the part that is not about headers: a hint longer than Max stops the call (behaviour.md section 5), it is not capped.
func TestHugeHintBringsABurstInsteadOfARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			hint, deadline time.Duration
			calls          int
			wait           time.Duration
		}{
			{math.MaxInt64, time.Hour, 1, 0},
			{9223372036 * time.Second, time.Hour, 1, 0},
			{61 * time.Second, time.Hour, 1, 0},
			{math.MaxInt64, 30 * time.Second, 1, 0},
			{30 * time.Second, time.Hour, 2, 30 * time.Second},
			{60 * time.Second, time.Hour, 2, time.Minute},
		} {
			for _, j := range []resilience.Jitter{resilience.JitterFull, resilience.JitterEqual} {
				p := retrying(resilience.WithDeadline(c.deadline), resilience.WithBackoff(resilience.Backoff{Base: time.Second, Max: time.Minute, Jitter: j}))
				s, took := scripted(resilience.Throttled.After(c.hint).Mark(errDown), nil), stopwatch()
				err := p.Run(t.Context(), s.fn)
				require.Equal(t, c.calls, s.calls)
				require.Equal(t, c.wait, took())
				require.Equal(t, c.calls == 1, err != nil)
			}
		}
		own := delays(t, 2, resilience.Throttled.After(-5*time.Second).Mark(errDown), resilience.WithBackoff(resilience.Backoff{Jitter: resilience.JitterNone}))
		require.Equal(t, []time.Duration{time.Second}, own, "a negative hint is none")
	})
}

// BR-021
func TestRetryTokensNeverComeBackOrPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := 1_000_000
		if testing.Short() || resilience.RaceEnabled {
			many = 10_000
		}
		for _, c := range []struct{ successes, failing, calls, refused int }{{0, 11, 21, 1}, {100, 11, 21, 1}, {many, 100, 110, 90}} {
			p := retrying(resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1}), resilience.WithAttempts(2), resilience.WithDeadline(time.Nanosecond))
			if c.successes == 100 {
				for range 10 { // an empty bucket: a hundred tenths must be ten
					require.Equal(t, 2, p.Try(t.Context(), fail).Total)
				}
			}
			for range c.successes {
				_ = p.Run(t.Context(), succeed)
			}
			calls, refused := 0, 0
			for range c.failing {
				r := p.Try(t.Context(), fail)
				calls += r.Total
				if errors.Is(r.Err, resilience.ErrBudgetExhausted) {
					refused++
				}
			}
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.refused, refused)
		}
	})
}

// BR-023; behaviour.md wins: the budget is a bucket of tokens, not a share of concurrent calls. What is left of the report: an
// idle budget reads no NaN, and check and take are one step.
func TestIdleBudgetLetsEverythingThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 1000
		if testing.Short() || resilience.RaceEnabled {
			rounds = 100
		}
		s := resilience.MustNew().Budget().Stats()
		require.Zero(t, s.Spent)
		require.False(t, math.IsNaN(s.Tokens))
		for range rounds {
			p := retrying(resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 0.3, Fraction: resilience.Off}), resilience.WithAttempts(2), resilience.WithDeadline(time.Nanosecond))
			var retries, refused atomic.Int64
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					r := p.Try(t.Context(), fail)
					retries.Add(int64(r.Total - 1))
					if errors.Is(r.Err, resilience.ErrBudgetExhausted) {
						refused.Add(1)
					}
				})
			}
			wg.Wait()
			require.Equal(t, int64(3), retries.Load())
			require.Equal(t, int64(7), refused.Load())
		}
	})
}

// BR-024
func TestStateIsSharedWhereItShouldNotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := []resilience.Option{
			resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}), resilience.WithClassifier(resilience.RetryAll()), resilience.WithAttempts(1),
		}
		p1, p2 := resilience.MustNew(opts...), resilience.MustNew(opts...)
		p3 := p1
		require.Error(t, p1.Run(t.Context(), fail))
		require.ErrorIs(t, p3.Run(t.Context(), succeed), resilience.ErrBreakerOpen, "copies share")
		require.NoError(t, p2.Run(t.Context(), succeed), "two policies of the same options do not")
		require.NotSame(t, p1.Budget(), p2.Budget())
		require.NoError(t, p1.MustWith(resilience.WithAttempts(2)).Run(t.Context(), succeed), "a derived one starts fresh")
	})
}

// BR-085
func TestRealErrorIsHiddenBehindTheLocalRule(t *testing.T) {
	for _, c := range []struct {
		name   string
		opts   []resilience.Option
		second func(ctx context.Context, cancel context.CancelCauseFunc) error
		is     []error
	}{
		{"a deadline during backoff", []resilience.Option{waits(time.Minute)}, nil, []error{context.DeadlineExceeded, resilience.ErrDeadlineExceeded}},
		{"b attempt limit", nil, nil, []error{resilience.ErrAttemptsExhausted}},
		{"b attempt limit of 1", []resilience.Option{resilience.WithAttempts(1)}, nil, []error{resilience.ErrAttemptsExhausted}},
		{"c budget empty", []resilience.Option{resilience.WithBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off})}, nil, []error{resilience.ErrBudgetExhausted}},
		{"d caller cancels during backoff", []resilience.Option{waits(10 * time.Second)}, nil, []error{context.Canceled, errBug}},
		{"e breaker opens", []resilience.Option{resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1})}, nil, []error{resilience.ErrBreakerOpen}},
		{"f deadline during attempt 2", []resilience.Option{resilience.WithDeadline(3 * time.Second)}, func(ctx context.Context, _ context.CancelCauseFunc) error { return hang(ctx) }, []error{context.DeadlineExceeded}},
		{"f wrapped", []resilience.Option{resilience.WithDeadline(3 * time.Second)}, func(ctx context.Context, _ context.CancelCauseFunc) error {
			return fmt.Errorf("read: %w", hang(ctx))
		}, []error{context.DeadlineExceeded}},
		{"cancelled during attempt 2", nil, func(ctx context.Context, cancel context.CancelCauseFunc) error { cancel(errBug); return hang(ctx) }, []error{context.Canceled, errBug}},
		{"drained", nil, nil, []error{resilience.ErrDraining}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				if strings.HasPrefix(c.name, "d caller") {
					time.AfterFunc(time.Second, func() { cancel(errBug) })
				}
				if c.name == "drained" {
					d := resilience.NewDrain()
					d.Begin(time.Minute)
					c.opts = append(c.opts, resilience.WithDrain(d))
				}
				calls := 0
				p := retrying(append(c.opts, resilience.WithName("orders"))...)
				err := p.Run(ctx, func(ctx context.Context) error {
					calls++
					if calls == 2 && c.second != nil {
						return c.second(ctx, cancel)
					}
					return fmt.Errorf("call: %w", &svcError{503})
				})
				var svc *svcError
				require.ErrorAs(t, err, &svc, "%v", err)
				require.Equal(t, 503, svc.code)
				for _, is := range c.is {
					require.ErrorIs(t, err, is)
				}
				e := report(t, err)
				require.ErrorContains(t, err, "orders")
				require.ErrorContains(t, err, e.Reason.String())
				require.ErrorContains(t, err, fmt.Sprintf("%d attempt", calls))
				require.ErrorContains(t, err, svc.Error())
				require.Equal(t, calls, e.Total)
			})
		})
	}
}

// BR-088
func TestClassifierPanicsRunsTwiceOrContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// (a)
		l := mustLimiter(t, resilience.FixedLimit(1))
		b := breakerOf(t, resilience.BreakerConfig{})
		asked := 0
		p := retrying(resilience.WithSharedLimiter(l), resilience.WithSharedBreaker(b), resilience.WithRules(resilience.OnResult("x", func(*closer) resilience.Verdict {
			asked++
			if asked == 2 {
				panic(errBug)
			}
			return resilience.Transient
		})))
		var all []*closer
		require.PanicsWithValue(t, errBug, func() {
			_, _ = resilience.Do(t.Context(), p, func(context.Context) (*closer, error) {
				all = append(all, &closer{})
				return all[len(all)-1], nil
			})
		})
		require.Len(t, all, 2)
		for _, c := range all {
			require.Equal(t, 1, c.closed)
		}
		require.Zero(t, l.Stats().InFlight)
		require.NoError(t, p.Run(t.Context(), succeed))

		// (b)
		var ended, judged atomic.Int64
		q := retrying(resilience.WithHedge(resilience.Hedge{Quantile: 0.5, MinSamples: 1}), resilience.WithAttempts(3), resilience.WithRules(
			resilience.OnError("count", resilience.Transient, func(error) bool { judged.Add(1); return true })))
		require.NoError(t, q.Run(t.Context(), succeed))
		for range 1000 {
			_ = q.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); ended.Add(1); return errDown })
		}
		require.Equal(t, int64(3000), ended.Load())
		require.Equal(t, ended.Load(), judged.Load(), "exactly once per finished attempt")

		// (d)
		r := retrying(resilience.WithSharedBreaker(b), resilience.WithRules(resilience.OnError("slow", resilience.Transient, func(error) bool {
			time.Sleep(time.Second)
			return true
		})), resilience.WithAttempts(1))
		var wg sync.WaitGroup
		took := stopwatch()
		for range 10 {
			wg.Go(func() { _ = r.Run(t.Context(), fail) })
		}
		wg.Wait()
		require.Equal(t, time.Second, took(), "no lock is held meanwhile")
	})
}

// BR-089; one leg that panics beside a good one: whichever ends first. A panic is passed on as soon as it is seen.
func TestPanicInAHelperGoroutineKillsTheProcess(t *testing.T) {
	var nilMap map[string]int
	for name, boom := range map[string]func(){
		"pointer": func() { panic(errBug) },
		"abort":   func() { panic(http.ErrAbortHandler) },
		"runtime": func() { nilMap["x"]++ },
	} {
		synctest.Test(t, func(t *testing.T) {
			for range 100 {
				p := hedged(t, resilience.Hedge{})
				func() {
					defer func() {
						switch got := recover(); name {
						case "pointer":
							require.Same(t, errBug, got)
						case "abort":
							require.True(t, got == http.ErrAbortHandler)
						default:
							require.Implements(t, (*runtime.Error)(nil), got)
						}
					}()
					_ = p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); boom(); return nil })
				}()
				synctest.Wait()
				time.Sleep(time.Second)
			}
			for range 100 { // the first leg panics when the second has long succeeded
				p := hedged(t, resilience.Hedge{})
				require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
					if info, _ := resilience.AttemptFrom(ctx); info.Number == 1 {
						time.Sleep(time.Second)
						boom()
					}
					return nil
				}))
				time.Sleep(time.Second)
			}
		})
	}
}

// BR-090
func TestWorkThatOutlivesItsTimeoutLeaksAGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			opts []resilience.Option
			want time.Duration
		}{
			"one attempt": {[]resilience.Option{resilience.WithAttempts(1)}, time.Second},
			"retries":     {nil, 3 * time.Second},
			"hedged":      {[]resilience.Option{resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1, MinDelay: time.Millisecond}), resilience.WithAttempts(2)}, time.Second + time.Millisecond},
		} {
			p := retrying(append(c.opts, resilience.WithAttemptTimeout(10*time.Millisecond), resilience.WithoutAttemptCeiling())...)
			if name == "hedged" {
				require.NoError(t, p.Run(t.Context(), succeed))
			}
			goroutines := runtime.NumGoroutine()
			var wg sync.WaitGroup
			took := stopwatch()
			for range 1000 {
				wg.Go(func() {
					if err := p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return errDown }); !errors.Is(err, resilience.ErrAttemptTimeout) {
						t.Error(err)
					}
				})
			}
			if name != "hedged" {
				time.Sleep(500 * time.Millisecond)
				require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1000, "no helper goroutines")
			}
			wg.Wait()
			require.Equal(t, c.want, took(), "Run waits for the callback: %s", name)
			synctest.Wait()
			noGoroutineLeft(t, goroutines)
		}
	})
}

// BR-093; the timers of the standard package are not countable: what is asked is that the bubble ends and the memory is free.
func TestTimersAreLeftRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 10_000
		if testing.Short() || resilience.RaceEnabled {
			calls = 1000
		}
		goroutines := runtime.NumGoroutine()
		long := []resilience.Option{resilience.WithAttemptTimeout(time.Hour), resilience.WithDeadline(2 * time.Hour)}
		p := retrying(append(long, resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1, MinDelay: time.Hour}))...)
		for range calls {
			_ = p.Run(t.Context(), func(ctx context.Context) error { ctx.Done(); return nil })
		}
		p = retrying(append(long, resilience.WithBackoff(resilience.Backoff{Base: time.Hour, Jitter: resilience.JitterNone}))...)
		for range calls {
			ctx, cancel := context.WithCancel(t.Context())
			_ = p.Run(ctx, func(context.Context) error { go cancel(); return errDown })
		}
		p = retrying(long...)
		for range calls {
			func() {
				defer func() { _ = recover() }()
				_ = p.Run(t.Context(), func(ctx context.Context) error { ctx.Done(); panic(1) })
			}()
		}
		synctest.Wait()
		noGoroutineLeft(t, goroutines)
		// A timer that was left would wake somebody up; nothing may happen in the next hours but this sleep.
		took := stopwatch()
		time.Sleep(5 * time.Hour)
		require.Equal(t, 5*time.Hour, took())
	})
	collected := make(chan struct{})
	func() {
		p := retrying(resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1, OpenFor: time.Hour}), resilience.WithAttempts(1))
		_ = p.Run(context.Background(), fail)
		runtime.AddCleanup(p.Breaker(), func(int) { close(collected) }, 0)
	}()
	for range 100 {
		runtime.GC()
		select {
		case <-collected:
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("an open breaker keeps itself alive")
}

// BR-100, for the Go options: a zero field of a settings struct is its default, 0 in an option of its own is refused.
func TestZeroNegativeAndAbsentMeanDifferentThings(t *testing.T) {
	def := resilience.MustNew().String()
	for name, opt := range map[string]resilience.Option{
		"backoff": resilience.WithBackoff(resilience.Backoff{}), "budget": resilience.WithBudget(resilience.BudgetConfig{}),
		"ceiling": resilience.WithAttemptCeiling(resilience.CeilingAbove(3)), "deadline": resilience.WithDeadline(30 * time.Second),
		"attempts": resilience.WithAttempts(3), "attempt timeout": resilience.WithAttemptTimeout(10 * time.Second),
	} {
		p, err := resilience.New(opt)
		require.NoError(t, err, name)
		require.Equal(t, def, p.String(), name)
		require.Equal(t, resilience.MustNew().Explain(), p.Explain(), "%s: what is absent is the printed default", name)
	}
	for name, opt := range map[string]resilience.Option{
		"smallest deadline": resilience.WithDeadline(1), "smallest attempt timeout": resilience.WithAttemptTimeout(1),
		"largest deadline": resilience.WithDeadline(resilience.Unbounded - 1), "largest attempt timeout": resilience.WithAttemptTimeout(resilience.Unbounded - 1),
		"smallest base": resilience.WithBackoff(resilience.Backoff{Base: 1}), "largest base": resilience.WithBackoff(resilience.Backoff{Base: math.MaxInt64}),
		"largest cap":        resilience.WithBackoff(resilience.Backoff{Max: math.MaxInt64}),
		"smallest hedge":     resilience.WithHedge(resilience.Hedge{Quantile: 0.5, MinDelay: 1, Window: 1, MinSamples: 1, MaxConcurrent: 2}),
		"largest hedge":      resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinDelay: math.MaxInt64, Window: math.MaxInt64, MinSamples: math.MaxInt, MaxConcurrent: 100}),
		"largest floor":      resilience.WithSaturation(resilience.Saturation{Multiple: math.MaxFloat64, Floor: math.MaxInt64, MinSamples: math.MaxInt}),
		"largest ceiling":    resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: math.MaxFloat64, Window: math.MaxInt64, MinSamples: math.MaxInt}),
		"largest base, none": resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Multiple: math.MaxFloat64, Spread: math.MaxFloat64, Window: math.MaxInt64}),
	} {
		p, err := resilience.New(opt)
		require.NoError(t, err, name)
		for range 3 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { return nil }), name)
		}
		require.NotEmpty(t, p.Explain(), name)
		p.Measured()
	}
}

// BR-101; behaviour.md wins: an attempt timeout above the deadline is legal, Explain says that it never binds.
func TestCombinationsThatMakeNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		opt   resilience.Option
		names []string
	}{
		"percent":       {resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 50}), []string{"FailureRatio"}},
		"above 1":       {resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 1.0001}), []string{"FailureRatio"}},
		"min > max":     {resilience.WithLimiter(resilience.LimiterConfig{Min: 10, Max: 5}), []string{"Min", "Max"}},
		"initial > max": {resilience.WithLimiter(resilience.LimiterConfig{Initial: 20, Max: 10}), []string{"Initial", "Max"}},
		"base > cap":    {resilience.WithBackoff(resilience.Backoff{Base: 10 * time.Second, Max: time.Second}), []string{"Backoff.Base", "Backoff.Max"}},
		"fixed and max": {resilience.WithLimiter(resilience.LimiterConfig{Fixed: 10, Max: 20}), []string{"Fixed", "Max"}},
		"absorbed":      {resilience.WithBreaker(resilience.BreakerConfig{Window: time.Minute, Failures: resilience.RelativeFailures{Window: time.Minute}}), []string{"Failures.Window"}},
	} {
		_, err := resilience.New(c.opt)
		for _, n := range c.names {
			require.ErrorContains(t, err, n, name)
		}
	}
	p, err := resilience.New(resilience.WithAttemptTimeout(10*time.Second), resilience.WithDeadline(5*time.Second))
	require.NoError(t, err)
	require.Contains(t, p.Explain(), "never binds")
}

// BR-103
func TestReloadingConfigurationLeaksOrForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var current atomic.Pointer[resilience.Policy]
		set := func(timeout time.Duration) {
			p := retrying(resilience.WithAttemptTimeout(timeout), resilience.WithoutAttemptCeiling(), resilience.WithBreaker(resilience.BreakerConfig{}),
				resilience.WithLimiter(resilience.AdaptiveLimit(100)), resilience.WithHedge(resilience.HedgeAt(0.9)))
			current.Store(&p)
		}
		set(time.Second)
		took := stopwatch()
		var wg sync.WaitGroup
		wg.Go(func() {
			err := current.Load().Run(resilience.SingleShot(t.Context()), hang)
			if !errors.Is(err, resilience.ErrAttemptTimeout) || took() != time.Second {
				t.Errorf("the running call keeps its second: %v %v", took(), err)
			}
		})
		synctest.Wait()
		goroutines := runtime.NumGoroutine()
		var stop atomic.Bool
		for range 16 {
			wg.Go(func() {
				for !stop.Load() {
					_ = current.Load().Run(t.Context(), func(ctx context.Context) error { time.Sleep(time.Millisecond); return ctx.Err() })
				}
			})
		}
		reloads := 10_000
		if testing.Short() || resilience.RaceEnabled {
			reloads = 500
		}
		heap := func() int64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc) //nolint:gosec // a heap
		}
		before := heap()
		for range reloads {
			set(10 * time.Millisecond)
			time.Sleep(100 * time.Microsecond)
		}
		require.Less(t, heap()-before, int64(5<<20))
		stop.Store(true)
		wg.Wait()
		synctest.Wait()
		noGoroutineLeft(t, goroutines)
		current.Store(nil)
	})
}
