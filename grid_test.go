package resilience_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// gridEndings are the ways in which a callback can leave.
var gridEndings = []struct {
	name string
	fn   func(ctx context.Context, cancel context.CancelFunc) error
}{
	{"return", func(context.Context, context.CancelFunc) error { return nil }},
	{"error", func(context.Context, context.CancelFunc) error { return errDown }},
	{"permanent error", func(context.Context, context.CancelFunc) error { return resilience.Permanent.Mark(errBug) }},
	{"panic", func(context.Context, context.CancelFunc) error { panic("boom") }},
	{"Goexit", func(context.Context, context.CancelFunc) error { runtime.Goexit(); return nil }},
	{"cancelled before", nil},
	{"cancelled during", func(ctx context.Context, cancel context.CancelFunc) error { cancel(); return hang(ctx) }},
	{"deadline", func(ctx context.Context, _ context.CancelFunc) error { return hang(ctx) }},
	{"hung", func(context.Context, context.CancelFunc) error { time.Sleep(time.Minute); return nil }},
	{"hung, then a panic", func(context.Context, context.CancelFunc) error { time.Sleep(time.Minute); panic("late") }},
}

// gridBreaker is a breaker in that state at the moment of the call.
func gridBreaker(t *testing.T, s resilience.BreakerState) *resilience.Breaker {
	b := breakerOf(t, resilience.BreakerConfig{
		ConsecutiveFailures: 3, ProbeSuccesses: 1, OpenFor: 15 * time.Second, Recovery: resilience.Recovery{Fraction: 1, Initial: 0.9},
	})
	if s == resilience.StateClosed {
		return b
	}
	tripped(t, b)
	if s == resilience.StateOpen {
		return b
	}
	time.Sleep(15 * time.Second)
	if s == resilience.StateRecovering {
		l, err := b.Allow()
		require.NoError(t, err)
		l.Done(resilience.OK, time.Millisecond)
	}
	require.Equal(t, s, b.State())
	return b
}

func TestNothingIsHeldAfterAnyEnding(t *testing.T) {
	for _, ending := range gridEndings {
		for _, state := range []resilience.BreakerState{resilience.StateClosed, resilience.StateOpen, resilience.StateHalfOpen, resilience.StateRecovering} {
			for _, full := range []bool{false, true} {
				for _, hedge := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%v/limiter full %v/hedged %v", ending.name, state, full, hedge), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { gridCell(t, ending.fn, state, full, hedge) })
					})
				}
			}
		}
	}
}

func gridCell(t *testing.T, fn func(context.Context, context.CancelFunc) error, state resilience.BreakerState, full, hedge bool) {
	var h heard
	l := mustLimiter(t, resilience.FixedLimit(3))
	b := gridBreaker(t, state)
	opts := []resilience.Option{
		h.option(), resilience.WithSharedLimiter(l), resilience.WithSharedBreaker(b), resilience.WithAttempts(2),
		resilience.WithDeadline(5 * time.Second), resilience.WithAttemptTimeout(2 * time.Second), waits(time.Second), resilience.WithoutAttemptCeiling(),
	}
	if hedge {
		opts = append(opts, resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1, MinDelay: 500 * time.Millisecond}))
	}
	p := retrying(opts...)
	if hedge && state == resilience.StateClosed { // elsewhere nothing is hedged
		require.NoError(t, p.Run(t.Context(), succeed))
		require.Equal(t, resilience.Warm, p.Measured().HedgeThreshold.State)
		h.forget()
	}
	var permits []resilience.Permit
	for range 3 {
		if full {
			permit, err := l.Acquire(t.Context())
			require.NoError(t, err)
			permits = append(permits, permit)
		}
	}
	synctest.Wait()
	goroutines := runtime.NumGoroutine()
	state = b.State()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if fn == nil {
		cancel()
		fn = func(context.Context, context.CancelFunc) error { t.Error("called under a dead context"); return nil }
	}
	var entered atomic.Int32
	var kept atomic.Value
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		_ = p.Run(ctx, func(ctx context.Context) error {
			entered.Add(1)
			kept.Store(&ctx)
			return fn(ctx, cancel)
		})
	}()
	<-done
	require.Len(t, h.terminals(), 1, "%v", h.kinds())
	if full || state == resilience.StateOpen {
		require.Zero(t, entered.Load())
	}
	time.Sleep(2 * time.Minute) // legs that lost may run on
	synctest.Wait()

	noGoroutineLeft(t, goroutines)
	require.Equal(t, len(permits), l.Stats().InFlight)
	require.Zero(t, l.Stats().Waiting)
	if ctx, ok := kept.Load().(*context.Context); ok {
		require.Error(t, (*ctx).Err(), "the attempt's context is over")
	}
	for i := range permits {
		permits[i].Release(resilience.OK)
	}
	require.Zero(t, l.Stats().InFlight)

	// The next call gets what it would have got.
	lease, err := b.Allow()
	require.NoError(t, err, "the probe's slot is held: %v", b.State())
	lease.Done(resilience.OK, time.Millisecond)
	time.Sleep(time.Minute) // a ramp is over
	require.NoError(t, p.Run(t.Context(), succeed))
	require.Equal(t, resilience.StateClosed, b.State())
}

// A probe's slot comes back in the same instant, not only when its lease expires.
func TestProbeSlotIsReturnedAtOnce(t *testing.T) {
	for _, ending := range gridEndings {
		if ending.name == "error" || ending.name == "deadline" || ending.name == "hung" || ending.name == "return" {
			continue // these are evidence: they change the state
		}
		for _, hedge := range []bool{false, true} {
			t.Run(fmt.Sprint(ending.name, "/", hedge), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := gridBreaker(t, resilience.StateHalfOpen)
					opts := []resilience.Option{resilience.WithSharedBreaker(b), resilience.WithAttempts(1)}
					if hedge {
						opts = append(opts, resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1}))
					}
					p := retrying(opts...)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if ending.fn == nil {
						cancel()
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { _ = recover() }()
						_ = p.Run(ctx, func(ctx context.Context) error { return ending.fn(ctx, cancel) })
					}()
					<-done
					require.Equal(t, resilience.StateHalfOpen, b.State(), "no evidence")
					lease, err := b.Allow()
					require.NoError(t, err, "the slot is still taken")
					lease.Done(resilience.OK, time.Millisecond)
				})
			})
		}
	}
}
