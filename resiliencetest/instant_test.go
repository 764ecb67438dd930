package resiliencetest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

func TestInstantTakesTheWaitsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec resiliencetest.Recorder
		for name, backoff := range map[string]resilience.Option{
			"curve":     resilience.WithBackoff(resilience.Backoff{Base: time.Second, ThrottledBase: time.Minute, Max: time.Hour}),
			"constant":  resilience.WithBackoff(resilience.ConstantBackoff(time.Second)),
			"own curve": resilience.WithBackoff(resilience.Backoff{Delay: func(resilience.BackoffInput) time.Duration { return time.Second }}),
			"measured":  resilience.WithMeasuredBackoff(resilience.MeasuredBackoff{MinSamples: 1}),
		} {
			rec.Reset()
			var s resiliencetest.Sequence[int]
			s.Fail(resilience.Throttled.Mark(errDown), errDown)
			p := resiliencetest.Instant(resilience.MustNew(backoff,
				resilience.WithName("db"), resilience.WithAttempts(7), resilience.WithClassifier(resilience.RetryAll()),
				resilience.WithDeadline(time.Hour), resilience.WithListener(rec.Listen)))
			begin := time.Now()
			require.ErrorIs(t, p.Run(t.Context(), s.Run), resilience.ErrAttemptsExhausted, name)
			require.Zero(t, time.Since(begin), name)
			require.Equal(t, 7, s.Calls(), name)
			require.Equal(t, "db", p.Name())
			require.Equal(t, time.Hour, s.Attempts()[0].Remaining)
			rec.Terminal(t, resilience.ReasonAttemptsExhausted)
		}
	})
}

func TestInstantKeepsWhatSomebodyAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s resiliencetest.Sequence[int]
		s.Fail(resilience.Throttled.After(2 * time.Second).Mark(errDown)).Return(1)
		begin := time.Now()
		require.NoError(t, resiliencetest.Instant(resilience.MustNew()).Run(t.Context(), s.Run))
		require.Equal(t, 2*time.Second, time.Since(begin))
	})
}

func TestInstantSharesWhatIsSharedAndRefreshesTheRest(t *testing.T) {
	b, err := resilience.NewBreaker(resilience.BreakerConfig{})
	require.NoError(t, err)
	p := resilience.MustNew(resilience.WithSharedBreaker(b), resilience.WithSaturation(resilience.SaturationAbove(5)))
	q := resiliencetest.Instant(p)
	require.Same(t, b, q.Breaker())
	require.NotSame(t, p.Budget(), q.Budget())
}

func TestInstantOfNothingIsNothing(t *testing.T) {
	require.Equal(t, resilience.Policy{}, resiliencetest.Instant(resilience.Policy{}))
}
