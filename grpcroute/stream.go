package grpcroute

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/router"
)

// maxKept is how many messages of a stream are kept to be sent again.
const maxKept = 16

// stream is a stream that begins when its key is known, and is tried again while nothing has
// been answered.
type stream struct {
	r      *route
	base   context.Context // the caller's
	method string
	desc   *grpc.StreamDesc
	cc     *grpc.ClientConn
	make   grpc.Streamer
	opts   []grpc.CallOption

	begun chan struct{} // closed when there was a first try, or none is possible

	// send is held while a message is sent, and while what was sent is sent again. It comes before mu.
	send sync.Mutex

	mu sync.Mutex // held while a try is opened
	// Guarded by mu.
	plan    *plan
	ctx     context.Context // base until there is a plan
	cancel  context.CancelFunc
	tries   *router.Tries
	at      *try
	pool    *pool
	conn    grpc.ClientStream
	err     error // there is no conn
	kept    []any
	bytes   int
	whole   bool // everything that was sent is in kept
	closed  bool // by CloseSend
	resends bool // what is closed is told behind that
	settled bool // something was answered, or it is over
	ended   bool
}

// stream makes one. Where its key is not in the context it begins with its first message.
func (r *route) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, make_ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s := &stream{r: r, base: ctx, ctx: ctx, method: method, desc: desc, cc: cc, make: make_, opts: opts, begun: make(chan struct{}), whole: true}
	if r.cfg.Key == nil {
		if err := s.begin(nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// begin opens the first try.
func (s *stream) begin(message any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beginLocked(message)
}

func (s *stream) beginLocked(message any) error {
	defer close(s.begun)
	p, ctx, cancel, err := s.r.plan(s.base, s.method, message, s.cc, s.opts)
	if err != nil {
		s.err = err
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	s.plan, s.ctx, s.cancel = p, ctx, func() { stop(); cancel() }
	context.AfterFunc(ctx, s.end)
	s.tries = s.r.cfg.Router.Tries(p.key, p.options)
	t, err := s.r.cfg.Router.Resolve(ctx, p.key, p.options)
	if err == nil {
		err = s.openLocked(t)
	}
	if err != nil {
		s.err = s.plan.say(s.ctx, err)
		s.endLocked()
	}
	return s.err
}

// openLocked opens tries at a target and, where that does not do, at the next.
func (s *stream) openLocked(t router.Target) error {
	for {
		err := s.tryLocked(t)
		if err == nil {
			return nil
		}
		var again bool
		if t, again = s.tries.Next(s.ctx, t, err); !again {
			return err
		}
	}
}

// tryLocked opens a try.
func (s *stream) tryLocked(t router.Target) error {
	whole, attempt := s.r.cfg.Router.WhileOwner(s.ctx, s.plan.key, s.plan.options, t)
	ctx, w, pool, err := s.plan.open(whole, t)
	if err != nil {
		attempt.End(nil)
		return err
	}
	s.leaveLocked()
	t.Begin()
	w.attempt, w.ctx = attempt, whole
	s.at, s.pool = w, pool
	conn, err := s.make(ctx, s.desc, s.cc, s.method, s.opts...)
	if err != nil {
		return s.plan.judge(w, err)
	}
	s.conn = conn
	return nil
}

// resend sends a try what was sent to the one before it, and lets others send then. What becomes
// of it is told by RecvMsg.
func (s *stream) resend(conn grpc.ClientStream, kept []any) {
	defer s.send.Unlock()
	for _, m := range kept {
		if conn.SendMsg(m) != nil {
			break
		}
	}
	s.mu.Lock()
	s.resends = false
	closed := s.closed
	s.mu.Unlock()
	if closed {
		_ = conn.CloseSend()
	}
}

// leaveLocked gives back the connection of a try.
func (s *stream) leaveLocked() {
	if s.at != nil {
		s.at.attempt.End(nil)
		s.at.target.End()
		s.pool.put(s.at.owner)
		s.at = nil
	}
}

// end is when a stream is over: everything was answered, or nobody wants it.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *stream) endLocked() {
	s.leaveLocked()
	s.settled, s.kept = true, nil
	if !s.ended && s.cancel != nil {
		s.ended = true
		s.cancel()
	}
}

// Context implements grpc.ClientStream.
func (s *stream) Context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		return s.conn.Context()
	}
	return s.ctx
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	s.send.Lock()
	defer s.send.Unlock()
	s.mu.Lock()
	select {
	case <-s.begun:
	default:
		_ = s.beginLocked(m) // it is in err
	}
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	s.keepLocked(m)
	conn, at, again := s.conn, s.at, !s.settled && s.whole
	s.mu.Unlock()
	if at != nil {
		at.attempt.Waiting()
		defer at.attempt.Waited(false)
	}
	// mu is not held: a member that does not read would keep answers from being read.
	err := conn.SendMsg(m)
	if err == io.EOF && again { //nolint:errorlint // it is that
		return nil // RecvMsg finds out, and has it sent again
	}
	return err
}

