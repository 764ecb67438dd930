package resilience_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// FuzzOptions: whatever the settings, there is an error or a policy that can run a call.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(-1), 3, 0.5, math.NaN(), uint64(0xffff))
	f.Add(int64(time.Second), int64(math.MaxInt64), 1, 0.95, 3.0, uint64(0x5555))
	f.Add(int64(math.MinInt64), int64(1), math.MinInt, math.Inf(1), -1.0, uint64(1))
	f.Add(int64(time.Hour), int64(time.Minute), 20, 0.9, 5.0, uint64(0xaaaa))
	f.Fuzz(func(t *testing.T, a, b int64, n int, x, y float64, which uint64) {
		d, e := time.Duration(a), time.Duration(b)
		all := []resilience.Option{
			resilience.WithDeadline(d),
			resilience.WithAttemptTimeout(e),
			resilience.WithAttempts(n),
			resilience.WithAttemptCeiling(resilience.AttemptCeiling{Multiple: y, Quantile: x, Window: d, MinSamples: n, Floor: e}),
			resilience.WithBackoff(resilience.Backoff{Base: d, ThrottledBase: e, Max: d, Factor: y, Jitter: resilience.Jitter(n)}), //nolint:gosec // a fuzz
			resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{Multiple: x, Quantile: y, Window: e, MinSamples: n, Spread: y}),
			resilience.WithBudget(resilience.BudgetConfig{Fraction: x, MinPerSecond: y}),
			resilience.WithBreaker(resilience.BreakerConfig{
				ConsecutiveFailures: n, FailureRatio: x, SlowThreshold: d, SlowRatio: y, MinCalls: n, Window: e, OpenFor: d, MaxOpenFor: e, Probes: n,
				Failures:  resilience.RelativeFailures{Multiple: y, Window: d, Floor: x},
				SlowCalls: resilience.RelativeSlow{Multiple: y, Quantile: x, Window: d, MinSamples: n},
				Recovery:  resilience.Recovery{Fraction: x, Initial: y, Min: d, Max: e},
			}),
			resilience.WithLimiter(resilience.LimiterConfig{Initial: n, Min: int(a % 1000), Max: int(b % 1000), Multiple: y, Decrease: x, Queue: n % 100}),
			resilience.WithLimiter(resilience.FixedLimit(n)),
			resilience.WithHedge(resilience.Hedge{
				Quantile: x, MaxConcurrent: n, MinSamples: n, MinDelay: d, Window: e, SuppressAt: y,
				WinRate: resilience.WinRate{Minimum: x, Window: d, MinSamples: n, MinAllowance: y},
			}),
			resilience.WithSaturation(resilience.Saturation{Multiple: y, Floor: d, MinSamples: n}),
			resilience.WithAdaptive(n%2 == 0),
			resilience.WithBackoff(resilience.ConstantBackoff(d)),
			resilience.WithBreaker(resilience.BreakerConfig{Window: d, OpenFor: e}),
			nil,
		}
		var opts []resilience.Option
		for i, o := range all {
			if which&(1<<i) != 0 {
				opts = append(opts, o)
			}
		}
		if n > 1000 && (which&(1<<7) != 0 || which&(1<<10) != 0) {
			return // a race that has room for that many legs: memory, not a bug
		}
		p, err := resilience.New(opts...)
		if err != nil {
			require.True(t, p == resilience.Policy{})
			require.ErrorContains(t, err, "resilience: New: ")
			return
		}
		require.NotEmpty(t, p.Explain())
		synctest.Test(t, func(t *testing.T) {
			q := p.MustWith(resilience.WithName("q"))
			called := 0
			r := q.Try(t.Context(), func(context.Context) error { called++; return nil })
			require.Equal(t, 1, called, "%v", r.Err)
			require.NoError(t, r.Err)
			q.Measured()
		})
	})
}

// model is a slow and obvious executor for policies of transient failures: attempts, waits, deadline, budget and a breaker that
// opens after so many failures in a row.
type model struct {
	attempts          int
	deadline, timeout time.Duration
	wait              time.Duration
	tokens            int // of a budget that nothing refills; < 0: none
	trip              int // failures in a row
	row               int
	open              bool
	openUntil         time.Duration
	now               time.Duration
}

// outcome is one entry of a script: how long the callback takes and what it does.
type outcome struct {
	takes time.Duration
	what  byte // 0 ok, 1 down, 2 bug, 3 panic, 4 pushback, 5 cancels, 6 deaf
}

const pushed = 700 * time.Millisecond

