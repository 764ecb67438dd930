package resilience

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience/internal/poolprobe"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files of Explain anew")

// golden compares with testdata/explain/<name>.txt. After a wanted change: go test -run Explain -update . and look at the diff.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "explain", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	require.Equal(t, string(want), got)
}

var errExplained = errors.New("down")

// fails makes that many calls that fail.
func fails(t *testing.T, p Policy, times int) {
	t.Helper()
	for range times {
		require.Error(t, p.Run(t.Context(), func(context.Context) error { return errExplained }))
	}
}

// openFor opens the policy's breaker for exactly that long, without the jitter.
func openFor(t *testing.T, p Policy, d time.Duration) {
	t.Helper()
	b := p.Breaker()
	for b.State() != StateOpen {
		l, err := b.Allow()
		require.NoError(t, err)
		l.Done(Transient, time.Millisecond)
	}
	b.retryAt.Store(int64(b.time.now() + d))
}

func TestExplainGolden(t *testing.T) {
	once := []Option{WithAttempts(1), WithClassifier(RetryAll())}
	for name, c := range map[string]struct {
		opts  []Option
		after func(t *testing.T, p Policy)
	}{
		"cold":         {opts: []Option{WithName("prices")}},
		"no_name":      {},
		"warm":         {[]Option{WithName("prices")}, func(t *testing.T, p Policy) { run(t, p, 20, 656*time.Millisecond) }},
		"warm_backoff": {[]Option{WithMeasuredBackoff(MeasuredBackoff{})}, func(t *testing.T, p Policy) { run(t, p, 20, 40*time.Millisecond) }},
		"one_attempt":  {opts: []Option{WithAttempts(1)}},
		"unbounded": {opts: []Option{
			WithDeadline(Unbounded), WithAttemptTimeout(Unbounded), WithoutBudget(),
		}},
		"unbounded_deadline":        {opts: []Option{WithDeadline(Unbounded)}},
		"unbounded_attempt":         {opts: []Option{WithAttemptTimeout(Unbounded)}},
		"many_attempts":             {opts: []Option{WithAttempts(50), WithAttemptTimeout(time.Second), WithDeadline(time.Hour)}},
		"absurdly_many_attempts":    {opts: []Option{WithAttempts(1 << 40), WithDeadline(Unbounded)}},
		"attempt_timeout_too_long":  {opts: []Option{WithDeadline(2 * time.Second), WithAttemptTimeout(5 * time.Second)}},
		"attempt_timeout_equal":     {opts: []Option{WithDeadline(5 * time.Second), WithAttemptTimeout(5 * time.Second)}},
		"last_attempt_gets_less":    {opts: []Option{WithDeadline(12 * time.Second), WithAttemptTimeout(5 * time.Second), WithBackoff(NoBackoff())}},
		"backoff_leaves_no_room":    {opts: []Option{WithDeadline(3 * time.Second), WithAttemptTimeout(time.Second), WithBackoff(ConstantBackoff(5 * time.Second))}},
		"no_backoff":                {opts: []Option{WithBackoff(NoBackoff())}},
		"equal_jitter":              {opts: []Option{WithBackoff(Backoff{Base: 333 * time.Millisecond, Jitter: JitterEqual})}},
		"custom_delay":              {opts: []Option{WithBackoff(Backoff{Max: time.Second, Delay: func(BackoffInput) time.Duration { panic("asked") }})}},
		"no_ceiling":                {opts: []Option{WithoutAttemptCeiling()}},
		"constants":                 {opts: []Option{WithAdaptive(false)}},
		"no_budget":                 {opts: []Option{WithoutBudget()}},
		"budget_of_nothing":         {opts: []Option{WithBudget(BudgetConfig{Fraction: Off, MinPerSecond: 1})}},
		"limiter_fixed":             {opts: []Option{WithLimiter(FixedLimit(7))}},
		"limiter_adaptive":          {opts: []Option{WithLimiter(LimiterConfig{Max: 50, Queue: 10})}},
		"breaker_cold":              {opts: []Option{WithBreaker(BreakerConfig{})}},
		"breaker_written":           {opts: []Option{WithBreaker(BreakerConfig{ConsecutiveFailures: 3, FailureRatio: 0.5, SlowThreshold: time.Second, ConstantsOnly: true})}},
		"breaker_that_never_opens":  {opts: []Option{WithBreaker(BreakerConfig{ConsecutiveFailures: Off, ConstantsOnly: true})}},
		"saturation_cold":           {opts: []Option{WithSaturation(SaturationAbove(4))}, after: func(*testing.T, Policy) { queueDelay = func() poolprobe.Reading { return poolprobe.Reading{} } }},
		"saturation_warm":           {opts: []Option{WithSaturation(Saturation{Multiple: 2.5, MinSamples: 5})}},
		"hedge_cold":                {opts: []Option{WithHedge(HedgeAt(0.95))}},
		"hedge_warm":                {[]Option{WithHedge(Hedge{Quantile: 0.999, Window: time.Minute})}, func(t *testing.T, p Policy) { run(t, p, 20, 100*time.Millisecond) }},
		"budget_spent":              {[]Option{WithBudget(BudgetConfig{MinPerSecond: 0.2}), WithClassifier(RetryAll()), WithBackoff(NoBackoff())}, func(t *testing.T, p Policy) { fails(t, p, 2) }},
		"breaker_open":              {append(once, WithBreaker(BreakerConfig{})), func(t *testing.T, p Policy) { openFor(t, p, 12*time.Second); time.Sleep(4 * time.Second) }},
		"breaker_open_budget_spent": {[]Option{WithBudget(BudgetConfig{MinPerSecond: 0.01}), WithBreaker(BreakerConfig{}), WithClassifier(RetryAll()), WithBackoff(NoBackoff())}, func(t *testing.T, p Policy) { fails(t, p, 1); openFor(t, p, 3*time.Second) }},
		"breaker_due":               {append(once, WithBreaker(BreakerConfig{})), func(t *testing.T, p Policy) { openFor(t, p, time.Second); time.Sleep(2 * time.Second) }},
		"breaker_half_open": {append(once, WithBreaker(BreakerConfig{})), func(t *testing.T, p Policy) {
			openFor(t, p, time.Second)
			time.Sleep(2 * time.Second)
			_, err := p.Breaker().Allow() // the one probe, under way
			require.NoError(t, err)
		}},
		"breaker_recovering": {append(once, WithBreaker(BreakerConfig{Recovery: Recovery{Fraction: 1, Min: 20 * time.Second}})), func(t *testing.T, p Policy) {
			openFor(t, p, time.Second)
			time.Sleep(2 * time.Second)
			run(t, p, 2, 0)
			time.Sleep(5 * time.Second)
		}},
		"breaker_isolated": {append(once, WithBreaker(BreakerConfig{})), func(_ *testing.T, p Policy) { p.Breaker().Isolate() }},
		"breaker_warm": {append(once, WithBreaker(BreakerConfig{})), func(t *testing.T, p Policy) {
			for range 20 {
				fails(t, p, 3)
				run(t, p, 7, time.Millisecond)
				time.Sleep(3 * time.Second)
			}
		}},
		"rules": {opts: []Option{WithRules(
			OnResult("status", func(*http.Response) Verdict { panic("asked") }),
			OnErrorIs(errExplained, Throttled.After(2*time.Second)),
			OnErrorAs("service", func(*LimitedError) Verdict { panic("asked") }),
			OnError("bugs", Permanent, func(error) bool { panic("asked") }),
		)}},
		"no_rules":       {opts: []Option{WithClassifier(NewClassifier())}},
		"text_too_long":  {opts: []Option{WithName(strings.Repeat("é", 400)), WithClassifier(NewClassifier(OnErrorIs(errors.New(strings.Repeat("x", 600)), Transient)))}},
		"everything_off": {opts: []Option{WithAttempts(1), WithDeadline(Unbounded), WithAttemptTimeout(Unbounded), WithoutBudget()}},
	} {
		t.Run(name, func(t *testing.T) {
			probe := starved(t)
			probe.Reading = poolprobe.Reading{Delay: 1500 * time.Microsecond, Normal: time.Millisecond, Samples: 100}
			synctest.Test(t, func(t *testing.T) {
				p, err := New(c.opts...)
				require.NoError(t, err)
				if c.after != nil {
					c.after(t, p)
				}
				text := p.Explain()
				require.Equal(t, text, p.Explain(), "asking changes nothing")
				require.True(t, strings.HasPrefix(text, p.String()+"\n\n"), "String is the headline")
				golden(t, name, text)
			})
		})
	}
}

