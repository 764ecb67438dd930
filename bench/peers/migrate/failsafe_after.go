package migrate

import (
	"context"
	"errors"
	"time"

	"github.com/measuredgo/resilience"
)

// region failsafe-after
type resilientClient struct {
	fetch  Fetch
	policy resilience.Policy
}

func newResilientClient(fetch Fetch) *resilientClient {
	return &resilientClient{fetch, resilience.MustNew(
		resilience.WithName("inventory"),
		resilience.WithDeadline(5*time.Second),
		resilience.WithAttempts(3),
		resilience.WithAttemptTimeout(time.Second),
		resilience.WithBackoff(resilience.Backoff{Max: 2 * time.Second, Jitter: resilience.JitterEqual}),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithRules(resilience.OnErrorIs(ErrUnknownKey, resilience.Permanent)),
		resilience.WithBreaker(resilience.BreakerConfig{FailureRatio: 0.5}),
		resilience.WithLimiter(resilience.AdaptiveLimit(100)),
	)}
}

func (c *resilientClient) Get(ctx context.Context, key string) (int, error) {
	return resilience.Do(ctx, c.policy, func(ctx context.Context) (int, error) {
		return c.fetch(ctx, key)
	})
}

// endregion

func hedged(policy resilience.Policy) resilience.Policy {
	// region failsafe-hedge-after
	hedged := policy.MustWith(resilience.WithHedge(resilience.HedgeAt(0.95)))
	// endregion
	return hedged
}

func permit(work func() error) error {
	// region failsafe-permit-after
	breaker, err := resilience.NewBreaker(resilience.BreakerConfig{})
	if err != nil {
		return err
	}
	lease, err := breaker.Allow()
	if err != nil {
		return err
	}
	began, verdict := time.Now(), resilience.Permanent // what counts if work panics: nothing but the slot
	defer func() { lease.Done(verdict, time.Since(began)) }()
	if err := work(); err != nil {
		verdict = resilience.Transient
		return err
	}
	verdict = resilience.OK
	// endregion
	return nil
}

func withFallback(ctx context.Context, c Client, key string) (int, error) {
	// region fallback-after
	stock, err := c.Get(ctx, key)
	if errors.Is(err, resilience.ErrBreakerOpen) {
		return 0, nil // none in stock is what this program says when it cannot know
	}
	// endregion
	return stock, err
}
