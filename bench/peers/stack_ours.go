package main

import (
	"context"

	"github.com/measuredgo/resilience"
)

// ours is this library: everything in one policy.
type ours struct{ resilience.Policy }

func newOurs(s settings, more ...resilience.Option) stack { return ours{oursPolicy(s, more...)} }

// oursPolicy has adaptive guards and the default ceiling and budget.
func oursPolicy(s settings, more ...resilience.Option) resilience.Policy {
	options := []resilience.Option{
		resilience.WithDeadline(s.deadline),
		resilience.WithAttempts(s.attempts),
		resilience.WithAttemptTimeout(s.attemptTimeout),
		resilience.WithBackoff(oursBackoff(s)),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBreaker(oursBreaker(s)),
		resilience.WithLimiter(resilience.AdaptiveLimit(s.limit)),
	}
	if s.roomyBudget {
		options = append(options, resilience.WithBudget(resilience.BudgetConfig{MinPerSecond: 1e6}))
	}
	return resilience.MustNew(append(options, more...)...)
}

func oursBackoff(s settings) resilience.Backoff {
	if s.delay == 0 {
		return resilience.NoBackoff()
	}
	return resilience.Backoff{Base: s.delay}
}

func oursBreaker(s settings) resilience.BreakerConfig {
	return resilience.BreakerConfig{
		ConsecutiveFailures: s.consecutive, FailureRatio: s.failureRatio, OpenFor: s.openFor,
	}
}

func (o ours) call(ctx context.Context, fn func(context.Context) error) error { return o.Run(ctx, fn) }

// everyMeasuredTerm is a policy with all that the library can measure.
func everyMeasuredTerm(more ...resilience.Option) resilience.Policy {
	return oursPolicy(usual(), append([]resilience.Option{
		resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}),
		resilience.WithHedge(resilience.HedgeAt(0.95)),
		resilience.WithSaturation(resilience.SaturationAbove(5)),
	}, more...)...)
}
