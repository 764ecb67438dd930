package docs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

// region code
// available is code that is to be tested: it gets its policy from outside.
func available(ctx context.Context, p resilience.Policy, stock func(context.Context) (int, error)) bool {
	n, err := resilience.Do(ctx, p, stock)
	return err == nil && n > 0
}

// endregion

// region bubble
// errBusyStock is marked: without the mark, or a rule, an error is permanent and not retried.
var errBusyStock = resilience.Throttled.Mark(errors.New("stock: busy"))

func TestWaitsForABusyStock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stock resiliencetest.Sequence[int]
		stock.Fail(errBusyStock).Return(3).After(time.Second).Exactly(t)

		policy := resilience.MustNew(resilience.WithBackoff(resilience.ConstantBackoff(5 * time.Second)))
		begin := time.Now()
		require.True(t, available(t.Context(), policy, stock.Call))
		require.Equal(t, 6*time.Second, time.Since(begin)) // exact, and it takes no time
	})
}

// endregion

// region clock
func TestWaitsOnAMockClock(t *testing.T) {
	var stock resiliencetest.Sequence[int]
	stock.Fail(errBusyStock).Return(3)
	mock, done := clock.NewMock(), make(chan bool)
	policy := resilience.MustNew(resilience.WithClock(mock), resilience.WithBackoff(resilience.ConstantBackoff(5*time.Second)))

	go func() { done <- available(t.Context(), policy, stock.Call) }()
	for {
		select {
		case ok := <-done:
			require.True(t, ok)
			return
		default:
			mock.Add(100 * time.Millisecond) // the call waits on the mock: somebody has to move it
		}
	}
}

// endregion

// region events
func TestGivesUpOnABusyStock(t *testing.T) {
	var stock resiliencetest.Sequence[int]
	var rec resiliencetest.Recorder
	stock.Fail(errBusyStock)

	policy := resiliencetest.Instant(resilience.MustNew(
		resilience.WithName("stock"), resilience.WithAttempts(2), resilience.WithListener(rec.Listen),
	))
	require.False(t, available(t.Context(), policy, stock.Call))
	rec.Want(t, resilience.EventAttempt, resilience.EventRetrying, resilience.EventAttempt, resilience.EventExhausted)
	rec.Terminal(t, resilience.ReasonAttemptsExhausted)
}

// endregion

// printed is a test that prints its failures.
type printed struct{ testing.TB }

func (printed) Helper()                           {}
func (printed) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// The clock stands still, so that the durations are always the same.
func Example_recorder() {
	var stock resiliencetest.Sequence[int]
	var rec resiliencetest.Recorder
	stock.Fail(errBusyStock)
	policy := resiliencetest.Instant(resilience.MustNew(resilience.WithClock(clock.NewMock()),
		resilience.WithName("stock"), resilience.WithAttempts(2), resilience.WithListener(rec.Listen),
	))
	_ = available(context.Background(), policy, stock.Call)
	rec.Want(printed{}, resilience.EventAttempt, resilience.EventAttempt, resilience.EventExhausted)

	// Output:
	// resiliencetest: event 2 is retrying, want attempt
	//   #  policy  event      attempt  duration  delay  details
	//   1  stock   attempt    1        0s        0s     throttled: stock: busy
	// > 2  stock   retrying   2        0s        0s     stock: busy
	//   3  stock   attempt    2        0s        0s     throttled: stock: busy
	//   4  stock   exhausted  2        0s        0s     resilience: stock: attempts exhausted after 2 attempts: stock: busy
}

// region faults
func TestSurvivesABadStock(t *testing.T) {
	faults := resiliencetest.Injector{Seed: 1}
	stock := resiliencetest.Inject(&faults, func(context.Context) (int, error) { return 3, nil })
	policy := resiliencetest.Instant(resilience.MustNew())

	faults.Set(resiliencetest.Faults{Fail: 0.05})
	for range 200 {
		require.True(t, available(t.Context(), policy, stock))
	}
}

// endregion
