package resilience

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/limit"
)

// LimiterConfig sets a limit on the calls that may be in flight at once: a fixed one, or one that is learned from the
// latency of the calls. A zero field means the default; the zero LimiterConfig is an adaptive limiter with a limit of at
// most 200.
//
// Max is the one number worth setting: what the limit cannot exceed when the measurement is wrong. The other adaptive
// fields follow it: an Initial that is not written is 20, or the nearest number between Min and Max.
type LimiterConfig struct {
	Name string // in errors

	Fixed int // above 0: a fixed limit, and the adaptive fields must be zero

	Initial, Min, Max int     // adaptive: 20, 1, 200
	Multiple          float64 // adaptive: queueing begins at this multiple of the baseline, above 1; default: the law's own, 1.15 to 1.6
	Decrease          float64 // adaptive: what the deepest single cut leaves of the limit, between 0 and 1; default 0.7

	Queue int   // callers that may wait for a permit, first in, first out; default 0: refused at once
	Clock Clock // nil: that of the policy, of a shared limiter the standard time package

	fixed bool // made by FixedLimit, which takes no zero
}

// AdaptiveLimit learns the limit from the latency of the calls and never exceeds max. Zero: the default, 200.
func AdaptiveLimit(max int) LimiterConfig { return LimiterConfig{Max: max} }

// FixedLimit allows n calls at once, at least 1.
func FixedLimit(n int) LimiterConfig { return LimiterConfig{Fixed: n, fixed: true} }

// The defaults of an adaptive limiter. The law's own are in internal/limit.
const (
	defaultInitialLimit = 20
	defaultMaxLimit     = 200
)

// resolve notes all problems and fills in the defaults.
func (c LimiterConfig) resolve(k *checker) LimiterConfig {
	k.atLeast("LimiterConfig.Queue", c.Queue, 0)
	if c.Clock != nil && isNil(c.Clock) {
		k.refuse("LimiterConfig.Clock", bare("a nil pointer"), "a clock, or nothing")
	}
	switch {
	case c.Fixed < 0 || c.fixed && c.Fixed == 0:
		k.refuse("LimiterConfig.Fixed", c.Fixed, "at least 1")
		return c
	case c.Fixed > 0:
		c.refuseAdaptive(k)
		return c
	}
	return c.resolveAdaptive(k)
}

// refuseAdaptive notes the adaptive fields that stand beside a fixed limit.
func (c LimiterConfig) refuseAdaptive(k *checker) {
	for _, f := range []struct {
		name    string
		written bool
		value   any
	}{
		{"Initial", c.Initial != 0, c.Initial},
		{"Min", c.Min != 0, c.Min},
		{"Max", c.Max != 0, c.Max},
		{"Multiple", c.Multiple != 0, c.Multiple},
		{"Decrease", c.Decrease != 0, c.Decrease},
	} {
		if f.written {
			k.refuse("LimiterConfig."+f.name, f.value, fmt.Sprintf("nothing beside LimiterConfig.Fixed, which is %d", c.Fixed))
		}
	}
}

func (c LimiterConfig) resolveAdaptive(k *checker) LimiterConfig {
	if c.Max < 0 {
		k.refuse("LimiterConfig.Max", c.Max, "at least 1")
	}
	switch {
	case c.Min < 0:
		k.refuse("LimiterConfig.Min", c.Min, "1 to Max")
	case c.Max > 0 && c.Min > c.Max:
		k.refuse("LimiterConfig.Min", c.Min, fmt.Sprintf("at most LimiterConfig.Max, which is %d", c.Max))
	}
	switch {
	case c.Initial < 0:
		k.refuse("LimiterConfig.Initial", c.Initial, "Min to Max")
	case c.Max > 0 && c.Initial > c.Max:
		k.refuse("LimiterConfig.Initial", c.Initial, fmt.Sprintf("at most LimiterConfig.Max, which is %d", c.Max))
	case c.Initial > 0 && c.Initial < c.Min:
		k.refuse("LimiterConfig.Initial", c.Initial, fmt.Sprintf("at least LimiterConfig.Min, which is %d", c.Min))
	}
	if c.Multiple != 0 {
		k.above("LimiterConfig.Multiple", c.Multiple, 1)
	}
	if !(c.Decrease >= 0 && c.Decrease < 1) {
		k.refuse("LimiterConfig.Decrease", c.Decrease, "more than 0 and less than 1")
	}
	// A default yields to what was written beside it.
	c.Min = orDefault(c.Min, 1)
	c.Max = orDefault(c.Max, max(defaultMaxLimit, c.Min, c.Initial))
	c.Initial = orDefault(c.Initial, min(max(defaultInitialLimit, c.Min), c.Max))
	return c
}

