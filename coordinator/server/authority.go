package server

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/rpcstats"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// AllocID implements coordinatorv1.CoordinatorServer.
func (s *Server) AllocID(ctx context.Context, req *coordinatorv1.AllocIDRequest) (*coordinatorv1.AllocIDResponse, error) {
	if err := checkCount(req.GetCount(), MaxIDCount); err != nil {
		return nil, err
	}
	who := places.Of(ctx)
	if err := s.numbers.Enter(who); err != nil {
		return nil, err
	}
	defer s.numbers.Leave(who)
	ctx, cancel := s.patient(ctx)
	defer cancel()
	first, era, err := s.cfg.Authority.AllocID(ctx, req.GetCount())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.AllocIDResponse{First: first, Count: req.GetCount(), Era: era, ClusterId: s.view().ClusterID}, nil
}

// Tso implements coordinatorv1.CoordinatorServer.
func (s *Server) Tso(ctx context.Context, req *coordinatorv1.TsoRequest) (*coordinatorv1.TsoResponse, error) {
	if err := checkCount(req.GetCount(), MaxTSOCount); err != nil {
		return nil, err
	}
	who := places.Of(ctx)
	if err := s.numbers.Enter(who); err != nil {
		return nil, err
	}
	defer s.numbers.Leave(who)
	ctx, cancel := s.patient(ctx)
	defer cancel()
	first, era, err := s.cfg.Authority.Tso(ctx, req.GetCount())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.TsoResponse{First: first, Count: req.GetCount(), Era: era, ClusterId: s.view().ClusterID}, nil
}

// patient bounds how long a request waits for the root: past an election, and short
// enough that the refusal still reaches a caller with a deadline.
func (s *Server) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	wait := s.cfg.Limits.StreamWait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)*9/10)
	}
	return context.WithTimeout(ctx, wait)
}

func checkCount(count, most uint64) error {
	switch {
	case count == 0:
		return invalid("count", "it is 0; ask for at least 1")
	case count > most:
		return invalidLimit("count", count, most)
	default:
		return nil
	}
}

// reserve takes a run of count; see Authority.
type reserve func(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error)

// tsoStream serves TsoStream.
func (s *Server) tsoStream(stream grpc.ServerStream) error {
	return s.runStream(stream, s.tsoStreams, coordinatorv1.Coordinator_Tso_FullMethodName, MaxTSOCount, s.cfg.Authority.ReserveTso)
}

// idStream serves AllocIDStream.
func (s *Server) idStream(stream grpc.ServerStream) error {
	return s.runStream(stream, s.idStreams, coordinatorv1.Coordinator_AllocID_FullMethodName, MaxIDCount, s.cfg.Authority.ReserveAllocID)
}

// runStream answers requests for runs of at most most, and counts them as calls of
// method. What is queued is taken from the window in one piece and cut up in order. While
// one piece waits for its confirmation the next ones are taken, up to piecesWaiting. A
// refusal is the answer to its piece, and the stream goes on.
func (s *Server) runStream(stream grpc.ServerStream, p *places.Places, method string, most uint64, reserve reserve) error {
	return s.run(stream.Context(), p, func(l *live) error {
		recv := func() (uint64, int, error) {
			var req countRequest
			err := stream.RecvMsg(&req)
			return req.count, 0, err
		}
		w := &runWriter{
			s: s, l: l, stream: stream, stats: s.cfg.Stats.Method(method), most: most, reserve: reserve,
			pending: make(chan piece, piecesWaiting-1), done: make(chan struct{}),
		}
		go w.run()
		err := exchange(l, s.cfg.Limits, recv, w.take)
		close(w.pending)
		<-w.done
		if w.err != nil {
			return w.err
		}
		return err
	})
}

// piecesWaiting is how many pieces of a stream wait for a confirmation.
const piecesWaiting = 4

// piece is a run that answers requests of these counts, or why it was refused.
type piece struct {
	first, era uint64
	counts     []uint64
	since      time.Time // when the first of them came
	refused    error
	// check waits until the run may be served, within ctx, which cancel ends. Nil: it may.
	check  func(context.Context) error
	ctx    context.Context
	cancel context.CancelFunc
}

