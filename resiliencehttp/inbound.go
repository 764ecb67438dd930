package resiliencehttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/measuredgo/resilience"
)

// InboundOption is one setting of Inbound. Of the same setting given twice the later one counts.
type InboundOption interface{ apply(s *inbound) }

type inboundOption func(*inbound)

func (o inboundOption) apply(s *inbound) { o(s) }

type inbound struct {
	header      string
	criticality string
	maximum     time.Duration // 0: none
	reserve     time.Duration
	rejects     bool
	problems    []error
}

// WithInboundHeader names the header that carries the deadline; "" is X-Deadline-Ms, the default.
func WithInboundHeader(name string) InboundOption {
	return inboundOption(func(s *inbound) { s.header = headerName(name, deadlineHeader) })
}

// WithInboundCriticalityHeader names the header that carries the criticality; "" is X-Criticality, the default.
func WithInboundCriticalityHeader(name string) InboundOption {
	return inboundOption(func(s *inbound) { s.criticality = headerName(name, criticalityHeader) })
}

// WithInboundMaximum ignores deadlines further away than d, as if there were none: they are not clamped. More than 0.
func WithInboundMaximum(d time.Duration) InboundOption {
	return inboundOption(func(s *inbound) {
		s.maximum = d
		if d <= 0 {
			s.refuse("WithInboundMaximum", d, "more than 0")
		}
	})
}

// WithInboundReserve keeps back d of what the caller left, for this service's own work after the handler's calls. At
// least 0.
func WithInboundReserve(d time.Duration) InboundOption {
	return inboundOption(func(s *inbound) {
		s.reserve = d
		if d < 0 {
			s.refuse("WithInboundReserve", d, "at least 0")
		}
	})
}

// WithRejectExpired answers 504 with a problem document, instead of running the handler, where nothing is left of the
// deadline after the reserve.
func WithRejectExpired() InboundOption {
	return inboundOption(func(s *inbound) { s.rejects = true })
}

func (s *inbound) refuse(option string, value any, accepted string) {
	s.problems = append(s.problems, fmt.Errorf("resiliencehttp: Inbound: %s is %v, want %s", option, value, accepted))
}

// Inbound is the middleware that reads the deadline and the criticality of a request into its context, where every policy
// underneath obeys them. It panics with all that is wrong with the options.
//
// The deadline is a number of milliseconds from now, digits only, 1 to 2^31-1; of several lines the first one counts, and
// anything else is as no header. Relative, it needs no clocks that agree. context.Cause tells
// resilience.ErrDeadlineExceeded. The handler is not interrupted: it runs on the goroutine of the request, with the
// ResponseWriter of the server, and ends when it ends. A client that stalls in the middle of its body is for the timeouts
// of http.Server, or for http.ResponseController.SetReadDeadline in the handler.
//
// A criticality is sheddable, sheddable-plus or critical; anything else, critical-plus included, is Critical: strangers
// cannot claim it.
func Inbound(opts ...InboundOption) func(http.Handler) http.Handler {
	s := inbound{header: deadlineHeader, criticality: criticalityHeader}
	for i, o := range opts {
		if o == nil {
			s.refuse(fmt.Sprintf("option %d", i+1), nil, "an InboundOption")
			continue
		}
		o.apply(&s)
	}
	for _, named := range [][2]string{{"WithInboundHeader", s.header}, {"WithInboundCriticalityHeader", s.criticality}} {
		if option, header := named[0], named[1]; !isToken(header) {
			s.refuse(option, fmt.Sprintf("%q", header), "the name of a header")
		}
	}
	if err := errors.Join(s.problems...); err != nil {
		panic(err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, next) })
	}
}

func (s *inbound) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx := r.Context()
	if c, ok := wireCriticality(r.Header.Get(s.criticality)); ok {
		ctx = resilience.ContextWithCriticality(ctx, c)
	}
	if left, ok := s.left(r.Header.Get(s.header)); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, left, resilience.ErrDeadlineExceeded)
		defer cancel()
	}
	if s.rejects && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		WriteProblem(w, r, resilience.ErrDeadlineExceeded)
		return
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// left is what the handler may take; not positive if the reserve needs all of it.
func (s *inbound) left(value string) (time.Duration, bool) {
	ms, ok := digits(value)
	if !ok || ms < 1 || ms > 1<<31-1 {
		return 0, false
	}
	left := time.Duration(ms) * time.Millisecond
	if s.maximum > 0 && left > s.maximum {
		return 0, false
	}
	return left - s.reserve, true
}

func wireCriticality(value string) (resilience.Criticality, bool) {
	for c := resilience.Sheddable; c < resilience.CriticalPlus; c++ {
		if value == c.String() {
			return c, true
		}
	}
	return resilience.Critical, false
}
