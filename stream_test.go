package resilience_test

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

// item is one thing that a source yields, after a while.
type item struct {
	after time.Duration
	value int
	err   error
}

// source is a streaming dependency. It opens one script after the other, the last one for ever, and heeds its context.
type source struct {
	scripts [][]item
	deaf    bool // does not heed it

	mu      sync.Mutex // guards what is beneath: the legs of a hedge open side by side
	opened  int
	stopped int // iterators that ended, whichever way
	ctxs    []context.Context
}

func streaming(scripts ...[]item) *source { return &source{scripts: scripts} }

func (s *source) open(ctx context.Context) iter.Seq2[int, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	script := s.scripts[min(s.opened, len(s.scripts)-1)]
	s.opened++
	s.ctxs = append(s.ctxs, ctx)
	return func(yield func(int, error) bool) {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stopped++
		}()
		for _, it := range script {
			ended := ctx.Done()
			if s.deaf {
				ended = nil
			}
			select {
			case <-time.After(it.after):
			case <-ended:
				yield(0, ctx.Err())
				return
			}
			if !yield(it.value, it.err) {
				return
			}
		}
	}
}

// released is that nothing of the source is left.
func (s *source) released(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, s.opened, s.stopped, "iterators that ended")
	for i, ctx := range s.ctxs {
		require.Error(t, ctx.Err(), "the context of stream %d", i+1)
	}
}

func values(vs ...int) []item {
	var items []item
	for _, v := range vs {
		items = append(items, item{value: v})
	}
	return items
}

const forever = 1000 * time.Hour

func silence() []item { return []item{{after: forever}} }

// drained are the elements of a stream, and all of its errors.
func drained(seq iter.Seq2[int, error]) (vs []int, errs []error) {
	for v, err := range seq {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		vs = append(vs, v)
	}
	return vs, errs
}

func TestStreamIsRetriedUntilItsFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		src := streaming([]item{{err: errDown}}, []item{{err: errDown}, {value: 9}}, values(1, 2, 3))
		got, errs := drained(resilience.Stream(t.Context(), retrying(h.option()), src.open))
		require.Equal(t, []int{1, 2, 3}, got)
		require.Empty(t, errs)
		require.Equal(t, 3, src.opened)
		src.released(t)
		require.Equal(t, []resilience.EventKind{resilience.EventSucceeded}, h.terminals())
		require.Len(t, h.of(resilience.EventAttempt), 3)
	})
}

func TestStreamThatNeverOpensEndsWithTheErrorOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming([]item{{err: errDown}})
		got, errs := drained(resilience.Stream(t.Context(), retrying(), src.open))
		require.Empty(t, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrAttemptsExhausted)
		require.ErrorIs(t, errs[0], errDown)
		require.Equal(t, 3, report(t, errs[0]).Total)
		require.Equal(t, 3, src.opened)
		src.released(t)
	})
}

func TestStreamPermanentFirstErrorComesBackUntouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming([]item{{err: errBug}, {value: 1}})
		got, errs := drained(resilience.Stream(t.Context(), resilience.MustNew(), src.open))
		require.Empty(t, got)
		require.Equal(t, []error{errBug}, errs)
		require.Equal(t, 1, src.opened)
		src.released(t)
	})
}

func TestStreamErrorRulesJudgeTheFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := resilience.MustNew(
			resilience.WithRules(resilience.OnErrorAs("service", func(e *svcError) resilience.Verdict {
				return resilience.Throttled.After(7 * time.Second)
			})),
			resilience.WithBackoff(resilience.NoBackoff()))
		took := stopwatch()
		src := streaming([]item{{err: &svcError{429}}}, values(1))
		got, errs := drained(resilience.Stream(t.Context(), p, src.open))
		require.Equal(t, []int{1}, got)
		require.Empty(t, errs)
		require.Equal(t, 7*time.Second, took())
	})
}

