package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/measuredgo/resilience"
	"github.com/sony/gobreaker/v2"
)

// guarded is a breaker around a call, and nothing else.
type guarded struct {
	who   string
	call  func(ctx context.Context, fn func(ctx context.Context) error) error
	state func() string
}

// guardedBy opens after that many failures in a row, for openFor.
func guardedBy(failures int, openFor time.Duration) []guarded {
	policy := resilience.MustNew(
		resilience.WithAttempts(1), resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: failures, OpenFor: openFor, MaxOpenFor: openFor}),
	)
	fs := circuitbreaker.NewBuilder[any]().WithFailureThreshold(uint(failures)).WithDelay(openFor).Build()
	gb := gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Timeout:     openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= failures },
	})
	return []guarded{
		{"this library", policy.Run, func() string { return policy.Breaker().State().String() }},
		{"failsafe-go", failsafeStack{failsafe.With[any](fs)}.call, func() string { return fs.State().String() }},
		{"gobreaker", func(ctx context.Context, fn func(context.Context) error) error {
			_, err := gb.Execute(func() (any, error) { return nil, fn(ctx) })
			return err
		}, func() string { return gb.State().String() }},
	}
}

// ending is a way to leave a callback without returning.
type ending func()

func panics() { panic("a bug in the callback") }
func exits()  { runtime.Goexit() }

// probed is what became of a breaker whose probe did not return.
type probed struct {
	again  bool // another call was admitted
	after  time.Duration
	closed bool
}

func (p probed) String() string {
	switch {
	case !p.again:
		return fmt.Sprintf("no call was admitted any more (tried for %v): the probe's slot is lost", p.after.Round(100*time.Millisecond))
	case p.closed:
		return "another probe was admitted, and the breaker closed"
	}
	return "another probe was admitted"
}

// probes opens each breaker, ends its probe like that, and calls a healthy dependency afterwards.
func probes(end ending) []outcome {
	const openFor = 20 * time.Millisecond
	var outcomes []outcome
	for _, g := range guardedBy(1, openFor) {
		outcomes = append(outcomes, outcome{g.who, probe(g, openFor, end)})
	}
	return outcomes
}

func probe(g guarded, openFor time.Duration, end ending) probed {
	ctx := context.Background()
	_ = g.call(ctx, func(context.Context) error { return errDown })
	time.Sleep(2 * openFor)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		_ = g.call(ctx, func(context.Context) error { end(); return nil })
	}()
	<-done

	var p probed
	admitted := 0
	for began := time.Now(); p.after < time.Second && admitted < 5; p.after = time.Since(began) {
		err := g.call(ctx, func(context.Context) error { admitted++; return nil })
		if err != nil {
			time.Sleep(openFor / 4)
		}
	}
	p.again, p.closed = admitted > 0, g.state() == "closed"
	return p
}

// opened is what a breaker made of calls that the dependency was not to blame for.
type opened struct {
	state string
	hint  string
}

func (o opened) String() string { return "the breaker is " + o.state + o.hint }

// cancellations have callers give up while the dependency works.
func cancellations() []outcome {
	hints := map[string]string{
		"gobreaker":   " (Settings.IsExcluded can leave them out)",
		"failsafe-go": " (HandleIf can count them as successes instead)",
	}
	var outcomes []outcome
	for _, g := range guardedBy(3, time.Hour) {
		for range 10 {
			ctx, cancel := context.WithCancel(context.Background())
			_ = g.call(ctx, func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			})
		}
		o := opened{state: g.state()}
		if o.state != "closed" {
			o.hint = hints[g.who]
		}
		outcomes = append(outcomes, outcome{g.who, o})
	}
	return outcomes
}

// lost says how many losers of hedges the breaker took for failures.
type lost struct{ losers, failures int }

func (l lost) String() string { return fmt.Sprintf("%d of %d counted", l.failures, l.losers) }

func losers() []outcome {
	return []outcome{{"this library", oursLosers()}, {"failsafe-go", failsafeLosers()}}
}

const hedgedCalls = 30

// loseFirst is a callback whose first leg ends when it is told to, while the second one succeeds at once.
func loseFirst(late chan<- struct{}) func(ctx context.Context) error {
	legs := make(chan struct{}, 1)
	legs <- struct{}{}
	return func(ctx context.Context) error {
		select {
		case <-legs:
			defer func() { late <- struct{}{} }()
			<-ctx.Done()
			return ctx.Err()
		default:
			return nil
		}
	}
}

func oursLosers() lost {
	p := resilience.MustNew(
		resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinDelay: time.Millisecond, Window: time.Minute}),
		resilience.WithoutBudget(),
		resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1000, ConstantsOnly: true}),
	)
	ctx := context.Background()
	for range 200 {
		_ = p.Run(ctx, succeed)
	}
	late := make(chan struct{}, hedgedCalls)
	l := lost{}
	for range hedgedCalls {
		if p.Run(ctx, loseFirst(late)) == nil {
			l.losers++
		}
		<-late
	}
	time.Sleep(20 * time.Millisecond)
	l.failures = p.Breaker().Stats().Failures
	return l
}

func failsafeLosers() lost {
	b := circuitbreaker.NewBuilder[any]().WithFailureThresholdRatio(1000, 1000).Build()
	s := failsafeStack{failsafe.With(hedgepolicy.NewWithDelay[any](time.Millisecond), failsafe.Policy[any](b))}
	late := make(chan struct{}, hedgedCalls)
	l := lost{}
	for range hedgedCalls {
		if s.call(context.Background(), loseFirst(late)) == nil {
			l.losers++
		}
		<-late
	}
	time.Sleep(20 * time.Millisecond)
	l.failures = int(b.Metrics().Failures())
	return l
}
