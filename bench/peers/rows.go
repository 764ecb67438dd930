package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/go-kratos/aegis/ratelimit"
	"github.com/go-kratos/aegis/ratelimit/bbr"
	"github.com/measuredgo/resilience"
	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"
)

// speedRows are the rows that are measured by running something many times.
func speedRows() []row {
	background := context.Background()
	return []row{
		{
			name: "full stack, the first attempt succeeds",
			goal: "≤ 300 ns, ≤ 128 B, ≤ 1 alloc, 10 × failsafe-go",
			met: func(r result) bool {
				return within(r.ours(), 300, 128, 1) && 10*r.ours().exact <= r.best[failsafeSide].exact
			},
			contestants: append(stacks(usual(), succeed),
				contestant{
					name: "context.WithTimeout alone", side: peerSide, part: true,
					start: loop(func() stack { return plainTimeout{usual()} }, succeed),
				},
				contestant{
					name: "this library without breaker and limiter", side: oursSide, part: true,
					start: loop(func() stack {
						return newOurs(usual(), resilience.WithoutBreaker(), resilience.WithoutLimiter())
					}, succeed),
				}),
		},
		{
			name: "the same, the callback derives a child context",
			goal: "≤ 1.25 × floor, ≤ 11 allocs",
			met: func(r result) bool {
				return r.ours().exact <= 1.25*r.floor().exact && r.ours().allocs <= 11
			},
			contestants: stacks(usual(), deriveChild),
		},
		{
			name:        "the same, a callback with a value (Do)",
			goal:        "no alloc more than Run",
			met:         func(r result) bool { return r.ours().allocs <= 1 },
			contestants: valueStacks(),
		},
		{
			name:        "one retry without a delay",
			goal:        "≤ 700 ns, ≤ 3 allocs",
			met:         func(r result) bool { return within(r.ours(), 700, 1<<30, 3) },
			contestants: stacks(retrying(), nil),
		},
		{
			name: "full stack and a hedge that does not fire",
			goal: "≤ 2,500 ns, ≤ 12 allocs",
			met:  func(r result) bool { return within(r.ours(), 2500, 1<<30, 12) },
			contestants: []contestant{
				{name: "by hand", side: floorSide, start: loop(func() stack { return newFloorHedged(usual()) }, succeed)},
				{name: "failsafe-go", side: failsafeSide, start: loop(func() stack { return newFailsafeHedged(usual()) }, succeed)},
				{name: "this library", side: oursSide, start: loop(func() stack {
					return newOurs(usual(), resilience.WithHedge(resilience.HedgeAt(0.95)))
				}, succeed)},
			},
		},
		{
			name: "the same, the hedge still cold",
			goal: "as without hedge: ≤ 300 ns, ≤ 1 alloc",
			met:  func(r result) bool { return within(r.ours(), 300, 128, 1) },
			contestants: []contestant{{name: "this library", side: oursSide, start: loop(func() stack {
				return newOurs(usual(), resilience.WithHedge(resilience.Hedge{Quantile: 0.95, MinSamples: 1 << 30}))
			}, succeed)}},
		},
		{
			name:        "breaker closed, admission and result",
			goal:        "≤ 65 ns, no alloc",
			met:         func(r result) bool { return within(r.ours(), 65, 0, 0) },
			contestants: breakers(admitAndReport),
		},
		{
			name:        "the same on 2 goroutines, time per call of all",
			goal:        "≤ 65 ns: no slower than on 1",
			met:         func(r result) bool { return within(r.ours(), 65, 0, 0) },
			contestants: breakers(onTwo(admitAndReport)),
		},
		{
			name:        "breaker open, refusal",
			goal:        "≤ 30 ns, no alloc",
			met:         func(r result) bool { return within(r.ours(), 30, 0, 0) },
			contestants: openBreakers(),
		},
		{
			name: "fixed limit, acquire and release",
			goal: "≤ 25 ns, no alloc",
			met:  func(r result) bool { return within(r.ours(), 25, 0, 0) },
			contestants: []contestant{
				{name: "atomic counter", side: floorSide, start: func() (func(int), func()) {
					l := &floorLimiter{}
					l.limit.Store(200)
					return func(n int) {
						for range n {
							if l.acquire() {
								l.release()
							}
						}
					}, nil
				}},
				{name: "x/sync semaphore", side: peerSide, start: func() (func(int), func()) {
					w := semaphore.NewWeighted(200)
					return func(n int) {
						for range n {
							if w.TryAcquire(1) {
								w.Release(1)
							}
						}
					}, nil
				}},
				{name: "failsafe-go bulkhead", side: failsafeSide, start: func() (func(int), func()) {
					b := bulkhead.New[any](200)
					return func(n int) {
						for range n {
							if b.AcquirePermit(background) == nil {
								b.ReleasePermit()
							}
						}
					}, nil
				}},
				{name: "this library", side: oursSide, start: limiterLoop(resilience.FixedLimit(200))},
			},
		},
		{
			name: "adaptive limit, acquire and release",
			goal: "≤ 60 ns, no alloc",
			met:  func(r result) bool { return within(r.ours(), 60, 0, 0) },
			contestants: []contestant{
				{name: "aegis bbr", side: peerSide, start: func() (func(int), func()) {
					b := bbr.NewLimiter()
					return func(n int) {
						for range n {
							if done, err := b.Allow(); err == nil {
								done(ratelimit.DoneInfo{})
							}
						}
					}, nil
				}},
				{name: "failsafe-go adaptivelimiter", side: failsafeSide, start: func() (func(int), func()) {
					l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 200, 20).Build()
					return func(n int) {
						for range n {
							if p, err := l.AcquirePermit(background); err == nil {
								p.Record()
							}
						}
					}, nil
				}},
				{name: "this library", side: oursSide, start: limiterLoop(resilience.AdaptiveLimit(200))},
			},
		},
		{
			name: "zero Policy",
			goal: "≤ 10 ns, no alloc",
			met:  func(r result) bool { return within(r.ours(), 10, 0, 0) },
			contestants: []contestant{
				{name: "a call through a func value", side: floorSide, start: loop(func() stack { return direct{} }, succeed)},
				{name: "this library", side: oursSide, start: func() (func(int), func()) {
					var p resilience.Policy
					return func(n int) {
						for range n {
							_ = p.Run(background, succeed)
						}
					}, nil
				}},
			},
		},
	}
}

