package resiliencehttp

import (
	"errors"
	"iter"
	"net/http"

	"github.com/measuredgo/resilience"
)

// Transport is an http.RoundTripper that sends each request under a policy. It is safe for concurrent use. The zero
// Transport is not usable: make one with NewTransport, and keep it, because its measurements are its worth.
type Transport struct {
	base  http.RoundTripper
	set   settings
	hosts *hosts
	none  bool // the zero Policy: nothing to add
}

// NewTransport returns a transport that sends under p through base; nil is http.DefaultTransport. The policy should have
// the rules of this package, as that of NewPolicy does: without them a response is a success whatever its status. Under
// the zero Policy the transport is the base, and nothing more.
//
// The error joins everything that is wrong: option, value and what is accepted.
func NewTransport(base http.RoundTripper, p resilience.Policy, opts ...Option) (*Transport, error) {
	return newTransport("NewTransport", base, p, opts)
}

func newTransport(subject string, base http.RoundTripper, p resilience.Policy, opts []Option) (*Transport, error) {
	s, err := newSettings(subject, opts)
	if err != nil {
		return nil, err
	}
	if base == nil {
		base = http.DefaultTransport
	}
	h, err := newHosts(p, &s)
	if err != nil {
		return nil, err
	}
	return &Transport{base: base, set: s, hosts: h, none: p == resilience.Policy{}}, nil
}

// NewClient returns a client that sends under p through http.DefaultTransport. Its Timeout is 0: the deadline of the policy
// is the bound. Each redirect is a call of its own; what bounds all of them is the deadline of the request's context.
func NewClient(p resilience.Policy, opts ...Option) (*http.Client, error) {
	t, err := newTransport("NewClient", nil, p, opts)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

var errNoURL = errors.New("resiliencehttp: the request has no URL")

// RoundTrip sends the request under the policy of its host. Response and error are never both there: after the last
// attempt a response that was called a failure is returned as it is, with a nil error. Permanent errors of the base come
// back untouched, every other failure is a *resilience.Error.
//
// The request may be used again, and its body touched, once the response body has been closed. A request body of unknown
// kind that is to be repeated is read before the first attempt, within the deadline. Legs of a hedge may call GetBody at the
// same time; a request with trailers, which are filled in while a body is sent, is sent once under a hedge.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil {
		closeBody(req)
		return nil, errNoURL
	}
	if t.none {
		return t.base.RoundTrip(req)
	}
	h := t.hosts.of(req.URL)
	repeats := t.repeats(h, req)
	if t.set.resumes && repeats {
		return t.download(h, req)
	}
	return t.send(h, req, repeats)
}

// Hosts yields the hosts that have a policy of their own, as scheme://host[:port], and that policy: its Measured, Breaker
// and Explain are those of the host. With WithPerHost(false) there are none.
func (t *Transport) Hosts() iter.Seq2[string, resilience.Policy] {
	return func(yield func(string, resilience.Policy) bool) {
		if t.hosts.scope == nil {
			return
		}
		for key, p := range t.hosts.scope.All() {
			if !yield(key.String(), p) {
				return
			}
		}
	}
}

// CloseIdleConnections passes the wish of http.Client on to the base. The transport itself has no connections.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
