package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestSentinels(t *testing.T) {
	all := []error{
		resilience.ErrDeadlineExceeded, resilience.ErrAttemptTimeout, resilience.ErrAttemptsExhausted, resilience.ErrBreakerOpen,
		resilience.ErrBudgetExhausted, resilience.ErrLimited, resilience.ErrDraining, resilience.ErrStalled,
	}
	for i, a := range all {
		for j, b := range all {
			require.Equal(t, i == j, errors.Is(a, b), "%v is %v", a, b)
		}
		require.Equal(t, i < 2, errors.Is(a, context.DeadlineExceeded), a)
		timeout := i < 2 || a == resilience.ErrStalled
		var to interface{ Timeout() bool }
		require.Equal(t, timeout, errors.As(a, &to) && to.Timeout(), a)
		require.True(t, strings.HasPrefix(a.Error(), "resilience: "), a)
	}
}

func TestEachReasonHasItsSentinel(t *testing.T) {
	for reason, is := range map[resilience.Reason]error{
		resilience.ReasonAttemptsExhausted: resilience.ErrAttemptsExhausted, resilience.ReasonDeadlineExceeded: resilience.ErrDeadlineExceeded,
		resilience.ReasonBreakerOpen: resilience.ErrBreakerOpen, resilience.ReasonBudgetExhausted: resilience.ErrBudgetExhausted,
		resilience.ReasonDraining: resilience.ErrDraining, resilience.ReasonCancelled: context.Canceled,
	} {
		e := &resilience.Error{Reason: reason, Err: errDown, Total: 2, Policy: "orders"}
		require.ErrorIs(t, e, is)
		require.ErrorIs(t, e, errDown)
		require.Same(t, errDown, errors.Unwrap(e))
		require.Contains(t, e.Error(), "orders")
		require.Contains(t, e.Error(), reason.String())
		require.Contains(t, e.Error(), "2 attempts")
		require.Contains(t, e.Error(), errDown.Error())
		require.Equal(t, reason == resilience.ReasonDeadlineExceeded, e.Timeout())
		require.NotErrorIs(t, e, resilience.ErrStalled)
	}
	require.Equal(t, "unknown", resilience.Reason(200).String())
	require.NotPanics(t, func() {
		_ = (&resilience.Error{Reason: 200}).Error()
		errors.Is(&resilience.Error{Reason: 200}, errDown)
	})
}

func TestErrorTextsStayBoundedWhenFedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithName("orders"), resilience.WithAttempts(2), resilience.WithNestedRetries(true))
		err := errors.New(strings.Repeat("ü", 100_000))
		for range 200 {
			fed := err
			err = p.Run(t.Context(), func(context.Context) error { return fmt.Errorf("again: %w", fed) })
			require.Less(t, len(err.Error()), 2000)
			require.True(t, strings.HasPrefix(err.Error(), "resilience: orders: attempts exhausted after 2 attempts"))
			require.True(t, strings.ToValidUTF8(err.Error(), "?") == err.Error(), "cut at a character's border")
		}
		long := retrying(resilience.WithName(strings.Repeat("n", 100_000)))
		require.Less(t, len(long.Run(t.Context(), fail).Error()), 2000)
	})
}

func TestErrorTextsStayBoundedForEveryReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		huge := errors.New(strings.Repeat("x", 1<<20))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(huge)
		require.Less(t, len(retrying().Run(ctx, fail).Error()), 2000, "the cause")
		p := retrying(resilience.WithAttemptTimeout(time.Second))
		err := p.Run(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return huge })
		require.Less(t, len(err.Error()), 2000)
		require.ErrorIs(t, err, huge)
		require.Less(t, len((&resilience.LimitedError{Limiter: huge.Error()}).Error()), 2000)
		hedged := retrying(resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1, MaxConcurrent: 3}))
		require.NoError(t, hedged.Run(t.Context(), succeed))
		err = hedged.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return huge })
		require.Less(t, len(err.Error()), 4000)
		require.ErrorIs(t, err, huge)
	})
}

func TestDependencysOwnErrorIsWhatUnwraps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Attempt 1 says what is wrong, attempt 2 only hears that its time is up.
		for name, c := range map[string]struct {
			opt resilience.Option
			is  error
		}{
			"deadline":        {resilience.WithDeadline(time.Second), resilience.ErrDeadlineExceeded},
			"attempt timeout": {resilience.WithAttemptTimeout(time.Second), resilience.ErrAttemptTimeout},
		} {
			calls := 0
			err := retrying(c.opt, resilience.WithAttempts(2)).Run(t.Context(), func(ctx context.Context) error {
				calls++
				if calls == 1 {
					return &svcError{503}
				}
				return hang(ctx)
			})
			require.ErrorIs(t, err, c.is, name)
			if name == "deadline" {
				var svc *svcError
				require.ErrorAs(t, err, &svc, name)
			}
		}
	})
}

func TestLimitedErrorText(t *testing.T) {
	require.Equal(t, "resilience: db: limit reached, retry after 2s", (&resilience.LimitedError{Limiter: "db", RetryAfter: 2 * time.Second}).Error())
	require.Equal(t, "resilience: limit reached", (&resilience.LimitedError{}).Error())
}

// A dial timeout is a context.DeadlineExceeded of somebody else's: it tells what was wrong with the dependency.
func TestTheLastErrorIsTheDependencysOwn(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	foreign := fmt.Errorf("the service behind the service: %w", context.DeadlineExceeded)
	for _, last := range []error{dial, foreign} {
		p := retrying()
		err := p.Run(t.Context(), scripted(errBug, errBug, last).fn)
		require.ErrorIs(t, err, last)
		require.NotErrorIs(t, err, errBug)
	}
}

// What a callback returns because it was told to stop says nothing about the dependency.
func TestTheEndingOfOurOwnContextHidesNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithDeadline(time.Second))
		n := 0
		err := p.Run(t.Context(), func(ctx context.Context) error {
			if n++; n == 1 {
				return errDown
			}
			return hang(ctx)
		})
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.ErrorIs(t, err, errDown)
	})
}

// The caller's deadline is on the wall clock: what the policy's own would have been is not told in its place.
func TestACallersDeadlineHasNoBoundUnderAnInjectedClock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := retrying(resilience.WithClock(clock.NewMock())).Run(ctx, hang)
	require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
	require.Zero(t, report(t, err).Bound)
}
