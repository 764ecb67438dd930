package docs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/measuredgo/resilience"
)

var errNotYet = errors.New("prices: not yet")

func Example_explain() {
	mock := clock.NewMock()
	// region explain
	policy := resilience.MustNew(
		resilience.WithName("prices"),
		resilience.WithDeadline(5*time.Second),
		resilience.WithAttemptTimeout(2*time.Second),
		resilience.WithBreaker(resilience.BreakerConfig{}),
		resilience.WithLimiter(resilience.AdaptiveLimit(100)),
		resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinSamples: 500}),
		resilience.WithRules(resilience.OnErrorIs(errNotYet, resilience.Transient)),
		resilience.WithClock(mock),
	)
	for range 200 { // calls of 100 ms
		_ = policy.Run(context.Background(), func(context.Context) error {
			mock.Add(100 * time.Millisecond)
			return nil
		})
	}
	fmt.Print(policy.Explain())
	// endregion

	// Output:
	// prices: 3 attempts, deadline 5s, attempt timeout 2s
	//
	// Bound first by:  measured ceiling: each attempt gets 310ms of its 2s
	// Worst case:      attempt 1        0s -> 310ms     measured ceiling 310ms
	//                  backoff       310ms -> 410ms     at most 100ms, full jitter
	//                  attempt 2     410ms -> 720ms     measured ceiling 310ms
	//                  backoff       720ms -> 920ms     at most 200ms, full jitter
	//                  attempt 3     920ms -> 1.23s     measured ceiling 310ms
	// Load:            at most 3x, hedge legs included; sustained 1.1x and 3/s more (budget: 30.0 of 30.0 tokens)
	// Measured now:    attempt ceiling   310ms  3x p95 over 5m, 20 samples minimum
	//                  backoff base      -      not configured
	//                  hedge threshold   -      cold - p95 over 30s, 500 samples minimum
	//                  pool queue delay  -      not configured
	// Breaker:         closed; opens after 5 failures in a row, or at 5.0% of the last 30s if chance cannot explain it
	// Limiter:         limit 20 (1-100), 0 in flight, 0 of 0 waiting; baseline 100ms
	// Classifier:      1. prices: not yet: error is -> transient
	//                  2. default: timeouts, broken connections and temporary DNS errors -> transient
	//                  else: nil error -> ok, any other -> permanent
}
