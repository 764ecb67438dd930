package resilience

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
	"github.com/measuredgo/resilience/internal/trip"
)

// handClock is a clock that a test sets.
type handClock struct{ reading time.Duration }

func (c *handClock) Now() time.Time                       { return time.Unix(1_700_000_000, 0).Add(c.reading) }
func (c *handClock) After(time.Duration) <-chan time.Time { panic("a breaker starts no timer") }

// changes remembers what a breaker tells.
type changes struct{ list []string }

func (c *changes) breakerChanged(kind EventKind, _ time.Duration) {
	c.list = append(c.list, kind.String())
}

// modelLease is an admission as the model knows it.
type modelLease struct {
	epoch   int // changes of state before it
	probe   bool
	until   time.Duration // of a probe
	given   time.Duration // the time that it has
	settled bool
}

// breakerModel is a breaker in its plainest form: one goroutine, nothing counted ahead, no bits in words. The law is
// told every result by itself.
type breakerModel struct {
	c         BreakerConfig
	law       trip.Law
	latencies *quantile.Window
	slowAbove time.Duration
	readAt    time.Duration

	state    BreakerState
	epoch    int
	until    time.Duration // of the open state
	failed   int           // re-openings
	left     time.Duration // when the outage began
	score    trip.Score
	probes   []*modelLease
	patience time.Duration // the time that the next probe has
	shareAt  time.Duration
	share0   float64
	growth   float64
	whole    time.Duration // when the share is whole, whatever came
	credit   float64
	changes  []string
	reopened bool // the last operation opened it: until has to be taken from the breaker
}

func newBreakerModel(c BreakerConfig, now time.Duration) *breakerModel {
	m := &breakerModel{c: c, law: trip.New(c.law(), now), slowAbove: never, readAt: now, patience: c.OpenFor}
	if c.SlowCalls.Multiple != Off {
		m.latencies = quantile.New(c.SlowCalls.Window)
	}
	return m
}

func (m *breakerModel) enter(s BreakerState, change string) {
	m.state = s
	m.epoch++
	m.probes, m.patience = nil, m.c.OpenFor
	if change != "" {
		m.changes = append(m.changes, change)
	}
}

func (m *breakerModel) open() {
	m.reopened = true
	m.enter(StateOpen, "breaker opened")
}

func (m *breakerModel) share(now time.Duration) float64 {
	if now >= m.whole {
		return 1
	}
	return min(1, m.share0+m.growth*float64(max(0, now-m.shareAt)))
}

// seen is the state that somebody who asks at now would see.
func (m *breakerModel) seen(now time.Duration) BreakerState {
	if m.state == StateOpen && (now >= m.until || m.until > now+2*m.c.MaxOpenFor) {
		return StateHalfOpen
	}
	if m.state == StateRecovering && m.share(now) >= 1 {
		return StateClosed
	}
	return m.state
}

func (m *breakerModel) close(now time.Duration, change string) {
	m.failed = 0
	m.law.Closed(now)
	m.enter(StateClosed, change)
}

func (m *breakerModel) allow(now time.Duration) *modelLease {
	switch m.seen(now) {
	case m.state:
	case StateHalfOpen:
		m.score = m.law.Score()
		m.enter(StateHalfOpen, "breaker half-opened")
	default:
		m.close(now, "breaker closed")
	}
	lease := &modelLease{epoch: m.epoch}
	switch m.state {
	case StateHalfOpen:
		var held []*modelLease
		for _, p := range m.probes {
			if m.holds(p, now) {
				held = append(held, p)
			}
		}
		if len(held) == m.c.Probes {
			return nil
		}
		// Expired ones whose slot nobody takes may still report.
		lease.probe = true
		m.takeSlot(lease, now)
	case StateRecovering:
		m.shareAt = min(m.shareAt, now)
		m.credit += m.share(now)
		if m.credit < 1 {
			return nil
		}
		m.credit--
	case StateOpen, StateIsolated:
		return nil
	}
	return lease
}

func (m *breakerModel) holds(p *modelLease, now time.Duration) bool {
	return !p.settled && now < p.until && p.until <= now+2*m.patience
}

// takeSlot puts the lease into the first slot that is free or expired. It has twice the time of an expired one.
func (m *breakerModel) takeSlot(lease *modelLease, now time.Duration) {
	slot := slices.IndexFunc(m.probes, func(p *modelLease) bool { return !m.holds(p, now) })
	if slot < 0 {
		slot = len(m.probes)
		m.probes = append(m.probes, nil)
	} else if p := m.probes[slot]; !p.settled {
		p.settled = true
		m.patience = max(m.patience, min(2*p.given, 24*time.Hour))
	}
	m.probes[slot] = lease
	lease.given, lease.until = m.patience, now+m.patience
}

