package resiliencehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/measuredgo/resilience"
)

// problem is a problem document of RFC 9457.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Instance string `json:"instance,omitempty"`

	retryAfter time.Duration
}

// WriteProblem answers a request with what has become of a call made for it: 504 for the deadline, an attempt timeout or a
// body that stalled, also where it is that after which no other attempt was allowed; 503 for breaker, budget, drain and a
// limit, a bare *resilience.LimitedError and a bare resilience.ErrBreakerOpen included; 502 for other attempts that are
// exhausted. Retry-After is set where it is known, in whole seconds, rounded up. The text names neither host, header nor
// body of the dependency; the instance is the path of r, which may be nil.
//
// For a cancelled call, and for an error that is not of package resilience, it writes nothing and returns false. It is to
// be called before anything was written to w.
func WriteProblem(w http.ResponseWriter, r *http.Request, err error) bool {
	p, ok := problemOf(err)
	if !ok {
		return false
	}
	if r != nil && r.URL != nil {
		p.Instance = r.URL.EscapedPath()
	}
	text, err := json.Marshal(p)
	if err != nil {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Content-Length") // of the answer that the handler had in mind
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(wholeSeconds(p.retryAfter), 10))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(text)
	return true
}

func wholeSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return seconds
}

func problemOf(err error) (problem, bool) {
	var e *resilience.Error
	var limited *resilience.LimitedError
	switch {
	case errors.As(err, &e):
		p, ok := problemOfCall(e)
		p.retryAfter = e.RetryAfter
		return p, ok
	case errors.As(err, &limited):
		p := refusal("a local limit")
		p.retryAfter = limited.RetryAfter
		return p, true
	case errors.Is(err, resilience.ErrBreakerOpen):
		return refusal("a circuit breaker"), true
	case errors.Is(err, resilience.ErrDeadlineExceeded):
		return overdue("The deadline of the request is over."), true
	case tooSlow(err):
		return overdue("A dependency did not answer in time."), true
	}
	return problem{}, false
}

func problemOfCall(e *resilience.Error) (problem, bool) {
	switch e.Reason {
	case resilience.ReasonDeadlineExceeded:
		return overdue("The deadline of the request is over, or would be before a dependency could answer."), true
	case resilience.ReasonBreakerOpen:
		return refusal("a circuit breaker"), true
	case resilience.ReasonBudgetExhausted:
		return refusal("the retry budget"), true
	case resilience.ReasonDraining:
		return refusal("the shutdown of the service"), true
	case resilience.ReasonAttemptsExhausted:
		return problemOfLast(e), true
	}
	return problem{}, false
}

// problemOfLast tells how the last attempt ended after which there was no other.
func problemOfLast(e *resilience.Error) problem {
	switch {
	case errors.Is(e.Err, resilience.ErrLimited):
		return refusal("a local limit")
	case tooSlow(e.Err):
		return overdue("A dependency did not answer in time.")
	}
	return newProblem(http.StatusBadGateway, "A dependency failed.")
}

func tooSlow(err error) bool {
	return errors.Is(err, resilience.ErrAttemptTimeout) || errors.Is(err, resilience.ErrStalled)
}

func overdue(detail string) problem { return newProblem(http.StatusGatewayTimeout, detail) }

func refusal(by string) problem {
	return newProblem(http.StatusServiceUnavailable, "The request was refused by "+by+".")
}

func newProblem(status int, detail string) problem {
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}
