package resilience_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// verdictOf asks the policy's classifier about an error.
func verdictOf(t *testing.T, err error, opts ...resilience.Option) resilience.Verdict {
	t.Helper()
	opts = append(opts, resilience.WithAttempts(1))
	r := resilience.MustNew(opts...).Try(t.Context(), func(context.Context) error { return err })
	require.Len(t, r.Attempts, 1)
	return r.Attempts[0].Verdict
}

type timeoutError struct{ timeout bool }

func (e timeoutError) Error() string { return "i/o" }
func (e timeoutError) Timeout() bool { return e.timeout }

func TestDefaultClassification(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want resilience.Verdict
	}{
		{"nil", nil, resilience.OK},
		{"timeout", timeoutError{true}, resilience.Transient},
		{"os deadline", os.ErrDeadlineExceeded, resilience.Transient},
		{"somebody's deadline", context.DeadlineExceeded, resilience.Transient},
		{"unexpected EOF", io.ErrUnexpectedEOF, resilience.Transient},
		{"net.OpError", &net.OpError{Op: "dial", Err: errors.New("no")}, resilience.Transient},
		{"connection refused", syscall.ECONNREFUSED, resilience.Transient},
		{"connection reset", syscall.ECONNRESET, resilience.Transient},
		{"connection aborted", syscall.ECONNABORTED, resilience.Transient},
		{"broken pipe", syscall.EPIPE, resilience.Transient},
		{"host unreachable", syscall.EHOSTUNREACH, resilience.Transient},
		{"net unreachable", syscall.ENETUNREACH, resilience.Transient},
		{"dialled and refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, resilience.Transient},
		{"through net/http", &url.Error{Op: "Get", URL: "x", Err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}}, resilience.Transient},
		{"temporary DNS", &net.DNSError{IsTemporary: true}, resilience.Transient},
		{"DNS timeout", &net.DNSError{IsTimeout: true}, resilience.Transient},
		{"bad connection", driver.ErrBadConn, resilience.Transient},

		{"no timeout", timeoutError{false}, resilience.Permanent},
		{"a bug", errBug, resilience.Permanent},
		{"EOF", io.EOF, resilience.Permanent},
		{"no such file", fs.ErrNotExist, resilience.Permanent},
		{"host not found", &net.DNSError{IsNotFound: true}, resilience.Permanent},
		{"dialled and not found", &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}, resilience.Permanent},
		{"DNS, unknown", &net.DNSError{}, resilience.Permanent},
		{"somebody's cancellation", context.Canceled, resilience.Permanent},
		{"somebody's cancelled dial", &net.OpError{Op: "dial", Err: context.Canceled}, resilience.Permanent},
		{"access denied", syscall.EACCES, resilience.Permanent},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, c.want, verdictOf(t, c.err))
				if c.err != nil {
					require.Equal(t, c.want, verdictOf(t, fmt.Errorf("wrapped: %w", c.err)))
					require.Equal(t, c.want, verdictOf(t, c.err, resilience.WithClassifier(resilience.DefaultClassifier())))
				}
			})
		})
	}
}

func TestRulesComeBeforeTheDefaultNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(v resilience.Verdict) resilience.Rule { return resilience.OnErrorIs(errDown, v) }
		require.Equal(t, resilience.Throttled, verdictOf(t, errDown,
			resilience.WithRules(rule(resilience.Transient)), resilience.WithRules(rule(resilience.Throttled))), "the newest first")
		require.Equal(t, resilience.Transient, verdictOf(t, errDown,
			resilience.WithRules(rule(resilience.Transient), rule(resilience.Throttled))), "among themselves in their order")
		require.Equal(t, resilience.Permanent, verdictOf(t, io.ErrUnexpectedEOF,
			resilience.WithRules(resilience.OnErrorIs(io.ErrUnexpectedEOF, resilience.Permanent))), "before the default")
		require.Equal(t, resilience.Transient, verdictOf(t, io.ErrUnexpectedEOF, resilience.WithRules(rule(resilience.Throttled))), "which stays beneath")
		require.Equal(t, resilience.Permanent, verdictOf(t, io.ErrUnexpectedEOF,
			resilience.WithClassifier(resilience.NewClassifier())), "replaced")
		for _, opts := range [][]resilience.Option{
			{resilience.WithRules(rule(resilience.Throttled)), resilience.WithClassifier(resilience.RetryAll())},
			{resilience.WithClassifier(resilience.RetryAll()), resilience.WithRules(rule(resilience.Throttled))},
		} {
			require.Equal(t, resilience.Throttled, verdictOf(t, errDown, opts...), "in either order")
			require.Equal(t, resilience.Transient, verdictOf(t, errBug, opts...))
		}
		derived := resilience.MustNew(resilience.WithAttempts(1), resilience.WithRules(rule(resilience.Transient))).
			MustWith(resilience.WithRules(rule(resilience.Throttled)))
		require.Equal(t, resilience.Throttled, derived.Try(t.Context(), fail).Attempts[0].Verdict)
		require.Equal(t, resilience.Permanent, verdictOf(t, errDown, resilience.WithRules(resilience.Rule{})), "a zero rule matches nothing")
	})
}

