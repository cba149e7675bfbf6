package server

import (
	"context"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Snapshot implements rootv1.RootServer. It streams the view of the moment it
// began; the state goes on meanwhile.
func (s *Server) Snapshot(req *rootv1.SnapshotRequest, stream grpc.ServerStreamingServer[rootv1.SnapshotChunk]) error {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return err
	}
	if err := s.mayTell(s.cfg.Replica.View()); err != nil {
		return err
	}
	if err := s.mayRead("reader "+req.GetReaderId(), req.GetFeatureLevel()); err != nil {
		return err
	}
	leave, err := s.snapshots.enter(stream.Context(), req.GetReaderId())
	if err != nil {
		return err
	}
	return s.guarded(stream, "snapshot", func(out *outlet) error {
		defer leave()
		ctx := stream.Context() // operators take backups
		return s.sendSnapshot(ctx, out, !s.told(ctx, req.GetReaderId(), principal.Coordinator, principal.Operator))
	})
}

func (s *Server) sendSnapshot(ctx context.Context, out *outlet, bare bool) error {
	st := s.cfg.Replica.View().State
	token, err := proto.Marshal(st.Token().Proto())
	if err != nil {
		return status.Errorf(codes.Internal, "encode token: %v", err)
	}
	c := &chunker{out: out, token: token, limit: s.cfg.SnapshotChunkBytes}
	err = st.EncodedRecords(func(record []byte) error {
		select {
		case <-s.stopping:
			return status.Error(codes.Unavailable, errStopping.Error())
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		if bare {
			record, _ = state.StripRecord(record)
		}
		return c.add(record)
	})
	if err != nil {
		return err
	}
	return c.finish(st.Hash())
}

// chunker puts records into SnapshotChunks as they come.
type chunker struct {
	out   *outlet
	token []byte // encoded
	limit int

	buf     []byte // the chunk under way, encoded; nil: none
	records uint64
}

func (c *chunker) add(record []byte) error {
	if len(c.buf) > len(c.token)+16 && len(c.buf)+len(record) > c.limit {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.begin()
	c.buf = protowire.AppendTag(c.buf, 2, protowire.BytesType)
	c.buf = protowire.AppendBytes(c.buf, record)
	c.records++
	return nil
}

// begin starts a chunk with the position. Each chunk has a buffer of its own:
// gRPC may still hold the one before.
func (c *chunker) begin() {
	if c.buf != nil {
		return
	}
	c.buf = make([]byte, 0, c.limit+1024)
	c.buf = protowire.AppendTag(c.buf, 1, protowire.BytesType)
	c.buf = protowire.AppendBytes(c.buf, c.token)
}

func (c *chunker) flush() error {
	chunk := c.buf
	c.buf = nil
	return c.out.send(&encoded{own: chunk})
}

func (c *chunker) finish(hash uint64) error {
	c.begin()
	c.buf = appendVarint(c.buf, 3, 1)
	c.buf = appendVarint(c.buf, 4, c.records)
	c.buf = appendFixed64(c.buf, 5, hash)
	return c.flush()
}
