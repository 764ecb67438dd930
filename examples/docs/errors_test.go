package docs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/measuredgo/resilience"
)

var (
	errSoldOut = errors.New("shop: sold out")
	errBusy    = errors.New("shop: busy")
)

// region branch
// answer says what a handler makes of the error of a call: a status, and when the client may come back.
func answer(err error) (status int, retryAfter time.Duration) {
	var e *resilience.Error
	switch {
	case err == nil:
		return 200, 0
	case errors.Is(err, errSoldOut): // the dependency's own answer, wherever it is in the chain
		return 409, 0
	case errors.Is(err, context.Canceled): // the client has left
		return 499, 0
	case !errors.As(err, &e): // a permanent error: it comes back untouched
		return 500, 0
	case e.Timeout():
		return 504, e.RetryAfter
	default: // attempts exhausted, open breaker, spent budget, draining
		return 503, e.RetryAfter
	}
}

// endregion

func Example_errors() {
	shop := resilience.MustNew(
		resilience.WithName("shop"),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithDeadline(time.Minute),
		resilience.WithRules(
			resilience.OnErrorIs(errBusy, resilience.Throttled.After(2*time.Hour)),
		),
	)
	for _, failure := range []error{errSoldOut, errBusy, errors.New("a bug"), nil} {
		err := shop.Run(context.Background(), func(context.Context) error { return failure })
		status, retryAfter := answer(err)
		fmt.Println(status, retryAfter, errors.Unwrap(err))
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(answer(shop.Run(cancelled, func(context.Context) error { return nil })))
	// Output:
	// 409 0s <nil>
	// 503 2h0m0s shop: busy
	// 500 0s <nil>
	// 200 0s <nil>
	// 499 0s
}

func Example_reason() {
	policy := resilience.MustNew(
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithClassifier(resilience.RetryAll()),
	)
	fetch := func(context.Context) (int, error) { return 0, errBusy }
	// region reason
	result := resilience.TryDo(context.Background(), policy, fetch)
	switch result.Reason {
	case resilience.ReasonSucceeded:
		fmt.Println(result.Value)
	default:
		fmt.Println(result.Reason, "after", result.Total, "attempts, the last one:", result.Attempts[len(result.Attempts)-1].Err)
	}
	// endregion

	// Output: attempts exhausted after 3 attempts, the last one: shop: busy
}

func Example_resultRule() {
	// region result
	poll := resilience.MustNew(
		resilience.WithAttempts(2),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithRules(resilience.OnResult("state", func(state string) resilience.Verdict {
			if state == "pending" {
				return resilience.Transient
			}
			return resilience.OK
		})),
	)
	result := resilience.TryDo(context.Background(), poll, func(context.Context) (string, error) { return "pending", nil })
	fmt.Println(result.Value, result.Err, result.Reason)
	// endregion

	// Output: pending <nil> attempts exhausted
}
