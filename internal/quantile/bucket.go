package quantile

import (
	"math"
	"math/bits"
	"time"
)

// Bucket i holds the values from lowest*ratio^i up to, but not including,
// lowest*ratio^(i+1); the first one takes everything smaller, the last one
// everything larger.
//
// The harmonic mean of its ends lies (ratio-1)/(ratio+1) = 4.96 % from both,
// in relation to each of them, and nearer to whatever is between.
const (
	lowest  = time.Microsecond
	highest = time.Hour
	ratio   = 1.1042
	buckets = 222 // lowest*ratio^222 is the first such product above highest
)

// The way from a value to its bucket leads over cells: the values that share
// their highest bit and the cellBits bits below it. The widest cell spans a
// ratio of 17/16, less than a bucket, so at most one bucket begins inside it
// and one comparison settles which of two is meant.
const (
	cellBits    = 4
	lowestBits  = 10 // bits.Len64 of lowest
	highestBits = 42 // bits.Len64 of highest
	cells       = (highestBits - lowestBits + 1) << cellBits
)

// floor[i] is the smallest value in bucket i.
var floor = newFloor()

// firstBucket[c] is the bucket of the smallest value in cell c.
var firstBucket = newFirstBucket()

func newFloor() (f [buckets + 1]time.Duration) {
	x := float64(lowest)
	for i := range f {
		f[i] = time.Duration(math.Ceil(x))
		x *= ratio
	}
	return f
}

func newFirstBucket() (first [cells]uint8) {
	bucket := 0
	for c := range first {
		n := lowestBits + c>>cellBits
		mantissa := 1<<cellBits + c&(1<<cellBits-1)
		smallest := time.Duration(mantissa) << (n - 1 - cellBits)
		for bucket < buckets-1 && floor[bucket+1] <= smallest {
			bucket++
		}
		first[c] = uint8(bucket)
	}
	return first
}

func bucketOf(v time.Duration) int {
	if v < lowest {
		return 0
	}
	if v >= highest {
		return buckets - 1
	}
	n := bits.Len64(uint64(v))
	mantissa := int(v>>(n-1-cellBits)) & (1<<cellBits - 1)
	i := int(firstBucket[(n-lowestBits)<<cellBits+mantissa])
	if v >= floor[i+1] {
		i++
	}
	return i
}

// valueOf returns the value that stands for bucket i: the harmonic mean of the
// smallest and the largest value in it.
func valueOf(i int) time.Duration {
	lo, hi := float64(floor[i]), float64(floor[i+1]-1)
	return time.Duration(math.Round(2 * lo * hi / (lo + hi)))
}

// Edge returns the largest value that [Window.Above] and [Window.Split] do not
// count as above x: the upper end of the bucket of x. From 1 µs to 1 h it lies
// less than 10.5 % above x; beyond, it is the largest duration there is,
// because values above 1 h are not told apart.
//
// Whoever compares single values with a count of Above or Split compares them
// with Edge(x), not with x. Otherwise the values just above x are above for
// one side and not for the other.
func Edge(x time.Duration) time.Duration {
	i := bucketOf(x)
	if i == buckets-1 {
		return math.MaxInt64
	}
	return floor[i+1] - 1
}
