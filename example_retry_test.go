package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/measuredgo/resilience"
)

// printedWaits prints how long a policy waits before each retry.
var printedWaits = resilience.WithListener(func(e resilience.Event) {
	if e.Kind == resilience.EventRetrying {
		fmt.Printf("wait %v before attempt %d\n", e.Delay, e.Attempt)
	}
})

func ExampleWithBackoff() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), resilience.WithAttempts(5), printedWaits,
		resilience.WithBackoff(resilience.Backoff{
			Base: 100 * time.Millisecond, Factor: 3, Max: time.Second, Jitter: resilience.JitterNone,
		}))
	_ = p.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
	// Output:
	// wait 100ms before attempt 2
	// wait 300ms before attempt 3
	// wait 900ms before attempt 4
	// wait 1s before attempt 5
}

// A curve of one's own.
func ExampleBackoff_delay() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), printedWaits,
		resilience.WithBackoff(resilience.Backoff{Delay: func(in resilience.BackoffInput) time.Duration {
			return time.Duration(in.Attempt*in.Attempt) * time.Millisecond
		}}))
	_ = p.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
	// Output:
	// wait 4ms before attempt 2
	// wait 9ms before attempt 3
}

// The base of the backoff can follow the dependency: waiting 100 ms for one that answers in 2 ms is long.
func ExampleWithMeasuredBackoff() {
	clock := &hurry{}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{MinSamples: 5}))
	for range 5 {
		_ = p.Run(context.Background(), func(context.Context) error {
			clock.pass(20 * time.Millisecond)
			return nil
		})
	}
	base, warm := p.Measured().BackoffBase.Get()
	fmt.Println(base.Round(5*time.Millisecond), warm)
	// Output: 20ms true
}

// A server that says when to come back is obeyed, whatever the curve says. Where the wait would not fit into the deadline it
// is not begun: the caller learns at once.
func ExampleVerdict_After() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), resilience.WithDeadline(time.Minute), printedWaits)
	var busy error
	call := func(context.Context) error { return busy }

	busy = resilience.Throttled.After(7 * time.Second).Mark(errors.New("429 Too Many Requests, Retry-After: 7"))
	fmt.Println(p.Run(context.Background(), call))

	busy = resilience.Throttled.After(2 * time.Minute).Mark(errors.New("429 Too Many Requests, Retry-After: 120"))
	err := p.Run(context.Background(), call)
	var e *resilience.Error
	errors.As(err, &e)
	fmt.Println(e.Total, "attempt, come back in", e.RetryAfter)
	// Output:
	// wait 7s before attempt 2
	// wait 7s before attempt 3
	// resilience: attempts exhausted after 3 attempts, retry after 7s: 429 Too Many Requests, Retry-After: 7
	// 1 attempt, come back in 2m0s
}

// A budget keeps retries a share of the traffic when everything fails. It is on by default; a shared one counts for several
// policies together.
func ExampleNewBudget() {
	clock := &hurry{}
	budget, err := resilience.NewBudget(resilience.BudgetConfig{MinPerSecond: 0.3, Clock: clock})
	if err != nil {
		panic(err)
	}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithSharedBudget(budget), resilience.WithBackoff(resilience.NoBackoff()))
	for range 3 {
		err := p.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
		fmt.Println(err, errors.Is(err, resilience.ErrBudgetExhausted))
	}
	fmt.Printf("%.1f of %.0f tokens\n", budget.Stats().Tokens, budget.Stats().Capacity)
	// Output:
	// resilience: attempts exhausted after 3 attempts: unexpected EOF false
	// resilience: retry budget exhausted after 2 attempts, retry after 3.33s: unexpected EOF true
	// resilience: retry budget exhausted after 1 attempt, retry after 3.23s: unexpected EOF true
	// 0.1 of 3 tokens
}

// Sheddable work leaves half of the retry budget to the rest, and is never hedged.
func ExampleContextWithCriticality() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), resilience.WithCriticality(true), resilience.WithAttempts(100),
		resilience.WithDeadline(resilience.Unbounded), resilience.WithBackoff(resilience.NoBackoff()))
	down := func(context.Context) error { return io.ErrUnexpectedEOF }
	report := resilience.ContextWithCriticality(context.Background(), resilience.Sheddable)
	fmt.Println(p.Try(report, down).Total, "attempts for a report")
	fmt.Println(p.Try(context.Background(), down).Total, "attempts for an order, with what it has left")
	// Output:
	// 16 attempts for a report
	// 16 attempts for an order, with what it has left
}

// From Begin on nothing is repeated: what is being served is finished, and the dependency's own error comes back.
func ExampleNewDrain() {
	drain := resilience.NewDrain()
	p := resilience.MustNew(resilience.WithDrain(drain))
	drain.Begin(5 * time.Second)
	err := p.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
	fmt.Println(err)
	fmt.Println(errors.Is(err, resilience.ErrDraining), errors.Is(err, io.ErrUnexpectedEOF))
	// Output:
	// resilience: draining after 1 attempt: unexpected EOF
	// true true
}
