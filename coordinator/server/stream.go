package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// live is a stream under way.
type live struct {
	ctx     context.Context // the stream itself, as gRPC has it
	streams *streams
	budget  *budget.Budget
	// received counts messages taken; sending is odd while one is being sent.
	received atomic.Uint64
	sending  atomic.Uint64
	writing  chan struct{} // full while somebody sends

	once sync.Once
	end  chan struct{} // closed when the stream is to end
	why  error         // set before end is closed

	guarded guarded // guarded by streams.mu
}

// cut ends the stream with an error. Only the first error counts.
func (l *live) cut(why error) {
	l.once.Do(func() {
		l.why = why
		close(l.end)
	})
}

// streams are all streams under way, so that a stop can end them.
type streams struct {
	mu      sync.Mutex
	all     map[*live]struct{}
	stopped error       // set by the stop
	guard   *time.Timer // looks at them; nil: there are none
	limits  Limits
	// work waits for what the streams started.
	work sync.WaitGroup
}

// run serves a stream: work does everything, and may block in the stream for
// as long as it likes. gRPC unblocks it only when the handler returns, which it
// does when work is done or the stream is cut. Run of the Server waits for
// work; it ends right after the handler.
func (s *Server) run(ctx context.Context, p *places.Places, work func(*live) error) error {
	return s.hold(ctx, p, func(l *live) {
		s.streams.work.Go(func() { l.cut(work(l)) })
		<-l.end
	})
}

// hold has wait wait for the end of a stream, which takes a place of its caller's.
func (s *Server) hold(ctx context.Context, p *places.Places, wait func(*live)) error {
	who := places.Of(ctx)
	if err := p.Enter(who); err != nil {
		return err
	}
	defer p.Leave(who)
	l := &live{ctx: ctx, streams: &s.streams, budget: s.cfg.Budget, writing: make(chan struct{}, 1), end: make(chan struct{})}
	if err := s.streams.add(l); err != nil {
		return err
	}
	defer s.streams.remove(l)
	wait(l)
	return l.why
}

// work has a goroutine of its own do something that may block in the stream; its
// error ends the stream.
func (l *live) work(do func() error) {
	l.streams.work.Go(func() {
		if err := do(); err != nil {
			l.cut(err)
		}
	})
}

// account is what the caller of the stream has of a kind. Close must follow.
func (l *live) account(k budget.Kind) *budget.Account {
	return l.budget.Holder(k).Account(places.Of(l.ctx).String())
}

// over is why the stream has ended; nil: it has not.
func (l *live) over() error {
	select {
	case <-l.end:
		return l.why
	default:
		return l.ctx.Err()
	}
}

func (st *streams) add(l *live) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stopped == nil {
		if st.all[l] = struct{}{}; st.guard == nil {
			st.guard = time.AfterFunc(st.limits.guardTick(), st.look)
		}
	}
	return st.stopped
}

func (st *streams) remove(l *live) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if delete(st.all, l); len(st.all) == 0 && st.guard != nil {
		st.guard.Stop()
		st.guard = nil
	}
}

// endAll cuts every stream and refuses new ones.
func (st *streams) endAll(why error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.stopped = why
	for l := range st.all {
		l.cut(why)
	}
}

// guardTicks is how often in a SendTimeout streams are looked at: all of them at once, for
// each look wakes a process that may have nothing else to do.
const guardTicks = 4

// guarded is what the last look at a stream saw, and for how long it was so.
type guarded struct {
	seen              bool
	received, sending uint64
	silent, stuck     time.Duration
}

// look cuts the streams whose reader takes nothing, or whose writer says nothing, for too
// long, and comes again while there are any.
func (st *streams) look() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for l := range st.all {
		l.lookLocked(&st.limits)
	}
	if st.guard != nil {
		st.guard.Reset(st.limits.guardTick())
	}
}

func (l *Limits) guardTick() time.Duration { return max(l.SendTimeout/guardTicks, time.Millisecond) }

func (l *live) lookLocked(limits *Limits) {
	g, tick := &l.guarded, limits.guardTick()
	r, q := l.received.Load(), l.sending.Load()
	g.silent, g.stuck = g.silent+tick, g.stuck+tick
	if r != g.received || !g.seen {
		g.silent = 0
	}
	if q != g.sending || q%2 == 0 || !g.seen {
		g.stuck = 0
	}
	g.seen, g.received, g.sending = true, r, q
	switch {
	case g.stuck >= limits.SendTimeout:
		l.cut(errSlowReader)
	case g.silent >= limits.StreamIdle:
		l.cut(errIdle)
	}
}

var (
	errSlowReader = reason.New(rootv1.Reason_REASON_OVERLOADED,
		"the reader of this stream takes nothing: it was cut; open a new stream")
	errIdle = status.Error(codes.Unavailable, "the stream was silent for too long: open a new one when it is needed")
)

// send sends one message, watched by look.
func (l *live) send(stream grpc.ServerStream, m any) error {
	if err := l.turn(); err != nil {
		return err
	}
	defer l.pass()
	return l.sendLocked(stream, m)
}

