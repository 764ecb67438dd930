package resiliencehttp

import (
	"context"
	"net/http"

	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/internal/inside"
)

type markKey struct{}

type mark int

const (
	unmarked mark = iota
	markedRepeatable
	markedSingleShot
)

// Repeatable returns a shallow copy of the request that is marked as safe to repeat, whatever its method. The key goes
// into its Idempotency-Key header, unless it is empty or there is one already. The request itself is not changed.
func Repeatable(req *http.Request, idempotencyKey string) *http.Request {
	marked := withMark(req, markedRepeatable)
	if idempotencyKey == "" || req.Header.Get(idempotencyHeader) != "" {
		return marked
	}
	marked.Header = req.Header.Clone()
	if marked.Header == nil {
		marked.Header = make(http.Header, 1)
	}
	marked.Header.Set(idempotencyHeader, idempotencyKey)
	return marked
}

// SingleShot returns a shallow copy of the request that is sent at most once, whatever its method. The request itself is
// not changed. Of Repeatable and SingleShot the outer one counts.
func SingleShot(req *http.Request) *http.Request { return withMark(req, markedSingleShot) }

func withMark(req *http.Request, m mark) *http.Request {
	return req.WithContext(context.WithValue(req.Context(), markKey{}, m))
}

// repeats reports whether the request may be sent more than once.
func (t *Transport) repeats(h *host, req *http.Request) bool {
	if h.look.Attempts <= 1 || inside.SingleShot(req.Context()) || !t.repeatable(req) {
		return false
	}
	if _, above := req.Header[retryingHeader]; above && !h.look.NestedRetries {
		h.look.Emit(resilience.Event{Kind: resilience.EventNestedRetry})
		return false
	}
	return !h.look.Hedges || len(req.Trailer) == 0 // trailers are filled in while a body is sent, and legs would send two
}

// repeatable reports whether sending the request twice is no worse than sending it once.
func (t *Transport) repeatable(req *http.Request) bool {
	switch m, _ := req.Context().Value(markKey{}).(mark); m {
	case markedRepeatable:
		return true
	case markedSingleShot:
		return false
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace:
		return true
	}
	return t.set.retriesUnsafe || hasIdempotencyKey(req)
}

// hasIdempotencyKey follows net/http: the header counts also with no value, which marks a request without sending it.
func hasIdempotencyKey(req *http.Request) bool {
	if _, ok := req.Header[idempotencyHeader]; ok {
		return true
	}
	_, ok := req.Header["X-Idempotency-Key"]
	return ok
}
