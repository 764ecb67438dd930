package resilience

import "time"

// subscriber hears of the changes of state that its own calls cause, after the lock is gone, on the goroutine of whoever
// delivers. It may call any method of the breaker.
type subscriber interface {
	// breakerChanged gets EventBreakerOpened with the time until the first probe, EventBreakerHalfOpened or
	// EventBreakerClosed.
	breakerChanged(kind EventKind, d time.Duration)
}

// notice is one change that somebody has yet to be told.
type notice struct {
	to   subscriber
	kind EventKind
	d    time.Duration
}

func (b *Breaker) tellLocked(to subscriber, kind EventKind, d time.Duration) {
	if to != nil {
		b.notices = append(b.notices, notice{to, kind, d})
	}
}

// unlockAndTell unlocks and delivers what there is. One goroutine delivers at a time, which keeps the order; the others
// leave their notices to it and go on.
func (b *Breaker) unlockAndTell() {
	mine := len(b.notices) > 0 && !b.telling
	b.telling = b.telling || mine
	b.mu.Unlock()
	if mine {
		b.tellAll()
	}
}

func (b *Breaker) tellAll() {
	for b.tellNext() {
	}
}

// tellNext delivers the oldest notice, or gives the delivery up if there is none.
func (b *Breaker) tellNext() (more bool) {
	b.mu.Lock()
	if len(b.notices) == 0 {
		b.notices, b.telling = nil, false
		b.mu.Unlock()
		return false
	}
	n := b.notices[0]
	b.notices = b.notices[1:]
	b.mu.Unlock()
	defer func() {
		if !more { // the subscriber panicked or ended its goroutine: those behind it are told on the way out
			b.tellAll()
		}
	}()
	n.to.breakerChanged(n.kind, n.d)
	return true
}