// runWriter sends pieces in order. One that is checked and has none before it
// is sent at once, by who took it; the others by a goroutine of their own.
type runWriter struct {
	s       *Server
	l       *live
	stream  grpc.ServerStream
	stats   *rpcstats.Method
	most    uint64
	reserve reserve
	pending chan piece
	// unsent counts pieces given to the goroutine and not sent. It does not fall
	// to 0 again behind one that failed.
	unsent atomic.Int64
	done   chan struct{}
	err    error // of the goroutine; set before done is closed
}

// take answers requests, or has them answered. since is when the first of them came.
func (w *runWriter) take(counts []uint64, since time.Time) error {
	for len(counts) > 0 {
		n, total := upTo(counts, w.most)
		w.stats.Begin(n)
		p := piece{counts: counts[:n], since: since, refused: checkCount(total, w.most)}
		if p.refused == nil {
			p.ctx, p.cancel = w.s.patient(w.l.ctx)
			p.first, p.era, p.check, p.refused = w.reserve(p.ctx, total)
		}
		if err := w.put(p); err != nil {
			return err
		}
		counts = counts[n:]
	}
	return nil
}

// put sends a piece, or has it sent.
func (w *runWriter) put(p piece) error {
	if p.check == nil && w.unsent.Load() == 0 {
		w.end(&p)
		return w.send(p)
	}
	p.counts = slices.Clone(p.counts)
	w.unsent.Add(1)
	w.pending <- p
	return nil
}

// run sends what waits until pending is closed. After an error it only takes.
func (w *runWriter) run() {
	defer close(w.done)
	for p := range w.pending {
		if p.check != nil && p.refused == nil {
			p.refused = p.check(p.ctx)
		}
		w.end(&p)
		if w.err != nil {
			continue
		}
		if w.err = w.send(p); w.err != nil {
			w.l.cut(w.err) // which ends the reading
			continue       // and nothing is sent past it any more
		}
		w.unsent.Add(-1)
	}
}

// end ends the wait of a piece, whose answer is known, and counts its requests.
func (w *runWriter) end(p *piece) {
	if p.cancel != nil {
		p.cancel()
	}
	if p.refused != nil {
		p.refused = w.s.refusal(p.refused)
	}
	w.s.counted(w.l.ctx, w.stats, len(p.counts), p.since, p.refused)
}

func (w *runWriter) send(p piece) error {
	var refusal *rootv1.ErrorDetail
	if p.refused != nil {
		refusal = w.s.detail(p.refused)
	}
	cluster := w.s.view().ClusterID
	for _, count := range p.counts {
		answer := newPacket()
		if refusal != nil {
			answer.data = appendDetail(answer.data, 5, refusal)
		} else {
			answer.appendRun(p.first, count, p.era, cluster)
		}
		if err := w.l.send(w.stream, answer); err != nil {
			return err
		}
		p.first += count
	}
	return nil
}

// upTo is how many of the counts, at least one, add up to at most most. What is
// no count stands alone.
func upTo(counts []uint64, most uint64) (n int, total uint64) {
	for _, c := range counts {
		if n > 0 && (c == 0 || c > most || total > most-c) {
			break
		}
		if c == 0 {
			return 1, 0
		}
		n, total = n+1, total+c
	}
	return n, total
}

// countRequest is a TsoRequest or an AllocIDRequest.
type countRequest struct{ count uint64 }

func (r *countRequest) decode(buf mem.Buffer) error {
	defer buf.Free()
	return fields(buf.ReadOnlyData(), func(num protowire.Number, typ protowire.Type, value []byte) (int, error) {
		if num == 1 && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(value)
			r.count = v
			return n, nil
		}
		return protowire.ConsumeFieldValue(num, typ, value), nil
	})
}

// appendRun makes a TsoResponse or an AllocIDResponse.
func (p *packet) appendRun(first, count, era, cluster uint64) {
	p.data = appendUint(p.data, 1, first)
	p.data = appendUint(p.data, 2, count)
	p.data = appendUint(p.data, 3, era)
	p.data = appendFixed64(p.data, 4, cluster)
}
