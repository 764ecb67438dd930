package poolprobe

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// queue stands for the run queue inside a bubble: a prober that yields to it
// waits for delay.
type queue struct {
	delay  atomic.Int64
	probes atomic.Int64
}

func (q *queue) set(delay time.Duration) { q.delay.Store(int64(delay)) }

func (q *queue) yield() {
	q.probes.Add(1)
	time.Sleep(time.Duration(q.delay.Load()))
}

func newBubbleProber() (*prober, *queue) {
	p, q := newProber(sinceStart()), new(queue)
	p.yield = q.yield
	return p, q
}

// run lets p probe n times, with the given delay, and returns once the last
// probe has returned. The next probe, if any, will not wait.
func (q *queue) run(p *prober, n int, delay time.Duration) {
	q.set(delay)
	for range n {
		time.Sleep(interval)
		p.delay()
		time.Sleep(delay)
		synctest.Wait()
	}
	q.set(0)
}

func TestNobodyAsksNothingStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		time.Sleep(time.Hour)
		require.Zero(t, q.probes.Load())

		p.delay()
		synctest.Wait()
		require.EqualValues(t, 1, q.probes.Load())
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, q.probes.Load(), "and none of itself after the first")
	})
}

func TestTheFirstReadingIsEmptyTheNextHasTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		q.set(30 * time.Millisecond)
		require.Zero(t, p.delay())
		time.Sleep(30 * time.Millisecond)
		synctest.Wait()
		r := p.delay()
		require.Equal(t, 30*time.Millisecond, r.Delay)
		require.Equal(t, 1, r.Samples)
		require.InEpsilon(t, float64(30*time.Millisecond), float64(r.Normal), 0.05)
	})
}

func TestAtMostFourProbesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		for range 10_000 {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { p.delay() })
			}
			wg.Wait()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.EqualValues(t, 40, q.probes.Load())
	})
}

func TestOfTwoReadersThatFindAProbeDueOneStartsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		p.start(new(probe), nil)
		p.start(new(probe), nil)
		synctest.Wait()
		require.EqualValues(t, 1, q.probes.Load())
	})
}

func TestAProbeThatWaitsIsTheOnlyOneAndItsAgeIsTheReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		q.run(p, 1, 40*time.Millisecond)
		q.set(3 * time.Second)
		time.Sleep(interval)
		require.Equal(t, 40*time.Millisecond, p.delay().Delay)

		time.Sleep(39 * time.Millisecond)
		require.Equal(t, 40*time.Millisecond, p.delay().Delay, "not overdue yet")
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 41*time.Millisecond, p.delay().Delay)
		time.Sleep(2900 * time.Millisecond)
		require.Equal(t, 2941*time.Millisecond, p.delay().Delay)
		require.EqualValues(t, 2, q.probes.Load())

		time.Sleep(59 * time.Millisecond)
		synctest.Wait()
		q.set(0)
		require.Equal(t, 3*time.Second, p.delay().Delay, "the result, and the next probe begins")
		synctest.Wait()
		require.Zero(t, p.delay().Delay)
	})
}

func TestADelayOfAnotherMinuteIsNotThePresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		q.run(p, 30, 100*time.Millisecond)
		time.Sleep(current)
		q.set(100 * time.Millisecond)
		require.Equal(t, 100*time.Millisecond, p.delay().Delay)

		time.Sleep(time.Minute)
		q.set(time.Millisecond)
		r := p.delay()
		require.Zero(t, r.Delay)
		require.Equal(t, 31, r.Samples, "the hour is still known")
		require.InEpsilon(t, float64(100*time.Millisecond), float64(r.Normal), 0.05)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, time.Millisecond, p.delay().Delay, "and so is the present, one probe later")

		time.Sleep(baseline + time.Second)
		require.Zero(t, p.delay(), "after an hour nothing is known")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, p.delay().Samples)
	})
}

func TestTheBaselineIsTheMedianOfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q := newBubbleProber()
		q.run(p, 2000, 2*time.Millisecond)
		q.run(p, 600, time.Second)
		r := p.delay()
		require.Equal(t, time.Second, r.Delay)
		require.InEpsilon(t, float64(2*time.Millisecond), float64(r.Normal), 0.05)
		require.Equal(t, 2600, r.Samples)
	})
}

// The clocks of a bubble and of the process are 30 years apart.
func TestAClockThatJumpsDoesNotStopTheProbe(t *testing.T) {
	const years = 30 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		p, q := newBubbleProber()
		clock := p.clock
		p.clock = func() time.Duration { return clock() + time.Duration(jump.Load()) }
		q.run(p, 30, 10*time.Millisecond)
		time.Sleep(baseline / 2)
		q.run(p, 30, 10*time.Millisecond)

		for range 3 {
			for _, j := range []time.Duration{years, 0, -years, 0} {
				jump.Store(int64(j))
				q.set(10 * time.Millisecond)
				require.Zero(t, p.delay(), "measured by the other clock")
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, 10*time.Millisecond, p.delay().Delay)
			}
		}
		require.Greater(t, p.delay().Samples, 20, "the baseline survives")
	})
}

func TestAWaitingProbeOfAnotherClockHasNoAge(t *testing.T) {
	const years = 30 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		p, q := newBubbleProber()
		clock := p.clock
		p.clock = func() time.Duration { return clock() + time.Duration(jump.Load()) }
		q.set(time.Minute)
		p.delay()
		synctest.Wait()
		jump.Store(int64(years))
		require.Zero(t, p.delay())
		jump.Store(int64(-years))
		require.Zero(t, p.delay())
		jump.Store(0)
		time.Sleep(time.Second)
		require.Equal(t, time.Second, p.delay().Delay)
		require.EqualValues(t, 1, q.probes.Load(), "and stays the only one")
		time.Sleep(time.Minute)
	})
}

func TestTheProbeOfTheProcessSurvivesABubble(t *testing.T) {
	requireProbesAgain := func() {
		require.Eventually(t, func() bool {
			return Delay().Samples > 0 && process.newest.Load().done.Load()
		}, 30*time.Second, time.Millisecond)
	}
	requireProbesAgain()
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			require.Zero(t, Delay())
			synctest.Wait()
			require.Positive(t, Delay().Samples)
			time.Sleep(time.Second)
			Delay()
			synctest.Wait()
		})
		require.Zero(t, Delay())
		requireProbesAgain()
	}
}

func TestAReadingThatIsNotDueDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	p := newProber(func() time.Duration { return 0 })
	p.delay()
	require.Eventually(t, func() bool { return p.newest.Load().done.Load() }, 30*time.Second, time.Millisecond)
	require.Zero(t, testing.AllocsPerRun(1000, func() { p.delay() }))
}

func BenchmarkDelay(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Delay()
	}
}
