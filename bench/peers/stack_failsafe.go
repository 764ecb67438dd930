package main

import (
	"context"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"
)

// failsafeStack is failsafe-go: deadline, retry with a budget, breaker, adaptive limiter and attempt timeout, in this
// order from the outside.
type failsafeStack struct{ executor failsafe.Executor[any] }

func newFailsafe(s settings) stack {
	return failsafeStack{failsafe.With(failsafePolicies[any](s)...)}
}

// newFailsafeHedged has a hedge inside of the retries. Its delay is far away, or the live quantile.
func newFailsafeHedged(s settings) stack {
	policies := failsafePolicies[any](s)
	hedge := hedgepolicy.NewBuilderWithDelay[any](time.Minute).Build()
	return failsafeStack{failsafe.With(append(policies[:2:2], append([]failsafe.Policy[any]{hedge}, policies[2:]...)...)...)}
}

func failsafePolicies[R any](s settings) []failsafe.Policy[R] {
	b := budget.NewBuilder().WithMaxRate(0.1)
	if s.roomyBudget {
		b = b.WithMinConcurrency(1000)
	}
	return []failsafe.Policy[R]{
		timeout.New[R](s.deadline),
		failsafeRetry[R](s).WithBudget(b.Build()).Build(),
		failsafeBreaker[R](s),
		failsafeLimiter[R](s),
		timeout.New[R](s.attemptTimeout),
	}
}

func failsafeRetry[R any](s settings) retrypolicy.Builder[R] {
	retry := retrypolicy.NewBuilder[R]().WithMaxAttempts(s.attempts).AbortOnErrors(circuitbreaker.ErrOpen).ReturnLastFailure()
	if s.delay > 0 {
		retry = retry.WithBackoff(s.delay, 30*time.Second).WithJitterFactor(0.5)
	}
	return retry
}

func failsafeBreaker[R any](s settings) circuitbreaker.CircuitBreaker[R] {
	return circuitbreaker.NewBuilder[R]().
		WithFailureRateThreshold(s.failureRatio, 20, 30*time.Second).
		WithDelay(s.openFor).Build()
}

func failsafeLimiter[R any](s settings) adaptivelimiter.AdaptiveLimiter[R] {
	return adaptivelimiter.NewBuilder[R]().WithLimits(1, uint(s.limit), uint(min(20, s.limit))).Build()
}

func (f failsafeStack) call(ctx context.Context, fn func(context.Context) error) error {
	return f.executor.WithContext(ctx).RunWithExecution(func(e failsafe.Execution[any]) error { return fn(e.Context()) })
}
