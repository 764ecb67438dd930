package migrate

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/avast/retry-go/v4"
	"github.com/hashicorp/go-retryablehttp"
	goretry "github.com/sethvargo/go-retry"
)

// region retry-go-before
type retryGoClient struct{ fetch Fetch }

func (c *retryGoClient) Get(ctx context.Context, key string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return retry.DoWithData(
		func() (int, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return c.fetch(ctx, key)
		},
		retry.Context(ctx),
		retry.Attempts(3),
		retry.Delay(100*time.Millisecond),
		retry.MaxDelay(2*time.Second),
		retry.DelayType(retry.FullJitterBackoffDelay),
		retry.LastErrorOnly(true),
		retry.RetryIf(func(err error) bool { return !errors.Is(err, ErrUnknownKey) }),
	)
}

// endregion

// region go-retry-before
type goRetryClient struct{ fetch Fetch }

func (c *goRetryClient) Get(ctx context.Context, key string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	curve := goretry.WithFullJitter(goretry.NewExponential(100 * time.Millisecond))
	curve = goretry.WithMaxRetries(2, goretry.WithCappedDuration(2*time.Second, curve))
	return goretry.DoValue(ctx, curve, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		stock, err := c.fetch(ctx, key)
		if err != nil && !errors.Is(err, ErrUnknownKey) {
			err = goretry.RetryableError(err)
		}
		return stock, err
	})
}

// endregion

// region retryablehttp-before
func newRetryableHTTP() *http.Client {
	c := retryablehttp.NewClient()
	c.RetryMax = 2
	c.RetryWaitMin, c.RetryWaitMax = 100*time.Millisecond, 2*time.Second
	c.HTTPClient.Timeout = 3 * time.Second // of each attempt
	c.ErrorHandler = retryablehttp.PassthroughErrorHandler
	c.Logger = nil
	return c.StandardClient()
}

// endregion
