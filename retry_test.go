package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// delays runs a call of n attempts, all of which fail with err, and returns the waits between them.
func delays(t *testing.T, n int, err error, opts ...resilience.Option) []time.Duration {
	t.Helper()
	var h heard
	p := retrying(append([]resilience.Option{
		h.option(), resilience.WithAttempts(n), resilience.WithDeadline(resilience.Unbounded),
	}, opts...)...)
	var starts []time.Time
	_ = p.Run(t.Context(), func(context.Context) error { starts = append(starts, time.Now()); return err })
	require.Len(t, starts, n)
	var d []time.Duration
	for i := 1; i < n; i++ {
		d = append(d, starts[i].Sub(starts[i-1]))
	}
	for i, e := range h.of(resilience.EventRetrying) {
		require.Equal(t, d[i], e.Delay)
		require.Equal(t, i+2, e.Attempt)
	}
	return d
}

func TestThreeAttemptsByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scripted(errDown)
		p := resilience.MustNew(resilience.WithClassifier(resilience.RetryAll()))
		require.ErrorIs(t, p.Run(t.Context(), s.fn), resilience.ErrAttemptsExhausted)
		require.Equal(t, 3, s.calls)
	})
}

func TestCurves(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, n := range n {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	none := resilience.JitterNone
	throttled := resilience.Throttled.Mark(errDown)
	limited := &resilience.LimitedError{}
	for _, c := range []struct {
		name string
		b    resilience.Backoff
		err  error
		want []time.Duration
	}{
		{"the default", resilience.Backoff{Jitter: none}, errDown, ms(100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000)},
		{"the default, throttled", resilience.Backoff{Jitter: none}, throttled, ms(1000, 2000, 4000, 8000, 16000, 30000, 30000)},
		{"the default, limited", resilience.Backoff{Jitter: none}, limited, ms(1000, 2000, 4000)},
		{"constant", resilience.ConstantBackoff(time.Second), errDown, ms(1000, 1000, 1000)},
		{"constant, throttled", resilience.ConstantBackoff(time.Second), throttled, ms(1000, 1000, 1000)},
		{"none", resilience.NoBackoff(), errDown, ms(0, 0, 0)},
		{"none, throttled", resilience.NoBackoff(), throttled, ms(0, 0, 0)},
		{"factor 3", resilience.Backoff{Base: time.Second, Factor: 3, Max: 20 * time.Second, Jitter: none}, errDown, ms(1000, 3000, 9000, 20000)},
		{"custom", resilience.Backoff{Delay: func(in resilience.BackoffInput) time.Duration {
			return time.Duration(in.Attempt) * time.Second
		}}, errDown, ms(2000, 3000, 4000)},
		{"custom beyond Max", resilience.Backoff{Max: time.Second, Delay: func(resilience.BackoffInput) time.Duration {
			return time.Hour
		}}, errDown, ms(1000, 1000)},
		{"custom negative", resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration { return -time.Hour }}, errDown, ms(0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, c.want, delays(t, len(c.want)+1, c.err, resilience.WithBackoff(c.b)))
			})
		})
	}
}

func TestJitterStaysInItsRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			jitter    resilience.Jitter
			low, mean time.Duration
		}{
			{resilience.JitterFull, 0, 500 * time.Millisecond},
			{resilience.JitterEqual, 500 * time.Millisecond, 750 * time.Millisecond},
			{resilience.JitterNone, time.Second, time.Second},
		} {
			var sum time.Duration
			b := resilience.Backoff{Base: time.Second, Factor: 1, Jitter: c.jitter}
			all := delays(t, 5001, errDown, resilience.WithBackoff(b))
			different := map[time.Duration]bool{}
			for _, d := range all {
				require.GreaterOrEqual(t, d, c.low, c.jitter)
				require.LessOrEqual(t, d, time.Second, c.jitter)
				different[d] = true
				sum += d
			}
			require.InDelta(t, c.mean, sum/time.Duration(len(all)), float64(20*time.Millisecond), c.jitter)
			if c.jitter != resilience.JitterNone {
				require.Greater(t, len(different), 4900)
			}
		}
	})
}

func TestCustomCurveIsToldWhatItMayKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []resilience.BackoffInput
		p := retrying(resilience.WithDeadline(10*time.Second), resilience.WithBackoff(resilience.Backoff{
			Delay: func(in resilience.BackoffInput) time.Duration { got = append(got, in); return time.Second },
		}))
		_ = p.Run(t.Context(), func(context.Context) error { time.Sleep(time.Second); return errDown })
		require.Equal(t, []resilience.BackoffInput{
			{Attempt: 2, Verdict: resilience.Transient, Err: errDown, Remaining: 9 * time.Second},
			{Attempt: 3, Verdict: resilience.Transient, Err: errDown, Remaining: 7 * time.Second},
		}, got)
	})
}

