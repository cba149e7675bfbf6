package replica

import "go.etcd.io/raft/v3/raftpb"

// known is what leaders told of the commit index.
type known struct {
	// told is the newest commit index that a leader told of; this peer may lack
	// the entries.
	told uint64
	// term is the newest one whose leader told its commit index after an entry
	// of that term was committed: before, it does not know it.
	term uint64
}

// uninformed notes that this peer does not know, from now on, what is committed.
func (c *Core) uninformed() {
	if c.leaderless == 0 {
		c.leaderless = c.now
	}
}

// inform notes that it knows again: there is a leader, and the leader knows
// every entry that was ever acknowledged, because one of its own is committed.
func (c *Core) inform() {
	if c.leader != 0 && (c.state.Token().Term == c.hard.GetTerm() || !c.leads() && c.known.term == c.hard.GetTerm()) {
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
// is committed stays true whatever became of the leader that said it.
func (c *Core) hearCommit(m *raftpb.Message) {
	k := c.known
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
