package resilience_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
)

// Every row of the table of costs, with the least code that a person could write for the same protection beside it.

// floor is the same protection by hand: a deadline, three attempts, a budget, an attempt timeout, a breaker that counts
// failures in a row, and a limit of the calls in flight. Nothing is measured and nothing is told.
type floor struct {
	deadline, timeout time.Duration
	attempts          int
	failures          atomic.Int32
	openUntil         atomic.Int64
	inFlight          atomic.Int32
	tokens            atomic.Int64
	begin             time.Time
}

func newFloor() *floor {
	f := &floor{deadline: 30 * time.Second, timeout: 10 * time.Second, attempts: 3, begin: time.Now()}
	f.tokens.Store(1 << 40)
	return f
}

// floorContext is a context with a deadline that makes its timer when somebody asks for it.
type floorContext struct {
	context.Context
	deadline time.Time
	once     sync.Once
	timer    context.Context
	cancel   context.CancelFunc
}

func (c *floorContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *floorContext) Done() <-chan struct{} {
	c.once.Do(func() { c.timer, c.cancel = context.WithDeadline(c.Context, c.deadline) })
	return c.timer.Done()
}

func (c *floorContext) Value(key any) any {
	if c.timer != nil {
		return c.timer.Value(key)
	}
	return c.Context.Value(key)
}

var errFloor = errors.New("refused")

func (f *floor) run(ctx context.Context, fn func(context.Context) error) (err error) {
	now := time.Since(f.begin)
	end := now + f.deadline
	for attempt := 1; ; attempt++ {
		if int64(now) < f.openUntil.Load() || f.inFlight.Add(1) > 200 {
			return errFloor
		}
		c := &floorContext{Context: ctx, deadline: f.begin.Add(min(end, now+f.timeout))}
		err = fn(c)
		if c.cancel != nil {
			c.cancel()
		}
		f.inFlight.Add(-1)
		now = time.Since(f.begin)
		if err == nil {
			f.failures.Store(0)
			return nil
		}
		if f.failures.Add(1) >= 1<<20 {
			f.openUntil.Store(int64(now + 15*time.Second))
		}
		if attempt >= f.attempts || now >= end || f.tokens.Add(-1) < 0 || ctx.Err() != nil {
			return err
		}
	}
}

func deriving(ctx context.Context) error {
	child, stop := context.WithCancel(ctx)
	_ = child.Done()
	stop()
	return nil
}

// onceFailing fails every other time.
func onceFailing() func(context.Context) error {
	n := 0
	return func(context.Context) error {
		n++
		if n&1 == 1 {
			return errDown
		}
		return nil
	}
}

func benchRun(b *testing.B, p resilience.Policy, fn func(context.Context) error) {
	b.Helper()
	ctx := context.Background()
	for range 100 {
		_ = p.Run(ctx, fn)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Run(ctx, fn)
	}
}

func benchFloor(b *testing.B, run func(context.Context, func(context.Context) error) error, fn func(context.Context) error) {
	b.Helper()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_ = run(ctx, fn)
	}
}

func BenchmarkFullStack(b *testing.B) {
	b.Run("ours", func(b *testing.B) { benchRun(b, fullStack(), succeed) })
	b.Run("floor", func(b *testing.B) { benchFloor(b, newFloor().run, succeed) })
	b.Run("ours-parallel", func(b *testing.B) {
		p := fullStack()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_ = p.Run(context.Background(), succeed)
			}
		})
	})
	b.Run("core-only", func(b *testing.B) { benchRun(b, resilience.MustNew(), succeed) })
}

func BenchmarkChildContext(b *testing.B) {
	b.Run("ours", func(b *testing.B) { benchRun(b, fullStack(), deriving) })
	b.Run("floor", func(b *testing.B) { benchFloor(b, newFloor().run, deriving) })
}

func BenchmarkDo(b *testing.B) {
	p, ctx := fullStack(), context.Background()
	fn := func(context.Context) (int, error) { return 1, nil }
	b.ReportAllocs()
	for b.Loop() {
		_, _ = resilience.Do(ctx, p, fn)
	}
}

func BenchmarkOneRetry(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		benchRun(b, fullStack(resilience.WithoutBudget(), resilience.WithBackoff(resilience.NoBackoff()), resilience.WithClassifier(resilience.RetryAll()),
			resilience.WithBreaker(resilience.BreakerConfig{ConsecutiveFailures: 1000})), onceFailing())
	})
	b.Run("floor", func(b *testing.B) { benchFloor(b, newFloor().run, onceFailing()) })
}

