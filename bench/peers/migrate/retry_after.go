package migrate

import (
	"context"
	"net/http"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencehttp"
)

// region retry-after
type retriedClient struct {
	fetch  Fetch
	policy resilience.Policy
}

func newRetriedClient(fetch Fetch) *retriedClient {
	return &retriedClient{fetch, resilience.MustNew(
		resilience.WithName("inventory"),
		resilience.WithDeadline(5*time.Second),
		resilience.WithAttempts(3),
		resilience.WithAttemptTimeout(time.Second),
		resilience.WithBackoff(resilience.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithRules(resilience.OnErrorIs(ErrUnknownKey, resilience.Permanent)),
	)}
}

func (c *retriedClient) Get(ctx context.Context, key string) (int, error) {
	return resilience.Do(ctx, c.policy, func(ctx context.Context) (int, error) {
		return c.fetch(ctx, key)
	})
}

// endregion

// region retryablehttp-after
func newPolicyHTTP() (*http.Client, error) {
	policy, err := resiliencehttp.NewPolicy(
		resilience.WithDeadline(10*time.Second),
		resilience.WithAttempts(3),
		resilience.WithAttemptTimeout(3*time.Second),
		resilience.WithBackoff(resilience.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}),
	)
	if err != nil {
		return nil, err
	}
	return resiliencehttp.NewClient(policy)
}

// endregion
