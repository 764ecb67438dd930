package resilience

import "context"

// Criticality says how much a request matters when there is not enough for all. The zero value is Critical, which is
// also what an unlabelled request has. The four levels are those of Site Reliability Engineering, 2016, chapter 21.
type Criticality int8

const (
	// Sheddable work may fail: it is never hedged, and its retries leave half of the budget to others.
	Sheddable Criticality = iota - 2
	// SheddablePlus work may fail now and then. It travels with the request; no rule of this package reads it yet.
	SheddablePlus
	// Critical is the ordinary request.
	Critical
	// CriticalPlus is a request that must not fail. A value from the wire cannot claim it.
	CriticalPlus
)

// String returns the name as it travels in a header, "unknown" for a value that is none of the four.
func (c Criticality) String() string {
	switch c {
	case Sheddable:
		return "sheddable"
	case SheddablePlus:
		return "sheddable-plus"
	case Critical:
		return "critical"
	case CriticalPlus:
		return "critical-plus"
	}
	return "unknown"
}

type criticalityKey struct{}

// ContextWithCriticality labels the requests made under the returned context. A policy reads the label only
// WithCriticality(true). A value that is none of the four is read as Critical.
func ContextWithCriticality(ctx context.Context, c Criticality) context.Context {
	if c < Sheddable || c > CriticalPlus {
		c = Critical
	}
	return context.WithValue(ctx, criticalityKey{}, c)
}

// CriticalityFrom returns the label of the context, Critical where there is none or the context is nil.
func CriticalityFrom(ctx context.Context) Criticality {
	if ctx == nil {
		return Critical
	}
	c, _ := ctx.Value(criticalityKey{}).(Criticality)
	return c
}

type singleShotKey struct{}

// SingleShot returns a context under which every call makes one attempt and no hedge. Bounds, breaker, limiter and
// budget work as ever.
func SingleShot(ctx context.Context) context.Context {
	return context.WithValue(ctx, singleShotKey{}, true)
}

func isSingleShot(ctx context.Context) bool { return ctx.Value(singleShotKey{}) != nil }
