package replica

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// maxPosition bounds terms and indexes: no log gets there, and sums of two do
	// not overflow.
	maxPosition = 1 << 62
	// maxTermJump is how far ahead of this peer's term another may be. A term is an
	// election: that many take longer than any machine lasts.
	maxTermJump = 1 << 32
	// maxReadContext bounds the name of a read index request, in bytes.
	maxReadContext = 64
	// roundBytes is the length of raft's number of a round of heartbeats.
	roundBytes = 8
)

// intake judges messages of other peers before raft takes them. Raft trusts its
// peers: it panics on what they cannot have sent, and a panic ends this process.
// What cannot come from a peer that keeps to the protocol is dropped and counted.
//
// What an entry says is not looked at: who can have an entry committed leads.
type intake struct {
	// low and high bound where raft's log ends: messages of the Turn at hand may have
	// cut it or made it longer.
	low, high uint64
	// asked is the newest round of heartbeats that this peer has sent as the leader
	// of askedTerm: nobody can have answered a later one.
	asked, askedTerm uint64
	// refused counts messages that were dropped.
	refused uint64
}

// begin begins a Turn: raft's log is all on disk.
func (i *intake) begin(last uint64) { i.low, i.high = last, last }

// sent notes the rounds of heartbeats that leave this peer.
func (i *intake) sent(messages []*raftpb.Message) {
	for _, m := range messages {
		if m.GetType() != raftpb.MsgHeartbeat || len(m.GetContext()) != roundBytes {
			continue
		}
		if i.askedTerm != m.GetTerm() {
			i.asked, i.askedTerm = 0, m.GetTerm()
		}
		i.asked = max(i.asked, binary.LittleEndian.Uint64(m.GetContext()))
	}
}

// taken notes what a message that raft takes does to the end of its log.
func (i *intake) taken(m *raftpb.Message, commit uint64) {
	end := m.GetIndex() + uint64(len(m.GetEntries()))
	switch {
	case m.GetType() == raftpb.MsgSnap:
		end = m.GetSnapshot().GetMetadata().GetIndex()
	case m.GetType() != raftpb.MsgApp || len(m.GetEntries()) == 0 || m.GetIndex() < commit:
		return
	}
	i.low, i.high = min(i.low, end), max(i.high, end)
}

// admits says whether raft may be given a message, and notes that it will be.
func (c *Core) admits(m *raftpb.Message) bool {
	why := c.objection(m)
	switch why {
	case "":
		c.intake.taken(m, c.hard.GetCommit())
		return true
	case late:
		return false
	}
	c.changed = true
	c.intake.refused++
	// Once for each power of two: a flood of them is not logged in full.
	if bits.OnesCount64(c.intake.refused) == 1 {
		c.cfg.Logger.Warn("refused a message of a root peer", "peer", m.GetFrom(), "type", m.GetType(), "term", m.GetTerm(), "reason", why, "refused", c.intake.refused)
	}
	return false
}

// late is the objection to what a peer may well have sent and is of no use any
// more: it is not counted. Who sent it sends it again.
const late = "it comes too late"

// objection says why a message is not taken; empty: it is.
func (c *Core) objection(m *raftpb.Message) string {
	own := c.hard.GetTerm()
	for _, v := range [...]uint64{m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint()} {
		if v >= maxPosition {
			return fmt.Sprintf("%d is no term and no index", v)
		}
	}
	if m.GetFrom() == raft.None {
		return "it does not say who sends it"
	}
	if m.GetType() == raftpb.MsgReadIndex {
		return c.objectRead(m)
	}
	switch {
	case m.GetTerm() == 0:
		return "it has no term"
	case own != 0 && m.GetTerm() > own+maxTermJump:
		return fmt.Sprintf("this peer's term is %d", own)
	case m.GetTerm() < own:
		return "" // Raft answers it with its own term, or drops it.
	}
	switch m.GetType() {
	case raftpb.MsgApp:
		return objectEntries(m)
	case raftpb.MsgAppResp:
		if m.GetIndex() > c.intake.high || m.GetRejectHint() > c.intake.high {
			return fmt.Sprintf("it answers entry %d with %d, the log ends at %d", m.GetIndex(), m.GetRejectHint(), c.intake.high)
		}
	case raftpb.MsgSnap:
		if at := m.GetSnapshot().GetMetadata(); at.GetIndex() >= maxPosition || at.GetTerm() > m.GetTerm() {
			return fmt.Sprintf("its checkpoint is at %d of term %d", at.GetIndex(), at.GetTerm())
		}
	case raftpb.MsgHeartbeat:
		if n := len(m.GetContext()); n != 0 && n != roundBytes {
			return fmt.Sprintf("its round has %d bytes", n)
		}
		switch commit := m.GetCommit(); {
		case commit > c.intake.high:
			return fmt.Sprintf("it has this peer commit %d, the log ends at %d", commit, c.intake.high)
		case commit > c.intake.low:
			return late // What came just before it may have cut the log.
		}
	case raftpb.MsgHeartbeatResp:
		return c.intake.objectRound(m)
	case raftpb.MsgTimeoutNow:
		if st := c.raft.BasicStatus(); st.Lead != m.GetFrom() || st.GetTerm() != m.GetTerm() {
			return "it does not come from the leader"
		}
	case raftpb.MsgReadIndexResp:
		if len(m.GetEntries()) != 1 || m.GetFrom() != c.leader {
			return fmt.Sprintf("it has %d names, and the leader is %d", len(m.GetEntries()), c.leader)
		}
	}
	return ""
}

// objectRead: only a leader is asked for a read index. Raft would pass the question
// on in the name of who asks, which nobody takes.
func (c *Core) objectRead(m *raftpb.Message) string {
	if n := len(m.GetEntries()); n != 1 || len(m.GetEntries()[0].GetData()) > maxReadContext || m.GetTerm() != 0 {
		return fmt.Sprintf("a read index of term %d with %d names", m.GetTerm(), n)
	}
	if c.raft.BasicStatus().RaftState != raft.StateLeader {
		return late
	}
	return ""
}

// objectRound: raft takes the round of an answer as a place in a list.
func (i *intake) objectRound(m *raftpb.Message) string {
	switch n := len(m.GetContext()); {
	case n == 0:
		return ""
	case n != roundBytes:
		return fmt.Sprintf("its round has %d bytes", n)
	case m.GetTerm() != i.askedTerm || binary.LittleEndian.Uint64(m.GetContext()) > i.asked:
		return fmt.Sprintf("it answers a round that was not asked: the newest is %d of term %d", i.asked, i.askedTerm)
	}
	return ""
}

// objectEntries wants entries that follow the message's index one by one, of terms
// that never decrease, and of kinds that peers propose.
func objectEntries(m *raftpb.Message) string {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		if index++; e.GetIndex() != index {
			return fmt.Sprintf("entry %d stands where %d belongs", e.GetIndex(), index)
		}
		if e.GetTerm() == 0 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return fmt.Sprintf("entry %d of term %d follows term %d", index, e.GetTerm(), term)
		}
		if term = e.GetTerm(); e.GetType() == raftpb.EntryNormal {
			continue
		}
		if _, _, err := storage.Payload(e); err != nil {
			return fmt.Sprintf("entry %d: %v", index, err)
		}
	}
	if term > m.GetTerm() {
		return fmt.Sprintf("entry %d is of a later term, %d", index, term)
	}
	return ""
}

// objectHash: who tells hashes of positions far ahead would have this peer forget
// those that can be compared.
func (c *Core) objectHash(index uint64) bool {
	return index > max(c.known.commit, c.hard.GetCommit())+maxHashPositions/2*c.hashes.every
}
