package main

import (
	"context"
	"errors"
	"time"

	"github.com/avast/retry-go/v4"
	"github.com/cenkalti/backoff/v5"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/go-kratos/aegis/ratelimit"
	"github.com/go-kratos/aegis/ratelimit/bbr"
	goretry "github.com/sethvargo/go-retry"
	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"
)

// composed is a stack of small libraries: context.WithTimeout around a retry loop around a limit around a breaker around
// context.WithTimeout. None of them has a retry budget or a measured ceiling.
type composed struct {
	settings
	retry retrier
	limit limiter
	guard guard
}

type (
	// retrier runs op until it succeeds, gives up, or returns errOpen.
	retrier func(ctx context.Context, s settings, op func() error) error
	// guard runs op unless it is open, and learns from its error.
	guard func(op func() error) error
	// limiter admits a call or returns errLimited.
	limiter func() (release func(), err error)
)

func (c *composed) call(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	return c.retry(ctx, c.settings, func() error {
		release, err := c.limit()
		if err != nil {
			return err
		}
		defer release()
		return c.guard(func() error {
			ctx, cancel := context.WithTimeout(ctx, c.attemptTimeout)
			defer cancel()
			return fn(ctx)
		})
	})
}

// compositions are the stacks by name.
func compositions() map[string]func(settings) stack {
	with := func(r retrier, g func(settings) guard, l func(settings) limiter) func(settings) stack {
		return func(s settings) stack { return &composed{s, r, l(s), g(s)} }
	}
	return map[string]func(settings) stack{
		"backoff + gobreaker + semaphore":  with(withBackoff, withGobreaker, withSemaphore),
		"retry-go + gobreaker + semaphore": with(withRetryGo, withGobreaker, withSemaphore),
		"go-retry + gobreaker + semaphore": with(withGoRetry, withGobreaker, withSemaphore),
		"go-retry + aegis sre + aegis bbr": with(withGoRetry, withSRE, withBBR),
	}
}

func withBackoff(ctx context.Context, s settings, op func() error) error {
	var wait backoff.BackOff = &backoff.ZeroBackOff{}
	if s.delay > 0 {
		curve := backoff.NewExponentialBackOff() // it has state: one for each call
		curve.InitialInterval = s.delay
		wait = curve
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := op()
		if errors.Is(err, errOpen) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(uint(s.attempts)), backoff.WithMaxElapsedTime(0))
	return err
}

func withRetryGo(ctx context.Context, s settings, op func() error) error {
	return retry.Do(op, retry.Context(ctx), retry.Attempts(uint(s.attempts)), retry.Delay(s.delay),
		retry.MaxJitter(max(s.delay, 1)), retry.LastErrorOnly(true),
		retry.RetryIf(func(err error) bool { return !errors.Is(err, errOpen) }))
}

func withGoRetry(ctx context.Context, s settings, op func() error) error {
	curve := goretry.NewExponential(max(s.delay, 1)) // it refuses 0
	return goretry.Do(ctx, goretry.WithMaxRetries(uint64(s.attempts-1), curve), func(context.Context) error {
		err := op()
		if err == nil || errors.Is(err, errOpen) {
			return err
		}
		return goretry.RetryableError(err)
	})
}

func gobreakerSettings(s settings) gobreaker.Settings {
	return gobreaker.Settings{
		Interval: 30 * time.Second, BucketPeriod: 3 * time.Second, Timeout: s.openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= uint32(s.consecutive) ||
				c.Requests >= 20 && float64(c.TotalFailures) >= s.failureRatio*float64(c.Requests)
		},
	}
}

func withGobreaker(s settings) guard {
	b := gobreaker.NewCircuitBreaker[struct{}](gobreakerSettings(s))
	return func(op func() error) error {
		_, err := b.Execute(func() (struct{}, error) { return struct{}{}, op() })
		if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
			return errOpen
		}
		return err
	}
}

// withSRE sheds a share of the calls that grows with the share that fails: it never opens as a whole.
func withSRE(settings) guard {
	b := sre.NewBreaker(sre.WithRequest(20))
	return func(op func() error) error {
		if b.Allow() != nil {
			return errOpen
		}
		err := op()
		if err != nil {
			b.MarkFailed()
		} else {
			b.MarkSuccess()
		}
		return err
	}
}

func withSemaphore(s settings) limiter {
	w := semaphore.NewWeighted(int64(s.limit))
	release := func() { w.Release(1) }
	return func() (func(), error) {
		if !w.TryAcquire(1) {
			return nil, errLimited
		}
		return release, nil
	}
}

// withBBR sheds while the processors of this host are busy: it has no limit of its own to set.
func withBBR(settings) limiter {
	b := bbr.NewLimiter()
	return func() (func(), error) {
		done, err := b.Allow()
		if err != nil {
			return nil, errLimited
		}
		return func() { done(ratelimit.DoneInfo{}) }, nil
	}
}

// plainTimeout is what most programs have: no retry, no guard.
type plainTimeout struct{ settings }

func (p plainTimeout) call(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.attemptTimeout)
	defer cancel()
	return fn(ctx)
}
