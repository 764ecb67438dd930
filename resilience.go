package resilience

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/measuredgo/resilience/internal/inside"
)

// Result is all that is known about a call that has ended.
type Result[T any] struct {
	// Value is what the last attempt returned. It is there together with a nil Err also where a result rule called it a
	// failure; Reason tells.
	Value    T
	Err      error         // what Run and Do return
	Reason   Reason        // why the call ended
	Attempts []Attempt     // the first 4 and the last 12
	Total    int           // how many attempts there were
	Elapsed  time.Duration // of the whole call, waits included
}

// Run calls fn under the policy. fn gets a context of its own for each attempt, which ends with the attempt's bound and
// with the attempt.
//
// Run blocks until the call has ended, and never returns while fn runs, except that the losing legs of a hedge may run on.
// Before it returns a refusal by the breaker or the budget it pauses, at most 100 ms. A permanent error comes back as fn
// returned it, every other failure is an *Error; a nil ctx or fn is an error without a call. A panic, or runtime.Goexit,
// passes through with its own value, and with its own stack unless it is that of a leg (EventPanicked has it).
func (p Policy) Run(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := usable(ctx, fn == nil); err != nil {
		return err
	}
	if p.p == nil {
		return fn(ctx)
	}
	c := call{policy: p.p, ctx: ctx}
	if p.p.set.hedge != nil {
		c.legs = errorCallback(fn)
	}
	c.run(&callback{invoke: fn})
	return c.err
}

