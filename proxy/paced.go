package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// paced is a body that is passed on as it comes, of a caller who has to go on with it.
type paced struct {
	io.ReadCloser
	control *http.ResponseController
	silence time.Duration
	shared  bool // other requests are on the connection: HTTP/2
	whole   atomic.Bool

	reading sync.Mutex
	// Guarded by reading, which is held while one reads.
	stopped  error // it went on no more
	finished bool

	mu sync.Mutex
	// Guarded by mu.
	over bool // no deadline is set any more: the next one may be that of another request
}

// pace has a body paced.
func (x *exchange) pace(r *http.Request, control *http.ResponseController, silence time.Duration) {
	shared := r.ProtoMajor > 1
	if r.ContentLength == 0 || r.Body == nil {
		return
	}
	x.paced = &paced{ReadCloser: r.Body, control: control, silence: silence, shared: shared}
	if !shared {
		x.paced.within(silence) // of what the server reads itself behind an answer that came early
	}
	r.Body = x.paced
}

// within sets the time for what is read next; 0: any.
func (b *paced) within(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	var end time.Time
	if d > 0 {
		end = time.Now().Add(d)
	}
	_ = b.control.SetReadDeadline(end) // a listener that has none does not wait either
}

// free lets the body take its time from here on.
func (b *paced) free() {
	b.within(0)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// answered prepares for an answer that begins now. A server of HTTP/1 throws away what it finds of the
// body then, unless it is told that the member goes on reading. Nobody reads the rest behind the answer,
// so that the connection ends with it.
func (b *paced) answered(resp *http.Response) {
	switch {
	case b.whole.Load():
		return
	case b.shared:
	case b.control.EnableFullDuplex() != nil:
		return
	default:
		resp.Header.Set("Connection", "close")
	}
	resp.Body = &earlyAnswer{ReadCloser: resp.Body, request: b}
}

// earlyAnswer is one that began before the body of its request was whole.
type earlyAnswer struct {
	io.ReadCloser
	request *paced
	whole   bool // of whoever reads
}

// Read implements io.Reader.
func (a *earlyAnswer) Read(buf []byte) (int, error) {
	n, err := a.ReadCloser.Read(buf)
	a.whole = a.whole || err == io.EOF
	return n, err
}

// Close implements io.Closer. A transport of HTTP/2 waits for who reads the body, also when the member has
// ended, and a caller may be silent for as long as it likes.
func (a *earlyAnswer) Close() error {
	a.request.finish(a.whole)
	return a.ReadCloser.Close()
}

// Read implements io.Reader. The time of a stream of HTTP/2 runs out though nobody reads, so that
// it is set only while somebody does: a member that takes its time is not the caller's fault.
func (b *paced) Read(buf []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.finished {
		return 0, http.ErrBodyReadAfterClose
	}
	b.within(b.silence)
	n, err := b.ReadCloser.Read(buf)
	if b.shared {
		b.within(0)
	}
	if err == io.EOF {
		b.whole.Store(true)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &badRequest{http.StatusRequestTimeout, fmt.Sprintf("no more of the body came for %v: send it again, and go on with it", b.silence)}
		b.stopped = err
	}
	return n, err
}

// cause is why a request was canceled. Who reads HTTP/1 cancels it by what it reads, before it
// says so.
func (b *paced) cause(err error) error {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.stopped != nil {
		return b.stopped
	}
	return err
}

// finish ends reading behind an early answer. The server throws away what comes of the body then, for as
// long as the caller would be waited for, when it has sent the end of the answer. That takes nobody else to
// read meanwhile: the server would end that, and then wait for ever. Behind half an answer it does not wait.
func (b *paced) finish(whole bool) {
	if b.shared {
		_ = b.Close()
		return
	}
	b.mu.Lock()
	b.over = true
	_ = b.control.SetReadDeadline(time.Now())
	b.mu.Unlock()
	b.reading.Lock()
	defer b.reading.Unlock()
	b.finished = true
	if whole {
		_ = b.control.SetReadDeadline(time.Now().Add(b.silence))
	}
}

// Close implements io.Closer: whoever still reads sets no deadline for the next request.
func (b *paced) Close() error {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
