package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/measuredgo/resilience"
)

func ExampleWithBreaker() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), resilience.WithBreaker(resilience.BreakerConfig{}),
		resilience.WithAttempts(1))
	calls := 0
	var err error
	for range 20 {
		err = p.Run(context.Background(), func(context.Context) error {
			calls++
			return io.ErrUnexpectedEOF
		})
	}
	fmt.Println(calls, "of 20 calls have reached the dependency; the breaker is", p.Breaker().State())
	fmt.Println(errors.Is(err, resilience.ErrBreakerOpen))
	// Output:
	// 5 of 20 calls have reached the dependency; the breaker is open
	// true
}

// Those who cannot pass a function take a lease and say how it went.
func ExampleBreaker_Allow() {
	b, err := resilience.NewBreaker(resilience.BreakerConfig{ConsecutiveFailures: 2})
	if err != nil {
		panic(err)
	}
	for range 3 {
		lease, err := b.Allow()
		if err != nil {
			fmt.Println(err)
			continue
		}
		begin := time.Now()
		// … call the dependency, and settle the lease whatever happens …
		lease.Done(resilience.Transient, time.Since(begin))
		fmt.Println(b.State())
	}
	// Output:
	// closed
	// open
	// resilience: circuit breaker is open
}

func ExampleFixedLimit() {
	p := resilience.MustNew(resilience.WithLimiter(resilience.FixedLimit(1)), resilience.WithAttempts(1))
	err := p.Run(context.Background(), func(ctx context.Context) error {
		return p.Run(ctx, func(context.Context) error { return nil }) // a second call while the first one runs
	})
	fmt.Println(errors.Is(err, resilience.ErrLimited), p.Limiter().Stats().InFlight)
	// Output: true 0
}

// An adaptive limit finds its own number, up to the one that is written.
func ExampleAdaptiveLimit() {
	p := resilience.MustNew(resilience.WithLimiter(resilience.AdaptiveLimit(100)))
	_ = p.Run(context.Background(), func(context.Context) error {
		s := p.Limiter().Stats()
		fmt.Println(s.InFlight, "of", s.Limit, "in flight")
		return nil
	})
	// Output: 1 of 20 in flight
}

func ExampleNewLimiter() {
	l, err := resilience.NewLimiter(resilience.FixedLimit(1))
	if err != nil {
		panic(err)
	}
	first, _ := l.Acquire(context.Background())
	_, err = l.Acquire(context.Background())
	fmt.Println(err)
	first.Release(resilience.OK)
	second, err := l.Acquire(context.Background())
	fmt.Println(err)
	second.Release(resilience.OK)
	// Output:
	// resilience: limit reached
	// <nil>
}

// A second leg starts when the first one takes longer than almost all of them do, and the first answer wins.
func ExampleWithHedge() {
	p := resilience.MustNew(resilience.WithClock(&hurry{}), resilience.WithHedge(resilience.HedgeAt(0.95)),
		resilience.WithListener(func(e resilience.Event) {
			switch e.Kind {
			case resilience.EventHedgeStarted, resilience.EventHedgeWon, resilience.EventHedgeDiscarded:
				fmt.Println(e.Kind, e.Attempt)
			}
		}))
	for range 20 { // until the policy knows what is normal, nothing is hedged
		_ = p.Run(context.Background(), func(context.Context) error { return nil })
	}
	over := make(chan struct{})
	defer close(over)
	answer, err := resilience.Do(context.Background(), p, func(ctx context.Context) (string, error) {
		a, _ := resilience.AttemptFrom(ctx)
		if a.Number == 1 {
			<-over // a packet was lost
		}
		return fmt.Sprint("leg ", a.Number), nil
	})
	fmt.Println(answer, err)
	// Output:
	// hedge started 2
	// hedge won 2
	// hedge discarded 1
	// leg 2 <nil>
}

// While the process itself is starved of CPU, the policy does not take its own slowness for the dependency's.
func ExampleWithSaturation() {
	p := resilience.MustNew(resilience.WithSaturation(resilience.SaturationAbove(4)))
	q := p.Measured().QueueDelay
	fmt.Println(q.State == resilience.NotConfigured, q.MinSamples)
	// Output: false 20
}

// A policy for each tenant: one that fails does not speak for the others.
func ExampleNewScope() {
	tenants, err := resilience.NewScope(
		resilience.MustNew(resilience.WithName("search"), resilience.WithAttempts(1), resilience.WithBreaker(resilience.BreakerConfig{})),
		resilience.ScopeConfig[string]{Max: 100})
	if err != nil {
		panic(err)
	}
	for range 5 {
		_ = tenants.For("red").Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF })
	}
	for _, tenant := range []string{"red", "blue"} {
		p := tenants.For(tenant)
		fmt.Println(p.Name(), p.Breaker().State())
	}
	// Output:
	// search:red open
	// search:blue closed
}
