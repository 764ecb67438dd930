package quantile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestATermDoesNotAllocateOnceTheStepsAreThere(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	term := NewTerm(steps*time.Second, 0.95, 20)
	now := time.Duration(0)
	for ; now < 10*time.Second; now += time.Second {
		term.Record(time.Millisecond, now)
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 30 * time.Millisecond
		term.Record(time.Millisecond, now)
		term.Value(now)
		term.Value(now)
		term.Reading(now)
	}))
}

func TestACacheThatIsBeingWrittenIsNotUsed(t *testing.T) {
	term := NewTerm(time.Minute, 1, 1)
	term.Record(time.Second, 0)
	term.Value(0)
	term.version.Add(1) // a writer has begun
	term.value.Store(int64(time.Hour))
	value, warm := term.Value(0)
	require.True(t, warm)
	require.InEpsilon(t, float64(time.Second), float64(value), 0.05)
	require.EqualValues(t, time.Hour, term.value.Load(), "and not written by another")
}
