package resilience

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/quantile"
	"github.com/measuredgo/resilience/internal/trip"
)

// BreakerState is what a breaker does with calls.
type BreakerState uint8

// The states. Only in StateClosed do results feed the window and what is normal.
const (
	StateClosed     BreakerState = iota // admits all calls
	StateOpen                           // refuses all calls until its time is up
	StateHalfOpen                       // admits a few probes, which decide
	StateRecovering                     // admits a growing share
	StateIsolated                       // refuses all calls until Reset
)

// String returns the state's name in lower case.
func (s BreakerState) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateOpen:
		return "open"
	case StateHalfOpen:
		return "half-open"
	case StateRecovering:
		return "recovering"
	case StateIsolated:
		return "isolated"
	}
	return "unknown"
}

// Breaker stops calling a dependency that fails. It opens by the rules of BreakerConfig, refuses for a while, and lets
// probes decide whether to close. No goroutine and no timer belongs to it: its state follows from the clock when
// somebody asks.
//
// A Breaker is made by NewBreaker and is safe for concurrent use. No method waits, and none holds a lock while it calls
// back.
type Breaker struct {
	time      *timeline
	config    *BreakerConfig   // resolved
	latencies *quantile.Window // of successes while closed; nil: slow calls are not measured

	fast tallies // successes that the law has not been told yet

	word              atomic.Uint64 // a breakerWord; written under mu
	notable           atomic.Int64  // a success that took longer is told to the law at once
	foldDue           atomic.Int64  // so is every result from that time on
	retryAt           atomic.Int64  // end of the open state
	usual, usualUntil atomic.Int64  // cached by normalLatency

	mu        sync.Mutex // guards what follows, and every change of state
	law       *trip.Law  // made with the first result: most breakers of a large scope never see one
	born      time.Duration
	slowAbove time.Duration // measured
	readAt    time.Duration // when the estimator is read again
	since     time.Duration // of the state
	outage    time.Duration // when it last left StateClosed
	reopened  int           // openings since then, the first one apart
	score     trip.Score
	probes    []probe
	ticket    uint32 // of the newest probe
	ramp      ramp
	notices   []notice // not delivered yet
	telling   bool     // somebody delivers
}

// breakerWord is a generation, which every change of state raises, and the state.
type breakerWord uint64

func newBreakerWord(generation uint32, s BreakerState) breakerWord {
	return breakerWord(generation)<<8 | breakerWord(s)
}

func (w breakerWord) generation() uint32  { return uint32(w >> 8) }
func (w breakerWord) state() BreakerState { return BreakerState(w & 0xff) }

func (b *Breaker) load() breakerWord { return breakerWord(b.word.Load()) }

// probe is the slot of one admitted probe. An expired one may be taken over.
type probe struct {
	ticket uint32 // 0: free
	until  time.Duration
}

// NewBreaker returns a closed breaker. The error names every field that is out of range, with its value.
func NewBreaker(c BreakerConfig) (*Breaker, error) {
	k := newChecker("NewBreaker")
	c = c.resolve(k)
	if err := k.err(); err != nil {
		return nil, err
	}
	return newBreaker(&c, newTimeline(c.Clock)), nil
}

// newBreaker takes a resolved configuration, which must not change any more.
func newBreaker(c *BreakerConfig, t *timeline) *Breaker {
	now := t.now()
	b := &Breaker{time: t, config: c, born: now, since: now, slowAbove: never, readAt: now, probes: make([]probe, c.Probes)}
	if c.SlowCalls.Multiple != Off {
		b.latencies = quantile.New(c.SlowCalls.Window)
	} else {
		b.readAt = never
	}
	b.setNotable()
	b.foldDue.Store(math.MinInt64) // the first result makes the law, and the law says when the next one is due
	return b
}

func (b *Breaker) lawLocked() *trip.Law {
	if b.law == nil {
		law := trip.New(b.config.law(), b.born)
		b.law, b.fast = &law, newTallies()
	}
	return b.law
}

// Lease is one admission. Settle it with Done, also when the call panics: a probe that never reports holds its slot until
// OpenFor has passed. The zero Lease stands for nothing. A Lease must not be settled from two goroutines at once.
type Lease struct {
	breaker    *Breaker // nil: settled
	generation uint32
	probe      uint32 // the ticket; 0: no probe
}

// Allow asks for one call. The error is ErrBreakerOpen, and Stats tells when to come back. It never waits and does not
// allocate.
func (b *Breaker) Allow() (Lease, error) {
	if w := b.load(); w.state() == StateClosed { // no need to know the time
		return Lease{breaker: b, generation: w.generation()}, nil
	}
	l, _, ok := b.allow(b.time.now(), nil)
	if !ok {
		return Lease{}, ErrBreakerOpen
	}
	return l, nil
}