func (m *model) call(script []outcome) (reason resilience.Reason, entered int) {
	end := m.now + m.deadline
	for {
		if m.now >= end {
			return resilience.ReasonDeadlineExceeded, entered
		}
		if m.open && m.now < m.openUntil {
			m.now += min(100*time.Millisecond, end-m.now)
			return resilience.ReasonBreakerOpen, entered
		}
		probe := m.open
		o := script[entered%len(script)]
		entered++
		bound := min(m.timeout, end-m.now)
		lasts := o.takes
		if o.what != 6 {
			lasts = min(lasts, bound)
		}
		m.now += lasts
		failure, over := o.what != 0, o.what != 0 && lasts >= bound
		if o.what == 0 && o.takes >= bound { // it hears its context first
			failure, over = true, true
		}
		delay, counts := m.wait, true
		switch {
		case !failure:
			m.row, m.open = 0, false
			return resilience.ReasonSucceeded, entered
		case o.what == 5 && !over:
			return resilience.ReasonCancelled, entered
		case o.what == 3 && !over:
			return resilience.ReasonPanicked, entered
		case o.what == 2 && !over:
			return resilience.ReasonPermanent, entered
		case o.what == 4 && !over:
			delay, counts = pushed, false
		}
		if counts {
			m.row++
			if probe || m.row >= m.trip {
				m.open, m.row, m.openUntil = true, 0, time.Duration(math.MaxInt64) // for the rest of the script
			}
		}
		switch {
		case m.now >= end:
			return resilience.ReasonDeadlineExceeded, entered
		case entered >= m.attempts:
			return resilience.ReasonAttemptsExhausted, entered
		case delay >= end-m.now:
			return resilience.ReasonDeadlineExceeded, entered
		case m.open:
			m.now += min(100*time.Millisecond, end-m.now)
			return resilience.ReasonBreakerOpen, entered
		case m.tokens == 0:
			m.now += min(100*time.Millisecond, end-m.now)
			return resilience.ReasonBudgetExhausted, entered
		}
		m.tokens--
		m.now += delay
	}
}

// FuzzExecutor runs random scripts against the model (BR-092, its second half).
func FuzzExecutor(f *testing.F) {
	f.Add([]byte{3, 10, 2, 1, 5, 3, 0, 1, 1, 1, 1, 2, 1, 1, 4, 0, 0, 4, 1, 6, 9, 5, 1})
	f.Add([]byte{1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 3, 3, 2, 2})
	f.Add([]byte{9, 200, 3, 20, 9, 50, 30, 1, 30, 6, 30, 4, 30, 0, 1, 1, 40, 5})
	rng := rand.New(rand.NewPCG(1, 92)) //nolint:gosec // a test
	for range 30 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 8 || len(in) > 1000 {
			return
		}
		m := &model{
			attempts: 1 + int(in[0]%9), deadline: time.Duration(1+int(in[1])) * 50 * time.Millisecond, timeout: time.Duration(1+int(in[2])%40) * 50 * time.Millisecond,
			wait: time.Duration(in[3]%40) * 50 * time.Millisecond, tokens: 10, trip: 1 + int(in[4]%50),
		}
		m.wait += time.Duration(in[3]/128) * 25 * time.Millisecond
		backoff := resilience.NoBackoff()
		if m.wait > 0 {
			backoff = resilience.ConstantBackoff(m.wait)
		}
		synctest.Test(t, func(t *testing.T) {
			var h heard
			budget := budgetOf(t, resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: 1e-9})
			m.tokens = int(budget.Stats().Capacity)
			l := mustLimiter(t, resilience.FixedLimit(1))
			b := breakerOf(t, resilience.BreakerConfig{ConsecutiveFailures: m.trip, OpenFor: 24 * time.Hour, MaxOpenFor: 24 * time.Hour, Failures: resilience.RelativeFailures{Multiple: resilience.Off}, SlowCalls: resilience.RelativeSlow{Multiple: resilience.Off}})
			p := resilience.MustNew(h.option(), resilience.WithSharedBudget(budget), resilience.WithSharedLimiter(l), resilience.WithSharedBreaker(b),
				resilience.WithAttempts(m.attempts), resilience.WithDeadline(m.deadline), resilience.WithAttemptTimeout(m.timeout), resilience.WithoutAttemptCeiling(),
				resilience.WithBackoff(backoff), resilience.WithRules(resilience.OnErrorIs(errDown, resilience.Transient)))
			begin := time.Now()
			for rest := in[5:]; len(rest) >= 4; rest = rest[4:] {
				script := make([]outcome, 2)
				for i := range script {
					script[i] = outcome{takes: time.Duration(rest[2*i]%80)*50*time.Millisecond + time.Millisecond, what: rest[2*i+1] % 7}
				}
				h.forget()
				want, calls := m.call(script)
				entered, reason := 0, resilience.ReasonPanicked
				func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					defer func() { _ = recover() }()
					reason = p.Try(ctx, func(ctx context.Context) error {
						require.NoError(t, ctx.Err())
						require.Equal(t, 1, l.Stats().InFlight)
						o := script[entered%len(script)]
						entered++
						return play(ctx, cancel, o)
					}).Reason
				}()
				require.Equal(t, want, reason)
				require.Equal(t, calls, entered)
				require.Equal(t, m.now, time.Since(begin))
				require.Len(t, h.terminals(), 1)
				require.Zero(t, l.Stats().InFlight)
				require.InDelta(t, m.tokens, budget.Stats().Tokens, 0.01)
				require.Equal(t, m.open, b.State() == resilience.StateOpen)
			}
		})
	})
}

