package server

import (
	"context"

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
// piece and cut up in order.
func (s *Server) tsoStream(stream grpc.ServerStream) error {
	return s.run(stream.Context(), s.tsoStreams, func(l *live) error {
		recv := func() (uint64, int, error) {
			var req countRequest
			if err := stream.RecvMsg(&req); err != nil {
				return 0, 0, err
			}
			return req.count, 0, checkCount(req.count, MaxTSOCount)
		}
		answer := func(counts []uint64) error {
			for len(counts) > 0 {
				n, total := upTo(counts, MaxTSOCount)
				first, era, err := s.takeTso(l.ctx, total)
				if err != nil {
					return err
				}
				cluster := s.view().ClusterID
				for _, count := range counts[:n] {
					if err := l.send(stream, runPacket(first, count, era, cluster)); err != nil {
						return err
					}
					first += count
				}
				counts = counts[n:]
			}
			return nil
		}
		return exchange(l, s.cfg.Limits, recv, answer)
	})
}

// takeTso is Authority.Tso for a stream, which has no deadline of its own.
func (s *Server) takeTso(ctx context.Context, count uint64) (first, era uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.StreamWait)
	defer cancel()
	return s.cfg.Authority.Tso(ctx, count)
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