func TestStreamResultRulesJudgeTheFirstElementOnly(t *testing.T) {
	zeroFails := resilience.WithRules(resilience.OnResult("no zeros", func(v int) resilience.Verdict {
		if v == 0 {
			return resilience.Transient
		}
		return resilience.OK
	}))
	synctest.Test(t, func(t *testing.T) {
		src := streaming(values(0, 8, 9), values(1, 0, 2))
		got, errs := drained(resilience.Stream(t.Context(), retrying(zeroFails), src.open))
		require.Equal(t, []int{1, 0, 2}, got, "the superseded stream is gone, and a later zero is nobody's business")
		require.Empty(t, errs)
		require.Equal(t, 2, src.opened)
		src.released(t)
	})
	synctest.Test(t, func(t *testing.T) {
		// The last attempt's answer is an answer, and the consumer gets all of it.
		var h heard
		src := streaming(values(0, 8), values(0, 9))
		got, errs := drained(resilience.Stream(t.Context(), retrying(zeroFails, h.option(), resilience.WithAttempts(2)), src.open))
		require.Equal(t, []int{0, 9}, got)
		require.Empty(t, errs)
		require.Equal(t, []resilience.EventKind{resilience.EventExhausted}, h.terminals())
		src.released(t)
	})
}

func TestStreamWithoutElementsIsASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		breaker := breakerOf(t, resilience.BreakerConfig{})
		src := streaming(nil)
		got, errs := drained(resilience.Stream(t.Context(),
			retrying(h.option(), resilience.WithSharedBreaker(breaker)), src.open))
		require.Empty(t, got)
		require.Empty(t, errs)
		require.Equal(t, 1, src.opened)
		require.Equal(t, []resilience.EventKind{resilience.EventSucceeded}, h.terminals())
		require.Equal(t, 1, breaker.Stats().Calls)
		require.Zero(t, breaker.Stats().Failures)
		src.released(t)
	})
}

func TestStreamWithoutElementsIsNotShownToResultRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retrying(resilience.WithRules(resilience.OnResult("never", func(int) resilience.Verdict {
			t.Error("there is no element to judge")
			return resilience.Transient
		})))
		src := streaming(nil)
		got, errs := drained(resilience.Stream(t.Context(), p, src.open))
		require.Empty(t, got)
		require.Empty(t, errs)
		require.Equal(t, 1, src.opened)
	})
}

func TestStreamErrorsAfterTheFirstElementArePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		breaker := breakerOf(t, resilience.BreakerConfig{})
		src := streaming([]item{{value: 1}, {err: errDown}, {value: 2}, {err: errDown}})
		got, errs := drained(resilience.Stream(t.Context(),
			retrying(h.option(), resilience.WithSharedBreaker(breaker)), src.open))
		require.Equal(t, []int{1, 2}, got)
		require.Equal(t, []error{errDown, errDown}, errs, "as they are, and the stream goes on if it does")
		require.Equal(t, 1, src.opened)
		require.Equal(t, []resilience.EventKind{resilience.EventAttempt, resilience.EventSucceeded}, h.kinds())
		require.Zero(t, breaker.Stats().Failures)
		src.released(t)
	})
}

func TestStreamThatStallsEndsWithErrStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := resilience.MustNew(resilience.WithAttemptTimeout(2*time.Second), h.option())
		src := streaming([]item{{value: 1}, {after: time.Second, value: 2}, {after: forever, value: 3}})
		took := stopwatch()
		got, errs := drained(resilience.Stream(t.Context(), p, src.open))
		require.Equal(t, []int{1, 2}, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrStalled)
		require.ErrorIs(t, errs[0], context.Canceled, "what the iterator made of it")
		require.NotErrorIs(t, errs[0], resilience.ErrAttemptTimeout)
		require.Equal(t, 3*time.Second, took(), "one second for the second element, two for the third")
		require.Equal(t, 1, src.opened, "never repeated")
		require.ErrorIs(t, context.Cause(src.ctxs[0]), resilience.ErrStalled)
		require.Equal(t, []resilience.EventKind{
			resilience.EventAttempt, resilience.EventSucceeded, resilience.EventStalled,
		}, h.kinds())
		stalled := h.of(resilience.EventStalled)[0]
		require.Equal(t, 2*time.Second, stalled.Duration)
		require.ErrorIs(t, stalled.Err, resilience.ErrStalled)
		src.released(t)
	})
}

