package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// rowsOf returns this library's outcomes, and the others'.
func rowsOf(outcomes []outcome) (mine, others []outcome) {
	for _, o := range outcomes {
		if strings.HasPrefix(o.who, "this library") {
			mine = append(mine, o)
		} else {
			others = append(others, o)
		}
	}
	return mine, others
}

func TestAProbeThatDoesNotReturnGivesItsSlotBack(t *testing.T) {
	for name, end := range map[string]ending{"panic": panics, "Goexit": exits} {
		t.Run(name, func(t *testing.T) {
			mine, _ := rowsOf(probes(end))
			p := mine[0].what.(probed)
			require.True(t, p.again)
			require.True(t, p.closed)
		})
	}
}

func TestCallersWhoGiveUpAreNoEvidence(t *testing.T) {
	mine, _ := rowsOf(cancellations())
	require.Equal(t, "closed", mine[0].what.(opened).state)
}

func TestLosersAreNoEvidence(t *testing.T) {
	require.Equal(t, lost{losers: hedgedCalls}, oursLosers())
}

func TestTheBudgetHoldsForCallsInARow(t *testing.T) {
	mine, others := rowsOf(budgets())
	require.Equal(t, failingCalls+1, mine[0].what.(spent).attempts, "a bucket of one token, and no success to fill it")
	attempts := mine[1].what.(spent).attempts
	require.Greater(t, attempts, failingCalls)
	require.LessOrEqual(t, attempts, failingCalls+30+3*101, "30 at once, and 3 a second of the time that the refusals take")
	for _, o := range others {
		require.GreaterOrEqual(t, o.what.(spent).attempts, failingCalls)
	}
}

func TestAWaitThatDoesNotFitIsNotSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, others := rowsOf(longWaits())
		require.Equal(t, waited{took: 0, attempts: 1, own: true}, mine[0].what)
		for _, o := range others {
			require.Equal(t, 1, o.what.(waited).attempts, o.who)
		}
	})
}

func TestABrownoutDoesNotDoubleTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := brownouts()
		mine, _ := rowsOf(outcomes)
		for _, o := range mine {
			t.Log(o.who, o.what)
			require.Less(t, o.what.(load).first, 1.6, o.who)
			require.Less(t, o.what.(load).later, 1.3, o.who)
		}
		fixed := outcomes[len(outcomes)-1].what.(load)
		require.Greater(t, fixed.later, 1.9)
	})
}

func TestTheTableAsksEverybody(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, command([]string{"behaviour", "-row", "cancel"}, &out))
	require.Contains(t, out.String(), "| this library | the breaker is closed |")
	require.Contains(t, out.String(), "| failsafe-go |")
	require.Contains(t, out.String(), "| gobreaker |")
	require.Contains(t, out.String(), "not offered")
	for _, s := range scenarios() {
		require.NotNil(t, s.ask, s.name)
	}
}