func TestPushbackReplacesEveryCurve(t *testing.T) {
	for name, b := range map[string]resilience.Backoff{
		"default": {}, "equal": {Jitter: resilience.JitterEqual}, "none": resilience.NoBackoff(),
		"constant": resilience.ConstantBackoff(time.Second),
		"custom":   {Delay: func(resilience.BackoffInput) time.Duration { return time.Millisecond }},
	} {
		for _, v := range []resilience.Verdict{resilience.Transient, resilience.Throttled, resilience.Limited} {
			t.Run(fmt.Sprint(name, " ", v), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					require.Equal(t, []time.Duration{17 * time.Second, 17 * time.Second},
						delays(t, 3, v.After(17*time.Second).Mark(errDown), resilience.WithBackoff(b)),
						"never shortened, never jittered")
				})
			})
		}
	}
}

func TestPushbackThatCannotBeObeyedStopsTheCall(t *testing.T) {
	for _, c := range []struct {
		name     string
		pushback time.Duration
		deadline time.Duration
		reason   resilience.Reason
	}{
		{"longer than Max", 31 * time.Second, time.Hour, resilience.ReasonAttemptsExhausted},
		{"as long as Max", 30 * time.Second, time.Hour, resilience.ReasonSucceeded},
		{"beyond the deadline", 20 * time.Second, 10 * time.Second, resilience.ReasonDeadlineExceeded},
		{"as long as the deadline", 10 * time.Second, 10 * time.Second, resilience.ReasonDeadlineExceeded},
		{"huge", 1 << 62, resilience.Unbounded, resilience.ReasonAttemptsExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := scripted(resilience.Throttled.After(c.pushback).Mark(errDown), nil)
				took := stopwatch()
				r := retrying(resilience.WithDeadline(c.deadline)).Try(t.Context(), s.fn)
				require.Equal(t, c.reason, r.Reason)
				if c.reason == resilience.ReasonSucceeded {
					require.Equal(t, c.pushback, took())
					return
				}
				require.Zero(t, took(), "at once")
				require.Equal(t, 1, s.calls)
				require.ErrorIs(t, r.Err, errDown)
				require.Equal(t, min(c.pushback, 1<<61-1), report(t, r.Err).RetryAfter)
			})
		})
	}
}

func TestPushbackOfTheLastAttemptIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithAttempts(1))
		e := report(t, p.Run(t.Context(), scripted(resilience.Throttled.After(5*time.Second).Mark(errDown)).fn))
		require.Equal(t, resilience.ReasonAttemptsExhausted, e.Reason)
		require.Equal(t, 5*time.Second, e.RetryAfter, "when to come back, where known")
	})
}

func TestMeasuredBackoffBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := func(latency time.Duration, err error, m resilience.MeasuredBackoff, failures time.Duration) time.Duration {
			var h heard
			p := retrying(h.option(), resilience.WithMeasuredBackoff(m), resilience.WithAttempts(2), resilience.WithDeadline(resilience.Unbounded),
				resilience.WithBackoff(resilience.Backoff{Jitter: resilience.JitterNone, Factor: 1}))
			for range 20 {
				require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(latency); return nil }))
			}
			for range 40 {
				_ = p.Run(resilience.SingleShot(t.Context()), func(context.Context) error { time.Sleep(failures); return errDown })
			}
			_ = p.Run(t.Context(), func(context.Context) error { return err })
			require.Len(t, h.of(resilience.EventRetrying), 1)
			return h.of(resilience.EventRetrying)[0].Delay
		}
		require.InEpsilon(t, 300*time.Millisecond, first(300*time.Millisecond, errDown, resilience.MeasuredBackoff{}, 0), 0.05)
		require.InEpsilon(t, 300*time.Millisecond, first(300*time.Millisecond, errDown, resilience.MeasuredBackoff{}, time.Second), 0.05, "successes only")
		require.InEpsilon(t, 600*time.Millisecond, first(300*time.Millisecond, errDown, resilience.MeasuredBackoff{Multiple: 2}, 0), 0.05)
		require.Equal(t, time.Second, first(9*time.Second, errDown, resilience.MeasuredBackoff{}, 0), "base x spread")
		require.Equal(t, 10*time.Millisecond, first(time.Microsecond, errDown, resilience.MeasuredBackoff{}, 0), "base / spread")
		require.Equal(t, 200*time.Millisecond, first(9*time.Second, errDown, resilience.MeasuredBackoff{Spread: 2}, 0))
		require.Equal(t, 100*time.Millisecond, first(300*time.Millisecond, errDown, resilience.MeasuredBackoff{MinSamples: 21}, 0), "cold: the constant")
		require.Equal(t, time.Second, first(300*time.Millisecond, resilience.Throttled.Mark(errDown), resilience.MeasuredBackoff{}, 0), "never for throttled")
	})
}

