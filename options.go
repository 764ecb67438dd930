package resilience

import (
	"context"
	"slices"
	"time"
)

// Option is one setting of a policy. The same setting given twice: the later one replaces the earlier one whole, except
// WithRules, WithListener and OnDiscard, which add up. The order of different options has no effect. WithX, WithSharedX
// and WithoutX are one setting.
type Option interface{ apply(d *draft) }

type option func(*draft)

func (o option) apply(d *draft) { o(d) }

// refused is an option that cannot be applied at all.
func refused(name string, value any, accepted string) Option {
	return option(func(d *draft) { d.check.refuse(name, value, accepted) })
}

// WithName names the policy in errors, events and Explain.
func WithName(name string) Option { return option(func(d *draft) { d.name = name }) }

// WithDeadline bounds the whole call: attempts, waits, hooks and pauses. Default 30 s; Unbounded for none. The context's
// own deadline counts as well, the tighter one wins.
func WithDeadline(limit time.Duration) Option { return option(func(d *draft) { d.deadline = limit }) }

// WithAttemptTimeout bounds each attempt. Default 10 s; Unbounded for none. A measured ceiling and the time left may be
// tighter.
func WithAttemptTimeout(limit time.Duration) Option {
	return option(func(d *draft) { d.attemptTimeout = limit })
}

// WithAttempts says how many attempts a call may make, the first one and hedges included. Default 3.
func WithAttempts(n int) Option { return option(func(d *draft) { d.attempts = n }) }

// WithAttemptCeiling bounds each attempt by the dependency's own latency. Default CeilingAbove(3), which steps aside where
// it has no room: under an attempt timeout of 50 ms or less, or without one.
func WithAttemptCeiling(c AttemptCeiling) Option {
	return option(func(d *draft) { d.ceilingIs, d.ceiling, d.floorWritten = ceilingWritten, c, c.Floor != 0 })
}

// WithoutAttemptCeiling leaves the attempt timeout alone.
func WithoutAttemptCeiling() Option { return option(func(d *draft) { d.ceilingIs = ceilingOff }) }

// WithBackoff says how long to wait before another attempt. Default: exponential from 100 ms, 1 s where the dependency
// throttles, by a factor of 2 up to 30 s, with full jitter.
func WithBackoff(b Backoff) Option { return option(func(d *draft) { d.backoff = b }) }

// WithMeasuredBackoff takes the base of the short backoff curve from the dependency's own latency. Off by default.
func WithMeasuredBackoff(m MeasuredBackoff) Option {
	return option(func(d *draft) { d.measuredBackoff = &m })
}

// WithoutMeasuredBackoff keeps the written base.
func WithoutMeasuredBackoff() Option { return option(func(d *draft) { d.measuredBackoff = nil }) }

// WithBudget sets the private retry budget. On by default, with the defaults of BudgetConfig.
func WithBudget(c BudgetConfig) Option {
	return option(func(d *draft) { d.budget, d.sharedBudget = &c, nil })
}

// WithSharedBudget takes retries from a budget that other policies take from as well.
func WithSharedBudget(b *Budget) Option {
	if b == nil || b.time == nil {
		return refused("WithSharedBudget", bare("nil or zero"), "a budget from NewBudget")
	}
	return option(func(d *draft) { d.budget, d.sharedBudget = nil, b })
}

// WithoutBudget lets every retry happen.
func WithoutBudget() Option { return option(func(d *draft) { d.budget, d.sharedBudget = nil, nil }) }

// WithBreaker gives each policy instance a circuit breaker of its own. Off by default.
func WithBreaker(c BreakerConfig) Option {
	return option(func(d *draft) { d.breaker, d.sharedBreaker = &c, nil })
}

// WithSharedBreaker guards the calls with a breaker that other policies feed as well.
func WithSharedBreaker(b *Breaker) Option {
	if b == nil || b.time == nil {
		return refused("WithSharedBreaker", bare("nil or zero"), "a breaker from NewBreaker")
	}
	return option(func(d *draft) { d.breaker, d.sharedBreaker = nil, b })
}

// WithoutBreaker removes the breaker.
func WithoutBreaker() Option { return option(func(d *draft) { d.breaker, d.sharedBreaker = nil, nil }) }

// WithLimiter gives each policy instance a concurrency limit of its own. Off by default.
func WithLimiter(c LimiterConfig) Option {
	return option(func(d *draft) { d.limiter, d.sharedLimiter = &c, nil })
}

// WithSharedLimiter takes permits from a limiter that other policies take from as well.
func WithSharedLimiter(l *Limiter) Option {
	if l == nil || l.time == nil {
		return refused("WithSharedLimiter", bare("nil or zero"), "a limiter from NewLimiter")
	}
	return option(func(d *draft) { d.limiter, d.sharedLimiter = nil, l })
}

