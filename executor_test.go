package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestOrderOfOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		b := breakerOf(t, resilience.BreakerConfig{})
		l := mustLimiter(t, resilience.FixedLimit(1))
		say := func(format string, args ...any) { order = append(order, fmt.Sprintf(format, args...)) }
		p := resilience.MustNew(
			resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l),
			resilience.WithDeadline(20*time.Second), resilience.WithAttemptTimeout(5*time.Second),
			resilience.WithBeforeAttempt(func(ctx context.Context, a resilience.AttemptInfo) error {
				_, inside := resilience.AttemptFrom(ctx)
				time.Sleep(time.Second) // outside of the attempt's bound
				say("before %d: in flight %d, under an attempt %v, bound %v, remaining %v", a.Number, l.Stats().InFlight, inside, a.Bound, a.Remaining)
				return nil
			}),
			resilience.WithAdmit(func(ctx context.Context, a resilience.AttemptInfo) error {
				info, inside := resilience.AttemptFrom(ctx)
				say("admit %d: under an attempt %v, the same %v, bound %v, remaining %v", a.Number, inside, info == a, a.Bound, a.Remaining)
				return nil
			}),
			resilience.WithRules(resilience.OnError("look", resilience.Permanent, func(error) bool {
				say("rule: in flight %d, results %d", l.Stats().InFlight, b.Stats().Calls)
				return true
			})),
			resilience.WithListener(func(e resilience.Event) {
				say("event %v: in flight %d", e.Kind, l.Stats().InFlight)
			}),
		)
		require.Same(t, errBug, p.Run(t.Context(), func(context.Context) error {
			say("callback: in flight %d", l.Stats().InFlight)
			return errBug
		}))
		require.Equal(t, []string{
			"before 1: in flight 1, under an attempt false, bound 5s, remaining 20s",
			"admit 1: under an attempt true, the same true, bound 5s, remaining 19s",
			"callback: in flight 1",
			"rule: in flight 1, results 0",
			"event attempt: in flight 0",
			"event not retried: in flight 0",
		}, order)
	})
}

func TestLimiterIsAskedBeforeTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1}))
		time.Sleep(16 * time.Second)
		require.Equal(t, resilience.StateHalfOpen, b.State())
		l := mustLimiter(t, resilience.FixedLimit(1))
		permit, err := l.Acquire(t.Context())
		require.NoError(t, err)
		p := retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), resilience.WithAttempts(1))
		require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrLimited)

		permit.Release(resilience.OK)
		require.NoError(t, p.Run(t.Context(), succeed), "the refused call must not have spent the probe")
	})
}

func TestBreakerRefusalReturnsThePermitAndStopsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		b.Isolate()
		l := mustLimiter(t, resilience.FixedLimit(1))
		var h heard
		p := retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), waits(time.Second), h.option())
		held := -1
		time.AfterFunc(50*time.Millisecond, func() { held = l.Stats().InFlight })
		took := stopwatch()
		r := p.Try(t.Context(), func(context.Context) error { t.Error("called"); return nil })
		require.Equal(t, 100*time.Millisecond, took(), "the guarded pause")
		synctest.Wait()
		require.Zero(t, held, "no permit is held during the pause")
		require.ErrorIs(t, r.Err, resilience.ErrBreakerOpen)
		require.Equal(t, resilience.ReasonBreakerOpen, r.Reason)
		require.Zero(t, r.Total)
		require.Empty(t, r.Attempts)
		require.Zero(t, l.Stats().InFlight)
		require.Equal(t, []resilience.EventKind{resilience.EventRejectedByBreaker}, h.kinds())
	})
}

func TestLimiterRefusalIsAnAttemptOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLimiter(t, resilience.FixedLimit(1))
		b := breakerOf(t, resilience.BreakerConfig{})
		permit, err := l.Acquire(t.Context())
		require.NoError(t, err)
		budget, err := resilience.NewBudget(resilience.BudgetConfig{})
		require.NoError(t, err)
		p := resilience.MustNew(
			resilience.WithSharedLimiter(l), resilience.WithSharedBreaker(b), resilience.WithSharedBudget(budget),
			resilience.WithBackoff(resilience.Backoff{Jitter: resilience.JitterNone}),
			resilience.WithClassifier(resilience.NewClassifier()), // nothing is retried, but for the limiter's refusal
		)
		go func() {
			time.Sleep(2500 * time.Millisecond)
			permit.Release(resilience.OK)
		}()
		took := stopwatch()
		r := p.Try(t.Context(), succeed)
		require.NoError(t, r.Err)
		require.Equal(t, 3*time.Second, took(), "the long curve: 1s, then 2s")
		require.Equal(t, 3, r.Total)
		require.Equal(t, resilience.Limited, r.Attempts[0].Verdict)
		require.ErrorIs(t, r.Attempts[0].Err, resilience.ErrLimited)
		require.Zero(t, r.Attempts[0].Duration)
		require.Equal(t, 1, b.Stats().Calls, "a refusal is no evidence")
		require.Equal(t, 30.0, budget.Stats().Tokens, "a refusal costs no token")
	})
}

func TestBeforeHookEndsTheCallAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := resilience.Transient.Mark(errDown) // which nobody reads
		var h heard
		asked := 0
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1})
		l := mustLimiter(t, resilience.FixedLimit(1))
		p := retrying(h.option(), resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l),
			resilience.WithRules(resilience.OnError("count", resilience.Transient, func(error) bool { asked++; return true })),
			resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { return refusal }))
		r := p.Try(t.Context(), func(context.Context) error { t.Error("called"); return nil })
		require.True(t, r.Err == refusal, "the very error, got %v", r.Err)
		require.Equal(t, resilience.ReasonPermanent, r.Reason)
		require.Zero(t, asked)
		require.Equal(t, []resilience.EventKind{resilience.EventNotRetried}, h.kinds(), "not retried, and no attempt was judged")
		require.Zero(t, l.Stats().InFlight)
		require.Zero(t, b.Stats().Calls)
	})
}

func TestBeforeHookCountsAgainstTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithDeadline(time.Second),
			resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error {
				time.Sleep(2 * time.Second)
				return nil
			}))
		r := p.Try(t.Context(), func(context.Context) error { t.Error("called"); return nil })
		require.ErrorIs(t, r.Err, resilience.ErrDeadlineExceeded)
		require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
	})
}

func TestAdmitHookIsTheOutcomeOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		called := 0
		p := retrying(resilience.WithSharedBreaker(b), resilience.WithAdmit(func(ctx context.Context, a resilience.AttemptInfo) error {
			if a.Number < 3 {
				return errDown
			}
			return nil
		}))
		r := p.Try(t.Context(), func(context.Context) error { called++; return nil })
		require.NoError(t, r.Err)
		require.Equal(t, 1, called)
		require.Equal(t, 3, r.Total)
		require.Equal(t, 2, b.Stats().Failures, "it is inside classification")

		p = retrying(resilience.WithAttempts(1), resilience.WithAttemptTimeout(time.Second),
			resilience.WithAdmit(func(ctx context.Context, _ resilience.AttemptInfo) error { return hang(ctx) }))
		took := stopwatch()
		require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrAttemptTimeout)
		require.Equal(t, time.Second, took(), "it is inside the attempt's bound")
	})
}

func TestAdmitHookMayRefuseWithALimitedError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, err := resilience.NewBudget(resilience.BudgetConfig{})
		require.NoError(t, err)
		p := resilience.MustNew(resilience.WithSharedBudget(budget), resilience.WithAdmit(func(_ context.Context, a resilience.AttemptInfo) error {
			if a.Number == 1 {
				return fmt.Errorf("quota: %w", &resilience.LimitedError{Limiter: "quota", RetryAfter: 7 * time.Second})
			}
			return nil
		}))
		took := stopwatch()
		require.NoError(t, p.Run(t.Context(), succeed))
		require.Equal(t, 7*time.Second, took(), "the guard's hint, exactly")
		require.Equal(t, 30.0, budget.Stats().Tokens)
	})
}

