package replica

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// members are the root peers by what they do. They are a function of the state:
// raft is told of a change when, and only if, the event in its entry applied.
type members struct {
	state.RootMembers
	// revision is the index of the entry that last changed them; 0: none did.
	revision uint64
}

// setMembers takes the members over from the state. Before the cluster has its
// identity they are those it begins with; a peer that is to join knows of none.
func (c *Core) setMembers() {
	c.members = members{RootMembers: c.state.RootMembers(), revision: c.state.Cluster().GetPeersRevision()}
	if c.state.Cluster() == nil {
		c.members.Voters = c.cfg.Voters
	} else {
		c.cfg.Transport.SetPeers(c.state.Cluster())
	}
	maps.DeleteFunc(c.heard, func(id, _ uint64) bool { return !c.members.has(id) })
}

func (m *members) confState() *raftpb.ConfState {
	return &raftpb.ConfState{Voters: m.Voters, VotersOutgoing: m.Outgoing, Learners: m.Learners}
}

// has says whether a node is a peer of any kind.
func (m *members) has(id uint64) bool {
	return slices.Contains(m.Voters, id) || slices.Contains(m.Outgoing, id) || slices.Contains(m.Learners, id)
}

// votes says whether a node votes for good: not one that is leaving.
func (m *members) votes(id uint64) bool { return slices.Contains(m.Voters, id) }

// decide says whether the nodes that agree are enough to decide: a majority of
// the voters, and of those that a joint change takes the vote from. Learners do
// not count. Two at least: one alone agrees with itself.
func (m *members) decide(agree func(id uint64) bool) bool {
	majority := func(set []uint64) bool {
		n := 0
		for _, id := range set {
			if agree(id) {
				n++
			}
		}
		return n >= max(len(set)/2+1, 2)
	}
	return majority(m.Voters) && (len(m.Outgoing) == 0 || majority(m.Outgoing))
}

// alone says that one peer decides everything.
func (m *members) alone() bool { return len(m.Voters) == 1 && len(m.Outgoing) == 0 }

// mayTalk says whether messages of a node are taken. Who a peer is the transport
// has asked: one that this peer has not heard of was added by an entry that it
// lacks, and its vote may be needed for that entry to come. One that was replaced
// is not listened to.
func (c *Core) mayTalk(id uint64) bool { return !state.WasReplaced(c.state.Cluster(), id) }

// withMembers is a MsgSnap with the members of the checkpoint that was received,
// which may be newer than what its sender announced.
func (c *Core) withMembers(m *raftpb.Message) *raftpb.Message {
	st := state.MembersOf(c.log.ReceivedCluster())
	m = proto.Clone(m).(*raftpb.Message)
	m.Snapshot.Metadata.ConfState = (&members{RootMembers: st}).confState()
	return m
}

// begun tells the raft of a peer that joins, and got the log from its first entry
// on, who the cluster began with: the others know it from their configuration.
func (c *Core) begun() {
	c.setMembers()
	if !c.cfg.Join {
		return
	}
	for _, id := range c.members.Voters {
		c.raft.ApplyConfChange(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
			{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(id)},
		}})
	}
}

// reshape tells raft of a change that the state has made, and of nothing else:
// what the entry says of voters served raft when it was proposed. The two must agree.
func (c *Core) reshape(inChange bool) error {
	if c.state.Cluster().GetPeersRevision() == c.members.revision {
		return nil // Raft goes by what is applied: there is nothing to take back.
	}
	if !inChange || len(c.scratch.Results) != 1 {
		return fmt.Errorf("the root peers changed in an entry of %d commands, want one in an entry of its own", len(c.scratch.Results))
	}
	before := c.members
	c.setMembers()
	c.changed = true
	conf := c.raft.ApplyConfChange(changeBetween(before.RootMembers, c.members.RootMembers))
	if err := conf.Equivalent(c.members.confState()); err != nil {
		return fmt.Errorf("raft and the rooted peers differ: %w", err)
	}
	c.cfg.Logger.Info("root peers changed", "peer", c.cfg.NodeID, "index", c.state.Token().Index,
		"voters", c.members.Voters, "outgoing", c.members.Outgoing, "learners", c.members.Learners)
	return nil
}

