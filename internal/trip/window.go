package trip

import "time"

// slots is the number of steps in which a window slides, and in which the
// normal sample is replaced.
const slots = 10

// tally is what one slot of the window holds.
type tally struct{ n, fail, slow, late uint32 }

// window counts results over a span that slides by a tenth of itself.
type window struct {
	origin time.Duration
	span   time.Duration // of one slot
	end    time.Duration // of the slot being filled
	at     int64         // its number since origin
	ring   [slots]tally
	sum    tally // of the ring
}

func newWindow(span time.Duration, now time.Duration) window {
	w := window{origin: now, span: max(span/slots, 1)}
	w.end = now + w.span
	return w
}

func (w *window) add(t tally) {
	w.ring[w.at%slots].add(t)
	w.sum.add(t)
}

// roll drops the slots that have left the window at now. It never goes back.
func (w *window) roll(now time.Duration) {
	if now < w.end {
		return
	}
	at := int64((now - w.origin) / w.span)
	for i := max(w.at, at-slots) + 1; i <= at; i++ {
		slot := &w.ring[i%slots]
		w.sum.n -= slot.n
		w.sum.fail -= slot.fail
		w.sum.slow -= slot.slow
		w.sum.late -= slot.late
		*slot = tally{}
	}
	w.at = at
	w.end = w.origin + time.Duration(at+1)*w.span
}

func (w *window) clear() {
	w.ring = [slots]tally{}
	w.sum = tally{}
}

func (t *tally) add(u tally) {
	t.n += u.n
	t.fail += u.fail
	t.slow += u.slow
	t.late += u.late
}
