package replica

import (
	"github.com/nokv/nokv/internal/clock"
	"go.etcd.io/raft/v3/raftpb"
)

// known is what leaders told of the commit index.
type known struct {
	// told is the newest commit index that a leader told of; this peer may lack
	// the entries.
	told uint64
	// term is the newest one whose leader told its commit index after an entry
	// of that term was committed: before, it does not know it.
	term uint64
	// silent says that this peer stood still and has heard from no leader since:
	// the one that it takes for the leader may be none any more.
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

// hearCommit takes what tellCommit added, or what an append says. That an index
// is committed stays true whatever became of the leader that said it. recent says
// that it did not wait in the mailbox for an election timeout.
func (c *Core) hearCommit(m *raftpb.Message, recent bool) {
	k := c.known
	switch m.GetType() {
	case raftpb.MsgHeartbeat, raftpb.MsgApp:
		if k.silent && recent && m.GetTerm() >= c.hard.GetTerm() {
			k.silent, c.changed = false, true
		}
	}
	switch m.GetType() {
	case raftpb.MsgHeartbeat:
		k.told = max(k.told, m.GetIndex(), m.GetCommit())
		if m.GetIndex() != 0 {
			k.term = max(k.term, m.GetTerm())
		}
	case raftpb.MsgApp:
		k.told = max(k.told, m.GetCommit())
	}
	c.changed = c.changed || k.term > c.known.term || k.told > max(c.known.told, c.hard.GetCommit())
	c.known = k
}
