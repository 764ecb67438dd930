package docs_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/measuredgo/resilience"
)

// still is a clock that nobody winds.
type still struct{ now time.Time }

func (c still) Now() time.Time                       { return c.now }
func (c still) After(time.Duration) <-chan time.Time { return closedTimes }

var closedTimes = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

func Example_criticality() {
	// region criticality
	policy := resilience.MustNew(
		resilience.WithCriticality(true),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithClock(still{}), // so that the example does not refill its budget
	)
	down := func(context.Context) error { return io.ErrUnexpectedEOF }
	report := resilience.ContextWithCriticality(context.Background(), resilience.Sheddable)
	for range 20 {
		_ = policy.Run(report, down)
	}
	fmt.Printf("after the reports %.0f of %.0f tokens are left\n", policy.Budget().Stats().Tokens, policy.Budget().Stats().Capacity)
	order := policy.Try(context.Background(), down) // unlabelled: critical
	fmt.Println("the order is tried", order.Total, "times")
	// endregion

	// Output:
	// after the reports 15 of 30 tokens are left
	// the order is tried 3 times
}
