package resiliencehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience"
)

// exchange is one request to the base and its response. It is the parent of the context of that request, which has the
// values of the attempt, ends with the caller's, and has two bounds one after the other: until the headers that of the
// attempt, from then on the deadline of the call.
//
// States: waiting -> open (the headers are there) -> ended, or waiting -> ended. The alarm, and with hedging the end of the
// attempt's context, may end it at any time; end does so for the last time.
type exchange struct {
	context.Context // the caller's
	values          context.Context
	call            *call
	info            resilience.AttemptInfo
	ctx             context.Context // that of the request
	cancel          context.CancelCauseFunc
	began           time.Time // on the policy's clock; likewise arrived
	arrived         time.Time // when the headers came
	bound           alarm
	untie           func() bool           // from the attempt's context; nil where nothing but the bound ends it
	open            atomic.Bool           // the headers are there
	unread          atomic.Pointer[error] // why the caller's body could not be read
	body            body
}

// errEnded is the cause of a context whose response is closed, read to its end or given up.
var errEnded = fmt.Errorf("resiliencehttp: the response is closed: %w", context.Canceled)

func newExchange(attempt context.Context, c *call, info resilience.AttemptInfo) *exchange {
	x := &exchange{
		Context: c.req.Context(), values: context.WithoutCancel(attempt), call: c, info: info, began: c.host.look.Now(),
	}
	x.ctx, x.cancel = context.WithCancelCause(x)
	x.bound = newAlarm(&c.host.look, x.expire)
	if info.Bound != resilience.Unbounded {
		x.bound.set(info.Bound)
	}
	if c.host.look.Hedges { // else an attempt ends by its bound, by the caller or by returning, and Done would cost a timer
		x.untie = context.AfterFunc(attempt, func() { x.cancel(context.Cause(attempt)) })
	}
	return x
}

type arrivalKey struct{}

// Value answers for the attempt first. WithoutCancel keeps its cancellation from being found there, so that the context
// of the request attaches to the caller's without a goroutine.
func (x *exchange) Value(key any) any {
	switch key {
	case arrivalKey{}:
		return x.arrived
	case callKey{}:
		return x.call
	}
	if v := x.values.Value(key); v != nil {
		return v
	}
	return x.Context.Value(key)
}

// Deadline is that of the call, on the standard clock.
func (x *exchange) Deadline() (time.Time, bool) {
	at, ok := x.Context.Deadline()
	if x.info.Remaining == resilience.Unbounded || x.call.host.look.OwnClock {
		return at, ok
	}
	if own := x.began.Add(x.info.Remaining); !ok || own.Before(at) {
		return own, true
	}
	return at, ok
}

// expire is what the alarm does.
func (x *exchange) expire() {
	if !x.open.Load() {
		x.cancel(x.boundCause())
		return
	}
	x.cancel(resilience.ErrDeadlineExceeded)
	_ = x.body.shut()
}

func (x *exchange) boundCause() error {
	if x.info.Bound < x.info.Remaining {
		return resilience.ErrAttemptTimeout
	}
	return resilience.ErrDeadlineExceeded
}

// answer makes of what the base returned what the policy sees. Where it returns a response, the exchange lives on in it.
func (x *exchange) answer(req *http.Request, resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close()
		}
		return nil, x.failure(err)
	}
	if resp == nil {
		return nil, errNoResponse
	}
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	if resp.Request == nil {
		resp.Request = req
	}
	x.arrived = x.call.host.look.Now()
	if !x.inTime() {
		_ = resp.Body.Close()
		return nil, context.Cause(x.ctx)
	}
	if x.call.t.set.quota {
		x.call.host.quota.observe(resp.Header, x.arrived, x.call.t.set.reserve)
	}
	return x.keep(resp)
}

// inTime ends the bound of the attempt. If it was reached, or the attempt has ended, the context of the request is done.
func (x *exchange) inTime() bool {
	if !x.bound.stop() {
		x.cancel(x.boundCause())
	}
	if x.untie != nil && !x.untie() {
		<-x.ctx.Done() // what ended the attempt is about to cancel it
	}
	return x.ctx.Err() == nil
}

// keep has the exchange live as long as the body.
func (x *exchange) keep(resp *http.Response) (*http.Response, error) {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, nil // the connection is the caller's now, bounded by the caller's context alone
	case resp.Body == http.NoBody || resp.ContentLength == 0 && resp.Header.Get("Content-Length") == "0":
		x.end()
		return resp, nil
	}
	look := &x.call.host.look
	x.body.x, x.body.rc = x, resp.Body
	if look.ProgressBound && look.AttemptTimeout != resilience.Unbounded {
		x.body.bound = look.AttemptTimeout
		x.body.gap = newAlarm(look, x.body.interrupt)
	}
	x.open.Store(true)
	if x.info.Remaining != resilience.Unbounded {
		x.bound.set(x.info.Remaining - x.arrived.Sub(x.began))
	}
	if w, ok := resp.Body.(io.Writer); ok {
		resp.Body = writableBody{&x.body, w}
	} else {
		resp.Body = &x.body
	}
	if x.call.t.set.buffers {
		return buffered(resp)
	}
	return resp, nil
}

// failure is what to tell of an error of the base. Why an exchange of ours ended is told by the cause: the base may only
// know that it was cancelled.
func (x *exchange) failure(err error) error {
	if x.ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return x.ending(err)
	}
	unread := x.unread.Load()
	switch {
	case unread == nil:
		return err
	case errors.Is(err, *unread):
		return resilience.Permanent.Mark(err)
	}
	return resilience.Permanent.Mark(fmt.Errorf("%w: %w", *unread, err))
}

// ending is why the context of the request ended, err if it did not or if the response was closed.
func (x *exchange) ending(err error) error {
	cause := context.Cause(x.ctx)
	if cause == nil || cause == errEnded { //nolint:errorlint // the very value
		return err
	}
	if caller := x.Err(); caller != nil && !errors.Is(cause, caller) {
		return fmt.Errorf("%w: %w", caller, cause)
	}
	return cause
}

// end releases everything, if it has not been released yet.
func (x *exchange) end() {
	x.bound.stop()
	if x.untie != nil {
		x.untie()
	}
	x.cancel(errEnded)
}
