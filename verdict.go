package resilience

import (
	"time"
)

// Verdict is what a classifier makes of one attempt: its kind, whether this process refused the attempt itself, and how
// long the other side asked to be left alone, in one comparable word. The zero value is OK.
type Verdict uint64

const (
	// OK is a success. It feeds every measurement and pays into the retry budget.
	OK Verdict = iota
	// Transient is a failure of the dependency that may pass: retried on the short curve, a failure for the breaker.
	Transient
	// Throttled is a dependency asking for less: retried on the long curve or after its own hint, no evidence for the breaker.
	Throttled
	// Permanent is a failure that another attempt cannot mend: never retried, no evidence for the breaker.
	Permanent
	// Limited is a refusal by a guard of this process: as Throttled, but it costs no retry budget. It has the Kind of
	// Throttled and is not equal to it.
	Limited = Throttled | selfImposed
)

// The layout of a Verdict: two bits of kind, one bit for self-imposed, the pushback in nanoseconds above them.
const (
	kindMask      Verdict = 3
	selfImposed   Verdict = 4
	pushbackShift         = 3
	maxPushback           = time.Duration(1<<(64-pushbackShift) - 1)
)

// Kind is the sort of a Verdict, which decides whether and how it is retried.
type Kind uint8

// The kinds, in the order of the verdicts that have the same names.
const (
	KindOK        Kind = iota // a success
	KindTransient             // a failure that another attempt may mend
	KindThrottled             // a refusal: come back later
	KindPermanent             // a failure that no other attempt mends
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case KindOK:
		return "ok"
	case KindTransient:
		return "transient"
	case KindThrottled:
		return "throttled"
	case KindPermanent:
		return "permanent"
	}
	return "unknown"
}

// Kind returns the sort of v. Limited has the kind of Throttled.
func (v Verdict) Kind() Kind { return Kind(v & kindMask) }

// SelfImposed reports whether this process refused the attempt itself, so that the dependency never saw it.
func (v Verdict) SelfImposed() bool { return v&selfImposed != 0 }

// After returns v with the wish to come back no earlier than after d; zero or a negative d takes the wish away. The wish
// replaces the backoff curve, is never shortened and never jittered below d. Longer than 73 years counts as 73 years. OK
// and Permanent are not retried and stay as they are.
func (v Verdict) After(d time.Duration) Verdict {
	if k := v.Kind(); k == KindOK || k == KindPermanent {
		return v
	}
	d = max(0, min(d, maxPushback))
	return v&(kindMask|selfImposed) | Verdict(d)<<pushbackShift
}

// RetryAfter returns how long the other side asked to be left alone, and whether it did.
func (v Verdict) RetryAfter() (time.Duration, bool) {
	d := time.Duration(v >> pushbackShift)
	return d, d > 0
}

// Mark returns an error that carries v to the classifier, ahead of its rules, and otherwise is err: same text, and
// errors.Is and errors.As find what is underneath. Run takes the mark off again when it is the outermost error. Mark(nil)
// is nil. An error marked OK is read as Permanent.
func (v Verdict) Mark(err error) error {
	if err == nil {
		return nil
	}
	return &markedError{err: err, verdict: v}
}

// String returns the verdict's name in lower case, with the wish of After where there is one: "throttled after 2s".
func (v Verdict) String() string {
	name := v.Kind().String()
	if v.SelfImposed() && v.Kind() == KindThrottled {
		name = "limited"
	}
	if d, ok := v.RetryAfter(); ok {
		return name + " after " + d.String()
	}
	return name
}

type markedError struct {
	err     error
	verdict Verdict
}

func (e *markedError) Error() string { return e.err.Error() }
func (e *markedError) Unwrap() error { return e.err }

// unmarked takes the mark off an error that carries one itself.
func unmarked(err error) error {
	if m, ok := err.(*markedError); ok { //nolint:errorlint // only the outermost mark: what lies beneath belongs to the user
		return m.err
	}
	return err
}