func TestRuleByType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := resilience.WithRules(resilience.OnErrorAs("svc", func(e *svcError) resilience.Verdict {
			if e.code == 503 {
				return resilience.Throttled.After(3 * time.Second)
			}
			return resilience.Permanent
		}))
		require.Equal(t, resilience.Throttled.After(3*time.Second), verdictOf(t, fmt.Errorf("x: %w", &svcError{503}), rules))
		require.Equal(t, resilience.Permanent, verdictOf(t, &svcError{400}, rules))
		require.Equal(t, resilience.Permanent, verdictOf(t, errBug, rules))
	})
}

func TestLimitedErrorIsLimitedWhateverTheRulesSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := resilience.WithRules(resilience.OnError("all", resilience.Permanent, func(error) bool { t.Error("asked"); return true }))
		limited := &resilience.LimitedError{Limiter: "mine"}
		for name, err := range map[string]error{
			"itself": limited, "wrapped": fmt.Errorf("x: %w", limited), "joined": errors.Join(errBug, limited),
			"marked": resilience.Permanent.Mark(limited), "under a joined mark": errors.Join(resilience.Permanent.Mark(errBug), limited),
		} {
			require.Equal(t, resilience.Limited, verdictOf(t, err, never), name)
			require.ErrorIs(t, err, resilience.ErrLimited, name)
		}
		require.Equal(t, resilience.Limited.After(time.Second), verdictOf(t, &resilience.LimitedError{RetryAfter: time.Second}, never))
	})
}

func TestMarkComesBeforeTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := resilience.WithRules(resilience.OnError("all", resilience.Permanent, func(error) bool { t.Error("asked"); return true }))
		for _, v := range []resilience.Verdict{resilience.Transient, resilience.Throttled, resilience.Permanent, resilience.Throttled.After(time.Hour)} {
			require.Equal(t, v, verdictOf(t, v.Mark(errBug), never))
			require.Equal(t, v, verdictOf(t, fmt.Errorf("x: %w", v.Mark(errBug)), never))
			require.Equal(t, v, verdictOf(t, errors.Join(errDown, v.Mark(errBug)), never))
		}
		require.Equal(t, resilience.Transient, verdictOf(t, resilience.Transient.Mark(resilience.Permanent.Mark(errBug)), never), "the outermost")
	})
}

func TestMarkIsInvisible(t *testing.T) {
	require.True(t, resilience.Transient.Mark(nil) == nil)
	m := resilience.Permanent.Mark(&svcError{7})
	require.Equal(t, "the service says no", m.Error())
	var e *svcError
	require.ErrorAs(t, m, &e)
	require.Equal(t, 7, e.code)
	require.ErrorIs(t, resilience.Transient.Mark(errDown), errDown)

	got := resilience.MustNew().Run(t.Context(), func(context.Context) error { return resilience.Permanent.Mark(errBug) })
	require.True(t, got == errBug, "taken off again")
}

func TestErrorThatARuleCallsOKIsPermanent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := resilience.WithRules(resilience.OnErrorIs(errDown, resilience.OK))
		require.Equal(t, resilience.Permanent, verdictOf(t, errDown, ok))
		require.Equal(t, resilience.Permanent, verdictOf(t, resilience.OK.Mark(errDown)))
		budget, err := resilience.NewBudget(resilience.BudgetConfig{})
		require.NoError(t, err)
		b := breakerOf(t, resilience.BreakerConfig{})
		p := retrying(ok, resilience.WithSharedBudget(budget), resilience.WithSharedBreaker(b))
		require.Same(t, errDown, p.Run(t.Context(), fail))
		require.Zero(t, b.Stats().Calls)
	})
}

