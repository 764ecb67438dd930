package quantile_test

import (
	"testing"
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
)

// latency spreads consecutive numbers over 1 to 129 ms.
func latency(i int) time.Duration {
	return time.Millisecond + time.Duration(i&127)*time.Millisecond
}

func BenchmarkWindowRecord(b *testing.B) {
	w := quantile.New(5 * time.Minute)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w.Record(latency(i), time.Duration(i)*10*time.Nanosecond)
	}
}

func BenchmarkWindowRecordParallel(b *testing.B) {
	w := quantile.New(5 * time.Minute)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			w.Record(latency(i), time.Duration(i)*10*time.Nanosecond)
		}
	})
}

func BenchmarkWindowQuantile(b *testing.B) {
	w := quantile.New(5 * time.Minute)
	for i := range 100_000 {
		w.Record(latency(i), time.Duration(i)*3*time.Millisecond)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.Quantile(0.95, 299*time.Second)
	}
}

// A cold window is read after every sample.
func BenchmarkWindowQuantileCold(b *testing.B) {
	w := quantile.New(5 * time.Minute)
	for i := range 20 {
		w.Record(latency(i), 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.Quantile(0.95, 0)
	}
}

func BenchmarkTermRecord(b *testing.B) {
	t := quantile.NewTerm(5*time.Minute, 0.95, 20)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t.Record(latency(i), time.Duration(i)*10*time.Nanosecond)
	}
}

func BenchmarkTermValue(b *testing.B) {
	t := quantile.NewTerm(5*time.Minute, 0.95, 20)
	for i := range 1000 {
		t.Record(latency(i), 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		t.Value(time.Second)
	}
}

// One call of a policy does both; the term is as full as a busy service makes
// it.
func BenchmarkTermRecordValue(b *testing.B) {
	t := quantile.NewTerm(5*time.Minute, 0.95, 20)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now := time.Duration(i) * 10 * time.Nanosecond
		t.Record(latency(i), now)
		t.Value(now)
	}
}

func BenchmarkTermRecordValueParallel(b *testing.B) {
	t := quantile.NewTerm(5*time.Minute, 0.95, 20)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			now := time.Duration(i) * 10 * time.Nanosecond
			t.Record(latency(i), now)
			t.Value(now)
		}
	})
}
