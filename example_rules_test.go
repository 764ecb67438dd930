package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/measuredgo/resilience"
)

var errLocked = errors.New("the record is locked")

func ExampleOnErrorIs() {
	p := resilience.MustNew(resilience.WithRules(resilience.OnErrorIs(errLocked, resilience.Transient)),
		resilience.WithBackoff(resilience.NoBackoff()))
	r := p.Try(context.Background(), func(context.Context) error { return fmt.Errorf("update: %w", errLocked) })
	fmt.Println(r.Total, "attempts:", r.Reason)
	// Output: 3 attempts: attempts exhausted
}

// codeError is the error type of some client library.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("code %d", int(e)) }

func ExampleOnErrorAs() {
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()), resilience.WithRules(
		resilience.OnErrorAs("codes", func(e codeError) resilience.Verdict {
			if e >= 500 {
				return resilience.Transient
			}
			return resilience.Permanent
		})))
	for _, err := range []error{codeError(503), codeError(404)} {
		r := p.Try(context.Background(), func(context.Context) error { return err })
		fmt.Println(err, "->", r.Total, "attempts:", r.Reason)
	}
	// Output:
	// code 503 -> 3 attempts: attempts exhausted
	// code 404 -> 1 attempts: not retried
}

// A value can be a failure too. The last one is returned all the same: it is an answer that somebody may want to read.
func ExampleOnResult() {
	type answer struct{ status int }
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()), resilience.WithRules(
		resilience.OnResult("status", func(a answer) resilience.Verdict {
			if a.status >= 500 {
				return resilience.Transient
			}
			return resilience.OK
		})))
	r := resilience.TryDo(context.Background(), p, func(context.Context) (answer, error) { return answer{503}, nil })
	fmt.Println(r.Value.status, r.Err, r.Reason, r.Total)
	// Output: 503 <nil> attempts exhausted 3
}

// Who knows best what an error means is often the one who makes it.
func ExampleVerdict_Mark() {
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()))
	r := p.Try(context.Background(), func(context.Context) error {
		return resilience.Permanent.Mark(io.ErrUnexpectedEOF) // by default it would be retried
	})
	fmt.Println(r.Total, r.Err == io.ErrUnexpectedEOF)
	// Output: 1 true
}

// Values that nobody gets, of attempts that were repeated and of legs that lost, can be released.
func ExampleOnDiscard() {
	connections := 0
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithRules(resilience.OnResult("healthy", func(id int) resilience.Verdict {
			if id < 3 {
				return resilience.Transient
			}
			return resilience.OK
		})),
		resilience.OnDiscard(func(id int) { fmt.Println("release", id) }))
	id, _ := resilience.Do(context.Background(), p, func(context.Context) (int, error) {
		connections++
		return connections, nil
	})
	fmt.Println("use", id)
	// Output:
	// release 1
	// release 2
	// use 3
}

// A listener hears what happens, mostly on the goroutine of the call.
func ExampleWithListener() {
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()), resilience.WithListener(func(e resilience.Event) {
		fmt.Println(e.Kind, e.Attempt, e.Err)
	}))
	attempts := 0
	_ = p.Run(context.Background(), func(context.Context) error {
		if attempts++; attempts == 1 {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	// Output:
	// attempt 1 unexpected EOF
	// retrying 2 unexpected EOF
	// attempt 2 <nil>
	// succeeded 2 <nil>
}

// A hook before each attempt, for instance for credentials that must be fresh. Its error ends the call as it is.
func ExampleWithBeforeAttempt() {
	p := resilience.MustNew(resilience.WithBeforeAttempt(func(_ context.Context, a resilience.AttemptInfo) error {
		fmt.Println("before attempt", a.Number)
		return errors.New("no credentials")
	}))
	err := p.Run(context.Background(), func(context.Context) error { return nil })
	fmt.Println(err)
	// Output:
	// before attempt 1
	// no credentials
}

// A hook inside of the attempt, for a guard of one's own: its error is the attempt's outcome and is classified as an error of
// the callback. A *LimitedError is retried, costs no retry budget, and says nothing about the dependency.
func ExampleWithAdmit() {
	tickets := 0
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithAdmit(func(_ context.Context, a resilience.AttemptInfo) error {
			if tickets++; tickets == 1 {
				fmt.Println("attempt", a.Number, "gets no ticket")
				return &resilience.LimitedError{Limiter: "tickets"}
			}
			return nil
		}))
	r := p.Try(context.Background(), func(context.Context) error {
		fmt.Println("the dependency is called")
		return nil
	})
	fmt.Println(r.Total, "attempts, the first one", r.Attempts[0].Verdict)
	// Output:
	// attempt 1 gets no ticket
	// the dependency is called
	// 2 attempts, the first one limited
}

// Layers do not multiply: what the policy beneath has retried, the one above does not retry again, unless it is told to.
func ExampleWithNestedRetries() {
	calls := 0
	quick := resilience.WithBackoff(resilience.NoBackoff())
	driver := resilience.MustNew(resilience.WithName("driver"), quick)
	query := func(ctx context.Context) error {
		return driver.Run(ctx, func(context.Context) error {
			calls++
			return io.ErrUnexpectedEOF
		})
	}
	for _, on := range []bool{false, true} {
		calls = 0
		service := resilience.MustNew(resilience.WithName("service"), quick, resilience.WithNestedRetries(on))
		_ = service.Run(context.Background(), query)
		fmt.Println(on, calls, "calls")
	}
	// Output:
	// false 3 calls
	// true 9 calls
}