func TestEvidenceOfEachVerdict(t *testing.T) {
	for _, c := range []struct {
		err             error
		calls, failures int
	}{
		{nil, 1, 0},
		{resilience.Transient.Mark(errDown), 1, 1},
		{resilience.Throttled.Mark(errDown), 0, 0},
		{resilience.Limited.Mark(errDown), 0, 0},
		{&resilience.LimitedError{}, 0, 0},
		{resilience.Permanent.Mark(errDown), 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := breakerOf(t, resilience.BreakerConfig{})
			_ = retrying(resilience.WithSharedBreaker(b), resilience.WithAttempts(1)).Run(t.Context(), scripted(c.err).fn)
			require.Equal(t, c.calls, b.Stats().Calls, "%v", c.err)
			require.Equal(t, c.failures, b.Stats().Failures, "%v", c.err)
		})
	}
}

func TestVerdictIsOneComparableWord(t *testing.T) {
	require.NotEqual(t, resilience.Limited, resilience.Throttled)
	require.Equal(t, resilience.Throttled.Kind(), resilience.Limited.Kind())
	require.True(t, resilience.Limited.SelfImposed())
	require.False(t, resilience.Throttled.SelfImposed())
	_, ok := resilience.Throttled.RetryAfter()
	require.False(t, ok)
	v := resilience.Limited.After(2 * time.Second)
	require.True(t, v.SelfImposed())
	require.Equal(t, resilience.KindThrottled, v.Kind())
	d, ok := v.RetryAfter()
	require.True(t, ok)
	require.Equal(t, 2*time.Second, d)
	require.Equal(t, resilience.Throttled, resilience.Throttled.After(time.Second).After(0))
	require.Equal(t, resilience.Throttled, resilience.Throttled.After(-time.Second))
	require.Equal(t, "throttled after 2s", resilience.Throttled.After(2*time.Second).String())
	require.Equal(t, "limited", resilience.Limited.String())
	require.Equal(t, "ok", resilience.OK.String())
	require.Equal(t, "transient", resilience.Transient.String())
	require.Equal(t, "permanent", resilience.Permanent.String())
}

func TestClassifierIsImmutable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := []resilience.Rule{resilience.OnErrorIs(errDown, resilience.Transient)}
		c := resilience.NewClassifier(rules...)
		rules[0] = resilience.OnErrorIs(errDown, resilience.Throttled)
		require.Equal(t, resilience.Transient, verdictOf(t, errDown, resilience.WithClassifier(c)))
		list := []resilience.Rule{resilience.OnErrorIs(errDown, resilience.Transient)}
		o := resilience.WithRules(list...)
		p := resilience.MustNew(o, resilience.WithAttempts(1))
		list[0] = resilience.OnErrorIs(errDown, resilience.Throttled)
		require.Equal(t, resilience.Transient, p.Try(t.Context(), fail).Attempts[0].Verdict)
		require.Equal(t, resilience.Transient, verdictOf(t, errDown, o), "an option is a value: what was given counts, not what the slice holds later")
	})
}

// A policy beneath was refused by a limiter after its dependency had failed: that is no failure of what is beneath.
func TestARefusalThatEndedAnotherPolicyIsLimited(t *testing.T) {
	l, err := resilience.NewLimiter(resilience.FixedLimit(1))
	require.NoError(t, err)
	var taken resilience.Permit
	inner := retrying(resilience.WithSharedLimiter(l), resilience.WithAttempts(2), resilience.WithListener(func(e resilience.Event) {
		if e.Kind == resilience.EventRetrying {
			taken, _ = l.Acquire(t.Context())
		}
	}))
	defer taken.Release(resilience.OK)
	r := retrying(resilience.WithAttempts(1)).Try(t.Context(), func(ctx context.Context) error { return inner.Run(ctx, fail) })
	require.ErrorIs(t, r.Err, resilience.ErrLimited)
	require.ErrorIs(t, r.Err, errDown)
	require.True(t, r.Attempts[0].Verdict.SelfImposed())
}

func TestACancelledCallIsNoEvidenceWhateverARuleSaysOfItsValue(t *testing.T) {
	p := retrying(resilience.WithBreaker(resilience.BreakerConfig{}), bad)
	ctx, cancel := context.WithCancel(t.Context())
	r := resilience.TryDo(ctx, p, func(context.Context) (int, error) { cancel(); return 7, nil })
	require.Equal(t, 7, r.Value)
	require.Zero(t, p.Breaker().Stats().Calls)
}
