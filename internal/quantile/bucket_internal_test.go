package quantile

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBucketsCoverOneMicrosecondToOneHour(t *testing.T) {
	require.Equal(t, lowest, floor[0])
	require.LessOrEqual(t, floor[buckets-1], highest)
	require.Greater(t, floor[buckets], highest)
}

func TestEveryValueIsInTheBucketWhoseEndsEncloseIt(t *testing.T) {
	check := func(v time.Duration) {
		i := bucketOf(v)
		if v < floor[i] || v >= floor[i+1] {
			t.Fatalf("%d is in bucket %d, [%d, %d)", v, i, floor[i], floor[i+1])
		}
	}
	for i := range buckets {
		check(floor[i])
		check((floor[i] + floor[i+1]) / 2)
		check(min(floor[i+1]-1, highest))
	}
	for shift := lowestBits; shift < highestBits; shift++ {
		for m := range time.Duration(16) { // both sides of every cell
			v := (16 + m) << shift >> 4
			check(min(max(v-1, lowest), highest))
			check(min(max(v, lowest), highest))
		}
	}
	for v := lowest; v < 10*lowest; v++ {
		check(v)
	}
}

// The extremes of the error are at the ends of a bucket.
func TestTheValueOfABucketIsWithinFivePercentOfAllInIt(t *testing.T) {
	for i := range buckets {
		for _, v := range []time.Duration{floor[i], floor[i+1] - 1} {
			require.InEpsilon(t, float64(v), float64(valueOf(i)), 0.05, "bucket %d", i)
		}
	}
}

func TestValuesOutOfRangeAreCountedAtItsEnds(t *testing.T) {
	for _, v := range []time.Duration{math.MinInt64, -1, 0, 1, lowest - 1} {
		require.Equal(t, 0, bucketOf(v), v)
	}
	for _, v := range []time.Duration{highest, highest + 1, 1 << 42, math.MaxInt64} {
		require.Equal(t, buckets-1, bucketOf(v), v)
	}
	require.GreaterOrEqual(t, valueOf(0), lowest)
	require.LessOrEqual(t, valueOf(buckets-1), highest)
}

func TestEdgeIsTheLastValueOfTheBucket(t *testing.T) {
	for i := range buckets - 1 {
		edge := Edge(floor[i])
		require.Equal(t, edge, Edge(edge))
		require.Equal(t, i, bucketOf(edge))
		require.Equal(t, i+1, bucketOf(edge+1))
		require.Less(t, float64(edge), 1.105*float64(floor[i]))
	}
	require.Equal(t, Edge(lowest), Edge(-1))
	require.Equal(t, time.Duration(math.MaxInt64), Edge(highest))
}
