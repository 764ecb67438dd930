// Command quickstart is the program of the README: a payment service that is briefly away, and a policy around the call.
//
// region program
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/measuredgo/resilience"
)

// One policy for each dependency, made once: it keeps what it measures.
var payments = resilience.MustNew(
	resilience.WithName("payments"),
	resilience.WithDeadline(2*time.Second),
	resilience.WithAttemptTimeout(500*time.Millisecond),
	resilience.WithBreaker(resilience.BreakerConfig{}),
	resilience.WithRules(resilience.OnErrorIs(errUnavailable, resilience.Transient)),
)

var errUnavailable = errors.New("payments: service unavailable")

func main() {
	calls := 0
	receipt, err := resilience.Do(context.Background(), payments, func(ctx context.Context) (string, error) {
		calls++ // your request goes here, with this ctx
		if calls == 1 {
			return "", errUnavailable
		}
		return "receipt 4711", nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s after %d attempts\n\n%s", receipt, calls, payments.Explain())
}

// endregion
