package resilience

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"
)

// Stream runs a callback whose answer arrives in pieces. Until the first element it is a call as any other: retried, hedged,
// bounded by the deadline and the attempt timeout. That element, or the error in its place, is what is classified; a stream
// without elements is a success. From then on nothing is repeated: what open yields, the consumer gets, errors included, and
// the stream lasts as long as the caller's context and the consumer want. If the caller's context ends it, the last element
// is an error that says so. The context that open gets lives as long as the stream; a stream that a retry or a hedge gave
// up is cancelled, and its iterator stopped.
//
// With WithProgressBound the attempt timeout bounds the wait for each further element. Only a wait that is outstanding that
// long is a stall: its context is cancelled, EventStalled is told, and the consumer gets an error that matches ErrStalled. A
// consumer may take as long as it likes, and break off at any time. open has to heed its context.
//
// The call itself, and with it a permit of the limiter and a probe of the breaker, ends with the first element. Each range over
// the result is a call of its own. A first element that the consumer never gets is released as the values of Do are: see
// OnDiscard.
//
// The iterator of open runs as a coroutine, as with iter.Pull2. Go forbids that such a one moves between goroutines of which
// one is locked to its thread: while it ranges, a consumer must neither call runtime.LockOSThread nor be locked under a hedge.
func Stream[T any](ctx context.Context, p Policy, open func(ctx context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := usable(ctx, open == nil); err != nil {
			yield(*new(T), err)
			return
		}
		if p.p == nil {
			open(ctx)(yield)
			return
		}
		s, err := openStream(ctx, p.p, open)
		if err != nil {
			yield(*new(T), err)
			return
		}
		defer s.Close() //nolint:errcheck // never fails
		s.delivered = true
		for s.more && yield(s.value, s.err) {
			s.advance()
		}
	}
}

// opened is a stream whose first element is there. Closing it ends its context and its iterator.
type opened[T any] struct {
	policy *policy
	caller context.Context
	next   func() (T, error, bool)
	stop   func()
	cancel context.CancelCauseFunc

	value     T
	err       error
	more      bool
	delivered bool // the consumer has got the first element
	once      sync.Once
}

// openStream makes the call that ends with the first element.
func openStream[T any](ctx context.Context, p *policy, open func(context.Context) iter.Seq2[T, error]) (*opened[T], error) {
	var s *opened[T]
	rule := resultRule[T](p.set.rules)
	c := call{policy: p, ctx: ctx}
	f := callback{
		invoke: func(attempt context.Context) (err error) {
			s, err = pullFirst(ctx, attempt, p, open)
			return err
		},
		judge:   func() Verdict { return s.judge(rule) },
		discard: func() { discard(nil, s) },
		adopt:   func(l leg, _ error) { s = l.(*streamLeg[T]).opened },
	}
	if p.set.hedge != nil {
		c.legs = streamCallback[T]{ctx, p, open}
	}
	c.run(&f)
	if c.err != nil {
		return nil, c.err
	}
	return s, nil
}

// pullFirst opens a stream and waits for its first element. Until then the context of the stream ends with the attempt, and
// afterwards only with the caller's.
func pullFirst[T any](
	caller, attempt context.Context, p *policy, open func(context.Context) iter.Seq2[T, error],
) (s *opened[T], err error) {
	ctx, cancel := context.WithCancelCause(streamContext{caller, context.WithoutCancel(attempt)})
	release := context.AfterFunc(attempt, func() { cancel(context.Cause(attempt)) })
	o := &opened[T]{policy: p, caller: caller, cancel: cancel}
	defer func() {
		release()
		if s == nil {
			_ = o.Close()
		}
	}()
	o.next, o.stop = iter.Pull2(open(ctx))
	o.value, o.err, o.more = o.next()
	if o.err != nil {
		return nil, o.err
	}
	if !release() {
		return nil, attempt.Err() // it has ended, and the context of the stream with it
	}
	return o, nil
}

// streamContext ends with the caller's context and has the values of the attempt.
type streamContext struct {
	context.Context
	values context.Context
}

func (c streamContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// judge is the verdict on the first element.
func (s *opened[T]) judge(rule func(T) Verdict) Verdict {
	if rule == nil || !s.more {
		return OK
	}
	return rule(s.value)
}

// advance waits for another element. A source that ends without a word because the caller has left is no end of the stream.
func (s *opened[T]) advance() {
	told := s.err != nil
	s.wait()
	if ended := s.caller.Err(); ended != nil && !s.more && !told {
		reason := ReasonCancelled
		if errors.Is(ended, context.DeadlineExceeded) {
			reason = ReasonDeadlineExceeded
		}
		s.fail(&Error{Policy: s.policy.name, Reason: reason, Total: 1, cause: context.Cause(s.caller)})
	}
}

// fail makes an error the last element.
func (s *opened[T]) fail(err error) {
	s.release()
	s.err, s.more = err, true
	s.next = func() (T, error, bool) { return *new(T), nil, false }
	s.caller = context.Background()
}

// wait waits for another element, no longer than the gap bound.
func (s *opened[T]) wait() {
	bound := s.policy.set.attemptTimeout
	if s.policy.set.noProgressBound || bound == Unbounded {
		s.value, s.err, s.more = s.next()
		return
	}
	var mu sync.Mutex
	waiting, stalled := true, false
	disarm := s.policy.time.afterFunc(bound, func() {
		mu.Lock()
		defer mu.Unlock()
		if waiting {
			stalled = true
			s.cancel(ErrStalled)
		}
	})
	defer disarm()
	s.value, s.err, s.more = s.next()
	mu.Lock()
	defer mu.Unlock()
	waiting = false
	if stalled {
		s.fail(&stalledError{bound: bound, err: s.err})
		s.policy.emit(Event{Kind: EventStalled, Duration: bound, Err: s.err})
	}
}

// release releases an element that nobody gets.
func (s *opened[T]) release() {
	if value := s.value; s.more && s.err == nil {
		s.value = *new(T)
		discard(s.policy.set.discards, value)
	}
}

// Close ends the stream. It is what releases a stream that a retry or a hedge gave up, its first element included.
func (s *opened[T]) Close() error {
	if s == nil {
		return nil
	}
	s.once.Do(func() {
		defer func() { // last: a hook may exit
			if !s.delivered {
				s.release()
			}
		}()
		s.cancel(context.Canceled)
		if s.stop != nil {
			s.stop()
		}
	})
	return nil
}

// stalledError is what the consumer of a stalled stream gets. It unwraps to what the iterator made of its end.
type stalledError struct {
	bound time.Duration
	err   error
}

func (e *stalledError) Error() string {
	text := fmt.Sprintf("resilience: stalled: no element for %v", e.bound)
	if e.err != nil {
		text += ": " + clip(e.err.Error())
	}
	return text
}
func (e *stalledError) Unwrap() error        { return e.err }
func (e *stalledError) Timeout() bool        { return true }
func (e *stalledError) Is(target error) bool { return target == ErrStalled }

// streamCallback makes the legs of a hedged stream.
type streamCallback[T any] struct {
	caller context.Context
	policy *policy
	open   func(context.Context) iter.Seq2[T, error]
}

func (f streamCallback[T]) leg() leg { return &streamLeg[T]{streamCallback: f} }

type streamLeg[T any] struct {
	streamCallback[T]
	opened *opened[T]
}

func (l *streamLeg[T]) call(ctx context.Context) (err error) {
	l.opened, err = pullFirst(l.caller, ctx, l.policy, l.open)
	return err
}

func (l *streamLeg[T]) discard([]any) { discard(nil, l.opened) }
