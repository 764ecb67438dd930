package resilience_test

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var (
	_ resilience.Clock = clock.NewMock()
	_ resilience.Clock = clock.New()
)

// asked is a mock that tells when somebody starts to wait on it, so that a test need not guess.
type asked struct {
	*clock.Mock
	after chan time.Duration
}

func newAsked() *asked { return &asked{clock.NewMock(), make(chan time.Duration, 100)} }

func (a *asked) After(d time.Duration) <-chan time.Time {
	c := a.Mock.After(d)
	a.after <- d
	return c
}

// pass waits until somebody waits for d, and lets it pass.
func (a *asked) pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case got := <-a.after:
		require.Equal(t, d, got)
	case <-time.After(10 * time.Second):
		t.Fatalf("nobody waits for %v", d)
	}
	a.Add(d)
}

func TestClockMovesTheWaits(t *testing.T) {
	c := newAsked()
	p := retrying(resilience.WithClock(c), waits(time.Hour), resilience.WithDeadline(10*time.Hour))
	result := make(chan resilience.Result[struct{}])
	go func() { result <- p.Try(t.Context(), fail) }()
	c.pass(t, time.Hour)
	c.pass(t, time.Hour)
	r := <-result
	require.Equal(t, 3, r.Total)
	require.Equal(t, 2*time.Hour, r.Elapsed)
	require.Equal(t, time.Hour, r.Attempts[1].Start)
}

func TestClockMovesTheAttemptsBound(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := newAsked()
	p := retrying(resilience.WithClock(c), resilience.WithAttempts(1), resilience.WithAttemptTimeout(time.Hour), resilience.WithDeadline(2*time.Hour))
	result := make(chan error)
	go func() {
		result <- p.Run(t.Context(), func(ctx context.Context) error {
			_, ok := ctx.Deadline()
			require.False(t, ok, "the wall clock and the mock must not be mixed")
			info, _ := resilience.AttemptFrom(ctx)
			require.Equal(t, time.Hour, info.Bound)
			require.Equal(t, 2*time.Hour, info.Remaining)
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			require.ErrorIs(t, context.Cause(child), resilience.ErrAttemptTimeout)
			return child.Err()
		})
	}()
	c.pass(t, time.Hour)
	require.ErrorIs(t, <-result, resilience.ErrAttemptTimeout)

	// Without Done nobody waits, and Err looks at the clock.
	require.ErrorIs(t, p.Run(t.Context(), func(ctx context.Context) error {
		require.NoError(t, ctx.Err())
		c.Add(time.Hour)
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(ctx), resilience.ErrAttemptTimeout)
		return errDown
	}), resilience.ErrAttemptTimeout)
	require.Empty(t, c.after)
}

func TestClockLeavesNoGoroutineBehindTheAttempt(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := clock.NewMock()
	p := retrying(resilience.WithClock(c))
	for range 10 {
		require.NoError(t, p.Run(context.Background(), func(ctx context.Context) error { ctx.Done(); return nil }))
	}
}

func TestClockMovesTheDeadline(t *testing.T) {
	c := clock.NewMock()
	p := retrying(resilience.WithClock(c), resilience.WithDeadline(time.Hour), resilience.WithAttemptTimeout(resilience.Unbounded))
	calls := 0
	err := p.Run(t.Context(), func(context.Context) error {
		calls++
		c.Add(40 * time.Minute)
		return errDown
	})
	require.Equal(t, 2, calls)
	require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
	require.Equal(t, time.Hour, report(t, err).Bound)
}

func TestClockLeavesTheCallersDeadlineToItsContext(t *testing.T) {
	c := clock.NewMock() // 1970
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer cancel()
	require.NoError(t, retrying(resilience.WithClock(c)).Run(ctx, func(got context.Context) error {
		d, ok := got.Deadline()
		want, _ := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, want, d)
		info, _ := resilience.AttemptFrom(got)
		require.Equal(t, 10*time.Second, info.Bound)
		return nil
	}))
}

func TestClockMovesWhatIsMeasured(t *testing.T) {
	c := clock.NewMock()
	p := retrying(resilience.WithClock(c), resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}), resilience.WithHedge(resilience.HedgeAt(0.9)),
		resilience.WithBreaker(resilience.BreakerConfig{}))
	for range 19 {
		require.NoError(t, p.Run(t.Context(), func(context.Context) error { c.Add(time.Second); return nil }))
	}
	require.Equal(t, resilience.Cold, p.Measured().AttemptCeiling.State)
	require.NoError(t, p.Run(t.Context(), func(context.Context) error { c.Add(time.Second); return nil }))
	m := p.Measured()
	for name, r := range map[string]resilience.Reading{"ceiling": m.AttemptCeiling, "backoff": m.BackoffBase, "hedge": m.HedgeThreshold, "latency": m.NormalLatency} {
		require.Equal(t, resilience.Warm, r.State, name)
	}
	require.InEpsilon(t, 3*time.Second, m.AttemptCeiling.Value, 0.05)
	require.InEpsilon(t, time.Second, m.NormalLatency.Value, 0.05)
	c.Add(time.Hour)
	m = p.Measured()
	require.Equal(t, resilience.Cold, m.AttemptCeiling.State)
	require.Equal(t, resilience.Cold, m.HedgeThreshold.State)
}

