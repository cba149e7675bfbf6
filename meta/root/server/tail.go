package server

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Tail implements rootv1.RootServer.
func (s *Server) Tail(req *rootv1.TailRequest, stream grpc.ServerStreamingServer[rootv1.TailResponse]) error {
	if err := s.checkCluster(req.GetClusterId()); err != nil {
		return err
	}
	if err := s.mayRead("reader "+req.GetReaderId(), req.GetFeatureLevel()); err != nil {
		return err
	}
	r := &reader{s: s, id: req.GetReaderId(), bare: !s.told(stream.Context(), req.GetReaderId(), principal.Coordinator), level: state.LevelOf(req.GetFeatureLevel()), after: state.TokenFromProto(req.GetAfter()), since: s.cfg.Clock.Now()}
	r.position.Store(r.after.Index)
	if p, ok := peer.FromContext(stream.Context()); ok {
		r.remote = p.Addr.String()
	}
	leave, err := s.tails.enter(stream.Context(), req.GetReaderId())
	if err != nil {
		return err
	}
	defer leave()
	s.addReader(r)
	defer s.removeReader(r)
	return s.guarded(stream, "tail", func(out *outlet) error { return r.run(stream, out) })
}

// told says whether a reader is told secrets: who gives an id, and, where callers
// have names, is of a role.
func (s *Server) told(ctx context.Context, id string, roles ...principal.Role) bool {
	return id != "" && (s.cfg.Access == nil || slices.Contains(roles, principal.FromContext(ctx).Role))
}

// reader is one tail stream.
type reader struct {
	s        *Server
	id       string
	bare     bool // it gets no secrets
	remote   string
	level    uint32 // highest feature level that it understands
	since    clock.Instant
	after    state.Token   // where it began
	position atomic.Uint64 // index of the last entry sent

	// Used by run alone.
	verified bool // after belongs to this history
	sent     head // last told
}

// head is what every tail message says beside the entries.
type head struct {
	known      uint64
	leader     uint64
	leaderless bool
}

// run streams until the reader leaves, is refused or falls too far behind.
func (r *reader) run(stream grpc.ServerStreamingServer[rootv1.TailResponse], out *outlet) error {
	idle := time.NewTimer(0) // The first message comes at once.
	defer idle.Stop()
	for {
		changed := r.s.cfg.Replica.Changed()
		at, v := r.present()
		if err := r.s.mayTell(v); err != nil {
			return err
		}
		if err := r.verify(v); err != nil {
			return err
		}
		sent, err := r.sendEntries(at, v, out)
		if err != nil {
			return err
		}
		if sent {
			idle.Reset(r.s.untilSign())
			continue
		}
		if r.news(v) {
			idle.Reset(0)
		}
		select {
		case <-changed:
		case <-idle.C:
			at, v := r.present()
			if err := r.send(out, at, v, nil); err != nil {
				return err
			}
			idle.Reset(r.s.untilSign())
		case <-r.s.stopping:
			return status.Error(codes.Unavailable, errStopping.Error())
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// present is the newest view and a moment at which it was no older: what is read
// and encoded until it is sent may take long.
func (r *reader) present() (clock.Instant, *replica.View) {
	at := r.s.cfg.Clock.Now()
	return at, r.s.cfg.Replica.View()
}

// untilSign is the time until the next sign of life is due. It is the same moment for
// all readers: a process that wakes once for all of them costs less than one that
// wakes for each.
func (s *Server) untilSign() time.Duration {
	return s.cfg.TailIdle - time.Since(s.made)%s.cfg.TailIdle
}

// mayTell refuses readers on a peer that does not vote: without elections it would
// take the leader that it heard last for the one there is, and readers would
// take what it has for the present.
func (s *Server) mayTell(v *replica.View) error {
	node, c := s.cfg.NodeID, v.State.Cluster()
	if slices.Contains(v.Members.Voters, node) || slices.Contains(v.Members.Outgoing, node) {
		return nil
	}
	if gone := find(c.GetReplaced(), node); gone != nil {
		return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "root peer %d is no root peer any more: %s", node, fate(c, gone))
	}
	return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "root peer %d does not vote yet: read from another one", node)
}

// mayRead refuses a reader that would stop at what the cluster has already.
func (s *Server) mayRead(who string, told uint32) error {
	understands, rooted := state.LevelOf(told), s.cfg.Replica.View().State.FeatureLevel()
	if understands >= rooted {
		return nil
	}
	err := reason.New(rootv1.Reason_REASON_TOO_OLD, "%s understands feature level %d, the cluster is at %d: take a newer version", who, understands, rooted)
	err.Detail.FeatureLevel = rooted
	return err
}

// news says that a message without entries is worth sending before it is due.
func (r *reader) news(v *replica.View) bool {
	return r.sent != headOf(v)
}

func headOf(v *replica.View) head {
	return head{known: newestKnown(v), leader: v.Leader, leaderless: v.LeaderlessSince != 0}
}

// newestKnown is the newest index that this peer knows to be committed, in its log or
// not.
func newestKnown(v *replica.View) uint64 { return max(v.Known, v.Commit) }

// sendEntries sends the next batch of committed entries, if there is one.
func (r *reader) sendEntries(at clock.Instant, v *replica.View, out *outlet) (bool, error) {
	next := r.position.Load() + 1
	if !r.verified || next > v.Commit {
		return false, nil
	}
	cache := &r.s.batches
	if r.bare {
		cache = &r.s.bare
	}
	b, err := cache.get(r.s.cfg.Log, next, v.Commit, r.s.cfg.TailBatchBytes)
	if err != nil {
		return false, r.fellBehind(err, v)
	}
	if b.last < next {
		return false, nil // Committed, but not yet in this peer's log.
	}
	if err := r.send(out, at, v, b.data); err != nil {
		return false, err
	}
	r.position.Store(b.last)
	return true, nil
}

// fellBehind is the refusal of a reader whose next entry is gone.
func (r *reader) fellBehind(err error, v *replica.View) error {
	if !compacted(err) {
		return status.Errorf(codes.Internal, "read log: %v", err)
	}
	if r.position.Load() != r.after.Index {
		r.s.cut.Add(1)
	}
	return bootstrapRequired(v, r.position.Load(), "is no longer retained")
}

func compacted(err error) bool {
	return errors.Is(err, storage.ErrCompacted) || errors.Is(err, raft.ErrCompacted)
}

func bootstrapRequired(v *replica.View, position uint64, why string) error {
	err := reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "position %d %s: start from a snapshot", position, why)
	err.Detail.CurrentToken = v.State.Token().Proto()
	return err
}

