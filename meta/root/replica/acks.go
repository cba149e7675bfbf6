package replica

import (
	"go.etcd.io/raft/v3/raftpb"
)

// acks leaves out answers that repeat the one before. A leader tells a new
// commit index in an append without entries, at once; the answer to that says
// what the answer to the entries said already, and costs both ends as much.
//
// An answer is left out only behind an equal one of the same Ready, or of the
// same tick when every append since was empty. So a lost answer is repeated as
// soon as raft asks for it, which is with a heartbeat: a tick later or more.
type acks struct {
	// entries says that an append with entries came since the last Ready.
	entries bool
	// to, term and index are of the last answer, sent at tick.
	to, term, index, tick uint64
}

// heard notes a message on its way into raft.
func (a *acks) heard(m *raftpb.Message) {
	if m.GetType() == raftpb.MsgApp && len(m.GetEntries()) > 0 {
		a.entries = true
	}
}

// filter takes the repetitions out of a follower's messages, in place.
func (a *acks) filter(messages []*raftpb.Message, tick uint64) []*raftpb.Message {
	kept := messages[:0]
	for _, m := range messages {
		if m.GetType() != raftpb.MsgAppResp || m.GetReject() {
			kept = append(kept, m)
			continue
		}
		next := acks{to: m.GetTo(), term: m.GetTerm(), index: m.GetIndex(), tick: tick}
		if *a != next {
			kept = append(kept, m)
		}
		*a = next
	}
	a.entries = false
	return kept
}
