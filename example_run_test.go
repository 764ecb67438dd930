package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/measuredgo/resilience"
)

// Make one policy for each dependency, and keep it: it measures the dependency.
func ExamplePolicy_Run() {
	prices := resilience.MustNew(resilience.WithName("prices"), resilience.WithDeadline(2*time.Second))
	attempts := 0
	err := prices.Run(context.Background(), func(context.Context) error {
		if attempts++; attempts == 1 {
			return io.ErrUnexpectedEOF // a connection that broke: the next one may not
		}
		return nil
	})
	fmt.Println(attempts, err)
	// Output: 2 <nil>
}

func ExampleDo() {
	p := resilience.MustNew()
	price, err := resilience.Do(context.Background(), p, func(context.Context) (float64, error) {
		return 42.17, nil
	})
	fmt.Println(price, err)
	// Output: 42.17 <nil>
}

// Try tells everything about a call, also what each attempt did.
func ExamplePolicy_Try() {
	clock := &hurry{}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithAttemptTimeout(100*time.Millisecond),
		resilience.WithBackoff(resilience.ConstantBackoff(10*time.Millisecond)))
	attempts := 0
	r := p.Try(context.Background(), func(context.Context) error {
		attempts++
		clock.pass(time.Duration(attempts) * 45 * time.Millisecond)
		if attempts < 3 {
			return io.ErrUnexpectedEOF
		}
		return os.ErrNotExist // but too late: what counts is that the time was up
	})
	fmt.Println(r.Reason, "after", r.Total, "attempts and", r.Elapsed)
	for _, a := range r.Attempts {
		fmt.Printf("%d at %v for %v: %v (%v)\n", a.Number, a.Start, a.Duration, a.Verdict, a.Err)
	}
	// Output:
	// attempts exhausted after 3 attempts and 290ms
	// 1 at 0s for 45ms: transient (unexpected EOF)
	// 2 at 55ms for 90ms: transient (unexpected EOF)
	// 3 at 155ms for 135ms: transient (attempt timed out after 100ms: file does not exist)
}

// A permanent error comes back as it was; every other failure is an *Error that tells why the call ended.
func ExampleError() {
	p := resilience.MustNew(resilience.WithName("prices"), resilience.WithBackoff(resilience.NoBackoff()))
	err := p.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
	var e *resilience.Error
	if errors.As(err, &e) {
		fmt.Println(e)
		fmt.Println(e.Reason, e.Total, errors.Is(err, resilience.ErrAttemptsExhausted), errors.Is(err, io.ErrUnexpectedEOF))
	}
	// Output:
	// resilience: prices: attempts exhausted after 3 attempts: unexpected EOF
	// attempts exhausted 3 true true
}

// Everything that is wrong is told at once.
func ExampleNew() {
	_, err := resilience.New(
		resilience.WithAttempts(0),
		resilience.WithDeadline(-time.Second),
		resilience.WithHedge(resilience.HedgeAt(1.5)),
		resilience.WithAttemptCeiling(resilience.CeilingAbove(0.5)),
	)
	fmt.Println(err)
	// Output:
	// resilience: New: WithDeadline is -1s, want more than 0, or Unbounded
	// resilience: New: WithAttempts is 0, want at least 1, the first attempt included
	// resilience: New: WithAttemptCeiling: AttemptCeiling.Multiple is 0.5, want a finite number above 1
	// resilience: New: WithHedge: Hedge.Quantile is 1.5, want at least 0.5 and less than 1
}

// With derives a policy for a call that needs something else. What it measures is its own.
func ExamplePolicy_With() {
	reads := resilience.MustNew(resilience.WithName("db"))
	writes := reads.MustWith(resilience.WithName("db writes"), resilience.WithAttempts(1))
	fmt.Println(reads)
	fmt.Println(writes)
	// Output:
	// db: 3 attempts, deadline 30s, attempt timeout 10s
	// db writes: 1 attempt, deadline 30s, attempt timeout 10s
}

// The attempt ceiling follows the dependency: 3 x the p95 of what it normally takes. Until enough is known only the attempt
// timeout counts.
func ExampleWithAttemptCeiling() {
	clock := &hurry{}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: 3, MinSamples: 5}))
	bound := func(ctx context.Context) error {
		a, _ := resilience.AttemptFrom(ctx)
		clock.pass(20 * time.Millisecond)
		fmt.Println("attempt", a.Number, "may take", a.Bound.Round(10*time.Millisecond))
		return nil
	}
	for range 6 {
		_ = p.Run(context.Background(), bound)
	}
	fmt.Println(p.Measured().AttemptCeiling.State)
	// Output:
	// attempt 1 may take 10s
	// attempt 1 may take 10s
	// attempt 1 may take 10s
	// attempt 1 may take 10s
	// attempt 1 may take 10s
	// attempt 1 may take 60ms
	// warm
}

// The context of an attempt knows which one it is.
func ExampleAttemptFrom() {
	p := resilience.MustNew(resilience.WithName("prices"), resilience.WithBackoff(resilience.NoBackoff()))
	_ = p.Run(context.Background(), func(ctx context.Context) error {
		a, _ := resilience.AttemptFrom(ctx)
		fmt.Println(a.Policy, a.Number, a.Bound)
		return io.ErrUnexpectedEOF
	})
	// Output:
	// prices 1 10s
	// prices 2 10s
	// prices 3 10s
}

// Under SingleShot a call makes one attempt, whatever the policy says: for requests that must not be repeated.
func ExampleSingleShot() {
	p := resilience.MustNew()
	err := p.Run(resilience.SingleShot(context.Background()), func(context.Context) error { return io.ErrUnexpectedEOF })
	fmt.Println(err)
	// Output: resilience: attempts exhausted after 1 attempt: unexpected EOF
}
