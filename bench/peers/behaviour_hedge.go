package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/measuredgo/resilience"
)

// load is how many legs the dependency saw for each call: while it was well, in the first calls of the brownout, and later.
type load struct{ healthy, first, later float64 }

func (l load) String() string {
	return fmt.Sprintf("%+.0f %% before, %+.0f %% in the first 400 slow calls, %+.0f %% in the next 400",
		100*(l.healthy-1), 100*(l.first-1), 100*(l.later-1))
}

// The dependency takes 5 ms at the median, 8 ms at the 95th percentile, and ten times that in the brownout.
const (
	healthyLatency = 5 * time.Millisecond
	slowLatency    = 50 * time.Millisecond
	fixedDelay     = 8 * time.Millisecond // the healthy p95
)

func brownouts() []outcome {
	live := resilience.Hedge{Quantile: 0.95, MinDelay: time.Millisecond}
	field := []struct {
		who string
		stack
	}{
		{"this library, live p95, the default budget", ours{resilience.MustNew(resilience.WithHedge(live))}},
		{"this library, live p95, no budget", ours{resilience.MustNew(resilience.WithHedge(live), resilience.WithoutBudget())}},
		{"failsafe-go, live p95 of 100 executions", failsafeStack{failsafe.With[any](hedgepolicy.NewWithDelayQuantile[any](0.95, 100, 20))}},
		{"failsafe-go, fixed: the healthy p95", failsafeStack{failsafe.With[any](hedgepolicy.NewWithDelay[any](fixedDelay))}},
	}
	outcomes := make([]outcome, len(field))
	var all sync.WaitGroup
	for i, f := range field { // side by side: they sleep
		all.Go(func() { outcomes[i] = outcome{f.who, brownout(f.stack)} })
	}
	all.Wait()
	return outcomes
}

// brownout makes calls on 10 goroutines while the dependency is well, and then while it is slow.
func brownout(s stack) load {
	return load{
		healthy: legsPerCall(s, healthyLatency), first: legsPerCall(s, slowLatency), later: legsPerCall(s, slowLatency),
	}
}

func legsPerCall(s stack, latency time.Duration) float64 {
	const callers, each = 10, 40
	var legs atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				_ = s.call(context.Background(), func(ctx context.Context) error {
					draw := rand.New(rand.NewPCG(uint64(legs.Add(1)), 1)).ExpFloat64()
					took := time.Duration((0.8 + 0.27*draw) * float64(latency))
					select {
					case <-time.After(took):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			}
		})
	}
	all.Wait()
	return float64(legs.Load()) / (callers * each)
}
