package resilience

import (
	"fmt"
	"math"
	"time"
)

// Jitter says how a delay is spread, so that callers which failed together do not come back together. Full and equal jitter
// are those of M. Brooker, Exponential Backoff And Jitter, 2015.
type Jitter uint8

const (
	// JitterFull draws the delay evenly from nothing to the whole curve. It is the default. Zero can occur, less often
	// than once in a million draws from a delay of a millisecond or more.
	JitterFull Jitter = iota
	// JitterEqual keeps half of the curve and draws the other half.
	JitterEqual
	// JitterNone takes the curve as it is.
	JitterNone
)

// String returns the name in lower case, "unknown" for any other value.
func (j Jitter) String() string {
	switch j {
	case JitterFull:
		return "full"
	case JitterEqual:
		return "equal"
	case JitterNone:
		return "none"
	}
	return "unknown"
}

// Backoff is the wait before another attempt: min(base × Factor^(n-2), Max) before attempt n, spread by Jitter. A zero
// field means the default. Overflow saturates at Max. A delay of zero starts no timer.
type Backoff struct {
	Base          time.Duration // after a Transient attempt; default 100 ms
	ThrottledBase time.Duration // after a Throttled or Limited one; default 1 s, or Max if that is written and shorter
	Max           time.Duration // default 30 s, or the larger base if that is longer
	Factor        float64       // default 2; 1 is a constant delay
	Jitter        Jitter        // default JitterFull
	// Delay is a curve of your own, in place of base, factor and jitter. A negative answer counts as 0, and one above
	// Max as Max. It runs on the goroutine of the call, with no lock held. Calls run side by side, and so does it.
	Delay func(BackoffInput) time.Duration

	none     bool // NoBackoff: both bases are zero
	constant bool // ConstantBackoff: a zero base is no default
}

// BackoffInput is what a curve of the user's may know.
type BackoffInput struct {
	Attempt   int           // the attempt about to run, at least 2
	Verdict   Verdict       // on the last one
	Err       error         // of the last one
	Remaining time.Duration // until the deadline; Unbounded if there is none
}

// NoBackoff retries at once. A server's Retry-After is obeyed all the same.
func NoBackoff() Backoff { return Backoff{none: true, Factor: 1, Jitter: JitterNone} }

// ConstantBackoff waits d before each retry, without jitter; d must be positive.
func ConstantBackoff(d time.Duration) Backoff {
	return Backoff{Base: d, ThrottledBase: d, Factor: 1, Jitter: JitterNone, constant: true}
}

// MeasuredBackoff takes the base of the short curve from the dependency: Multiple × a quantile of its successful
// attempts, never less than Base / Spread and never more than Base × Spread. Throttled attempts keep the written base. A
// zero field means the default.
type MeasuredBackoff struct {
	Multiple   float64       // default 1
	Quantile   float64       // default 0.5; 0.5 to 0.99
	Window     time.Duration // default 5 min
	MinSamples int           // default 20
	Spread     float64       // default 10; at least 1
}

func (b Backoff) resolve(c *checker) Backoff {
	if b.constant && b.Base == 0 {
		c.refuse("ConstantBackoff", b.Base, "more than 0 (NoBackoff retries at once)")
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Backoff.Base", b.Base}, {"Backoff.ThrottledBase", b.ThrottledBase}, {"Backoff.Max", b.Max}} {
		if f.d < 0 {
			c.refuse(f.name, f.d, "more than 0 (NoBackoff retries at once)")
		} else if b.Max > 0 && f.d > b.Max {
			c.refuse(f.name, f.d, fmt.Sprintf("at most Backoff.Max, which is %v", b.Max))
		}
	}
	if b.Factor != 0 {
		c.within("Backoff.Factor", b.Factor, 1, math.MaxFloat64, "a finite number of at least 1")
	}
	if b.Jitter > JitterNone {
		c.refuse("Backoff.Jitter", uint8(b.Jitter), "JitterFull, JitterEqual or JitterNone")
	}
	if b.none {
		b.Max = orDefault(b.Max, 30*time.Second)
		return b
	}
	b.Max = orDefault(b.Max, max(30*time.Second, b.Base, b.ThrottledBase))
	b.Base = orDefault(b.Base, min(100*time.Millisecond, b.Max))
	b.ThrottledBase = orDefault(b.ThrottledBase, min(time.Second, b.Max))
	b.Factor = orDefault(b.Factor, 2)
	return b
}

func (m MeasuredBackoff) resolve(c *checker) MeasuredBackoff {
	m.Multiple = orDefault(m.Multiple, 1)
	m.Quantile = orDefault(m.Quantile, 0.5)
	m.Window = orDefault(m.Window, 5*time.Minute)
	m.MinSamples = orDefault(m.MinSamples, 20)
	m.Spread = orDefault(m.Spread, 10)
	c.above("MeasuredBackoff.Multiple", m.Multiple, 0)
	c.within("MeasuredBackoff.Quantile", m.Quantile, 0.5, 0.99, "0.5 to 0.99")
	c.positive("MeasuredBackoff.Window", m.Window)
	c.atLeast("MeasuredBackoff.MinSamples", m.MinSamples, 1)
	c.within("MeasuredBackoff.Spread", m.Spread, 1, math.MaxFloat64, "a finite number of at least 1")
	return m
}

// clamp holds a measured base within the spread around the written one.
func (m MeasuredBackoff) clamp(measured, base time.Duration) time.Duration {
	low, high := scale(base, 1/m.Spread), scale(base, m.Spread)
	return min(max(scale(measured, m.Multiple), low), high)
}

// curve is the delay before attempt n, for a draw u from [0, 1).
func (b Backoff) curve(base time.Duration, n int, u float64) time.Duration {
	d := min(base, b.Max)
	if n > 2 {
		d = min(scale(base, math.Pow(b.Factor, float64(n-2))), b.Max)
	}
	switch b.Jitter {
	case JitterFull:
		return scale(d, u)
	case JitterEqual:
		return d/2 + scale(d-d/2, u)
	}
	return d
}

// base is where the written curve starts for a verdict.
func (b Backoff) base(v Verdict) time.Duration {
	if v.Kind() == KindThrottled {
		return b.ThrottledBase
	}
	return b.Base
}

// scale is d × x, saturating; d and x are not negative.
func scale(d time.Duration, x float64) time.Duration {
	product := float64(d) * x
	if !(product < float64(never)) {
		if d == 0 {
			return 0
		}
		return never
	}
	return time.Duration(product)
}