func TestStreamThatStallsAndThenEndsInSilenceIsNoCleanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := resilience.MustNew(resilience.WithAttemptTimeout(time.Second))
		got, errs := drained(resilience.Stream(t.Context(), p, func(ctx context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if yield(1, nil) {
					<-ctx.Done() // and not a word about it
				}
			}
		}))
		require.Equal(t, []int{1}, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrStalled)
	})
}

func TestStreamThatComesBackAfterAStallIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := resilience.MustNew(resilience.WithAttemptTimeout(time.Second))
		stopped := false
		got, errs := drained(resilience.Stream(t.Context(), p, func(context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				defer func() { stopped = true }()
				for i := 1; yield(i, nil); i++ {
					time.Sleep(3 * time.Second) // whatever the context says
				}
			}
		}))
		require.Equal(t, []int{1}, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrStalled)
		require.True(t, stopped)
	})
}

func TestStreamNeverBlamesASlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := resilience.MustNew(resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(5*time.Second), h.option())
		src := streaming([]item{{value: 1}, {after: 900 * time.Millisecond, value: 2}, {value: 3}, {value: 4}})
		var got []int
		for v, err := range resilience.Stream(t.Context(), p, src.open) {
			require.NoError(t, err)
			got = append(got, v)
			time.Sleep(time.Hour)
		}
		require.Equal(t, []int{1, 2, 3, 4}, got)
		require.Empty(t, h.of(resilience.EventStalled))
	})
}

func TestStreamNeverCutsASlowDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := resilience.MustNew(resilience.WithAttemptTimeout(time.Second), resilience.WithDeadline(5*time.Second))
		drip := make([]item, 200)
		for i := range drip {
			drip[i] = item{after: 999 * time.Millisecond, value: i}
		}
		took := stopwatch()
		got, errs := drained(resilience.Stream(t.Context(), p, streaming(drip).open))
		require.Len(t, got, 200)
		require.Empty(t, errs)
		require.Equal(t, 200*999*time.Millisecond, took(), "forty times the deadline")
	})
}

func TestStreamProgressBoundOff(t *testing.T) {
	for name, p := range map[string]resilience.Policy{
		"switched off":         resilience.MustNew(resilience.WithAttemptTimeout(time.Second), resilience.WithProgressBound(false)),
		"no attempt timeout":   resilience.MustNew(resilience.WithAttemptTimeout(resilience.Unbounded)),
		"the zero Policy":      {},
		"a single-shot policy": resilience.MustNew(resilience.WithAttempts(1), resilience.WithAttemptTimeout(time.Second), resilience.WithProgressBound(false)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := streaming([]item{{value: 1}, {after: 30 * time.Hour, value: 2}})
				got, errs := drained(resilience.Stream(t.Context(), p, src.open))
				require.Equal(t, []int{1, 2}, got)
				require.Empty(t, errs)
			})
		})
	}
}

func TestStreamProgressBoundOffStillBoundsTheFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming(silence(), values(1))
		took := stopwatch()
		got, errs := drained(resilience.Stream(t.Context(),
			retrying(resilience.WithAttemptTimeout(time.Second), resilience.WithProgressBound(false)), src.open))
		require.Equal(t, []int{1}, got)
		require.Empty(t, errs)
		require.Equal(t, time.Second, took())
		src.released(t)
	})
}

func TestStreamEarlyBreakReleasesEverything(t *testing.T) {
	for taken := 1; taken <= 4; taken++ {
		synctest.Test(t, func(t *testing.T) {
			var h heard
			limiter, err := resilience.NewLimiter(resilience.FixedLimit(1))
			require.NoError(t, err)
			p := retrying(resilience.WithSharedLimiter(limiter), h.option())
			src := streaming([]item{{value: 1}, {value: 2}, {err: errDown}, {value: 4}, {value: 5}})
			n := 0
			for range resilience.Stream(t.Context(), p, src.open) {
				require.NoError(t, src.ctxs[0].Err(), "the context lives as long as the stream")
				if n++; n == taken {
					break
				}
			}
			require.Equal(t, taken, n)
			src.released(t) // before the loop is left, not some time later
			require.Zero(t, limiter.Stats().InFlight)
			require.Len(t, h.terminals(), 1)
		})
	}
}

func TestStreamConsumerThatPanicsReleasesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming(values(1, 2, 3))
		require.PanicsWithValue(t, "consumer", func() {
			for range resilience.Stream(t.Context(), retrying(), src.open) {
				panic("consumer")
			}
		})
		src.released(t)
	})
}

func TestStreamCancelledBeforeItStartsOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errBug)
		src := streaming(values(1))
		got, errs := drained(resilience.Stream(ctx, retrying(), src.open))
		require.Empty(t, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorIs(t, errs[0], errBug)
		require.Zero(t, src.opened)
	})
}

func TestStreamCancelledWhileWaitingForTheFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		time.AfterFunc(time.Second, func() { cancel(errBug) })
		src := streaming(silence())
		took := stopwatch()
		got, errs := drained(resilience.Stream(ctx, retrying(h.option()), src.open))
		require.Empty(t, got)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorIs(t, errs[0], errBug)
		require.Equal(t, time.Second, took())
		require.Equal(t, 1, src.opened, "a cancelled call is not retried")
		require.Equal(t, []resilience.EventKind{resilience.EventCancelled}, h.terminals())
		src.released(t)
	})
}

func TestStreamCancelledInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// While a further element is awaited: the source hears of it at once, with the caller's cause.
		var h heard
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		time.AfterFunc(time.Second, func() { cancel(errBug) })
		src := streaming([]item{{value: 1}, {after: forever}})
		took := stopwatch()
		got, errs := drained(resilience.Stream(ctx, retrying(h.option()), src.open))
		require.Equal(t, []int{1}, got)
		require.Equal(t, []error{context.Canceled}, errs)
		require.Equal(t, time.Second, took())
		require.Equal(t, errBug, context.Cause(src.ctxs[0]))
		require.Equal(t, []resilience.EventKind{resilience.EventSucceeded}, h.terminals(), "the call had ended")
		require.Empty(t, h.of(resilience.EventStalled))
		src.released(t)
	})
	synctest.Test(t, func(t *testing.T) {
		// By the consumer itself.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		src := streaming([]item{{value: 1}, {after: time.Second, value: 2}})
		var last error
		for _, err := range resilience.Stream(ctx, retrying(), src.open) {
			last = err
			cancel()
		}
		require.ErrorIs(t, last, context.Canceled)
		src.released(t)
	})
}

func TestStreamAttemptTimeoutCutsAnOpeningThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming(silence(), values(1, 2))
		took := stopwatch()
		got, errs := drained(resilience.Stream(t.Context(), retrying(resilience.WithAttemptTimeout(time.Second)), src.open))
		require.Equal(t, []int{1, 2}, got)
		require.Empty(t, errs)
		require.Equal(t, time.Second, took())
		require.ErrorIs(t, context.Cause(src.ctxs[0]), resilience.ErrAttemptTimeout)
		src.released(t)
	})
	synctest.Test(t, func(t *testing.T) {
		// One that hangs and then returns without an element is no empty stream.
		opened := 0
		_, errs := drained(resilience.Stream(t.Context(), retrying(resilience.WithAttemptTimeout(time.Second)),
			func(ctx context.Context) iter.Seq2[int, error] {
				opened++
				return func(func(int, error) bool) { <-ctx.Done() }
			}))
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrAttemptTimeout)
		require.Equal(t, 3, opened)
	})
}

func TestStreamDeadlineIsExactUntilTheFirstElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming(silence())
		took := stopwatch()
		_, errs := drained(resilience.Stream(t.Context(),
			retrying(resilience.WithDeadline(2500*time.Millisecond), resilience.WithAttemptTimeout(time.Second)), src.open))
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrDeadlineExceeded)
		require.Equal(t, 2500*time.Millisecond, took())
		require.Equal(t, 3, src.opened)
		src.released(t)
	})
}

func TestStreamOpenerSeesItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var infos []resilience.AttemptInfo
		ctx := context.WithValue(t.Context(), key{}, "kept")
		_, _ = drained(resilience.Stream(ctx, retrying(resilience.WithName("feed")), func(ctx context.Context) iter.Seq2[int, error] {
			info, ok := resilience.AttemptFrom(ctx)
			require.True(t, ok)
			require.Equal(t, "kept", ctx.Value(key{}))
			infos = append(infos, info)
			return func(yield func(int, error) bool) { yield(0, errDown) }
		}))
		require.Len(t, infos, 3)
		require.Equal(t, "feed", infos[2].Policy)
		require.Equal(t, 3, infos[2].Number)
	})
}

// warmed runs quick streams until the hedge threshold, 10 ms, is known.
func warmed(t *testing.T, opts ...resilience.Option) resilience.Policy {
	t.Helper()
	p := retrying(append(opts, resilience.WithHedge(resilience.HedgeAt(0.95)))...)
	for range 20 {
		_, errs := drained(resilience.Stream(t.Context(), p, streaming([]item{{after: time.Millisecond, value: 1}}).open))
		require.Empty(t, errs)
	}
	require.Equal(t, resilience.Warm, p.Measured().HedgeThreshold.State)
	return p
}

func TestStreamHedgeClosesTheLosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		p := warmed(t, h.option())
		h.forget()
		// Its first leg would yield a little later than the second one.
		src := streaming([]item{{after: 30 * time.Millisecond, value: 1}, {value: 2}},
			[]item{{after: 10 * time.Millisecond, value: 11}, {after: time.Second, value: 12}})
		took := stopwatch()
		var got []int
		for v, err := range resilience.Stream(t.Context(), p, src.open) {
			require.NoError(t, err)
			if got = append(got, v); len(got) == 1 {
				require.Equal(t, 20*time.Millisecond, took())
				synctest.Wait()
				src.mu.Lock()
				require.Error(t, src.ctxs[0].Err(), "the loser's")
				require.NoError(t, src.ctxs[1].Err(), "the winner's goes on")
				require.Equal(t, 1, src.stopped)
				src.mu.Unlock()
			}
		}
		require.Equal(t, []int{11, 12}, got)
		require.Len(t, h.of(resilience.EventHedgeStarted), 1)
		require.Len(t, h.of(resilience.EventHedgeWon), 1)
		src.released(t)
	})
}

func TestStreamHedgeLoserThatYieldsTooLateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warmed(t)
		var opened, stopped atomic.Int32
		// The first leg does not heed its context: it comes with an element after the race is over.
		got, errs := drained(resilience.Stream(t.Context(), p, func(context.Context) iter.Seq2[int, error] {
			n := int(opened.Add(1))
			return func(yield func(int, error) bool) {
				defer stopped.Add(1)
				if n == 1 {
					time.Sleep(time.Minute)
				}
				_ = yield(n, nil) && yield(10*n, nil)
			}
		}))
		require.Equal(t, []int{2, 20}, got)
		require.Empty(t, errs)
		time.Sleep(time.Hour)
		require.EqualValues(t, 2, stopped.Load())
	})
}

func TestStreamHedgeLegWithABadAnswerIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warmed(t, resilience.WithRules(resilience.OnResult("no zeros", func(v int) resilience.Verdict {
			if v == 0 {
				return resilience.Transient
			}
			return resilience.OK
		})))
		src := streaming([]item{{after: 15 * time.Millisecond, value: 0}, {value: 1}},
			[]item{{after: 20 * time.Millisecond, value: 7}, {value: 8}})
		got, errs := drained(resilience.Stream(t.Context(), p, src.open))
		require.Equal(t, []int{7, 8}, got)
		require.Empty(t, errs)
		synctest.Wait()
		src.released(t)
	})
}

func TestStreamHedgedAndBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warmed(t)
		src := streaming(silence(), values(1, 2, 3))
		for range resilience.Stream(t.Context(), p, src.open) {
			break
		}
		synctest.Wait()
		src.released(t)
	})
}

func TestStreamHedgedPanicArrivesAtTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warmed(t)
		require.PanicsWithValue(t, "boom", func() {
			_, _ = drained(resilience.Stream(t.Context(), p, func(context.Context) iter.Seq2[int, error] {
				return func(func(int, error) bool) { panic("boom") }
			}))
		})
	})
}

func TestStreamIteratorThatPanics(t *testing.T) {
	for name, yields := range map[string]int{"before the first element": 0, "after the first element": 1, "later": 5} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h heard
				limiter, err := resilience.NewLimiter(resilience.FixedLimit(1))
				require.NoError(t, err)
				breaker := breakerOf(t, resilience.BreakerConfig{})
				p := retrying(h.option(), resilience.WithSharedLimiter(limiter), resilience.WithSharedBreaker(breaker))
				value, opened := &svcError{1}, 0
				var opening context.Context
				got := 0
				require.PanicsWithValue(t, value, func() {
					for range resilience.Stream(t.Context(), p, func(ctx context.Context) iter.Seq2[int, error] {
						opened, opening = opened+1, ctx
						return func(yield func(int, error) bool) {
							for range yields {
								yield(1, nil)
							}
							panic(value)
						}
					}) {
						got++
					}
				})
				require.Equal(t, yields, got)
				require.Equal(t, 1, opened, "a panic is never retried")
				require.Error(t, opening.Err())
				require.Zero(t, limiter.Stats().InFlight)
				require.Zero(t, breaker.Stats().Failures)
				require.Len(t, h.terminals(), 1)
				if yields == 0 {
					require.Equal(t, resilience.EventPanicked, h.terminals()[0])
				}
			})
		})
	}
}

func TestStreamIteratorThatCallsGoexit(t *testing.T) {
	for _, yields := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			limiter, err := resilience.NewLimiter(resilience.FixedLimit(1))
			require.NoError(t, err)
			p := retrying(resilience.WithSharedLimiter(limiter))
			var opening context.Context
			returned, done := false, make(chan struct{})
			go func() {
				defer close(done)
				for range resilience.Stream(t.Context(), p, func(ctx context.Context) iter.Seq2[int, error] {
					opening = ctx
					return func(yield func(int, error) bool) {
						for range yields {
							yield(1, nil)
						}
						runtime.Goexit()
					}
				}) {
				}
				returned = true
			}()
			<-done
			require.False(t, returned, "the consumer's goroutine ends as well")
			require.Error(t, opening.Err())
			require.Zero(t, limiter.Stats().InFlight)
		})
	}
}

func TestStreamFollowsAnInjectedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		p := retrying(resilience.WithClock(mock), resilience.WithAttemptTimeout(time.Minute), resilience.WithDeadline(time.Hour))
		blocked := func(ctx context.Context, yield func(int, error) bool) {
			<-ctx.Done()
			yield(0, ctx.Err())
		}
		opened := 0
		var got []int
		var errs []error
		go func() {
			got, errs = drained(resilience.Stream(t.Context(), p, func(ctx context.Context) iter.Seq2[int, error] {
				opened++
				first := opened == 1
				return func(yield func(int, error) bool) {
					if first || yield(7, nil) {
						blocked(ctx, yield)
					}
				}
			}))
		}()
		for _, step := range []struct {
			opened int
			errs   int
		}{{1, 0}, {2, 0}, {2, 1}} {
			synctest.Wait()
			require.Equal(t, step.opened, opened)
			require.Len(t, errs, step.errs)
			mock.Add(time.Minute - 1)
			synctest.Wait()
			require.Equal(t, step.opened, opened, "a nanosecond too early")
			require.Len(t, errs, step.errs)
			mock.Add(1)
			synctest.Wait()
		}
		require.Equal(t, []int{7}, got)
		require.ErrorIs(t, errs[0], resilience.ErrStalled)
	})
}

