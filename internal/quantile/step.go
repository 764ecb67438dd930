package quantile

import (
	"math"
	"sync/atomic"
	"time"
)

// Counters come in chunks, because the values of one window mostly lie close
// together. A chunk spans a ratio of ratio^32 = 24, which makes seven of them.
//
// Chunks of 16 take the same memory on average, but twice the allocations. A
// list of small chunks in place of the table would save a quarter to a half KB
// a window, but each sample would walk over counters that other processors
// write.
const (
	chunkSize = 32
	chunks    = (buckets + chunkSize - 1) / chunkSize
)

// A step counts the samples of one quarter of the window.
type step struct {
	number atomic.Uint64 // set before the step enters the ring
	most   atomic.Int64  // the largest sample
	chunks [chunks]atomic.Pointer[chunk]
}

// A chunk counts the samples of chunkSize adjacent buckets. It belongs to its
// step for good.
type chunk [chunkSize]atomic.Uint32

// count counts one sample.
func (s *step) count(value time.Duration) {
	for most := s.most.Load(); int64(value) > most && !s.most.CompareAndSwap(most, int64(value)); {
		most = s.most.Load()
	}
	bucket := bucketOf(value)
	k, i := uint(bucket)/chunkSize, uint(bucket)%chunkSize
	c := s.chunks[k].Load()
	if c == nil {
		c = s.grow(k)
	}
	c[i].Add(1)
}

// grow returns chunk k and makes it if need be. The first of several
// goroutines that meet here makes it for all.
func (s *step) grow(k uint) *chunk {
	s.chunks[k].CompareAndSwap(nil, new(chunk))
	return s.chunks[k].Load()
}

// clear uses atomic stores because a goroutine that loaded s before it left
// the ring may still add its sample.
func (s *step) clear() {
	s.most.Store(0)
	for k := range s.chunks {
		c := s.chunks[k].Load()
		if c == nil {
			continue
		}
		for i := range c {
			c[i].Store(0)
		}
	}
}

// counts is one reading of a window.
type counts struct {
	of      [chunks * chunkSize]int // by bucket
	in      [chunks]int             // the sums of the chunks
	samples int
	most    time.Duration // the largest sample
}

func (c *counts) add(s *step) {
	c.most = max(c.most, time.Duration(s.most.Load()))
	for k := range s.chunks {
		from := s.chunks[k].Load()
		if from == nil {
			continue
		}
		of := (*[chunkSize]int)(c.of[k*chunkSize:])
		in := 0
		for i := range from {
			n := int(from[i].Load())
			of[i] += n
			in += n
		}
		c.in[k] += in
		c.samples += in
	}
}

func (c *counts) quantile(q float64) time.Duration {
	if c.samples == 0 {
		return 0
	}
	i, _ := c.find(q)
	return valueOf(i)
}

// tail is a quantile that samples are going to be compared with: its bucket is
// not taken for one value, or all samples of a narrow distribution might lie
// above it. Within the bucket it is found by rank, as if the samples were
// spread evenly; where the bucket holds several times more than the 1-q that
// may lie above, that cannot be known, and the answer is its upper end, or a
// little more than the largest sample if that is less.
func (c *counts) tail(q float64) time.Duration {
	if c.samples == 0 {
		return 0
	}
	i, rank := c.find(q)
	lo, hi := floor[i], floor[i+1]-1
	if float64(c.of[i]) > 4*(1-q)*float64(c.samples) {
		return max(lo, min(hi, c.most+c.most/64))
	}
	return lo + time.Duration(float64(hi-lo)*float64(rank)/float64(c.of[i]))
}

// find returns the bucket of the quantile, and its rank in there, from 1. There
// must be samples.
func (c *counts) find(q float64) (bucket, rank int) {
	rank = int(math.Ceil(q * float64(c.samples)))
	rank = min(max(rank, 1), c.samples)
	k := 0
	for ; rank > c.in[k]; k++ {
		rank -= c.in[k]
	}
	i := k * chunkSize
	for ; rank > c.of[i]; i++ {
		rank -= c.of[i]
	}
	return i, rank
}

func (c *counts) above(x time.Duration) int {
	above := 0
	for _, n := range c.of[bucketOf(x)+1:] {
		above += n
	}
	return above
}