func TestExplainGoldenOfTheZeroPolicy(t *testing.T) {
	golden(t, "zero", Policy{}.Explain())
	require.Equal(t, Policy{}.String()+"\n", Policy{}.Explain())
	p, err := Policy{}.With(WithAttempts(2))
	require.NoError(t, err)
	golden(t, "derived_from_zero", p.Explain())
}

// The three states of a row, word for word.
func TestExplainMeasuredNowWordForWord(t *testing.T) {
	probe := starved(t)
	synctest.Test(t, func(t *testing.T) {
		p, err := New(WithHedge(HedgeAt(0.95)))
		require.NoError(t, err)
		// Twenty samples for the ceiling, whose window is five minutes; none of them is left in the hedge's of 30 s.
		// The estimator reads 656 ms as 680 ms: its error is at most 5 %.
		run(t, p, 20, 656*time.Millisecond)
		time.Sleep(time.Minute)
		require.Contains(t, p.Explain(), "\n"+
			"Measured now:    attempt ceiling   2.04s  3x p95 over 5m, 20 samples minimum\n"+
			"                 backoff base      -      not configured\n"+
			"                 hedge threshold   -      cold - p95 over 30s, 20 samples minimum\n"+
			"                 pool queue delay  -      not configured\n")

		probe.Reading = poolprobe.Reading{Delay: 2 * time.Millisecond, Normal: time.Millisecond, Samples: 20}
		p, err = New(WithHedge(HedgeAt(0.95)), WithMeasuredBackoff(MeasuredBackoff{Multiple: 2}), WithSaturation(SaturationAbove(4)))
		require.NoError(t, err)
		require.Contains(t, p.Explain(), "\n"+
			"Measured now:    attempt ceiling   -      cold - p95 over 5m, 20 samples minimum\n"+
			"                 backoff base      -      cold - p50 over 5m, 20 samples minimum\n"+
			"                 hedge threshold   -      cold - p95 over 30s, 20 samples minimum\n"+
			"                 pool queue delay  2ms    4x median over 1h, 20 samples minimum\n")
	})
}

