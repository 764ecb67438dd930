package resilience_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// What comes late to a race: a goroutine that is not scheduled, a hook, a listener, a loser.

func legHook(d time.Duration, err error) resilience.Option {
	return resilience.WithBeforeAttempt(func(ctx context.Context, a resilience.AttemptInfo) error {
		if !a.Hedged {
			return nil
		}
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func TestTheHookOfAHedgeHoldsNobodyUp(t *testing.T) {
	for name, result := range map[string]error{"a success": nil, "a failure": errBug} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := resilience.NewLimiter(resilience.FixedLimit(10))
				require.NoError(t, err)
				p := hedged(t, resilience.Hedge{}, resilience.WithAttemptTimeout(time.Second), resilience.WithClassifier(resilience.DefaultClassifier()),
					resilience.WithSharedLimiter(l), legHook(5*time.Second, nil))
				r := p.Try(t.Context(), func(context.Context) error { time.Sleep(150 * time.Millisecond); return result })
				require.Equal(t, result, r.Err)
				require.Equal(t, 150*time.Millisecond, r.Elapsed)
				require.Equal(t, 1, r.Total)
				require.Equal(t, 150*time.Millisecond, r.Attempts[0].Duration)
				synctest.Wait()
				require.Zero(t, l.Stats().InFlight, "the hook ends with the call, and gives its permit back")
			})
		})
	}
}

func TestAHedgeStartsWhenItsHookAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, legHook(50*time.Millisecond, nil), h.option())
		b := &byLeg{took: []time.Duration{10 * time.Second, 30 * time.Millisecond}}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.Equal(t, 2, r.Value)
		require.Equal(t, []time.Duration{0, 150 * time.Millisecond}, b.starts)
		require.Equal(t, 180*time.Millisecond, r.Elapsed)
		for _, a := range r.Attempts {
			if a.Hedged {
				require.Equal(t, 150*time.Millisecond, a.Start)
				require.Equal(t, 30*time.Millisecond, a.Duration)
			}
		}
		require.Equal(t, 150*time.Millisecond, h.of(resilience.EventHedgeStarted)[0].Delay)
	})
}

func TestAHookThatRefusesAHedgeRefusesNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		l, err := resilience.NewLimiter(resilience.FixedLimit(10))
		require.NoError(t, err)
		p := hedged(t, resilience.Hedge{}, legHook(50*time.Millisecond, errBug), resilience.WithSharedLimiter(l), h.option())
		err = p.Run(t.Context(), func(context.Context) error {
			time.Sleep(160 * time.Millisecond)
			if l.Stats().InFlight != 1 {
				t.Error("the refused leg keeps its permit")
			}
			return nil
		})
		require.NoError(t, err)
		require.Empty(t, h.of(resilience.EventHedgeStarted))
	})
}

func TestAPanicInTheHookOfAHedgeArrives(t *testing.T) {
	tests := map[string]func(){"a panic": func() { panic("boom") }, "Goexit": runtime.Goexit}
	for name, leave := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h heard
				l, err := resilience.NewLimiter(resilience.FixedLimit(10))
				require.NoError(t, err)
				p := hedged(t, resilience.Hedge{}, resilience.WithSharedLimiter(l), h.option(),
					resilience.WithBeforeAttempt(func(_ context.Context, a resilience.AttemptInfo) error {
						if a.Hedged {
							leave()
						}
						return nil
					}))
				h.forget()
				var value any
				returned, done := false, make(chan struct{})
				go func() {
					defer close(done)
					defer func() { value = recover() }()
					_ = p.Run(t.Context(), hang)
					returned = true
				}()
				<-done
				require.False(t, returned)
				if name == "a panic" {
					require.Equal(t, "boom", value)
				} else {
					require.Nil(t, value)
				}
				require.Equal(t, []resilience.EventKind{resilience.EventPanicked}, h.terminals())
				synctest.Wait()
				require.Zero(t, l.Stats().InFlight)
			})
		})
	}
}

