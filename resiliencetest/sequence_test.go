package resiliencetest_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
	"github.com/stretchr/testify/require"
)

func TestSequenceFollowsItsScriptAndRepeatsTheLastStep(t *testing.T) {
	var s resiliencetest.Sequence[int]
	s.Fail(errDown).Return(1, 2)
	for _, want := range []int{0, 1, 2, 2, 2} {
		v, err := s.Call(t.Context())
		require.Equal(t, want, v)
		require.Equal(t, want == 0, err == errDown)
	}
	s.Return(3)
	v, err := s.Call(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, v, "a step that is added later comes next")
	require.Equal(t, 6, s.Calls())
}

func TestZeroSequenceSucceedsAndCounts(t *testing.T) {
	var s resiliencetest.Sequence[string]
	require.NoError(t, retrying().Run(t.Context(), s.Run))
	require.Equal(t, 1, s.Calls())
}

func TestSequencePanicsAndHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s resiliencetest.Sequence[int]
		s.Hang().Panic("boom")
		p := retrying(resilience.WithAttemptTimeout(time.Second))
		begin := time.Now()
		require.PanicsWithValue(t, "boom", func() { _ = p.Run(t.Context(), s.Run) })
		require.Equal(t, time.Second, time.Since(begin))
	})
}

func TestSequenceRunsStepsOfYourOwnGoexitIncluded(t *testing.T) {
	var s resiliencetest.Sequence[int]
	s.Do(func(context.Context) (int, error) { runtime.Goexit(); return 0, nil }).Return(7)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Call(t.Context()) })
	wg.Wait()
	v, err := s.Call(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7, v)
}

func TestSequenceDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s resiliencetest.Sequence[int]
		s.Return(1).After(time.Second)
		begin := time.Now()
		v, err := s.Call(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, v)
		require.Equal(t, time.Second, time.Since(begin))

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = s.Call(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestSequenceDelaysOnItsClock(t *testing.T) {
	mock := clock.NewMock()
	s := resiliencetest.Sequence[int]{Clock: mock}
	s.Return(1).After(time.Hour)
	done := make(chan int)
	go func() {
		v, _ := s.Call(context.Background())
		done <- v
	}()
	for {
		mock.Add(time.Hour)
		select {
		case v := <-done:
			require.Equal(t, 1, v)
			return
		default:
			runtime.Gosched()
		}
	}
}

func TestSequenceRecordsAttempts(t *testing.T) {
	var s resiliencetest.Sequence[int]
	s.Fail(errDown).Return(1)
	_, err := resilience.Do(t.Context(), retrying(resilience.WithName("db")), s.Call)
	require.NoError(t, err)
	_, _ = s.Call(t.Context())
	infos := s.Attempts()
	require.Len(t, infos, 3)
	require.Equal(t, 1, infos[0].Number)
	require.Equal(t, 2, infos[1].Number)
	require.Equal(t, "db", infos[1].Policy)
	require.Zero(t, infos[2], "a call outside of a policy")
}

func TestExactlyFailsTheTestBeyondTheScriptAndForStepsLeftOver(t *testing.T) {
	short := &spy{}
	var s resiliencetest.Sequence[int]
	made := nextLine()
	s.Fail(errDown).Exactly(short)
	err := retrying().Run(t.Context(), s.Run)
	text := "resiliencetest: the script of " + made + " has 1 step, this is call 2"
	require.ErrorContains(t, err, text)
	require.Equal(t, 2, s.Calls(), "the call beyond the script is not retried")
	require.Equal(t, []string{text}, short.failures)
	short.end()
	require.Len(t, short.failures, 1)

	long := &spy{}
	var unused resiliencetest.Sequence[int]
	made = nextLine()
	unused.Return(1, 2, 3).Exactly(long)
	_, _ = unused.Call(t.Context())
	require.Empty(t, long.failures)
	long.end()
	require.Equal(t, []string{"resiliencetest: the script of " + made + " has 3 steps, 2 left at the end of the test"}, long.failures)

	none := &spy{}
	var never resiliencetest.Sequence[int]
	made = nextLine()
	never.Exactly(none)
	require.Error(t, never.Run(t.Context()))
	require.Equal(t, []string{"resiliencetest: the script of " + made + " has 0 steps, this is call 1"}, none.failures)

	var fits resiliencetest.Sequence[int]
	fits.Return(1).Exactly(t)
	_, _ = fits.Call(t.Context())
}

// The loser of a hedged call may come when the test is over, where testing.T panics.
func TestACallAfterTheTestHasEndedOnlyGetsAnError(t *testing.T) {
	var over, left resiliencetest.Sequence[int]
	t.Run("ends", func(t *testing.T) {
		over.Return(1).Exactly(t)
		_, _ = over.Call(t.Context())
	})
	require.ErrorContains(t, over.Run(t.Context()), "call 2 comes after the end of its test")

	unused := &spy{}
	left.Return(1, 2).Exactly(unused)
	unused.end()
	err := retrying().Run(t.Context(), left.Run)
	require.ErrorContains(t, err, "call 1 comes after the end of its test")
	require.Equal(t, 1, left.Calls(), "it is not retried")
	require.Len(t, unused.failures, 1, "only the two steps left over")
}

func TestSequenceIsSafeForConcurrentUse(t *testing.T) {
	var s resiliencetest.Sequence[int]
	for i := range 50 {
		s.Return(i)
	}
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			v, _ := s.Call(t.Context())
			_, _ = s.Calls(), s.Attempts()
			mu.Lock()
			defer mu.Unlock()
			seen[v]++
		})
	}
	wg.Wait()
	require.Len(t, seen, 50, "each step is taken once")
}

func TestSequenceRefusesMisuse(t *testing.T) {
	s := new(resiliencetest.Sequence[int])
	refuses(t, "Sequence.After comes after the step", func() { s.After(1) })
	refuses(t, "Sequence.Return without a value", func() { s.Return() })
	refuses(t, "Sequence.Fail without an error", func() { var none []error; s.Fail(none...) })
	refuses(t, "error 2 of Sequence.Fail is nil", func() { new(resiliencetest.Sequence[int]).Fail(errDown, nil) })
	refuses(t, "Sequence.Do is nil", func() { s.Do(nil) })
	refuses(t, "want 0 or more", func() { s.Return(1).After(-1) })
	refuses(t, "Sequence.Hang under a context that cannot end", func() { _, _ = new(resiliencetest.Sequence[int]).Hang().Call(context.Background()) })
	made := nextLine()
	s.Exactly(&spy{})
	refuses(t, "the script of "+made+" is exact already", func() { s.Exactly(&spy{}) })
}