// turn waits until nobody else sends; then, until pass, it is the caller's turn.
func (l *live) turn() error {
	select {
	case l.writing <- struct{}{}: // as a rule, and cheaper than to ask for the end as well
		return nil
	default:
	}
	select {
	case l.writing <- struct{}{}:
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

func (l *live) pass() { <-l.writing }

// sendLocked is send in the caller's turn.
func (l *live) sendLocked(stream grpc.ServerStream, m any) error {
	l.sending.Add(1)
	err := stream.SendMsg(m)
	l.sending.Add(1)
	return err
}

// exchange answers the requests of a stream in order. It reads ahead while
// answers are made, up to MaxQueued requests and MaxMessageBytes: answer gets
// everything that was read since it was last called, so that what costs a
// round trip costs it once for all of them, and when the first of them came. recv
// returns a request and its size in bytes. Its error ends the stream after what came
// before is answered.
func exchange[T any](l *live, limits Limits, recv func() (T, int, error), answer func(requests []T, since time.Time) error) error {
	in := newInbox[T](limits.MaxQueued, limits.MaxMessageBytes)
	in.account = l.account(budget.Queued)
	defer in.account.Close()
	answered := make(chan error, 1)
	go func() {
		err := in.drain(answer)
		if err != nil {
			in.close()
			l.cut(err) // which unblocks recv
		}
		answered <- err
	}()
	var err error
	for err == nil {
		var request T
		var size int
		if request, size, err = recv(); err == nil {
			l.received.Add(1)
			err = in.put(l.ctx, request, size)
		}
	}
	in.close()
	failed := <-answered
	in.abandon()
	if failed != nil {
		return failed
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// counted counts n requests of a stream that came at since as ended with err.
func (s *Server) counted(ctx context.Context, as *rpcstats.Method, n int, since time.Time, err error) {
	as.End(n, since, err)
	s.cfg.Access.Refused(ctx, n, err)
}

// inbox is a bounded queue with one writer and one reader, who takes all that
// there is at once.
type inbox[T any] struct {
	limit, limitBytes int
	account           *budget.Account // of items, until they are answered

	mu sync.Mutex
	// Guarded by mu. bytes is the size of items, since when the first of them came.
	items  []T
	bytes  int
	since  time.Time
	spare  []T
	closed bool
	// answering: what was taken last counts still.
	answering bool

	ready chan struct{} // level: there is something, or it is closed
	room  chan struct{} // level: there may be room, or it is closed
}

func newInbox[T any](limit, limitBytes int) *inbox[T] {
	return &inbox[T]{limit: limit, limitBytes: limitBytes, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put appends an item of a size, waiting for room; there is always room for
// one, unless it does not fit in the process's budget: then it is refused. It
// returns io.EOF when the inbox is closed.
func (b *inbox[T]) put(ctx context.Context, item T, size int) error {
	var came time.Time // asked for by who waits, and who is the first
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return io.EOF
		}
		full := b.fullLocked(size)
		if !full {
			if err := b.account.Take(size); err != nil {
				if full = len(b.items) > 0 || b.answering; !full {
					b.mu.Unlock()
					return err
				}
			}
		}
		if !full {
			b.items, b.bytes = append(b.items, item), b.bytes+size
			first := len(b.items) == 1
			if first {
				b.since = orNow(came)
			}
			b.mu.Unlock()
			if first {
				signal(b.ready)
			}
			return nil
		}
		b.mu.Unlock()
		came = orNow(came)
		select {
		case <-b.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// orNow is t, or now when that is not set.
func orNow(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

func (b *inbox[T]) fullLocked(size int) bool {
	return len(b.items) > 0 && (len(b.items) >= b.limit || b.bytes+size > b.limitBytes)
}

// drain calls f with what is queued, until the inbox is closed and empty or f fails.
func (b *inbox[T]) drain(f func([]T, time.Time) error) error {
	for {
		items, bytes, since, open := b.take()
		if len(items) > 0 {
			err := f(items, since)
			b.account.Give(bytes) // which the next take tells who waits for room
			if err != nil {
				return err
			}
			continue
		}
		if !open {
			return nil
		}
		<-b.ready
	}
}

// take returns all that is queued. The slice is valid until the next take.
func (b *inbox[T]) take() (items []T, bytes int, since time.Time, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	items, bytes, since = b.items, b.bytes, b.since
	clear(b.spare)
	b.items, b.bytes, b.spare = b.spare[:0], 0, items
	b.answering = len(items) > 0
	signal(b.room)
	return items, bytes, since, !b.closed
}

// abandon gives back what nobody takes any more.
func (b *inbox[T]) abandon() {
	_, bytes, _, _ := b.take()
	b.account.Give(bytes)
}

func (b *inbox[T]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	signal(b.ready)
	signal(b.room)
}

// signal raises a level.
func signal(level chan struct{}) {
	select {
	case level <- struct{}{}:
	default:
	}
}
