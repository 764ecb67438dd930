package quantile

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// model is the obvious window: a list of samples with the step of each. A step
// that is recorded into drives out the one with which it shares its place.
type model struct {
	width   int64
	samples []sample
}

type sample struct {
	value time.Duration
	step  int64
}

func (m *model) step(now time.Duration) int64 {
	return int64(math.Floor(float64(now) / float64(m.width)))
}

func (m *model) record(value, now time.Duration) {
	n := m.step(now)
	m.samples = slices.DeleteFunc(m.samples, func(s sample) bool {
		return s.step != n && (s.step-n)%steps == 0
	})
	m.samples = append(m.samples, sample{value, n})
}

// values returns what the window holds, in ascending order.
func (m *model) values(now time.Duration) []time.Duration {
	n := m.step(now)
	var values []time.Duration
	for _, s := range m.samples {
		if s.step > n-steps && s.step < n+steps {
			values = append(values, s.value)
		}
	}
	slices.Sort(values)
	return values
}

func nearestRank(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted)))), 1), len(sorted))-1]
}

func countAbove(values []time.Duration, x time.Duration) int {
	n := 0
	for _, v := range values {
		if v > x {
			n++
		}
	}
	return n
}

func requireSameReadings(t *testing.T, m *model, w *Window, q float64, now time.Duration) {
	t.Helper()
	values := m.values(now)
	require.Equal(t, len(values), w.Count(now))
	got, samples := w.Quantile(q, now)
	require.Equal(t, len(values), samples)
	if samples == 0 {
		require.Zero(t, got)
		return
	}
	want := min(max(nearestRank(values, q), lowest), highest)
	require.InEpsilon(t, float64(want), float64(got), 0.05)

	split, above, samples := w.Split(q, 3, now)
	require.Equal(t, got, split)
	require.Equal(t, len(values), samples)
	require.Equal(t, countAbove(values, Edge(3*got)), above)

	above, samples = w.Above(want, now)
	require.Equal(t, len(values), samples)
	require.Equal(t, countAbove(values, Edge(want)), above)
}

// FuzzWindowAgainstModel replays operations of six bytes: a value, which way
// and how far the clock moves, and a quantile to read.
func FuzzWindowAgainstModel(f *testing.F) {
	f.Add([]byte{9, 10, 11, 0, 1, 0, 50, 60, 70, 0, 9, 128, 0, 0, 1, 1, 200, 255})
	f.Add([]byte{1, 2, 3, 2, 255, 0, 1, 2, 3, 3, 255, 64, 1, 2, 3, 1, 255, 32})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const width = time.Second
		m, w := &model{width: int64(width)}, New(steps*width)
		var now time.Duration
		for ; len(ops) >= 6 && len(m.samples) < 500; ops = ops[6:] {
			mantissa := time.Duration(binary.LittleEndian.Uint16(ops)) + 1
			value := mantissa << (ops[2] & 31)
			by := time.Duration(ops[4])
			switch ops[3] % 8 {
			case 0: // stands still
			case 1, 2, 3:
				now += by * width / 100
			case 4:
				now -= by * width / 100
			case 5:
				now += by * width / 4
			case 6:
				now -= by * width / 4
			case 7:
				now = -now
			}
			m.record(value, now)
			w.Record(value, now)
			requireSameReadings(t, m, w, float64(ops[5])/255, now)
			requireSameReadings(t, m, w, 0.5, now+2*width)
			requireSameReadings(t, m, w, 0.5, now-2*width)
		}
	})
}

func TestWindowAgreesWithTheModelOnRandomCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const width = 75 * time.Second
	m, w := &model{width: int64(width)}, New(steps*width)
	now := -time.Hour
	for range 3000 {
		value := time.Duration(float64(lowest) * math.Exp(rng.Float64()*math.Log(float64(highest/lowest))))
		now += time.Duration(rng.ExpFloat64() * float64(width) / 25)
		m.record(value, now)
		w.Record(value, now)
		requireSameReadings(t, m, w, rng.Float64(), now)
	}
}

func TestQuantileIsWithinFivePercentOverTheWholeRange(t *testing.T) {
	for v := float64(lowest); v <= float64(highest); v *= 1.003 {
		w := New(time.Minute)
		w.Record(time.Duration(v), 0)
		got, samples := w.Quantile(0.5, 0)
		require.Equal(t, 1, samples)
		require.InEpsilon(t, v, float64(got), 0.05)
	}
}

// held returns how many bytes the window has allocated and still refers to.
func (w *Window) held() uintptr {
	bytes := unsafe.Sizeof(*w)
	for _, s := range []*step{w.ring[0].Load(), w.ring[1].Load(), w.ring[2].Load(), w.ring[3].Load(), w.spare.Load()} {
		if s == nil {
			continue
		}
		bytes += unsafe.Sizeof(*s)
		for k := range s.chunks {
			if c := s.chunks[k].Load(); c != nil {
				bytes += unsafe.Sizeof(*c)
			}
		}
	}
	return bytes
}