// LimiterStats is one look at a limiter.
type LimiterStats struct {
	Limit    int           // calls that may be in flight; after a cut more may be, until they return
	InFlight int           // calls that hold a permit
	Waiting  int           // calls in the queue
	Baseline time.Duration // what an adaptive limiter takes for the latency without a queue; 0 while that is cold
}

// Limiter bounds the calls in flight of all policies and callers that share it. It is safe for concurrent use. The zero
// Limiter is not usable: make one with NewLimiter.
//
// An adaptive limiter finds the largest limit at which the latency is still that of a dependency without a queue. Known
// to fall short: dependencies that have room for a few noisy calls only, and clients that join others which already keep
// a queue standing there.
type Limiter struct {
	config *LimiterConfig // resolved
	time   *timeline

	// Calls are admitted while inFlight < limit and nobody waits. All three are read without the lock; waiting is written
	// before inFlight is looked at again, and inFlight before waiting, so that no caller goes to sleep beside a free permit.
	inFlight, limit, waiting atomic.Int64

	mu      sync.Mutex  // guards what is beneath, and every change of limit and waiting
	law     *limit.Core // made with the first sample: most limiters of a large scope never see one
	waiters list.List   // of *waiter, the next one in front
}

// waiter is a caller in the queue.
type waiter struct {
	granted  chan struct{} // closed with the grant
	inFlight int           // with the call that was granted; 0: still waiting
}

// Permit is the admission of one call. Release it once the call has ended, however it ended. It must not be copied. The
// zero Permit holds nothing.
type Permit struct {
	limiter  *Limiter
	admitted time.Duration // a fixed limiter has no use for it
	inFlight int           // with this call, when it was admitted
	released uint32        // 1 once it is settled
}

// outcome is what a limiter learns from the end of a call.
type outcome uint8

const (
	outcomeSuccess outcome = iota
	outcomeTimeout         // ended by the policy's own attempt timeout
	outcomeIgnored         // says nothing about the load: failed fast, was cancelled, was refused
)

// NewLimiter returns a limiter to be shared with WithSharedLimiter, or to be used by itself with Acquire. The error names
// every problem of c.
func NewLimiter(c LimiterConfig) (*Limiter, error) {
	check := newChecker("NewLimiter")
	c = c.resolve(check)
	if err := check.err(); err != nil {
		return nil, err
	}
	return newLimiter(&c, newTimeline(c.Clock)), nil
}

// newLimiter takes a resolved configuration, which must not change any more.
func newLimiter(c *LimiterConfig, t *timeline) *Limiter {
	l := &Limiter{config: c, time: t}
	l.limit.Store(int64(max(c.Fixed, c.Initial)))
	return l
}

func (l *Limiter) adaptive() bool { return l.config.Fixed == 0 }

func (l *Limiter) lawLocked() *limit.Core {
	if l.law == nil {
		c := l.config
		tolerance := 0.0
		if c.Multiple > 0 {
			tolerance = c.Multiple - 1
		}
		l.law = limit.New(limit.Config{
			Initial: c.Initial, Min: c.Min, Max: c.Max,
			Tolerance: tolerance, Decrease: c.Decrease, Seed: rand.Uint64(),
		})
	}
	return l.law
}

