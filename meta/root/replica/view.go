package replica

import (
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// View is what a peer knows at the end of a Turn. Nobody changes it.
type View struct {
	// State is the applied state, read-only.
	State *state.State
	// Commit is the newest index that is committed in this peer's log, Applied
	// the one State is at, Known the newest one that a leader said is committed:
	// above Commit while this peer lags.
	Commit, Applied, Known uint64
	Role                   rootv1.RaftRole
	Term                   uint64
	// Leader is the node that leads as far as this peer knows; 0 for none.
	Leader uint64
	// LeaderlessSince is when this peer last knew a leader that knows what is
	// committed; 0 while it does. A new leader does once an entry of its own term
	// is committed; a peer that stood still knows nothing newer than the beginning
	// of that until a quorum has followed its leader in a read index.
	LeaderlessSince clock.Instant
	// FirstIndex and LastIndex are the ends of the durable log; FirstIndex is
	// LastIndex+1 when it is empty.
	FirstIndex, LastIndex uint64
	// Checkpoint describes the current checkpoint; HasCheckpoint is false when
	// there is none.
	Checkpoint    storage.CheckpointMeta
	HasCheckpoint bool
	// Stalled says that no Turn has ended for about an election timeout, whatever
	// the one under way waits for.
	Stalled bool
	// Members are the root peers by what they do, at Applied.
	Members state.RootMembers
	// Peers is what a leader knows of all peers, by node id; nil on others.
	Peers map[uint64]Progress
	// HashMismatches counts positions where peers told different state hashes.
	HashMismatches uint64
	// Differs says whose state differs from this peer's, in a sentence; empty: nobody's.
	// Silent says that this peer does not vote for that.
	Differs string
	Silent  bool
	// RefusedMessages counts what came under another peer's name and cannot be of a
	// peer.
	RefusedMessages uint64
	// QueuedProposals were taken and not answered.
	QueuedProposals int
}

// StalledSince is v as others are to see it while no Turn has ended since a moment:
// what v says of the leader and of the commit index is of then, and whoever reads
// the tail must not take it for the present.
func (v *View) StalledSince(since clock.Instant) *View {
	w := *v
	w.Stalled = true
	if w.LeaderlessSince == 0 {
		w.LeaderlessSince = since
	}
	return &w
}

// Settled says that this peer led, and had applied an entry of its own term: State
// has everything that was acknowledged until then.
func (v *View) Settled() bool {
	return v.Role == rootv1.RaftRole_RAFT_ROLE_LEADER && v.State.Token().Term == v.Term
}

// Progress is how far a peer is, as its leader knows.
type Progress struct {
	// Match is the highest index known to be on the peer's disk.
	Match uint64
	// Active says that the peer was heard from in the last election timeout.
	Active bool
}

// nextView makes a view when something changed since the last.
func (c *Core) nextView() *View {
	if !c.changed {
		return nil
	}
	c.changed = false
	c.inform()
	v := &View{
		State: c.state.Fork(), Commit: c.hard.GetCommit(), Applied: c.state.Token().Index,
		Known: max(c.known.commit, c.hard.GetCommit()), Role: roleOf(c.role),
		Term: c.hard.GetTerm(), Leader: c.leader, LeaderlessSince: c.leaderless, LastIndex: c.persisted,
		Members: c.members.RootMembers, HashMismatches: c.hashes.mismatches, Differs: c.differs(), Silent: c.hashes.silent, RefusedMessages: c.intake.refused, QueuedProposals: c.proposals.count,
	}
	// A log that cannot say its first index fails at the next use.
	v.FirstIndex, _ = c.log.FirstIndex()
	v.Checkpoint, v.HasCheckpoint = c.log.Checkpoint()
	if c.leads() {
		v.Peers = c.progress()
	}
	return v
}

func (c *Core) progress() map[uint64]Progress {
	peers := make(map[uint64]Progress, len(c.members.Voters)+2)
	c.raft.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		peers[id] = Progress{Match: p.Match, Active: p.RecentActive || id == c.cfg.NodeID}
	})
	return peers
}

func roleOf(r raft.StateType) rootv1.RaftRole {
	switch r {
	case raft.StateLeader:
		return rootv1.RaftRole_RAFT_ROLE_LEADER
	case raft.StateCandidate, raft.StatePreCandidate:
		return rootv1.RaftRole_RAFT_ROLE_CANDIDATE
	}
	return rootv1.RaftRole_RAFT_ROLE_FOLLOWER
}

// commitKnown is what leaders told of the commit index.
type commitKnown struct {
	// commit is the newest commit index that a leader told of; this peer may lack
	// the entries.
	commit uint64
	// term is the newest one whose leader told its commit index after an entry
	// of that term was committed: before, it does not know it.
	term uint64
	// silent says that this peer stood still and no quorum has followed its leader
	// since, as far as it knows: that one may be none any more.
	silent bool
}

// uninformed notes that this peer does not know what is committed after since.
func (c *Core) uninformed(since clock.Instant) {
	if c.leaderless == 0 {
		c.leaderless, c.changed = since, true
	}
}

// inform notes that it knows again: there is a leader, and the leader knows
// every entry that was ever acknowledged, because one of its own is committed.
func (c *Core) inform() {
	if c.leader != 0 && !c.known.silent && (c.state.Token().Term == c.hard.GetTerm() || !c.leads() && c.known.term == c.hard.GetTerm()) {
		c.leaderless = 0
	}
}

// tellCommit adds this leader's commit index to heartbeats. The one that raft
// puts there is cut to what the follower has, so that a follower that lags could
// not know it, and its readers would take what it has for the present. Raft makes
// no use of a heartbeat's Index.
func (c *Core) tellCommit(messages []*raftpb.Message) {
	if !c.settled() {
		return
	}
	for _, m := range messages {
		if m.GetType() == raftpb.MsgHeartbeat {
			m.Index = new(c.hard.GetCommit())
		}
	}
}

// heardQuorum notes that a quorum has followed the leader in a read index, which is
// committed: a peer that stood still is informed again.
func (c *Core) heardQuorum(index uint64) {
	if !c.known.silent {
		return
	}
	c.known.silent, c.changed = false, true
	c.known.commit = max(c.known.commit, index)
}

// hearCommit takes what tellCommit added, or what an append says. That an index
// is committed stays true whatever became of the leader that said it.
func (c *Core) hearCommit(m *raftpb.Message) {
	k := c.known
	switch m.GetType() {
	case raftpb.MsgHeartbeat:
		k.commit = max(k.commit, m.GetIndex(), m.GetCommit())
		if m.GetIndex() != 0 {
			k.term = max(k.term, m.GetTerm())
		}
	case raftpb.MsgApp:
		k.commit = max(k.commit, m.GetCommit())
	}
	c.changed = c.changed || k.term > c.known.term || k.commit > max(c.known.commit, c.hard.GetCommit())
	c.known = k
}
