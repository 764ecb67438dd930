package migrate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/require"
)

var errDown = errors.New("down")

func clients(fetch Fetch) map[string]Client {
	return map[string]Client{
		"failsafe-go":            newFailsafeClient(fetch),
		"after failsafe-go":      newResilientClient(fetch),
		"gobreaker and backoff":  newComposedClient(fetch),
		"after gobreaker and it": newPolicyClient(fetch),
	}
}

func TestBothSidesOfTheMigrationDoTheSame(t *testing.T) {
	calls := 0
	var answers []error
	script := func(context.Context, string) (int, error) {
		calls++
		if calls <= len(answers) {
			return 0, answers[calls-1]
		}
		return 7, nil
	}
	for name, c := range clients(script) {
		t.Run(name, func(t *testing.T) {
			calls, answers = 0, []error{errDown}
			stock, err := c.Get(t.Context(), "bolt")
			require.NoError(t, err)
			require.Equal(t, 7, stock)
			require.Equal(t, 2, calls, "a failure is retried")

			calls, answers = 0, []error{ErrUnknownKey}
			_, err = c.Get(t.Context(), "bolt")
			require.ErrorIs(t, err, ErrUnknownKey)
			require.Equal(t, 1, calls, "an answer is not")
		})
	}
}

func TestBothSidesBoundTheAttempt(t *testing.T) {
	for name, c := range clients(func(ctx context.Context, _ string) (int, error) {
		at, ok := ctx.Deadline()
		if !ok || time.Until(at) > time.Second {
			return 0, nil
		}
		return 1, nil
	}) {
		if name == "failsafe-go" {
			continue // bounds it without telling the context
		}
		bounded, err := c.Get(t.Context(), "bolt")
		require.NoError(t, err)
		require.Equal(t, 1, bounded, name)
	}
}

func TestTheFallbackAnswersWhileTheBreakerIsOpen(t *testing.T) {
	c := newResilientClient(func(context.Context, string) (int, error) { return 7, nil })
	stock, err := withFallback(t.Context(), c, "bolt")
	require.NoError(t, err)
	require.Equal(t, 7, stock)
	c.policy.Breaker().Isolate()
	stock, err = withFallback(t.Context(), c, "bolt")
	require.NoError(t, err)
	require.Zero(t, stock)
}

func TestTheSmallPieces(t *testing.T) {
	require.NotNil(t, failsafeHedge())
	require.NoError(t, hedged(resilience.MustNew()).Run(t.Context(), func(context.Context) error { return nil }))
	for name, permit := range map[string]func(func() error) error{
		"failsafe-go": failsafePermit, "this library": permit,
		"gobreaker": func(work func() error) error {
			return countedByHand(gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{}), work)
		},
	} {
		require.NoError(t, permit(func() error { return nil }), name)
		require.ErrorIs(t, permit(func() error { return errDown }), errDown, name)
	}
	require.Error(t, serverSaid(2))
	require.ErrorIs(t, serverSaidSo(2), errBusy)
}

func TestConstantsOnlyMeasuresNothing(t *testing.T) {
	p := constantsOnly()
	for range 100 {
		require.NoError(t, p.Run(t.Context(), func(context.Context) error { return nil }))
	}
	_, warm := p.Measured().AttemptCeiling.Get()
	require.False(t, warm)
	require.Nil(t, p.Budget())
	require.Equal(t, 5, p.Breaker().Stats().ConsecutiveLimit)
}
