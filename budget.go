package resilience

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// BudgetConfig sets a retry budget: a bucket of tokens of which each retry and each started hedge takes one, so that
// retries stay a share of the traffic even when everything fails. A share and a minimum for each second are the two terms of
// the RetryBudget of Finagle. A zero field means the default.
type BudgetConfig struct {
	Fraction     float64 // tokens for each successful call; default 0.1; Off = none; at most 1
	MinPerSecond float64 // tokens for each second of time; default 3; Off = none; the bucket holds ten seconds of them, at least 1
	Clock        Clock   // nil: that of the policy, of a shared budget the standard time package
}

// BudgetStats is one look at a budget.
type BudgetStats struct {
	Tokens, Capacity float64 // what is there, and what fits in; a retry takes one
	Spent            float64 // the share of the capacity that is gone, 0 to 1
}

// Budget limits how many retries the policies that share it may make. It is safe for concurrent use. The zero Budget is
// not usable: make one with NewBudget.
type Budget struct {
	time     *timeline
	capacity int64   // in token units
	deposit  int64   // in token units, for each success
	rate     float64 // token units for each nanosecond

	full atomic.Bool // nothing can be added: a success need not take the lock

	mu     sync.Mutex // guards what is beneath
	tokens int64      // in token units
	filled time.Duration
}

// tokenUnit is one token. Whole units, not floats: a hundred deposits of a tenth are ten tokens exactly.
const tokenUnit = 1_000_000_000

// NewBudget returns a full budget to be shared with WithSharedBudget.
func NewBudget(c BudgetConfig) (*Budget, error) {
	check := newChecker("NewBudget")
	c = c.resolve(check)
	if err := check.err(); err != nil {
		return nil, err
	}
	return newBudget(c, newTimeline(c.Clock)), nil
}

func (c BudgetConfig) resolve(k *checker) BudgetConfig {
	c.Fraction = orDefault(c.Fraction, 0.1)
	c.MinPerSecond = orDefault(c.MinPerSecond, 3)
	if c.Fraction != Off {
		k.within("BudgetConfig.Fraction", c.Fraction, 0, 1, "more than 0 and at most 1, or Off")
	}
	if c.MinPerSecond != Off {
		k.within("BudgetConfig.MinPerSecond", c.MinPerSecond, 0, 1e6, "more than 0 and at most 1,000,000, or Off")
	}
	if c.Clock != nil && isNil(c.Clock) {
		k.refuse("BudgetConfig.Clock", bare("a nil pointer"), "a clock, or nothing")
	}
	return c
}

func newBudget(c BudgetConfig, t *timeline) *Budget {
	perSecond, fraction := max(c.MinPerSecond, 0), max(c.Fraction, 0) // Off is negative
	b := &Budget{
		time:     t,
		capacity: int64(math.Round(max(10*perSecond, 1) * tokenUnit)),
		deposit:  int64(math.Round(fraction * tokenUnit)),
		rate:     perSecond * tokenUnit / float64(time.Second),
	}
	b.tokens, b.filled = b.capacity, t.now()
	b.full.Store(true)
	return b
}

// Stats is one snapshot of the budget.
func (b *Budget) Stats() BudgetStats { return b.stats(b.time.now()) }

func (b *Budget) stats(now time.Duration) BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	return BudgetStats{
		Tokens:   float64(b.tokens) / tokenUnit,
		Capacity: float64(b.capacity) / tokenUnit,
		Spent:    1 - float64(b.tokens)/float64(b.capacity),
	}
}

// success pays in for one successful call.
func (b *Budget) success(now time.Duration) {
	if b.deposit == 0 || b.full.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	b.tokens = min(b.capacity, b.tokens+b.deposit)
	b.full.Store(b.tokens == b.capacity)
}

// take takes one token; a reserved call must leave half of the bucket. Where it refuses it says when to come back, 0 if
// only successes can help.
func (b *Budget) take(reserved bool, now time.Duration) (retryAfter time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	need := int64(tokenUnit)
	if reserved {
		need += b.capacity / 2
	}
	if b.tokens >= need {
		b.tokens -= tokenUnit
		b.full.Store(false)
		return 0, true
	}
	if b.rate == 0 || need > b.capacity {
		return 0, false
	}
	return time.Duration(math.Ceil(float64(need-b.tokens) / b.rate)), false
}

// refillLocked adds what the time since the last refill is worth. An older reading is that of a call which looked at the
// clock before another one did: its time has been paid for. Only where it is older than a bucket takes to fill, the clock
// was set back.
func (b *Budget) refillLocked(now time.Duration) {
	elapsed := now - b.filled
	if elapsed < 0 && float64(-elapsed)*b.rate < float64(b.capacity) {
		return
	}
	if b.tokens == b.capacity || b.rate == 0 || elapsed < 0 {
		b.filled = now
		return
	}
	gain := float64(elapsed) * b.rate
	if gain < 1 {
		return // too little to count: let it grow
	}
	b.filled = now
	b.tokens = int64(min(float64(b.capacity), float64(b.tokens)+math.Floor(gain)))
	b.full.Store(b.tokens == b.capacity)
}

// text is how Explain prints it.
func (s BudgetStats) text() string { return fmt.Sprintf("%.1f of %.1f tokens", s.Tokens, s.Capacity) }
