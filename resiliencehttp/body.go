package resiliencehttp

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/measuredgo/resilience"
)

// body is a response body that keeps its exchange alive until it is closed, read to its end or broken. Like the bodies of
// net/http it may be closed while it is read, and is read by one goroutine at a time.
type body struct {
	rc    io.ReadCloser
	x     *exchange
	bound time.Duration // of one read; 0: none
	gap   alarm
	err   error // why nothing more can be read

	switched bool // a connection to which the rules of a body do not apply: it may be written to when it cannot be read
	closed   atomic.Bool
}

// Read is bounded only while it waits: how long the caller takes between two reads is the caller's affair.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.switched:
		return b.rc.Read(p)
	case b.err != nil:
		return 0, b.err
	}
	bounded := b.bound > 0
	if bounded {
		b.gap.set(b.bound)
	}
	n, err := b.rc.Read(p)
	stalled := bounded && !b.gap.stop()
	switch {
	case err == io.EOF:
		b.err = err
	case stalled:
		b.err = b.stall()
	case err != nil:
		b.err = b.x.ending(err)
	default:
		return n, nil
	}
	b.x.end()
	return n, b.err
}

func (b *body) stall() error {
	err := fmt.Errorf("%w: nothing of the body came within %v", resilience.ErrStalled, b.bound)
	b.x.call.host.look.Emit(resilience.Event{
		Kind: resilience.EventStalled, Attempt: b.x.info.Number, Duration: b.bound, Err: err,
	})
	return err
}

// interrupt ends a read that takes too long, also if the base does not listen to the context of its request.
func (b *body) interrupt() {
	b.x.cancel(resilience.ErrStalled)
	_ = b.shut()
}

// Close closes the body before the context ends: net/http then still knows whether the connection can be used again.
func (b *body) Close() error {
	err := b.shut()
	b.x.end()
	return err
}

// shut closes what is underneath once, and does not wait for somebody else who does.
func (b *body) shut() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.rc.Close()
}

// discard says that from now on the body is only drained, which has a bound of its own, and returns what cuts it short.
func (b *body) discard() (cut func()) {
	b.bound = 0
	return b.x.end
}

// writableBody is a body that can be written to, as that of a tunnel.
type writableBody struct {
	*body
	io.Writer
}

// CloseWrite ends what is written, if the base can do that. httputil.ReverseProxy calls it.
func (b writableBody) CloseWrite() error {
	if half, ok := b.Writer.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("resiliencehttp: CloseWrite: %w", http.ErrNotSupported)
}

// buffered reads the body, and hands out what was read.
func buffered(resp *http.Response) (*http.Response, error) {
	data, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = memoryBody(data)
	return resp, nil
}
