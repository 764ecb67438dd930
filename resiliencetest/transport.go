package resiliencetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/measuredgo/resilience"
)

// RoundTripper is a server that follows a script, without a network: each request takes the next step, and when there are no
// more, the last one repeats. See Exactly for a script that must not repeat. The zero RoundTripper answers 200 with no body.
//
//	var server resiliencetest.RoundTripper
//	server.Respond(503, "busy").Header("Retry-After", "2").Respond(200, "done")
//	client := &http.Client{Transport: &server}
//
// It reads and closes the bodies of requests, and remembers them. A request whose context is done is answered with the
// context's cause, as http.Transport does it. It is safe for concurrent use; steps may be added while it is called. It must not
// be copied once it is in use.
type RoundTripper struct {
	// Clock is the clock of delays; nil: the standard time package. Set it before the first request. It is called concurrently.
	Clock resilience.Clock

	script   script[answer]
	requests []Request       // guarded by script.mu
	bodies   []*responseBody // guarded by script.mu
}

// Request is what a RoundTripper remembers of a request.
type Request struct {
	Method  string                 // GET where the request has none
	URL     string                 // the whole of it, as text
	Header  http.Header            // nil if the request's is
	Body    []byte                 // all of it; nil for a request without one
	Attempt resilience.AttemptInfo // what resilience.AttemptFrom told; zero outside of a policy
}

// answer is one step of the script.
type answer struct {
	delay   time.Duration
	do      func(*http.Request) (*http.Response, error) // nil: what is beneath
	status  int                                         // 0: 200
	header  http.Header
	body    string
	ending  error // of the body; nil: io.EOF
	stalls  bool  // instead of an ending
	answers bool  // made by Respond
}

// Respond adds an answer; each request that takes it gets a header and a body of its own. To a HEAD request it has no body. A
// status that has not three digits panics.
func (rt *RoundTripper) Respond(status int, body string) *RoundTripper {
	if status < 100 || status > 999 {
		misuse("the status of RoundTripper.Respond is %d, want three digits", status)
	}
	rt.script.add(answer{status: status, body: body, answers: true})
	return rt
}

// Header adds a header line to the newest answer. It panics if the newest step was not made by Respond.
func (rt *RoundTripper) Header(key, value string) *RoundTripper {
	return rt.amend("RoundTripper.Header", func(a *answer) {
		header := a.header.Clone() // steps that were taken keep theirs
		if header == nil {
			header = http.Header{}
		}
		header.Add(key, value)
		a.header = header
	})
}

// Break has the body of the newest answer end with err after its text, instead of io.EOF or a Stall. It panics if err is nil or
// the newest step was not made by Respond.
func (rt *RoundTripper) Break(err error) *RoundTripper {
	if err == nil {
		misuse("the error of RoundTripper.Break is nil")
	}
	return rt.amend("RoundTripper.Break", func(a *answer) { a.ending, a.stalls = err, false })
}

// Stall has the body of the newest answer deliver its text and then nothing, until it is closed or the request's context
// ends: Read blocks. It panics if the newest step was not made by Respond.
func (rt *RoundTripper) Stall() *RoundTripper {
	return rt.amend("RoundTripper.Stall", func(a *answer) { a.stalls = true })
}

// Fail adds one step for each error, which the transport returns instead of an answer. A nil error panics. No error at all
// panics: it would add nothing.
func (rt *RoundTripper) Fail(errs ...error) *RoundTripper {
	if len(errs) == 0 {
		misuse("RoundTripper.Fail without an error")
	}
	for i, err := range errs {
		if err == nil {
			misuse("error %d of RoundTripper.Fail is nil", i+1)
		}
		rt.Do(func(*http.Request) (*http.Response, error) { return nil, err })
	}
	return rt
}

// Hang adds a step that blocks until the context of the request ends, and returns the context's cause. The request panics under
// a context that cannot end.
func (rt *RoundTripper) Hang() *RoundTripper {
	return rt.Do(func(r *http.Request) (*http.Response, error) {
		<-endOf(r.Context(), "RoundTripper.Hang")
		return nil, context.Cause(r.Context())
	})
}

// Do adds a step of your own; a nil fn panics. The body of its request can be read. The body of its answer is watched as any
// other, and that of an answer beside an error is closed. fn runs on the goroutine of the request, with no lock held, and as a
// last step that repeats it may be called concurrently.
func (rt *RoundTripper) Do(fn func(*http.Request) (*http.Response, error)) *RoundTripper {
	if fn == nil {
		misuse("the function of RoundTripper.Do is nil")
	}
	rt.script.add(answer{do: fn})
	return rt
}

// After delays the newest step by d, before there are any headers; one that has begun keeps its delay. If the context of the
// request ends before, the step is over and the context's cause is returned. A negative d panics, and so does After without a
// step.
func (rt *RoundTripper) After(d time.Duration) *RoundTripper {
	checkDelay("the delay of RoundTripper.After", d)
	rt.script.amend("RoundTripper.After", func(newest *answer) { newest.delay = d })
	return rt
}