func TestDecisionsComeInOrder(t *testing.T) {
	never := errors.New("never")
	for _, c := range []struct {
		name string
		opts []resilience.Option
		fn   func(ctx context.Context, cancel context.CancelFunc) error
		want resilience.Reason
	}{
		{
			name: "cancelled before permanent", want: resilience.ReasonCancelled,
			opts: []resilience.Option{resilience.WithClassifier(resilience.NewClassifier())},
			fn:   func(_ context.Context, cancel context.CancelFunc) error { cancel(); return never },
		},
		{
			name: "ok before cancelled", want: resilience.ReasonSucceeded,
			fn: func(_ context.Context, cancel context.CancelFunc) error { cancel(); return nil },
		},
		{
			name: "permanent before deadline", want: resilience.ReasonPermanent,
			opts: []resilience.Option{
				resilience.WithDeadline(time.Second), resilience.WithAttemptTimeout(500 * time.Millisecond),
				resilience.WithBackoff(resilience.ConstantBackoff(time.Second)), resilience.WithClassifier(resilience.NewClassifier()),
			},
			fn: func(context.Context, context.CancelFunc) error { return never },
		},
		{
			name: "deadline before exhausted", want: resilience.ReasonDeadlineExceeded,
			opts: []resilience.Option{resilience.WithDeadline(time.Second), resilience.WithAttempts(1)},
			fn:   func(ctx context.Context, _ context.CancelFunc) error { return hang(ctx) },
		},
		{
			name: "exhausted before a wait that does not fit", want: resilience.ReasonAttemptsExhausted,
			opts: []resilience.Option{resilience.WithDeadline(time.Second), resilience.WithAttempts(1), waits(time.Minute)},
			fn:   func(context.Context, context.CancelFunc) error { return never },
		},
		{
			name: "a wait that does not fit before the breaker", want: resilience.ReasonDeadlineExceeded,
			opts: []resilience.Option{
				resilience.WithDeadline(time.Second), waits(time.Minute),
				resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}),
			},
			fn: func(context.Context, context.CancelFunc) error { return never },
		},
		{
			name: "the breaker before the budget", want: resilience.ReasonBreakerOpen,
			opts: []resilience.Option{
				resilience.WithBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off}),
				resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1}),
			},
			fn: func(context.Context, context.CancelFunc) error { return never },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := retrying(c.opts...).Try(ctx, func(ctx context.Context) error { return c.fn(ctx, cancel) })
				require.Equal(t, c.want, r.Reason, "%v", r.Err)
			})
		})
	}
}

func TestRetryThatCannotHappenCostsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, opts := range map[string][]resilience.Option{
			"the wait does not fit":  {resilience.WithDeadline(time.Second), waits(time.Minute)},
			"the breaker is open":    {resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1})},
			"no attempts are left":   {resilience.WithAttempts(1)},
			"the error is permanent": {resilience.WithClassifier(resilience.NewClassifier())},
		} {
			budget, err := resilience.NewBudget(resilience.BudgetConfig{})
			require.NoError(t, err)
			p := retrying(append(opts, resilience.WithSharedBudget(budget))...)
			require.Error(t, p.Run(t.Context(), fail), name)
			require.Equal(t, 30.0, budget.Stats().Tokens, name)
		}
	})
}

func TestWaitFitsOnlyWithTheNormalLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls int
		p := retrying(resilience.WithBreaker(resilience.BreakerConfig{}), waits(time.Second),
			resilience.WithDeadline(10*time.Second), resilience.WithAttempts(100))
		slow := func(context.Context) error { time.Sleep(2 * time.Second); return nil }
		for range 100 {
			require.NoError(t, p.Run(t.Context(), slow))
		}
		normal, warm := p.Measured().NormalLatency.Get()
		require.True(t, warm)
		require.InDelta(t, 2*time.Second, normal, float64(100*time.Millisecond))

		// 10 s: attempts of 2 s that fail, and waits of 1 s. The third ends at 8 s: 1 s + 2 s do not fit into what is left.
		took := stopwatch()
		r := p.Try(t.Context(), func(context.Context) error { calls++; time.Sleep(2 * time.Second); return errDown })
		require.Equal(t, 8*time.Second, took())
		require.Equal(t, 3, calls)
		require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
		require.ErrorIs(t, r.Err, errDown)
		require.Same(t, errDown, errors.Unwrap(r.Err))
	})
}

func TestFirstAttemptAlwaysRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithBreaker(resilience.BreakerConfig{}))
		for range 50 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return nil }))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		called := false
		require.NoError(t, p.Run(ctx, func(context.Context) error { called = true; return nil }),
			"the normal latency is a second: that is no reason not to try")
		require.True(t, called)
	})
}

func TestPanicTravelsWithItsValueAndStack(t *testing.T) {
	value := &svcError{1}
	var nilMap map[string]int
	for name, boom := range map[string]func(context.Context) error{
		"pointer": func(context.Context) error { panic(value) },
		"runtime": func(context.Context) error { nilMap["x"] = 1; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1})
			l := mustLimiter(t, resilience.FixedLimit(1))
			var h heard
			calls := 0
			p := retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), h.option())
			func() {
				defer func() {
					got := recover()
					require.NotNil(t, got)
					if name == "pointer" {
						require.Same(t, value, got)
					} else {
						require.Implements(t, (*runtime.Error)(nil), got)
					}
					buf := make([]byte, 1<<16)
					require.Contains(t, string(buf[:runtime.Stack(buf, false)]), "TestPanicTravelsWithItsValueAndStack.func",
						"a deferred function still sees the stack of the panic")
				}()
				_ = p.Run(t.Context(), func(ctx context.Context) error { calls++; return boom(ctx) })
			}()
			require.Equal(t, 1, calls, "a panic is never retried")
			require.Zero(t, b.Stats().Calls, "and no evidence")
			require.Zero(t, l.Stats().InFlight)
			require.Equal(t, []resilience.EventKind{resilience.EventPanicked}, h.kinds())
			require.Equal(t, resilience.ReasonPanicked, h.all[0].Reason)
		})
	}
}

func TestGoexitReleasesEverything(t *testing.T) {
	b := breakerOf(t, resilience.BreakerConfig{})
	l := mustLimiter(t, resilience.FixedLimit(1))
	var h heard
	p := retrying(resilience.WithSharedBreaker(b), resilience.WithSharedLimiter(l), h.option())
	var kept context.Context
	done := make(chan bool)
	go func() {
		defer close(done)
		_ = p.Run(t.Context(), func(ctx context.Context) error {
			kept = ctx
			runtime.Goexit()
			return nil
		})
		t.Error("Run returned")
	}()
	<-done
	require.Zero(t, l.Stats().InFlight)
	require.Error(t, kept.Err())
	require.Equal(t, []resilience.EventKind{resilience.EventPanicked}, h.kinds())
	require.NoError(t, p.Run(t.Context(), succeed))
}

func TestZeroPolicyAddsNothing(t *testing.T) {
	var p resilience.Policy
	ctx := t.Context()
	require.Same(t, errDown, p.Run(ctx, func(got context.Context) error {
		require.True(t, got == ctx, "the caller's own context")
		return errDown
	}))
	v, err := resilience.Do(ctx, p, func(context.Context) (int, error) { return 7, errDown })
	require.Equal(t, 7, v)
	require.Same(t, errDown, err)
	r := resilience.TryDo(ctx, p, func(context.Context) (int, error) { return 7, nil })
	require.Equal(t, 7, r.Value)
	require.Equal(t, resilience.ReasonSucceeded, r.Reason)
	require.Equal(t, 1, r.Total)
	require.Len(t, r.Attempts, 1)
	require.Empty(t, p.Name())
	require.Nil(t, p.Breaker())
	require.Nil(t, p.Limiter())
	require.Nil(t, p.Budget())
	require.Equal(t, resilience.Measured{}, p.Measured())
	require.PanicsWithValue(t, 1, func() { _ = p.Run(ctx, func(context.Context) error { panic(1) }) })

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	called := false
	require.NoError(t, p.Run(cancelled, func(context.Context) error { called = true; return nil }))
	require.True(t, called)
}

