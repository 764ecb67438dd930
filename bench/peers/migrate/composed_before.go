package migrate

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"
)

// region composed-before
type composedClient struct {
	fetch   Fetch
	breaker *gobreaker.CircuitBreaker[int]
}

func newComposedClient(fetch Fetch) *composedClient {
	return &composedClient{fetch, gobreaker.NewCircuitBreaker[int](gobreaker.Settings{
		Name:         "inventory",
		Interval:     30 * time.Second,
		BucketPeriod: 3 * time.Second,
		Timeout:      15 * time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || c.Requests >= 20 && c.TotalFailures*2 >= c.Requests
		},
		IsExcluded: func(err error) bool {
			return errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownKey)
		},
		OnStateChange: func(name string, from, to gobreaker.State) {
			log.Printf("%s: %v -> %v", name, from, to)
		},
	})}
}

func (c *composedClient) Get(ctx context.Context, key string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return backoff.Retry(ctx, func() (int, error) {
		stock, err := c.breaker.Execute(func() (int, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return c.fetch(ctx, key)
		})
		if errors.Is(err, ErrUnknownKey) || errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
			err = backoff.Permanent(err)
		}
		return stock, err
	}, backoff.WithMaxTries(3), backoff.WithMaxElapsedTime(5*time.Second))
}

// endregion

func serverSaid(seconds int) error {
	// region composed-after-before
	err := backoff.RetryAfter(seconds)
	// endregion
	return err
}

func countedByHand(b *gobreaker.TwoStepCircuitBreaker[any], work func() error) error {
	// region composed-permit-before
	done, err := b.Allow()
	if err != nil {
		return err
	}
	err = work()
	done(err)
	// endregion
	return err
}