// Done says how the call went and how long it took. OK and Transient are evidence; every other verdict only returns the
// slot. The first Done settles the lease, later ones do nothing, and so does one that comes after the state it was given
// in.
func (l *Lease) Done(v Verdict, d time.Duration) {
	if b := l.breaker; b != nil {
		l.done(v, d, b.time.now(), nil)
	}
}

// allow is Allow at a given time. A refusal comes with the time until the open state ends, 0 where that is not known.
func (b *Breaker) allow(now time.Duration, to subscriber) (l Lease, retryAfter time.Duration, ok bool) {
	w := b.load()
	switch w.state() {
	case StateClosed:
		return Lease{breaker: b, generation: w.generation()}, 0, true
	case StateIsolated:
		return Lease{}, 0, false
	case StateOpen:
		if at := time.Duration(b.retryAt.Load()); now < at {
			return Lease{}, at - now, false
		}
	}
	return b.admit(now, to)
}

// admit decides where a state may change or a slot is needed.
func (b *Breaker) admit(now time.Duration, to subscriber) (l Lease, retryAfter time.Duration, ok bool) {
	b.mu.Lock()
	b.catchUpLocked(now, to)
	l = Lease{breaker: b, generation: b.load().generation()}
	switch b.load().state() {
	case StateClosed:
		ok = true
	case StateOpen:
		retryAfter = time.Duration(b.retryAt.Load()) - now
	case StateHalfOpen:
		l.probe = b.takeProbeLocked(now)
		ok = l.probe != 0
	case StateRecovering:
		ok = b.ramp.admit(now)
	}
	b.unlockAndTell()
	if !ok {
		l = Lease{}
	}
	return l, retryAfter, ok
}

// takeProbeLocked returns the ticket of a free slot, or of one whose holder has not reported for too long; 0 if there is
// none.
func (b *Breaker) takeProbeLocked(now time.Duration) uint32 {
	for i := range b.probes {
		if p := &b.probes[i]; p.ticket == 0 || now >= p.until {
			b.ticket++
			if b.ticket == 0 {
				b.ticket = 1
			}
			*p = probe{ticket: b.ticket, until: later(now, b.config.OpenFor)}
			return b.ticket
		}
	}
	return 0
}

// catchUpLocked makes the changes that only time makes: they happen when somebody asks.
func (b *Breaker) catchUpLocked(now time.Duration, to subscriber) {
	switch b.stateLocked(now) {
	case b.load().state():
	case StateHalfOpen:
		b.score = b.lawLocked().Score()
		b.enterLocked(StateHalfOpen, now)
		b.tellLocked(to, EventBreakerHalfOpened, 0)
	case StateClosed:
		b.closeLocked(now, to)
	}
}

// stateLocked is the state at now, whether or not anybody has asked since it began.
func (b *Breaker) stateLocked(now time.Duration) BreakerState {
	s := b.load().state()
	switch {
	case s == StateOpen && now >= time.Duration(b.retryAt.Load()):
		return StateHalfOpen
	case s == StateRecovering && b.ramp.share(now) >= 1:
		return StateClosed
	}
	return s
}

// done is Done at a given time.
func (l *Lease) done(v Verdict, d, now time.Duration, to subscriber) {
	b := l.breaker
	if b == nil {
		return
	}
	l.breaker = nil
	kind := v.Kind()
	evidence := kind == KindOK || kind == KindTransient
	if !evidence && l.probe == 0 || kind == KindOK && b.count(l.generation, d, now) {
		return
	}
	b.mu.Lock()
	defer b.unlockAndTell()
	w := b.load()
	if w.generation() != l.generation || l.probe != 0 && !b.returnProbeLocked(l.probe) || !evidence {
		return
	}
	switch ok := kind == KindOK; w.state() {
	case StateClosed:
		b.resultLocked(ok, d, now, to)
	case StateHalfOpen:
		b.probedLocked(ok, d, now, to)
	case StateRecovering:
		b.recoveringLocked(ok, d, now, to)
	}
}

// count settles a success without the lock, if nothing can follow from it. It reports false where the lock is needed. A
// change of state after the look at it makes no difference: what is counted belongs to the old generation.
func (b *Breaker) count(generation uint32, d, now time.Duration) bool {
	w := b.load()
	if w.generation() != generation {
		return true
	}
	if w.state() != StateClosed || int64(now) >= b.foldDue.Load() || int64(d) > b.notable.Load() || !b.fast.add(generation) {
		return false
	}
	if b.latencies != nil {
		b.latencies.Record(d, now)
	}
	return true
}

// foldLocked tells the law what was counted without the lock.
func (b *Breaker) foldLocked() {
	law := b.lawLocked()
	law.Fold(b.fast.take(b.load().generation()))
}