// changeBetween is what makes one set of members of another in one step. A joint
// change is begun and ended in an entry each.
func changeBetween(before, after state.RootMembers) *raftpb.ConfChangeV2 {
	cc := &raftpb.ConfChangeV2{}
	if len(before.Outgoing) > 0 && len(after.Outgoing) == 0 {
		return cc
	}
	if len(after.Outgoing) > 0 {
		cc.Transition = raftpb.ConfChangeTransition_ConfChangeTransitionJointExplicit.Enum()
	}
	add := func(kind raftpb.ConfChangeType, ids []uint64, unless ...[]uint64) {
		for _, id := range ids {
			if !slices.Contains(slices.Concat(unless...), id) {
				cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)})
			}
		}
	}
	add(raftpb.ConfChangeAddNode, after.Voters, before.Voters)
	add(raftpb.ConfChangeAddLearnerNode, after.Learners, before.Learners)
	add(raftpb.ConfChangeRemoveNode, slices.Concat(before.Voters, before.Learners), after.Voters, after.Learners)
	return cc
}

// changeOf is what raft is asked to take for an event: one change at a time, and
// none but the end of a joint one during it.
func changeOf(e *rootv1.Event, replaces uint64) *raftpb.ConfChangeV2 {
	single := func(kind raftpb.ConfChangeType, node uint64) *raftpb.ConfChangeSingle {
		return &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(node)}
	}
	cc := &raftpb.ConfChangeV2{}
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RootPeerAdded:
		cc.Changes = append(cc.Changes, single(raftpb.ConfChangeAddLearnerNode, k.RootPeerAdded.GetPeer().GetNodeId()))
	case *rootv1.Event_RootPeerPromoted:
		cc.Transition = raftpb.ConfChangeTransition_ConfChangeTransitionJointExplicit.Enum()
		cc.Changes = append(cc.Changes, single(raftpb.ConfChangeAddNode, k.RootPeerPromoted.GetNodeId()), single(raftpb.ConfChangeRemoveNode, replaces))
	case *rootv1.Event_RootPeerDropped:
		cc.Changes = append(cc.Changes, single(raftpb.ConfChangeRemoveNode, k.RootPeerDropped.GetNodeId()))
	}
	return cc
}

// Reshape asks for one step of a replacement: one event that changes the root
// peers. Only the leader makes it. It is answered with the result, or refused
// with REASON_UNHEALTHY_MEMBER when the step could cost the quorum; with root_lag
// when the learner has not caught up.
type Reshape struct {
	call
	Event  *rootv1.Event
	Result state.Result
	// Actor and Why are of the command; empty: nobody can vouch for a name.
	Actor, Why string
	// Force replaces a peer that is heard from.
	Force bool
}

// NewReshape makes a request of an event: REASON_INVALID_REQUEST when it is not
// about root peers.
func NewReshape(e *rootv1.Event, force bool) (*Reshape, error) {
	if !state.RootPeerEvent(e) || e.GetRootPeersSettled() != nil {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "the event is no step in the replacement of a root peer")
	}
	if detail := state.CheckCommand(&rootv1.Command{Events: []*rootv1.Event{e}}); detail != nil {
		return nil, &reason.Error{Detail: detail}
	}
	return &Reshape{call: newCall(), Event: e, Force: force}, nil
}

func (r *Reshape) command() *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{r.Event}, Actor: r.Actor, Why: r.Why}
}

func (c *Core) acceptReshape(r *Reshape, out *Output) {
	if !c.leads() {
		c.failRequest(r, errNotLeader(c.leader), out)
		return
	}
	if !c.settled() || c.state.Cluster() == nil {
		c.failRequest(r, errUnavailable("this peer does not know yet what is committed"), out)
		return
	}
	replaces, err := c.judgeReshape(r)
	if err == nil {
		err = c.enqueueChange(&Proposal{call: newCall(), commands: 1, reshape: r}, r.command(), replaces)
	}
	if err != nil {
		c.failRequest(r, err, out)
	}
}

// judgeReshape refuses a step that could cost the quorum, as this leader hears
// the others now. It returns the node that is to be replaced.
func (c *Core) judgeReshape(r *Reshape) (replaces uint64, err error) {
	var node uint64
	switch k := r.Event.GetKind().(type) {
	case *rootv1.Event_RootPeerAdded:
		replaces = k.RootPeerAdded.GetReplaces()
	case *rootv1.Event_RootPeerPromoted:
		node = k.RootPeerPromoted.GetNodeId()
		if !c.members.has(node) {
			return 0, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no root peer %d", node)
		}
		if !slices.Contains(c.members.Learners, node) {
			return 0, nil // It is done.
		}
		for _, p := range c.state.Cluster().GetPeers() {
			if p.GetNodeId() == node {
				replaces = p.GetReplaces()
			}
		}
	default:
		return 0, nil
	}
	if c.members.alone() {
		return 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST,
			"root peer %d is the only one: nobody but it has the log, restore a backup to replace it", c.cfg.NodeID)
	}
	if replaces == c.cfg.NodeID {
		return 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "root peer %d leads: hand leadership over before it is replaced", replaces)
	}
	return replaces, c.judgeQuorum(r, replaces, node)
}