// Exactly makes the script exact: a request beyond its last step fails the test, and gets an error marked Permanent; a step
// that was not used until the end of the test fails it too. Failures name the line that calls Exactly. After the end of the
// test, which is when t runs its cleanups, each request gets an error marked Permanent and fails nothing. A second Exactly
// panics.
func (rt *RoundTripper) Exactly(t testing.TB) *RoundTripper {
	t.Helper()
	rt.script.exactly(t)
	return rt
}

// RoundTrip takes the next step, and blocks as long as that says. A request whose body cannot be read gets the body's error and
// takes no step. RoundTrip may be called concurrently.
func (rt *RoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	seen, err := remember(req)
	if err != nil {
		return nil, err // the request's body failed: nothing was sent
	}
	call := 0
	next, err := rt.script.next(func(n int) {
		call = n
		rt.requests = append(rt.requests, seen)
	})
	if err != nil {
		return nil, err
	}
	if req.Context().Err() != nil || !pause(req.Context(), rt.Clock, next.delay) {
		return nil, context.Cause(req.Context())
	}
	resp, err := next.respond(req, seen.Body)
	if err != nil && resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // nobody else gets it
	}
	if err != nil || resp == nil {
		return nil, err
	}
	what := fmt.Sprintf("request %d: %s %s -> %d", call, seen.Method, seen.URL, resp.StatusCode)
	resp.Body = rt.watch(resp.Body, what)
	return resp, nil
}

// Requests returns a copy of what is known of the requests so far, in order, those without a step among them.
func (rt *RoundTripper) Requests() []Request {
	rt.script.mu.Lock()
	defer rt.script.mu.Unlock()
	requests := slices.Clone(rt.requests)
	for i := range requests {
		requests[i].Header = requests[i].Header.Clone()
		requests[i].Body = bytes.Clone(requests[i].Body)
	}
	return requests
}

// Unclosed names the answers whose body nobody has closed so far, one line each: those that leak a connection.
func (rt *RoundTripper) Unclosed() []string {
	rt.script.mu.Lock()
	defer rt.script.mu.Unlock()
	var unclosed []string
	for _, b := range rt.bodies {
		if !b.closed.Load() {
			unclosed = append(unclosed, b.what)
		}
	}
	return unclosed
}

func (rt *RoundTripper) amend(method string, change func(*answer)) *RoundTripper {
	rt.script.amend(method, func(newest *answer) {
		if !newest.answers {
			misuse("%s comes after RoundTripper.Respond", method)
		}
		change(newest)
	})
	return rt
}

func (rt *RoundTripper) watch(body io.ReadCloser, what string) io.ReadCloser {
	if body == nil {
		body = http.NoBody
	}
	b := &responseBody{ReadCloser: body, what: what}
	rt.script.mu.Lock()
	defer rt.script.mu.Unlock()
	rt.bodies = append(rt.bodies, b)
	return b
}

// remember reads and closes the body of a request.
func remember(req *http.Request) (Request, error) {
	info, _ := resilience.AttemptFrom(req.Context())
	seen := Request{Method: req.Method, URL: req.URL.String(), Header: req.Header.Clone(), Attempt: info}
	if seen.Method == "" {
		seen.Method = http.MethodGet
	}
	if req.Body == nil {
		return seen, nil
	}
	defer req.Body.Close() //nolint:errcheck // a transport has nobody to tell either
	var err error
	seen.Body, err = io.ReadAll(req.Body)
	return seen, err
}

// respond makes the answer to a request whose body was read.
func (a answer) respond(req *http.Request, sent []byte) (*http.Response, error) {
	if a.do != nil {
		readable := *req // a RoundTripper must not change the request
		readable.Body = io.NopCloser(bytes.NewReader(sent))
		resp, err := a.do(&readable)
		if resp != nil && resp.Request == nil {
			resp.Request = req
		}
		return resp, err
	}
	status := a.status
	if status == 0 {
		status = http.StatusOK
	}
	header := http.Header{}
	maps.Copy(header, a.header.Clone())
	length, ending := int64(len(a.body)), a.ending
	if ending == nil {
		ending = io.EOF
	}
	if a.ending != nil || a.stalls {
		length = -1 // chunked: the client cannot know that something is missing
	}
	var body io.ReadCloser = http.NoBody
	if a.answers && req.Method != http.MethodHead {
		body = &scriptedBody{
			ctx: req.Context(), text: strings.NewReader(a.body), ending: ending, stalls: a.stalls, closed: make(chan struct{}),
		}
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: length, Request: req,
	}, nil
}

// scriptedBody delivers a text, and then what the script says.
type scriptedBody struct {
	ctx    context.Context // the request's
	text   *strings.Reader
	ending error
	stalls bool
	closed chan struct{}
}

func (b *scriptedBody) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	if n, err := b.text.Read(p); err == nil || len(p) == 0 {
		return n, nil
	}
	if !b.stalls {
		return 0, b.ending
	}
	select {
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	}
}

// Close is called once.
func (b *scriptedBody) Close() error {
	close(b.closed)
	return nil
}

// responseBody knows whether it was closed.
type responseBody struct {
	io.ReadCloser
	what   string
	closed atomic.Bool
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.ReadCloser.Read(p)
}

func (b *responseBody) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.ReadCloser.Close()
}
