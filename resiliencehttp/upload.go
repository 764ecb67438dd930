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
	open func() (io.ReadCloser, error) // a new reader for each attempt; legs may ask side by side

	mu     sync.Mutex    // guards what is beneath, never held while code of the caller's runs
	stream io.ReadCloser // the only reader there is; nil once an attempt has it
}

// next is the body of another attempt, nil if there is none.
func (u *upload) next(x *exchange) (io.ReadCloser, error) {
	if u.open != nil {
		return x.track(u.open)
	}
	if rc := u.take(); rc != nil {
		return &requestBody{rc: rc, x: x}, nil
	}
	return nil, nil //nolint:nilnil // no body is no failure
}

// take returns the stream to the first who asks.
func (u *upload) take() io.ReadCloser {
	u.mu.Lock()
	defer u.mu.Unlock()
	rc := u.stream
	u.stream = nil
	return rc
}

// close closes a body that no attempt has got.
func (u *upload) close() {
	if rc := u.take(); rc != nil {
		_ = rc.Close()
	}
}

// track opens a body for the base. The base does not know that a failure to do so is the caller's.
func (x *exchange) track(open func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	rc, err := open()
	if rc == nil && err == nil {
		err = errNoBody
	}
	if err != nil {
		x.unread.CompareAndSwap(nil, &err)
		return nil, err
	}
	return &requestBody{rc: rc, x: x}, nil
}

var (
	errNoBody = errors.New("resiliencehttp: GetBody of the request returned neither a body nor an error")
	errUnread = errors.New("resiliencehttp: the goroutine that read the body of the request has exited")
)

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
		data     []byte
		err      error
		panicked any
	}
	read := make(chan outcome, 1)
	go func() {
		o := outcome{err: errUnread}
		defer func() {
			o.panicked = recover()
			read <- o
		}()
		o.data, o.err = io.ReadAll(io.LimitReader(body, max(limit, limit+1))) // the sum may overflow
	}()
	select {
	case r := <-read:
		whole = r.err != nil || int64(len(r.data)) <= limit
		if whole {
			_ = body.Close()
		}
		if r.panicked != nil {
			panic(r.panicked) // here the caller may recover it
		}
		return r.data, whole, r.err
	case <-ctx.Done():
		go func() { _ = body.Close() }() // which may wait for the Read that is under way
		return nil, false, context.Cause(ctx)
	}
}
