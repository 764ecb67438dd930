package main

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// The adapters have to do what their rows say: a stack that does less is no contestant.

const (
	hand    = "by hand"
	fs      = "failsafe-go"
	mine    = "this library"
	sreName = "go-retry + aegis sre + aegis bbr"
)

func builders() map[string]func(settings) stack {
	all := compositions()
	all[hand], all[fs] = newFloor, newFailsafe
	all[mine] = func(s settings) stack { return newOurs(s) }
	return all
}

func forEach(t *testing.T, test func(t *testing.T, name string, build func(settings) stack)) {
	all := builders()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { test(t, name, all[name]) })
	}
}

func quick() settings {
	s := usual()
	s.delay = 0
	return s
}

func TestEveryStackRetriesUntilItSucceeds(t *testing.T) {
	forEach(t, func(t *testing.T, _ string, build func(settings) stack) {
		attempts := 0
		err := build(quick()).call(t.Context(), func(context.Context) error {
			if attempts++; attempts < 3 {
				return errDown
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 3, attempts)
	})
}

func TestEveryStackGivesUpAfterThreeAttempts(t *testing.T) {
	forEach(t, func(t *testing.T, _ string, build func(settings) stack) {
		attempts := 0
		err := build(quick()).call(t.Context(), func(context.Context) error { attempts++; return errDown })
		require.ErrorIs(t, err, errDown)
		require.Equal(t, 3, attempts)
	})
}

func TestEveryStackWaitsBeforeItRetries(t *testing.T) {
	forEach(t, func(t *testing.T, _ string, build func(settings) stack) {
		s := usual()
		s.delay = 400 * time.Millisecond
		waits := 0
		for range 4 { // full jitter may draw a short one
			attempts, began := 0, time.Now()
			require.NoError(t, build(s).call(t.Context(), func(context.Context) error {
				if attempts++; attempts == 1 {
					return errDown
				}
				return nil
			}))
			if time.Since(began) > 20*time.Millisecond {
				waits++
				break
			}
		}
		require.Positive(t, waits)
	})
}

func TestEveryBreakerOpens(t *testing.T) {
	forEach(t, func(t *testing.T, name string, build func(settings) stack) {
		s := quick()
		s.attempts, s.openFor = 1, time.Hour
		protected := build(s)
		for range 25 {
			_ = protected.call(t.Context(), func(context.Context) error { return errDown })
		}
		reached := 0
		for range 20 {
			_ = protected.call(t.Context(), func(context.Context) error { reached++; return nil })
		}
		if name == sreName { // sheds a share
			require.Less(t, reached, 20)
			return
		}
		require.Zero(t, reached)
	})
}

func TestEveryLimitRefuses(t *testing.T) {
	forEach(t, func(t *testing.T, name string, build func(settings) stack) {
		if name == sreName {
			t.Skip("bbr refuses while the processors are busy: it has no limit to set")
		}
		s := quick()
		s.attempts, s.limit = 1, 1
		protected := build(s)
		inside := 0
		err := protected.call(t.Context(), func(ctx context.Context) error {
			return protected.call(context.WithoutCancel(ctx), func(context.Context) error { inside++; return nil })
		})
		require.Error(t, err)
		require.Zero(t, inside)
		require.NoError(t, protected.call(t.Context(), succeed), "the permit is back")
	})
}

func TestEveryAttemptTimeoutFires(t *testing.T) {
	forEach(t, func(t *testing.T, _ string, build func(settings) stack) {
		s := quick()
		s.attemptTimeout = 20 * time.Millisecond
		attempts, began := 0, time.Now()
		err := build(s).call(t.Context(), func(ctx context.Context) error {
			if attempts++; attempts == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, err, "a timeout is retried")
		require.Equal(t, 3, attempts)
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

func TestEveryDeadlineFires(t *testing.T) {
	forEach(t, func(t *testing.T, _ string, build func(settings) stack) {
		s := quick()
		s.deadline = 50 * time.Millisecond
		began := time.Now()
		err := build(s).call(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		require.Error(t, err)
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

func TestTheStacksWithABudgetStopRetrying(t *testing.T) {
	for name, build := range map[string]func(settings) stack{
		hand: newFloor,
		mine: func(s settings) stack { return newOurs(s, resilience.WithoutBreaker()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := quick()
			s.consecutive, s.failureRatio = 1e6, 1
			protected := build(s)
			attempts := 0
			for range 40 {
				_ = protected.call(t.Context(), func(context.Context) error { attempts++; return errDown })
				if f, ok := protected.(*floor); ok {
					f.breaker.openUntil.Store(0)
				}
			}
			require.Less(t, attempts, 40+30+20)
		})
	}
}

func TestTheBudgetOfFailsafeRefusesConcurrentRetries(t *testing.T) {
	s := quick()
	s.attempts = 2
	protected := newFailsafe(s)
	const calls = 10
	retries := make(chan struct{}, calls)
	arrived, release := make(chan struct{}, calls), make(chan struct{})
	ended := make(chan error, calls)
	for range calls {
		go func() {
			attempts := 0
			ended <- protected.call(t.Context(), func(context.Context) error {
				if attempts++; attempts == 1 {
					arrived <- struct{}{}
					<-release
					return errDown
				}
				retries <- struct{}{}
				time.Sleep(100 * time.Millisecond)
				return nil
			})
		}()
	}
	for range calls {
		<-arrived
	}
	close(release)
	for range calls {
		<-ended
	}
	require.Less(t, len(retries), calls)
}

func TestEveryHedgeStartsASecondLeg(t *testing.T) {
	late := make(chan struct{}, 1)
	require.NoError(t, newFloorHedged(usual()).call(t.Context(), loseFirst(late)))
	require.Equal(t, hedgedCalls, oursLosers().losers)
	require.Equal(t, hedgedCalls, failsafeLosers().losers)
	require.NoError(t, newFailsafeHedged(usual()).call(t.Context(), succeed))
}

func TestTheRetryRowRetriesEveryCall(t *testing.T) {
	for _, c := range stacks(retrying(), nil) {
		t.Run(c.name, func(t *testing.T) {
			run, _ := c.start()
			run(2000) // panics where a call fails
		})
	}
	fn := everyOther()
	require.Error(t, fn(t.Context()))
	require.NoError(t, fn(t.Context()))
}

func TestEveryGateAdmitsRefusesAndComesBack(t *testing.T) {
	s := usual()
	s.openFor = 30 * time.Millisecond
	for name, build := range gates(s) {
		t.Run(name, func(t *testing.T) {
			g := build()
			report, ok := g.admit()
			require.True(t, ok)
			report(true)
			trip(g)
			if name == "aegis sre" {
				return
			}
			_, ok = g.admit()
			require.False(t, ok, "open")
			require.Eventually(t, func() bool {
				report, ok := g.admit()
				if ok {
					report(true)
				}
				return ok
			}, 2*time.Second, 5*time.Millisecond, "half-open")
		})
	}
}

func TestAegisSREShedsAShare(t *testing.T) {
	b := sre.NewBreaker(sre.WithRequest(20))
	refused := 0
	for range 1000 {
		if b.Allow() != nil {
			refused++
			continue
		}
		b.MarkFailed()
	}
	require.Positive(t, refused)
}

func TestTheFixedLimitsOfTheRowRefuse(t *testing.T) {
	l := &floorLimiter{}
	l.limit.Store(1)
	require.True(t, l.acquire())
	require.False(t, l.acquire())

	w := semaphore.NewWeighted(1)
	require.True(t, w.TryAcquire(1))
	require.False(t, w.TryAcquire(1))

	b := bulkhead.New[any](1)
	require.NoError(t, b.AcquirePermit(t.Context()))
	require.ErrorIs(t, failsafe.With[any](b).Run(func() error { return nil }), bulkhead.ErrFull)

	ours, err := resilience.NewLimiter(resilience.FixedLimit(1))
	require.NoError(t, err)
	_, err = ours.Acquire(t.Context())
	require.NoError(t, err)
	_, err = ours.Acquire(t.Context())
	require.ErrorIs(t, err, resilience.ErrLimited)
}

func TestTheValueRowsReturnTheValue(t *testing.T) {
	v, err := resilience.Do(t.Context(), oursPolicy(usual()), answer)
	require.NoError(t, err)
	require.Equal(t, 42, v)
	v, err = failsafe.With(failsafePolicies[int](usual())...).GetWithExecution(
		func(e failsafe.Execution[int]) (int, error) { return answer(e.Context()) })
	require.NoError(t, err)
	require.Equal(t, 42, v)
}

func TestTheLazyContextIsAContext(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &lazyContext{Context: parent, deadline: time.Now().Add(time.Hour)}
	child, stop := context.WithCancel(c)
	defer stop()
	require.NoError(t, child.Err())
	c.end()
	<-child.Done()
	require.ErrorIs(t, child.Err(), context.Canceled)

	short := &lazyContext{Context: parent, deadline: time.Now().Add(10 * time.Millisecond)}
	<-short.Done()
	require.ErrorIs(t, short.Err(), context.DeadlineExceeded)
}

func TestTheHistogramFindsTheQuantile(t *testing.T) {
	var h floorHistogram
	for i := range 1000 {
		h.record(time.Duration(i+1) * time.Millisecond)
	}
	h.work()
	require.InDelta(t, float64(950*time.Millisecond), float64(h.p95()), float64(400*time.Millisecond))
}
