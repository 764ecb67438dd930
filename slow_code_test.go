package resilience_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// What listeners, rules, hooks and closers take is time of the call. No bound is passed over for it, and nothing is
// measured by it.

func TestASlowListenerTakesNothingFromTheNextAttempt(t *testing.T) {
	for _, kind := range []resilience.EventKind{resilience.EventAttempt, resilience.EventRetrying} {
		synctest.Test(t, func(t *testing.T) {
			p := retrying(resilience.WithAttemptTimeout(100*time.Millisecond), slowAt(kind, 150*time.Millisecond))
			n := 0
			r := p.Try(t.Context(), func(ctx context.Context) error {
				if n++; n == 1 {
					return errDown
				}
				require.NoError(t, ctx.Err())
				return nil
			})
			require.NoError(t, r.Err)
			require.Equal(t, 150*time.Millisecond, r.Attempts[1].Start)
			require.Zero(t, r.Attempts[1].Duration)
		})
	}
}

func TestASlowListenerTakesNothingFromAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithAttemptTimeout(100*time.Millisecond), resilience.WithAttempts(1),
			resilience.WithBreaker(resilience.BreakerConfig{}), slowAt(resilience.EventBreakerHalfOpened, 150*time.Millisecond))
		tripped(t, p.Breaker())
		time.Sleep(15 * time.Second)
		require.NoError(t, p.Run(t.Context(), context.Context.Err))
	})
}

func TestAWaitThatNoLongerFitsIsNotSlept(t *testing.T) {
	slow := 600 * time.Millisecond
	tests := map[string][]resilience.Option{
		"a slow rule": {resilience.WithRules(resilience.OnError("slow", resilience.Transient, func(error) bool {
			time.Sleep(slow)
			return true
		}))},
		"a slow listener": {slowAt(resilience.EventRetrying, slow)},
		"a slow closer":   {bad, resilience.OnDiscard(func(int) { time.Sleep(slow) })},
		"a slow curve": {resilience.WithBackoff(resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration {
			time.Sleep(slow)
			return 500 * time.Millisecond
		}})},
	}
	for name, opts := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := retrying(append([]resilience.Option{waits(500 * time.Millisecond), resilience.WithDeadline(time.Second)}, opts...)...)
				took := stopwatch()
				r := resilience.TryDo(t.Context(), p, func(context.Context) (int, error) {
					if name == "a slow closer" {
						return 7, nil
					}
					return 0, errDown
				})
				require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
				require.Equal(t, slow, took())
			})
		})
	}
}

// The caller leaves, or the process begins to drain, in the same code that takes too long.
func TestWhatEndsTheCallMeanwhileComesBeforeAWaitThatNoLongerFits(t *testing.T) {
	for name, reason := range map[string]resilience.Reason{"the caller": resilience.ReasonCancelled, "a drain": resilience.ReasonDraining} {
		for _, where := range []string{"discard", "listener", "curve"} {
			if name == "a drain" && where == "curve" {
				continue // before the wait a drain makes no difference to what fits
			}
			t.Run(name+", "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					drain := resilience.NewDrain()
					end := func() {
						if name == "a drain" {
							drain.Begin(time.Hour)
						} else {
							cancel()
						}
						time.Sleep(600 * time.Millisecond)
					}
					opts := map[string]resilience.Option{
						"discard": resilience.OnDiscard(func(int) { end() }),
						"listener": resilience.WithListener(func(e resilience.Event) {
							if e.Kind == resilience.EventRetrying {
								end()
							}
						}),
						"curve": resilience.WithBackoff(resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration { end(); return 500 * time.Millisecond }}),
					}
					p := retrying(bad, waits(500*time.Millisecond), resilience.WithDeadline(time.Second), resilience.WithDrain(drain), opts[where])
					r := resilience.TryDo(ctx, p, func(context.Context) (int, error) {
						if where == "discard" {
							return 7, nil
						}
						return 0, errDown
					})
					require.Equal(t, reason, r.Reason)
				})
			})
		}
	}
}

func TestTheDeadlineCoversTheHook(t *testing.T) {
	tests := map[string]struct {
		answer func(context.Context) error
		reason resilience.Reason
	}{
		"the context":  {context.Context.Err, resilience.ReasonDeadlineExceeded},
		"no error":     {func(context.Context) error { return nil }, resilience.ReasonDeadlineExceeded},
		"another one":  {func(context.Context) error { return errBug }, resilience.ReasonPermanent},
		"after a call": {context.Context.Err, resilience.ReasonDeadlineExceeded},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := retrying(resilience.WithDeadline(time.Second), resilience.WithBeforeAttempt(func(ctx context.Context, a resilience.AttemptInfo) error {
					if name == "after a call" && a.Number == 1 {
						return nil
					}
					_, inside := resilience.AttemptFrom(ctx)
					require.False(t, inside, "a hook is outside of the attempt")
					at, ok := ctx.Deadline()
					require.True(t, ok)
					require.Equal(t, time.Second, time.Until(at))
					<-ctx.Done()
					return c.answer(ctx)
				}))
				took := stopwatch()
				r := p.Try(t.Context(), fail)
				require.Equal(t, c.reason, r.Reason)
				require.Equal(t, time.Second, took())
				if c.reason == resilience.ReasonDeadlineExceeded {
					require.ErrorIs(t, r.Err, resilience.ErrDeadlineExceeded)
				} else {
					require.Equal(t, errBug, r.Err)
				}
				if name == "after a call" {
					require.ErrorIs(t, r.Err, errDown)
				}
			})
		})
	}
}

func TestAHookThatEndsWithTheCallerIsACancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := retrying(resilience.WithBeforeAttempt(func(ctx context.Context, _ resilience.AttemptInfo) error {
			cancel()
			return hang(ctx)
		}))
		r := p.Try(ctx, succeed)
		require.Equal(t, resilience.ReasonCancelled, r.Reason)
		require.ErrorIs(t, r.Err, context.Canceled)
	})
}

func TestTheTimeOfAHookIsNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithLimiter(resilience.LimiterConfig{}), resilience.WithBreaker(resilience.BreakerConfig{}),
			resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { time.Sleep(90 * time.Millisecond); return nil }))
		for range 400 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil }))
		}
		require.InDelta(t, 10*time.Millisecond, p.Limiter().Stats().Baseline, float64(time.Millisecond))
		require.InDelta(t, 10*time.Millisecond, p.Breaker().Stats().NormalLatency, float64(time.Millisecond))
	})
}
