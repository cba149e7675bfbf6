package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// Close codes of RFC 6455.
const (
	closeGoingAway      = 1001
	closePolicy         = 1008
	closeServiceRestart = 1012
)

// closingFor is how long the end of a message is waited for, and then the caller.
const closingFor = time.Second

// sockets are the upgraded connections of a Proxy.
type sockets struct {
	mu sync.Mutex
	// Guarded by mu.
	all    map[*socket]struct{}
	closed bool
	wg     sync.WaitGroup
}

// Upgraded is how many upgraded connections there are.
func (p *Proxy) Upgraded() int {
	p.sockets.mu.Lock()
	defer p.sockets.mu.Unlock()
	return len(p.sockets.all)
}

func (k *sockets) add(p *Proxy, x *exchange, up io.ReadWriteCloser, web bool) (*socket, error) {
	ctx, over := context.WithCancel(context.WithoutCancel(x.in.Context()))
	s := &socket{ReadWriteCloser: up, web: web, sent: &x.bytes, over: ctx.Done(), close: over, ending: make(chan struct{}), gone: make(chan struct{})}
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		over()
		return nil, notSent{errors.New("the proxy ends")}
	}
	k.all[s] = struct{}{}
	k.wg.Add(1)
	k.mu.Unlock()
	key, target, options, in, who := x.key, x.target, x.options, x.in.WithContext(ctx), x.who
	options.ReassignOrphans, options.ClaimOnMiss = false, false
	go func() {
		defer k.wg.Done()
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.all, s)
		}()
		var judging sync.WaitGroup
		defer judging.Wait()
		if p.cfg.Callers != nil {
			judging.Go(func() { s.judge(p, in, who) })
		}
		s.follow(ctx, p.cfg.Router, key, options, target)
		<-s.over
	}()
	return s, nil
}

// close ends all, and waits for that.
func (k *sockets) close() {
	k.mu.Lock()
	k.closed = true
	for s := range k.all {
		s.end(closeGoingAway, "the proxy ends")
	}
	k.mu.Unlock()
	k.wg.Wait()
}

// socket is an upgraded connection to a member, as it is read for the caller.
type socket struct {
	io.ReadWriteCloser
	web   bool
	sent  *atomic.Int64   // bytes, to the caller
	over  <-chan struct{} // it was closed
	close context.CancelFunc

	mu sync.Mutex
	// Guarded by mu.
	code   uint16 // it is to end, with this
	why    string
	ending chan struct{} // closed with code set
	gone   chan struct{} // closed when the caller says nothing more
	left   bool          // gone is closed

	// Of the reader.
	at    frames
	said  []byte // what is left of the close frame
	ended bool   // the close frame was made
	buf   []byte
	got   chan piece
}

// follow ends a socket whose member is no owner of the key any more. One without a key ends with its member.
func (s *socket) follow(ctx context.Context, r *router.Router, key []byte, o router.Options, t router.Target) {
	if key == nil {
		at, a := r.WhileOwner(ctx, nil, o, t)
		defer a.End(nil)
		if <-at.Done(); ctx.Err() == nil {
			s.end(closeServiceRestart, "the member has failed: connect again")
		}
		return
	}
	_ = r.Follow(ctx, key, o, func(now router.Target, err error) bool {
		if !t.Lost(now, err) {
			return true
		}
		s.end(closeServiceRestart, "the region has moved: connect again")
		return false
	}) // else the socket is over, or the keyspace is not followed: New has seen to that
}

// judge ends a socket whose caller may not read the keyspace any more, or where that is not known; in: what it began with.
func (s *socket) judge(p *Proxy, in *http.Request, who principal.Principal) {
	ctx := in.Context()
	tick := time.NewTicker(verdictFor)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := p.cfg.Callers.May(in, rootv1.Verb_VERB_READ, p.keyspace[0])
		if err == nil && now == who || ctx.Err() != nil {
			continue
		}
		if _, denied := errors.AsType[*Denied](err); denied || err == nil {
			s.end(closePolicy, "the caller may not do that any more")
		} else {
			s.end(closeServiceRestart, "what the caller may do is not known: connect again")
		}
		return
	}
}

// end asks the reader to close.
func (s *socket) end(code uint16, why string) {
	s.mu.Lock()
	if s.code != 0 {
		s.mu.Unlock()
		return
	}
	s.code, s.why = code, why
	close(s.ending)
	s.mu.Unlock()
	// Whoever waits for the member is woken; what it was saying may come to its end.
	time.AfterFunc(closingFor, func() { _ = s.ReadWriteCloser.Close() })
}

// Read implements io.Reader: what the member says, and at the end a close frame, if it
// has not sent one itself.
func (s *socket) Read(b []byte) (int, error) {
	for {
		if len(s.said) > 0 {
			n := copy(b, s.said)
			s.said = s.said[n:]
			return n, nil
		}
		if s.ended {
			return 0, s.linger()
		}
		code, why := s.asked()
		if code != 0 && (!s.web || s.at.between()) {
			s.finish(code, why)
			continue
		}
		n, err := s.read(b)
		if n > 0 {
			if s.web {
				s.at.pass(b[:n])
			}
			return n, nil
		}
		switch code, why := s.asked(); {
		case err == errEnding:
		case err == nil:
		case !s.web || s.at.closed || !s.at.between():
			return 0, err
		case code != 0:
			s.finish(code, why)
		default:
			s.finish(closeServiceRestart, "the member has ended: connect again")
		}
	}
}