func TestStreamOfTheZeroPolicyIsTheSourceItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming([]item{{err: errDown}, {value: 1}, {after: time.Hour, value: 2}})
		got, errs := drained(resilience.Stream(t.Context(), resilience.Policy{}, src.open))
		require.Equal(t, []int{1, 2}, got)
		require.Equal(t, []error{errDown}, errs)
		require.Equal(t, t.Context(), src.ctxs[0])
		require.Equal(t, 1, src.stopped)
	})
}

func TestStreamNilArgumentsAreAnError(t *testing.T) {
	for name, p := range map[string]resilience.Policy{"zero": {}, "default": resilience.MustNew()} {
		t.Run(name, func(t *testing.T) {
			got, errs := drained(resilience.Stream[int](t.Context(), p, nil))
			require.Empty(t, got)
			require.Len(t, errs, 1)
			require.ErrorContains(t, errs[0], "the callback is nil")
			//lint:ignore SA1012 the point of the test
			got, errs = drained(resilience.Stream(nil, p, streaming(values(1)).open)) //nolint:staticcheck // the point of the test
			require.Empty(t, got)
			require.Len(t, errs, 1)
			require.ErrorContains(t, errs[0], "the context is nil")
		})
	}
}

func TestStreamRangedTwiceIsTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		src := streaming(values(1, 2), values(3))
		seq := resilience.Stream(t.Context(), retrying(h.option()), src.open)
		require.Zero(t, src.opened, "nothing happens before somebody ranges")
		first, _ := drained(seq)
		second, _ := drained(seq)
		require.Equal(t, []int{1, 2}, first)
		require.Equal(t, []int{3}, second)
		require.Len(t, h.terminals(), 2)
		src.released(t)
	})
}

func TestStreamGuardsRefuseAnOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := streaming(values(1))
		p := retrying(resilience.WithSharedBreaker(tripped(t, breakerOf(t, resilience.BreakerConfig{}))))
		_, errs := drained(resilience.Stream(t.Context(), p, src.open))
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], resilience.ErrBreakerOpen)
		require.Zero(t, src.opened)
	})
}

func TestStreamExactlyAtTheBoundIsWholeOrRetried(t *testing.T) {
	// An element that comes in the very moment in which the attempt's time is up: either the attempt was cut, or its stream
	// lives on. Never a stream whose context is over.
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			src := streaming([]item{{after: time.Second, value: 1}, {after: time.Second, value: 2}}, values(1, 2))
			got, errs := drained(resilience.Stream(t.Context(), retrying(resilience.WithAttemptTimeout(time.Second+1)), src.open))
			require.Equal(t, []int{1, 2}, got)
			require.Empty(t, errs)
		})
		synctest.Test(t, func(t *testing.T) {
			src := streaming([]item{{after: time.Second, value: 1}, {value: 2}}, values(1, 2))
			got, errs := drained(resilience.Stream(t.Context(), retrying(resilience.WithAttemptTimeout(time.Second)), src.open))
			require.Equal(t, []int{1, 2}, got)
			require.Empty(t, errs)
		})
	}
}

