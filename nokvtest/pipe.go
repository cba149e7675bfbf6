package nokvtest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxPiped bounds what waits in one direction of a connection, as a socket's buffers do.
const maxPiped = 256 << 10

// half is one direction of a connection. Whoever waits in it waits on its condition, so that
// a synctest bubble sees it.
type half struct {
	mu    sync.Mutex
	moved sync.Cond // with mu: something is not as it was
	buf   []byte
	// over is what a reader is told behind buf, nil: it goes on. Cut: nothing arrives,
	// neither bytes nor the end.
	over error
	cut  bool
	// readClosed and writeClosed: this end was closed by its own side.
	readClosed, writeClosed bool
	reads, writes           deadline
}

// deadline of one side. Guarded by what guards the side.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newHalf() *half {
	h := &half{}
	h.moved.L = &h.mu
	return h
}

// passed reports whether a deadline is over.
func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// setLocked changes a deadline, and has those look who wait for moved. Its lock is held.
func (d *deadline) setLocked(moved *sync.Cond, at time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at, d.timer = at, nil
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() {
			moved.L.Lock()
			defer moved.L.Unlock()
			moved.Broadcast()
		})
	}
	moved.Broadcast()
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.readClosed:
			return 0, net.ErrClosed
		case h.reads.passed():
			return 0, os.ErrDeadlineExceeded
		case h.cut:
		case len(h.buf) > 0:
			n := copy(b, h.buf)
			if h.buf = h.buf[n:]; len(h.buf) == 0 {
				h.buf = nil
			}
			h.moved.Broadcast()
			return n, nil
		case h.over != nil:
			return 0, h.over
		}
		h.moved.Wait()
	}
}

func (h *half) write(b []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.writeClosed:
			return n, net.ErrClosed
		case h.writes.passed():
			return n, os.ErrDeadlineExceeded
		case h.over != nil && !h.cut: // that the other side is closed does not arrive either
			return n, syscall.EPIPE
		case len(b) == 0:
			return n, nil
		}
		if room := min(maxPiped-len(h.buf), len(b)); room > 0 {
			h.buf = append(h.buf, b[:room]...)
			b, n = b[room:], n+room
			h.moved.Broadcast()
			continue
		}
		h.moved.Wait()
	}
}

// end has readers told err behind what was written; dropped: what was written is lost.
func (h *half) end(err error, dropped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = err
	}
	if dropped {
		h.buf = nil
	}
	h.moved.Broadcast()
}

func (h *half) setCut(cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = cut
	h.moved.Broadcast()
}

// closeRead and closeWrite are what the side that reads or writes does when it closes.
func (h *half) closeRead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readClosed, h.over = true, syscall.ECONNRESET
	h.reads.setLocked(&h.moved, time.Time{})
}

func (h *half) closeWrite() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeClosed = true
	if h.over == nil {
		h.over = io.EOF
	}
	h.writes.setLocked(&h.moved, time.Time{})
}

// conn is one end of a connection between two hosts.
type conn struct {
	net           *network
	here, there   *host
	in, out       *half
	local, remote address
	closing       sync.Once
}

// address of an end in memory.
type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }

// Read, Write and the rest implement net.Conn.
func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }
func (c *conn) LocalAddr() net.Addr         { return c.local }
func (c *conn) RemoteAddr() net.Addr        { return c.remote }

func (c *conn) Close() error {
	c.closing.Do(func() {
		c.net.forget(c)
		c.out.closeWrite()
		c.in.closeRead()
	})
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if !c.in.readClosed {
		c.in.reads.setLocked(&c.in.moved, t)
	}
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if !c.out.writeClosed {
		c.out.writes.setLocked(&c.out.moved, t)
	}
	return nil
}