func within(s *score, ns float64, bytes, allocs int) bool {
	return s.exact <= ns && s.bytes <= bytes && s.allocs <= allocs
}

type direct struct{}

func (direct) call(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }

func succeed(context.Context) error { return nil }

// deriveChild does to its context what net/http does for each request.
func deriveChild(ctx context.Context) error {
	_, cancel := context.WithCancel(ctx)
	cancel()
	return nil
}

// stacks are all full stacks with that callback; nil is one that fails on the first of two attempts.
func stacks(s settings, fn func(context.Context) error) []contestant {
	field := []contestant{
		{name: "by hand", side: floorSide, start: loop(func() stack { return newFloor(s) }, fn)},
		{name: "failsafe-go", side: failsafeSide, start: loop(func() stack { return newFailsafe(s) }, fn)},
		{name: "this library", side: oursSide, start: loop(func() stack { return newOurs(s) }, fn)},
	}
	known := compositions()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if s.delay == 0 && name == "go-retry + aegis sre + aegis bbr" {
			continue // sheds calls where every other attempt fails
		}
		field = append(field, contestant{name: name, side: peerSide, start: loop(func() stack { return known[name](s) }, fn)})
	}
	return field
}

func loop(build func() stack, fn func(context.Context) error) func() (func(int), func()) {
	return func() (func(int), func()) {
		s, ctx, fn := build(), context.Background(), fn
		if fn == nil {
			fn = everyOther()
		}
		return func(n int) {
			for range n {
				if err := s.call(ctx, fn); err != nil {
					panic(err) // the row would not measure what it says
				}
			}
		}, nil
	}
}

func everyOther() func(context.Context) error {
	attempts := 0
	return func(context.Context) error {
		if attempts++; attempts%2 == 1 {
			return errDown
		}
		return nil
	}
}

func answer(context.Context) (int, error) { return 42, nil }

func valueStacks() []contestant {
	s, ctx := usual(), context.Background()
	return []contestant{
		{name: "backoff + gobreaker + semaphore", side: peerSide, start: func() (func(int), func()) {
			b := gobreaker.NewCircuitBreaker[int](gobreakerSettings(s))
			w := semaphore.NewWeighted(200)
			return func(n int) {
				for range n {
					ctx, cancel := context.WithTimeout(ctx, s.deadline)
					_, _ = backoff.Retry(ctx, func() (int, error) {
						if !w.TryAcquire(1) {
							return 0, errLimited
						}
						defer w.Release(1)
						return b.Execute(func() (int, error) {
							ctx, cancel := context.WithTimeout(ctx, s.attemptTimeout)
							defer cancel()
							return answer(ctx)
						})
					}, backoff.WithMaxTries(uint(s.attempts)), backoff.WithMaxElapsedTime(0))
					cancel()
				}
			}, nil
		}},
		{name: "failsafe-go", side: failsafeSide, start: func() (func(int), func()) {
			e := failsafe.With(failsafePolicies[int](s)...)
			return func(n int) {
				for range n {
					_, _ = e.WithContext(ctx).GetWithExecution(func(e failsafe.Execution[int]) (int, error) { return answer(e.Context()) })
				}
			}, nil
		}},
		{name: "this library", side: oursSide, start: func() (func(int), func()) {
			p := oursPolicy(s)
			return func(n int) {
				for range n {
					_, _ = resilience.Do(ctx, p, answer)
				}
			}, nil
		}},
	}
}