type closer struct{ closed int }

func (c *closer) Close() error { c.closed++; return nil }

var _ io.Closer = (*closer)(nil)

func TestResultRuleReadsTheStaticType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(
			resilience.WithRules(
				resilience.OnResult("int", func(n int) resilience.Verdict {
					if n < 0 {
						return resilience.Transient
					}
					return resilience.OK
				}),
				resilience.OnResult("closer", func(io.Closer) resilience.Verdict { return resilience.Transient }),
			))
		calls := 0
		v, err := resilience.Do(t.Context(), p, func(context.Context) (int, error) { calls++; return calls - 3, nil })
		require.NoError(t, err)
		require.Equal(t, 0, v)
		require.Equal(t, 3, calls)

		calls = 0
		_, err = resilience.Do(t.Context(), p, func(context.Context) (int64, error) { calls++; return -1, nil })
		require.NoError(t, err)
		require.Equal(t, 1, calls, "another type")
		calls = 0
		_, err = resilience.Do(t.Context(), p, func(context.Context) (*closer, error) { calls++; return &closer{}, nil })
		require.NoError(t, err)
		require.Equal(t, 1, calls, "an implementation is another static type")
		calls = 0
		_, err = resilience.Do(t.Context(), p, func(context.Context) (io.Closer, error) { calls++; return &closer{}, nil })
		require.NoError(t, err)
		require.Equal(t, 3, calls)
	})
}

func TestLastValueComesBackWithoutAnError(t *testing.T) {
	bad := resilience.WithRules(resilience.OnResult("bad", func(*closer) resilience.Verdict { return resilience.Transient }))
	for _, c := range []struct {
		name  string
		opts  []resilience.Option
		want  resilience.Reason
		calls int
	}{
		{"attempts exhausted", nil, resilience.ReasonAttemptsExhausted, 3},
		{"the wait does not fit", []resilience.Option{waits(time.Minute)}, resilience.ReasonDeadlineExceeded, 1},
		{"the budget is spent", []resilience.Option{resilience.WithBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: resilience.Off})}, resilience.ReasonBudgetExhausted, 2},
		{"the breaker opens", []resilience.Option{resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1})}, resilience.ReasonBreakerOpen, 1},
		{"permanent", []resilience.Option{resilience.WithRules(resilience.OnResult("bug", func(*closer) resilience.Verdict { return resilience.Permanent }))}, resilience.ReasonPermanent, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []*closer
				r := resilience.TryDo(t.Context(), retrying(append([]resilience.Option{bad}, c.opts...)...),
					func(context.Context) (*closer, error) {
						all = append(all, &closer{})
						return all[len(all)-1], nil
					})
				require.NoError(t, r.Err)
				require.Equal(t, c.want, r.Reason)
				require.Len(t, all, c.calls)
				require.Same(t, all[len(all)-1], r.Value)
				for i, v := range all {
					if i == len(all)-1 {
						require.Zero(t, v.closed, "the answer is the caller's to close")
					} else {
						require.Equal(t, 1, v.closed, "the others are closed once")
					}
				}
			})
		})
	}
}

func TestDiscardHookIsNotCalledWithAValueThatNobodyReturned(t *testing.T) {
	var got []int
	p := retrying(resilience.OnDiscard(func(v int) { got = append(got, v) }),
		resilience.WithRules(resilience.OnResult("bad", func(v int) resilience.Verdict {
			if v == 7 {
				return resilience.Transient
			}
			return resilience.OK
		})))
	require.Panics(t, func() {
		_, _ = resilience.Do(t.Context(), p, func(context.Context) (int, error) { panic("no value") })
	})
	require.Empty(t, got)
	calls := 0
	_, err := resilience.Do(t.Context(), p, func(context.Context) (int, error) { calls++; return 6 + calls%2, nil })
	require.NoError(t, err)
	require.Equal(t, []int{7}, got)
}

