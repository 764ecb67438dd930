package resilience_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// fullStack is the policy of performance.md's first row.
func fullStack(opts ...resilience.Option) resilience.Policy {
	return resilience.MustNew(append([]resilience.Option{
		resilience.WithName("full"), resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(200)),
	}, opts...)...)
}

func exactAllocations(t *testing.T) {
	t.Helper()
	if resilience.RaceEnabled {
		t.Skip("the race detector allocates")
	}
}

func allocations(fn func()) float64 {
	for range 200 {
		fn() // what is measured turns warm
	}
	return testing.AllocsPerRun(2000, fn)
}

// allocatedBytes is what one call of fn allocates.
func allocatedBytes(fn func()) float64 {
	const calls = 10_000
	fn()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		fn()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / calls
}

// TestAllocationCeilings hands over callbacks that were made before. A closure that captures something and is written into
// the call costs its own allocation on top: Run may hand its callback to a goroutine, so the compiler lets it escape.
func TestAllocationCeilings(t *testing.T) {
	exactAllocations(t)
	ctx := context.Background()
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	counter := 0
	callback := func(context.Context) error { counter++; return nil }
	valued := func(context.Context) (int, error) { counter++; return counter, nil }
	large := func(context.Context) ([8]int, error) { counter++; return [8]int{counter}, nil }
	failing := func(context.Context) error {
		counter++
		if counter%2 == 1 {
			return errDown
		}
		return nil
	}
	deriving := func(ctx context.Context) error {
		_, stop := context.WithCancel(ctx)
		stop()
		return nil
	}
	var zero resilience.Policy
	p := fullStack()
	retry := fullStack(resilience.WithoutBudget(), resilience.WithBackoff(resilience.NoBackoff()), resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: resilience.Off, Failures: resilience.RelativeFailures{Multiple: resilience.Off}}))
	rule := fullStack(resilience.WithRules(resilience.OnResult("ok", func(int) resilience.Verdict { return resilience.OK })))
	coldHedge := fullStack(resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinSamples: 1 << 30}))
	warmHedge := fullStack(resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinDelay: time.Second}))
	run := func(p resilience.Policy, ctx context.Context, fn func(context.Context) error) float64 {
		return allocations(func() { _ = p.Run(ctx, fn) })
	}
	do := func(p resilience.Policy) float64 {
		return allocations(func() { _, _ = resilience.Do(ctx, p, valued) })
	}
	plain := run(p, ctx, callback)
	counter = 0
	for _, row := range []struct {
		name     string
		got, max float64
	}{
		{"full stack, success at once", plain, 1},
		{"core alone", run(resilience.MustNew(), ctx, callback), 1},
		{"through Do", do(p), plain},
		{"through Do, a large value", allocations(func() { _, _ = resilience.Do(ctx, p, large) }), plain},
		{"through Do, a result rule", do(rule), plain},
		{"zero policy", run(zero, ctx, callback), 0},
		{"zero policy through Do", do(zero), 0},
		{"one retry, zero delay", run(retry, ctx, failing), 3},
		{"child context", run(p, ctx, deriving), 11},
		{"child context under a cancellable one", run(p, cancellable, deriving), 11},
		{"cold hedge", run(coldHedge, ctx, callback), plain},
		{"cold hedge through Do", do(coldHedge), plain},
		{"hedge that does not fire", run(warmHedge, ctx, callback), 12},
		{"hedge that does not fire through Do", do(warmHedge), 12},
	} {
		t.Logf("%-45s %4.0f of %2.0f", row.name, row.got, row.max)
		if row.got > row.max {
			t.Errorf("%s: %v allocations, at most %v", row.name, row.got, row.max)
		}
	}
	require.Equal(t, resilience.Warm, warmHedge.Measured().HedgeThreshold.State)
	bytes := allocatedBytes(func() { _ = p.Run(ctx, callback) })
	t.Logf("%-45s %4.0f of 128 B", "full stack, success at once", bytes)
	require.Less(t, bytes, 128.0+1, "the estimators allocate a little now and then")
}

// heapOf is the live heap that one of n things takes: the least of three counts, because the process around them allocates
// now and then.
func heapOf(n int, build func(i int) any) float64 {
	least := math.Inf(1)
	for round := range 3 {
		least = min(least, heapOnce(n, func(i int) any { return build(round*n + i) }))
	}
	return least
}

func heapOnce(n int, build func(i int) any) float64 {
	kept := make([]any, n)
	runtime.GC()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range kept {
		kept[i] = build(i)
	}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(n)
}

func TestMemoryOfOnePolicy(t *testing.T) {
	exactAllocations(t)
	s, err := resilience.NewScope(everyTerm(), resilience.ScopeConfig[int]{Max: 10_000, Name: func(int) string { return "k" }})
	require.NoError(t, err)
	built := heapOf(200, func(int) any { return everyTerm() })
	derived := heapOf(200, func(i int) any { return s.For(i) })
	var used float64
	synctest.Test(t, func(t *testing.T) {
		used = heapOf(50, func(i int) any {
			p := everyTerm()
			for n := range 1000 {
				_ = p.Run(t.Context(), func(context.Context) error {
					time.Sleep(time.Duration(1+(n*7919)%1000) * time.Millisecond)
					if n%50 == 7 {
						return errDown
					}
					return nil
				})
			}
			return p
		})
	})
	t.Logf("one policy, every measured term on: built %.0f B, derived by a scope %.0f B, after 1,000 calls %.0f B", built, derived, used)
	t.Logf("built: default %.0f B, full stack %.0f B", heapOf(200, func(int) any { return resilience.MustNew() }), heapOf(200, func(int) any { return fullStack() }))
	if built > 1536 || derived > 1536 || used > 12*1024 {
		t.Errorf("built %.0f B, derived by a scope %.0f B, at most 1536 B; after 1,000 calls %.0f B, at most 12288 B", built, derived, used)
	}
}

func everyTerm() resilience.Policy {
	return resilience.MustNew(resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(200)),
		resilience.WithHedge(resilience.HedgeAt(0.95)), resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}), resilience.WithSaturation(resilience.SaturationAbove(3)))
}
