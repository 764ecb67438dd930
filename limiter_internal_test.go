package resilience

import (
	"container/list"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
)

// limiterOf is a limiter on the standard clock.
func limiterOf(t testing.TB, c LimiterConfig) *Limiter {
	t.Helper()
	l, err := NewLimiter(c)
	require.NoError(t, err)
	return l
}

func TestLimiterDefaultsYieldToWhatIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		written           LimiterConfig
		initial, min, max int
	}{
		"nothing":       {LimiterConfig{}, 20, 1, 200},
		"max":           {AdaptiveLimit(50), 20, 1, 50},
		"small max":     {AdaptiveLimit(5), 5, 1, 5},
		"min":           {LimiterConfig{Min: 30}, 30, 30, 200},
		"large min":     {LimiterConfig{Min: 300}, 300, 300, 300},
		"large initial": {LimiterConfig{Initial: 500}, 500, 1, 500},
		"all":           {LimiterConfig{Initial: 3, Min: 2, Max: 4}, 3, 2, 4},
		"max only zero": {AdaptiveLimit(0), 20, 1, 200},
	} {
		t.Run(name, func(t *testing.T) {
			check := newChecker("NewLimiter")
			got := c.written.resolve(check)
			require.NoError(t, check.err())
			require.Equal(t, []int{c.initial, c.min, c.max}, []int{got.Initial, got.Min, got.Max})
			require.Equal(t, c.initial, limiterOf(t, c.written).Stats().Limit)
		})
	}
}

func TestLimiterRefusesAllThatIsWrongAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		config LimiterConfig
		want   []string
	}{
		"negative": {LimiterConfig{Initial: -1, Min: -2, Max: -3, Queue: -4}, []string{
			"LimiterConfig.Initial is -1, want Min to Max", "LimiterConfig.Min is -2, want 1 to Max",
			"LimiterConfig.Max is -3, want at least 1", "LimiterConfig.Queue is -4, want at least 0",
		}},
		"fixed":         {LimiterConfig{Fixed: -1}, []string{"LimiterConfig.Fixed is -1, want at least 1"}},
		"fixed zero":    {FixedLimit(0), []string{"LimiterConfig.Fixed is 0, want at least 1"}},
		"min above max": {LimiterConfig{Min: 5, Max: 4}, []string{"LimiterConfig.Min is 5, want at most LimiterConfig.Max, which is 4"}},
		"initial > max": {LimiterConfig{Initial: 5, Max: 4}, []string{"LimiterConfig.Initial is 5, want at most LimiterConfig.Max, which is 4"}},
		"initial < min": {LimiterConfig{Initial: 5, Min: 6}, []string{"LimiterConfig.Initial is 5, want at least LimiterConfig.Min, which is 6"}},
		"multiple":      {LimiterConfig{Multiple: 1}, []string{"LimiterConfig.Multiple is 1, want"}},
		"multiple NaN":  {LimiterConfig{Multiple: math.NaN()}, []string{"LimiterConfig.Multiple is NaN, want"}},
		"multiple Inf":  {LimiterConfig{Multiple: math.Inf(1)}, []string{"LimiterConfig.Multiple is +Inf, want"}},
		"decrease 1":    {LimiterConfig{Decrease: 1}, []string{"LimiterConfig.Decrease is 1, want more than 0 and less than 1"}},
		"decrease < 0":  {LimiterConfig{Decrease: -0.1}, []string{"LimiterConfig.Decrease is -0.1, want"}},
		"decrease NaN":  {LimiterConfig{Decrease: math.NaN()}, []string{"LimiterConfig.Decrease is NaN, want"}},
		"nil clock":     {LimiterConfig{Clock: (*clock.Mock)(nil)}, []string{"LimiterConfig.Clock is"}},
		"fixed and more": {LimiterConfig{Fixed: 7, Initial: 1, Min: 2, Max: 3, Multiple: 4, Decrease: 0.5}, []string{
			"LimiterConfig.Initial is 1, want nothing beside LimiterConfig.Fixed, which is 7",
			"LimiterConfig.Min is 2", "LimiterConfig.Max is 3", "LimiterConfig.Multiple is 4", "LimiterConfig.Decrease is 0.5",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := NewLimiter(c.config)
			require.Nil(t, l)
			for _, want := range c.want {
				require.ErrorContains(t, err, "resilience: NewLimiter: "+want)
			}
		})
	}
}

// fill drives an adaptive limiter at its limit until its law has moved it, and returns the last reading.
func fill(t *testing.T, l *Limiter, latency, now time.Duration, o outcome, rounds int) time.Duration {
	t.Helper()
	for range rounds * 200 {
		var permits []Permit
		for {
			p, ok := l.tryAcquire(now)
			if !ok {
				break
			}
			permits = append(permits, p)
		}
		require.NotEmpty(t, permits)
		now += latency
		for i := range permits {
			permits[i].release(o, now)
		}
	}
	return now
}

