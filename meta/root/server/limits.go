package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errDeadlineRequired = reason.New(rootv1.Reason_REASON_DEADLINE_REQUIRED, "the request has no deadline: set one")

// requireDeadline refuses unary calls of ours that would wait for ever.
func requireDeadline(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); !ok && strings.HasPrefix(info.FullMethod, "/nokv.") {
		return nil, errDeadlineRequired
	}
	return handler(ctx, req)
}

// checkCluster refuses a request that means another cluster.
func (s *Server) checkCluster(id uint64) error {
	if id == 0 || id == s.cfg.ClusterID {
		return nil
	}
	if slices.Contains(s.cfg.Replica.View().State.Cluster().GetRestored().GetFormerClusterIds(), id) {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
			"cluster %016x was restored from a backup and is cluster %016x now: restart whoever still asks for the old one", id, s.cfg.ClusterID)
	}
	return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
		"the request is for cluster %016x, root peer %d belongs to cluster %016x", id, s.cfg.NodeID, s.cfg.ClusterID)
}

// checkChange is checkCluster for a request that changes something: it says which
// cluster it is for.
func (s *Server) checkChange(id uint64) error {
	if id != 0 {
		return s.checkCluster(id)
	}
	err := reason.New(rootv1.Reason_REASON_CLUSTER_REQUIRED,
		"a request that changes something names its cluster in cluster_id: %016x, if this cluster is meant", s.cfg.ClusterID)
	err.Detail.ClusterId = s.cfg.ClusterID
	return err
}

// outlet sends on a stream and lets others see when a send is stuck.
type outlet struct {
	stream  grpc.ServerStream
	since   atomic.Int64 // when the send under way began, in Unix nanoseconds; 0: none
	pending atomic.Int64 // requests taken and not answered
}

func (o *outlet) send(m any) error {
	o.since.Store(time.Now().UnixNano())
	err := o.stream.SendMsg(m)
	o.since.Store(0)
	return err
}

func (o *outlet) stuck(limit time.Duration) bool {
	since := o.since.Load()
	return since != 0 && time.Now().UnixNano()-since > int64(limit)
}

// guarded runs a stream and cuts it when the other side takes nothing for
// SendTimeout. gRPC ends a send that is stuck only when the stream's handler
// returns; so serve runs in a goroutine of its own, which Serve waits for.
func (s *Server) guarded(stream grpc.ServerStream, what string, serve func(*outlet) error) error {
	out := &outlet{stream: stream}
	done := make(chan error, 1)
	s.serving.Go(func() { done <- serve(out) })
	look := time.NewTicker(s.cfg.SendTimeout / 4)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-s.stopping:
			return s.drain(out, done)
		case <-look.C:
		}
		if out.stuck(s.cfg.SendTimeout) {
			s.cut.Add(1)
			s.cfg.Logger.Warn("cut a stream that does not read", "stream", what, "after", s.cfg.SendTimeout)
			return status.Errorf(codes.ResourceExhausted, "%s: nothing was read for %v: read faster, or resume", what, s.cfg.SendTimeout)
		}
	}
}

// drain lets a stream answer what it has taken, for half of StopTimeout at most.
func (s *Server) drain(out *outlet, done <-chan error) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for limit := time.Now().Add(s.cfg.StopTimeout / 2); time.Now().Before(limit); {
		if out.pending.Load() == 0 {
			break
		}
		select {
		case err := <-done:
			return err
		case <-look.C:
		}
	}
	return status.Error(codes.Unavailable, errStopping.Error())
}
