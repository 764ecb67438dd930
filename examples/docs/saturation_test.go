package docs_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func Example_saturation() {
	// region saturation
	policy, err := resilience.New(
		resilience.WithName("search"),
		resilience.WithSaturation(resilience.SaturationAbove(5)),
		resilience.WithListener(func(e resilience.Event) {
			if e.Kind == resilience.EventSaturationDetected {
				slog.Warn("this process is slow", "policy", e.Policy, "queue delay", e.Duration)
			}
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	if delay, warm := policy.Measured().QueueDelay.Get(); warm {
		fmt.Println("goroutines wait", delay)
	}
	// endregion
	fmt.Println(policy.Run(context.Background(), query), policy.Measured().QueueDelay.State)
	// Output: <nil> cold
}

func TestSaturationOfNothingIsRefused(t *testing.T) {
	_, err := resilience.New(
		resilience.WithSaturation(resilience.SaturationAbove(5)),
		resilience.WithoutAttemptCeiling(),
	)
	require.ErrorContains(t, err, "WithSaturation")
}
