package migrate

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/measuredgo/resilience"
)

var errBusy = errors.New("busy")

// region composed-after
type policyClient struct {
	fetch  Fetch
	policy resilience.Policy
}

func newPolicyClient(fetch Fetch) *policyClient {
	return &policyClient{fetch, resilience.MustNew(
		resilience.WithName("inventory"),
		resilience.WithDeadline(5*time.Second),
		resilience.WithAttemptTimeout(time.Second),
		resilience.WithBackoff(resilience.Backoff{Base: 500 * time.Millisecond, Factor: 1.5}),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithRules(resilience.OnErrorIs(ErrUnknownKey, resilience.Permanent)),
		resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 5, FailureRatio: 0.5}),
		resilience.WithListener(func(e resilience.Event) {
			switch e.Kind {
			case resilience.EventBreakerOpened, resilience.EventBreakerHalfOpened, resilience.EventBreakerClosed:
				log.Printf("%s: %v", e.Policy, e.Kind)
			}
		}),
	)}
}

func (c *policyClient) Get(ctx context.Context, key string) (int, error) {
	return resilience.Do(ctx, c.policy, func(ctx context.Context) (int, error) {
		return c.fetch(ctx, key)
	})
}

// endregion

func serverSaidSo(seconds int) error {
	// region composed-after-after
	err := resilience.Throttled.After(time.Duration(seconds) * time.Second).Mark(errBusy)
	// endregion
	return err
}

// constantsOnly is the policy of people who want to change the library today and the behaviour later.
func constantsOnly() resilience.Policy {
	// region constants-only
	policy := resilience.MustNew(
		resilience.WithAdaptive(false),
		resilience.WithoutBudget(),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBreaker(resilience.BreakerConfig{
			ConsecutiveFailures: 5, FailureRatio: 0.5, ProbeSuccesses: 1, ConstantsOnly: true,
		}),
	)
	// endregion
	return policy
}
