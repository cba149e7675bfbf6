package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// ReadIndex implements rootv1.RootServer.
func (s *Server) ReadIndex(ctx context.Context, req *rootv1.ReadIndexRequest) (*rootv1.ReadIndexResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, err
	}
	who := places.Of(ctx)
	if err := s.reads.Enter(who); err != nil {
		return nil, err
	}
	defer s.reads.Leave(who)
	token, err := s.cfg.Replica.ReadIndex(ctx)
	if err != nil {
		return nil, s.withLeader(err)
	}
	return &rootv1.ReadIndexResponse{Token: token.Proto()}, nil
}

// ClaimTenure implements rootv1.RootServer.
func (s *Server) ClaimTenure(ctx context.Context, req *rootv1.ClaimTenureRequest) (*rootv1.ClaimTenureResponse, error) {
	if err := s.checkChange(req.GetClusterId()); err != nil {
		return nil, err
	}
	if req.GetClaim() == nil {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "no claim in the request")
	}
	who := places.Of(ctx)
	if err := s.authority.Enter(who); err != nil {
		return nil, err
	}
	defer s.authority.Leave(who)
	claim := req.GetClaim()
	if claim.GetPredecessorExpired() {
		claim = proto.Clone(claim).(*rootv1.TenureClaimed)
		claim.PredecessorExpired = false // Only the leader may say so.
	}
	resp, err := s.cfg.Replica.Claim(ctx, claim, req.GetWindows()...)
	return resp, s.withLeader(err)
}

// ConfirmTenure implements rootv1.RootServer.
func (s *Server) ConfirmTenure(ctx context.Context, req *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return nil, err
	}
	who := places.Of(ctx)
	if err := s.authority.Enter(who); err != nil {
		return nil, err
	}
	defer s.authority.Leave(who)
	resp, err := s.cfg.Replica.Confirm(ctx, req)
	return resp, s.withLeader(err)
}

// ConfirmStream implements rootv1.RootServer.
func (s *Server) ConfirmStream(stream grpc.BidiStreamingServer[rootv1.ConfirmTenureRequest, rootv1.ConfirmTenureResponse]) error {
	return s.guarded(stream, "confirm stream", func(out *outlet) error {
		method := s.stats.Method(rootv1.Root_ConfirmTenure_FullMethodName)
		for {
			req, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			out.pending.Add(1)
			start := time.Now()
			method.Begin(1)
			resp, err := s.ConfirmTenure(stream.Context(), req)
			method.End(1, start, err)
			if err == nil {
				err = out.send(resp)
			}
			out.pending.Add(-1)
			if err != nil {
				return err
			}
		}
	})
}

// TransferLeadership implements rootv1.RootServer.
func (s *Server) TransferLeadership(ctx context.Context, req *rootv1.TransferLeadershipRequest) (*rootv1.TransferLeadershipResponse, error) {
	if err := s.checkChange(req.GetClusterId()); err != nil {
		return nil, err
	}
	leader, err := s.cfg.Replica.TransferLeadership(ctx, req.GetNodeId())
	if err != nil {
		return nil, s.withLeader(err)
	}
	return &rootv1.TransferLeadershipResponse{LeaderId: leader}, nil
}

// Status implements rootv1.RootServer.
func (s *Server) Status(context.Context, *rootv1.StatusRequest) (*rootv1.StatusResponse, error) {
	v, room := s.cfg.Replica.View(), s.cfg.Room()
	st := v.State
	out := &rootv1.StatusResponse{
		ClusterId: s.cfg.ClusterID, Incarnation: st.Token().Incarnation, NodeId: s.cfg.NodeID,
		Role: v.Role, Term: v.Term, LeaderId: v.Leader, Stalled: v.Stalled, StateDiffers: v.Differs, NotVoting: v.Silent,
		CommitIndex: v.Commit, AppliedIndex: v.Applied, FirstIndex: v.FirstIndex, LastIndex: v.LastIndex,
		CheckpointIndex: v.Checkpoint.Index, CheckpointBytes: v.Checkpoint.Bytes, StateHash: st.Hash(),
		Tenure: st.Tenure(), Allocators: st.Allocators(), Regions: uint64(st.RegionCount()), Members: uint64(st.MemberCount()),
		FeatureLevel: st.FeatureLevel(), SupportedFeatureLevel: s.cfg.Peers.FeatureLevel(s.cfg.NodeID),
		Settings: st.Settings(), Keyspaces: uint64(st.KeyspaceCount()), Coordinators: uint64(st.CoordinatorCount()), TailReaders: uint64(s.readerCount()),
		Channel: s.cfg.channel().Kind(), CertificateEndsUnixSeconds: s.cfg.channel().Ends(),
		NoRoom: s.cfg.NoRoom(), DiskFreeBytes: room.Free, DiskTotalBytes: room.Total, DiskLow: room.Low(),
	}
	if v.Leader != 0 {
		out.LeaderAddress = s.address(v.Leader)
	}
	if handovers := st.Handovers(); len(handovers) > 0 {
		out.Handover = handovers[len(handovers)-1]
	}
	out.Peers, out.Replaced = s.peerStatus(st.Cluster(), v.Peers), st.Cluster().GetReplaced()
	return out, nil
}

// peerStatus tells of all peers; what only a leader knows is missing elsewhere.
func (s *Server) peerStatus(cluster *rootv1.Cluster, progress map[uint64]replica.Progress) []*rootv1.RootPeerStatus {
	out := make([]*rootv1.RootPeerStatus, 0, len(cluster.GetPeers()))
	for _, p := range cluster.GetPeers() {
		one := &rootv1.RootPeerStatus{
			NodeId: p.GetNodeId(), TransportAddress: p.GetTransportAddress(), Address: s.address(p.GetNodeId()),
			MatchIndex: progress[p.GetNodeId()].Match, Role: p.GetRole(), FeatureLevel: s.cfg.Peers.FeatureLevel(p.GetNodeId()),
		}
		if a := s.cfg.Peers.Reached(p.GetNodeId()); a != "" {
			one.TransportAddress = a
		}
		one.Connected = p.GetNodeId() == s.cfg.NodeID || s.cfg.Peers.Connected(p.GetNodeId())
		if p.GetRole() == learnerRole || p.GetRole() == joiningRole {
			one.Replaces = p.GetReplaces()
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b *rootv1.RootPeerStatus) int { return cmp.Compare(a.NodeId, b.NodeId) })
	return out
}