func BenchmarkHedgeThatDoesNotFire(b *testing.B) {
	hedge := resilience.Hedge{Quantile: 0.95, MinDelay: time.Second}
	b.Run("ours", func(b *testing.B) { benchRun(b, fullStack(resilience.WithHedge(hedge)), succeed) })
	b.Run("ours-cold", func(b *testing.B) {
		cold := hedge
		cold.MinSamples = 1 << 30
		benchRun(b, fullStack(resilience.WithHedge(cold)), succeed)
	})
	b.Run("floor", func(b *testing.B) {
		f := newFloor()
		benchFloor(b, func(ctx context.Context, fn func(context.Context) error) error {
			return f.run(ctx, func(ctx context.Context) error { return floorHedge(ctx, time.Second, fn) })
		}, succeed)
	})
}

// floorHedge is a hedge by hand: two legs, each on a goroutine, under a context that ends with the winner.
func floorHedge(ctx context.Context, delay time.Duration, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make(chan error, 2)
	leg := func() { out <- fn(ctx) }
	go leg()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case err := <-out:
		return err
	case <-timer.C:
		go leg()
		return <-out
	}
}

func BenchmarkZeroPolicy(b *testing.B) {
	b.Run("ours", func(b *testing.B) { benchRun(b, resilience.Policy{}, succeed) })
	b.Run("floor", func(b *testing.B) {
		benchFloor(b, func(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }, succeed)
	})
}

// floorBreaker counts failures in a row.
type floorBreaker struct {
	failures  atomic.Int32
	openUntil atomic.Int64
	begin     time.Time
}

func (f *floorBreaker) allow() bool { return int64(time.Since(f.begin)) >= f.openUntil.Load() }

func (f *floorBreaker) done(ok bool) {
	if ok {
		f.failures.Store(0)
	} else if f.failures.Add(1) >= 5 {
		f.openUntil.Store(int64(time.Since(f.begin) + 15*time.Second))
	}
}

func BenchmarkBreakerAllowDone(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		br := breakerOf(b, resilience.BreakerConfig{})
		b.ReportAllocs()
		for b.Loop() {
			l, _ := br.Allow()
			l.Done(resilience.OK, time.Millisecond)
		}
	})
	b.Run("ours-parallel", func(b *testing.B) {
		br := breakerOf(b, resilience.BreakerConfig{})
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l, _ := br.Allow()
				l.Done(resilience.OK, time.Millisecond)
			}
		})
	})
	b.Run("floor", func(b *testing.B) {
		f := &floorBreaker{begin: time.Now()}
		for b.Loop() {
			if f.allow() {
				f.done(true)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		br := tripped(b, breakerOf(b, resilience.BreakerConfig{ConsecutiveFailures: 1, OpenFor: time.Hour}))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = br.Allow()
		}
	})
	b.Run("open-floor", func(b *testing.B) {
		f := &floorBreaker{begin: time.Now()}
		f.openUntil.Store(1 << 62)
		for b.Loop() {
			_ = f.allow()
		}
	})
}

func BenchmarkLimiterAcquireRelease(b *testing.B) {
	for name, c := range map[string]resilience.LimiterConfig{"fixed": resilience.FixedLimit(100), "adaptive": resilience.AdaptiveLimit(100)} {
		b.Run(name, func(b *testing.B) {
			l, err := resilience.NewLimiter(c)
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				p, _ := l.Acquire(ctx)
				p.Release(resilience.OK)
			}
		})
	}
	b.Run("floor", func(b *testing.B) {
		var inFlight atomic.Int32
		for b.Loop() {
			if inFlight.Add(1) <= 100 {
				inFlight.Add(-1)
			}
		}
	})
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = fullStack()
	}
}

func BenchmarkScopeFor(b *testing.B) {
	s, err := resilience.NewScope(fullStack(), resilience.ScopeConfig[string]{})
	if err != nil {
		b.Fatal(err)
	}
	s.For("a")
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			_ = s.For("a")
		}
	})
	b.Run("floor", func(b *testing.B) {
		var m sync.Map
		m.Store("a", s)
		for b.Loop() {
			_, _ = m.Load("a")
		}
	})
}