func play(ctx context.Context, cancel context.CancelFunc, o outcome) error {
	if o.what == 6 {
		time.Sleep(o.takes)
		return errDown
	}
	timer := time.NewTimer(o.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch o.what {
	case 0:
		return nil
	case 1:
		return errDown
	case 2:
		return errBug
	case 3:
		panic("boom")
	case 4:
		return resilience.Throttled.After(pushed).Mark(errDown)
	default:
		cancel()
		return errDown
	}
}

// BR-092, its first half.
func TestEverythingAtOnceDoesNotAddUp(t *testing.T) {
	runs, seeds := 300, uint64(3)
	if testing.Short() || resilience.RaceEnabled {
		runs, seeds = 25, 1
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			const callers = 64
			var calls, ends, entered, attempts, discarded, opened, closed atomic.Int64
			l := mustLimiter(t, resilience.LimiterConfig{Fixed: 40, Queue: 10})
			b := breakerOf(t, resilience.BreakerConfig{OpenFor: 100 * time.Millisecond})
			budget := budgetOf(t, resilience.BudgetConfig{})
			p := retrying(resilience.WithSharedLimiter(l), resilience.WithSharedBreaker(b), resilience.WithSharedBudget(budget),
				resilience.WithDeadline(3*time.Second), resilience.WithAttemptTimeout(200*time.Millisecond), waits(5*time.Millisecond),
				resilience.WithHedge(resilience.HedgeAt(0.9)), resilience.WithListener(func(e resilience.Event) {
					switch {
					case e.Kind.Terminal():
						ends.Add(1)
					case e.Kind == resilience.EventAttempt && !errors.Is(e.Err, resilience.ErrLimited):
						attempts.Add(1)
					case e.Kind == resilience.EventHedgeDiscarded:
						discarded.Add(1)
					case e.Kind == resilience.EventBreakerOpened:
						opened.Add(1)
					case e.Kind == resilience.EventBreakerClosed:
						closed.Add(1)
					}
				}))
			var stop atomic.Bool
			var watcher, wg sync.WaitGroup
			watcher.Go(func() {
				for !stop.Load() {
					s, bs := l.Stats(), budget.Stats()
					if s.InFlight < 0 || s.InFlight > 40 || s.Waiting < 0 || bs.Tokens < 0 || bs.Tokens > bs.Capacity {
						t.Error(s, bs)
					}
					_ = p.Explain()
					p.Measured()
					b.Stats()
					time.Sleep(time.Millisecond)
				}
			})
			var panicked atomic.Int64
			for g := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(g))) //nolint:gosec // a test
					for range runs {
						calls.Add(1)
						ctx, cancel := context.WithCancel(t.Context())
						if rng.IntN(10) == 0 {
							time.AfterFunc(time.Duration(rng.IntN(50))*time.Millisecond, cancel)
						}
						draw := [8]int{}
						for i := range draw {
							draw[i] = rng.IntN(1000)
						}
						var i atomic.Int64
						done := make(chan struct{})
						go func() { // Goexit must not end the caller
							defer close(done)
							defer func() { _ = recover() }()
							_ = p.Run(ctx, func(ctx context.Context) error {
								entered.Add(1)
								d := draw[i.Add(1)%8]
								timer := time.NewTimer(time.Duration(1+d%20) * time.Millisecond)
								defer timer.Stop()
								select {
								case <-timer.C:
								case <-ctx.Done():
									return ctx.Err()
								}
								switch {
								case d < 20:
									panicked.Add(1)
									panic(d)
								case d < 40:
									panicked.Add(1)
									runtime.Goexit()
								case d < 100:
									return errDown
								case d < 120:
									return resilience.Throttled.Mark(errDown)
								case d < 140:
									time.Sleep(300 * time.Millisecond)
								}
								return nil
							})
						}()
						<-done
						cancel()
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Minute)
			stop.Store(true)
			watcher.Wait()
			synctest.Wait()
			require.Equal(t, calls.Load(), ends.Load(), "each call has exactly one outcome")
			require.LessOrEqual(t, attempts.Load()+discarded.Load(), entered.Load())
			require.GreaterOrEqual(t, attempts.Load()+discarded.Load()+panicked.Load(), entered.Load(), "each entry was judged, discarded or panicked")
			require.Zero(t, l.Stats().InFlight)
			require.Zero(t, l.Stats().Waiting)
			require.GreaterOrEqual(t, opened.Load(), closed.Load())
			for range 20 {
				if lease, err := b.Allow(); err == nil {
					lease.Done(resilience.OK, time.Millisecond)
				}
			}
			require.Equal(t, resilience.StateClosed, b.State())
		})
	}
}
