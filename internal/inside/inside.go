// Package inside shows the other packages of this module what a resilience.Policy keeps to itself. It exists so that
// nothing has to be exported for their sake.
package inside

import (
	"context"
	"time"
)

// Policy is the inside of one resilience.Policy. What it holds never changes.
type Policy struct {
	Attempts       int
	Deadline       time.Duration // of the whole call; the largest duration if there is none
	AttemptTimeout time.Duration // the largest duration if there is none
	ProgressBound  bool          // the attempt timeout also bounds the gap between two reads
	NestedRetries  bool          // retries although a layer beneath has spent its own
	Hedges         bool          // a callback may run beside itself
	OwnClock       bool          // follows a clock of the user's, not the standard one

	Now   func() time.Time
	Timer func(d time.Duration) (fired <-chan time.Time, stop func())
	Emit  func(event any) // a resilience.Event, to the policy's listeners

	// Within is ctx with a deadline d from now, on the policy's clock; the largest duration is none.
	Within func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Look returns the inside of a resilience.Policy; the zero Policy is one attempt without bounds. Package resilience sets it
// when it is initialised.
var Look func(policy any) Policy

// Age is for how long the attempt to which the context belongs has been running, and the time it is now, both on its
// policy's clock. Package resilience sets it when it is initialised.
var Age func(attempt context.Context) (now time.Time, age time.Duration)

// SingleShot reports whether calls under the context make one attempt. Package resilience sets it when it is initialised.
var SingleShot func(ctx context.Context) bool

// Discards are functions of the form func(T) that release a value of type T which nobody gets, for types that are no
// io.Closer. A package adds to it when it is initialised; the user's OnDiscard goes before.
var Discards []any
