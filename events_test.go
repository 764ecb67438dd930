package resilience_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestExactlyOneTerminalEventForEveryEnding(t *testing.T) {
	off := resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off}
	hedge := resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1})
	for _, c := range []struct {
		name     string
		opts     []resilience.Option
		fn       func(ctx context.Context, cancel context.CancelFunc) error
		want     resilience.EventKind
		attempts int
	}{
		{"success", nil, func(context.Context, context.CancelFunc) error { return nil }, resilience.EventSucceeded, 1},
		{"permanent", nil, func(context.Context, context.CancelFunc) error { return resilience.Permanent.Mark(errBug) }, resilience.EventNotRetried, 1},
		{"exhausted", nil, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventExhausted, 3},
		{"deadline", []resilience.Option{resilience.WithDeadline(time.Second)}, func(ctx context.Context, _ context.CancelFunc) error { return hang(ctx) }, resilience.EventDeadlineExceeded, 1},
		{"wait too long", []resilience.Option{waits(time.Minute)}, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventDeadlineExceeded, 1},
		{"breaker", []resilience.Option{resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 2})}, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventRejectedByBreaker, 2},
		{"budget", []resilience.Option{resilience.WithBudget(off)}, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventRejectedByBudget, 2},
		{"cancelled", nil, func(_ context.Context, cancel context.CancelFunc) error { cancel(); return errDown }, resilience.EventCancelled, 1},
		{"panicked", nil, func(context.Context, context.CancelFunc) error { panic(1) }, resilience.EventPanicked, 0},
		{"goexit", nil, func(context.Context, context.CancelFunc) error { runtime.Goexit(); return nil }, resilience.EventPanicked, 0},
		{"hook error", []resilience.Option{resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { return errBug })}, nil, resilience.EventNotRetried, 0},
		{"hook panic", []resilience.Option{resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { panic(1) })}, nil, resilience.EventPanicked, 0},
		{"admit panic", []resilience.Option{resilience.WithAdmit(func(context.Context, resilience.AttemptInfo) error { panic(1) })}, nil, resilience.EventPanicked, 0},
		{"curve panic", []resilience.Option{resilience.WithBackoff(resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration { panic(1) }})}, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventPanicked, 1},
		{"rule panic", []resilience.Option{resilience.WithRules(resilience.OnError("x", resilience.Transient, func(error) bool { panic(1) }))}, func(context.Context, context.CancelFunc) error { return errDown }, resilience.EventPanicked, 0},
	} {
		for _, hedged := range []bool{false, true} {
			name := c.name
			if hedged {
				name += ", hedged"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var h heard
					opts := c.opts
					if hedged {
						opts = append(opts, hedge)
					}
					opts = append(opts, h.option())
					p := retrying(opts...)
					if hedged && c.fn != nil && c.name != "breaker" {
						require.NoError(t, p.Run(t.Context(), succeed)) // warms the threshold
						require.Equal(t, resilience.Warm, p.Measured().HedgeThreshold.State)
						h.forget()
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { _ = recover() }()
						_ = p.Run(ctx, func(ctx context.Context) error { return c.fn(ctx, cancel) })
					}()
					<-done
					require.Equal(t, []resilience.EventKind{c.want}, h.terminals())
					kinds := h.kinds()
					require.True(t, kinds[len(kinds)-1].Terminal(), "%v", kinds)
					attempts := c.attempts
					if hedged && c.name == "deadline" {
						attempts = 2 // the second leg is cut as well
					}
					require.Len(t, h.of(resilience.EventAttempt), attempts, "%v", kinds)
					last := h.of(c.want)[0]
					require.Equal(t, p.Name(), last.Policy)
				})
			})
		}
	}
}

func TestEventsOfOneCallInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := retrying(h.option(), resilience.WithName("orders"), waits(time.Second), resilience.WithAttempts(2))
		err := p.Run(t.Context(), func(context.Context) error { time.Sleep(100 * time.Millisecond); return errDown })
		attempt := func(n int) resilience.Event {
			return resilience.Event{
				Kind: resilience.EventAttempt, Policy: "orders", Attempt: n, Verdict: resilience.Transient, Duration: 100 * time.Millisecond, Err: errDown,
			}
		}
		require.Equal(t, []resilience.Event{
			attempt(1),
			{Kind: resilience.EventRetrying, Policy: "orders", Attempt: 2, Delay: time.Second, Err: errDown},
			attempt(2),
			{Kind: resilience.EventExhausted, Policy: "orders", Attempt: 2, Duration: 1200 * time.Millisecond, Err: err, Reason: resilience.ReasonAttemptsExhausted},
		}, h.all)
	})
}

func TestRetryingIsToldBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at time.Duration
		p := retrying(waits(time.Second), resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventRetrying && e.Attempt == 2 {
				at = time.Since(begin)
			}
		}))
		_ = p.Run(t.Context(), fail)
		require.Zero(t, at)
	})
}

func TestBreakerTransitionsAreToldOnTheCallThatCausedThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h, other heard
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 2, ProbeSuccesses: 1})
		p := retrying(h.option(), resilience.WithName("mine"), resilience.WithSharedBreaker(b), resilience.WithAttempts(1))
		q := retrying(other.option(), resilience.WithSharedBreaker(b), resilience.WithAttempts(1))
		require.Error(t, p.Run(t.Context(), fail))
		require.Error(t, p.Run(t.Context(), fail))
		time.Sleep(20 * time.Second)
		require.NoError(t, p.Run(t.Context(), succeed))
		require.Equal(t, []resilience.EventKind{
			resilience.EventAttempt, resilience.EventExhausted,
			resilience.EventBreakerOpened, resilience.EventAttempt, resilience.EventExhausted,
			resilience.EventBreakerHalfOpened, resilience.EventBreakerClosed, resilience.EventAttempt, resilience.EventSucceeded,
		}, h.kinds())
		require.Equal(t, "mine", h.of(resilience.EventBreakerOpened)[0].Policy)
		require.NoError(t, q.Run(t.Context(), succeed))
		require.Equal(t, []resilience.EventKind{resilience.EventAttempt, resilience.EventSucceeded}, other.kinds())
	})
}

func TestListenersRunInOrderAndMayPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		add := func(n int, then any) resilience.Option {
			return resilience.WithListener(func(e resilience.Event) {
				if e.Kind.Terminal() {
					order = append(order, n)
				}
				if then != nil {
					panic(then)
				}
			})
		}
		p := retrying(add(1, nil), add(2, "boom"), add(3, errors.New("x")), add(4, nil))
		require.NoError(t, p.Run(t.Context(), succeed))
		require.Equal(t, []int{1, 2, 3, 4}, order)
		order = nil
		require.NoError(t, p.MustWith(add(5, nil)).Run(t.Context(), succeed))
		require.Equal(t, []int{1, 2, 3, 4, 5}, order, "they add up")
	})
}

func TestListenerMayLookAtEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1})
		var p resilience.Policy
		deep := 0
		p = retrying(resilience.WithSharedBreaker(b), resilience.WithBudget(resilience.BudgetConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(10)),
			resilience.WithListener(func(resilience.Event) {
				b.State()
				b.Stats()
				p.Measured()
				p.Budget().Stats()
				p.Limiter().Stats()
				if deep == 0 {
					deep++
					_ = p.Run(t.Context(), succeed)
					b.Reset()
					deep--
				}
			}))
		_ = p.Run(t.Context(), fail)
		_ = p.Run(t.Context(), succeed)
	})
}

func TestListenersRunOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me := goroutineID()
		p := retrying(resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1}), resilience.WithListener(func(resilience.Event) {
			require.Equal(t, me, goroutineID())
		}))
		require.NoError(t, p.Run(t.Context(), succeed))
		require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
			info, _ := resilience.AttemptFrom(ctx)
			time.Sleep(time.Second / time.Duration(info.Number))
			return nil
		}))
		time.Sleep(time.Second) // the loser is deaf
	})
}

func goroutineID() string {
	buf := make([]byte, 64)
	buf = buf[:runtime.Stack(buf, false)]
	for i, c := range buf {
		if c == '[' {
			return string(buf[:i])
		}
	}
	return ""
}

func TestTerminalKinds(t *testing.T) {
	terminal := 0
	seen := map[string]bool{}
	for k := resilience.EventSucceeded; k <= resilience.EventLimitChanged; k++ {
		if k.Terminal() {
			terminal++
		}
		require.NotEqual(t, "unknown", k.String())
		require.False(t, seen[k.String()], k.String())
		seen[k.String()] = true
	}
	require.Equal(t, 9, terminal)
	require.False(t, resilience.EventKind(0).Terminal())
	require.False(t, resilience.EventAttempt.Terminal())
	require.Equal(t, "unknown", resilience.EventKind(255).String())
}
