package tripsim

import (
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
	"github.com/measuredgo/resilience/internal/trip"
)

// Rule is what a simulation is about.
type Rule interface {
	// Succeed and Fail report whether the breaker trips.
	Succeed(latency, now time.Duration) bool
	Fail(now time.Duration) bool
	// Slow reports whether a probe was slow.
	Slow(latency time.Duration) bool
	// Score weighs the probes after a trip.
	Score() trip.Score
	// Closed starts a new closed period.
	Closed(now time.Duration)
}

// Defaults is the law as a breaker without any setting has it.
func Defaults() trip.Config {
	return trip.Config{
		Window: 30 * time.Second, MinCalls: 20, SlowRatio: 0.5,
		Multiple: 5, Floor: 0.05, NormalWindow: 5 * time.Minute, NormalSamples: 100, SlowSamples: 20,
	}
}

// Recommended is the law with its latency estimator.
type Recommended struct {
	trip.Law
	latencies *quantile.Window
	slowAbove time.Duration
	readAt    time.Duration
}

// NewRecommended returns the law with its defaults. With latencies, slow calls
// are judged too.
func NewRecommended(latencies bool) *Recommended {
	r := &Recommended{Law: trip.New(Defaults(), 0), slowAbove: time.Hour}
	if latencies {
		r.latencies = quantile.New(5 * time.Minute)
	}
	return r
}

// Succeed reads the estimator at most once a second, as the breaker does.
func (r *Recommended) Succeed(latency, now time.Duration) bool {
	if r.latencies == nil {
		return r.Law.Succeed(false, false, now) != trip.None
	}
	if now >= r.readAt {
		r.readAt = now + time.Second
		median, above, samples := r.latencies.Split(0.5, 3, now)
		r.Latency(uint64(above), uint64(samples), now)
		r.slowAbove = time.Hour
		if samples >= 20 {
			r.slowAbove = quantile.Edge(3 * median)
		}
	}
	r.latencies.Record(latency, now)
	return r.Law.Succeed(latency > r.slowAbove, false, now) != trip.None
}

// Fail implements Rule.
func (r *Recommended) Fail(now time.Duration) bool { return r.Law.Fail(false, now) != trip.None }

// Slow implements Rule.
func (r *Recommended) Slow(latency time.Duration) bool { return latency > r.slowAbove }

// Starting is the rule that the law replaces: 5 failures in a row, or 2 and a
// failure rate of 5 times that of the last five minutes, or of 5 %.
type Starting struct {
	run    int
	window recent // 30 s
	normal recent // 5 min
}

// NewStarting returns the starting rule.
func NewStarting() *Starting {
	return &Starting{window: recent{span: 3 * time.Second}, normal: recent{span: 30 * time.Second}}
}

// Succeed implements Rule.
func (s *Starting) Succeed(_, now time.Duration) bool {
	s.run = 0
	s.window.add(0, now)
	s.normal.add(0, now)
	return false
}

// Fail implements Rule.
func (s *Starting) Fail(now time.Duration) bool {
	s.run++
	s.window.add(1, now)
	s.normal.add(1, now)
	if s.run < 5 {
		n, f := s.window.sum()
		usual, failed := s.normal.sum()
		if n < 20 || f < 2 || usual < 100 || f/n < max(0.05, 5*failed/usual) {
			return false
		}
	}
	s.run = 0
	s.window = recent{span: s.window.span}
	return true
}

// Slow implements Rule.
func (s *Starting) Slow(time.Duration) bool { return false }

// Score asks for two successes in a row.
func (s *Starting) Score() trip.Score {
	l := trip.New(trip.Config{ProbeSuccesses: 2}, 0)
	return l.Score()
}

// Closed implements Rule.
func (s *Starting) Closed(time.Duration) {}

// recent counts over ten spans.
type recent struct {
	span  time.Duration
	at    time.Duration
	slots [10][2]float64
}

func (r *recent) add(failed float64, now time.Duration) {
	at := now / r.span
	for r.at = max(r.at, at-10); r.at < at; {
		r.at++
		r.slots[r.at%10] = [2]float64{}
	}
	r.slots[at%10][0]++
	r.slots[at%10][1] += failed
}

func (r *recent) sum() (n, failed float64) {
	for _, s := range r.slots {
		n += s[0]
		failed += s[1]
	}
	return n, failed
}
