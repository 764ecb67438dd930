package resilience_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
)

func mustLimiter(t *testing.T, c resilience.LimiterConfig) *resilience.Limiter {
	t.Helper()
	l, err := resilience.NewLimiter(c)
	require.NoError(t, err)
	return l
}

func TestLimiterWithoutQueueRefusesAtOnce(t *testing.T) {
	l := mustLimiter(t, resilience.LimiterConfig{Name: "db", Fixed: 2})
	first, err := l.Acquire(t.Context())
	require.NoError(t, err)
	_, err = l.Acquire(t.Context())
	require.NoError(t, err)

	_, err = l.Acquire(t.Context())
	var limited *resilience.LimitedError
	require.ErrorAs(t, err, &limited)
	require.ErrorIs(t, err, resilience.ErrLimited)
	require.Equal(t, resilience.LimitedError{Limiter: "db"}, *limited)
	require.Equal(t, resilience.LimiterStats{Limit: 2, InFlight: 2}, l.Stats())

	first.Release(resilience.OK)
	_, err = l.Acquire(t.Context())
	require.NoError(t, err)
}

func TestLimiterGivesNoPermitToADeadContext(t *testing.T) {
	l := mustLimiter(t, resilience.FixedLimit(1))
	cause := errors.New("the user has left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := l.Acquire(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	require.Zero(t, l.Stats().InFlight)

	expired, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	_, err = l.Acquire(expired)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	_, err = l.Acquire(nil) //nolint:staticcheck // that is the point
	require.ErrorContains(t, err, "resilience: Limiter.Acquire: nil context")
}

// BR-043 (a), (b) and the double release.
func TestPermitIsReleasedMoreOrLessThanOnce(t *testing.T) {
	l := mustLimiter(t, resilience.FixedLimit(2))
	leave := func(how func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			p, err := l.Acquire(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Release(resilience.Transient)
			how()
		}()
		<-done
	}
	for range 10 {
		leave(func() { panic("boom") })
		leave(runtime.Goexit)
	}
	require.Zero(t, l.Stats().InFlight)

	first, err := l.Acquire(t.Context())
	require.NoError(t, err)
	second, err := l.Acquire(t.Context())
	require.NoError(t, err)
	_, err = l.Acquire(t.Context())
	require.ErrorIs(t, err, resilience.ErrLimited)

	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { first.Release(resilience.OK) })
	}
	all.Wait()
	require.Equal(t, 1, l.Stats().InFlight)
	second.Release(resilience.OK)
	require.Zero(t, l.Stats().InFlight)
}

func TestLimiterQueueIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLimiter(t, resilience.LimiterConfig{Fixed: 1, Queue: 3})
		holder, err := l.Acquire(t.Context())
		require.NoError(t, err)
		order := make(chan int, 3)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				p, err := l.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				time.Sleep(time.Second)
				p.Release(resilience.OK)
			})
			synctest.Wait()
		}
		_, err = l.Acquire(t.Context())
		require.ErrorIs(t, err, resilience.ErrLimited, "the queue is full")
		require.Equal(t, resilience.LimiterStats{Limit: 1, InFlight: 1, Waiting: 3}, l.Stats())

		holder.Release(resilience.OK)
		synctest.Wait()
		require.Equal(t, resilience.LimiterStats{Limit: 1, InFlight: 1, Waiting: 2}, l.Stats())
		for want := range 3 {
			require.Equal(t, want, <-order)
		}
		all.Wait()
	})
}

// BR-044, with waiters who are cancelled.
func TestPermitIsHandedToAWaiterWhoHasJustGivenUp(t *testing.T) {
	l := mustLimiter(t, resilience.LimiterConfig{Fixed: 1, Queue: 1})
	admitted := 0
	for round := range 10_000 {
		holder, err := l.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			p, err := l.Acquire(ctx)
			switch {
			case err == nil:
				admitted++
				p.Release(resilience.OK)
			case !errors.Is(err, context.Canceled):
				t.Errorf("neither permit nor cancelled: %v", err)
			}
		})
		for l.Stats().Waiting == 0 {
			runtime.Gosched()
		}
		start := make(chan struct{})
		racers := []func(){cancel, func() { holder.Release(resilience.OK) }}
		for i := range racers {
			all.Go(func() {
				<-start
				racers[(i+round)%2]()
			})
		}
		close(start)
		all.Wait()
		require.Equal(t, resilience.LimiterStats{Limit: 1}, l.Stats())
	}
	t.Logf("%d of 10,000 waiters were faster than their cancellation", admitted)
}

// BR-045 (a)
func TestWaiterSleepsAlthoughThereIsRoom(t *testing.T) {
	const callers, calls = 200, 1000
	l := mustLimiter(t, resilience.LimiterConfig{Fixed: 1, Queue: callers})
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				p, err := l.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				p.Release(resilience.OK)
			}
		})
	}
	all.Wait()
	require.Equal(t, resilience.LimiterStats{Limit: 1}, l.Stats())
}

