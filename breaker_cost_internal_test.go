package resilience

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBreakerAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b := timedBreaker(t, BreakerConfig{})
	now := b.warmUp(50)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 10 * time.Millisecond
		b.call(OK, 10*time.Millisecond, now)
	}), "closed")
	now = b.open(t, now) - 1
	require.Zero(t, testing.AllocsPerRun(1000, func() { b.call(OK, 0, now) }), "open")
	require.Zero(t, testing.AllocsPerRun(1000, func() { b.call(Permanent, 0, now+1) }), "half-open")
	require.Equal(t, "half-open", fmt.Sprint(b.stateLocked(now+1)))
}

func benchmarkBreaker(b *testing.B) *Breaker {
	breaker, err := NewBreaker(BreakerConfig{})
	require.NoError(b, err)
	for range 3000 {
		l, _ := breaker.Allow()
		l.Done(OK, 10*time.Millisecond)
	}
	return breaker
}

// Run it with -cpu 1,2: a second processor must not make it slower.
func BenchmarkBreakerAllowDone(b *testing.B) {
	breaker := benchmarkBreaker(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := breaker.Allow()
			if err != nil {
				b.Error(err)
			}
			l.Done(OK, 10*time.Millisecond)
		}
	})
}

func BenchmarkBreakerAllowOpen(b *testing.B) {
	breaker := benchmarkBreaker(b)
	for breaker.closed() {
		l, _ := breaker.Allow()
		l.Done(Transient, 10*time.Millisecond)
	}
	breaker.retryAt.Store(int64(breaker.time.now() + breaker.config.MaxOpenFor))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := breaker.Allow(); err == nil {
			b.Fatal("admitted")
		}
	}
}
