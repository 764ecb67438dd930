// Package guide holds the code of the documents, so that it compiles and runs.
package guide

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/measuredgo/resilience"
)

var (
	errConflict = errors.New("conflict")
	errBusy     = errors.New("busy")
)

type apiError struct {
	status     int
	retryAfter time.Duration
}

func (e *apiError) Error() string { return fmt.Sprint("status ", e.status) }

func Example_rules() {
	// region rules
	policy, err := resilience.New(
		resilience.WithRules(
			resilience.OnErrorAs("api", func(e *apiError) resilience.Verdict {
				if e.status == 429 {
					return resilience.Throttled.After(e.retryAfter)
				}
				return resilience.Transient
			}),
			resilience.OnErrorIs(errConflict, resilience.Permanent),
		),
	)
	// endregion
	r := policy.Try(context.Background(), func(context.Context) error { return errConflict })
	fmt.Println(err, r.Reason, r.Total)
	// Output: <nil> not retried 1
}

func Example_hint() {
	policy, ctx := resilience.MustNew(), context.Background()
	// region hint
	err := policy.Run(ctx, func(ctx context.Context) error {
		return resilience.Throttled.After(time.Hour).Mark(errBusy)
	})
	var failed *resilience.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Reason, failed.RetryAfter)
	}
	// endregion

	// Output: attempts exhausted 1h0m0s
}

func Example_hedge() {
	// region hedge
	policy, err := resilience.New(
		resilience.WithAttempts(3),
		resilience.WithHedge(resilience.HedgeAt(0.95)),
	)
	// endregion
	fmt.Println(policy.Measured().HedgeThreshold.State, err)
	// Output: cold <nil>
}

func Example_hedgeRace() {
	policy, ctx, lost := resilience.MustNew(resilience.WithHedge(resilience.HedgeAt(0.95))), context.Background(), false
	// region race
	get := func(ctx context.Context) (string, error) {
		a, _ := resilience.AttemptFrom(ctx)
		if lost && a.Number == 1 {
			<-ctx.Done() // a packet was lost: this leg ends when another one has won
			return "", ctx.Err()
		}
		return fmt.Sprint("leg ", a.Number), nil
	}
	for range 20 { // from then on the policy knows what is normal
		_, _ = resilience.Do(ctx, policy, get)
	}
	lost = true
	fmt.Println(resilience.Do(ctx, policy, get))
	// endregion

	// Output: leg 2 <nil>
}

func Example_measuredBackoff() {
	// region measured-backoff
	policy, err := resilience.New(
		resilience.WithBackoff(resilience.Backoff{Base: 50 * time.Millisecond}),
		resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{}), // 5 to 500 ms, whatever is measured
	)
	// endregion
	fmt.Println(policy.Measured().BackoffBase.State, err)
	// Output: cold <nil>
}

func Example_budgetShared() {
	// region budget
	budget, err := resilience.NewBudget(resilience.BudgetConfig{Fraction: 0.05, MinPerSecond: resilience.Off})
	if err != nil {
		fmt.Println(err)
		return
	}
	reads := resilience.MustNew(resilience.WithName("reads"), resilience.WithSharedBudget(budget))
	writes := resilience.MustNew(resilience.WithName("writes"), resilience.WithSharedBudget(budget))
	// endregion
	fmt.Println(reads.Budget() == writes.Budget(), budget.Stats().Capacity)
	// Output: true 1
}

func Example_breaker() {
	// region breaker
	policy, err := resilience.New(
		resilience.WithName("payments"),
		resilience.WithBreaker(resilience.BreakerConfig{}),
	)
	// endregion
	fmt.Println(policy.Breaker().State(), err)
	// Output: closed <nil>
}

func allow(breaker *resilience.Breaker, send func() error) error {
	// region allow
	lease, err := breaker.Allow()
	if err != nil {
		return err // resilience.ErrBreakerOpen
	}
	verdict, begin := resilience.Transient, time.Now()
	defer func() { lease.Done(verdict, time.Since(begin)) }()
	if err := send(); err != nil {
		return err
	}
	verdict = resilience.OK
	return nil
	// endregion
}

func Example_allow() {
	breaker, _ := resilience.NewBreaker(resilience.BreakerConfig{ConsecutiveFailures: 2})
	for range 3 {
		fmt.Println(allow(breaker, func() error { return errBusy }))
	}
	// Output:
	// busy
	// busy
	// resilience: circuit breaker is open
}

func Example_limiter() {
	// region limiter
	policy, err := resilience.New(
		resilience.WithLimiter(resilience.AdaptiveLimit(100)), // at most 100, wherever the measurement leads
	)
	// endregion
	fmt.Println(policy.Limiter().Stats().Limit, err)
	// Output: 20 <nil>
}
