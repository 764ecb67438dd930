package resilience

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// tallies counts successes without a lock and without a word that all processors write: two of them that count in turn in
// one cache line take three times as long as one alone. There is a cell for each of the first eight processors.
type tallies []tally

// tally is 32 bits of generation, and 32 bits of successes that were admitted in that generation.
type tally struct {
	word atomic.Uint64
	_    [56]byte // to a cache line
}

// fullTally is where a success takes the way through the lock, which empties the tally.
const fullTally = 1 << 28

func newTallies() tallies { return make(tallies, min(runtime.GOMAXPROCS(0), 8)) }

// stripes lends a number to whoever counts. A sync.Pool gives a processor what it gave back last, so the number stays in
// place. Nothing but speed depends on it.
var (
	stripes    = sync.Pool{New: func() any { n := new(uint32); *n = lastStripe.Add(1); return n }}
	lastStripe atomic.Uint32
)

// add counts one success of a generation. It reports false where the tally is full. Once a later generation has begun
// here, an earlier one counts nothing.
func (t tallies) add(generation uint32) bool {
	stripe := stripes.Get().(*uint32)
	defer stripes.Put(stripe)
	word := &t[*stripe%uint32(len(t))].word
	for {
		old := word.Load()
		next := old + 1
		switch ahead := int32(uint32(old>>32) - generation); {
		case ahead > 0:
			return true
		case ahead < 0:
			next = uint64(generation)<<32 | 1
		case uint32(old) >= fullTally:
			return false
		}
		if word.CompareAndSwap(old, next) {
			return true
		}
	}
}

// take returns what was counted for the present generation, and counts from zero. Only one goroutine may take at a time.
func (t tallies) take(generation uint32) uint32 {
	var sum uint32
	for i := range t {
		old := t[i].word.Load()
		if n := uint32(old); uint32(old>>32) == generation && n > 0 {
			t[i].word.Add(-uint64(n))
			sum += n
		}
	}
	return sum
}
