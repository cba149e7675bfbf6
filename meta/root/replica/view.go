package replica

import (
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// View is what a peer knows at the end of a Turn. Nobody changes it.
type View struct {
	// State is the applied state, read-only.
	State *state.State
	// Commit is the newest index known to be committed, Applied the one State
	// is at.
	Commit, Applied uint64
	Role            rootv1.RaftRole
	Term            uint64
	// Leader is the node that leads as far as this peer knows; 0 for none.
	Leader uint64
	// LeaderlessSince is when this peer last knew a leader; 0 while it does.
	LeaderlessSince clock.Instant
	// FirstIndex and LastIndex are the ends of the durable log; FirstIndex is
	// LastIndex+1 when it is empty.
	FirstIndex, LastIndex uint64
	// Checkpoint describes the current checkpoint; HasCheckpoint is false when
	// there is none.
	Checkpoint    storage.CheckpointMeta
	HasCheckpoint bool
	// Stalled says that a write to the log has taken longer than an election
	// timeout and is not back.
	Stalled bool
	// Peers is what a leader knows of all peers, by node id; nil on others.
	Peers map[uint64]Progress
	// HashMismatches counts positions where peers told different state hashes.
	HashMismatches uint64
	// QueuedProposals were taken and not answered.
	QueuedProposals int
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
	v := &View{
		State: c.state.Fork(), Commit: c.hard.GetCommit(), Applied: c.state.Token().Index, Role: roleOf(c.role),
		Term: c.hard.GetTerm(), Leader: c.leader, LeaderlessSince: c.leaderless, LastIndex: c.persisted,
		HashMismatches: c.hashes.mismatches, QueuedProposals: c.proposals.count,
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
	peers := make(map[uint64]Progress, len(c.cfg.Voters))
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