// verify refuses a position that is not of this history, as soon as this peer
// knows enough to tell: a reader may be ahead of a peer that lags.
func (r *reader) verify(v *replica.View) error {
	if r.verified || r.after.Index == 0 {
		r.verified = true
		return nil
	}
	incarnation := v.State.Token().Incarnation
	switch {
	case incarnation != 0 && r.after.Incarnation < incarnation:
		return bootstrapRequired(v, r.after.Index, "is from before a restore of the cluster")
	case incarnation != 0 && r.after.Incarnation > incarnation:
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
			"position %v is of cluster incarnation %d, root peer %d is at incarnation %d", r.after, r.after.Incarnation, r.s.cfg.NodeID, incarnation)
	case r.after.Index > v.Commit:
		return nil // Not known here yet.
	}
	term, err := r.s.cfg.Log.Term(r.after.Index)
	if err != nil {
		return r.fellBehind(err, v)
	}
	if term != r.after.Term {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
			"position %v is not in this history: entry %d has term %d", r.after, r.after.Index, term)
	}
	r.verified = true
	return nil
}

// send sends one message: what differs from reader to reader, then the shared
// entries. The commit index is never older than the entries; what is said of the
// leader was so at the moment at.
func (r *reader) send(out *outlet, at clock.Instant, v *replica.View, entries []byte) error {
	var leaderless uint64
	if v.LeaderlessSince != 0 {
		// At least 1: 0 means that there is a leader.
		leaderless = uint64(max(at.Sub(v.LeaderlessSince).Milliseconds(), 1))
	}
	own := make([]byte, 0, 64)
	own = appendVarint(own, 2, newestKnown(v))
	own = appendVarint(own, 3, v.Leader)
	own = appendVarint(own, 4, leaderless)
	own = appendFixed64(own, 5, r.s.cfg.ClusterID)
	own = appendVarint(own, 6, v.State.Token().Incarnation)
	own = appendVarint(own, 7, uint64(max(at.Sub(r.since).Microseconds(), 1)))
	r.sent = headOf(v)
	return out.send(&encoded{own: own, shared: entries})
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFixed64(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), v)
}
