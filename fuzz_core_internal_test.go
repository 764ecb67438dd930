package resilience

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowCurve is the curve in arbitrary precision.
func slowCurve(base, most time.Duration, factor float64, n int) time.Duration {
	d := new(big.Float).SetPrec(300).SetInt64(int64(base))
	f := new(big.Float).SetPrec(300).SetFloat64(factor)
	limit := new(big.Float).SetInt64(int64(most))
	for i := 2; i < n && d.Cmp(limit) < 0; i++ {
		d.Mul(d, f)
	}
	if d.Cmp(limit) >= 0 {
		return most
	}
	v, _ := d.Int64()
	return time.Duration(v)
}

func FuzzBackoff(f *testing.F) {
	f.Add(int64(100*time.Millisecond), int64(30*time.Second), 2.0, 5, 0.5, uint8(0))
	f.Add(int64(1), int64(1), 1.0, math.MaxInt, 0.999999, uint8(1))
	f.Add(int64(time.Hour), int64(math.MaxInt64), 10.0, 1000, 0.0, uint8(2))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.MaxFloat64, 3, 0.3, uint8(2))
	f.Fuzz(func(t *testing.T, base, most int64, factor float64, n int, u float64, jitter uint8) {
		b := Backoff{Base: time.Duration(base), Max: time.Duration(most), Factor: factor, Jitter: Jitter(jitter)}
		check := newChecker("fuzz")
		b = b.resolve(check)
		if check.err() != nil {
			return
		}
		if !(u >= 0 && u < 1) {
			u = 0.5
		}
		n = max(n, 2)
		want := slowCurve(b.Base, b.Max, b.Factor, min(n, 100_000))
		if n > 100_000 && b.Factor > 1 && b.Factor < 1.001 {
			return // too slow for the model
		}
		tolerance := float64(want)*1e-9 + 2
		plain := b
		plain.Jitter = JitterNone
		require.InDelta(t, float64(want), float64(plain.curve(b.Base, n, u)), tolerance)
		d := b.curve(b.Base, n, u)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.LessOrEqual(t, d, b.Max)
		switch b.Jitter {
		case JitterFull:
			require.InDelta(t, float64(want)*u, float64(d), tolerance)
		case JitterEqual:
			require.InDelta(t, float64(want)*(0.5+u/2), float64(d), tolerance)
		}
		if n < math.MaxInt {
			require.GreaterOrEqual(t, plain.curve(b.Base, n+1, u), plain.curve(b.Base, n, u), "never shorter than the one before")
		}
	})
}

// bucket is a stupid budget: whole nano-tokens as big integers.
type bucket struct {
	tokens, capacity float64
	fraction, rate   float64
	at               time.Duration
}

func (m *bucket) refill(now time.Duration) {
	switch {
	case now > m.at:
		m.tokens = min(m.capacity, m.tokens+(now-m.at).Seconds()*m.rate)
		m.at = now
	case (m.at-now).Seconds()*m.rate >= m.capacity || m.rate == 0:
		m.at = now
	}
}

