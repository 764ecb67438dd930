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

func TestEffectiveDeadlineIsTheTightest(t *testing.T) {
	for _, c := range []struct {
		name                       string
		deadline, attempt, callers time.Duration
		want                       time.Duration
		is                         error
		reason                     resilience.Reason
	}{
		{"policy's deadline", time.Second, time.Minute, time.Hour, time.Second, resilience.ErrDeadlineExceeded, resilience.ReasonDeadlineExceeded},
		{"caller's deadline", time.Minute, time.Minute, time.Second, time.Second, resilience.ErrDeadlineExceeded, resilience.ReasonDeadlineExceeded},
		{"attempt timeout", time.Minute, time.Second, time.Hour, time.Second, resilience.ErrAttemptTimeout, resilience.ReasonAttemptsExhausted},
		{"a tie is the deadline's", time.Second, time.Second, time.Hour, time.Second, resilience.ErrDeadlineExceeded, resilience.ReasonDeadlineExceeded},
		{"unbounded policy", resilience.Unbounded, resilience.Unbounded, time.Hour, time.Hour, resilience.ErrDeadlineExceeded, resilience.ReasonDeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.callers)
				defer cancel()
				p := retrying(resilience.WithDeadline(c.deadline), resilience.WithAttemptTimeout(c.attempt), resilience.WithAttempts(1))
				begin := time.Now()
				r := p.Try(ctx, func(ctx context.Context) error {
					d, ok := ctx.Deadline()
					require.True(t, ok)
					require.Equal(t, c.want, d.Sub(begin))
					info, ok := resilience.AttemptFrom(ctx)
					require.True(t, ok)
					require.Equal(t, c.want, info.Bound)
					require.Equal(t, min(c.deadline, c.callers), info.Remaining)
					return hang(ctx)
				})
				require.Equal(t, c.want, time.Since(begin))
				require.Equal(t, c.reason, r.Reason)
				require.ErrorIs(t, r.Err, c.is)
				require.ErrorIs(t, r.Err, context.DeadlineExceeded)
				require.Equal(t, c.is == resilience.ErrAttemptTimeout, errors.Is(r.Err, resilience.ErrAttemptTimeout))
				require.True(t, report(t, r.Err).Timeout())
				require.Equal(t, c.want, report(t, r.Err).Bound)
			})
		})
	}
}

func TestUnboundedAttemptHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded))
		require.NoError(t, p.Run(context.Background(), func(ctx context.Context) error {
			_, ok := ctx.Deadline()
			require.False(t, ok)
			info, _ := resilience.AttemptFrom(ctx)
			require.Equal(t, resilience.Unbounded, info.Bound)
			require.Equal(t, resilience.Unbounded, info.Remaining)
			time.Sleep(100 * 24 * time.Hour)
			require.NoError(t, ctx.Err())
			select {
			case <-ctx.Done():
				t.Error("done")
			default:
			}
			return nil
		}))
	})
}

func TestDeadlineContextThatHasPassedRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		r := retrying().Try(ctx, func(context.Context) error { t.Error("called"); return nil })
		require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
		require.ErrorIs(t, r.Err, resilience.ErrDeadlineExceeded)
	})
}

func TestLateGoodResultIsASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := retrying(h.option(), resilience.WithAttemptTimeout(time.Second))
		require.NoError(t, p.Run(t.Context(), func(context.Context) error {
			time.Sleep(2*time.Second - time.Nanosecond)
			return nil
		}))
		require.Empty(t, h.of(resilience.EventOrphanedWork), "less than a second over its bound")
		v, err := resilience.Do(t.Context(), p, func(context.Context) (int, error) { time.Sleep(3 * time.Second); return 7, nil })
		require.NoError(t, err)
		require.Equal(t, 7, v)
		require.Len(t, h.of(resilience.EventOrphanedWork), 1)
		require.Equal(t, 2*time.Second, h.of(resilience.EventOrphanedWork)[0].Duration)
	})
}

func TestCallbackIsWaitedForAndTheNextAttemptComesAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		running, most, calls := 0, 0, 0
		p := retrying(h.option(), resilience.WithAttemptTimeout(time.Second))
		took := stopwatch()
		err := p.Run(t.Context(), func(context.Context) error {
			calls++
			running++
			most = max(most, running)
			time.Sleep(2 * time.Second) // deaf
			running--
			return errDown
		})
		require.Equal(t, 6*time.Second, took())
		require.Equal(t, 1, most)
		require.Equal(t, 3, calls)
		require.ErrorIs(t, err, resilience.ErrAttemptTimeout)
		require.ErrorIs(t, err, errDown)
		require.Len(t, h.of(resilience.EventOrphanedWork), 3)
	})
}