func TestMemoryIsBounded(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Window{}), uintptr(56))
	require.LessOrEqual(t, unsafe.Sizeof(Term{}), uintptr(112), "a size class of its own")
	require.LessOrEqual(t, unsafe.Sizeof(step{}), uintptr(72))
	require.LessOrEqual(t, unsafe.Sizeof(chunk{}), uintptr(128))

	for _, c := range []struct {
		name     string
		from, to time.Duration
		most     uintptr
	}{
		{"one value", 30 * time.Millisecond, 30 * time.Millisecond, 1064},
		{"one chunk", 20 * time.Millisecond, 300 * time.Millisecond, 1064},
		{"typical, two chunks", 5 * time.Millisecond, 100 * time.Millisecond, 1704},
		{"three decades", time.Millisecond, time.Second, 2344},
		{"the whole range", lowest, highest, 4904},
	} {
		w := New(steps)
		for now := range time.Duration(100) {
			for v := c.from; v <= c.to; v += v/20 + 1 {
				w.Record(v, now)
			}
		}
		require.LessOrEqual(t, w.held(), c.most, c.name)
	}
}

func TestStepsAreUsedAgain(t *testing.T) {
	w := New(steps)
	ever := map[*step]bool{}
	for now := range time.Duration(1000) {
		w.Record(time.Second, 3*now)
		for i := range w.ring {
			ever[w.ring[i].Load()] = true
		}
	}
	delete(ever, nil)
	require.Len(t, ever, steps+1)
}

func TestAWindowThatNeverRecordedHoldsNoStep(t *testing.T) {
	w := New(time.Minute)
	w.Quantile(0.5, 0)
	for i := range w.ring {
		require.Nil(t, w.ring[i].Load())
	}
	w.Record(1, 0)
	require.NotNil(t, w.ring[w.number(0)%steps].Load())
	require.Nil(t, w.spare.Load())
}

func TestRecordAndReadingsDoNotAllocateOnceTheStepsAreThere(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := New(steps * time.Second)
	now := time.Duration(0)
	for ; now < 10*time.Second; now += time.Second {
		w.Record(time.Millisecond, now)
		w.Record(time.Minute, now)
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 300 * time.Millisecond
		w.Record(time.Millisecond, now)
		w.Record(time.Minute, now)
		w.Count(now)
		w.Quantile(0.95, now)
		w.Split(0.5, 3, now)
		w.Above(time.Second, now)
	}))
}

// Another goroutine that is changing a step may have loaded the same old one
// and would, were it back in the ring, take it out with the samples in it.
func TestAStepThatAnotherTurnMayHoldIsNotUsedAgain(t *testing.T) {
	w := New(steps)
	for now := range time.Duration(steps) {
		w.Record(time.Second, now)
	}
	old := w.ring[w.number(0)%steps].Load()
	w.turns.Add(1)
	w.Record(time.Second, steps)
	w.turns.Add(-1)
	require.NotSame(t, old, w.ring[w.number(0)%steps].Load())
	require.Nil(t, w.spare.Load())
	require.Equal(t, steps, w.Count(steps))

	w.Record(time.Second, steps+1)
	require.NotNil(t, w.spare.Load(), "alone, the step is kept")
}

func TestAStepThatLeavesTheRingIsEmptiedButKeepsItsChunks(t *testing.T) {
	w := New(steps)
	for i := range buckets {
		w.Record(floor[i], 0)
	}
	chunksBefore := w.held() - unsafe.Sizeof(*w) - unsafe.Sizeof(step{})
	require.Equal(t, chunks*unsafe.Sizeof(chunk{}), chunksBefore)
	old := w.ring[w.number(0)%steps].Load()
	w.turn(w.number(steps))
	require.Same(t, old, w.spare.Load())
	var c counts
	c.add(old)
	require.Zero(t, c)
	for k := range old.chunks {
		require.NotNil(t, old.chunks[k].Load())
	}
}

func TestAStepHoldsOnlyTheChunksThatItsSamplesFellInto(t *testing.T) {
	for i := range buckets {
		var s step
		s.count(floor[i])
		s.count(floor[i])
		for k := range s.chunks {
			require.Equal(t, k == i/chunkSize, s.chunks[k].Load() != nil)
		}
	}
}

// A goroutine may find a chunk missing that is there when it comes to make it.
func TestAChunkIsMadeOnce(t *testing.T) {
	var s step
	require.Same(t, s.grow(3), s.grow(3))
}

func TestEverySampleCountsWhenManyMeetAtANewChunk(t *testing.T) {
	const goroutines = 8
	for range 200 {
		var s step
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				<-start
				for i := range buckets {
					s.count(floor[i])
				}
			})
		}
		close(start)
		wg.Wait()
		var c counts
		c.add(&s)
		require.Equal(t, goroutines*buckets, c.samples)
		for i := range buckets {
			require.Equal(t, goroutines, c.of[i])
		}
	}
}

func TestEverySampleCountsWhenManyMeetAtOneCounter(t *testing.T) {
	const goroutines, each = 4, 1_000_000
	w := New(time.Minute)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				w.Record(time.Millisecond, 0)
			}
		})
	}
	wg.Wait()
	require.Equal(t, goroutines*each, w.Count(0))
}