// Try is Run that tells everything.
func (p Policy) Try(ctx context.Context, fn func(ctx context.Context) error) Result[struct{}] {
	if err := usable(ctx, fn == nil); err != nil {
		return Result[struct{}]{Err: err, Reason: ReasonPermanent}
	}
	if p.p == nil {
		return tryNone(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	}
	c := call{policy: p.p, ctx: ctx, logsAll: true}
	if p.p.set.hedge != nil {
		c.legs = errorCallback(fn)
	}
	c.run(&callback{invoke: fn})
	return resultOf(&c, struct{}{})
}

// Do is Run for a callback with a value.
//
// The context that fn gets ends with the attempt. A value that goes on using it, such as an *http.Response whose body is read
// later, has to be finished inside fn or needs a context of its own: for HTTP there is package resiliencehttp. The value of an
// attempt that is retried, or of a leg that lost, is released: see OnDiscard.
func Do[T any](ctx context.Context, p Policy, fn func(ctx context.Context) (T, error)) (T, error) {
	var value T
	if err := usable(ctx, fn == nil); err != nil {
		return value, err
	}
	if p.p == nil {
		return fn(ctx)
	}
	c := call{policy: p.p, ctx: ctx}
	do(&c, &value, fn)
	return value, c.err
}

// TryDo is Do that tells everything.
func TryDo[T any](ctx context.Context, p Policy, fn func(ctx context.Context) (T, error)) Result[T] {
	if err := usable(ctx, fn == nil); err != nil {
		return Result[T]{Err: err, Reason: ReasonPermanent}
	}
	if p.p == nil {
		return tryNone(ctx, fn)
	}
	var value T
	c := call{policy: p.p, ctx: ctx, logsAll: true}
	do(&c, &value, fn)
	return resultOf(&c, value)
}

// do runs a callback with a value: the closures around it stay on the stack.
func do[T any](c *call, value *T, fn func(ctx context.Context) (T, error)) {
	p, valued := c.policy, false
	f := callback{
		invoke: func(ctx context.Context) (err error) {
			*value, err = fn(ctx)
			valued = err == nil
			return err
		},
		discard: func() {
			if valued {
				gone := *value
				*value, valued = *new(T), false // first: a hook may exit
				discard(p.set.discards, gone)
			}
		},
	}
	if rule := resultRule[T](p.set.rules); rule != nil {
		f.judge = func() Verdict { return rule(*value) }
	}
	if p.set.hedge != nil {
		c.legs = valueCallback[T](fn)
		f.adopt = func(l leg, err error) { *value, valued = l.(*valueLeg[T]).value, err == nil }
	}
	c.run(&f)
}

var (
	errNilContext  = errors.New("resilience: the context is nil")
	errNilCallback = errors.New("resilience: the callback is nil")
)

func usable(ctx context.Context, noCallback bool) error {
	switch {
	case ctx == nil:
		return errNilContext
	case noCallback:
		return errNilCallback
	}
	return nil
}

func tryNone[T any](ctx context.Context, fn func(ctx context.Context) (T, error)) Result[T] {
	begin := time.Now()
	value, err := fn(ctx)
	r := Result[T]{Value: value, Err: err, Total: 1, Elapsed: time.Since(begin)}
	verdict := OK
	if err != nil {
		r.Reason, verdict = ReasonPermanent, Permanent
	}
	r.Attempts = []Attempt{{Number: 1, Duration: r.Elapsed, Bound: Unbounded, Verdict: verdict, Err: err}}
	return r
}

func resultOf[T any](c *call, value T) Result[T] {
	return Result[T]{
		Value: value, Err: c.err, Reason: c.reason, Attempts: c.attemptLog(), Total: c.total, Elapsed: c.now - c.start,
	}
}

// discard releases a value that nobody gets. What the user's code does there must not change how the call ends, and on a
// leg's goroutine must not end the process: a panic is swallowed.
func discard[T any](hooks []any, value T) {
	defer func() { _ = recover() }()
	for _, known := range [][]any{hooks, inside.Discards} {
		for _, h := range known {
			if release, ok := h.(func(T)); ok {
				release(value)
				return
			}
		}
	}
	if closer, ok := any(value).(io.Closer); ok && !isNil(closer) {
		_ = closer.Close()
	}
}

// callback is the user's function as the executor sees it. It is apart from call because the compiler lets closures stay
// on the stack only if nothing in the same struct escapes.
type callback struct {
	invoke  func(context.Context) error
	judge   func() Verdict   // the verdict on the value, nil where there is no rule for it
	discard func()           // releases the value of the last attempt if there is one, nil where there are no values
	adopt   func(leg, error) // takes over what a leg returned, nil where there are no values
}

// verdict is that on the value which came with err.
func (f *callback) verdict(err error) Verdict {
	if err == nil && f.judge != nil {
		return f.judge()
	}
	return OK
}

// release releases the value of the last attempt, if there is one.
func (f *callback) release() {
	if f.discard != nil {
		f.discard()
	}
}

// call is one call of a policy. It lives on the stack of Run; nothing that outlives Run may hold it.
type call struct {
	policy  *policy
	ctx     context.Context // the caller's
	legs    legMaker        // nil without hedging
	logsAll bool            // also an attempt that succeeds at once

	begin   time.Time     // on the policy's clock
	start   time.Duration // the reading of begin
	now     time.Duration // the newest reading
	until   time.Duration // the effective deadline
	untilBy boundBy

	held held // what the attempt that is being admitted, made or judged holds

	total  int     // attempts so far
	last   Verdict // on the last one
	first  Attempt // of the log
	log    []Attempt
	failed error         // the last attempt's error
	cause  error         // the last one of the dependency: neither the mere ending of a context nor a refusal by the limiter
	valued bool          // the last attempt returned a value with a nil error
	spent  bool          // a policy beneath the last attempt has spent its retries
	cut    bool          // the time left cut the last attempt
	hit    time.Duration // the own bound that the last attempt ran into

	ended    bool
	panicked error // what is known of a leg's panic
	reason   Reason
	err      error
}

// held is what an attempt holds until it is judged or given up.
type held struct {
	attempt *attemptContext
	lease   Lease
	permit  Permit
	holds   bool // lease and permit are not settled yet
}

// run makes attempts until one of them ends the call.
func (c *call) run(f *callback) {
	defer c.leave(f)
	c.arrive()
	for !c.ended {
		var v Verdict
		if c.hedges() {
			v = c.race(f)
		} else {
			v = c.once(f)
		}
		if !c.ended {
			c.last = v
			c.decide(f, v)
		}
	}
}

// arrive reads the clock, finds the effective deadline, and turns back a caller who has left already.
func (c *call) arrive() {
	p := c.policy
	c.begin, c.start = p.time.present()
	c.now = c.start
	c.until, c.untilBy = later(c.start, p.set.deadline), byDeadline
	if c.until == never {
		c.untilBy = byNothing
	}
	if end := p.set.drain.end(p.time); end < c.until {
		c.until, c.untilBy = end, byDrain
	}
	// Under an injected clock the caller's deadline, which is on the wall clock, is left to the caller's context.
	if d, ok := c.ctx.Deadline(); ok && !p.time.injected() {
		if end := later(c.start, d.Sub(c.begin)); end < c.until {
			c.until, c.untilBy = end, byCaller
		}
	}
	c.callerEnded()
}

// once makes one attempt on the caller's goroutine, in the order of the package documentation. If it ends the call itself
// the verdict means nothing.
func (c *call) once(f *callback) Verdict {
	if !c.timeLeft() {
		return OK
	}
	if v, ok := c.admitted(); !ok {
		return v
	}
	c.total++
	a := c.arm(c.total, false)
	c.held.attempt = a
	err := answer(a, f.invoke)
	c.now = c.policy.time.now()
	v, evidence := c.classify(a, err, f.verdict(err))
	c.record(v, evidence)
	return v
}

// leave runs whichever way the call ends. After a panic or runtime.Goexit it gives back what the attempt held, and the
// panic travels on.
func (c *call) leave(f *callback) {
	if c.ended {
		return
	}
	c.now = c.policy.time.now()
	c.settle()
	f.release()
	c.policy.emit(Event{
		Kind: EventPanicked, Attempt: c.total, Duration: c.now - c.start, Err: c.panicked, Reason: ReasonPanicked,
	})
}