func TestNestedPoliciesMakeThreeCalls(t *testing.T) {
	three := func(opts ...resilience.Option) resilience.Policy { return retrying(opts...) }
	for _, c := range []struct {
		name   string
		layers []resilience.Policy // the outermost first
		want   int
	}{
		{"two layers", []resilience.Policy{three(), three()}, 3},
		{"three layers", []resilience.Policy{three(), three(), three()}, 3},
		{"a zero policy between", []resilience.Policy{three(), {}, three()}, 3},
		{"a policy of one attempt between", []resilience.Policy{three(), three(resilience.WithAttempts(1)), three()}, 3},
		{"a policy between to which it is permanent", []resilience.Policy{three(), three(resilience.WithClassifier(resilience.NewClassifier())), three()}, 3},
		{"one attempt beneath", []resilience.Policy{three(), three(resilience.WithAttempts(1))}, 3},
		{"opt-in, two layers", []resilience.Policy{three(resilience.WithNestedRetries(true)), three()}, 9},
		{"opt-in, three layers", []resilience.Policy{three(resilience.WithNestedRetries(true)), three(resilience.WithNestedRetries(true)), three()}, 27},
		{"opt-in above only", []resilience.Policy{three(resilience.WithNestedRetries(true)), three(), three()}, 9},
		{"opt-in beneath only", []resilience.Policy{three(), three(resilience.WithNestedRetries(true))}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				call := func(context.Context) error { calls++; return errDown }
				for i := len(c.layers) - 1; i >= 0; i-- {
					inner := call
					call = func(ctx context.Context) error {
						if err := c.layers[i].Run(ctx, inner); err != nil {
							return fmt.Errorf("layer %d: %v", i, err)
						}
						return nil
					}
				}
				require.Error(t, call(t.Context()))
				require.Equal(t, c.want, calls)
			})
		})
	}
}

func TestNestedRetryIsToldOnceWhereItWasLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outer, inner heard
		above, beneath := retrying(outer.option()), retrying(inner.option())
		r := above.Try(t.Context(), func(ctx context.Context) error { return beneath.Run(ctx, fail) })
		require.Equal(t, resilience.ReasonAttemptsExhausted, r.Reason)
		require.ErrorIs(t, r.Err, errDown)
		require.Equal(t, []resilience.EventKind{resilience.EventAttempt, resilience.EventNestedRetry, resilience.EventExhausted}, outer.kinds())
		require.Empty(t, inner.of(resilience.EventNestedRetry))
	})
}

func TestNestedPolicyThatDidNotSpendItsRetriesIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		above := retrying()
		beneath := retrying(resilience.WithClassifier(resilience.NewClassifier()))
		require.Error(t, above.Run(t.Context(), func(ctx context.Context) error {
			return beneath.Run(ctx, func(context.Context) error { calls++; return errDown })
		}))
		require.Equal(t, 3, calls, "it gave up at once: only the upper one retried")

		calls = 0
		beneath = retrying()
		require.NoError(t, above.Run(t.Context(), func(ctx context.Context) error {
			return beneath.Run(ctx, func(context.Context) error {
				calls++
				if calls < 3 {
					return errDown
				}
				return nil
			})
		}))
		require.Equal(t, 3, calls)
	})
}

func TestPermanentErrorComesBackUntouched(t *testing.T) {
	for name, err := range map[string]error{
		"plain": errBug, "typed": &svcError{1}, "wrapped": fmt.Errorf("x: %w", errBug), "joined": errors.Join(errBug, errDown),
	} {
		got := resilience.MustNew().Run(t.Context(), func(context.Context) error { return err })
		require.True(t, got == err, name)
	}
}

func TestWithoutABackoffTheLongestPushbackIsStillWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := resilience.NoBackoff()
		b.Max = time.Second
		took := stopwatch()
		s := scripted(resilience.Throttled.After(20 * time.Second).Mark(errDown))
		r := resilience.MustNew(resilience.WithBackoff(b)).Try(t.Context(), s.fn)
		require.Equal(t, resilience.ReasonAttemptsExhausted, r.Reason)
		require.Equal(t, 20*time.Second, report(t, r.Err).RetryAfter)
		require.Equal(t, 1, r.Total)
		require.Zero(t, took())
	})
}

func TestAHookThatExitsReleasesAValueOnce(t *testing.T) {
	released := 0
	p := retrying(bad, resilience.OnDiscard(func(int) { released++; runtime.Goexit() }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = resilience.Do(t.Context(), p, func(context.Context) (int, error) { return 7, nil })
	}()
	<-done
	require.Equal(t, 1, released)
}
