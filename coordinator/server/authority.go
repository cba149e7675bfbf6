package server

import (
	"context"
	"slices"
	"sync/atomic"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// AllocID implements coordinatorv1.CoordinatorServer.
func (s *Server) AllocID(ctx context.Context, req *coordinatorv1.AllocIDRequest) (*coordinatorv1.AllocIDResponse, error) {
	if err := checkCount(req.GetCount(), MaxIDCount); err != nil {
		return nil, err
	}
	if err := s.waiting.enter(); err != nil {
		return nil, err
	}
	defer s.waiting.leave()
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
	if err := s.waiting.enter(); err != nil {
		return nil, err
	}
	defer s.waiting.leave()
	first, era, err := s.cfg.Authority.Tso(ctx, req.GetCount())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.TsoResponse{First: first, Count: req.GetCount(), Era: era, ClusterId: s.view().ClusterID}, nil
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

// tsoStream serves TsoStream. What is queued is taken from the window in one
// piece and cut up in order. While one piece waits for its confirmation the
// next ones are taken, up to tsoPieces.
func (s *Server) tsoStream(stream grpc.ServerStream) error {
	return s.run(stream.Context(), s.tsoStreams, func(l *live) error {
		recv := func() (uint64, int, error) {
			var req countRequest
			if err := stream.RecvMsg(&req); err != nil {
				return 0, 0, err
			}
			return req.count, 0, checkCount(req.count, MaxTSOCount)
		}
		w := s.newTsoWriter(l, stream)
		err := exchange(l, s.cfg.Limits, recv, w.take)
		if failed := w.end(); failed != nil {
			return failed
		}
		return err
	})
}

// tsoPieces is how many pieces of a stream wait for a confirmation.
const tsoPieces = 4

// tsoPiece is a run that answers requests of these counts.
type tsoPiece struct {
	first, era uint64
	counts     []uint64
	// check waits until the run may be served, within ctx, which cancel ends.
	check  func(context.Context) error
	ctx    context.Context
	cancel context.CancelFunc
}

// tsoWriter sends pieces in order. One that is checked and has none before it
// is sent at once, by who took it; the others by a goroutine of their own.
type tsoWriter struct {
	s       *Server
	l       *live
	stream  grpc.ServerStream
	pending chan tsoPiece
	// unsent counts pieces given to the goroutine and not sent. It does not fall
	// to 0 again behind one that failed.
	unsent atomic.Int64
	done   chan struct{}
	err    error // of the goroutine; set before done is closed
}

func (s *Server) newTsoWriter(l *live, stream grpc.ServerStream) *tsoWriter {
	w := &tsoWriter{s: s, l: l, stream: stream, pending: make(chan tsoPiece, tsoPieces-1), done: make(chan struct{})}
	go w.run()
	return w
}

// end waits for the goroutine and returns its error.
func (w *tsoWriter) end() error {
	close(w.pending)
	<-w.done
	return w.err
}

// take answers requests, or has them answered.
func (w *tsoWriter) take(counts []uint64) error {
	for len(counts) > 0 {
		n, total := upTo(counts, MaxTSOCount)
		if err := w.piece(counts[:n], total); err != nil {
			return err
		}
		counts = counts[n:]
	}
	return nil
}

func (w *tsoWriter) piece(counts []uint64, total uint64) error {
	// A stream has no deadline of its own.
	ctx, cancel := context.WithTimeout(w.l.ctx, w.s.cfg.Limits.StreamWait)
	first, era, check, err := w.s.cfg.Authority.ReserveTso(ctx, total)
	if err != nil {
		cancel()
		return err
	}
	if check == nil && w.unsent.Load() == 0 {
		cancel()
		return w.send(first, era, counts)
	}
	w.unsent.Add(1)
	w.pending <- tsoPiece{first, era, slices.Clone(counts), check, ctx, cancel}
	return nil
}

// run sends what waits until end. After an error it only takes.
func (w *tsoWriter) run() {
	defer close(w.done)
	for p := range w.pending {
		var err error
		if p.check != nil {
			err = p.check(p.ctx)
		}
		p.cancel()
		if err == nil && w.err == nil {
			err = w.send(p.first, p.era, p.counts)
		}
		if err != nil && w.err == nil {
			w.err = err
			w.l.cut(err) // which ends the reading
		}
		if w.err == nil {
			w.unsent.Add(-1) // else nothing is sent past it any more
		}
	}
}

func (w *tsoWriter) send(first, era uint64, counts []uint64) error {
	cluster := w.s.view().ClusterID
	for _, count := range counts {
		if err := w.l.send(w.stream, runPacket(first, count, era, cluster)); err != nil {
			return err
		}
		first += count
	}
	return nil
}

// upTo is how many of the counts, at least one, add up to at most most.
func upTo(counts []uint64, most uint64) (n int, total uint64) {
	for _, c := range counts {
		if n > 0 && total+c > most {
			break
		}
		n, total = n+1, total+c
	}
	return n, total
}

// countRequest is a TsoRequest.
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

// runPacket is a TsoResponse.
func runPacket(first, count, era, cluster uint64) *packet {
	p := newPacket()
	p.data = appendUint(p.data, 1, first)
	p.data = appendUint(p.data, 2, count)
	p.data = appendUint(p.data, 3, era)
	p.data = appendFixed64(p.data, 4, cluster)
	return p
}
