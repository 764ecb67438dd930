package docs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

var errUnavailable = errors.New("rows: unavailable")

func Example_stream() {
	ctx, opened := context.Background(), 0
	// region open
	rows := func(ctx context.Context) iter.Seq2[string, error] {
		opened++
		first := opened == 1
		return func(yield func(string, error) bool) {
			if first { // nothing was delivered yet: this is retried
				yield("", errUnavailable)
				return
			}
			for _, row := range []string{"a", "b"} {
				if ctx.Err() != nil || !yield(row, nil) {
					return
				}
			}
		}
	}
	// endregion
	// region range
	policy := resilience.MustNew(
		resilience.WithAttemptTimeout(2*time.Second), // until the first row, and then from row to row
		resilience.WithRules(resilience.OnErrorIs(errUnavailable, resilience.Transient)),
	)
	for row, err := range resilience.Stream(ctx, policy, rows) {
		if err != nil {
			fmt.Println("the rest is missing:", err)
			break
		}
		fmt.Println(row)
	}
	// endregion
	fmt.Println("opened", opened, "times")
	// Output:
	// a
	// b
	// opened 2 times
}

// What docs/streams.md says about what comes after the first element.
func TestStreamAfterItsFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := resilience.MustNew(
			resilience.WithAttemptTimeout(time.Second),
			resilience.WithDeadline(2*time.Second),
			resilience.WithClassifier(resilience.RetryAll()),
			resilience.WithLimiter(resilience.FixedLimit(1)),
		)
		stall := func(ctx context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if !yield(1, nil) || !yield(0, errUnavailable) || !yield(2, nil) {
					return
				}
				<-ctx.Done()
				yield(0, context.Cause(ctx))
			}
		}
		var elements []int
		var errs []error
		begin := time.Now()
		for n, err := range resilience.Stream(t.Context(), policy, stall) {
			if err != nil {
				errs = append(errs, err)
				continue
			}
			elements = append(elements, n)
			require.Zero(t, policy.Limiter().Stats().InFlight, "an open stream holds no permit")
			time.Sleep(10 * time.Second) // the consumer's own time, far beyond the deadline
		}
		require.Equal(t, []int{1, 2}, elements)
		require.Len(t, errs, 2)
		require.Equal(t, errUnavailable, errs[0], "untouched, and not retried")
		require.ErrorIs(t, errs[1], resilience.ErrStalled)
		require.Equal(t, 21*time.Second, time.Since(begin))
	})
}

func TestEmptyStreamIsASuccess(t *testing.T) {
	empty := func(context.Context) iter.Seq2[int, error] { return func(func(int, error) bool) {} }
	for range resilience.Stream(t.Context(), resilience.MustNew(), empty) {
		t.Fatal("an element")
	}
}