func TestReleaseTellsThatTheLimitHasMoved(t *testing.T) {
	l := newLimiter(&LimiterConfig{Initial: 20, Min: 1, Max: 200}, standardTime)
	now, moves := time.Duration(0), 0
	for range 2000 {
		p, ok := l.tryAcquire(now)
		require.True(t, ok)
		before := l.Stats().Limit
		now += time.Second
		limit, changed := p.release(outcomeTimeout, now)
		require.Equal(t, l.Stats().Limit, limit)
		if changed {
			moves++
			require.NotEqual(t, before, limit)
		}
		again, changed := p.release(outcomeTimeout, now)
		require.False(t, changed)
		require.Equal(t, limit, again)
	}
	require.Greater(t, moves, 5)
	require.Equal(t, 1, l.Stats().Limit)
}

func TestDitherAloneIsNoChangeOfTheLimit(t *testing.T) {
	l := newLimiter(&LimiterConfig{Initial: 20, Min: 1, Max: 200}, standardTime)
	now := time.Duration(0)
	one := func(o outcome) bool {
		p, ok := l.tryAcquire(now)
		require.True(t, ok)
		now += 50 * time.Millisecond
		_, changed := p.release(o, now)
		return changed
	}
	for law := l.lawLocked(); law.Limit() == math.Trunc(law.Limit()); {
		one(outcomeTimeout)
	}
	limits := map[int]bool{}
	for range 10_000 {
		require.False(t, one(outcomeSuccess), "one call at a time moves nothing")
		limits[l.Stats().Limit] = true
	}
	require.Len(t, limits, 2)
}

// BR-042, BR-047: the permit comes back and the law has not seen anything.
func TestCancelledAndRefusedCallsMoveTheLimit(t *testing.T) {
	l := newLimiter(&LimiterConfig{Initial: 20, Min: 1, Max: 20}, standardTime)
	now := fill(t, l, 100*time.Millisecond, 0, outcomeSuccess, 10)
	before := *l.law
	now = fill(t, l, time.Millisecond, now, outcomeIgnored, 3)
	require.Equal(t, before, *l.law)
	require.Zero(t, l.Stats().InFlight)

	settled := l.Stats().Limit
	fill(t, l, 500*time.Millisecond, now, outcomeTimeout, 1)
	require.Less(t, l.Stats().Limit, settled, "the policy's own timeouts do count")
}

func TestZeroPermitHoldsNothing(t *testing.T) {
	var p Permit
	p.Release(OK)
	_, changed := p.release(outcomeSuccess, 0)
	require.False(t, changed)
}

func TestLimiterExplainsItself(t *testing.T) {
	fixed := newLimiter(&LimiterConfig{Fixed: 10, Queue: 5}, standardTime)
	_, ok := fixed.tryAcquire(0)
	require.True(t, ok)
	require.Equal(t, "fixed 10, 1 in flight, 0 of 5 waiting", fixed.explain())

	l := newLimiter(&LimiterConfig{Initial: 20, Min: 1, Max: 20}, standardTime)
	require.Equal(t, "limit 20 (1-20), 0 in flight, 0 of 0 waiting; baseline cold", l.explain())
	fill(t, l, 51*time.Millisecond, 0, outcomeSuccess, 1)
	require.Equal(t, "limit 20 (1-20), 0 in flight, 0 of 0 waiting; baseline 51ms", l.explain())
}

func TestFullCountsWhatIsInFlight(t *testing.T) {
	l := limiterOf(t, FixedLimit(1))
	require.False(t, l.full())
	p, ok := l.tryAcquire(0)
	require.True(t, ok)
	require.True(t, l.full())
	p.release(outcomeIgnored, 0)
	require.False(t, l.full())
}

func TestWaitEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, LimiterConfig{Name: "db", Fixed: 1, Queue: 1})
		_, ok := l.tryAcquire(0)
		require.True(t, ok)
		start := time.Now()
		_, err := l.wait(t.Context(), time.Second, 0)
		var limited *LimitedError
		require.ErrorAs(t, err, &limited)
		require.Equal(t, LimitedError{Limiter: "db"}, *limited)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, LimiterStats{Limit: 1, InFlight: 1}, l.Stats())

		_, err = l.wait(t.Context(), 0, 0)
		require.ErrorIs(t, err, ErrLimited)
		require.Equal(t, time.Second, time.Since(start), "no time to wait: refused at once")
	})
}

func TestWaitFollowsTheInjectedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		l := newLimiter(&LimiterConfig{Fixed: 1, Queue: 1}, newTimeline(mock))
		_, ok := l.tryAcquire(0)
		require.True(t, ok)
		done := make(chan error, 1)
		go func() {
			_, err := l.wait(t.Context(), time.Hour, 0)
			done <- err
		}()
		synctest.Wait()
		mock.Add(time.Hour - 1)
		synctest.Wait()
		require.Empty(t, done)
		mock.Add(1)
		require.ErrorIs(t, <-done, ErrLimited)
	})
}

// clockWithoutTimers is for those who must not wait.
type clockWithoutTimers struct{ *clock.Mock }

func (clockWithoutTimers) After(time.Duration) <-chan time.Time { panic("a timer for nothing") }

func TestNoTimeToWaitStartsNoTimer(t *testing.T) {
	l := newLimiter(&LimiterConfig{Fixed: 1, Queue: 1}, newTimeline(clockWithoutTimers{clock.NewMock()}))
	p, err := l.wait(t.Context(), time.Hour, 0)
	require.NoError(t, err, "a free permit needs no timer either")
	_, err = l.wait(t.Context(), 0, 0)
	require.ErrorIs(t, err, ErrLimited)
	p.release(outcomeIgnored, 0)
	require.Equal(t, LimiterStats{Limit: 1}, l.Stats())
}

// The time in the queue is not the dependency's.
func TestLatencyCountsFromTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(&LimiterConfig{Initial: 1, Min: 1, Max: 1, Queue: 1}, standardTime)
		first, err := l.Acquire(t.Context())
		require.NoError(t, err)
		granted := make(chan Permit)
		go func() {
			p, err := l.wait(t.Context(), never, l.time.now())
			require.NoError(t, err)
			granted <- p
		}()
		time.Sleep(time.Minute)
		first.Release(OK)
		p := <-granted
		require.Equal(t, l.time.now(), p.admitted)
		require.Equal(t, 1, p.inFlight)
		p.Release(OK)
	})
}

// BR-044, the wait limit of all waiters and the release in the same instant.
func TestPermitLostToAWaiterWhoseTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, LimiterConfig{Fixed: 1, Queue: 8})
		for range 1000 {
			holder, ok := l.tryAcquire(0)
			require.True(t, ok)
			time.AfterFunc(time.Second, func() { holder.release(outcomeIgnored, 0) })
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					p, err := l.wait(t.Context(), time.Second, 0)
					if err == nil {
						p.release(outcomeIgnored, 0)
						return
					}
					if !errors.Is(err, ErrLimited) {
						t.Errorf("neither permit nor refusal: %v", err)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			require.Equal(t, LimiterStats{Limit: 1}, l.Stats())
		}
	})
}

// BR-093c
func TestWaitersWhoGiveUpLeaveTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		l := limiterOf(t, LimiterConfig{Fixed: 1, Queue: n})
		_, ok := l.tryAcquire(0)
		require.True(t, ok)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if _, err := l.wait(ctx, time.Hour, 0); !errors.Is(err, context.Canceled) {
					t.Errorf("not cancelled: %v", err)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, n, l.Stats().Waiting)
		start := time.Now()
		cancel()
		all.Wait()
		require.Zero(t, time.Since(start))
		require.Equal(t, LimiterStats{Limit: 1, InFlight: 1}, l.Stats())
	})
}

// lateContext is done by the time that anybody waits for it, but was not when it was first asked.
type lateContext struct {
	context.Context
	asked int
}

func (c *lateContext) Err() error {
	c.asked++
	if c.asked == 1 {
		return nil
	}
	return c.Context.Err()
}

// BR-045 (d)
func TestCancelledBetweenCheckAndWait(t *testing.T) {
	l := limiterOf(t, LimiterConfig{Fixed: 1, Queue: 1})
	_, ok := l.tryAcquire(0)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Acquire(&lateContext{Context: ctx})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, LimiterStats{Limit: 1, InFlight: 1}, l.Stats())
}

// queueModel is the queue of a fixed limiter, slow and obvious.
type queueModel struct {
	limit, queue int
	held         int // permits that are out, those in the hands of a waiter who has not come for them included
	waiting      []*list.Element
	granted      []*list.Element
}

func (m *queueModel) settle() {
	for m.held < m.limit && len(m.waiting) > 0 {
		m.held++
		m.granted = append(m.granted, m.waiting[0])
		m.waiting = m.waiting[1:]
	}
}

// take removes one element and returns it.
func take(from *[]*list.Element, i int) *list.Element {
	e := (*from)[i]
	*from = append(append([]*list.Element{}, (*from)[:i]...), (*from)[i+1:]...)
	return e
}

