package resiliencehttp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/measuredgo/resilience"
)

// NewPolicy returns a policy for HTTP: the defaults of resilience.New, the name "http" and Rules. The options come after
// these and win.
func NewPolicy(opts ...resilience.Option) (resilience.Policy, error) {
	p, err := resilience.New(resilience.WithName("http"), resilience.WithRules(Rules()...))
	if err != nil {
		return resilience.Policy{}, err
	}
	p, err = p.With(opts...) // in two steps: within one, a classifier of the user's would come beneath Rules
	if err != nil {
		return resilience.Policy{}, fmt.Errorf("resiliencehttp: NewPolicy: %w", err)
	}
	return p, nil
}

// Rules are the verdicts on responses and on the errors of a transport, for a policy that is not made by NewPolicy. They
// are meant to be on top of the default classifier.
//
// Of responses, 429 is Throttled; 503 is Throttled with a usable Retry-After and Transient without; 408 and the other 5xx
// are Transient, except 501 and 505, which are Permanent; everything else is an answer. A usable Retry-After on a status
// that is retried is its pushback.
//
// Of errors, a connection that ends without an answer, an HTTP/2 stream error and GOAWAY are Transient; certificates, TLS
// alerts, protocol errors and addresses that no dial can reach are Permanent.
func Rules() []resilience.Rule {
	return []resilience.Rule{
		resilience.OnResult("http response", verdictOn),
		resilience.OnError("http certificate or protocol error", resilience.Permanent, hopeless),
		resilience.OnError("http connection ended", resilience.Transient, connectionEnded),
	}
}

func verdictOn(resp *http.Response) resilience.Verdict {
	v := verdictOnStatus(resp)
	if v.Kind() != resilience.KindTransient && v.Kind() != resilience.KindThrottled {
		return v
	}
	after, ok := retryAfter(resp.Header, func() time.Time { return arrival(resp) })
	if !ok {
		return v
	}
	if resp.StatusCode == http.StatusServiceUnavailable {
		v = resilience.Throttled
	}
	return v.After(after)
}

func verdictOnStatus(resp *http.Response) resilience.Verdict {
	if resp == nil {
		return resilience.OK
	}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests:
		return resilience.Throttled
	case code == http.StatusNotImplemented || code == http.StatusHTTPVersionNotSupported:
		return resilience.Permanent
	case code == http.StatusRequestTimeout || code >= 500:
		return resilience.Transient
	}
	return resilience.OK
}

// arrival is when the headers came, on the clock of the policy that made the attempt; without one it is now.
func arrival(resp *http.Response) time.Time {
	if resp.Request != nil {
		if at, ok := resp.Request.Context().Value(arrivalKey{}).(time.Time); ok {
			return at
		}
	}
	return time.Now()
}

// hopeless finds what the default classifier would take for a broken connection because it comes in a *net.OpError.
func hopeless(err error) bool {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var protocol *http.ProtocolError //nolint:staticcheck // old transports still return it
	var address *net.AddrError
	var literal *net.ParseError
	var network net.UnknownNetworkError
	if errors.As(err, &certificate) || errors.As(err, &record) || errors.As(err, &protocol) ||
		errors.As(err, &address) || errors.As(err, &literal) || errors.As(err, &network) {
		return true
	}
	var op *net.OpError // crypto/tls does not export the alerts that it puts into one
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error")
}

// endings are errors of net/http that have neither a type nor a variable to be found by.
var endings = [...]string{
	"http: server closed idle connection",
	"http2: server sent GOAWAY",
	"http2: Transport received Server's graceful shutdown GOAWAY",
	"http2: client connection lost",
	"http2: client conn is closed",
}

func connectionEnded(err error) bool {
	var stream http2StreamError
	if errors.Is(err, io.EOF) || errors.As(err, &stream) {
		return true
	}
	text := err.Error()
	for _, ending := range endings {
		if strings.Contains(text, ending) {
			return true
		}
	}
	return false
}

// http2StreamError has the fields of the one in golang.org/x/net/http2: the one inside of net/http fills any struct that has.
type http2StreamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (http2StreamError) Error() string { return "http2 stream error" }
