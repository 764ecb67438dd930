package resiliencetest_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

// outcomes are the errors of n calls of a callback that succeeds.
func outcomes(ctx context.Context, i *resiliencetest.Injector, n int) (failed []bool) {
	run := i.Run(succeed)
	for range n {
		failed = append(failed, run(ctx) != nil)
	}
	return failed
}

func TestZeroInjectorInjectsNothing(t *testing.T) {
	var i resiliencetest.Injector
	require.NotContains(t, outcomes(t.Context(), &i, 100), true)
	require.Zero(t, i.Injected())
	i.Set(resiliencetest.Faults{})
	require.NotContains(t, outcomes(t.Context(), &i, 100), true)
	require.Zero(t, i.Injected())
}

func TestInjectorIsRepeatableAndKeepsItsRate(t *testing.T) {
	first, again, other := resiliencetest.Injector{Seed: 1}, resiliencetest.Injector{Seed: 1}, resiliencetest.Injector{Seed: 2}
	for _, i := range []*resiliencetest.Injector{&first, &again, &other} {
		i.Set(resiliencetest.Faults{Fail: 0.3})
	}
	want := outcomes(t.Context(), &first, 2000)
	require.Equal(t, want, outcomes(t.Context(), &again, 2000))
	require.NotEqual(t, want, outcomes(t.Context(), &other, 2000))
	counts := first.Injected()
	require.Equal(t, 2000, counts.Calls)
	require.InDelta(t, 600, counts.Failed, 80)
}

func TestInjectorSwitchesAtRunTime(t *testing.T) {
	var i resiliencetest.Injector
	run := i.Run(succeed)
	i.Set(resiliencetest.Faults{Fail: 1, Err: errDown})
	require.ErrorIs(t, run(t.Context()), errDown)
	i.Set(resiliencetest.Faults{})
	require.NoError(t, run(t.Context()))
}

func TestInjectedFailuresAreTransientByDefault(t *testing.T) {
	var i resiliencetest.Injector
	i.Set(resiliencetest.Faults{Fail: 1})
	p := resiliencetest.Instant(resilience.MustNew())
	var s resiliencetest.Sequence[string]
	_, err := resilience.Do(t.Context(), p, resiliencetest.Inject(&i, s.Call))
	require.ErrorIs(t, err, resiliencetest.ErrInjected)
	require.ErrorIs(t, err, resilience.ErrAttemptsExhausted)
	require.Equal(t, 3, i.Injected().Failed)
	require.Zero(t, s.Calls())
	i.Set(resiliencetest.Faults{})
	_, err = resilience.Do(t.Context(), p, resiliencetest.Inject(&i, s.Call))
	require.NoError(t, err)
	require.Equal(t, 1, s.Calls())
}

func TestInjectorHangsPanicsAndSlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i resiliencetest.Injector
		i.Set(resiliencetest.Faults{Hang: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, i.Run(succeed)(ctx), context.DeadlineExceeded)

		i.Set(resiliencetest.Faults{Panic: 1, Err: errDown})
		require.PanicsWithValue(t, errDown, func() { _ = i.Run(succeed)(t.Context()) })

		i.Set(resiliencetest.Faults{Latency: time.Second, Jitter: time.Second})
		for range 100 {
			begin := time.Now()
			require.NoError(t, i.Run(succeed)(t.Context()))
			require.GreaterOrEqual(t, time.Since(begin), time.Second)
			require.Less(t, time.Since(begin), 2*time.Second)
		}
		require.ErrorIs(t, i.Run(succeed)(ctx), context.DeadlineExceeded, "the latency ends with the context")
		require.Equal(t, resiliencetest.Injected{Calls: 103, Slowed: 101, Hung: 1, Panicked: 1}, i.Injected())

		i.Set(resiliencetest.Faults{Latency: time.Second, Slow: 0.25})
		begin := time.Now()
		outcomes(t.Context(), &i, 1000)
		require.InDelta(t, 250, time.Since(begin).Seconds(), 60)
	})
}

// A call whose context ends during the latency was slowed, and nothing else: what it was chosen for never happened.
func TestInjectorCountsWhatHappenedAfterTheLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, f := range []resiliencetest.Faults{{Fail: 1}, {Hang: 1}, {Panic: 1}} {
			var i resiliencetest.Injector
			f.Latency = time.Second
			i.Set(f)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			require.ErrorIs(t, i.Run(succeed)(ctx), context.DeadlineExceeded)
			cancel()
			require.Equal(t, resiliencetest.Injected{Calls: 1, Slowed: 1}, i.Injected())
		}
	})
}

func TestInjectorCountsACallThatHangsWhileItHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i resiliencetest.Injector
		i.Set(resiliencetest.Faults{Hang: 1})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = i.Run(succeed)(ctx) }()
		synctest.Wait()
		require.Equal(t, resiliencetest.Injected{Calls: 1, Hung: 1}, i.Injected())
	})
}

type tenant struct{}

func TestGateChoosesTheCalls(t *testing.T) {
	var i resiliencetest.Injector
	i.Set(resiliencetest.Faults{Fail: 1, Gate: func(ctx context.Context) bool { return ctx.Value(tenant{}) == "canary" }})
	require.NotContains(t, outcomes(t.Context(), &i, 10), true)
	require.NotContains(t, outcomes(context.WithValue(t.Context(), tenant{}, "canary"), &i, 10), false)
	require.Equal(t, 10, i.Injected().Calls)
}

func TestInjectorInATransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i resiliencetest.Injector
		var server resiliencetest.RoundTripper
		rt := i.RoundTripper(&server)
		resp, err := rt.RoundTrip(request(t, t.Context(), "GET", ""))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Len(t, server.Requests(), 1)

		i.Set(resiliencetest.Faults{Fail: 1, Status: 503})
		body := &closing{Reader: http.NoBody}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://db.test/", body)
		require.NoError(t, err)
		resp, err = rt.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Same(t, req, resp.Request)
		require.NoError(t, resp.Body.Close())
		require.True(t, body.closed, "the body of a request that goes no further")

		i.Set(resiliencetest.Faults{Panic: 1})
		body.closed = false
		require.Panics(t, func() { _, _ = rt.RoundTrip(req) })
		require.True(t, body.closed)

		i.Set(resiliencetest.Faults{Fail: 1})
		_, err = rt.RoundTrip(req)
		require.ErrorIs(t, err, resiliencetest.ErrInjected)

		i.Set(resiliencetest.Faults{Hang: 1})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
		defer cancel()
		_, err = rt.RoundTrip(request(t, ctx, "GET", ""))
		require.ErrorIs(t, err, errDown)
		require.Len(t, server.Requests(), 1)

		(&http.Client{Transport: rt}).CloseIdleConnections()
		(&http.Client{Transport: i.RoundTripper(nil)}).CloseIdleConnections()
	})
}

func TestInjectorIsSafeForConcurrentUse(t *testing.T) {
	var i resiliencetest.Injector
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			i.Set(resiliencetest.Faults{Fail: 0.5})
			outcomes(t.Context(), &i, 10)
		})
	}
	wg.Wait()
	require.Equal(t, 200, i.Injected().Calls)
}

func TestInjectorRefusesMisuse(t *testing.T) {
	var i resiliencetest.Injector
	for text, f := range map[string]resiliencetest.Faults{
		"Faults.Fail is 1.5":         {Fail: 1.5},
		"Faults.Hang is -0.1":        {Hang: -0.1},
		"Fail + Hang + Panic is 1.2": {Fail: 0.6, Panic: 0.6},
		"Faults.Slow is 2":           {Slow: 2},
		"Faults.Latency is -1s":      {Latency: -time.Second},
		"Faults.Jitter is -1s":       {Jitter: -time.Second},
		"Faults.Status is 7, want":   {Status: 7},
	} {
		refuses(t, text, func() { i.Set(f) })
	}
	i.Set(resiliencetest.Faults{Fail: 0.7, Hang: 0.2, Panic: 0.1})
	refuses(t, "the function of Inject is nil", func() { resiliencetest.Inject[int](&i, nil) })
	refuses(t, "the injector of Inject is nil", func() { resiliencetest.Inject(nil, new(resiliencetest.Sequence[int]).Call) })
	refuses(t, "Injector.Run is nil", func() { i.Run(nil) })
	i.Set(resiliencetest.Faults{Hang: 1})
	refuses(t, "Faults.Hang under a context that cannot end", func() { _ = i.Run(succeed)(context.Background()) })
	require.Zero(t, i.Injected().Hung)
}