// WithoutLimiter removes the limiter.
func WithoutLimiter() Option { return option(func(d *draft) { d.limiter, d.sharedLimiter = nil, nil }) }

// WithHedge starts another leg when an attempt takes longer than almost all of them. Off by default.
func WithHedge(h Hedge) Option { return option(func(d *draft) { d.hedge = &h }) }

// WithoutHedge removes the hedge.
func WithoutHedge() Option { return option(func(d *draft) { d.hedge = nil }) }

// WithSaturation stops the measurements while this process itself is slow. Off by default.
func WithSaturation(s Saturation) Option { return option(func(d *draft) { d.saturation = &s }) }

// WithoutSaturation lets the measurements go on whatever the process does.
func WithoutSaturation() Option { return option(func(d *draft) { d.saturation = nil }) }

// WithAdaptive is the master switch of the policy's own measured terms. Default true. False with a written ceiling, measured
// backoff, hedge or saturation is refused. It stops at the breaker and the limiter, which have switches of their own.
func WithAdaptive(on bool) Option { return option(func(d *draft) { d.constantsOnly = !on }) }

// WithRules has these rules consulted before those that are already there; among themselves in this order.
func WithRules(rules ...Rule) Option {
	rules = slices.Clone(rules)
	return option(func(d *draft) { d.addedRules = append(d.addedRules, rules) })
}

// WithClassifier replaces the rules that are there by those of c. Rules of the same New or With are consulted before it.
func WithClassifier(c *Classifier) Option {
	if c == nil {
		return refused("WithClassifier", bare("nil"), "a classifier")
	}
	return option(func(d *draft) { d.classifier = c })
}

// WithBeforeAttempt has fn run before each attempt, outside of the attempt's bound and under a context that ends with the
// caller's and with the deadline of the call. Its error ends the call as it is: nothing classifies it, nothing retries it.
// It runs on the goroutine of the call, that of a further leg of a hedge on one of its own, where its error only means that
// the leg does not start. No lock is held. Calls run side by side, and so does fn.
func WithBeforeAttempt(fn func(ctx context.Context, a AttemptInfo) error) Option {
	if fn == nil {
		return refused("WithBeforeAttempt", bare("nil"), "a function")
	}
	return option(func(d *draft) { d.beforeAttempt = fn })
}

// WithAdmit has fn run as the first thing in each attempt, under the attempt's context. Its error is the outcome of the
// attempt, classified as an error of the callback, which is skipped. It runs on the goroutine of the attempt, with no lock
// held. Calls run side by side, and so does fn.
func WithAdmit(fn func(ctx context.Context, a AttemptInfo) error) Option {
	if fn == nil {
		return refused("WithAdmit", bare("nil"), "a function")
	}
	return option(func(d *draft) { d.admit = fn })
}

// WithListener adds a listener; several run in order. See Event for what a listener may do.
func WithListener(fn func(Event)) Option {
	if fn == nil {
		return refused("WithListener", bare("nil"), "a function")
	}
	return option(func(d *draft) { d.addedListeners = append(d.addedListeners, fn) })
}

// OnDiscard adds what releases a value of type T that nobody gets: of an attempt that is retried, or of a leg that lost. The
// newest one for a type counts. Without one, a value that is an io.Closer is closed. fn runs on the goroutine of the
// attempt, with no lock held; a panic in it is swallowed. Calls run side by side, and so does fn.
func OnDiscard[T any](fn func(value T)) Option {
	if fn == nil {
		return refused("OnDiscard", bare("nil"), "a function")
	}
	return option(func(d *draft) { d.addedDiscards = append([]any{fn}, d.addedDiscards...) })
}

// WithProgressBound lets the attempt timeout also bound the gap between two reads of a response body and between two
// elements of a stream. Default true.
func WithProgressBound(on bool) Option { return option(func(d *draft) { d.noProgressBound = !on }) }

// WithCriticality honours the context's Criticality: sheddable work is never hedged and leaves half of the budget to
// others. Default false.
func WithCriticality(on bool) Option { return option(func(d *draft) { d.criticality = on }) }

// WithNestedRetries lets this policy retry although a layer beneath has already spent its own retries: attempts then
// multiply. Default false.
func WithNestedRetries(on bool) Option { return option(func(d *draft) { d.nestedRetries = on }) }

// WithDrain ties the policy to the shutdown of the process. Default none.
func WithDrain(drain *Drain) Option {
	if drain == nil || drain.begun == nil {
		return refused("WithDrain", bare("nil or zero"), "a drain from NewDrain")
	}
	return option(func(d *draft) { d.drain = drain })
}

// WithClock has everything in the policy follow c instead of the standard time package: deadlines, waits, measurements and
// the private guards. It is meant for tests.
func WithClock(c Clock) Option {
	if isNil(c) {
		return refused("WithClock", bare("nil"), "a clock")
	}
	return option(func(d *draft) { d.time = newTimeline(c) })
}
