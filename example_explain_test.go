package resilience_test

import (
	"context"
	"fmt"
	"time"

	"github.com/measuredgo/resilience"
)

// What a policy measures, each with its state: a value counts only when it is warm.
func ExamplePolicy_Measured() {
	clock := &hurry{}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinSamples: 50}))
	for range 20 {
		_ = p.Run(context.Background(), func(context.Context) error {
			clock.pass(100 * time.Millisecond)
			return nil
		})
	}
	m := p.Measured()
	if ceiling, warm := m.AttemptCeiling.Get(); warm {
		fmt.Println("attempt ceiling:", ceiling.Round(50*time.Millisecond))
	}
	fmt.Println("hedge threshold:", m.HedgeThreshold.State, m.HedgeThreshold.Samples, "of", m.HedgeThreshold.MinSamples)
	fmt.Println("backoff base:", m.BackoffBase.State)
	// Output:
	// attempt ceiling: 300ms
	// hedge threshold: cold 20 of 50
	// backoff base: not configured
}

func ExamplePolicy_Explain() {
	p := resilience.MustNew(resilience.WithName("prices"), resilience.WithDeadline(5*time.Second),
		resilience.WithAttemptTimeout(2*time.Second), resilience.WithBackoff(resilience.Backoff{Base: 200 * time.Millisecond}),
		resilience.WithHedge(resilience.HedgeAt(0.95)), resilience.WithLimiter(resilience.FixedLimit(20)))
	fmt.Print(p.Explain())
	// Output:
	// prices: 3 attempts, deadline 5s, attempt timeout 2s
	//
	// Bound first by:  deadline: attempt 3 gets the 400ms that are left
	// Worst case:      attempt 1        0s -> 2s        attempt timeout 2s
	//                  backoff          2s -> 2.2s      at most 200ms, full jitter
	//                  attempt 2      2.2s -> 4.2s      attempt timeout 2s
	//                  backoff        4.2s -> 4.6s      at most 400ms, full jitter
	//                  attempt 3      4.6s -> 5s        the 400ms left of the deadline
	// Load:            at most 3x, hedge legs included; sustained 1.1x and 3/s more (budget: 30.0 of 30.0 tokens)
	// Measured now:    attempt ceiling   -      cold - p95 over 5m, 20 samples minimum
	//                  backoff base      -      not configured
	//                  hedge threshold   -      cold - p95 over 30s, 20 samples minimum
	//                  pool queue delay  -      not configured
	// Breaker:         not configured
	// Limiter:         fixed 20, 0 in flight, 0 of 0 waiting
	// Classifier:      1. default: timeouts, broken connections and temporary DNS errors -> transient
	//                  else: nil error -> ok, any other -> permanent
}
