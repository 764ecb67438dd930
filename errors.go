package resilience

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// sentinel is an error that stands for a reason.
type sentinel struct {
	text     string
	timeout  bool
	deadline bool // also matches context.DeadlineExceeded
}

func (s *sentinel) Error() string        { return "resilience: " + s.text }
func (s *sentinel) Timeout() bool        { return s.timeout }
func (s *sentinel) Is(target error) bool { return s.deadline && target == context.DeadlineExceeded }

// What errors.Is finds in the errors of this package. The two timeouts also match context.DeadlineExceeded.
var (
	// ErrDeadlineExceeded says that the deadline of the whole call, the policy's or an inherited one, is reached or would be.
	ErrDeadlineExceeded error = &sentinel{text: "deadline exceeded", timeout: true, deadline: true}
	// ErrAttemptTimeout says that an attempt ran into its own bound, the attempt timeout or the measured ceiling.
	ErrAttemptTimeout error = &sentinel{text: "attempt timed out", timeout: true, deadline: true}
	// ErrAttemptsExhausted says that the last attempt failed, and no other one was allowed.
	ErrAttemptsExhausted error = &sentinel{text: "attempts exhausted"}
	// ErrBreakerOpen says that the breaker admits nothing at the moment.
	ErrBreakerOpen error = &sentinel{text: "circuit breaker is open"}
	// ErrBudgetExhausted says that a retry was due, and the retry budget is spent.
	ErrBudgetExhausted error = &sentinel{text: "retry budget exhausted"}
	// ErrLimited says that a local limit refused the attempt. Every *LimitedError matches it.
	ErrLimited error = &sentinel{text: "limit reached"}
	// ErrDraining says that a retry was due, and the process is shutting down.
	ErrDraining error = &sentinel{text: "draining"}
	// ErrStalled says that a response body or a stream delivered nothing for longer than the attempt timeout.
	ErrStalled error = &sentinel{text: "stalled", timeout: true}
)

// Reason says why a call ended. The zero value is ReasonSucceeded.
type Reason uint8

// The reasons, each with its sentinel error where it has one.
const (
	ReasonSucceeded         Reason = iota
	ReasonPermanent                // no other attempt could mend it, or a hook refused it
	ReasonAttemptsExhausted        // ErrAttemptsExhausted
	ReasonDeadlineExceeded         // ErrDeadlineExceeded
	ReasonBreakerOpen              // ErrBreakerOpen
	ReasonBudgetExhausted          // ErrBudgetExhausted
	ReasonDraining                 // ErrDraining
	ReasonCancelled                // context.Canceled
	ReasonPanicked                 // the callback, a hook or a rule panicked or called runtime.Goexit

	reasons
)

var reasonTable = [reasons]struct {
	text  string
	is    error
	event EventKind
}{
	ReasonSucceeded:         {"succeeded", nil, EventSucceeded},
	ReasonPermanent:         {"not retried", nil, EventNotRetried},
	ReasonAttemptsExhausted: {"attempts exhausted", ErrAttemptsExhausted, EventExhausted},
	ReasonDeadlineExceeded:  {"deadline exceeded", ErrDeadlineExceeded, EventDeadlineExceeded},
	ReasonBreakerOpen:       {"circuit breaker is open", ErrBreakerOpen, EventRejectedByBreaker},
	ReasonBudgetExhausted:   {"retry budget exhausted", ErrBudgetExhausted, EventRejectedByBudget},
	ReasonDraining:          {"draining", ErrDraining, EventDraining},
	ReasonCancelled:         {"cancelled", context.Canceled, EventCancelled},
	ReasonPanicked:          {"panicked", nil, EventPanicked},
}

// String returns the reason in words.
func (r Reason) String() string {
	if r < reasons {
		return reasonTable[r].text
	}
	return "unknown"
}

// Error is how a policy reports every failure except a permanent one, which comes back as the callback returned it.
//
// errors.Is finds the sentinel of the Reason, the cause of the caller's cancellation and everything in Err; errors.Unwrap
// returns Err.
type Error struct {
	Policy     string        // its name
	Reason     Reason        // why the call ended
	Attempts   []Attempt     // the first 4 and the last 12
	Total      int           // how many attempts there were
	Bound      time.Duration // the deadline or the attempt bound that was hit, 0 if none was
	RetryAfter time.Duration // when to come back, 0 where that is not known
	Err        error         // the dependency's own last error, nil if it never answered

	cause      error         // why the caller's context ended, ErrDraining where the drain supplied the deadline, or a local refusal
	wait, left time.Duration // the wait that did not fit, and what it did not fit into; 0 if that was not the problem
}

