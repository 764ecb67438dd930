package resilience

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of two calls the one that looked at the clock first may come second. The time between the two is paid for once.
func TestABudgetIsPaidForATimeOnce(t *testing.T) {
	b, err := NewBudget(BudgetConfig{Fraction: 0.1, MinPerSecond: 1})
	require.NoError(t, err)
	now := b.time.now()
	taken := 0
	for range 10_000 { // for 100 s two calls that are 200 ms apart
		now += 10 * time.Millisecond
		for _, at := range []time.Duration{now, now - 200*time.Millisecond} {
			if _, ok := b.take(false, at); ok {
				taken++
			}
		}
	}
	require.InDelta(t, 10+100, taken, 1, "a full bucket, and one a second")
}

func TestABudgetOutlivesAClockThatIsSetBack(t *testing.T) {
	b, err := NewBudget(BudgetConfig{MinPerSecond: 1})
	require.NoError(t, err)
	now := b.time.now() + time.Hour
	for range 10 {
		_, ok := b.take(false, now)
		require.True(t, ok)
	}
	now -= time.Hour
	_, ok := b.take(false, now)
	require.False(t, ok)
	_, ok = b.take(false, now+time.Second)
	require.True(t, ok, "one a second, and not an hour without any")
}