func (b *Breaker) resultLocked(ok bool, d, now time.Duration, to subscriber) {
	b.foldLocked()
	law := b.law
	late := b.config.SlowThreshold > 0 && d > b.config.SlowThreshold
	var rule trip.Rule
	if ok {
		b.readLatenciesLocked(now)
		rule = law.Succeed(d > b.slowAbove, late, now)
		if b.latencies != nil {
			b.latencies.Record(d, now)
		}
	} else {
		rule = law.Fail(late, now)
	}
	if rule != trip.None {
		b.outage = now
		b.openLocked(now, to)
		return
	}
	b.foldDue.Store(int64(min(law.Due(), b.readAt)))
}

// readLatenciesLocked learns at most once a second what is slow, before the estimator gets the present success.
func (b *Breaker) readLatenciesLocked(now time.Duration) {
	if now < b.readAt {
		return
	}
	b.readAt = now + time.Second
	c := b.config.SlowCalls
	usual, above, samples := b.latencies.Split(c.Quantile, c.Multiple, now)
	b.lawLocked().Latency(uint64(above), uint64(samples), now)
	b.slowAbove = never
	if samples >= c.MinSamples {
		b.slowAbove = quantile.Edge(time.Duration(min(c.Multiple*float64(usual), float64(time.Hour))))
	}
	b.setNotable()
}

func (b *Breaker) setNotable() {
	notable := b.slowAbove
	if t := b.config.SlowThreshold; t > 0 {
		notable = min(notable, t)
	}
	b.notable.Store(int64(notable))
}

func (b *Breaker) returnProbeLocked(ticket uint32) bool {
	for i := range b.probes {
		if b.probes[i].ticket == ticket {
			b.probes[i] = probe{}
			return true
		}
	}
	return false // overtaken
}

func (b *Breaker) probedLocked(ok bool, d, now time.Duration, to subscriber) {
	var step trip.Step
	if ok {
		step = b.score.Succeed(d > b.tripThresholdLocked())
	} else {
		step = b.score.Fail()
	}
	switch step {
	case trip.Reopen:
		b.reopenLocked(now, to)
	case trip.Close:
		if b.config.Recovery.Fraction == 0 {
			b.closeLocked(now, to)
			return
		}
		b.ramp = newRamp(b.config.Recovery, now-b.outage, now)
		b.enterLocked(StateRecovering, now)
	}
}

// tripThresholdLocked is what counted as slow when the breaker tripped. The measured one does not move while open.
func (b *Breaker) tripThresholdLocked() time.Duration {
	if b.lawLocked().Cause().Rule == trip.SlowThreshold {
		return b.config.SlowThreshold
	}
	return b.slowAbove
}

func (b *Breaker) recoveringLocked(ok bool, d, now time.Duration, to subscriber) {
	if !ok {
		b.reopenLocked(now, to)
		return
	}
	if int64(d) > b.notable.Load() {
		b.ramp.halve(now)
	}
}

func (b *Breaker) reopenLocked(now time.Duration, to subscriber) {
	b.reopened++
	b.openLocked(now, to)
}

// openLocked opens for a time that doubles with each failed attempt to close, with equal jitter: breakers that opened
// together do not probe together.
func (b *Breaker) openLocked(now time.Duration, to subscriber) {
	period := b.config.OpenFor
	for range b.reopened {
		if period >= b.config.MaxOpenFor/2 {
			period = b.config.MaxOpenFor
			break
		}
		period *= 2
	}
	wait := period/2 + rand.N(period-period/2)
	b.retryAt.Store(int64(later(now, wait))) // before the state that reads it
	b.enterLocked(StateOpen, now)
	b.tellLocked(to, EventBreakerOpened, wait)
}

func (b *Breaker) closeLocked(now time.Duration, to subscriber) {
	b.reopened = 0
	b.lawLocked().Closed(now)
	b.foldDue.Store(int64(min(b.lawLocked().Due(), b.readAt)))
	b.enterLocked(StateClosed, now)
	b.tellLocked(to, EventBreakerClosed, 0)
}

// enterLocked is the only writer of the state. Successes counted but not folded belong to a closed period that is over:
// its window and its step go with it.
func (b *Breaker) enterLocked(s BreakerState, now time.Duration) {
	b.since = now
	clear(b.probes)
	b.word.Store(uint64(newBreakerWord(b.load().generation()+1, s)))
}

// Isolate refuses every call until Reset. Results of calls that are under way change nothing.
func (b *Breaker) Isolate() {
	now := b.time.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enterLocked(StateIsolated, now)
}

// Reset closes the breaker, whatever its state, with an empty window. What is known about the dependency's normal
// behaviour stays.
func (b *Breaker) Reset() {
	now := b.time.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLocked(now, nil)
}