// maxErrorText bounds the part of an error text that comes from somebody else, in bytes, so that errors which are fed
// back into callbacks do not grow without end.
const maxErrorText = 512

// Error names the policy, the rule that ended the call, the number of attempts and the dependency's own error, of which
// it quotes at most 512 bytes.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("resilience: ")
	if e.Policy != "" {
		fmt.Fprintf(&b, "%s: ", clip(e.Policy))
	}
	b.WriteString(e.Reason.String())
	switch e.Total {
	case 0:
		b.WriteString(" before the first attempt")
	case 1:
		b.WriteString(" after 1 attempt")
	default:
		fmt.Fprintf(&b, " after %d attempts", e.Total)
	}
	switch {
	case e.wait > 0:
		fmt.Fprintf(&b, ": a wait of %v does not fit into the %v left", rounded(e.wait), rounded(e.left))
	case e.Bound > 0 && e.Bound < Unbounded:
		fmt.Fprintf(&b, " (bound %v)", rounded(e.Bound))
	}
	if e.RetryAfter > 0 && e.wait == 0 {
		fmt.Fprintf(&b, ", retry after %v", rounded(e.RetryAfter))
	}
	if e.cause != nil && !errors.Is(e.Err, e.cause) {
		fmt.Fprintf(&b, ": %s", clip(e.cause.Error()))
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %s", clip(e.Err.Error()))
	}
	return b.String()
}

// Unwrap returns the dependency's own last error.
func (e *Error) Unwrap() error { return e.Err }

// Is matches the sentinel of the Reason and why the caller's context ended.
func (e *Error) Is(target error) bool {
	if e.Reason < reasons {
		if is := reasonTable[e.Reason].is; is != nil && errors.Is(is, target) {
			return true
		}
	}
	return e.cause != nil && errors.Is(e.cause, target)
}

// As finds the cause of the caller's cancellation; what lies in Err is found through Unwrap.
func (e *Error) As(target any) bool { return e.cause != nil && errors.As(e.cause, target) }

// Timeout reports whether a bound ended the call: its deadline, or the bound of its last attempt.
func (e *Error) Timeout() bool {
	return e.Reason == ReasonDeadlineExceeded || errors.Is(e.Err, ErrAttemptTimeout)
}

// clip shortens a text to maxErrorText bytes at a character's border.
func clip(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	end := maxErrorText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// LimitedError is a refusal by a limit of this process: the limiter of a policy, or any other guard that a callback
// consults and that wants its refusal to be read as Limited. It matches ErrLimited. A *LimitedError anywhere in an error's
// chain makes the verdict Limited, whatever the rules say.
type LimitedError struct {
	Limiter    string        // its name, may be empty
	RetryAfter time.Duration // when to come back, 0 where that is not known
}

// Error names the limiter.
func (e *LimitedError) Error() string {
	text := ErrLimited.Error()
	if e.Limiter != "" {
		text = "resilience: " + clip(e.Limiter) + ": limit reached"
	}
	if e.RetryAfter > 0 {
		text += ", retry after " + e.RetryAfter.String()
	}
	return text
}

// Is matches ErrLimited.
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

// attemptTimeoutError is what becomes of an attempt that ran into its own bound. It unwraps to what the callback made of it.
type attemptTimeoutError struct {
	bound time.Duration
	err   error
}

func (e *attemptTimeoutError) Error() string {
	return fmt.Sprintf("attempt timed out after %v: %s", e.bound, clip(e.err.Error()))
}
func (e *attemptTimeoutError) Unwrap() error        { return e.err }
func (e *attemptTimeoutError) Is(target error) bool { return errors.Is(ErrAttemptTimeout, target) }
func (e *attemptTimeoutError) Timeout() bool        { return true }

// resultError stands in the attempt log, and in an *Error, for a value that a rule called a failure.
type resultError struct{ verdict Verdict }

func (e *resultError) Error() string { return "a result rule called the value " + e.verdict.String() }

// ownedByContext reports whether err is nothing but the ending of a context: it says that the callback was told to stop,
// not what was wrong with the dependency.
func ownedByContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Attempt is one line of the attempt log.
type Attempt struct {
	Number    int           // from 1
	Start     time.Duration // since the call began
	Duration  time.Duration // until the callback returned, of a leg that lost until the call ended
	Bound     time.Duration // what the attempt was allowed to take; Unbounded if nothing bounded it
	Verdict   Verdict       // Permanent also of an attempt that the caller cancelled, and of a leg that lost
	Err       error         // nil also where Discarded
	Hedged    bool          // a leg that was started beside another one
	Discarded bool          // a leg that lost
}
