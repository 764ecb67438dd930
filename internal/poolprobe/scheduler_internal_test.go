package poolprobe

import (
	"io"
	"math"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keepBusy occupies every processor with perProcessor goroutines that never
// wait, until stop is called. It returns once all of them have been running.
func keepBusy(perProcessor int) (stop func()) {
	var stopped atomic.Bool
	var running, wg sync.WaitGroup
	for range perProcessor * runtime.GOMAXPROCS(0) {
		running.Add(1)
		wg.Go(func() {
			running.Done()
			for !stopped.Load() {
			}
		})
	}
	running.Wait()
	return func() {
		stopped.Store(true)
		wg.Wait()
	}
}

// echo returns a function that sends a byte over loopback TCP and waits for
// the answer: what the delay costs somebody.
func echo(t *testing.T) (roundTrip func() time.Duration) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, struct{ io.Reader }{conn})
	})
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		listener.Close()
		wg.Wait()
	})
	buffer := make([]byte, 1)
	return func() time.Duration {
		start := time.Now()
		_, err := conn.Write(buffer)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, buffer)
		require.NoError(t, err)
		return time.Since(start)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func schedulerLatencies() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// quantileSince returns the bucket boundary at the q-quantile of what now
// counts more than before.
func quantileSince(before, now *metrics.Float64Histogram, q float64) time.Duration {
	var total uint64
	for i := range now.Counts {
		total += now.Counts[i] - before.Counts[i]
	}
	rank, seen := uint64(math.Ceil(q*float64(total))), uint64(0)
	for i := range now.Counts {
		if seen += now.Counts[i] - before.Counts[i]; seen >= rank && seen > 0 {
			return time.Duration(now.Buckets[i] * float64(time.Second))
		}
	}
	return 0
}

// observed is what one stretch of time looked like to all parties at once.
type observed struct {
	probe, fresh, echo time.Duration // medians
	metricsP95         time.Duration
}

// observe does round trips for the given time and asks, after each, a true
// prober and one whose goroutine does not yield.
func observe(t *testing.T, period time.Duration) observed {
	t.Helper()
	roundTrip := echo(t)
	roundTrip()
	probe, fresh := newProber(sinceStart()), newProber(sinceStart())
	fresh.yield = func() {}

	var probes, freshes, echoes []time.Duration
	before := schedulerLatencies()
	for start := time.Now(); time.Since(start) < period; {
		echoes = append(echoes, roundTrip())
		if r := probe.delay(); r.Samples > 0 {
			probes = append(probes, r.Delay)
		}
		if r := fresh.delay(); r.Samples > 0 {
			freshes = append(freshes, r.Delay)
		}
	}
	after := schedulerLatencies()
	for _, p := range []*prober{probe, fresh} {
		require.Eventually(t, func() bool { return p.newest.Load().done.Load() }, 30*time.Second, time.Millisecond)
	}
	return observed{
		probe:      median(probes),
		fresh:      median(freshes),
		echo:       median(echoes),
		metricsP95: quantileSince(before, after, 0.95),
	}
}

// The bounds are loose: this is a real scheduler on a machine with other work.
// Far apart are only what they have to tell apart, a goroutine that yields and
// one that does not: the latter reads about a microsecond at any load, where
// the others read tenths of a second.
func TestTheProbeSeesWhatOtherWorkWaits(t *testing.T) {
	stop := keepBusy(8)
	o := observe(t, 2*time.Second)
	stop()
	t.Logf("probe %v, without yield %v, echo %v, runtime/metrics p95 %v", o.probe, o.fresh, o.echo, o.metricsP95)

	require.Greater(t, o.echo, 20*time.Millisecond, "the load is real")
	require.Greater(t, o.probe, o.echo/50)
	require.Less(t, o.probe, o.echo*50)
	require.Greater(t, o.probe, o.metricsP95/50)
	require.Less(t, o.fresh, o.probe/10)
	require.Less(t, o.fresh, o.echo/50, "without the yield the test would fail")
}

func TestAnIdleProcessHasAShortQueue(t *testing.T) {
	var o observed
	for range 10 { // the machine may be busy with something else
		o = observe(t, 300*time.Millisecond)
		t.Logf("probe %v, echo %v", o.probe, o.echo)
		if o.probe < 20*time.Millisecond {
			return
		}
	}
	require.Less(t, o.probe, 20*time.Millisecond)
}
