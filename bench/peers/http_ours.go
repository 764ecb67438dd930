package main

import (
	"net/http"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

func oursHTTP() []httpSide {
	return []httpSide{{"this library (resiliencehttp)", oursSide, oursTransport}}
}

// oursTransport has the usual stack for each host. The budget lets the retries of the scenarios pass.
func oursTransport(base http.RoundTripper) http.RoundTripper {
	s := retrying()
	p, err := resiliencehttp.NewPolicy(
		resilience.WithDeadline(s.deadline), resilience.WithAttempts(s.attempts), resilience.WithAttemptTimeout(s.attemptTimeout),
		resilience.WithBackoff(resilience.Backoff{Base: httpDelay}),
		resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1000}),
		resilience.WithBreaker(oursBreaker(s)),
		resilience.WithLimiter(resilience.AdaptiveLimit(s.limit)),
	)
	if err != nil {
		panic(err)
	}
	t, err := resiliencehttp.NewTransport(base, p)
	if err != nil {
		panic(err)
	}
	return t
}
