package tripsim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/measuredgo/resilience/internal/trip"
)

// breaker is the least shell around a rule: it opens, probes one call after
// another, and closes.
type breaker struct {
	rule  Rule
	rng   *rand.Rand
	open  bool
	until time.Duration
	fails int // openings without a close between them
	score trip.Score
	fresh bool // the score belongs to an earlier half-open
	trips int
}

// call reports whether the call was admitted, and whether it tripped the
// breaker.
func (b *breaker) call(failed bool, latency, now time.Duration) (admitted, tripped bool) {
	if b.open {
		return b.probe(failed, latency, now), false
	}
	if failed {
		tripped = b.rule.Fail(now)
	} else {
		tripped = b.rule.Succeed(latency, now)
	}
	if tripped {
		b.trips++
		b.reopen(now)
	}
	return true, tripped
}

func (b *breaker) probe(failed bool, latency, now time.Duration) (admitted bool) {
	if now < b.until {
		return false
	}
	if b.fresh {
		b.fresh = false
		b.score = b.rule.Score()
	}
	var step trip.Step
	if failed {
		step = b.score.Fail()
	} else {
		step = b.score.Succeed(b.rule.Slow(latency))
	}
	switch step {
	case trip.Close:
		b.open = false
		b.fails = 0
		b.rule.Closed(now)
	case trip.Reopen:
		b.reopen(now)
	}
	return true
}

func (b *breaker) reopen(now time.Duration) {
	b.open = true
	b.fresh = true
	period := min(15*time.Second<<b.fails, 2*time.Minute)
	b.fails = min(b.fails+1, 4)
	b.until = now + period/2 + time.Duration(b.rng.Float64()*float64(period/2))
}

func newRun(rule Rule, seed uint64) (*breaker, *stream) {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	return &breaker{rule: rule, rng: rng}, &stream{rng: rng}
}

// WrongTrips returns how often the rule trips in unchanging traffic, the first
// 200 results apart.
func WrongTrips(rule Rule, t Traffic, days float64, seed uint64) int {
	b, s := newRun(rule, seed)
	end := time.Duration(days * 24 * float64(time.Hour))
	for results := 0; s.now < end; {
		admitted, tripped := b.call(s.next(&t))
		if admitted {
			results++
		}
		if tripped && results <= 200 {
			b.trips = 0
		}
	}
	return b.trips
}

// Detection returns how long the rule takes to trip on the incident, after at
// least a quarter of an hour and 300 calls of normal traffic. It gives up after
// a quarter of an hour or 300 calls more.
func Detection(rule Rule, normal, incident Traffic, seed uint64) (took time.Duration, seen bool) {
	b, s := newRun(rule, seed)
	span := max(15*time.Minute, time.Duration(300/normal.PerSecond*float64(time.Second)))
	for s.now < span || b.open {
		b.call(s.next(&normal))
	}
	start := s.now
	s.left = 0
	for s.now < start+span {
		if _, tripped := b.call(s.next(&incident)); tripped {
			return s.now - start, true
		}
	}
	return 0, false
}

// Median returns the middle of the detection times, taking incidents that were
// never seen for infinitely long, and the share of incidents seen within limit.
func Median(newRule func() Rule, normal, incident Traffic, seeds int, limit time.Duration) (median time.Duration, within float64) {
	var times []time.Duration
	for seed := range seeds {
		took, seen := Detection(newRule(), normal, incident, uint64(seed)+1)
		if !seen {
			took = 1 << 62
		}
		times = append(times, took)
		if took <= limit {
			within++
		}
	}
	slices.Sort(times)
	return times[len(times)/2], within / float64(seeds)
}

// Minute is what happened in one minute of a run.
type Minute struct {
	Calls, Admitted int
	Trips           int
	First           time.Duration // the first trip, 0 for none
}

// Play runs traffic whose failing share changes, for so many minutes after a
// quarter of an hour of normal traffic. Time 0 is the end of that quarter.
func Play(rule Rule, t Traffic, failing func(at time.Duration) float64, minutes int, seed uint64) []Minute {
	const lead = 15 * time.Minute
	b, s := newRun(rule, seed)
	t.Failing = failing(0)
	for s.now < lead || b.open {
		b.call(s.next(&t))
	}
	start := s.now
	played := make([]Minute, minutes)
	for s.now-start < time.Duration(minutes)*time.Minute {
		t.Failing = failing(s.now - start)
		admitted, tripped := b.call(s.next(&t))
		m := &played[min(int((s.now-start)/time.Minute), minutes-1)]
		m.Calls++
		if admitted {
			m.Admitted++
		}
		if tripped {
			m.Trips++
			if m.First == 0 {
				m.First = s.now - start
			}
		}
	}
	return played
}

// Sum adds minutes [from, to) up.
func Sum(played []Minute, from, to int) Minute {
	var sum Minute
	for _, m := range played[from:to] {
		sum.Calls += m.Calls
		sum.Admitted += m.Admitted
		sum.Trips += m.Trips
		if sum.First == 0 {
			sum.First = m.First
		}
	}
	return sum
}