func (m *breakerModel) done(l *modelLease, v Verdict, d, now time.Duration) {
	if l.settled {
		return
	}
	l.settled = true
	if l.epoch != m.epoch || v != OK && v != Transient {
		return
	}
	late := m.c.SlowThreshold > 0 && d > m.c.SlowThreshold
	switch m.state {
	case StateClosed:
		m.result(v == OK, late, d, now)
	case StateHalfOpen:
		m.probed(v == OK, late, d, now)
	case StateRecovering:
		switch {
		case m.seen(now) == StateClosed:
			m.close(now, "breaker closed")
		case v != OK:
			if m.score.Fail() == trip.Reopen {
				m.failed++
				m.open()
			}
		default:
			m.score.Save()
			if late || m.slow(d, now) {
				m.share0, m.shareAt = max(m.c.Recovery.Initial, m.share(now)/2), now
			}
		}
	}
}

func (m *breakerModel) result(ok, late bool, d, now time.Duration) {
	var rule trip.Rule
	if !ok {
		rule = m.law.Fail(late, now)
	} else {
		if m.latencies != nil && now >= m.readAt {
			m.readAt = now + time.Second
			usual, above, samples := m.latencies.Split(m.c.SlowCalls.Quantile, m.c.SlowCalls.Multiple, now)
			m.law.Latency(uint64(above), uint64(samples), now)
			m.slowAbove = never
			if samples >= m.c.SlowCalls.MinSamples {
				m.slowAbove = quantile.Edge(time.Duration(m.c.SlowCalls.Multiple * float64(usual)))
			}
		}
		rule = m.law.Succeed(d > m.slowAbove, late, now)
		if m.latencies != nil {
			m.latencies.Record(d, now)
		}
	}
	if rule != trip.None {
		m.left = now
		m.open()
	}
}

// slow forgets the measured threshold if it is asked when there are too few samples for one.
func (m *breakerModel) slow(d, now time.Duration) bool {
	if d > m.slowAbove && m.latencies.Count(now) < m.c.SlowCalls.MinSamples {
		m.slowAbove = never
	}
	return d > m.slowAbove
}

func (m *breakerModel) probed(ok, late bool, d, now time.Duration) {
	var step trip.Step
	switch {
	case !ok:
		step = m.score.Fail()
	case m.law.Cause().Rule == trip.SlowThreshold:
		step = m.score.Succeed(late)
	default:
		step = m.score.Succeed(m.slow(d, now))
	}
	switch {
	case step == trip.Reopen:
		m.failed++
		m.open()
	case step == trip.Close && m.c.Recovery.Fraction > 0:
		r := m.c.Recovery
		length := min(max(r.Fraction*float64(now-m.left), float64(r.Min)), float64(r.Max))
		m.share0, m.growth, m.shareAt, m.credit = r.Initial, (1-r.Initial)/length, now, 0
		m.whole = now + 4*time.Duration(length)
		m.enter(StateRecovering, "")
	case step == trip.Close:
		m.close(now, "breaker closed")
	}
}

// FuzzBreaker plays the same calls, one after the other, to a breaker and to the model.
func FuzzBreaker(f *testing.F) {
	for seed := range byte(32) {
		script := []byte{seed * 5, seed}
		x := uint32(seed)*2654435761 + 12345
		for i := range 900 {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			op := byte(x >> 24)
			if i%300 < 200 && op%8 > 2 {
				op = op&^7 | 1 // mostly good calls
			}
			script = append(script, op, byte(x>>16))
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) >= 4 && len(script) <= 4000 {
			playBreakerScript(t, script)
		}
	})
}

func fuzzBreakerConfig(a, b byte) BreakerConfig {
	c := BreakerConfig{Probes: 1 + int(a&1), OpenFor: 2 * time.Second, MaxOpenFor: 10 * time.Second, Window: 2 * time.Second, MinCalls: 5}
	c.Failures = RelativeFailures{Window: 20 * time.Second, MinSamples: 20}
	c.SlowCalls = RelativeSlow{Window: 10 * time.Second, MinSamples: 10}
	if a&2 > 0 {
		c.SlowThreshold = 40 * time.Millisecond
	}
	if a&4 > 0 {
		c.Recovery = Recovery{Fraction: 0.5}
	}
	if a&8 > 0 {
		c.ProbeSuccesses = 1 + int(b&3)
	}
	if a&16 > 0 {
		c.FailureRatio = 0.5
	}
	if a&32 > 0 {
		c.MaxOpenFor = c.OpenFor
	}
	switch b >> 2 & 7 {
	case 0:
		c.Failures, c.SlowCalls, c.ConstantsOnly = RelativeFailures{}, RelativeSlow{}, true
	case 1:
		c.Failures = RelativeFailures{Multiple: Off}
	case 2:
		c.SlowCalls = RelativeSlow{Multiple: Off}
	case 3:
		c.ConsecutiveFailures = Off
	case 4:
		c.ConsecutiveFailures = 3
	}
	return c
}

