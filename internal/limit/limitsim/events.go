package limitsim

import "time"

// event is the end of a call.
type event struct {
	at   time.Duration
	call call
}

// events is a binary heap, soonest first. container/heap would box every event, and a run has millions. Ties end in
// the order of the heap, which is the same in every run.
type events []event

func (h *events) push(e event) {
	*h = append(*h, e)
	q := *h
	child := len(q) - 1
	for child > 0 {
		parent := (child - 1) / 2
		if q[parent].at <= e.at {
			break
		}
		q[child] = q[parent]
		child = parent
	}
	q[child] = e
}

func (h *events) pop() event {
	q := *h
	first, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	*h = q
	parent := 0
	for {
		child := 2*parent + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].at < q[child].at {
			child++
		}
		if last.at <= q[child].at {
			break
		}
		q[parent] = q[child]
		parent = child
	}
	if len(q) > 0 {
		q[parent] = last
	}
	return first
}

// queue is first in, first out. It moves its calls to the front only when half of it is used up.
type queue struct {
	calls []call
	head  int
}

func (q *queue) empty() bool { return q.head == len(q.calls) }

func (q *queue) push(c call) { q.calls = append(q.calls, c) }

func (q *queue) pop() call {
	c := q.calls[q.head]
	q.head++
	if 2*q.head >= len(q.calls) {
		n := copy(q.calls, q.calls[q.head:])
		q.calls, q.head = q.calls[:n], 0
	}
	return c
}