// keepLocked keeps a message to be sent again.
func (s *stream) keepLocked(m any) {
	if s.settled || !s.whole {
		return
	}
	p, ok := m.(proto.Message)
	size := 0
	if ok {
		size = proto.Size(p)
	}
	if !ok || len(s.kept) >= maxKept || s.bytes+size > s.r.cfg.MaxReplay {
		s.whole, s.kept = false, nil
		return
	}
	s.kept, s.bytes = append(s.kept, proto.Clone(p)), s.bytes+size
}

// CloseSend implements grpc.ClientStream.
func (s *stream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed = true; s.resends {
		return nil
	}
	select {
	case <-s.begun:
	default:
		_ = s.beginLocked(nil) // it is in err: there is no message, and none comes
	}
	if s.conn == nil {
		return nil
	}
	return s.conn.CloseSend()
}

// Header implements grpc.ClientStream.
func (s *stream) Header() (md metadata.MD, err error) {
	err = s.answered(func(c grpc.ClientStream) (err error) {
		if md, err = c.Header(); md == nil && err == nil { // the stream ended without: there is no message, but why
			err = c.RecvMsg(nil)
		}
		return err
	})
	if err == io.EOF { //nolint:errorlint // it is that
		err = nil
	}
	return md, err
}

// Trailer implements grpc.ClientStream.
func (s *stream) Trailer() metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	return s.conn.Trailer()
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	err := s.answered(func(c grpc.ClientStream) error { return c.RecvMsg(m) })
	if err != nil || !s.desc.ServerStreams {
		s.end()
	}
	return err
}

// answered reads something of the answer, of the first try that has one.
func (s *stream) answered(read func(grpc.ClientStream) error) error {
	select {
	case <-s.begun:
	case <-s.base.Done():
		return toStatus(s.base.Err())
	}
	for {
		s.mu.Lock()
		conn, at, err := s.conn, s.at, s.err
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if at == nil {
			err = read(conn)
			s.settle()
			return err
		}
		at.attempt.Waiting()
		err = read(conn)
		came := err == nil || err == io.EOF //nolint:errorlint // it is that
		if at.attempt.Waited(came); came {
			s.settle()
			return err
		}
		if gone, ok := errors.AsType[*router.Gone](context.Cause(at.ctx)); ok {
			err = gone.GRPCStatus().Err()
		}
		if err = s.again(at, err); err != nil {
			return err
		}
	}
}

// settle is when something was answered: from then on there is one try.
func (s *stream) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled, s.kept = true, nil
}

// again opens the next try behind one that failed, and has it sent what that one was, while its
// answers are read: a member may answer before it has read all of it.
func (s *stream) again(at *try, failed error) error {
	s.send.Lock() // what is sent to a try that failed returns
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled || !s.whole {
		s.settled, s.kept = true, nil
		s.send.Unlock()
		return failed
	}
	err := failed
	next, again := s.tries.Next(s.ctx, at.target, s.plan.judge(at, failed))
	if again {
		err = s.openLocked(next)
	}
	if !again || err != nil {
		s.err = s.plan.say(s.ctx, err)
		s.endLocked()
		s.send.Unlock()
		return s.err
	}
	s.resends = true
	go s.resend(s.conn, s.kept[:len(s.kept):len(s.kept)]) // ends with the try, which ends with the stream
	return nil
}