func TestClockMovesTheGuards(t *testing.T) {
	c := newAsked()
	p := retrying(resilience.WithClock(c), resilience.WithAttempts(1), resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1, ProbeSuccesses: 1}),
		resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1}), resilience.WithLimiter(resilience.LimiterConfig{Fixed: 1, Queue: 1}))
	require.Error(t, p.Run(t.Context(), fail))
	require.Equal(t, resilience.StateOpen, p.Breaker().State())
	refused := make(chan error)
	go func() { refused <- p.Run(t.Context(), succeed) }()
	c.pass(t, 100*time.Millisecond) // the guarded pause
	require.ErrorIs(t, <-refused, resilience.ErrBreakerOpen)
	c.Add(15 * time.Second)
	require.Equal(t, resilience.StateHalfOpen, p.Breaker().State())
	require.NoError(t, p.Run(t.Context(), succeed))
	require.Equal(t, resilience.StateClosed, p.Breaker().State())

	q := retrying(resilience.WithClock(c), resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1}))
	require.Error(t, q.Run(t.Context(), fail))
	require.Equal(t, 8.0, q.Budget().Stats().Tokens)
	c.Add(time.Second)
	require.Equal(t, 9.0, q.Budget().Stats().Tokens)

	// A waiter in the limiter's queue gives up when the deadline passes on the mock.
	permit, err := p.Limiter().Acquire(t.Context())
	require.NoError(t, err)
	go func() {
		refused <- p.MustWith(resilience.WithDeadline(time.Minute), resilience.WithSharedLimiter(p.Limiter())).Run(t.Context(), succeed)
	}()
	c.pass(t, time.Minute)
	require.ErrorIs(t, <-refused, resilience.ErrDeadlineExceeded)
	permit.Release(resilience.OK)
	require.Zero(t, p.Limiter().Stats().InFlight)
}

func TestClockMovesTheHedge(t *testing.T) {
	c := newAsked()
	p := retrying(resilience.WithClock(c), resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1, MinDelay: time.Hour}),
		resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded))
	require.NoError(t, p.Run(t.Context(), succeed))
	won := make(chan int, 1)
	go func() {
		v, _ := resilience.Do(t.Context(), p, func(ctx context.Context) (int, error) {
			info, _ := resilience.AttemptFrom(ctx)
			if !info.Hedged {
				<-ctx.Done()
			}
			return info.Number, ctx.Err()
		})
		won <- v
	}()
	c.pass(t, time.Hour)
	require.Equal(t, 2, <-won)
}

func TestClockThatStandsStillOrStepsBack(t *testing.T) {
	c := clock.NewMock()
	p := retrying(resilience.WithClock(c), resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(10)),
		resilience.WithBudget(resilience.BudgetConfig{}), resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}))
	c.Add(time.Hour)
	for i := range 100 {
		require.NoError(t, p.Run(t.Context(), func(context.Context) error {
			if i%3 == 0 {
				c.Set(c.Now().Add(-time.Minute * 2))
			}
			return nil
		}))
		_ = p.Run(t.Context(), func(context.Context) error {
			c.Set(c.Now().Add(time.Second - time.Minute))
			return resilience.Permanent.Mark(errBug)
		})
	}
	require.NoError(t, p.Run(t.Context(), succeed))
	require.LessOrEqual(t, p.Budget().Stats().Tokens, 30.0)
	require.Zero(t, p.Limiter().Stats().InFlight)
}

func TestClockBeforeItsOriginLeavesUnboundedUnbounded(t *testing.T) {
	c := clock.NewMock()
	p := retrying(resilience.WithClock(c), resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded))
	c.Set(c.Now().Add(-time.Hour))
	require.NoError(t, p.Run(context.Background(), func(ctx context.Context) error {
		info, _ := resilience.AttemptFrom(ctx)
		require.Equal(t, resilience.Unbounded, info.Remaining)
		require.Equal(t, resilience.Unbounded, info.Bound)
		return nil
	}))
}

func TestUnderAnInjectedClockTheCallersCancellationIsSeenAtOnce(t *testing.T) {
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		err := retrying(resilience.WithClock(clock.NewMock())).Run(ctx, func(ctx context.Context) error {
			_ = ctx.Done()
			cancel()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			return nil
		})
		require.NoError(t, err)
	}
}

func TestAClockBeforeItsOriginOverrunsNothing(t *testing.T) {
	c := clock.NewMock()
	var h heard
	p := retrying(resilience.WithClock(c), resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded), h.option())
	c.Set(time.Unix(-1000, 0))
	require.NoError(t, p.Run(t.Context(), succeed))
	require.Empty(t, h.of(resilience.EventOrphanedWork))
}
