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
	slowAbove time.Duration // measured; never: it is not
	tripAbove time.Duration // slowAbove at the last trip, for the text
	readAt    time.Duration // when the estimator is read again
	since     time.Duration // of the state
	outage    time.Duration // when it last left StateClosed
	reopened  int           // openings since then, the first one apart
	score     trip.Score
	probes    []probe
	ticket    uint32 // of the newest probe
	patience  uint32 // how often the time that a probe has was doubled since the state began
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
// OpenFor has passed, and the one after it twice as long. It must not be copied: each copy would count as a call. The zero
// Lease stands for nothing. A Lease must not be settled from two goroutines at once.
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
		if left := b.openLeft(now); left > 0 {
			return Lease{}, left, false
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
		retryAfter = b.openLeft(now)
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

// openLeft is how much longer an open breaker refuses, 0 once probes are due. More than MaxOpenFor can be left only by a
// clock that stepped back, and then they are due. Twice MaxOpenFor, because now may be a little older than the trip:
// callers read the clock before they come here.
func (b *Breaker) openLeft(now time.Duration) time.Duration {
	left := time.Duration(b.retryAt.Load()) - now
	if left > 2*b.config.MaxOpenFor {
		return 0
	}
	return max(left, 0)
}

// stateLocked is the state at now, whether or not anybody has asked since it began.
func (b *Breaker) stateLocked(now time.Duration) BreakerState {
	s := b.load().state()
	switch {
	case s == StateOpen && b.openLeft(now) == 0:
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
		b.outage, b.tripAbove = now, b.slowAbove
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

func (b *Breaker) probedLocked(ok bool, d, now time.Duration, to subscriber) {
	var step trip.Step
	if ok {
		step = b.score.Succeed(b.slowProbeLocked(d, now))
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

// slowProbeLocked asks the threshold that the breaker tripped by.
func (b *Breaker) slowProbeLocked(d, now time.Duration) bool {
	if b.lawLocked().Cause().Rule == trip.SlowThreshold {
		return d > b.config.SlowThreshold
	}
	return b.stillSlowLocked(d, now)
}

// stillSlowLocked compares with the measured threshold, which only a closed breaker keeps up to date. Once its samples are
// too old to be a measurement there is none any more, or a dependency that stays slower would be refused for ever.
func (b *Breaker) stillSlowLocked(d, now time.Duration) bool {
	if d <= b.slowAbove {
		return false
	}
	if b.latencies.Count(now) < b.config.SlowCalls.MinSamples {
		b.slowAbove = never
		b.setNotable()
		return false
	}
	return true
}

// recoveringLocked first ends the ramp, if its time was up before the call was: the breaker is closed then, whether or not
// anybody has asked.
func (b *Breaker) recoveringLocked(ok bool, d, now time.Duration, to subscriber) {
	b.catchUpLocked(now, to)
	if b.closed() {
		return
	}
	if !ok {
		if b.score.Fail() == trip.Reopen {
			b.reopenLocked(now, to)
		}
		return
	}
	b.score.Save()
	if t := b.config.SlowThreshold; t > 0 && d > t || b.stillSlowLocked(d, now) {
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
	period := doubled(b.config.OpenFor, b.reopened, b.config.MaxOpenFor)
	wait := period/2 + rand.N(period-period/2)
	b.retryAt.Store(int64(later(now, wait))) // before the state that reads it
	b.enterLocked(StateOpen, now)
	b.tellLocked(to, EventBreakerOpened, wait)
}

// doubled is d doubled so many times, but no more than most.
func doubled(d time.Duration, times int, most time.Duration) time.Duration {
	for range times {
		if d >= most/2 {
			return most
		}
		d *= 2
	}
	return d
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
	b.patience = 0
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