func playBreakerScript(t *testing.T, script []byte) {
	t.Helper()
	k := newChecker("test")
	c := fuzzBreakerConfig(script[0], script[1]).resolve(k)
	if err := k.err(); err != nil {
		t.Fatal(err)
	}
	clock := &handClock{}
	b := newBreaker(&c, newTimeline(clock))
	m := newBreakerModel(c, b.time.now())
	heard := &changes{}
	type pair struct {
		real  Lease
		model *modelLease
	}
	var leases []pair
	for i := 2; i+1 < len(script); i += 2 {
		op, arg := script[i], script[i+1]
		clock.reading += time.Duration(op>>3&7) * 13 * time.Millisecond
		if op>>6 == 3 {
			clock.reading += time.Duration(arg) * 20 * time.Millisecond
		}
		now := b.time.now()
		m.reopened = false
		switch kind := op & 7; {
		case kind <= 4: // a whole call
			leases = append(leases, pair{})
			fallthrough
		case kind == 5: // only its beginning
			if kind == 5 {
				leases = append(leases, pair{})
			}
			last := &leases[len(leases)-1]
			var ok bool
			last.real, _, ok = b.allow(now, heard)
			last.model = m.allow(now)
			if ok != (last.model != nil) {
				t.Fatalf("operation %d: admitted is %t, the model says %t", i, ok, !ok)
			}
			if !ok {
				leases = leases[:len(leases)-1]
			} else if kind <= 4 {
				v, d := fuzzResult(kind, arg)
				last.real.done(v, d, now, heard)
				m.done(last.model, v, d, now)
				last.real.done(Transient, d, now, heard) // a second time does nothing
			}
		case kind == 6 && len(leases) > 0: // the end of an earlier one
			p := &leases[int(arg>>3)%len(leases)]
			v, d := fuzzResult(arg&7%5, arg)
			p.real.done(v, d, now, heard)
			m.done(p.model, v, d, now)
		case arg == 1:
			b.Isolate()
			m.enter(StateIsolated, "")
		case arg < 4:
			b.Reset()
			m.close(now, "")
		case arg < 6: // a bit, or further than any lease
			clock.reading -= time.Duration(arg-3) * time.Duration(arg-3) * 7 * time.Second
			now = b.time.now()
		}
		if m.reopened {
			m.adopt(t, b, now)
		}
		compareBreaker(t, i, b, m, heard, now)
		if len(leases) > 40 {
			leases = leases[20:]
		}
	}
}

func fuzzResult(kind, arg byte) (Verdict, time.Duration) {
	switch kind {
	case 0, 1:
		return OK, time.Duration(5+arg%8) * time.Millisecond
	case 2:
		return OK, 60 * time.Millisecond
	case 3:
		return Transient, time.Duration(arg) * time.Millisecond
	}
	return Permanent, time.Millisecond
}

// adopt takes the jittered end of the open state from the breaker, after a look at it.
func (m *breakerModel) adopt(t *testing.T, b *Breaker, now time.Duration) {
	t.Helper()
	period := m.c.OpenFor
	for range m.failed {
		period = min(2*period, m.c.MaxOpenFor)
	}
	m.until = time.Duration(b.retryAt.Load())
	if wait := m.until - now; wait < period/2 || wait > period {
		t.Fatalf("open for %v, want %v to %v", wait, period/2, period)
	}
}

func compareBreaker(t *testing.T, i int, b *Breaker, m *breakerModel, heard *changes, now time.Duration) {
	t.Helper()
	s := b.Stats()
	if want := m.seen(now); s.State != want || b.State() != want || b.closed() != (m.state == StateClosed) {
		t.Fatalf("operation %d: state is %v, want %v", i, s.State, want)
	}
	var calls, failures, slow, late uint32
	if m.state == StateClosed {
		calls, failures, slow, late = m.law.Window(now)
	}
	run, limit := m.law.Consecutive()
	got := [5]int{s.Calls, s.Failures, s.Slow, s.Consecutive, s.ConsecutiveLimit}
	if want := [5]int{int(calls), int(failures), int(max(slow, late)), run, limit}; got != want {
		t.Fatalf("operation %d: counts are %v, want %v", i, got, want)
	}
	if ratio, _ := m.law.TripRatio(); s.TripRatio != ratio {
		t.Fatalf("operation %d: trip ratio is %v, want %v", i, s.TripRatio, ratio)
	}
	if fmt.Sprint(heard.list) != fmt.Sprint(m.changes) {
		t.Fatalf("operation %d: told %v, want %v", i, heard.list, m.changes)
	}
	heard.list, m.changes = nil, nil
	// refusesFor agrees with what allow would do, and a look at it changes nothing.
	if refused := b.refusesFor(now); refused > 0 && !m.wouldRefuse(now) {
		t.Fatalf("operation %d: it says that it refuses for %v, and admits", i, refused)
	} else if s := m.seen(now); (refused > 0) != (s == StateOpen || s == StateIsolated) {
		t.Fatalf("operation %d: it refuses for %v while %v", i, refused, s)
	}
	b.explain(now)
	b.strain(now)
}

func (m *breakerModel) wouldRefuse(now time.Duration) bool {
	peek := *m
	peek.probes = nil
	for _, p := range m.probes {
		shadow := *p
		peek.probes = append(peek.probes, &shadow)
	}
	return peek.allow(now) == nil
}
