package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	learnerRole = rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER
	joiningRole = rootv1.RootPeerRole_ROOT_PEER_ROLE_JOINING
	voterRole   = rootv1.RootPeerRole_ROOT_PEER_ROLE_UNSPECIFIED

	// askAgainMillis goes with refusals that time alone may end: a peer that has
	// just started has not knocked yet, one that has just died counts as alive.
	askAgainMillis = 200
)

// ReplacePeer implements rootv1.RootServer. It keeps nothing between two calls:
// each looks at the rooted peers and takes the step that is next there, so that
// anybody may go on where another one stopped, or died without an answer.
func (s *Server) ReplacePeer(ctx context.Context, req *rootv1.ReplacePeerRequest) (*rootv1.ReplacePeerResponse, error) {
	if err := s.checkChange(req.GetClusterId()); err != nil {
		return nil, err
	}
	if err := checkReplace(req); err != nil {
		return nil, err
	}
	st, err := s.currentAsLeader(ctx)
	if err != nil {
		return nil, err
	}
	r := &replacement{Server: s, req: req, st: st}
	next := r.step
	if req.GetCancel() {
		next = r.cancel
	}
	resp, err := next(ctx)
	if err != nil {
		return nil, s.withLeader(err)
	}
	return resp, nil
}

// currentAsLeader is a state that has everything that was acknowledged by now, on the
// peer that leads.
func (s *Server) currentAsLeader(ctx context.Context) (*state.State, error) {
	if err := s.onlyLeader(); err != nil {
		return nil, err
	}
	// What a leader has applied may be old: of before others elected somebody else.
	if _, err := s.cfg.Replica.ReadIndex(ctx); err != nil {
		return nil, s.withLeader(err)
	}
	if err := s.onlyLeader(); err != nil {
		return nil, err
	}
	return s.cfg.Replica.View().State, nil
}

// onlyLeader refuses on a peer that does not lead.
func (s *Server) onlyLeader() error {
	v := s.cfg.Replica.View()
	if v.Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
		return nil
	}
	err := reason.New(rootv1.Reason_REASON_NOT_LEADER, "this peer does not lead")
	err.Detail.LeaderId = v.Leader
	return s.withLeader(err)
}

func checkReplace(req *rootv1.ReplacePeerRequest) error {
	why := ""
	switch lost, with := req.GetLost(), req.GetWith(); {
	case with == 0:
		why = "the node id of the new root peer is missing"
	case with > state.MaxID || lost > state.MaxID:
		why = fmt.Sprintf("node ids %d and %d: want at most %d", lost, with, uint64(state.MaxID))
	case req.GetCancel() && (lost != 0 || req.GetForce()):
		why = "a new root peer is given up by its own node id alone"
	case req.GetCancel():
	case lost == 0:
		why = "the node id of the lost root peer is missing"
	case lost == with:
		why = fmt.Sprintf("root peer %d cannot replace itself: start the new one with a node id that was never used", with)
	}
	if why == "" {
		return nil
	}
	return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%s", why)
}

// replacement is one call of ReplacePeer: a request, and the state it meets.
type replacement struct {
	*Server
	req *rootv1.ReplacePeerRequest
	st  *state.State
}

func (r *replacement) step(ctx context.Context) (*rootv1.ReplacePeerResponse, error) {
	lost, with := r.req.GetLost(), r.req.GetWith()
	p := find(r.st.Cluster().GetPeers(), with)
	switch {
	case p == nil:
		return r.add(ctx)
	case p.GetReplaces() == lost && p.GetRole() == learnerRole:
		return r.promote(ctx, p)
	case p.GetReplaces() == lost && p.GetRole() == joiningRole:
		return r.answer(rootv1.ReplaceStage_REPLACE_STAGE_SETTLING, nil), nil
	case p.GetReplaces() == lost && p.GetRole() == voterRole:
		return r.done(ctx)
	case p.GetRole() == learnerRole, p.GetRole() == joiningRole:
		return nil, reason.New(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d is to replace root peer %d, not %d", with, p.GetReplaces(), lost)
	}
	return nil, reason.New(rootv1.Reason_REASON_ALREADY_EXISTS,
		"root peer %d votes already: start the new one with a node id that was never used", with)
}

// add makes the peer that waits a learner.
func (r *replacement) add(ctx context.Context) (*rootv1.ReplacePeerResponse, error) {
	if err := r.mayAdd(); err != nil {
		return nil, err
	}
	with := r.req.GetWith()
	candidate, ok := r.cfg.Peers.Candidate(with)
	if !ok {
		err := reason.New(rootv1.Reason_REASON_NOT_FOUND,
			"root peer %d has not knocked at the leader, root peer %d: start it with -join, an empty workdir and the living root peers as -peer", with, r.cfg.NodeID)
		err.Detail.RetryAfterMillis = askAgainMillis
		return nil, err
	}
	result, err := r.reshape(ctx, &rootv1.Event{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
		Peer:     &rootv1.RootPeer{NodeId: with, Incarnation: candidate.Incarnation, TransportAddress: candidate.Address},
		Replaces: r.req.GetLost(),
	}}})
	if err != nil {
		return nil, err
	}
	return r.answer(rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP, result), nil
}

