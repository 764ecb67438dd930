package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/avast/retry-go/v4"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/measuredgo/resilience"
	goretry "github.com/sethvargo/go-retry"
)

// spent is what a thousand failing calls cost the dependency.
type spent struct {
	attempts int
	note     string
}

func (s spent) String() string { return thousands(s.attempts) + " attempts" + s.note }

const failingCalls = 1000

// budgets has nothing but failures. The policy of this library has a clock of its own, since its refusals wait.
func budgets() []outcome {
	clock := &fastClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	alone := func(c resilience.BudgetConfig) spent {
		began := clock.Now()
		p := resilience.MustNew(resilience.WithClassifier(resilience.RetryAll()), resilience.WithBackoff(resilience.NoBackoff()),
			resilience.WithBudget(c), resilience.WithClock(clock))
		n := failing(p.Run)
		return spent{n, fmt.Sprintf(" in %v of the policy's time", clock.Now().Sub(began).Round(time.Second))}
	}
	strict := alone(resilience.BudgetConfig{Fraction: 0.1, MinPerSecond: resilience.Off})
	usual := alone(resilience.BudgetConfig{Fraction: 0.1})
	concurrency := func(b budget.Builder) spent {
		f := failsafeStack{failsafe.With[any](retrypolicy.NewBuilder[any]().WithMaxAttempts(3).WithBudget(b.Build()).Build())}
		return spent{failing(f.call), ""}
	}
	return []outcome{
		{"this library, no minimum", strict},
		{"this library, the default minimum of 3 a second", usual},
		{"failsafe-go, 10 % of the calls in flight, the default minimum of 3", concurrency(budget.NewBuilder().WithMaxRate(0.1))},
		{"failsafe-go, no minimum", concurrency(budget.NewBuilder().WithMaxRate(0.1).WithMinConcurrency(0))},
	}
}

func failing(call func(context.Context, func(context.Context) error) error) (attempts int) {
	for range failingCalls {
		_ = call(context.Background(), func(context.Context) error { attempts++; return errDown })
	}
	return attempts
}

// waited is how a call ended that could not be repeated in time.
type waited struct {
	took     time.Duration
	attempts int
	own      bool // the error tells what was wrong with the dependency
}

func (w waited) String() string {
	text := "gave up at once"
	if w.took > 100*time.Millisecond {
		text = fmt.Sprintf("waited %v for a retry that could not come", w.took.Round(50*time.Millisecond))
	}
	if w.own {
		return text + "; the error is the dependency's"
	}
	return text + "; the dependency's error is lost"
}

func longWaits() []outcome {
	const deadline, delay = 200 * time.Millisecond, 10 * time.Second
	policy := resilience.MustNew(
		resilience.WithDeadline(deadline), resilience.WithBackoff(resilience.ConstantBackoff(delay)),
		resilience.WithClassifier(resilience.RetryAll()),
	)
	fs := failsafe.With[any](timeout.New[any](deadline), retrypolicy.NewBuilder[any]().WithDelay(delay).Build())
	within := func(call func(context.Context, func() error) error) func(func() error) error {
		return func(op func() error) error {
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			return call(ctx, op)
		}
	}
	withCurve := func(more ...backoff.RetryOption) func(context.Context, func() error) error {
		return func(ctx context.Context, op func() error) error {
			_, err := backoff.Retry(ctx, func() (int, error) { return 0, op() },
				append(more, backoff.WithBackOff(backoff.NewConstantBackOff(delay)))...)
			return err
		}
	}
	return []outcome{
		{"this library", waiting(func(op func() error) error {
			return policy.Run(context.Background(), func(context.Context) error { return op() })
		})},
		{"failsafe-go", waiting(fs.Run)},
		{"backoff, the deadline in the context", waiting(within(withCurve()))},
		{"backoff, WithMaxElapsedTime(200 ms)", waiting(within(withCurve(backoff.WithMaxElapsedTime(deadline))))},
		{"retry-go", waiting(within(func(ctx context.Context, op func() error) error {
			return retry.Do(op, retry.Context(ctx), retry.Delay(delay), retry.DelayType(retry.FixedDelay))
		}))},
		{"retry-go, WrapContextErrorWithLastError", waiting(within(func(ctx context.Context, op func() error) error {
			return retry.Do(op, retry.Context(ctx), retry.Delay(delay), retry.DelayType(retry.FixedDelay),
				retry.UntilSucceeded(), retry.WrapContextErrorWithLastError(true))
		}))},
		{"go-retry", waiting(within(func(ctx context.Context, op func() error) error {
			return goretry.Do(ctx, goretry.NewConstant(delay), func(context.Context) error { return goretry.RetryableError(op()) })
		}))},
	}
}

func waiting(call func(op func() error) error) waited {
	var w waited
	began := time.Now()
	err := call(func() error { w.attempts++; return errDown })
	w.took, w.own = time.Since(began), errors.Is(err, errDown)
	return w
}