// Acquire takes a permit for one call. If none is free it waits its turn where Queue has room, until ctx is done; whoever
// gives up leaves the queue. A context that is done gets no permit, even if one is free.
//
// Errors: a *LimitedError, which matches ErrLimited, when there is neither a permit nor room to wait; an error that
// matches ctx.Err() and the context's cause when ctx is done.
func (l *Limiter) Acquire(ctx context.Context) (Permit, error) {
	if ctx == nil {
		return Permit{}, errors.New("resilience: Limiter.Acquire: nil context")
	}
	return l.wait(ctx, never, l.reading())
}

// Release gives the permit back after a call that ended with that verdict. Only the first Release counts, also among
// concurrent ones. An adaptive limiter learns from OK, by the time since the permit was granted, and from no other
// verdict: none can say that the caller's own timeout ended the call. A policy tells that apart by itself.
func (p *Permit) Release(v Verdict) {
	if p.limiter == nil || !atomic.CompareAndSwapUint32(&p.released, 0, 1) {
		return
	}
	o := outcomeIgnored
	if v.Kind() == KindOK {
		o = outcomeSuccess
	}
	p.settle(o, p.limiter.reading())
}

// Stats is one snapshot of the limiter.
func (l *Limiter) Stats() LimiterStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LimiterStats{Limit: int(l.limit.Load()), InFlight: int(l.inFlight.Load()), Waiting: l.waiters.Len()}
	if l.law != nil {
		s.Baseline = l.law.Baseline()
	}
	return s
}

// SetLimit changes a fixed limit, at once: a raised one admits as many waiting callers as fit. Permits that are out stay
// valid. It fails for n below 1, and for an adaptive limiter, whose limit is its own.
func (l *Limiter) SetLimit(n int) error {
	if l.adaptive() {
		return fmt.Errorf("resilience: Limiter.SetLimit: limiter %q is adaptive, want a fixed one", l.config.Name)
	}
	check := newChecker("Limiter.SetLimit")
	check.atLeast("n", n, 1)
	if err := check.err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit.Store(int64(n))
	l.grantLocked()
	return nil
}

// reading is that of the clock where the law needs one; a fixed limiter does without.
func (l *Limiter) reading() time.Duration {
	if !l.adaptive() {
		return 0
	}
	return l.time.now()
}

// tryAcquire takes a permit if one is free. While callers wait, none is.
func (l *Limiter) tryAcquire(now time.Duration) (Permit, bool) {
	if l.waiting.Load() > 0 {
		return Permit{}, false
	}
	n, ok := l.admit()
	if !ok {
		return Permit{}, false
	}
	return Permit{limiter: l, admitted: now, inFlight: n}, true
}

// admit counts one more call in flight if the limit allows it, and returns how many there are with it.
func (l *Limiter) admit() (inFlight int, ok bool) {
	for {
		n := l.inFlight.Load()
		if n >= l.limit.Load() {
			return 0, false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			return int(n) + 1, true
		}
	}
}

// wait takes a permit, waiting at most within for it. Its errors are those of Acquire; the time running out is a
// *LimitedError too.
func (l *Limiter) wait(ctx context.Context, within, now time.Duration) (Permit, error) {
	if ctx.Err() != nil {
		return Permit{}, endedWait(ctx)
	}
	p, queued := l.enqueue(within, now)
	if p.limiter != nil {
		return p, nil
	}
	if queued == nil {
		return Permit{}, l.refusal()
	}
	var fired <-chan time.Time
	if within != never {
		timer, stop := l.time.timer(within)
		defer stop()
		fired = timer
	}
	select {
	case <-queued.Value.(*waiter).granted:
	case <-ctx.Done():
	case <-fired:
	}
	ended := ctx.Err() != nil
	p, ok := l.leave(queued, ended, l.reading())
	switch {
	case ok:
		return p, nil
	case ended:
		return Permit{}, endedWait(ctx)
	}
	return Permit{}, l.refusal()
}