// mayAdd refuses what Apply would refuse, without an entry in the log for it.
func (r *replacement) mayAdd() error {
	c, lost, with := r.st.Cluster(), r.req.GetLost(), r.req.GetWith()
	if state.WasReplaced(c, with) {
		return reason.New(rootv1.Reason_REASON_ALREADY_EXISTS,
			"root peer %d was replaced or given up: start the new one with a node id that was never used, and an empty workdir", with)
	}
	if find(c.GetPeers(), lost) == nil {
		if gone := find(c.GetReplaced(), lost); gone != nil {
			return reason.New(rootv1.Reason_REASON_NOT_FOUND, "root peer %d is no root peer any more: %s", lost, fate(c, gone))
		}
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d: there are %s", lost, nodes(c.GetPeers()))
	}
	for _, p := range c.GetPeers() {
		if p.GetRole() == learnerRole || p.GetRole() == joiningRole {
			return reason.New(rootv1.Reason_REASON_ALREADY_EXISTS,
				"root peer %d is being replaced by root peer %d: finish that first, or cancel it", p.GetReplaces(), p.GetNodeId())
		}
	}
	return nil
}

// promote makes the learner vote once it is level.
func (r *replacement) promote(ctx context.Context, learner *rootv1.RootPeer) (*rootv1.ReplacePeerResponse, error) {
	result, err := r.reshape(ctx, &rootv1.Event{Kind: &rootv1.Event_RootPeerPromoted{
		RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: learner.GetNodeId()},
	}})
	if lag := reason.From(err).GetRootLag(); lag > 0 {
		resp := r.answer(rootv1.ReplaceStage_REPLACE_STAGE_CATCHING_UP, nil)
		resp.Match = max(resp.Commit, lag) - lag
		return resp, nil
	}
	if err != nil {
		return nil, err
	}
	return r.answer(rootv1.ReplaceStage_REPLACE_STAGE_SETTLING, result), nil
}

// done says that the new peer votes, when a majority of the new peers knows: at
// first the leader alone may know that the joint change has ended, and were it
// lost then, the others would wait for the lost peer's vote for ever.
func (r *replacement) done(ctx context.Context) (*rootv1.ReplacePeerResponse, error) {
	result, err := r.reshape(ctx, &rootv1.Event{Kind: &rootv1.Event_RootPeerPromoted{
		RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: r.req.GetWith()},
	}})
	if err != nil {
		return nil, err
	}
	return r.answer(rootv1.ReplaceStage_REPLACE_STAGE_DONE, result), nil
}

// cancel drops the learner. The peer that was lost stays a root peer.
func (r *replacement) cancel(ctx context.Context) (*rootv1.ReplacePeerResponse, error) {
	c, with := r.st.Cluster(), r.req.GetWith()
	p, gone := find(c.GetPeers(), with), find(c.GetReplaced(), with)
	switch {
	case gone.GetRole() == learnerRole:
		resp := r.answer(rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED, nil)
		resp.Peer = gone
		return resp, nil
	case gone != nil:
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "root peer %d is no root peer any more: %s", with, fate(c, gone))
	case p == nil:
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d: there are %s", with, nodes(c.GetPeers()))
	case p.GetRole() != learnerRole:
		return nil, reason.New(rootv1.Reason_REASON_ALREADY_EXISTS, "root peer %d votes: it can be replaced, not given up", with)
	}
	result, err := r.reshape(ctx, &rootv1.Event{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: with}}})
	if err != nil {
		return nil, err
	}
	resp := r.answer(rootv1.ReplaceStage_REPLACE_STAGE_CANCELLED, result)
	resp.Peer = p
	return resp, nil
}

// reshape takes one step. A rejection is an error.
func (r *replacement) reshape(ctx context.Context, e *rootv1.Event) (*rootv1.CommandResult, error) {
	result, err := r.cfg.Replica.Reshape(ctx, e, r.req.GetForce())
	if err == nil && result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
		err = &reason.Error{Detail: result.GetError()}
	}
	if d := reason.From(err); d.GetReason() == rootv1.Reason_REASON_UNHEALTHY_MEMBER {
		d.RetryAfterMillis = askAgainMillis
	}
	return result, err
}

// answer is what is true behind a step, or where none was to be taken.
func (r *replacement) answer(stage rootv1.ReplaceStage, result *rootv1.CommandResult) *rootv1.ReplacePeerResponse {
	v := r.cfg.Replica.View()
	resp := &rootv1.ReplacePeerResponse{
		Stage: stage, Match: v.Peers[r.req.GetWith()].Match, Commit: v.Commit,
		Peer: find(v.State.Cluster().GetPeers(), r.req.GetWith()), Token: r.st.Token().Proto(),
	}
	if result.GetToken() != nil {
		resp.Token = result.GetToken()
	}
	return resp
}

// fate says what became of a peer that is no peer any more.
func fate(c *rootv1.Cluster, gone *rootv1.RootPeer) string {
	if gone.GetRole() == learnerRole {
		return "it was given up before it voted"
	}
	for _, p := range slices.Concat(c.GetPeers(), c.GetReplaced()) {
		if p.GetReplaces() == gone.GetNodeId() && p.GetRole() == voterRole {
			return fmt.Sprintf("root peer %d has its place", p.GetNodeId())
		}
	}
	return "another one has its place"
}

func find(peers []*rootv1.RootPeer, node uint64) *rootv1.RootPeer {
	for _, p := range peers {
		if p.GetNodeId() == node {
			return p
		}
	}
	return nil
}

// nodes lists node ids in order.
func nodes(peers []*rootv1.RootPeer) string {
	var ids []uint64
	for _, p := range peers {
		ids = append(ids, p.GetNodeId())
	}
	slices.Sort(ids)
	return strings.Trim(fmt.Sprint(ids), "[]")
}