// BR-043 (c), of the limiter alone.
func TestMoreCallsRunThanTheLimitAllows(t *testing.T) {
	const callers, calls, limit = 50, 200, 7
	l := mustLimiter(t, resilience.LimiterConfig{Fixed: limit, Queue: 20})
	var running, admitted, refused, cancelled atomic.Int64
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for call := range calls {
				ctx, cancel := context.WithCancel(t.Context())
				if (caller+call)%3 == 0 {
					go cancel()
				}
				p, err := l.Acquire(ctx)
				switch {
				case err == nil:
					admitted.Add(1)
					if n := running.Add(1); n > limit {
						t.Errorf("%d calls run at once", n)
					}
					runtime.Gosched()
					running.Add(-1)
					p.Release(resilience.OK)
				case errors.Is(err, resilience.ErrLimited):
					refused.Add(1)
				case errors.Is(err, context.Canceled):
					cancelled.Add(1)
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.EqualValues(t, callers*calls, admitted.Load()+refused.Load()+cancelled.Load())
	require.Equal(t, resilience.LimiterStats{Limit: limit}, l.Stats())
	t.Logf("%d admitted, %d refused, %d cancelled", admitted.Load(), refused.Load(), cancelled.Load())
}

// BR-045 (b)
func TestRaisedLimitWakesTheWaitersBehindOneWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLimiter(t, resilience.LimiterConfig{Fixed: 1, Queue: 10})
		_, err := l.Acquire(t.Context())
		require.NoError(t, err)
		front, giveUp := context.WithCancel(t.Context())
		rest, end := context.WithCancel(t.Context())
		defer end()
		running := make(chan error, 5)
		for i := range 5 {
			ctx := rest
			if i == 0 {
				ctx = front
			}
			go func() {
				_, err := l.Acquire(ctx)
				running <- err
			}()
			synctest.Wait()
		}
		giveUp()
		require.NoError(t, l.SetLimit(3))
		synctest.Wait()
		require.Len(t, running, 3)
		require.Equal(t, resilience.LimiterStats{Limit: 3, InFlight: 3, Waiting: 2}, l.Stats())
	})
}

func TestSetLimitLeavesPermitsValid(t *testing.T) {
	l := mustLimiter(t, resilience.FixedLimit(3))
	var permits []resilience.Permit
	for range 3 {
		p, err := l.Acquire(t.Context())
		require.NoError(t, err)
		permits = append(permits, p)
	}
	require.NoError(t, l.SetLimit(1))
	require.Equal(t, resilience.LimiterStats{Limit: 1, InFlight: 3}, l.Stats())
	for i := range permits {
		_, err := l.Acquire(t.Context())
		require.ErrorIs(t, err, resilience.ErrLimited)
		permits[i].Release(resilience.OK)
	}
	_, err := l.Acquire(t.Context())
	require.NoError(t, err)
}

func TestSetLimitIsForFixedLimitersAboveZero(t *testing.T) {
	require.ErrorContains(t, mustLimiter(t, resilience.FixedLimit(3)).SetLimit(0), "n is 0, want at least 1")
	l := mustLimiter(t, resilience.LimiterConfig{Name: "db"})
	require.ErrorContains(t, l.SetLimit(5), `limiter "db" is adaptive`)
	require.Equal(t, 20, l.Stats().Limit)
}

// slowingServer answers in 50 ms while at most 20 calls are there, and shares its time among more.
type slowingServer struct {
	mu       sync.Mutex
	inFlight int
}

func (d *slowingServer) call() {
	d.mu.Lock()
	d.inFlight++
	latency := time.Duration(float64(50*time.Millisecond) * max(1, float64(d.inFlight)/20))
	d.mu.Unlock()
	time.Sleep(latency)
	d.mu.Lock()
	d.inFlight--
	d.mu.Unlock()
}

func TestAdaptiveLimiterFindsTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustLimiter(t, resilience.LimiterConfig{Queue: 100})
		var d slowingServer
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() {
				for {
					p, err := l.Acquire(ctx)
					if err != nil {
						return
					}
					d.call()
					p.Release(resilience.OK)
				}
			})
		}
		time.Sleep(time.Minute)
		for range 59 {
			time.Sleep(time.Second)
			s := l.Stats()
			require.GreaterOrEqual(t, s.Limit, 16)
			require.LessOrEqual(t, s.Limit, 28)
			require.InDelta(t, 50*time.Millisecond, s.Baseline, float64(5*time.Millisecond))
		}
		all.Wait()
		require.Zero(t, l.Stats().InFlight)
		require.Zero(t, l.Stats().Waiting)
	})
}
