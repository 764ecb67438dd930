package resiliencehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/measuredgo/resilience"
)

const maxResumes = 5

// download is the body of a GET that goes on where it stopped. It may be closed while it is read.
type download struct {
	t         *Transport
	host      *host
	req       *http.Request // the caller's
	begun     time.Time     // the call, on the policy's clock
	validator string        // what tells that the rest belongs to the beginning
	etag      bool          // the validator is an ETag, not a date
	offset    int64
	left      int

	mu     sync.Mutex // guards what is beneath, which only Read changes
	body   io.ReadCloser
	cancel context.CancelFunc // of the call that resumed last
	closed bool
}

// download sends the request, and gives its response a body that resumes, if it can be resumed.
func (t *Transport) download(h *host, req *http.Request) (*http.Response, error) {
	begun := h.look.Now()
	resp, err := t.send(h, req)
	if err != nil || !resumable(req, resp) {
		return resp, err
	}
	d := &download{
		t: t, host: h, req: req, begun: begun, left: maxResumes, body: resp.Body, cancel: nothing,
	}
	if d.validator, d.etag = validator(resp.Header); d.validator != "" {
		resp.Body = d
	}
	return resp, nil
}

func resumable(req *http.Request, resp *http.Response) bool {
	return (req.Method == "" || req.Method == http.MethodGet) && req.Header.Get("Range") == "" &&
		(req.Body == nil || req.Body == http.NoBody) && resp.Body != http.NoBody &&
		resp.StatusCode == http.StatusOK && !resp.Uncompressed && resp.Header.Get("Accept-Ranges") != "none"
}

// validator is what If-Range may say: a weak ETag does not promise the same bytes.
func validator(h http.Header) (value string, etag bool) {
	if tag := h.Get("ETag"); tag != "" {
		if strings.HasPrefix(tag, `"`) {
			return tag, true
		}
		return "", false
	}
	return h.Get("Last-Modified"), false
}

// Read returns the error that stopped the body if it cannot be resumed.
func (d *download) Read(p []byte) (int, error) {
	for {
		body, _ := d.current()
		n, err := body.Read(p)
		d.offset += int64(n)
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF || !d.resume(err):
			d.release()
			return n, err
		case n > 0:
			return n, nil
		}
	}
}

// Close closes what is read from at the moment.
func (d *download) Close() error {
	d.mu.Lock()
	d.closed = true
	body := d.body
	d.mu.Unlock()
	err := body.Close()
	d.release()
	return err
}

// release lets go of the call that resumed last.
func (d *download) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel()
}

func (d *download) current() (body io.ReadCloser, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.body, d.closed
}

// resume replaces a body that stalled or broke by the rest of it, and reports whether it could.
func (d *download) resume(why error) bool {
	look := &d.host.look
	broken, closed := d.current()
	if closed || d.left == 0 || d.req.Context().Err() != nil || errors.Is(why, resilience.ErrDeadlineExceeded) {
		return false
	}
	left := look.Deadline
	if left != resilience.Unbounded {
		left -= look.Now().Sub(d.begun)
	}
	if left <= 0 {
		return false
	}
	d.left--
	_ = broken.Close()
	ctx, cancel := within(d.req.Context(), look, left)
	rest, ok := d.rest(ctx)
	if !ok || !d.replace(rest, cancel) {
		cancel()
		return false
	}
	look.Emit(resilience.Event{Kind: resilience.EventStreamResumed, Err: why})
	return true
}

// rest asks for the bytes from the offset on, as a call of its own.
func (d *download) rest(ctx context.Context) (io.ReadCloser, bool) {
	req := d.req.Clone(ctx)
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
	req.Header.Set("If-Range", d.validator)
	resp, err := d.t.send(d.host, req)
	if err != nil {
		return nil, false
	}
	if !d.continues(resp) {
		drain(resp)
		return nil, false
	}
	return resp.Body, true
}

// continues reports whether the response is the rest of the same representation.
func (d *download) continues(resp *http.Response) bool {
	name := "Last-Modified"
	if d.etag {
		name = "ETag"
	}
	same := resp.Header.Get(name)
	return resp.StatusCode == http.StatusPartialContent && !resp.Uncompressed &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", d.offset)) &&
		(same == "" || same == d.validator)
}

// replace installs the rest, unless the body was closed meanwhile.
func (d *download) replace(rest io.ReadCloser, cancel context.CancelFunc) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = rest.Close()
		return false
	}
	d.cancel()
	d.body, d.cancel = rest, cancel
	return true
}
