package resilience

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Policy says how a call is protected. It is an immutable value, safe for concurrent use, and as cheap to copy as a
// pointer: copies are the same policy, share what it measures, and compare equal. Make one for each dependency and keep
// it; one that is made anew for every call measures nothing.
//
// The zero Policy runs the callback once and adds nothing.
type Policy struct{ p *policy }

// policy is what a Policy points to: settings that never change and the live parts that belong to this policy alone,
// except those which it was given to share.
type policy struct {
	name string
	set  *settings
	time *timeline

	budget  *Budget  // nil: none
	breaker *Breaker // nil: none
	limiter *Limiter // nil: none

	terms   atomic.Pointer[terms] // made with the first success: most policies of a large scope never see one
	winRate *winRate              // of hedges; nil: not asked

	toldCeiling atomic.Int64 // what EventCeilingAdapted last told; 0: cold
	toldBackoff atomic.Int64 // what EventBackoffAdapted last told; 0: cold
	saturated   atomic.Bool  // inside an episode of saturation
}

// settings are the options of a policy, as they are after all of them were applied and checked. They are shared by the
// policies that a Scope derives.
type settings struct {
	deadline       time.Duration
	attemptTimeout time.Duration
	attempts       int

	ceilingIs       ceilingSetting
	measuresCeiling bool
	floorWritten    bool // of the ceiling: not the default
	ceiling         AttemptCeiling

	backoff         Backoff
	measuredBackoff *MeasuredBackoff // nil: not configured; likewise the pointers beneath

	budget        *BudgetConfig
	sharedBudget  *Budget
	breaker       *BreakerConfig
	sharedBreaker *Breaker
	limiter       *LimiterConfig
	sharedLimiter *Limiter
	hedge         *Hedge
	saturation    *Saturation

	constantsOnly   bool
	noProgressBound bool
	criticality     bool
	nestedRetries   bool

	rules         []Rule
	listeners     []func(Event)
	discards      []any // func(T) each
	beforeAttempt func(context.Context, AttemptInfo) error
	admit         func(context.Context, AttemptInfo) error
	drain         *Drain
	time          *timeline
}

// ceilingSetting says where an attempt ceiling comes from: one that the user wrote is honoured or refused, one that the
// library brought steps aside where it has no room.
type ceilingSetting uint8

const (
	ceilingByDefault ceilingSetting = iota
	ceilingWritten
	ceilingOff
)

// New returns the policy of these options, in any order, on top of the defaults: a deadline of 30 s, 3 attempts of at most
// 10 s each under a measured ceiling, exponential backoff with full jitter, and a private retry budget. Breaker, limiter,
// hedging and saturation are off.
//
// The error joins everything that is wrong: option, field, value and what is accepted.
func New(opts ...Option) (Policy, error) {
	return build("New", "", defaultSettings(), opts)
}

// MustNew is New for package-level variables: it panics with New's error.
func MustNew(opts ...Option) Policy { return must(New(opts...)) }

// With derives a policy: the settings of p under these options. What p measures stays p's: the derived policy starts with
// a fresh budget, breaker, limiter and estimators of its own. Objects that were given to share, and a drain, stay shared.
// Deriving from the zero Policy adds these options to nothing: one attempt, no bounds, no budget.
func (p Policy) With(opts ...Option) (Policy, error) {
	if p.p == nil {
		return build("With", "", noSettings(), opts)
	}
	return build("With", p.p.name, *p.p.set, opts)
}

// MustWith is With for package-level variables: it panics with With's error.
func (p Policy) MustWith(opts ...Option) Policy { return must(p.With(opts...)) }

func must(p Policy, err error) Policy {
	if err != nil {
		panic(err)
	}
	return p
}

// Name returns the name that WithName gave; the zero Policy has none.
func (p Policy) Name() string {
	if p.p == nil {
		return ""
	}
	return p.p.name
}

// Breaker returns the breaker that guards the calls, nil where there is none.
func (p Policy) Breaker() *Breaker {
	if p.p == nil {
		return nil
	}
	return p.p.breaker
}

// Limiter returns the limiter that guards the calls, nil where there is none.
func (p Policy) Limiter() *Limiter {
	if p.p == nil {
		return nil
	}
	return p.p.limiter
}

// Budget returns the budget of the retries, nil where there is none.
func (p Policy) Budget() *Budget {
	if p.p == nil {
		return nil
	}
	return p.p.budget
}

func defaultSettings() settings {
	s := noSettings()
	s.deadline, s.attemptTimeout, s.attempts = 30*time.Second, 10*time.Second, 3
	s.ceilingIs, s.ceiling = ceilingByDefault, CeilingAbove(3)
	s.budget = &BudgetConfig{}
	return s
}

func noSettings() settings {
	return settings{
		deadline: Unbounded, attemptTimeout: Unbounded, attempts: 1, ceilingIs: ceilingOff,
		rules: defaultClassifier.rules, time: standardTime,
	}
}

// build applies the options to a copy of the settings that they start from, checks the whole, and brings it to life.
func build(subject, name string, from settings, opts []Option) (Policy, error) {
	d := &draft{settings: from, name: name, check: newChecker(subject)}
	for i, o := range opts {
		if o == nil {
			d.check.refuse(fmt.Sprintf("option %d", i+1), bare("nil"), "an Option")
			continue
		}
		o.apply(d)
	}
	d.finish()
	if err := d.check.err(); err != nil {
		return Policy{}, err
	}
	finished := d.settings // a copy of its own: the draft need not live as long
	return Policy{bringToLife(d.name, &finished)}, nil
}

