package resiliencehttp

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience/internal/inside"
)

func init() { inside.Discards = append(inside.Discards, drain) }

// What a response that nobody gets may cost, so that its connection can be used again.
const (
	maxDrain  = 64 << 10
	drainTime = 50 * time.Millisecond
)

// drain reads what is left of a response, within limits, and closes it. It does not block longer than drainTime, whatever
// the body does: a read that hangs is left to end on its own goroutine.
func drain(resp *http.Response) {
	if resp == nil || resp.Body == nil {
		return
	}
	rc := resp.Body
	if rc == http.NoBody {
		_ = rc.Close()
		return
	}
	cut := nothing
	if ours, ok := rc.(interface{ discard() (cut func()) }); ok {
		cut = ours.discard()
	}
	var closed atomic.Bool
	closing := func() {
		defer func() { _ = recover() }() // as the policy does: what nobody gets must not end the process
		if !closed.Swap(true) {
			_ = rc.Close()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // likewise
		defer closing()
		_, _ = io.CopyN(io.Discard, rc, maxDrain)
	}()
	limit := time.NewTimer(drainTime)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		cut()
		go closing() // which may wait for the read that hangs
	}
}
