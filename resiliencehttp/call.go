package resiliencehttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/measuredgo/resilience"
)

// call is one request on its way through the policy. Its attempts may run side by side, as legs of a hedge, and outlive
// send: apart from the upload nothing in it changes once they run.
type call struct {
	t       *Transport
	host    *host
	req     *http.Request // the caller's; with legs a copy of it, because the caller's is the caller's again when send returns
	repeats bool
	over    context.Context // ends with send; nil without legs
	until   time.Time       // the deadline, where the policy does not know that a body was read ahead: under a clock of the user's
	upload  upload
	failed  error // why there is nothing to send
}

// send runs the request under the policy.
func (t *Transport) send(h *host, req *http.Request, repeats bool) (*http.Response, error) {
	c := &call{t: t, host: h, req: req, repeats: repeats}
	ctx := req.Context()
	if c.prepare() { // to read the body ahead takes of the time of the call
		var cancel context.CancelFunc
		if h.look.OwnClock && h.look.Deadline != resilience.Unbounded {
			c.until = h.look.Now().Add(h.look.Deadline)
		}
		ctx, cancel = h.look.Within(ctx, h.look.Deadline)
		defer cancel()
		c.buffer(ctx)
	}
	defer c.upload.close()
	switch {
	case h.look.Attempts > 1 && !c.repeats:
		ctx = resilience.SingleShot(ctx)
	case h.look.Hedges && c.repeats:
		var end context.CancelFunc
		c.over, end = context.WithCancel(context.Background())
		defer end()
		c.req = req.Clone(req.Context())
	}
	resp, err := resilience.Do(ctx, h.policy, c.attempt)
	if err != nil {
		return nil, err
	}
	if resp.Request != nil && resp.Request.Context().Value(callKey{}) == c {
		resp.Request = req
	}
	return resp, nil
}

type callKey struct{}

func nothing() {}

// prepare says where the attempts get their bodies from, or that the body has to be read ahead.
func (c *call) prepare() (ahead bool) {
	req := c.req
	switch {
	case req.Body == nil || req.Body == http.NoBody:
	case !c.repeats:
		c.upload.stream = req.Body
	case req.GetBody != nil:
		closeBody(req) // every attempt asks GetBody: what the caller owns is never read
		c.upload.open = req.GetBody
	default:
		return true
	}
	return false
}

// buffer keeps the body of the request for several attempts if it is small enough, and has the request sent once if not.
func (c *call) buffer(ctx context.Context) {
	limit := c.t.set.bodyLimit
	if limit == 0 || c.req.ContentLength > limit {
		c.repeats, c.upload.stream = false, c.req.Body
		return
	}
	ahead, whole, err := readAhead(ctx, c.req.Body, limit)
	switch {
	case err != nil:
		c.failed = err
	case whole:
		c.upload.open = func() (io.ReadCloser, error) { return memoryBody(ahead), nil }
	default:
		c.repeats, c.upload.stream = false, prefixed(ahead, c.req.Body)
	}
}

// attempt is the callback of the policy. The attempt's context ends with it, the exchange lives as long as its response.
func (c *call) attempt(ctx context.Context) (*http.Response, error) {
	if c.failed != nil {
		return nil, resilience.Permanent.Mark(c.failed)
	}
	info, _ := resilience.AttemptFrom(ctx)
	if err := c.withinQuota(info); err != nil {
		return nil, err
	}
	x := newExchange(ctx, c, info)
	handed := false
	defer func() {
		if !handed { // an error, a panic or runtime.Goexit
			x.end()
		}
	}()
	if err := x.late(); err != nil {
		return nil, err
	}
	req, err := c.request(x)
	if err != nil {
		return nil, resilience.Permanent.Mark(err)
	}
	resp, err := c.t.base.RoundTrip(req)
	if resp, err = x.answer(req, resp, err); err != nil {
		return nil, err
	}
	handed = true
	return resp, nil
}

func (c *call) withinQuota(info resilience.AttemptInfo) error {
	if !c.t.set.quota {
		return nil
	}
	look := &c.host.look
	left := c.host.quota.blocked(look.Now)
	if left <= 0 {
		return nil
	}
	look.Emit(resilience.Event{Kind: resilience.EventRejectedByQuota, Attempt: info.Number, Delay: left})
	return &resilience.LimitedError{Limiter: "published quota", RetryAfter: left}
}

// request makes the request of one attempt. Nothing in it is the caller's except the trailers, which the caller may still
// fill in while the body is sent; a leg of a hedge never has any, see Transport.repeats.
func (c *call) request(x *exchange) (*http.Request, error) {
	req := c.req.Clone(x.ctx)
	req.Trailer = c.req.Trailer
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	c.setHeaders(req, x)
	body, err := c.upload.next(x)
	if err != nil {
		return nil, err
	}
	if body == nil {
		return req, nil
	}
	req.Body, req.GetBody = body, nil
	if open := c.reopen(); open != nil {
		req.GetBody = func() (io.ReadCloser, error) { return x.track(open) }
	}
	return req, nil
}

// reopen is how the base may get the body once more, for a retry of its own on a connection that had died in the pool.
func (c *call) reopen() func() (io.ReadCloser, error) {
	if c.upload.open != nil {
		return c.upload.open
	}
	return c.req.GetBody
}

func (c *call) setHeaders(req *http.Request, x *exchange) {
	if c.repeats {
		req.Header[retryingHeader] = []string{"1"}
	}
	if name := c.t.set.criticality; name != "" {
		req.Header[name] = []string{resilience.CriticalityFrom(c.req.Context()).String()}
	}
	name := c.t.set.deadline
	left := min(c.host.look.AttemptTimeout, x.info.Remaining)
	if name == "" || left == resilience.Unbounded {
		return
	}
	if x.spent >= time.Millisecond { // rounding down the little that passes anyway would take a millisecond from every deadline
		left -= x.spent
	}
	const most = 1<<31 - 1 // what Inbound accepts
	ms := max(1, min(left/time.Millisecond, most))
	req.Header[name] = []string{strconv.FormatInt(int64(ms), 10)}
}

var errNoResponse = errors.New("resiliencehttp: the base transport returned neither a response nor an error")