func FuzzBudget(f *testing.F) {
	f.Add(0.1, 3.0, []byte{0, 1, 2, 3, 250, 4, 5, 200, 7, 9, 9, 9, 9, 13})
	f.Add(-1.0, -1.0, []byte{1, 1, 1, 0, 0, 2})
	f.Add(1.0, 0.01, []byte{1, 3, 0, 2, 1, 5, 6})
	f.Fuzz(func(t *testing.T, fraction, perSecond float64, script []byte) {
		check := newChecker("fuzz")
		c := BudgetConfig{Fraction: fraction, MinPerSecond: perSecond}.resolve(check)
		if check.err() != nil || len(script) > 2000 {
			return
		}
		b := newBudget(c, &timeline{origin: time.Now()})
		now := b.filled
		m := &bucket{capacity: max(10*max(c.MinPerSecond, 0), 1), fraction: max(c.Fraction, 0), rate: max(c.MinPerSecond, 0), at: now}
		m.tokens = m.capacity
		const slack = 1e-4 // whole nano-tokens against floats
		for i, op := range script {
			switch op % 4 {
			case 0:
				b.success(now)
				m.refill(now)
				m.tokens = min(m.capacity, m.tokens+m.fraction)
			case 1, 2:
				reserved := op%4 == 2
				need := 1.0
				if reserved {
					need += m.capacity / 2
				}
				m.refill(now)
				retryAfter, ok := b.take(reserved, now)
				if math.Abs(m.tokens-need) > slack {
					require.Equal(t, m.tokens >= need, ok, "step %d", i)
				}
				if ok {
					m.tokens--
				} else if m.rate > 0 && need <= m.capacity-slack {
					require.InDelta(t, (need-m.tokens)/m.rate, retryAfter.Seconds(), slack/m.rate+1e-6)
				} else if m.rate == 0 || need > m.capacity+slack {
					require.Zero(t, retryAfter)
				}
			default:
				now += time.Duration(op) * time.Duration(op) * time.Millisecond
				if op > 250 {
					now -= 2 * time.Minute
				}
			}
			s := b.stats(now)
			m.refill(now)
			require.InDelta(t, m.tokens, s.Tokens, slack, "step %d", i)
			require.InDelta(t, m.capacity, s.Capacity, slack)
			require.GreaterOrEqual(t, s.Tokens, 0.0)
			require.LessOrEqual(t, s.Tokens, s.Capacity)
			require.GreaterOrEqual(t, s.Spent, 0.0)
			require.LessOrEqual(t, s.Spent, 1.0)
		}
	})
}

func FuzzVerdict(f *testing.F) {
	f.Add(uint8(0), int64(0))
	f.Add(uint8(1), int64(time.Second))
	f.Add(uint8(4), int64(math.MaxInt64))
	f.Add(uint8(2), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, which uint8, d int64) {
		base := []Verdict{OK, Transient, Throttled, Permanent, Limited}[which%5]
		v := base.After(time.Duration(d))
		require.Equal(t, base.Kind(), v.Kind())
		require.Equal(t, base.SelfImposed(), v.SelfImposed())
		got, ok := v.RetryAfter()
		switch retried := base.Kind() == KindTransient || base.Kind() == KindThrottled; {
		case !retried || d <= 0:
			require.False(t, ok)
			require.Equal(t, base, v)
		default:
			require.True(t, ok)
			require.Equal(t, min(time.Duration(d), maxPushback), got)
			require.Equal(t, v, v.After(got))
			require.Equal(t, base, v.After(0))
		}
		require.NotEmpty(t, v.String())
		marked := v.Mark(errNilContext)
		require.Equal(t, neverOK(v), judgeError(nil, marked))
		require.Same(t, errNilContext, unmarked(marked))
	})
}

func TestLaterSaturates(t *testing.T) {
	for _, c := range []struct{ now, d, want time.Duration }{
		{0, never, never},
		{1, never, never},
		{never, never, never},
		{-time.Hour, never, never},
		{math.MinInt64, never, never},
		{never - 1, 2, never},
		{never - 1, 1, never},
		{5, 3, 8},
		{-5, 3, -2},
		{5, -3, 2},
	} {
		require.Equal(t, c.want, later(c.now, c.d), "%v + %v", c.now, c.d)
	}
}

func TestScaleSaturates(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		x    float64
		want time.Duration
	}{
		{time.Second, 0.5, time.Second / 2}, {time.Hour, math.Inf(1), never}, {0, math.Inf(1), 0}, {never, 1, never}, {never, 2, never}, {1, math.MaxFloat64, never}, {never, 0, 0},
	} {
		require.Equal(t, c.want, scale(c.d, c.x), "%v x %v", c.d, c.x)
	}
}
