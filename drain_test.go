package resilience_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestDrainStopsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := resilience.NewDrain()
		var h heard
		p := retrying(resilience.WithDrain(d), h.option())
		s := scripted(errDown)
		require.ErrorIs(t, p.Run(t.Context(), s.fn), resilience.ErrAttemptsExhausted)
		require.Equal(t, 3, s.calls)
		h.forget()
		d.Begin(time.Minute)
		s = scripted(errDown)
		r := p.Try(t.Context(), s.fn)
		require.Equal(t, 1, s.calls)
		require.Equal(t, resilience.ReasonDraining, r.Reason)
		require.ErrorIs(t, r.Err, resilience.ErrDraining)
		require.ErrorIs(t, r.Err, errDown, "the dependency's own error comes back")
		require.Equal(t, []resilience.EventKind{resilience.EventAttempt, resilience.EventDraining}, h.kinds())
		require.NoError(t, p.Run(t.Context(), succeed))
	})
}

func TestDrainEndsABackoffWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := resilience.NewDrain()
		p := retrying(resilience.WithDrain(d), waits(20*time.Second))
		time.AfterFunc(time.Second, func() { d.Begin(time.Minute) })
		took := stopwatch()
		err := p.Run(t.Context(), fail)
		require.Equal(t, time.Second, took())
		require.ErrorIs(t, err, resilience.ErrDraining)
		require.ErrorIs(t, err, errDown)
	})
}

func TestDrainShrinksDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := resilience.NewDrain()
		p := retrying(resilience.WithDrain(d))
		d.Begin(3 * time.Second)
		d.Begin(time.Hour) // the first call wins
		time.Sleep(time.Second)
		took := stopwatch()
		r := p.Try(t.Context(), func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			require.Equal(t, 2*time.Second, time.Until(end))
			return hang(ctx)
		})
		require.Equal(t, 2*time.Second, took())
		require.Equal(t, resilience.ReasonDeadlineExceeded, r.Reason)
		require.ErrorIs(t, r.Err, context.DeadlineExceeded)
		require.ErrorIs(t, r.Err, resilience.ErrDraining)
		took = stopwatch()
		require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrDeadlineExceeded, "nothing is left of the grace")
		require.Zero(t, took())
	})
}

func TestDrainWithoutGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, grace := range []time.Duration{0, -time.Hour, -1 << 63} {
			d := resilience.NewDrain()
			p := retrying(resilience.WithDrain(d))
			d.Begin(grace)
			require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrDeadlineExceeded)
		}
		d := resilience.NewDrain()
		d.Begin(1<<63 - 1)
		require.NoError(t, retrying(resilience.WithDrain(d)).Run(t.Context(), succeed))
	})
}

func TestDrainStartsNoHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := resilience.NewDrain()
		p := retrying(resilience.WithDrain(d), resilience.WithHedge(resilience.Hedge{Quantile: 0.9, MinSamples: 1}))
		require.NoError(t, p.Run(t.Context(), succeed))
		calls := 0
		slow := func(context.Context) error { calls++; time.Sleep(time.Second); return nil }
		time.AfterFunc(5*time.Millisecond, func() { d.Begin(time.Minute) })
		require.NoError(t, p.Run(t.Context(), slow))
		require.Equal(t, 1, calls, "begun before the hedge was due")
		require.NoError(t, p.Run(t.Context(), slow))
		require.Equal(t, 2, calls)
	})
}

func TestDrainFollowsTheMockClock(t *testing.T) {
	mock := clock.NewMock()
	d := resilience.NewDrain()
	p := retrying(resilience.WithDrain(d), resilience.WithClock(mock), waits(20*time.Second))

	// Begun during a backoff wait on a clock that stands still.
	done := make(chan error)
	waiting := make(chan struct{})
	go func() {
		q := p.MustWith(resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventRetrying {
				close(waiting)
			}
		}))
		done <- q.Run(t.Context(), fail)
	}()
	<-waiting
	d.Begin(10 * time.Second)
	require.ErrorIs(t, <-done, resilience.ErrDraining)

	mock.Add(4 * time.Second)
	require.NoError(t, p.Run(t.Context(), func(ctx context.Context) error {
		info, _ := resilience.AttemptFrom(ctx)
		require.Equal(t, 6*time.Second, info.Bound, "what is left of the grace, on the mock clock")
		return nil
	}))
	late := resilience.MustNew(resilience.WithDrain(d), resilience.WithClock(mock))
	require.NoError(t, late.Run(t.Context(), succeed), "a policy that is made after Begin")
	mock.Add(6 * time.Second)
	require.ErrorIs(t, p.Run(t.Context(), succeed), resilience.ErrDeadlineExceeded)
}

func TestADrainIsNotBlamedForAnotherDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := resilience.NewDrain()
		p := retrying(resilience.WithDrain(d), resilience.WithDeadline(time.Second))
		time.AfterFunc(500*time.Millisecond, func() { d.Begin(time.Hour) })
		err := p.Run(t.Context(), hang)
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, resilience.ErrDraining)
		err = p.MustWith(resilience.WithDeadline(2*time.Hour), resilience.WithAttemptTimeout(resilience.Unbounded)).Run(t.Context(), hang)
		require.ErrorIs(t, err, resilience.ErrDeadlineExceeded)
		require.ErrorIs(t, err, resilience.ErrDraining, "its grace was the deadline")
	})
}
