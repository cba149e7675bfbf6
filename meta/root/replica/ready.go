package replica

import (
	"fmt"

	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// PoisonError says that a committed entry cannot be applied. Every peer stops
// at it.
type PoisonError struct {
	Term, Index uint64
	// Err says which entry it is, and what is wrong with it.
	Err error
}

// Error implements error.
func (e *PoisonError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *PoisonError) Unwrap() error { return e.Err }

// ready handles one Ready of raft.
func (c *Core) ready(out *Output) error {
	rd := c.raft.Ready()
	ballot := rd.HardState != nil && (rd.GetTerm() != c.hard.GetTerm() || rd.GetVote() != c.hard.GetVote())
	c.observe(rd, out)
	c.assignIndexes(rd.Entries)

	early, late := c.split(rd.Messages, ballot)
	c.send(early)
	// A crash here: what was sent promised nothing about this peer's disk.
	if err := c.install(rd.Snapshot); err != nil {
		return err
	}
	if err := c.persist(rd, out); err != nil {
		return err
	}
	// A crash here: entries, term and vote are found again; that they were not
	// acknowledged costs a repetition.
	c.telling.answered(late)
	c.send(c.responses.filter(late, c.ticks))
	if err := c.apply(rd.CommittedEntries, out); err != nil {
		return err
	}
	c.readConfirmed(rd.ReadStates)
	c.serveReads(out)
	// Only here does a leader count its own write.
	c.raft.Advance(rd)
	return nil
}

// observe takes over role, leader, term and commit index.
func (c *Core) observe(rd raft.Ready, out *Output) {
	led := c.leads()
	newTerm := rd.HardState != nil && rd.GetTerm() != c.hard.GetTerm()
	if rd.HardState != nil {
		c.hard, c.hardDirty, c.changed = rd.HardState, true, true
	}
	if rd.SoftState != nil {
		c.changed = true
		c.role = rd.RaftState
		if c.leader != rd.Lead {
			c.leader = rd.Lead
			c.leaderChanged(out)
		}
	}
	if led && (newTerm || !c.leads()) {
		c.leadershipLost(out)
	}
	if c.leads() && (newTerm || !led) {
		c.authority.elected()
		c.known.silent = false
		c.ledSince = c.ticks
		c.cfg.Logger.Info("leading", "peer", c.cfg.NodeID, "term", c.hard.GetTerm())
	}
}

func (c *Core) leaderChanged(out *Output) {
	c.uninformed(c.now)
	if c.leader != 0 {
		// The last attempt may have gone to a leader that is no more.
		c.retryRead()
		c.answerTransfers(out)
	}
	if c.leader != c.cfg.NodeID {
		c.cfg.Logger.Info("leader changed", "peer", c.cfg.NodeID, "leader", c.leader, "term", c.hard.GetTerm())
	}
}

// leadershipLost answers everything that only a leader can answer.
func (c *Core) leadershipLost(out *Output) {
	c.failProposals(out)
	c.failConfirms(errNotLeader(c.leader), out)
	c.failClaims(errNotLeader(c.leader), out)
}

// split separates the messages a leader may send before its own write: they
// say nothing about this peer's disk. That needs term and vote to be durable
// already. Votes, answers, and all that followers send go out afterwards.
func (c *Core) split(messages []*raftpb.Message, ballot bool) (early, late []*raftpb.Message) {
	if len(messages) == 0 {
		return nil, nil
	}
	if ballot || !c.leads() {
		return nil, messages
	}
	n := 0
	for _, m := range messages {
		if leadersOwn(m.GetType()) {
			n++
		}
	}
	if n == len(messages) {
		return messages, nil
	}
	early = make([]*raftpb.Message, 0, n)
	late = make([]*raftpb.Message, 0, len(messages)-n)
	for _, m := range messages {
		if leadersOwn(m.GetType()) {
			early = append(early, m)
		} else {
			late = append(late, m)
		}
	}
	return early, late
}

func leadersOwn(t raftpb.MessageType) bool {
	switch t {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap, raftpb.MsgTimeoutNow, raftpb.MsgReadIndexResp:
		return true
	}
	return false
}

func (c *Core) send(messages []*raftpb.Message) {
	if c.hashes.silent {
		return
	}
	if c.muted {
		messages = withoutHeartbeats(messages)
	}
	messages = c.withoutSpareHeartbeats(messages)
	c.tellCommit(messages)
	c.intake.sent(messages)
	if len(messages) > 0 {
		c.cfg.Transport.Send(messages)
	}
}

// persist makes entries, term and vote durable. A commit index alone rides
// with the next entries.
func (c *Core) persist(rd raft.Ready, out *Output) error {
	if !rd.MustSync {
		return nil
	}
	if n := len(rd.Entries); n > 0 {
		c.persisted = rd.Entries[n-1].GetIndex()
		c.changed = true
	}
	return c.append(rd.Entries, true, out)
}

// saveCommit writes a commit index that no entries came along for, from time
// to time and without waiting for the disk: a restart then finds the state as
// it was and needs no leader for that. Nothing depends on it.
func (c *Core) saveCommit(ticks int, out *Output) error {
	if !c.hardDirty || ticks == 0 || c.ticks < c.commitDue {
		return nil
	}
	return c.append(nil, false, out)
}

// append is the one place where the log grows.
func (c *Core) append(entries []*raftpb.Entry, sync bool, out *Output) error {
	var hard *raftpb.HardState
	if c.hardDirty {
		hard = c.hard
	}
	if err := c.log.Append(hard, entries, sync); err != nil {
		return fmt.Errorf("append %d entries: %w", len(entries), err)
	}
	c.hardDirty = false
	c.commitDue = c.ticks + uint64(c.cfg.ElectionTicks)
	if sync {
		c.checkOverdue(out)
	}
	return nil
}

// apply applies committed entries and answers their proposals.
func (c *Core) apply(entries []*raftpb.Entry, out *Output) error {
	if c.cfg.Applying != nil && len(entries) > 0 {
		defer c.cfg.Applying()()
	}
	for _, e := range entries {
		if err := c.applyOne(e, out); err != nil {
			return err
		}
	}
	if len(entries) > 0 {
		c.changed = true
		c.judgeClaims(out)
		c.serveHeldConfirms(out)
		c.proposeBootstrap()
		c.proposeSettled()
	}
	return nil
}

func (c *Core) applyOne(e *raftpb.Entry, out *Output) error {
	term, index := e.GetTerm(), e.GetIndex()
	change, data, err := storage.Payload(e)
	if err != nil {
		return &PoisonError{Term: term, Index: index, Err: fmt.Errorf("apply entry %d of term %d: %w", index, term, err)}
	}
	c.scratch.Reset()
	tenure, level, empty := c.state.Tenure(), c.state.FeatureLevel(), c.state.Cluster() == nil
	if err := c.state.ApplyEntry(term, index, data, &c.scratch); err != nil {
		return &PoisonError{Term: term, Index: index, Err: err}
	}
	if empty && c.state.Cluster() != nil {
		c.begun()
	}
	if err := c.reshape(change != nil); err != nil {
		return &PoisonError{Term: term, Index: index, Err: fmt.Errorf("apply entry %d of term %d: %w", index, term, err)}
	}
	if c.state.FeatureLevel() != level {
		c.cfg.Transport.SetPeers(c.state.Cluster())
	}
	if c.state.Tenure() != tenure {
		if c.state.Tenure().GetEra() != tenure.GetEra() {
			c.authority.begun(c.now)
		}
		if c.leads() {
			c.logEnd(tenure)
		}
	}
	c.cut.applied(index, len(e.GetData()))
	if err := c.settle(term, index, c.scratch.Results, out); err != nil {
		return err
	}
	return c.passed(index)
}

// appendResponses leaves out answers that repeat the one before. A leader tells a new
// commit index in an append without entries, at once; the answer to that says
// what the answer to the entries said already, and costs both ends as much.
//
// An answer is left out only behind an equal one of the same Ready, or of the
// same tick when every append since was empty. So a lost answer is repeated as
// soon as raft asks for it, which is with a heartbeat: a tick later or more.
type appendResponses struct {
	// entries says that an append with entries came since the last Ready.
	entries bool
	// to, term and index are of the last answer, sent at tick.
	to, term, index, tick uint64
}

// heard notes a message on its way into raft.
func (a *appendResponses) heard(m *raftpb.Message) {
	if m.GetType() == raftpb.MsgApp && len(m.GetEntries()) > 0 {
		a.entries = true
	}
}

// filter takes the repetitions out of a follower's messages, in place.
func (a *appendResponses) filter(messages []*raftpb.Message, tick uint64) []*raftpb.Message {
	kept := messages[:0]
	for _, m := range messages {
		if m.GetType() != raftpb.MsgAppResp || m.GetReject() {
			kept = append(kept, m)
			continue
		}
		next := appendResponses{to: m.GetTo(), term: m.GetTerm(), index: m.GetIndex(), tick: tick}
		if *a != next {
			kept = append(kept, m)
		}
		*a = next
	}
	a.entries = false
	return kept
}