var errEnding = errors.New("the connection is to end")

// maxPiece is how much of a WebSocket is passed on at a time.
const maxPiece = 4 << 10

// piece is what a read of the member came to.
type piece struct {
	n   int
	err error
}

// read is a read of the member that end interrupts between two frames.
func (s *socket) read(b []byte) (int, error) {
	if !s.web || !s.at.between() {
		return s.ReadWriteCloser.Read(b)
	}
	// One read is under way at a time: an interrupted one is the last, and what it
	// brings is dropped with its buffer.
	if s.buf == nil {
		s.buf, s.got = make([]byte, maxPiece), make(chan piece, 1)
	}
	own := s.buf[:min(len(b), len(s.buf))]
	go func() {
		n, err := s.ReadWriteCloser.Read(own)
		s.got <- piece{n, err}
	}()
	select {
	case g := <-s.got:
		copy(b, own[:g.n])
		return g.n, g.err
	case <-s.ending:
		return 0, errEnding
	}
}

func (s *socket) asked() (uint16, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.code, s.why
}

// finish makes the close frame.
func (s *socket) finish(code uint16, why string) {
	s.ended = true
	if !s.web {
		return
	}
	s.said = append([]byte{0x88, byte(2 + len(why))}, binary.BigEndian.AppendUint16(nil, code)...)
	s.said = append(s.said, why...)
	s.mu.Lock()
	s.code = code
	s.mu.Unlock()
}

// linger lets the caller read the close frame, and answer it, before the connection ends.
func (s *socket) linger() error {
	if s.web {
		select {
		case <-time.After(closingFor):
		case <-s.gone:
		case <-s.over:
		}
	}
	return http.ErrAbortHandler
}

// WriteTo implements io.WriterTo, for io.Copy, which would take 32 KiB for each direction of
// each connection.
func (s *socket) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(counted{w, s.sent}, struct{ io.Reader }{s}, s.room())
}

// counted is a Writer whose bytes are counted.
type counted struct {
	io.Writer
	n *atomic.Int64
}

// Write implements io.Writer.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// ReadFrom implements io.ReaderFrom, as WriteTo.
func (s *socket) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, s.room())
}

// room is what one direction is copied with: WebSockets are many, and their messages short.
func (s *socket) room() []byte {
	if s.web {
		return make([]byte, maxPiece)
	}
	return make([]byte, 32<<10)
}

// Write implements io.Writer: behind the close frame, what the caller says is dropped.
func (s *socket) Write(b []byte) (int, error) {
	if code, _ := s.asked(); code != 0 && s.web {
		if len(b) > 0 && b[0]&0x0f == 8 {
			s.leave()
		}
		return len(b), nil
	}
	n, err := s.ReadWriteCloser.Write(b)
	if err != nil && s.web {
		return len(b), nil // the reader finds it too, and says how it ends
	}
	return n, err
}

// CloseWrite is called when the caller says nothing more.
func (s *socket) CloseWrite() error {
	s.leave()
	if c, ok := s.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return io.EOF // the member cannot be told in another way than by the end of it all
}

func (s *socket) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left {
		s.left = true
		close(s.gone)
	}
}

// Close implements io.Closer.
func (s *socket) Close() error {
	s.close()
	return s.ReadWriteCloser.Close()
}

// frames follows where frames of RFC 6455 begin and end.
type frames struct {
	head   []byte // of a frame that has begun; at most 14 bytes
	rest   uint64 // of its payload
	closed bool   // a close frame has come
}

// between says whether a frame may be put in here that ends everything.
func (f *frames) between() bool { return len(f.head) == 0 && f.rest == 0 }

// pass takes note of what is passed on.
func (f *frames) pass(b []byte) {
	for len(b) > 0 {
		if f.rest > 0 {
			n := min(f.rest, uint64(len(b)))
			f.rest -= n
			b = b[n:]
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if n, ok := headed(f.head); ok {
			f.closed = f.closed || f.head[0]&0x0f == 8
			f.rest, f.head = n, f.head[:0]
		}
	}
}

// headed is the length of a payload, when its head is complete.
func headed(h []byte) (uint64, bool) {
	if len(h) < 2 {
		return 0, false
	}
	size, n := 2, uint64(h[1]&0x7f)
	switch n {
	case 126:
		size = 4
	case 127:
		size = 10
	}
	mask := 0
	if h[1]&0x80 != 0 {
		mask = 4
	}
	if len(h) < size+mask {
		return 0, false
	}
	switch n {
	case 126:
		n = uint64(binary.BigEndian.Uint16(h[2:4]))
	case 127:
		n = binary.BigEndian.Uint64(h[2:10])
	}
	return n, true
}