func TestExplainMeasuredRowHasThreeForms(t *testing.T) {
	by := measuredBy{3, windowText(0.95, 5*time.Minute, 20)}
	require.Equal(t, "attempt ceiling   1.97s  3x p95 over 5m, 20 samples minimum",
		by.line("attempt ceiling", Reading{Value: 1966667 * time.Microsecond, State: Warm}))
	require.Equal(t, "hedge threshold   -      cold - p95 over 30s, 20 samples minimum",
		measuredBy{0, windowText(0.95, 30*time.Second, 20)}.line("hedge threshold", Reading{State: Cold, Samples: 19}))
	require.Equal(t, "pool queue delay  -      not configured", measuredBy{}.line("pool queue delay", Reading{}))
}

// A breaker that lets some calls through is none that admits nothing.
func TestExplainRecoveringBreakerIsNotCalledOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(WithAttempts(1), WithBreaker(BreakerConfig{Recovery: Recovery{Fraction: 1, Min: 20 * time.Second}}))
		require.NoError(t, err)
		openFor(t, p, time.Second)
		time.Sleep(2 * time.Second)
		run(t, p, 2, 0)
		require.Equal(t, StateRecovering, p.Breaker().State())
		require.NotContains(t, p.Explain(), "nothing is admitted")
		require.NotContains(t, p.Explain(), "open breaker")
	})
}

func TestExplainShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1ns", 999: "999ns", 1234: "1.23µs", 1967 * time.Millisecond: "1.97s", 1500 * time.Millisecond: "1.5s",
		59999 * time.Millisecond: "1m", time.Minute: "1m", 5 * time.Minute: "5m", 90 * time.Second: "1m30s", time.Hour: "1h",
		90 * time.Minute: "1h30m", 61*time.Minute + 400*time.Millisecond: "1h1m", 100 * time.Hour: "100h", Unbounded: "unbounded",
		10 * time.Second: "10s", 999900 * time.Nanosecond: "1ms", 123456 * time.Microsecond: "123ms",
	} {
		require.Equal(t, want, short(d), "%d", d)
	}
}