func TestOwnBoundIsNeverShownToTheClassifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := resilience.MustNew(resilience.WithAttemptTimeout(time.Second), resilience.WithBackoff(resilience.NoBackoff()),
			resilience.WithClassifier(resilience.NewClassifier(resilience.OnError("no", resilience.Permanent, func(error) bool {
				t.Error("asked")
				return true
			}))))
		r := p.Try(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return errBug // what decides is the state of the contexts, not the text of the error
		})
		require.Equal(t, 3, r.Total)
		require.Equal(t, resilience.ReasonAttemptsExhausted, r.Reason)
		require.ErrorIs(t, r.Err, resilience.ErrAttemptTimeout)
		require.ErrorIs(t, r.Err, errBug)
		for _, a := range r.Attempts {
			require.Equal(t, resilience.Transient, a.Verdict)
			require.ErrorIs(t, a.Err, resilience.ErrAttemptTimeout)
		}
	})
}

func TestNoRuleChangesTheCallersCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the user has left")
		var h heard
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 1})
		p := retrying(resilience.WithSharedBreaker(b), h.option(),
			resilience.WithRules(resilience.OnError("retry it", resilience.Transient, func(error) bool { t.Error("asked"); return true })))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		r := p.Try(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), why)
			return resilience.Transient.Mark(fmt.Errorf("read: %w", context.DeadlineExceeded)) // whatever the text says
		})
		require.Equal(t, 1, r.Total)
		require.Equal(t, resilience.ReasonCancelled, r.Reason)
		require.ErrorIs(t, r.Err, context.Canceled)
		require.ErrorIs(t, r.Err, why)
		require.False(t, report(t, r.Err).Timeout(), "never turned into a timeout")
		require.Zero(t, b.Stats().Calls, "never evidence")
		require.Equal(t, []resilience.EventKind{resilience.EventCancelled}, h.terminals())
	})
}

func TestCauseOfTheCallersCancellationIsFoundByAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(&svcError{7}) })
		var why *svcError
		require.ErrorAs(t, retrying().Run(ctx, hang), &why)
		require.Equal(t, 7, why.code)
	})
}

func TestValueThatCameBeforeTheCancellationIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := resilience.TryDo(ctx, retrying(), func(context.Context) (int, error) { cancel(); return 7, nil })
		require.NoError(t, r.Err)
		require.Equal(t, 7, r.Value)
		require.Equal(t, resilience.ReasonSucceeded, r.Reason)
	})
}

func TestAttemptCutByTheTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := func(b *resilience.Breaker, callers time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), callers)
			defer cancel()
			p := retrying(resilience.WithSharedBreaker(b))
			require.ErrorIs(t, p.Run(ctx, hang), resilience.ErrDeadlineExceeded)
		}
		b := breakerOf(t, resilience.BreakerConfig{})
		cut(b, time.Millisecond)
		require.Equal(t, 1, b.Stats().Failures, "cold: evidence")

		b = breakerOf(t, resilience.BreakerConfig{})
		p := retrying(resilience.WithSharedBreaker(b))
		for range 50 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return nil }))
		}
		require.Zero(t, b.Stats().Failures)
		cut(b, 500*time.Millisecond)
		require.Zero(t, b.Stats().Failures, "it had less time than a normal call needs")
		cut(b, 1500*time.Millisecond)
		require.Equal(t, 1, b.Stats().Failures, "it had more than that")
	})
}

func TestAttemptContextHasNoTimerBeforeDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithAttemptTimeout(time.Second), resilience.WithAttempts(1))
		for name, look := range map[string]func(context.Context) error{
			"Err":   func(ctx context.Context) error { return ctx.Err() },
			"Cause": context.Cause,
		} {
			_ = p.Run(t.Context(), func(ctx context.Context) error {
				require.NoError(t, look(ctx), name)
				time.Sleep(time.Second - time.Nanosecond)
				require.NoError(t, look(ctx), name)
				time.Sleep(time.Nanosecond)
				require.ErrorIs(t, look(ctx), context.DeadlineExceeded, "%s sees the bound without a timer", name)
				if name == "Cause" {
					require.ErrorIs(t, context.Cause(ctx), resilience.ErrAttemptTimeout)
				}
				return nil
			})
		}
		_ = p.Run(context.Background(), func(ctx context.Context) error {
			time.Sleep(time.Second)
			require.ErrorIs(t, context.Cause(ctx), resilience.ErrAttemptTimeout, "under a context that cannot end")
			return nil
		})
	})
}

func TestAttemptContextSaysWhyItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := func(p resilience.Policy, ctx context.Context, look func(context.Context)) (cause error) {
			_ = p.Run(ctx, func(ctx context.Context) error {
				look(ctx)
				<-ctx.Done()
				cause = context.Cause(ctx)
				return ctx.Err()
			})
			return cause
		}
		one := resilience.WithAttempts(1)
		for _, look := range []func(context.Context){func(context.Context) {}, func(ctx context.Context) { ctx.Done() }} {
			require.ErrorIs(t, cause(retrying(one, resilience.WithAttemptTimeout(time.Second)), t.Context(), look), resilience.ErrAttemptTimeout)
			require.ErrorIs(t, cause(retrying(one, resilience.WithDeadline(time.Second)), t.Context(), look), resilience.ErrDeadlineExceeded)
			why := errors.New("why")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(why) })
			require.Same(t, why, cause(retrying(one), ctx, look))
			ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, why)
			require.Same(t, why, cause(retrying(one), ctx, look), "the cause of the caller's own deadline")
			stop()
		}
	})
}

func TestAttemptContextEndsWithTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		var fresh, working, child context.Context
		require.NoError(t, retrying().Run(parent, func(ctx context.Context) error { fresh = ctx; return nil }))
		require.NoError(t, retrying().Run(parent, func(ctx context.Context) error {
			working = ctx
			ctx.Done()
			var stop context.CancelFunc
			child, stop = context.WithCancel(ctx)
			_ = stop
			return nil
		}))
		for name, ctx := range map[string]context.Context{"fresh": fresh, "working": working, "child": child} {
			select {
			case <-ctx.Done():
			default:
				t.Errorf("%s: not done", name)
			}
			require.ErrorIs(t, ctx.Err(), context.Canceled, name)
			require.ErrorIs(t, context.Cause(ctx), context.Canceled, name)
		}
		require.NoError(t, parent.Err())
	})
}

func TestCauseAfterTheAttemptWithoutDone(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	var kept context.Context
	require.NoError(t, retrying().Run(parent, func(ctx context.Context) error { kept = ctx; return nil }))
	require.ErrorIs(t, context.Cause(kept), context.Canceled, "it is over: its cause must not be nil")
	require.ErrorIs(t, kept.Err(), context.Canceled)
}

func TestChildContextsAttachWithoutAGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		for name, p := range map[string]resilience.Policy{
			"bounded":   retrying(),
			"callers":   retrying(resilience.WithDeadline(resilience.Unbounded), resilience.WithAttemptTimeout(resilience.Unbounded)),
			"with more": retrying(resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.FixedLimit(1))),
		} {
			require.NoError(t, p.Run(parent, func(ctx context.Context) error {
				synctest.Wait()
				before := runtime.NumGoroutine()
				var children []context.Context
				for i := range 100 {
					var child context.Context
					var stop context.CancelFunc
					switch i % 3 {
					case 0:
						child, stop = context.WithCancel(ctx)
					case 1:
						child, stop = context.WithTimeout(ctx, time.Hour)
					default:
						child, stop = context.WithCancel(context.WithValue(ctx, svcError{i}, i))
					}
					_ = stop
					children = append(children, child)
				}
				synctest.Wait()
				require.LessOrEqual(t, runtime.NumGoroutine(), before, name) // an earlier test's may end meanwhile
				for _, child := range children {
					require.NoError(t, child.Err())
				}
				return nil
			}))
		}
	})
}

type testKey struct{}

func TestChildContextEndsAtTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithAttempts(1), resilience.WithAttemptTimeout(time.Second))
		took := stopwatch()
		err := p.Run(t.Context(), func(ctx context.Context) error {
			child, stop := context.WithTimeout(context.WithValue(ctx, testKey{}, 2), time.Hour)
			defer stop()
			<-child.Done()
			require.ErrorIs(t, child.Err(), context.DeadlineExceeded)
			require.ErrorIs(t, context.Cause(child), resilience.ErrAttemptTimeout)
			info, ok := resilience.AttemptFrom(child)
			require.True(t, ok)
			require.Equal(t, 1, info.Number)
			return child.Err()
		})
		require.Equal(t, time.Second, took())
		require.ErrorIs(t, err, resilience.ErrAttemptTimeout)
	})
}

func TestAttemptContextPassesValuesOn(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "v")
	require.NoError(t, retrying().Run(ctx, func(ctx context.Context) error {
		require.Equal(t, "v", ctx.Value(key{}))
		ctx.Done()
		require.Equal(t, "v", ctx.Value(key{}))
		require.Nil(t, ctx.Value("other"))
		return nil
	}))
}

func TestCeilingIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := retrying(h.option(), resilience.WithAttempts(1))
		run := func(d time.Duration) {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(d); return nil }))
		}
		bound := func() (bound time.Duration) {
			_ = p.Run(t.Context(), func(ctx context.Context) error {
				info, _ := resilience.AttemptFrom(ctx)
				bound = info.Bound
				return errBug
			})
			return bound
		}
		for range 19 {
			run(200 * time.Millisecond)
		}
		require.Equal(t, 10*time.Second, bound(), "cold: with 19 of 20 samples there is no ceiling")
		require.Equal(t, resilience.Reading{State: resilience.Cold, Samples: 19, MinSamples: 20}, p.Measured().AttemptCeiling)
		require.Empty(t, h.of(resilience.EventCeilingAdapted))
		run(200 * time.Millisecond)
		require.InEpsilon(t, 600*time.Millisecond, bound(), 0.05, "warm with the sample that completes it")
		require.InEpsilon(t, 600*time.Millisecond, p.Measured().AttemptCeiling.Value, 0.05)
		require.Len(t, h.of(resilience.EventCeilingAdapted), 1)

		// So tight that calls stop succeeding: it starves, and goes back to the attempt timeout.
		for range 20 {
			require.ErrorIs(t, p.Run(t.Context(), hang), resilience.ErrAttemptTimeout)
		}
		require.InEpsilon(t, 600*time.Millisecond, bound(), 0.05, "failures teach nothing")
		time.Sleep(5*time.Minute + time.Second)
		require.Equal(t, 10*time.Second, bound())
		require.Equal(t, resilience.Cold, p.Measured().AttemptCeiling.State)
	})
}

func TestCeilingNeverLoosensNorFallsUnderItsFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bound := func(latency time.Duration, opts ...resilience.Option) (bound time.Duration) {
			p := retrying(opts...)
			for range 20 {
				require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(latency); return nil }))
			}
			_ = p.Run(t.Context(), func(ctx context.Context) error {
				info, _ := resilience.AttemptFrom(ctx)
				bound = info.Bound
				return nil
			})
			require.LessOrEqual(t, p.Measured().AttemptCeiling.Value, 10*time.Second)
			return bound
		}
		require.Equal(t, 50*time.Millisecond, bound(time.Microsecond), "the floor")
		require.Equal(t, 10*time.Second, bound(9*time.Second), "27 s would be looser than what is written")
		require.Equal(t, 50*time.Millisecond, bound(time.Second, resilience.WithAttemptTimeout(50*time.Millisecond)), "steps aside")
		require.Equal(t, 40*time.Millisecond, bound(time.Microsecond, resilience.WithAttemptTimeout(40*time.Millisecond),
			resilience.WithAttemptCeiling(resilience.CeilingAbove(3))), "the floor was not written: not refused, and the tighter one wins")
		require.Equal(t, resilience.Unbounded, bound(time.Second, resilience.WithAttemptTimeout(resilience.Unbounded), resilience.WithDeadline(resilience.Unbounded)),
			"no default ceiling without an attempt timeout")
		require.InEpsilon(t, 2*time.Second, bound(time.Second, resilience.WithAttemptTimeout(resilience.Unbounded), resilience.WithAttemptCeiling(resilience.CeilingAbove(2))), 0.05,
			"one that was written is honoured")
		require.Equal(t, 10*time.Second, bound(time.Second, resilience.WithoutAttemptCeiling()))
		require.Equal(t, 10*time.Second, bound(time.Second, resilience.WithAdaptive(false)))
	})
}

func TestCeilingLeavesRoomForTheHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinDelay: time.Second}))
		for range 20 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }))
		}
		require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
			info, _ := resilience.AttemptFrom(ctx)
			require.Equal(t, 3*time.Second, info.Bound, "3 x the hedge threshold of 1s, not 3 x 100ms")
			return nil
		}))
	})
}

func TestDerivedPolicyStartsCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}), resilience.WithHedge(resilience.HedgeAt(0.9)))
		for range 30 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return nil }))
		}
		require.Equal(t, resilience.Warm, p.Measured().AttemptCeiling.State)
		require.Equal(t, resilience.Warm, p.Measured().BackoffBase.State)
		require.Equal(t, resilience.Warm, p.Measured().HedgeThreshold.State)
		d := p.MustWith(resilience.WithName("derived"))
		require.Equal(t, resilience.Cold, d.Measured().AttemptCeiling.State)
		require.Equal(t, resilience.Cold, d.Measured().BackoffBase.State)
		require.Equal(t, resilience.Cold, d.Measured().HedgeThreshold.State)
		require.Zero(t, d.Measured().AttemptCeiling.Samples)
	})
}
