package resilience

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
)

// Rule says what one sort of error or value means. Make one with OnError, OnErrorIs, OnErrorAs or OnResult; the zero Rule
// matches nothing. A rule runs on the goroutine of the call, with no lock held and once for each attempt; calls run side by
// side, and so do their rules. It must not keep the value that it is given.
type Rule struct {
	name   string
	what   string                      // for Explain
	failed func(error) (Verdict, bool) // rules for errors
	result any                         // a func(T) Verdict: rules for values
	broken string                      // what is wrong with the rule; New refuses it
}

// OnError gives the verdict v to the errors that match accepts.
func OnError(name string, v Verdict, match func(error) bool) Rule {
	r := Rule{name: name, what: "error -> " + v.String()}
	if match == nil {
		r.broken = "a nil match function"
		return r
	}
	r.failed = func(err error) (Verdict, bool) { return v, match(err) }
	return r
}

// OnErrorIs gives the verdict v to the errors that errors.Is finds target in.
func OnErrorIs(target error, v Verdict) Rule {
	if target == nil {
		return Rule{name: "nil", broken: "a nil target"}
	}
	return Rule{
		name: clip(target.Error()), what: "error is -> " + v.String(),
		failed: func(err error) (Verdict, bool) { return v, errors.Is(err, target) },
	}
}

// OnErrorAs asks verdict about the errors that errors.As finds an E in.
func OnErrorAs[E error](name string, verdict func(E) Verdict) Rule {
	r := Rule{name: name, what: "error as"}
	if verdict == nil {
		r.broken = "a nil verdict function"
		return r
	}
	r.failed = func(err error) (Verdict, bool) {
		var e E
		if !errors.As(err, &e) {
			return OK, false
		}
		return verdict(e), true
	}
	return r
}

// OnResult asks verdict about the values that callbacks of the static result type T return with a nil error. T has to be
// that very type: a rule for an interface does not match callbacks that return one of its implementations. The first rule
// for a type decides alone, also when it says OK.
func OnResult[T any](name string, verdict func(T) Verdict) Rule {
	r := Rule{name: name, what: "result"}
	if verdict == nil {
		r.broken = "a nil verdict function"
		return r
	}
	r.result = verdict
	return r
}

// Classifier is an ordered list of rules: the first one that matches decides. Where none does, a nil error is OK, and any
// other is Permanent. It is immutable and safe for concurrent use. The zero Classifier has no rules.
type Classifier struct{ rules []Rule }

// NewClassifier returns a classifier of these rules alone. To keep the defaults beneath rules of your own use WithRules.
func NewClassifier(rules ...Rule) *Classifier {
	return &Classifier{rules: slices.Clone(rules)}
}

var (
	defaultClassifier = NewClassifier(Rule{
		name: "default", what: "timeouts, broken connections and temporary DNS errors -> transient",
		failed: func(err error) (Verdict, bool) { return Transient, transientByDefault(err) },
	})
	retryAll = NewClassifier(Rule{
		name: "retry all", what: "every error -> transient",
		failed: func(error) (Verdict, bool) { return Transient, true },
	})
)

// DefaultClassifier returns the classifier of a policy that was given none.
//
// Transient are: errors whose Timeout method reports true, context.DeadlineExceeded of somebody else's context,
// io.ErrUnexpectedEOF, *net.OpError, connections refused, reset, aborted or with a broken pipe, hosts and networks that are
// unreachable, DNS errors that are temporary or timeouts, driver.ErrBadConn. Everything else is Permanent, a host name
// that does not exist and context.Canceled of somebody else's context included: a bug does not get better by repeating it.
func DefaultClassifier() *Classifier { return defaultClassifier }

// RetryAll returns a classifier to which every error is Transient.
func RetryAll() *Classifier { return retryAll }

var transientErrors = [...]error{
	context.DeadlineExceeded, io.ErrUnexpectedEOF, driver.ErrBadConn,
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
}

func transientByDefault(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsTimeout || dns.IsTemporary
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	for _, target := range transientErrors {
		if errors.Is(err, target) {
			return true
		}
	}
	var op *net.OpError
	return errors.As(err, &op)
}

// judgeError is the verdict on an error that is not the ending of one of our own contexts.
func judgeError(rules []Rule, err error) Verdict {
	limited, marked := localMarks(err)
	switch {
	case limited != nil:
		return Limited.After(limited.RetryAfter)
	case marked != nil:
		return neverOK(marked.verdict)
	}
	for i := range rules {
		if rules[i].failed == nil {
			continue
		}
		if v, ok := rules[i].failed(err); ok {
			return neverOK(v)
		}
	}
	return Permanent
}

// neverOK reads an OK for an error as Permanent: a call that returned an error has not succeeded.
func neverOK(v Verdict) Verdict {
	if v.Kind() == KindOK {
		return Permanent
	}
	return v
}

// localMarks finds the outermost refusal by a local guard and the outermost mark in one walk. It is errors.As for two
// types at once, without an allocation.
func localMarks(err error) (limited *LimitedError, marked *markedError) {
	for err != nil && limited == nil {
		switch e := err.(type) { //nolint:errorlint // this is the walk
		case *LimitedError:
			limited = e
		case *markedError:
			if marked == nil {
				marked = e
			}
		case *Error: // its cause may be a refusal that is no part of the chain
			limited, _ = localMarks(e.cause)
		}
		switch u := err.(type) { //nolint:errorlint // this is the walk
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range u.Unwrap() {
				l, m := localMarks(branch)
				if limited == nil {
					limited = l
				}
				if marked == nil {
					marked = m
				}
			}
			return limited, marked
		default:
			return limited, marked
		}
	}
	return limited, marked
}

// resultRule is the rule that judges values of type T, nil where there is none.
func resultRule[T any](rules []Rule) func(T) Verdict {
	for i := range rules {
		if judge, ok := rules[i].result.(func(T) Verdict); ok {
			return judge
		}
	}
	return nil
}
