package resiliencetest_test

import (
	"sync"
	"testing"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

func recorded(t *testing.T) *resiliencetest.Recorder {
	var rec resiliencetest.Recorder
	var s resiliencetest.Sequence[int]
	s.Fail(errDown).Return(1)
	require.NoError(t, retrying(resilience.WithListener(rec.Listen)).Run(t.Context(), s.Run))
	return &rec
}

func TestRecorderAcceptsWhatHappened(t *testing.T) {
	rec := recorded(t)
	rec.Want(t, resilience.EventAttempt, resilience.EventRetrying, resilience.EventAttempt, resilience.EventSucceeded)
	require.Equal(t, 2, rec.Terminal(t, resilience.ReasonSucceeded).Attempt)
	require.Len(t, rec.Events(), 4)
	require.Len(t, rec.Events(resilience.EventAttempt), 2)
	require.Len(t, rec.Events(resilience.EventAttempt, resilience.EventRetrying), 3)
	require.Empty(t, rec.Events(resilience.EventPanicked))
	rec.Reset()
	rec.Want(t)
	require.Equal(t, "  (no events)\n", rec.String())
}

func TestRecorderFailsReadably(t *testing.T) {
	const attempt, retry, ok = resilience.EventAttempt, resilience.EventRetrying, resilience.EventSucceeded
	rec := recorded(t)
	for _, c := range []struct {
		kinds []resilience.EventKind
		text  string
		arrow bool
	}{
		{[]resilience.EventKind{attempt, attempt}, "event 2 is retrying, want attempt\n", true},
		{[]resilience.EventKind{attempt, retry, attempt}, "event 4 is succeeded, want no more than 3\n", true},
		{[]resilience.EventKind{attempt, retry, attempt, ok, ok}, "4 events, the next one should be succeeded\n", false},
	} {
		failed := &spy{}
		rec.Want(failed, c.kinds...)
		require.Len(t, failed.failures, 1)
		require.Contains(t, failed.failures[0], c.text)
		require.Contains(t, failed.failures[0], errDown.Error(), "the whole list is printed")
		if c.arrow {
			require.Contains(t, failed.failures[0], "\n> ")
		}
	}
}

func TestRecorderCountsOneEventInTheSingular(t *testing.T) {
	var rec resiliencetest.Recorder
	rec.Listen(resilience.Event{Kind: resilience.EventAttempt})
	failed := &spy{}
	rec.Want(failed, resilience.EventAttempt, resilience.EventSucceeded)
	require.Contains(t, failed.failures[0], "resiliencetest: 1 event, the next one should be succeeded\n")
}

func TestTerminalFailsForNoneForManyAndForAnotherReason(t *testing.T) {
	rec := recorded(t)
	failed := &spy{}
	rec.Terminal(failed, resilience.ReasonCancelled)
	require.Contains(t, failed.failures[0], `the call ended with "succeeded", want "cancelled"`)

	rec.Listen(resilience.Event{Kind: resilience.EventCancelled, Reason: resilience.ReasonCancelled})
	last := rec.Terminal(failed, resilience.ReasonCancelled)
	require.Contains(t, failed.failures[1], "2 calls have ended, want one: cancelled")
	require.Equal(t, resilience.EventCancelled, last.Kind)

	rec.Reset()
	require.Zero(t, rec.Terminal(failed, resilience.ReasonSucceeded))
	require.Contains(t, failed.failures[2], "0 calls have ended")
}

func TestRecorderKeepsOneLineForEachEvent(t *testing.T) {
	var rec resiliencetest.Recorder
	rec.Listen(resilience.Event{Kind: resilience.EventLimitChanged, Policy: "db", Limit: 7})
	rec.Listen(resilience.Event{Kind: resilience.EventNotRetried, Err: resilience.Permanent.Mark(&multiline{})})
	require.Equal(t, `  #  policy  event          attempt  duration  delay  details
  1  db      limit changed  -        0s        0s     limit 7
  2  -       not retried    -        0s        0s     one two
`, rec.String())
}

type multiline struct{}

func (*multiline) Error() string { return "one\n\ttwo" }

func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	var rec resiliencetest.Recorder
	p := retrying(resilience.WithListener(rec.Listen))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_ = p.Run(t.Context(), succeed)
			_ = rec.String()
		})
	}
	wg.Wait()
	require.Len(t, rec.Events(resilience.EventSucceeded), 20)
}
