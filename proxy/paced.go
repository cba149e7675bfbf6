package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// paced is a body that is passed on as it comes, of a caller who has to go on with it.
type paced struct {
	io.ReadCloser
	control *http.ResponseController
	silence time.Duration
	shared  bool // other requests are on the connection: HTTP/2

	reading sync.Mutex
	// Guarded by reading, which is held while one reads.
	stopped error // it went on no more

	mu sync.Mutex
	// Guarded by mu.
	over bool // no deadline is set any more: the next one may be that of another request
}

// pace has a body paced, unless it is that of a stream whose caller may be silent.
func (x *exchange) pace(r *http.Request, control *http.ResponseController, silence time.Duration) {
	shared := r.ProtoMajor > 1
	if r.ContentLength == 0 || r.Body == nil || shared && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
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

// Read implements io.Reader. The time of a stream of HTTP/2 runs out though nobody reads, so that
// it is set only while somebody does: a member that takes its time is not the caller's fault.
func (b *paced) Read(buf []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.within(b.silence)
	n, err := b.ReadCloser.Read(buf)
	if b.shared {
		b.within(0)
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

// Close implements io.Closer: whoever still reads sets no deadline for the next request.
func (b *paced) Close() error {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
