package resiliencehttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// upload is where the attempts of a call get their request bodies from. With neither field set there is no body.
type upload struct {
	open func() (io.ReadCloser, error) // a new reader for each attempt

	mu     sync.Mutex    // guards what is beneath, and has one open at a time: legs ask side by side
	stream io.ReadCloser // the only reader there is; nil once an attempt has it
}

// next is the body of another attempt, nil if there is none.
func (u *upload) next(x *exchange) (io.ReadCloser, error) {
	if u.open != nil {
		return u.track(x, u.open)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stream == nil {
		return nil, nil //nolint:nilnil // no body is no failure
	}
	body := &requestBody{rc: u.stream, x: x}
	u.stream = nil
	return body, nil
}

func (u *upload) track(x *exchange, open func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rc, err := open()
	if err != nil {
		return nil, err
	}
	return &requestBody{rc: rc, x: x}, nil
}

// close closes a body that no attempt has got.
func (u *upload) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stream != nil {
		_ = u.stream.Close()
		u.stream = nil
	}
}

// requestBody is the body of one attempt. It closes what it reads from once, does not read it afterwards, and tells the
// exchange if the caller's reader fails: that is no failure of the dependency. A base may read and close it side by side.
type requestBody struct {
	rc     io.ReadCloser
	x      *exchange
	closed atomic.Bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.rc.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !b.closed.Load() {
		b.x.unread.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (b *requestBody) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.rc.Close()
}

func memoryBody(data []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(data)) }

// prefixed is the rest of a body behind what was already read of it.
func prefixed(ahead []byte, rest io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(ahead), rest), rest}
}

// readAhead reads a body up to its end, and closes it, or until it turns out to be larger than limit. When ctx ends first
// it returns the cause at once. The goroutine that reads ends with the reader, which is closed then.
func readAhead(ctx context.Context, body io.ReadCloser, limit int64) (ahead []byte, whole bool, err error) {
	type outcome struct {
		data []byte
		err  error
	}
	read := make(chan outcome, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(body, limit+1))
		read <- outcome{data, err}
	}()
	select {
	case r := <-read:
		whole = r.err != nil || int64(len(r.data)) <= limit
		if whole {
			_ = body.Close()
		}
		return r.data, whole, r.err
	case <-ctx.Done():
		go func() { _ = body.Close() }() // which may wait for the Read that is under way
		return nil, false, context.Cause(ctx)
	}
}