// fresh is the policy with the same settings, another name and nothing learned.
func (p Policy) fresh(name string) Policy { return Policy{bringToLife(name, p.p.set)} }

// bringToLife makes the live parts that the settings ask for.
func bringToLife(name string, s *settings) *policy {
	p := &policy{
		name: name, set: s, time: s.time,
		budget: s.sharedBudget, breaker: s.sharedBreaker, limiter: s.sharedLimiter,
	}
	if s.budget != nil {
		p.budget = newBudget(*s.budget, s.guardTime(s.budget.Clock))
	}
	if c := s.breaker; c != nil {
		p.breaker = newBreaker(c, s.guardTime(c.Clock))
	}
	if c := s.limiter; c != nil {
		p.limiter = newLimiter(c, s.guardTime(c.Clock))
	}
	if h := s.hedge; h != nil && h.WinRate.Minimum > 0 {
		p.winRate = newWinRate(h.WinRate, s.time.now())
	}
	return p
}

// guardTime is the timeline of a private guard: the policy's, unless its settings name a clock.
func (s *settings) guardTime(c Clock) *timeline {
	if c == nil {
		return s.time
	}
	return newTimeline(c)
}

// draft is a policy in the making.
type draft struct {
	settings
	name  string
	check *checker

	// What the options of this one New or With add. It is put on top at the end, so that their order has no effect.
	classifier     *Classifier
	addedRules     [][]Rule
	addedListeners []func(Event)
	addedDiscards  []any
}

// finish puts together what adds up and checks the whole.
func (d *draft) finish() {
	if d.classifier != nil {
		d.rules = d.classifier.rules
	}
	for _, rules := range d.addedRules {
		d.rules = slices.Concat(rules, d.rules)
	}
	d.listeners = slices.Concat(d.listeners, d.addedListeners)
	d.discards = slices.Concat(d.addedDiscards, d.discards)
	d.checkBounds()
	d.checkMeasured()
	d.checkGuards()
	d.checkRules()
}

func (d *draft) checkBounds() {
	if d.deadline <= 0 {
		d.check.refuse("WithDeadline", d.deadline, "more than 0, or Unbounded")
	}
	if d.attemptTimeout <= 0 {
		d.check.refuse("WithAttemptTimeout", d.attemptTimeout, "more than 0, or Unbounded")
	}
	if d.attempts < 1 {
		d.check.refuse("WithAttempts", d.attempts, "at least 1, the first attempt included")
	}
	d.check.under("WithBackoff", func() { d.backoff = d.backoff.resolve(d.check) })
	d.budget = resolved(d.check, "WithBudget", d.budget, BudgetConfig.resolve)
}

// checkMeasured settles the terms that are measured, and refuses what contradicts what.
func (d *draft) checkMeasured() {
	d.resolveCeiling()
	d.measuredBackoff = resolved(d.check, "WithMeasuredBackoff", d.measuredBackoff, MeasuredBackoff.resolve)
	d.hedge = resolved(d.check, "WithHedge", d.hedge, Hedge.resolve)
	d.saturation = resolved(d.check, "WithSaturation", d.saturation, Saturation.resolve)
	if d.saturation != nil && !d.measuresCeiling && d.measuredBackoff == nil && d.hedge == nil {
		d.check.refuse("WithSaturation", bare("on"), "an attempt ceiling, a measured backoff or a hedge whose measurement it protects")
	}
	if !d.constantsOnly {
		return
	}
	for _, o := range []struct {
		name    string
		written bool
	}{
		{"WithAttemptCeiling", d.ceilingIs == ceilingWritten},
		{"WithMeasuredBackoff", d.measuredBackoff != nil},
		{"WithHedge", d.hedge != nil},
		{"WithSaturation", d.saturation != nil},
	} {
		if o.written {
			d.check.refuse("WithAdaptive", false, "true together with "+o.name+", or no "+o.name)
		}
	}
}

// resolveCeiling decides whether there is a measured ceiling at all: one that the user wrote is honoured or refused, the
// library's own steps aside where it has no room.
func (d *draft) resolveCeiling() {
	switch d.ceilingIs {
	case ceilingOff:
		d.measuresCeiling = false
		return
	case ceilingByDefault:
		d.measuresCeiling = !d.constantsOnly && d.attemptTimeout != Unbounded && d.attemptTimeout > defaultCeilingFloor
	case ceilingWritten:
		d.measuresCeiling = true
	}
	d.check.under("WithAttemptCeiling", func() {
		if floor := d.ceiling.Floor; d.floorWritten && floor > 0 && floor >= d.attemptTimeout {
			d.check.refuse("AttemptCeiling.Floor", floor, fmt.Sprintf("less than WithAttemptTimeout, which is %v", d.attemptTimeout))
		}
		d.ceiling = d.ceiling.resolve(d.check)
	})
}

// resolved is a copy of the settings of an option with every default filled in, nil where the option is off.
func resolved[S any](c *checker, option string, settings *S, resolve func(S, *checker) S) *S {
	if settings == nil {
		return nil
	}
	var filled S
	c.under(option, func() { filled = resolve(*settings, c) })
	return &filled
}

func (d *draft) checkGuards() {
	d.breaker = resolved(d.check, "WithBreaker", d.breaker, BreakerConfig.resolve)
	d.limiter = resolved(d.check, "WithLimiter", d.limiter, LimiterConfig.resolve)
	if d.drain != nil {
		d.drain.follow(d.time)
	}
}

func (d *draft) checkRules() {
	for i, r := range d.rules {
		if r.broken != "" {
			d.check.refuse(fmt.Sprintf("rule %d (%s)", i+1, r.name), bare(r.broken), "a function or an error")
		}
	}
}
