package resilience

import (
	"sync"
	"sync/atomic"
	"time"
)

// Drain tells the policies that share it, through WithDrain, that the process is shutting down: from Begin on no retry
// and no hedge starts, waits for a retry end at once with ErrDraining and the dependency's own error, and no call that
// starts has a deadline beyond the grace. First attempts still run, so that what is being served can be finished. It is
// safe for concurrent use. The zero Drain is not usable: make one with NewDrain.
type Drain struct {
	begun    chan struct{} // closed by Begin
	draining atomic.Bool   // the same for those who only look

	mu    sync.Mutex // guards what is beneath
	grace time.Duration
	ends  map[*timeline]time.Duration // when the grace is over, on each clock that a policy follows; before Begin: never
}

// NewDrain returns a drain that has not begun.
func NewDrain() *Drain {
	return &Drain{begun: make(chan struct{}), ends: map[*timeline]time.Duration{standardTime: never}}
}

// Begin starts the drain: grace is what the calls from now on may take, 0 or less for nothing. The first call wins, later
// ones do nothing. It does not block, and calls that are running keep the bounds that they have.
func (d *Drain) Begin(grace time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining.Load() {
		return
	}
	d.grace = max(grace, 0)
	for t := range d.ends {
		d.ends[t] = later(t.now(), d.grace)
	}
	d.draining.Store(true)
	close(d.begun)
}

// follow makes the grace run on a policy's clock too.
func (d *Drain) follow(t *timeline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.ends[t]; ok {
		return
	}
	d.ends[t] = never
	if d.draining.Load() {
		d.ends[t] = later(t.now(), d.grace)
	}
}

// end is when the grace is over, never while nothing drains or without a drain.
func (d *Drain) end(t *timeline) time.Duration {
	if d == nil || !d.draining.Load() {
		return never
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ends[t]
}

func (d *Drain) isDraining() bool { return d != nil && d.draining.Load() }

// starts is closed when the drain begins; nil, which blocks for ever, without a drain.
func (d *Drain) starts() <-chan struct{} {
	if d == nil {
		return nil
	}
	return d.begun
}
