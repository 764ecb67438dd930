package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// It takes about five seconds: the servers, the load and the starved scheduler are real.
func TestTheShortRun(t *testing.T) {
	var out bytes.Buffer
	err := errBusy
	for try := 0; try < 3 && errors.Is(err, errBusy); try++ {
		out.Reset()
		err = run(context.Background(), &out, &short)
		t.Log("\n" + out.String())
	}
	if errors.Is(err, errBusy) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, want := range []string{
		"1/25 healthy", "13/25 brownout", "17/25 recovery", "21/25 starved", "25/25 after",
		"answered in time", "requests sent per call", "ALL", "Bound first by:", "Measured now:", "Attempt ceiling in ms",
	} {
		require.Contains(t, out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 100, line)
	}
}

func TestAnInterruptedRunSaysSoAndLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, run(ctx, &bytes.Buffer{}, &short), context.DeadlineExceeded)
	require.NoError(t, leaked(2)) // this test's goroutine and the main one
}

func TestAnActTakesWholeSteps(t *testing.T) {
	for _, s := range []*show{&long, &short} {
		for _, act := range [][]phase{s.first, s.second} {
			for _, p := range act {
				require.Zero(t, p.lasts%s.step, p.name)
				require.LessOrEqual(t, len(p.name), 8)
			}
		}
	}
}

func TestLongLinesAreBrokenAtASpace(t *testing.T) {
	require.Equal(t, "short", wrapped("short", 10, "\n"))
	require.Equal(t, "one two\n  three\n  four", wrapped("one two three four", 9, "\n  "))
	require.Equal(t, "unbreakable", wrapped("unbreakable", 4, "\n"))
}