// enqueue returns a permit or, where waiting is possible, a place in the queue.
func (l *Limiter) enqueue(within, now time.Duration) (Permit, *list.Element) {
	if p, ok := l.tryAcquire(now); ok {
		return p, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if within <= 0 || l.waiters.Len() >= l.config.Queue {
		return Permit{}, nil
	}
	queued := l.waiters.PushBack(&waiter{granted: make(chan struct{})})
	l.waiting.Add(1)
	l.grantLocked() // a permit may have come back before anybody could know of the waiter
	return Permit{}, queued
}

// leave ends a wait. What ended it does not matter, only what is the case now: a permit may have arrived together with
// the timer, and is then used, or with the end of the context, and is handed on. The latency counts from now: the time in
// the queue and on the way out of it is not the dependency's.
func (l *Limiter) leave(queued *list.Element, ended bool, now time.Duration) (Permit, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch w := queued.Value.(*waiter); {
	case w.inFlight == 0:
		l.waiters.Remove(queued)
		l.waiting.Add(-1)
	case ended:
		l.inFlight.Add(-1)
		l.grantLocked()
	default:
		return Permit{limiter: l, admitted: now, inFlight: w.inFlight}, true
	}
	return Permit{}, false
}

// grantLocked admits waiting callers while there is room. It belongs after everything that makes room.
func (l *Limiter) grantLocked() {
	for l.waiters.Len() > 0 {
		n, ok := l.admit()
		if !ok {
			return
		}
		w := l.waiters.Remove(l.waiters.Front()).(*waiter)
		l.waiting.Add(-1)
		w.inFlight = n
		close(w.granted)
	}
}

// release settles the permit, once, and returns the limit afterwards and whether the law has just moved it. That another
// number was drawn for an unchanged limit that is not a whole one is no move.
func (p *Permit) release(o outcome, now time.Duration) (limit int, changed bool) {
	l := p.limiter
	if l == nil {
		return 0, false
	}
	if p.released != 0 {
		return int(l.limit.Load()), false
	}
	p.released = 1
	return p.settle(o, now)
}

// settle returns a permit that is marked as released.
func (p *Permit) settle(o outcome, now time.Duration) (limit int, changed bool) {
	l := p.limiter
	l.inFlight.Add(-1)
	if learns := o != outcomeIgnored && l.adaptive(); learns || l.waiting.Load() > 0 {
		l.mu.Lock()
		if learns {
			changed = l.learnLocked(p, o, now)
		}
		l.grantLocked()
		l.mu.Unlock()
	}
	return int(l.limit.Load()), changed
}

func (l *Limiter) learnLocked(p *Permit, o outcome, now time.Duration) (changed bool) {
	law := l.lawLocked()
	before, effective := law.Limit(), law.Effective()
	if o == outcomeSuccess {
		law.Success(now-p.admitted, p.inFlight, now)
	} else {
		law.Timeout(now-p.admitted, p.inFlight, now)
	}
	l.limit.Store(int64(law.Effective()))
	return law.Effective() != effective && law.Limit() != before
}

func (l *Limiter) refusal() error { return &LimitedError{Limiter: l.config.Name} }

// endedWait is the error of a wait whose context is done.
func endedWait(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return fmt.Errorf("resilience: waiting for a permit: %w", cause)
	}
	return fmt.Errorf("resilience: waiting for a permit: %w: %w", err, cause)
}

// explain is one line about the limiter, for Explain.
func (l *Limiter) explain() string {
	s := l.Stats()
	var b strings.Builder
	if !l.adaptive() {
		fmt.Fprintf(&b, "fixed %d", s.Limit)
	} else {
		fmt.Fprintf(&b, "limit %d (%d-%d)", s.Limit, l.config.Min, l.config.Max)
	}
	fmt.Fprintf(&b, ", %d in flight, %d of %d waiting", s.InFlight, s.Waiting, l.config.Queue)
	switch {
	case !l.adaptive():
	case s.Baseline == 0:
		b.WriteString("; baseline cold")
	default:
		b.WriteString("; baseline " + short(s.Baseline))
	}
	return b.String()
}
