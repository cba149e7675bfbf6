package transport

import (
	"net"
	"syscall"

	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

// maxDirectBytes bounds the entries of a message that its sender encodes and
// writes itself. Larger ones are worth another goroutine.
const maxDirectBytes = 16 << 10

// direct lets a sender write to the connection itself as long as that takes no
// waiting: waking a goroutine for a small message costs more than the message.
// What the socket does not take at once is left to the goroutine of write.
type direct struct {
	// token is held by who writes to the connection; capacity 1.
	token chan struct{}

	// Guarded by token.
	raw  syscall.RawConn // nil: no connection, or one that cannot be written without waiting
	rest []byte          // encoded, not written: goes out before everything else
	room []item
	buf  []byte
}

func newDirect() direct { return direct{token: make(chan struct{}, 1)} }

// begin takes the token, end gives it back.
func (d *direct) begin() { d.token <- struct{}{} }
func (d *direct) end()   { <-d.token }

// open begins with a connection.
func (d *direct) open(conn net.Conn) {
	d.begin()
	defer d.end()
	d.raw, d.rest = nil, nil
	if c, ok := conn.(syscall.Conn); ok {
		d.raw, _ = c.SyscallConn()
	}
}

// close says whether something that was taken from the queue is lost.
func (d *direct) close() (lost bool) {
	d.begin()
	defer d.end()
	lost = len(d.rest) > 0
	d.raw, d.rest = nil, nil
	return lost
}

// sendDirectly writes the queue, of which i is the first, unless somebody else
// writes or it would have to wait. It reports false when there is something
// left for write.
func (p *remote) sendDirectly(i item) bool {
	d := &p.direct
	if !small(i.message) {
		return false
	}
	select {
	case d.token <- struct{}{}:
	default:
		return false
	}
	defer d.end()
	if d.raw == nil || len(d.rest) > 0 {
		return false
	}
	batch := p.take(d.room)
	buf := d.buf[:0]
	for _, i := range batch {
		buf = p.appendItem(buf, i)
	}
	p.sent.Add(uint64(len(batch)))
	clear(batch)
	d.room = batch
	n := 0
	err := d.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), buf) // An error is write's to find: it writes the rest.
		return true
	})
	if err != nil {
		n = 0
	}
	n = max(n, 0)
	p.writes.Add(1)
	p.bytes.Add(uint64(n))
	if d.buf = buf; cap(buf) > 4*maxDirectBytes {
		d.buf = nil
	}
	if n < len(buf) {
		d.rest = append([]byte(nil), buf[n:]...)
		return false
	}
	return true
}

// small says whether a message is cheap to encode; nil is a state hash.
func small(m *raftpb.Message) bool {
	bytes := 0
	for _, e := range m.GetEntries() {
		if bytes += len(e.GetData()); bytes > maxDirectBytes {
			return false
		}
	}
	return true
}
