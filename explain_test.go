package resilience_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func TestExplainRunsNoneOfTheUsersCode(t *testing.T) {
	asked := func(what string) { t.Error("Explain has run the user's " + what) }
	p := resilience.MustNew(
		resilience.WithListener(func(resilience.Event) { asked("listener") }),
		resilience.WithBackoff(resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration { asked("delay"); return 0 }}),
		resilience.WithBeforeAttempt(func(context.Context, resilience.AttemptInfo) error { asked("hook"); return nil }),
		resilience.WithAdmit(func(context.Context, resilience.AttemptInfo) error { asked("hook"); return nil }),
		resilience.WithRules(
			resilience.OnError("a", resilience.OK, func(error) bool { asked("rule"); return false }),
			resilience.OnErrorAs("b", func(*svcError) resilience.Verdict { asked("rule"); return resilience.OK }),
			resilience.OnResult("c", func(int) resilience.Verdict { asked("rule"); return resilience.OK }),
		),
		resilience.OnDiscard(func(int) { asked("release") }),
		resilience.WithBreaker(resilience.BreakerConfig{}), resilience.WithLimiter(resilience.AdaptiveLimit(10)),
		resilience.WithHedge(resilience.HedgeAt(0.95)), resilience.WithSaturation(resilience.SaturationAbove(4)),
	)
	require.NotEmpty(t, p.Explain())
	require.NotEmpty(t, p.String())
	_ = p.Measured()
}

func TestExplainHasItsSectionsInOrder(t *testing.T) {
	text := resilience.MustNew(resilience.WithName("x")).Explain()
	at := 0
	for _, section := range []string{
		"x: 3 attempts, deadline 30s, attempt timeout 10s", "Bound first by:", "Worst case:", "Load:", "Measured now:", "Breaker:",
		"Limiter:", "Classifier:",
	} {
		i := strings.Index(text[at:], section)
		require.GreaterOrEqual(t, i, 0, section)
		at += i
	}
	require.NotContains(t, text, " \n", "no blanks at the ends of lines")
}

func TestExplainPrintsAtMostSixRowsOfTheWorstCase(t *testing.T) {
	text := resilience.MustNew(resilience.WithAttempts(100), resilience.WithDeadline(resilience.Unbounded)).Explain()
	require.Equal(t, 6, strings.Count(text, " -> ")-strings.Count(text[strings.Index(text, "Classifier:"):], " -> "))
	require.Contains(t, text, "... until ")
}

// What holds a call back comes first: an open breaker, then a spent budget, then what the worst case runs into.
func TestExplainBoundFirstBy(t *testing.T) {
	breaker := breakerOf(t, resilience.BreakerConfig{})
	budget, err := resilience.NewBudget(resilience.BudgetConfig{Fraction: resilience.Off, MinPerSecond: 0.001})
	require.NoError(t, err)
	p := retrying(resilience.WithSharedBreaker(breaker), resilience.WithSharedBudget(budget))
	first := func() string {
		_, after, _ := strings.Cut(p.Explain(), "Bound first by:")
		line, _, _ := strings.Cut(after, "\n")
		return strings.TrimSpace(line)
	}
	require.Contains(t, first(), "deadline")
	require.Error(t, p.Run(t.Context(), fail), "spends the one token")
	require.Contains(t, first(), "the spent budget")
	tripped(t, breaker)
	require.Contains(t, first(), "the open breaker")
	breaker.Reset()
	breaker.Isolate()
	require.Contains(t, first(), "the isolated breaker: nothing is admitted")
}

// The wait has to leave the time that the dependency normally takes: see TestAWaitThatDoesNotFit of the executor.
func TestExplainKnowsWhatNormallyStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithDeadline(1200*time.Millisecond), resilience.WithAttemptTimeout(time.Second), resilience.WithoutAttemptCeiling(),
			resilience.WithAttempts(2), waits(100*time.Millisecond), resilience.WithBreaker(resilience.BreakerConfig{Name: "db"}))
		for range 30 {
			require.NoError(t, p.Run(t.Context(), func(context.Context) error { time.Sleep(200 * time.Millisecond); return nil }))
		}
		require.Equal(t, 1, p.Try(t.Context(), hang).Total)
		require.Contains(t, p.Explain(), "attempt 2 never starts")
		require.Contains(t, p.Explain(), "db: closed")
	})
}

func TestExplainSaysThatATimeoutNeverBindsAlsoWhenTheCeilingIsWarm(t *testing.T) {
	p := retrying(resilience.WithDeadline(time.Second), resilience.WithAttemptTimeout(time.Minute))
	for range 30 {
		require.NoError(t, p.Run(t.Context(), succeed))
	}
	require.Contains(t, p.Explain(), "measured ceiling: each attempt gets 50ms, the attempt timeout of 1m never binds")
}

func TestExplainTellsTheWholeLoad(t *testing.T) {
	load := func(c resilience.BudgetConfig) string {
		_, text, _ := strings.Cut(resilience.MustNew(resilience.WithBudget(c)).Explain(), "Load:")
		text, _, _ = strings.Cut(text, "\n")
		return strings.TrimSpace(text)
	}
	require.Equal(t, "at most 3x; sustained 1.1x and 3/s more (budget: 30.0 of 30.0 tokens)", load(resilience.BudgetConfig{}))
	require.Equal(t, "at most 3x; sustained 1.2x (budget: 1.0 of 1.0 tokens)", load(resilience.BudgetConfig{Fraction: 0.2, MinPerSecond: resilience.Off}))
}
