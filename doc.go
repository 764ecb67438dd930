// Package resilience protects calls to something that can fail. One immutable Policy, made once for each dependency, is
// wrapped round a call with Policy.Run or Do:
//
//	var payments = resilience.MustNew(
//		resilience.WithName("payments"),
//		resilience.WithDeadline(2*time.Second),
//		resilience.WithBreaker(resilience.BreakerConfig{}),
//	)
//
//	receipt, err := resilience.Do(ctx, payments, func(ctx context.Context) (Receipt, error) {
//		return client.Charge(ctx, order)
//	})
//
// # Measured, not guessed
//
// Every bound may be a constant, a measurement of the dependency, or both; the tighter one wins. A measurement never loosens
// what was written (the opt-in measured backoff base alone may lengthen, within its spread), and with too few samples there
// is no measurement: a cold policy is exactly its constants. Policy.Measured and Policy.Explain tell what is in force.
//
// # One call
//
// Once: a context that is already done ends the call with nothing consumed. The deadline is the tightest of the policy's,
// the context's and what a drain leaves. Then, for each attempt:
//
//  1. deadline: nothing left ends the call
//  2. limiter, then breaker: a full limiter is the attempt's outcome, an open breaker ends the call
//  3. before-attempt hook, under a context that ends with the deadline: its error ends the call as it is
//  4. bound: the tightest of attempt timeout, measured ceiling and time left
//  5. admit hook, under the attempt's context: its error is the attempt's outcome
//  6. callback
//  7. classification: one verdict for retry, breaker, budget and log
//  8. record: log, measurements, breaker, limiter and events, with one reading of the clock
//  9. decide, first match wins: OK; cancelled by the caller; permanent; deadline exceeded; attempts exhausted; a layer beneath
//     has spent its retries; draining; the wait does not fit; breaker open; budget exhausted; otherwise wait and go on
//
// # Guarantees
//
//	concurrency   everything exported is safe for concurrent use, except that a Lease belongs to one goroutine
//	goroutines    none, unless an attempt is hedged, or under an injected Clock somebody waits, or an HTTP request body without
//	              GetBody is read ahead, or the scheduler's probe runs; all end by themselves
//	listeners     run on the goroutine that causes or delivers the event, mostly the call's; they have to be safe for concurrent use
//	blocking      Run returns when the callback has, except for the losing legs of a hedge; a wait ends with the caller
//	panics        a panic or runtime.Goexit of a callback, a hook or a rule gives everything back and passes through with its value
//	locks         none is held while code of the user's runs, the methods of a Clock apart
//	time          monotonic; an injected Clock is followed by everything, and never mixed with the wall clock
//	deadlines     exact; no wait is begun that cannot end in time
//	errors        the dependency's own last error is always reachable with errors.Is and errors.As
//	allocations   one for each attempt, its context, which has no timer before somebody waits for it
package resilience