// judgeQuorum wants the lost peer silent, every other voter heard from, and a
// learner that is to vote level with the log.
func (c *Core) judgeQuorum(r *Reshape, lost, learner uint64) error {
	if c.hears(lost) && !r.Force {
		return reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "root peer %d is alive: stop it first", lost)
	}
	if c.ticks-c.ledSince < uint64(c.cfg.ElectionTicks) {
		return errUnavailable("this peer leads since a moment and does not know yet who is alive")
	}
	for _, id := range c.members.Voters {
		if id != lost && id != c.cfg.NodeID && !c.hears(id) {
			return reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "root peer %d is not heard from: without it there would be no majority to spare", id)
		}
	}
	if learner == 0 {
		return nil
	}
	return c.judgeLearner(learner)
}

func (c *Core) judgeLearner(id uint64) (err error) {
	commit := c.hard.GetCommit()
	c.raft.WithProgress(func(peer uint64, _ raft.ProgressType, p tracker.Progress) {
		if peer == id && (p.State != tracker.StateReplicate || p.Match+maxLearnerLag < commit) {
			e := reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "root peer %d has %d of %d entries: wait until it has caught up", id, p.Match, commit)
			e.Detail.RootLag = max(1, commit-min(commit, p.Match))
			err = e
		}
	})
	if err == nil && !c.hears(id) {
		err = reason.New(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "root peer %d is not heard from: it would not vote", id)
	}
	return err
}

// hears says whether a peer was heard from within an election timeout. What raft
// notes of that begins anew every election timeout: for a moment all are silent.
func (c *Core) hears(id uint64) bool {
	at, ok := c.heard[id]
	return ok && c.ticks-at <= uint64(c.cfg.ElectionTicks)
}

// maxLearnerLag is how far behind the commit index a learner may be promoted, in
// entries: a moment's worth.
const maxLearnerLag = 1000

// proposeSettled ends a joint change, which any leader finds in the state. One
// that would lose its own vote by that hands over first.
func (c *Core) proposeSettled() {
	if c.proposals.settling || len(c.members.Outgoing) == 0 || !c.settled() {
		return
	}
	if !c.members.votes(c.cfg.NodeID) {
		if c.raft.BasicStatus().LeadTransferee == 0 {
			c.raft.TransferLeader(c.mostAdvanced())
		}
		return
	}
	for _, p := range c.state.Cluster().GetPeers() {
		if p.GetRole() != rootv1.RootPeerRole_ROOT_PEER_ROLE_JOINING {
			continue
		}
		e := &rootv1.Event{Kind: &rootv1.Event_RootPeersSettled{RootPeersSettled: &rootv1.RootPeersSettled{NodeId: p.GetNodeId()}}}
		if err := c.enqueueChange(&Proposal{call: newCall(), commands: 1, internal: true}, &rootv1.Command{Events: []*rootv1.Event{e}}, 0); err != nil {
			panic(fmt.Sprintf("replica: encode the end of a joint change: %v", err))
		}
		c.proposals.settling = true
		return
	}
}

// enqueueChange queues an event for an entry of its own.
func (c *Core) enqueueChange(p *Proposal, command *rootv1.Command, replaces uint64) error {
	if err := p.encode(&rootv1.Entry{Commands: []*rootv1.Command{command}}); err != nil {
		return err
	}
	if err := c.refuse(p); err != nil {
		return err
	}
	p.change = changeOf(command.Events[0], replaces)
	c.enqueue(p)
	return nil
}

// alone says that a proposal gets an entry of its own.
func (p *Proposal) alone() bool { return p.internal || p.change != nil }

// entryOf makes the entry of a group of proposals.
func (c *Core) entryOf(group []*Proposal, size int) *raftpb.Entry {
	p, data := group[0], c.dated(group, size)
	if p.change == nil {
		return &raftpb.Entry{Data: data}
	}
	p.change.Context = data
	kind, data, err := raftpb.MarshalConfChange(p.change)
	if err != nil {
		panic(fmt.Sprintf("replica: encode a membership change: %v", err))
	}
	return &raftpb.Entry{Type: kind.Enum(), Data: data}
}