func FuzzLimiterQueue(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		ops := make([]byte, 200)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) < 2 {
			return
		}
		m := queueModel{limit: int(ops[0]%5) + 1, queue: int(ops[1] % 5)}
		l := newLimiter(&LimiterConfig{Fixed: m.limit, Queue: m.queue}, standardTime)
		var permits []Permit
		for _, op := range ops[2:] {
			permits = stepQueue(t, l, &m, permits, int(op%6), int(op/6))
			require.Equal(t, LimiterStats{Limit: m.limit, InFlight: m.held, Waiting: len(m.waiting)}, l.Stats())
			require.Equal(t, m.held >= m.limit, l.full())
			for _, e := range m.granted {
				require.NotZero(t, e.Value.(*waiter).inFlight)
			}
		}
	})
}

// stepQueue does the same to the limiter and to the model; pick chooses among what is there.
func stepQueue(t *testing.T, l *Limiter, m *queueModel, permits []Permit, op, pick int) []Permit {
	switch {
	case op == 0:
		p, ok := l.tryAcquire(0)
		require.Equal(t, m.held < m.limit, ok)
		if ok {
			m.held++
			permits = append(permits, p)
		}
	case op == 1:
		p, queued := l.enqueue(never, 0)
		switch {
		case m.held < m.limit:
			m.held++
			permits = append(permits, p)
		case len(m.waiting) < m.queue:
			m.waiting = append(m.waiting, queued)
		default:
			require.Nil(t, queued)
		}
	case op == 2 && len(permits) > 0:
		i := pick % len(permits)
		permits[i].release(outcomeIgnored, 0)
		permits[i].release(outcomeIgnored, 0)
		permits = append(permits[:i:i], permits[i+1:]...)
		m.held--
	case op == 3 && len(m.waiting) > 0:
		_, ok := l.leave(take(&m.waiting, pick%len(m.waiting)), pick%2 == 0, 0)
		require.False(t, ok)
	case op == 4 && len(m.granted) > 0:
		ended := pick%2 == 0
		p, ok := l.leave(take(&m.granted, pick%len(m.granted)), ended, 0)
		require.Equal(t, !ended, ok)
		if ok {
			return append(permits, p)
		}
		m.held--
	case op == 5:
		m.limit = pick%5 + 1
		require.NoError(t, l.SetLimit(m.limit))
	}
	m.settle()
	return permits
}

func TestLimiterDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	ctx := t.Context()
	for name, c := range map[string]LimiterConfig{"fixed": FixedLimit(10), "adaptive": AdaptiveLimit(10)} {
		l := limiterOf(t, c)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			p, _ := l.tryAcquire(0)
			p.release(outcomeSuccess, 1)
		}), name)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			p, _ := l.Acquire(ctx)
			p.Release(OK)
		}), name)
	}
}

func benchmarkSteps(b *testing.B, c LimiterConfig) {
	l := limiterOf(b, c)
	b.ReportAllocs()
	now := time.Duration(0)
	for b.Loop() {
		now += time.Microsecond
		p, _ := l.tryAcquire(now)
		p.release(outcomeSuccess, now+time.Millisecond)
	}
}

func benchmarkPublic(b *testing.B, c LimiterConfig) {
	l := limiterOf(b, c)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		p, _ := l.Acquire(ctx)
		p.Release(OK)
	}
}

func benchmarkParallel(b *testing.B, c LimiterConfig) {
	l := limiterOf(b, c)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := time.Duration(0)
		for pb.Next() {
			now += time.Microsecond
			p, _ := l.tryAcquire(now)
			p.release(outcomeSuccess, now+time.Millisecond)
		}
	})
}

// With readings: as the executor calls it. Public: with two looks at the clock where the limiter is adaptive.
func BenchmarkLimiterFixed(b *testing.B) {
	b.Run("readings", func(b *testing.B) { benchmarkSteps(b, FixedLimit(100)) })
	b.Run("public", func(b *testing.B) { benchmarkPublic(b, FixedLimit(100)) })
	b.Run("parallel", func(b *testing.B) { benchmarkParallel(b, FixedLimit(100)) })
}

func BenchmarkLimiterAdaptive(b *testing.B) {
	b.Run("readings", func(b *testing.B) { benchmarkSteps(b, AdaptiveLimit(100)) })
	b.Run("public", func(b *testing.B) { benchmarkPublic(b, AdaptiveLimit(100)) })
	b.Run("parallel", func(b *testing.B) { benchmarkParallel(b, AdaptiveLimit(100)) })
}

func (l *Limiter) full() bool { return l.inFlight.Load() >= l.limit.Load() }
