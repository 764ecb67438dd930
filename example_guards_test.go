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

// Several policies of one dependency feed one breaker: what one of them finds out protects the others.
func ExampleWithSharedBreaker() {
	db, err := resilience.NewBreaker(resilience.BreakerConfig{ConsecutiveFailures: 3})
	if err != nil {
		panic(err)
	}
	reads := resilience.MustNew(resilience.WithSharedBreaker(db), resilience.WithBackoff(resilience.NoBackoff()))
	writes := resilience.MustNew(resilience.WithSharedBreaker(db), resilience.WithAttempts(1))
	fmt.Println(reads.Run(context.Background(), func(context.Context) error { return io.ErrUnexpectedEOF }))
	err = writes.Run(context.Background(), func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, resilience.ErrBreakerOpen), reads.Breaker() == writes.Breaker())
	// Output:
	// resilience: attempts exhausted after 3 attempts: unexpected EOF
	// true true
}

// An operator takes a dependency out of service, and back.
func ExampleBreaker_Isolate() {
	b, err := resilience.NewBreaker(resilience.BreakerConfig{})
	if err != nil {
		panic(err)
	}
	b.Isolate()
	_, err = b.Allow()
	fmt.Println(b.State(), err)
	b.Reset()
	_, err = b.Allow()
	fmt.Println(b.State(), err)
	// Output:
	// isolated resilience: circuit breaker is open
	// closed <nil>
}

// With a recovery the breaker does not close at once: it admits a share of the calls that grows from 5 % to all of them.
func ExampleRecovery() {
	clock := &hurry{}
	b, err := resilience.NewBreaker(resilience.BreakerConfig{
		ConsecutiveFailures: 1, OpenFor: 40 * time.Second, ProbeSuccesses: 1, Clock: clock,
		Recovery: resilience.Recovery{Fraction: 0.25, Min: 10 * time.Second},
	})
	if err != nil {
		panic(err)
	}
	report := func(v resilience.Verdict) {
		if lease, err := b.Allow(); err == nil {
			lease.Done(v, time.Millisecond)
		}
	}
	report(resilience.Transient)
	fmt.Println(b.State())
	clock.pass(40 * time.Second)
	report(resilience.OK) // the probe
	fmt.Println(b.State())
	admitted := 0
	for range 100 {
		if lease, err := b.Allow(); err == nil {
			admitted++
			lease.Done(resilience.OK, time.Millisecond)
		}
	}
	fmt.Println(admitted, "of 100 calls are admitted at first")
	clock.pass(10 * time.Second)
	fmt.Println(b.State())
	// Output:
	// open
	// recovering
	// 5 of 100 calls are admitted at first
	// closed
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

// Where another leg is no faster than the first one, hedges cost and do not help. With a WinRate they become rare: while fewer
// than Minimum of them win, the share that may start is halved each quarter of the window.
func ExampleWinRate() {
	clock := &hurry{}
	started, told := 0, make(chan struct{}, 1)
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithoutBudget(),
		resilience.WithHedge(resilience.Hedge{Quantile: 0.95, WinRate: resilience.WinRate{Minimum: 0.2}}),
		resilience.WithListener(func(e resilience.Event) {
			switch e.Kind {
			case resilience.EventHedgeStarted:
				started++
				told <- struct{}{}
			case resilience.EventHedgeSuppressed:
				told <- struct{}{}
			}
		}))
	for range 20 { // until the policy knows what is normal
		_ = p.Run(context.Background(), func(context.Context) error { return nil })
	}
	for range 5 {
		started = 0
		for range 20 {
			over := make(chan struct{})
			_ = p.Run(context.Background(), func(ctx context.Context) error {
				if a, _ := resilience.AttemptFrom(ctx); a.Hedged {
					<-over // never the first one to answer
					return nil
				}
				<-told // slow enough for a hedge to be due
				return nil
			})
			close(over)
		}
		fmt.Println(started, "of 20 hedges started")
		clock.pass(15 * time.Second)
	}
	// Output:
	// 20 of 20 hedges started
	// 10 of 20 hedges started
	// 5 of 20 hedges started
	// 2 of 20 hedges started
	// 1 of 20 hedges started
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
