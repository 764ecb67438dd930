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
	"github.com/measuredgo/resilience/internal/inside"
)

// exchange is one request to the base and its response. It is the parent of the context of that request, which has the
// values of the attempt, ends with the caller's, and has two bounds one after the other: until the headers that of the
// attempt, from then on the deadline of the call. Both count from the start of the attempt.
//
// States: waiting -> open (the headers are there) -> ended, or waiting -> ended. The alarm, and with hedging the end of the
// call, may end it at any time; end does so for the last time.
type exchange struct {
	context.Context // the caller's
	values          context.Context
	call            *call
	info            resilience.AttemptInfo
	ctx             context.Context // that of the request
	cancel          context.CancelCauseFunc
	began           time.Time     // the attempt, on the policy's clock; likewise arrived
	spent           time.Duration // of the attempt when the exchange began: an admit hook may take its time
	arrived         time.Time     // when the headers came
	bound           alarm
	untie           func() bool           // from the call; nil where nothing but the bound ends the exchange
	open            atomic.Bool           // the headers are there
	unread          atomic.Pointer[error] // why the caller's body could not be read
	body            body
}

var (
	// errEnded is the cause of a context whose response is closed, read to its end or given up.
	errEnded = fmt.Errorf("resiliencehttp: the response is closed: %w", context.Canceled)
	// errLost is that of a leg which was still on its way when the call ended.
	errLost = fmt.Errorf("resiliencehttp: another leg of the call was faster: %w", context.Canceled)
)

func newExchange(attempt context.Context, c *call, info resilience.AttemptInfo) *exchange {
	now, spent := inside.Age(attempt)
	if !c.until.IsZero() {
		info.Remaining = min(info.Remaining, c.until.Sub(now.Add(-spent)))
		info.Bound = min(info.Bound, info.Remaining)
	}
	x := &exchange{
		Context: c.req.Context(), values: context.WithoutCancel(attempt), call: c, info: info,
		began: now.Add(-spent), spent: spent,
	}
	x.ctx, x.cancel = context.WithCancelCause(x)
	x.bound = newAlarm(&c.host.look, x.expire)
	if info.Bound != resilience.Unbounded {
		x.bound.set(info.Bound - spent)
	}
	if c.over != nil { // an attempt that is no leg ends by its bound, by the caller or by returning
		x.untie = context.AfterFunc(c.over, func() { x.cancel(errLost) })
	}
	return x
}

// late is why there is no time for a request, nil if there is.
func (x *exchange) late() error {
	switch {
	case x.call.over != nil && x.call.over.Err() != nil:
		return errLost
	case x.spent >= x.info.Bound:
		return x.boundCause()
	}
	return nil
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
	if !x.inTime(resp) {
		_ = resp.Body.Close()
		return nil, context.Cause(x.ctx)
	}
	if x.call.t.set.quota {
		x.call.host.quota.observe(resp.Header, x.arrived, x.call.t.set.reserve)
	}
	return x.keep(resp)
}

// inTime ends the bound of the attempt. If it was reached, or the call has ended, the context of the request is done. From
// then on the exchange may outlive the call, unless the body is still to be read within it.
func (x *exchange) inTime(resp *http.Response) bool {
	if !x.bound.stop() {
		x.cancel(x.boundCause())
	}
	if x.untie != nil && !x.buffers(resp) && !x.untie() {
		<-x.ctx.Done() // what ended the call is about to cancel it
	}
	return x.ctx.Err() == nil
}

// buffers reports whether the body is read inside of the attempt.
func (x *exchange) buffers(resp *http.Response) bool {
	return x.call.t.set.buffers && resp.StatusCode != http.StatusSwitchingProtocols
}

// keep has the exchange live as long as the body. Only http.NoBody is known to have ended: HTTP/2 may send trailers behind a
// body of no bytes.
func (x *exchange) keep(resp *http.Response) (*http.Response, error) {
	if resp.Body == http.NoBody {
		x.end()
		return resp, nil
	}
	x.body.x, x.body.rc = x, resp.Body
	if w, ok := resp.Body.(io.Writer); ok {
		resp.Body = writableBody{&x.body, w}
	} else {
		resp.Body = &x.body
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.body.switched = true // the connection is the caller's now, and nothing here bounds it
		return resp, nil
	}
	look, buffers := &x.call.host.look, x.buffers(resp)
	empty := resp.ContentLength == 0 && resp.Header.Get("Content-Length") == "0"
	if (buffers || look.ProgressBound && !empty) && look.AttemptTimeout != resilience.Unbounded {
		x.body.bound = look.AttemptTimeout
		x.body.gap = newAlarm(look, x.body.interrupt)
	}
	x.open.Store(true)
	if x.info.Remaining != resilience.Unbounded {
		x.bound.set(x.info.Remaining - x.arrived.Sub(x.began))
	}
	if buffers {
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
