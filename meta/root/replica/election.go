package replica

import (
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// elections are what this peer does about leadership beyond raft's timeouts.
type elections struct {
	// campaignIn counts the ticks until this peer campaigns because its leader's
	// port is closed; 0 for not. It holds for campaignTerm alone.
	campaignIn   int
	campaignTerm uint64
	// asked is the last PreVote of a peer that raft passed over because this one
	// had a leader; nil: none.
	asked     *raftpb.Message
	transfers []*Transfer
}

// peerRefused acts on a closed port of the leader: nobody is there. The
// follower forgets that leader, so that PreVote with CheckQuorum does not hold
// it back, and campaigns: the first of the remaining peers at once, every
// later one two ticks and a little behind it, so that they do not split the
// vote. A peer that saw the closed port earlier has asked in vain: it is
// answered now, as if its message had taken until now. If the leader lives after
// all, its next message ends this.
func (c *Core) peerRefused(id uint64) {
	status := c.raft.BasicStatus()
	if status.RaftState != raft.StateFollower || status.Lead != id || id == 0 {
		return
	}
	// raft only refuses to forget a leader when reads rely on leases.
	_ = c.raft.ForgetLeader()
	if asked := c.elections.asked; asked != nil {
		c.elections.asked = nil
		_ = c.raft.Step(asked) // raft judges its term and log
	}
	rank := 0
	for _, voter := range c.members.Voters {
		if voter != id && voter < c.cfg.NodeID {
			rank++
		}
	}
	if rank == 0 {
		_ = c.raft.Campaign()
		return
	}
	c.elections.campaignTerm = status.GetTerm()
	c.elections.campaignIn = 2*rank + c.rng.IntN(2)
}

// noteAsked keeps a PreVote that raft will pass over.
func (c *Core) noteAsked(m *raftpb.Message) {
	if lead := c.raft.BasicStatus().Lead; lead != 0 && lead != m.GetFrom() {
		c.elections.asked = m
	}
}

// tickElections counts down to a campaign and gives up late transfers.
func (c *Core) tickElections(out *Output) {
	e := &c.elections
	if e.campaignIn > 0 {
		if e.campaignIn--; e.campaignIn == 0 {
			status := c.raft.BasicStatus()
			if status.RaftState == raft.StateFollower && status.Lead == 0 && status.GetTerm() == e.campaignTerm {
				_ = c.raft.Campaign()
			}
		}
	}
	e.transfers = slices.DeleteFunc(e.transfers, func(t *Transfer) bool {
		t.ticks++
		late := t.ticks > 2*c.cfg.ElectionTicks
		if late {
			c.failRequest(t, errUnavailable("no other peer took over in time"), out)
		}
		return late
	})
}

func (c *Core) acceptTransfer(t *Transfer, out *Output) {
	if !c.leads() {
		c.failRequest(t, errNotLeader(c.leader), out)
		return
	}
	if t.target = t.To; t.target == 0 {
		t.target = c.mostAdvanced()
	}
	switch {
	case t.target == 0 || !c.members.votes(t.target):
		c.failRequest(t, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "no peer %d to hand over to", t.To), out)
	case t.target == c.cfg.NodeID:
		t.Leader = c.leader
		out.Done = append(out.Done, t)
	default:
		c.raft.TransferLeader(t.target)
		c.elections.transfers = append(c.elections.transfers, t)
	}
}

// mostAdvanced is the other peer with the longest log, active ones first; 0
// when there is none.
func (c *Core) mostAdvanced() (id uint64) {
	var match uint64
	var active bool
	c.raft.WithProgress(func(peer uint64, _ raft.ProgressType, p tracker.Progress) {
		if peer == c.cfg.NodeID || !c.members.votes(peer) {
			return
		}
		better := id == 0 || (p.RecentActive && !active) || (p.RecentActive == active && (p.Match > match || (p.Match == match && peer < id)))
		if better {
			id, match, active = peer, p.Match, p.RecentActive
		}
	})
	return id
}

// answerTransfers is called when somebody is known to lead.
func (c *Core) answerTransfers(out *Output) {
	if c.leader == c.cfg.NodeID {
		return
	}
	for _, t := range c.elections.transfers {
		t.Leader = c.leader
		out.Done = append(out.Done, t)
	}
	c.elections.transfers = nil
}

// checkOverdue steps down, once, in a Turn that has taken too long, whatever it
// waited for.
func (c *Core) checkOverdue(out *Output) bool {
	if c.overdue || c.cfg.Overdue == nil || !c.cfg.Overdue() {
		return false
	}
	c.overdue = true
	c.stepDown(out)
	return true
}

// stoodStill ends what this peer knows of the others: while it stood still, since a
// moment, they may have elected a new leader. It knows again when a quorum has
// followed its leader, or itself, in a read index that begins now. What comes from
// others does not do: it may have waited in a socket all the time.
func (c *Core) stoodStill(since clock.Instant) {
	if c.members.alone() {
		return
	}
	c.uninformed(since)
	c.known.silent = true
	c.retryRead()
	clear(c.heard)
	c.ledSince = c.ticks
}

// stepDown ends a leadership that went on without this peer, which stood still in the
// Turn at hand. Ticking through two election timeouts without a message makes raft's
// quorum check fail. What came before it is not answered by what was known before
// it. The heartbeats that the ticks make are not sent: they would keep the others
// from electing.
func (c *Core) stepDown(out *Output) {
	err := errUnavailable("this peer stood still")
	c.failReads(err, out)
	c.failClaims(err, out)
	c.changed = true
	c.stoodStill(c.now)
	if !c.leads() || c.members.alone() {
		return
	}
	c.cfg.Logger.Warn("stepping down: this peer stood still", "peer", c.cfg.NodeID, "term", c.hard.GetTerm())
	c.muted = true
	for range 2 * c.cfg.ElectionTicks {
		if c.raft.BasicStatus().RaftState != raft.StateLeader {
			return
		}
		c.raft.Tick()
	}
}

// withoutSpareHeartbeats leaves out, in place, heartbeats to whom a read index took one
// since the last: it says as much. Nobody goes without for twice the time.
func (c *Core) withoutSpareHeartbeats(messages []*raftpb.Message) []*raftpb.Message {
	return slices.DeleteFunc(messages, func(m *raftpb.Message) bool {
		if m.GetType() != raftpb.MsgHeartbeat {
			return false
		}
		if len(m.GetContext()) > 0 {
			c.asked[m.GetTo()] = c.ticks
			return false
		}
		at, asked := c.asked[m.GetTo()]
		return asked && c.ticks-at < uint64(c.cfg.HeartbeatTicks)
	})
}

func withoutHeartbeats(messages []*raftpb.Message) []*raftpb.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgHeartbeat })
}
