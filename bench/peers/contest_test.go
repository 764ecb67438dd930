package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheTableHasARowForEveryGoal(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, command([]string{"speed", "-rounds", "2", "-time", "100us"}, &out))
	for _, r := range append(speedRows(), httpRows()...) {
		require.Contains(t, out.String(), "| "+r.name+" |")
		require.NotNil(t, r.met, r.name)
	}
	require.Contains(t, out.String(), memoryRow)
	require.Contains(t, out.String(), "failsafe-go/failsafe-go v")
}

func TestOneRowCanBeChosen(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, command([]string{"speed", "-row", "zero Policy", "-rounds", "1", "-time", "100us"}, &out))
	require.NotContains(t, out.String(), "full stack")
}

func TestWhatCannotBeDoneIsRefused(t *testing.T) {
	for _, args := range [][]string{
		nil, {"dance"}, {"speed", "-rounds", "0"}, {"speed", "-row", "no such row"}, {"behaviour", "-row", "no such row"}, {"speed", "-x"},
	} {
		require.Error(t, command(args, &bytes.Buffer{}), strings.Join(args, " "))
	}
}

func TestTheMedianCounts(t *testing.T) {
	require.InDelta(t, 2, median([]float64{9, 1, 2}), 0)
	require.InDelta(t, 1.5, median([]float64{9, 1, 2, 0}), 0)
	require.Zero(t, median(nil))
	require.Equal(t, "1,234,567", thousands(1234567))
	require.Equal(t, "1,007", thousands(1007))
}

func TestEveryContestantIsMeasuredInEveryRound(t *testing.T) {
	runs := map[string]int{}
	c := func(name string, of side) contestant {
		return contestant{name: name, side: of, start: func() (func(int), func()) {
			return func(n int) { runs[name]++; time.Sleep(time.Duration(n) * 10 * time.Nanosecond) }, nil
		}}
	}
	results := contest([]row{{name: "a", contestants: []contestant{c("x", floorSide), c("y", oursSide)}}}, 5, time.Millisecond, median)
	require.Len(t, results[0].all, 2)
	for _, s := range results[0].all {
		require.Len(t, s.times, 5)
	}
	require.Equal(t, "x", results[0].floor().name)
	require.Equal(t, "y", results[0].ours().name)
}
