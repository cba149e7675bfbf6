package gate

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// replyBytes is from where on a message counts that was given to gRPC. Smaller ones are
// within what an open stream counts.
const replyBytes = streamBytes

// unsent is what was given to gRPC for a connection and has not left.
type unsent struct {
	account *budget.Account

	mu     sync.Mutex // guards what follows
	bytes  int
	closed bool
}

// hold counts n bytes more; false: the connection is closed.
func (u *unsent) hold(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return false
	}
	u.bytes += n
	u.account.Hold(n)
	return true
}

// left counts n bytes less, unless the connection's end has.
func (u *unsent) left(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.bytes -= n
		u.account.Give(n)
	}
}

func (u *unsent) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.closed = true
		u.account.Give(u.bytes)
		u.account.Close()
	}
}

// Reply is a message on its way to the codec.
type Reply struct {
	message any
	to      Recipient
}

// Recipient counts what was marshaled for a connection until it has left; the zero Recipient
// counts nothing.
type Recipient struct {
	conn *Conn
	// reserved are bytes that count from when there was room for the message: others that
	// are marshaled at the same time do not fit in too.
	reserved int
}

var replyPool = sync.Pool{New: func() any { return new(Reply) }}

// Open is for codecs: it returns what is to be marshaled, and who counts the outcome
// until it has left.
func Open(v any) (message any, to Recipient) {
	r, ok := v.(*Reply)
	if !ok {
		return v, Recipient{}
	}
	message, to = r.message, r.to
	*r = Reply{}
	replyPool.Put(r)
	return message, to
}

// Count counts the large parts of a message until gRPC frees them. It does not
// free those that it had when the connection broke, nor those of a call that was
// cancelled at the wrong moment: those count until the garbage collector has them. Without
// data, for a message that cannot be marshaled, what was reserved for it is given back.
func (to Recipient) Count(data mem.BufferSlice) mem.BufferSlice {
	c := to.conn
	if c == nil {
		return data
	}
	if to.reserved > 0 {
		c.unsent.left(to.reserved)
	}
	for i, part := range data {
		n := part.Len()
		if n < replyBytes || !c.unsent.hold(n) {
			continue
		}
		counted := &counted{inner: part}
		counted.bytes = part.ReadOnlyData()
		counted.held = held{c, n}
		counted.lost = runtime.AddCleanup(counted, held.left, counted.held)
		data[i] = mem.NewBuffer(&counted.bytes, counted)
	}
	return data
}

// held is bytes of a connection.
type held struct {
	conn *Conn
	n    int
}

func (h held) left() { h.conn.unsent.left(h.n) }

// counted is the pool of one buffer: it frees what is in it.
type counted struct {
	inner mem.Buffer
	bytes []byte
	held  held
	lost  runtime.Cleanup
}

// Get implements mem.BufferPool; nobody asks for a buffer here.
func (*counted) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put implements mem.BufferPool.
func (c *counted) Put(*[]byte) {
	c.lost.Stop()
	c.held.left()
	c.inner.Free()
}

// addr is the address of a connection, which finds the connection again.
type addr struct {
	net.Addr
	conn *Conn
}

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Of is the connection that a call came over; nil: it passed no gate.
func Of(ctx context.Context) *Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*addr); ok {
			return a.conn
		}
	}
	return nil
}

// reply is v on its way to the codec. What is large and not encoded yet is reserved.
func (c *Conn) reply(v any) any {
	r := replyPool.Get().(*Reply)
	r.message, r.to = v, Recipient{conn: c}
	if m, ok := v.(proto.Message); ok {
		if n := proto.Size(m); n >= replyBytes && c.unsent.hold(n) {
			r.to.reserved = n
		}
	}
	return r
}

// Unary is a grpc.UnaryServerInterceptor: a reply of a call that changed nothing is
// dropped, and the caller told to come again, when as much as its connection may
// have of the budget waits to be read. Interceptors before it see a *Reply.
func (g *Gate) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if timer := awaited(ctx); timer != nil {
		timer.Stop()
	}
	v, err := handler(ctx, req)
	c := Of(ctx)
	if c != nil {
		c.refused.note(err)
	}
	if err != nil || c == nil {
		return v, err
	}
	if !g.cfg.Changes(info.FullMethod) {
		if err := c.room(); err != nil {
			return nil, err
		}
	}
	return c.reply(v), nil
}

// Room is for those who make large answers: the refusal of one before it is made. They
// leave room to everybody else's.
func Room(ctx context.Context) error {
	c := Of(ctx)
	if c == nil || c.unsent.account.Spares() {
		return nil
	}
	return c.full()
}

// room refuses a message to who has not read as much as there is room for.
func (c *Conn) room() error {
	if c.unsent.account.Fits() {
		return nil
	}
	return c.full()
}

func (c *Conn) full() error {
	c.gate.refused.Add(1)
	return c.gate.replies.Refusal(replyBytes)
}

// Stream is a grpc.StreamServerInterceptor: Unary for the messages of a stream,
// which ends when they do not fit.
func (g *Gate) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := Of(stream.Context())
	if c == nil {
		return handler(srv, stream)
	}
	counting := &counting{ServerStream: stream, conn: c, request: awaited(stream.Context())}
	if info.IsClientStream {
		counting.number = streamNumber(stream.Context())
	}
	err := handler(srv, counting)
	if !counting.sent.Load() {
		c.refused.note(err)
	}
	return err
}

// counting is a stream whose messages are counted until they have left.
type counting struct {
	grpc.ServerStream
	conn    *Conn
	request *time.Timer // see awaited
	// number is the stream's on the connection, begun that its first message was read.
	number uint32
	begun  bool
	sent   atomic.Bool // a message: the call was served
}

// RecvMsg implements grpc.ServerStream.
func (s *counting) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil {
		return err
	}
	if s.request != nil {
		s.request.Stop()
	}
	if s.begun {
		s.conn.read(s.number)
	}
	s.begun = true
	return nil
}

// SendMsg implements grpc.ServerStream.
func (s *counting) SendMsg(m any) error {
	if err := s.conn.room(); err != nil {
		return err
	}
	if !s.sent.Load() {
		s.sent.Store(true)
		s.conn.refused.note(nil)
	}
	return s.ServerStream.SendMsg(s.conn.reply(m))
}