// BR-081: a stream is cancelled as soon as the layer that opened it returns, or its context is never released.
func TestBR081StreamIsCancelledAsSoonAsItsOpeningReturns(t *testing.T) {
	messages := []item{{after: time.Second, value: 1}, {after: time.Second, value: 2}, {after: time.Second, value: 3}}
	for name, c := range map[string]struct {
		script   []item
		deadline time.Duration // of the caller
		take     int           // messages, then the reader stops
		got      []int
		err      error
		took     time.Duration
	}{
		"read to the end":                   {messages, time.Hour, 4, []int{1, 2, 3}, nil, 3 * time.Second},
		"reader stops after one message":    {messages, time.Hour, 1, []int{1}, nil, time.Second},
		"server ends with an error":         {[]item{{value: 1}, {err: errDown}}, time.Hour, 4, []int{1}, errDown, 0},
		"the caller's deadline passes":      {append(messages[:3:3], item{after: forever}), 5 * time.Second, 9, []int{1, 2, 3}, context.DeadlineExceeded, 5 * time.Second},
		"the policy's deadline is no bound": {append(messages[:3:3], item{after: 9 * time.Second, value: 4}), time.Hour, 9, []int{1, 2, 3, 4}, nil, 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter, err := resilience.NewLimiter(resilience.FixedLimit(100))
				require.NoError(t, err)
				p := retrying(resilience.WithDeadline(5*time.Second), resilience.WithSharedLimiter(limiter))
				type answer struct {
					got  []int
					errs []error
					took time.Duration
				}
				answers := make(chan answer)
				sources := make([]*source, 100) // of a thousand the race detector of go 1.26 breaks down now and then
				for i := range sources {
					src := streaming(c.script)
					sources[i] = src
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
						defer cancel()
						took := stopwatch()
						var a answer
						for v, err := range resilience.Stream(ctx, p, src.open) {
							if err != nil {
								a.errs = append(a.errs, err)
								continue
							}
							if a.got = append(a.got, v); len(a.got) == c.take {
								break
							}
						}
						a.took = took()
						answers <- a
					}()
				}
				for range sources {
					a := <-answers
					require.Equal(t, c.got, a.got)
					require.Equal(t, c.took, a.took)
					require.ErrorIs(t, errors.Join(a.errs...), c.err)
					require.LessOrEqual(t, len(a.errs), 1)
				}
				for _, src := range sources {
					require.Equal(t, 1, src.opened, "never retried after the first message")
					src.released(t)
				}
				require.Zero(t, limiter.Stats().InFlight)
			})
		})
	}
}

// A source that heeds its context by returning looks like one that has delivered everything.
func TestStreamCutByTheCallerDoesNotLookComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var got []int
		var last error
		for v, err := range resilience.Stream(ctx, retrying(), func(ctx context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				if yield(1, nil) {
					<-ctx.Done()
				}
			}
		}) {
			if err != nil {
				last = err
				continue
			}
			got = append(got, v)
			cancel(gone)
		}
		require.Equal(t, []int{1}, got)
		require.ErrorIs(t, last, context.Canceled)
		require.ErrorIs(t, last, gone)
	})
}

func TestStreamElementsThatNobodyGetsAreReleased(t *testing.T) {
	refuse := resilience.WithRules(resilience.OnResult("none", func(n int) resilience.Verdict {
		if n == 0 {
			return resilience.Transient
		}
		return resilience.OK
	}))
	tests := map[string]struct {
		policy func(t *testing.T, opts ...resilience.Option) resilience.Policy
		source *source
		got    []int
	}{
		"of an attempt that is retried": {
			policy: func(_ *testing.T, opts ...resilience.Option) resilience.Policy {
				return retrying(append(opts, refuse)...)
			},
			source: streaming(values(0), values(1)),
			got:    []int{1},
		},
		"of a leg that lost": {
			policy: func(t *testing.T, opts ...resilience.Option) resilience.Policy {
				return hedged(t, resilience.Hedge{}, opts...)
			},
			source: streaming([]item{{after: 300 * time.Millisecond, value: 1}}, values(2)),
			got:    []int{2},
		},
		"after a stall": {
			policy: func(_ *testing.T, opts ...resilience.Option) resilience.Policy {
				return retrying(append(opts, resilience.WithAttemptTimeout(time.Second))...)
			},
			source: streaming([]item{{value: 1}, {after: 2 * time.Second, value: 2}}),
			got:    []int{1, 0}, // the second one is the error's
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				p := c.policy(t, resilience.OnDiscard(func(int) { n.Add(1) }))
				c.source.deaf = true
				var got []int
				for v := range resilience.Stream(t.Context(), p, c.source.open) {
					got = append(got, v)
				}
				require.Equal(t, c.got, got)
				time.Sleep(time.Minute)
				require.EqualValues(t, 1, n.Load())
				c.source.released(t)
			})
		})
	}
}

func TestStreamIsClosedAlsoIfReleasingItsElementExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := streaming(values(1))
		p := retrying(bad, resilience.OnDiscard(func(int) { runtime.Goexit() }))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range resilience.Stream(t.Context(), p, s.open) {
			}
		}()
		<-done
		s.released(t)
	})
}