// gate is a breaker for callers who cannot pass a function.
type gate struct {
	admit func() (report func(ok bool), admitted bool)
	once  func() // admission and the report of a success, without a closure around it
}

func gates(s settings) map[string]func() gate {
	return map[string]func() gate{
		"by hand": func() gate {
			b := &floorBreaker{settings: s}
			return gate{
				admit: func() (func(bool), bool) {
					ok := b.allow(time.Since(epoch))
					return func(ok bool) { b.done(ok, time.Since(epoch)) }, ok
				},
				once: func() {
					if b.openUntil.Load() == 0 || b.allow(time.Since(epoch)) {
						b.done(true, time.Since(epoch))
					}
				},
			}
		},
		"gobreaker": func() gate {
			b := gobreaker.NewTwoStepCircuitBreaker[any](gobreakerSettings(s))
			return gate{
				admit: func() (func(bool), bool) {
					done, err := b.Allow()
					return func(ok bool) { done(errUnless(ok)) }, err == nil
				},
				once: func() {
					if done, err := b.Allow(); err == nil {
						done(nil)
					}
				},
			}
		},
		"aegis sre": func() gate {
			b := sre.NewBreaker(sre.WithRequest(20))
			return gate{
				admit: func() (func(bool), bool) {
					return func(ok bool) {
						if ok {
							b.MarkSuccess()
						} else {
							b.MarkFailed()
						}
					}, b.Allow() == nil
				},
				once: func() {
					if b.Allow() == nil {
						b.MarkSuccess()
					}
				},
			}
		},
		"failsafe-go": func() gate {
			b := failsafeBreaker[any](s)
			return gate{
				admit: func() (func(bool), bool) {
					return func(ok bool) {
						if ok {
							b.RecordSuccess()
						} else {
							b.RecordFailure()
						}
					}, b.TryAcquirePermit()
				},
				once: func() {
					if b.TryAcquirePermit() {
						b.RecordSuccess()
					}
				},
			}
		},
		"this library": func() gate {
			b, err := resilience.NewBreaker(oursBreaker(s))
			if err != nil {
				panic(err)
			}
			return gate{
				admit: func() (func(bool), bool) {
					lease, err := b.Allow()
					return func(ok bool) {
						verdict := resilience.OK
						if !ok {
							verdict = resilience.Transient
						}
						lease.Done(verdict, time.Millisecond)
					}, err == nil
				},
				once: func() {
					if lease, err := b.Allow(); err == nil {
						lease.Done(resilience.OK, time.Millisecond)
					}
				},
			}
		},
	}
}

func errUnless(ok bool) error {
	if ok {
		return nil
	}
	return errDown
}

var gateSides = map[string]side{
	"by hand": floorSide, "gobreaker": peerSide, "aegis sre": peerSide, "failsafe-go": failsafeSide, "this library": oursSide,
}

func breakers(use func(g gate) func(n int)) []contestant {
	known := gates(usual())
	var field []contestant
	for _, name := range slices.Sorted(maps.Keys(known)) {
		field = append(field, contestant{name: name, side: gateSides[name], start: func() (func(int), func()) {
			return use(known[name]()), nil
		}})
	}
	return field
}

func admitAndReport(g gate) func(n int) {
	return func(n int) {
		for range n {
			g.once()
		}
	}
}

func onTwo(use func(g gate) func(n int)) func(g gate) func(n int) {
	return func(g gate) func(n int) {
		run := use(g)
		return func(n int) {
			var both sync.WaitGroup
			both.Go(func() { run(n / 2) })
			run(n - n/2)
			both.Wait()
		}
	}
}

// openBreakers have seen failures alone, and stay open for an hour.
func openBreakers() []contestant {
	s := usual()
	s.openFor = time.Hour
	known := gates(s)
	var field []contestant
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if name == "aegis sre" {
			continue // never refuses every call
		}
		field = append(field, contestant{name: name, side: gateSides[name], start: func() (func(int), func()) {
			g := known[name]()
			trip(g)
			return func(n int) {
				for range n {
					g.once()
				}
			}, nil
		}})
	}
	return field
}

func trip(g gate) {
	for range 30 {
		if report, ok := g.admit(); ok {
			report(false)
		}
	}
}

func limiterLoop(c resilience.LimiterConfig) func() (func(int), func()) {
	return func() (func(int), func()) {
		l, err := resilience.NewLimiter(c)
		if err != nil {
			panic(err)
		}
		ctx := context.Background()
		return func(n int) {
			for range n {
				if p, err := l.Acquire(ctx); err == nil {
					p.Release(resilience.OK)
				}
			}
		}, nil
	}
}
