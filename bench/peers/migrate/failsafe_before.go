package migrate

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

// region failsafe-before
type failsafeClient struct {
	fetch    Fetch
	executor failsafe.Executor[int]
}

func newFailsafeClient(fetch Fetch) *failsafeClient {
	retry := retrypolicy.NewBuilder[int]().
		WithMaxAttempts(3).
		WithBackoff(100*time.Millisecond, 2*time.Second).
		WithJitterFactor(0.5).
		AbortOnErrors(ErrUnknownKey, circuitbreaker.ErrOpen).
		WithBudget(budget.NewBuilder().WithMaxRate(0.1).Build()).
		ReturnLastFailure().
		Build()
	breaker := circuitbreaker.NewBuilder[int]().
		WithFailureRateThreshold(0.5, 20, 30*time.Second).
		WithDelay(15 * time.Second).
		Build()
	limiter := adaptivelimiter.NewBuilder[int]().WithLimits(1, 100, 20).Build()
	return &failsafeClient{fetch, failsafe.With[int](
		timeout.New[int](5*time.Second), retry, breaker, limiter, timeout.New[int](time.Second),
	)}
}

func (c *failsafeClient) Get(ctx context.Context, key string) (int, error) {
	return c.executor.WithContext(ctx).GetWithExecution(func(e failsafe.Execution[int]) (int, error) {
		return c.fetch(e.Context(), key)
	})
}

// endregion

func failsafeHedge() failsafe.Policy[int] {
	// region failsafe-hedge-before
	hedge := hedgepolicy.NewBuilderWithDelayQuantile[int](0.95, 100, 20).WithMaxHedges(1).Build()
	// endregion
	return hedge
}

func failsafePermit(work func() error) error {
	// region failsafe-permit-before
	breaker := circuitbreaker.NewWithDefaults[any]()
	if !breaker.TryAcquirePermit() {
		return circuitbreaker.ErrOpen
	}
	err := work()
	breaker.RecordError(err)
	// endregion
	return err
}
