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
	req       *http.Request // a copy: the caller may change the original once the body is closed
	begun     time.Time     // the call, on the policy's clock
	validator string        // what tells that the rest belongs to the beginning
	etag      bool          // the validator is an ETag, not a date

	offset int64 // this and what follows belongs to Read
	total  int64 // length of the whole, -1 as long as it is not known
	end    int64 // of the part that is being read, -1 where nothing was announced
	left   int   // how often it may be resumed
	err    error // why nothing more can be read

	mu     sync.Mutex // guards what is beneath; Close changes only closed
	body   io.ReadCloser
	cancel context.CancelFunc // of the call that resumes, or resumed last
	closed bool
}

// download sends the request, and gives its response a body that resumes, if it can be resumed.
func (t *Transport) download(h *host, req *http.Request) (*http.Response, error) {
	begun := h.look.Now()
	resp, err := t.send(h, req, true)
	if err != nil || !resumable(req, resp) {
		return resp, err
	}
	if value, etag := validator(resp.Header); value != "" {
		resp.Body = &download{
			t: t, host: h, req: req.Clone(req.Context()), begun: begun, validator: value, etag: etag,
			total: resp.ContentLength, end: -1, left: maxResumes, body: resp.Body, cancel: nothing,
		}
	}
	return resp, nil
}

func resumable(req *http.Request, resp *http.Response) bool {
	return (req.Method == "" || req.Method == http.MethodGet) && req.Header.Get("Range") == "" &&
		(req.Body == nil || req.Body == http.NoBody) && resp.Body != http.NoBody &&
		resp.StatusCode == http.StatusOK && !resp.Uncompressed && resp.Header.Get("Accept-Ranges") != "none"
}

// validator is what If-Range may say (RFC 9110, 13.1.5): an ETag if there is one, which has to be strong because a weak one
// does not promise the same bytes, or else a date after which the bytes cannot have changed within the same second.
func validator(h http.Header) (value string, etag bool) {
	if tag := h.Get("ETag"); tag != "" {
		if strings.HasPrefix(tag, `"`) {
			return tag, true
		}
		return "", false
	}
	value = h.Get("Last-Modified")
	modified, err1 := http.ParseTime(value)
	sent, err2 := http.ParseTime(h.Get("Date"))
	if err1 != nil || err2 != nil || sent.Sub(modified) < time.Second {
		return "", false
	}
	return value, false
}

// Read returns the error that stopped the body if it cannot be resumed, from then on always.
func (d *download) Read(p []byte) (int, error) {
	for d.err == nil {
		n, err := d.current().Read(p)
		n, err = d.count(n, err)
		if err != nil && !d.resume(err) {
			d.err = err
			d.release()
			return n, err
		}
		if err == nil || n > 0 {
			return n, nil
		}
	}
	return 0, d.err
}

var errTooLong = errors.New("resiliencehttp: the rest of a body is longer than its Content-Range says")

// count books what was read. What ends before everything is there has not ended.
func (d *download) count(n int, err error) (int, error) {
	d.offset += int64(n)
	if excess := d.offset - d.end; d.end >= 0 && excess > 0 {
		d.offset = d.end
		return n - int(excess), errTooLong
	}
	switch {
	case err == nil:
	case d.end >= 0 && d.offset == d.total: // then it does not matter what else went wrong
		return n, io.EOF
	case err == io.EOF && d.offset < d.total: //nolint:errorlint // the very value: that is the end of a body
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Close closes what is read from at the moment, and ends a call that resumes.
func (d *download) Close() error {
	d.mu.Lock()
	d.closed = true
	body := d.body
	d.mu.Unlock()
	err := body.Close()
	d.release()
	return err
}

// release lets go of the call that resumes, or resumed last.
func (d *download) release() {
	d.mu.Lock()
	cancel := d.cancel
	d.mu.Unlock()
	cancel()
}

func (d *download) current() io.ReadCloser {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.body
}

// resume replaces a body that stalled, broke or ended early by the rest of it, and reports whether it could.
func (d *download) resume(why error) bool {
	look := &d.host.look
	if why == io.EOF || why == errTooLong || d.left == 0 || //nolint:errorlint // the very values
		d.req.Context().Err() != nil || errors.Is(why, resilience.ErrDeadlineExceeded) {
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
	_ = d.current().Close()
	ctx, cancel := look.Within(d.req.Context(), left)
	if !d.goOn(cancel) {
		cancel()
		return false
	}
	if rest := d.rest(ctx); rest == nil || !d.replace(rest) {
		return false // the call that was to resume is released with the body
	}
	look.Emit(resilience.Event{Kind: resilience.EventStreamResumed, Err: why})
	return true
}

// goOn makes the call that is about to resume the one that Close ends, unless the body is closed already.
func (d *download) goOn(cancel context.CancelFunc) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.cancel() // of the call before, whose body is closed
	d.cancel = cancel
	return true
}

// rest asks for the bytes from the offset on, as a call of its own; nil if they cannot be had.
func (d *download) rest(ctx context.Context) io.ReadCloser {
	req := d.req.Clone(ctx)
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
	req.Header.Set("If-Range", d.validator)
	resp, err := d.t.send(d.host, req, true)
	if err != nil {
		return nil
	}
	if !d.continues(resp) {
		drain(resp)
		return nil
	}
	return resp.Body
}

// continues reports whether the response is a part of the same representation that begins at the offset.
func (d *download) continues(resp *http.Response) bool {
	name := "Last-Modified"
	if d.etag {
		name = "ETag"
	}
	same := resp.Header.Get(name)
	if resp.StatusCode != http.StatusPartialContent || resp.Uncompressed || same != "" && same != d.validator {
		return false
	}
	first, last, total, ok := contentRange(resp.Header.Get("Content-Range"))
	length := last - first + 1
	if !ok || first != d.offset || d.total >= 0 && total != d.total || resp.ContentLength >= 0 && resp.ContentLength != length {
		return false
	}
	d.total, d.end = total, last+1
	return true
}

// contentRange reads "bytes first-last/total". A total that the server does not know is of no use here: nobody could tell
// the end of the part from the end of the whole.
func contentRange(value string) (first, last, total int64, ok bool) {
	numbers, ok1 := strings.CutPrefix(value, "bytes ")
	positions, whole, ok2 := strings.Cut(numbers, "/")
	from, to, ok3 := strings.Cut(positions, "-")
	first, ok4 := digits(from)
	last, ok5 := digits(to)
	total, ok6 := digits(whole)
	ok = ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && first <= last && last < total
	return first, last, total, ok
}

// replace installs the rest, unless the body was closed meanwhile.
func (d *download) replace(rest io.ReadCloser) bool {
	d.mu.Lock()
	if !d.closed {
		d.body = rest
		d.mu.Unlock()
		return true
	}
	d.mu.Unlock()
	_ = rest.Close()
	return false
}