// A late panic of a hook has nobody to arrive at.
func TestALatePanicInTheHookOfAHedgeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, h.option(), resilience.WithBeforeAttempt(func(_ context.Context, a resilience.AttemptInfo) error {
			if a.Hedged {
				time.Sleep(time.Second)
				panic("boom")
			}
			return nil
		}))
		require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(150 * time.Millisecond); return nil }))
		time.Sleep(time.Minute)
		require.ErrorContains(t, h.of(resilience.EventOrphanedWork)[0].Err, "boom")
	})
}

func TestALegTakesAsLongAsItsCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, resilience.WithAttemptTimeout(time.Second), resilience.WithoutAttemptCeiling(),
			resilience.WithClassifier(resilience.DefaultClassifier()), slowAt(resilience.EventHedgeStarted, 2*time.Second))
		r := p.Try(t.Context(), func(context.Context) error { time.Sleep(150 * time.Millisecond); return errBug })
		require.NotErrorIs(t, r.Err, resilience.ErrAttemptTimeout)
		for _, a := range r.Attempts {
			require.Equal(t, resilience.Permanent, a.Verdict)
			require.Equal(t, 150*time.Millisecond, a.Duration)
		}
	})
}

// While a listener holds the race up, the first leg answers and the next one becomes due.
func TestNoHedgeForAnAnswerThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			p := hedged(t, resilience.Hedge{MaxConcurrent: 3}, slowAt(resilience.EventAttempt, 200*time.Millisecond))
			b := &byLeg{took: []time.Duration{250 * time.Millisecond, 50 * time.Millisecond}, errs: []error{nil, errDown}}
			_, err := resilience.Do(t.Context(), p, b.fn)
			require.NoError(t, err)
			require.Len(t, b.starts, 2)
		}
	})
}

// While a listener hears of a leg that failed, the time comes at which another one is due.
func TestAHedgeThatIsOverdueStartsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, slowAt(resilience.EventAttempt, 200*time.Millisecond))
		b := &byLeg{took: []time.Duration{10 * time.Second, 50 * time.Millisecond, 10 * time.Millisecond}, errs: []error{nil, errDown, nil}}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 350 * time.Millisecond}, b.starts)
	})
}

func TestAHedgeLeavesTheHalfOpenProbeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: 2, OpenFor: 50 * time.Millisecond, MaxOpenFor: 50 * time.Millisecond})
		p := hedged(t, resilience.Hedge{}, resilience.WithSharedBreaker(b))
		var legs atomic.Int64
		done := make(chan error)
		go func() {
			done <- p.Run(t.Context(), func(context.Context) error { legs.Add(1); time.Sleep(time.Second); return nil })
		}()
		time.Sleep(10 * time.Millisecond)
		tripped(t, b) // half-open from 60 ms on
		time.Sleep(200 * time.Millisecond)
		l, err := b.Allow()
		require.NoError(t, err, "the slot is free")
		l.Done(resilience.OK, time.Millisecond)
		require.NoError(t, <-done)
		require.EqualValues(t, 1, legs.Load())
	})
}

func TestALoserThatOverranItsBoundIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, resilience.WithAttemptTimeout(time.Second), resilience.WithoutAttemptCeiling(), h.option())
		b := &byLeg{took: []time.Duration{10 * time.Minute, 20 * time.Millisecond}, deaf: true}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		told := h.of(resilience.EventOrphanedWork)
		require.Len(t, told, 1)
		require.Equal(t, 10*time.Minute-time.Second, told[0].Duration)
		require.Equal(t, 1, told[0].Attempt)
	})
}

func TestTheLongestPushbackOfARaceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, resilience.WithAttempts(3), resilience.WithClassifier(resilience.DefaultClassifier()))
		b := &byLeg{
			took: []time.Duration{150 * time.Millisecond, 60 * time.Millisecond, 0},
			errs: []error{resilience.Throttled.After(5 * time.Second).Mark(errDown), resilience.Transient.Mark(errDown), nil},
		}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, 100 * time.Millisecond, 5160 * time.Millisecond}, b.starts)
	})
}

