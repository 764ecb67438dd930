package resilience

import "time"

// EventKind says what an Event tells.
type EventKind uint8

// The kinds of event. Exactly one of the terminal ones ends each call: Duration, of the whole call, Attempt, how many there
// were, Reason, and Err, what the caller gets.
const (
	// EventSucceeded ends a call that succeeded.
	EventSucceeded EventKind = iota + 1
	// EventNotRetried ends a call whose failure no other attempt could mend, or that a hook refused.
	EventNotRetried
	// EventExhausted ends a call that has spent its attempts, or whose pushback was longer than the longest backoff.
	EventExhausted
	// EventDeadlineExceeded ends a call at its deadline, or before a wait that would not fit into it.
	EventDeadlineExceeded
	// EventRejectedByBreaker ends a call that the breaker refused.
	EventRejectedByBreaker
	// EventRejectedByBudget ends a call whose retry the budget refused.
	EventRejectedByBudget
	// EventDraining ends a call whose retry was left out because the process shuts down.
	EventDraining
	// EventCancelled ends a call whose caller cancelled it.
	EventCancelled
	// EventPanicked ends a call whose callback, hook or rule panicked or called runtime.Goexit.
	EventPanicked

	// EventAttempt tells of one judged attempt: Verdict, Duration, Err.
	EventAttempt
	// EventRetrying comes before the wait for another attempt: Delay, and Attempt, the one about to run.
	EventRetrying
	// EventBreakerOpened tells that this call opened the breaker: Delay, for how long.
	EventBreakerOpened
	// EventBreakerHalfOpened tells that this call is the first probe of an open breaker.
	EventBreakerHalfOpened
	// EventBreakerClosed tells that this call closed the breaker.
	EventBreakerClosed
	// EventOrphanedWork tells of a callback that overran its bound by a second or more: Duration, by how much. It also tells of
	// the panic of a leg that had lost: Err.
	EventOrphanedWork
	// EventNestedRetry tells of a retry left out because another layer retries: one beneath has spent its retries, or one
	// above, in another process, has announced its own.
	EventNestedRetry
	// EventHedgeStarted tells of another leg: Attempt, Delay since the newest one.
	EventHedgeStarted
	// EventHedgeWon tells that a leg other than the first answered first.
	EventHedgeWon
	// EventHedgeDiscarded tells of a leg that lost: Duration, its time so far.
	EventHedgeDiscarded
	// EventHedgeSuppressed tells of a leg that was due and not started, because the dependency is failing or hedges stopped
	// winning: Attempt, Delay since the newest one.
	EventHedgeSuppressed
	// EventCeilingAdapted tells that the measured attempt ceiling turned warm or cold, or moved by a quarter: Duration, the bound now.
	EventCeilingAdapted
	// EventBackoffAdapted tells the same of the measured backoff base: Delay, the base now.
	EventBackoffAdapted
	// EventSaturationDetected tells, once per episode, that the process itself is slow: Duration, the queue delay.
	EventSaturationDetected
	// EventStalled tells of a body or a stream that stopped: Duration, the bound. It may follow the terminal event.
	EventStalled
	// EventStreamResumed tells of a stalled download that was resumed.
	EventStreamResumed
	// EventRejectedByQuota tells of a request refused because the server's published quota is used up: Delay, until its reset.
	EventRejectedByQuota
	// EventLimitChanged tells that this call moved the adaptive concurrency limit: Limit, the new one.
	EventLimitChanged

	eventKinds
)

var eventNames = [eventKinds]string{
	EventSucceeded: "succeeded", EventNotRetried: "not retried", EventExhausted: "exhausted",
	EventDeadlineExceeded: "deadline exceeded", EventRejectedByBreaker: "rejected by breaker",
	EventRejectedByBudget: "rejected by budget", EventDraining: "draining", EventCancelled: "cancelled",
	EventPanicked: "panicked", EventAttempt: "attempt", EventRetrying: "retrying",
	EventBreakerOpened: "breaker opened", EventBreakerHalfOpened: "breaker half-opened", EventBreakerClosed: "breaker closed",
	EventOrphanedWork: "orphaned work", EventNestedRetry: "nested retry", EventHedgeStarted: "hedge started",
	EventHedgeWon: "hedge won", EventHedgeDiscarded: "hedge discarded", EventHedgeSuppressed: "hedge suppressed",
	EventCeilingAdapted: "ceiling adapted", EventBackoffAdapted: "backoff adapted",
	EventSaturationDetected: "saturation detected", EventStalled: "stalled", EventStreamResumed: "stream resumed",
	EventRejectedByQuota: "rejected by quota", EventLimitChanged: "limit changed",
}

// Terminal reports whether an event of this kind ends a call.
func (k EventKind) Terminal() bool { return k >= EventSucceeded && k <= EventPanicked }

// String returns the kind in words.
func (k EventKind) String() string {
	if k > 0 && k < eventKinds {
		return eventNames[k]
	}
	return "unknown"
}

// Event is one thing that a policy tells its listeners. Fields that do not belong to its Kind are zero, which reads as OK of
// a Verdict and as succeeded of a Reason.
//
// Listeners run in order, with no lock held, on the goroutine of the call; of a stall on that of the reader, of orphaned
// work of a leg on the leg's, and changes of a breaker that calls share on that of whichever call delivers them. Calls run
// side by side, and so do listeners. One that panics breaks neither the call nor the listeners after it. What takes long in
// a listener takes long in the call.
type Event struct {
	Kind     EventKind     // says what happened, and which of the other fields count
	Policy   string        // its name
	Attempt  int           // the attempt's number, from 1; 0 where the event belongs to none
	Verdict  Verdict       // of EventAttempt
	Duration time.Duration // what has passed
	Delay    time.Duration // what is still to come, or was waited for
	Err      error         // what was wrong, if anything was
	Reason   Reason        // of terminal events
	Limit    int           // of EventLimitChanged
}

// listened reports whether anybody listens: without a listener no event is built.
func (p *policy) listened() bool { return len(p.set.listeners) > 0 }

func (p *policy) emit(e Event) {
	if !p.listened() {
		return
	}
	e.Policy = p.name
	for _, listen := range p.set.listeners {
		tell(listen, e)
	}
}

// tell shields the call and the other listeners from one that panics.
func tell(listen func(Event), e Event) {
	defer func() { _ = recover() }()
	listen(e)
}

// subscriber is who hears of the breaker's changes: the policy if anybody listens to it.
func (p *policy) subscriber() subscriber {
	if p.listened() {
		return p
	}
	return nil
}

func (p *policy) breakerChanged(kind EventKind, d time.Duration) { p.emit(Event{Kind: kind, Delay: d}) }