func TestNilArgumentsAreErrors(t *testing.T) {
	for name, p := range map[string]resilience.Policy{
		"zero": {}, "default": resilience.MustNew(), "hedged": resilience.MustNew(resilience.WithHedge(resilience.HedgeAt(0.9))),
	} {
		var nilContext context.Context
		require.ErrorContains(t, p.Run(nilContext, succeed), "context is nil", name)
		require.ErrorContains(t, p.Run(t.Context(), nil), "callback is nil", name)
		require.ErrorContains(t, p.Try(nilContext, succeed).Err, "context is nil", name)
		require.ErrorContains(t, p.Try(t.Context(), nil).Err, "callback is nil", name)
		require.NotEqual(t, resilience.ReasonSucceeded, p.Try(t.Context(), nil).Reason, name)
		_, err := resilience.Do[int](t.Context(), p, nil)
		require.ErrorContains(t, err, "callback is nil", name)
		_, err = resilience.Do(nilContext, p, func(context.Context) (int, error) { return 0, nil })
		require.ErrorContains(t, err, "context is nil", name)
		require.ErrorContains(t, resilience.TryDo[int](t.Context(), p, nil).Err, "callback is nil", name)
	}
	_, ok := resilience.AttemptFrom(nil) //nolint:staticcheck // that is the point
	require.False(t, ok)
}

func TestResultTellsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		p := retrying(resilience.WithName("orders"), resilience.WithAttemptTimeout(time.Second), waits(100*time.Millisecond))
		r := resilience.TryDo(t.Context(), p, func(context.Context) (string, error) {
			calls++
			time.Sleep(time.Duration(calls) * 10 * time.Millisecond)
			if calls < 3 {
				return "half", errDown
			}
			return "whole", nil
		})
		require.NoError(t, r.Err)
		require.Equal(t, "whole", r.Value)
		require.Equal(t, 3, r.Total)
		require.Equal(t, 260*time.Millisecond, r.Elapsed)
		require.Equal(t, []resilience.Attempt{
			{Number: 1, Duration: 10 * time.Millisecond, Bound: time.Second, Verdict: resilience.Transient, Err: errDown},
			{Number: 2, Start: 110 * time.Millisecond, Duration: 20 * time.Millisecond, Bound: time.Second, Verdict: resilience.Transient, Err: errDown},
			{Number: 3, Start: 230 * time.Millisecond, Duration: 30 * time.Millisecond, Bound: time.Second, Verdict: resilience.OK},
		}, r.Attempts)
	})
}

func TestAttemptLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithAttempts(1000))
		r := p.Try(t.Context(), fail)
		require.Equal(t, 1000, r.Total)
		var numbers []int
		for _, a := range r.Attempts {
			numbers = append(numbers, a.Number)
		}
		require.Equal(t, []int{1, 2, 3, 4, 989, 990, 991, 992, 993, 994, 995, 996, 997, 998, 999, 1000}, numbers)
		require.Equal(t, r.Attempts, report(t, r.Err).Attempts)
		require.Equal(t, 1000, report(t, r.Err).Total)
	})
}

func TestSingleShotMakesOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		p := retrying(resilience.WithSharedBreaker(b))
		s := scripted(errDown)
		r := p.Try(resilience.SingleShot(t.Context()), s.fn)
		require.Equal(t, 1, s.calls)
		require.Equal(t, resilience.ReasonAttemptsExhausted, r.Reason)
		require.ErrorIs(t, r.Err, resilience.ErrAttemptsExhausted)
		require.Equal(t, 1, b.Stats().Failures, "the guards are fed")
	})
}

func TestGuardedRejectionIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{})
		b.Isolate()
		p := retrying(resilience.WithSharedBreaker(b))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		took := stopwatch()
		require.ErrorIs(t, p.Run(ctx, succeed), resilience.ErrBreakerOpen)
		require.Equal(t, 30*time.Millisecond, took(), "by the caller's cancellation")

		took = stopwatch()
		p = p.MustWith(resilience.WithDeadline(40 * time.Millisecond))
		require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrBreakerOpen)
		require.Equal(t, 40*time.Millisecond, took(), "by the time left")
	})
}

func TestRejectionSaysWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tripped(t, breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1, OpenFor: time.Minute}))
		wait := b.Stats().RetryAfter
		require.Positive(t, wait)
		p := retrying(resilience.WithSharedBreaker(b))
		e := report(t, p.Run(t.Context(), succeed))
		require.InDelta(t, wait, e.RetryAfter, float64(100*time.Millisecond))
	})
}