// Also where a leg between them failed for good, and where the last one of them does not decide alone.
func TestThePushbackOfALegOutlivesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{MaxConcurrent: 3}, resilience.WithAttempts(4), resilience.WithClassifier(resilience.DefaultClassifier()))
		b := &byLeg{
			took: []time.Duration{280 * time.Millisecond, 185 * time.Millisecond, 90 * time.Millisecond, 0},
			errs: []error{
				resilience.Throttled.After(5 * time.Second).Mark(errDown), resilience.Permanent.Mark(errDown), resilience.Transient.Mark(errDown), nil,
			},
		}
		_, err := resilience.Do(t.Context(), p, b.fn)
		require.NoError(t, err)
		require.Equal(t, 5290*time.Millisecond, b.starts[3])
	})
}

// Only the pushback of a leg that a limiter refused is kept: what the dependency did in the last one costs a token.
func TestARaceThatEndsWithAFailureIsNotExemptFromTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 0.1, Fraction: resilience.Off}))
		b := &byLeg{
			took: []time.Duration{300 * time.Millisecond, 300 * time.Millisecond},
			errs: []error{&resilience.LimitedError{RetryAfter: 2 * time.Second}, errDown},
		}
		r := resilience.TryDo(t.Context(), p, b.fn)
		require.Equal(t, resilience.ReasonBudgetExhausted, r.Reason, "the hedge has taken the only token")
	})
}

func TestAPanicEndsARaceWithTheTimeThatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := hedged(t, resilience.Hedge{}, h.option())
		var n atomic.Int64
		require.Panics(t, func() {
			_ = p.Run(t.Context(), func(ctx context.Context) error {
				if n.Add(1) == 1 {
					return hang(ctx)
				}
				time.Sleep(400 * time.Millisecond)
				panic("boom")
			})
		})
		require.Equal(t, 500*time.Millisecond, h.of(resilience.EventHedgeDiscarded)[0].Duration)
	})
}

// A policy beneath the first leg has spent its retries. That the second one fails by itself changes nothing about it.
func TestSpentRetriesOfAnyLegCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := retrying(resilience.WithAttempts(2))
		p := hedged(t, resilience.Hedge{}, resilience.WithAttempts(3))
		var calls atomic.Int64
		r := p.Try(t.Context(), func(ctx context.Context) error {
			if calls.Add(1) == 1 {
				time.Sleep(150 * time.Millisecond)
				return inner.Run(ctx, fail)
			}
			time.Sleep(60 * time.Millisecond)
			return errDown
		})
		require.Equal(t, resilience.ReasonAttemptsExhausted, r.Reason)
		require.EqualValues(t, 2, calls.Load())
	})
}

func TestTheErrorOfSeveralLegsCanBeCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hedged(t, resilience.Hedge{}, resilience.WithAttempts(2), resilience.WithClassifier(resilience.DefaultClassifier()))
		err := p.Run(t.Context(), func(context.Context) error { time.Sleep(150 * time.Millisecond); return errBug })
		require.ErrorIs(t, err, errBug)
		require.True(t, errors.Is(err, err)) //nolint:gocritic // that it can be compared
		require.NotPanics(t, func() { _ = map[error]int{err: 1} })
	})
}

func TestAListenerThatExitsHoldsNoPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := resilience.NewLimiter(resilience.FixedLimit(10))
		require.NoError(t, err)
		p := hedged(t, resilience.Hedge{}, resilience.WithSharedLimiter(l), resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventHedgeDiscarded {
				runtime.Goexit()
			}
		}))
		b := &byLeg{took: []time.Duration{time.Second, 0}}
		go func() { _, _ = resilience.Do(t.Context(), p, b.fn) }()
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().InFlight)
	})
}
