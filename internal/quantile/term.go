package quantile

import (
	"sync/atomic"
	"time"
)

// freshness is the part of a term's samples, and of its span, that may pass
// before the cached value is computed anew.
const freshness = 64

// A Term is a measured term: one quantile of a [Window], of use once there are
// enough samples.
//
// A Term is made by [NewTerm]; the zero value is not usable. All methods may
// be called concurrently and none blocks or allocates, apart from the steps
// of the window itself.
type Term struct {
	*samples
	q          float64
	minSamples int
	tail       bool

	// The cached value is published like this: version is odd while one
	// goroutine writes the three words, and a reader that finds it odd, or
	// changed after it has read them, does not use them. All of them are
	// atomic, so the order is the same for everybody.
	version atomic.Uint64
	at      atomic.Int64  // the time of the computation
	until   atomic.Uint64 // the value of records that makes it stale
	value   atomic.Int64  // 0: cold
}

// samples are what one or several terms are taken from.
type samples struct {
	window  Window
	records atomic.Uint64 // calls of Record that have finished
}

// NewTerm returns the q-quantile, 0 < q <= 1, of the values recorded during
// the last span, which must be positive. It is cold under minSamples samples, and
// without any in any case.
func NewTerm(span time.Duration, q float64, minSamples int) *Term {
	t := &Term{samples: new(samples), q: q, minSamples: minSamples}
	t.window.width = stepWidth(span)
	return t
}

// NewTail is NewTerm for a value that others are to be compared with: see
// [Window.Tail].
func NewTail(span time.Duration, q float64, minSamples int) *Term {
	t := NewTerm(span, q, minSamples)
	t.tail = true
	return t
}

// Another returns another term of the same samples. What one of the two records,
// both have.
func (t *Term) Another(q float64, minSamples int) *Term {
	return &Term{samples: t.samples, q: q, minSamples: minSamples}
}

// Record counts one value.
func (t *Term) Record(value, now time.Duration) {
	t.window.Record(value, now)
	// After the window: see refresh.
	t.records.Add(1)
}

// Value returns the quantile, and whether it is warm; 0, false if it is not.
// It is cheap enough to be asked on every call: the value is computed anew
// when more than 1/64 of its samples have come in since, which is each of
// them under 64, or when it is 1/64 of the span old. A term becomes warm with
// the very sample that completes it. It becomes cold at the latest 1/64 of
// the span after its samples have expired.
func (t *Term) Value(now time.Duration) (value time.Duration, warm bool) {
	version := t.version.Load()
	at, until, cached := time.Duration(t.at.Load()), t.until.Load(), time.Duration(t.value.Load())
	maxAge := time.Duration(t.window.width / (freshness / steps))
	whole := version&1 == 0 && t.version.Load() == version
	if whole && t.records.Load() < until && at-maxAge < now && now < at+maxAge {
		return cached, cached != 0
	}
	return t.refresh(now)
}

// Reading returns the quantile computed anew and the number of samples that it
// was taken from, warm or not; 0, 0 if there is none. It is meant for display.
func (t *Term) Reading(now time.Duration) (value time.Duration, samples int) {
	if t.tail {
		return t.window.Tail(t.q, now)
	}
	return t.window.Quantile(t.q, now)
}

// refresh computes the value and caches it.
//
// It loads records before the window is read, and Record counts there after
// the window: a sample that comes in meanwhile may be taken for one more that
// the value does not know, never for one less.
func (t *Term) refresh(now time.Duration) (value time.Duration, warm bool) {
	records := t.records.Load()
	value, samples := t.Reading(now)
	slack := samples / freshness
	if samples < t.minSamples {
		value = 0
		slack = min(slack, t.minSamples-samples-1)
	}
	t.publish(value, records+uint64(slack)+1, now)
	return value, value != 0
}

// publish leaves the cache alone while another goroutine writes it: what that
// one computed is as good, and waiting for it is not worth a cached value.
func (t *Term) publish(value time.Duration, until uint64, now time.Duration) {
	version := t.version.Load()
	if version&1 != 0 || !t.version.CompareAndSwap(version, version+1) {
		return
	}
	t.at.Store(int64(now))
	t.until.Store(until)
	t.value.Store(int64(value))
	t.version.Store(version + 2)
}
