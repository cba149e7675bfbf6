package replica

import (
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// Word is what a peer says of itself at any moment, without a Turn.
//
// Two words make a confirmation of an era without a ttl: the leader's, and then,
// asked for after it, that of as many others as make a quorum with it, of the
// same term. Why that is one: whoever leads a later term has a vote of one of
// them, and each of them had said its word before it gave that vote away. So at
// the moment of the leader's word nobody had led a later term, and all that was
// committed is in the state that the word is of, but for what this leader itself
// has under way: claims over the era, and for these it keeps silent.
type Word struct {
	// Term: no vote of a later one, and nothing else of it, has left this peer.
	Term uint64
	// Tenure is the active one, while this peer leads the Term and would confirm
	// it to its holder: it has a ttl of 0, and no claim over it is under way. Nil: it
	// would not, or it takes a Turn to say. Token is where that is known from.
	Tenure *rootv1.Tenure
	Token  state.Token
	// Voters are those of which a quorum is needed, this peer included. Nobody
	// changes the slice.
	Voters []uint64
}

// Word returns what this peer says now: the zero Word before the first Turn and
// after a failed one. It may be called from any goroutine.
func (c *Core) Word() Word {
	if w := c.word.Load(); w != nil {
		return *w
	}
	return Word{}
}

// speak renews the word. That comes before anything that makes the old one
// untrue leaves this peer: a vote, a claim, an answer.
func (c *Core) speak() {
	w := Word{Term: c.hard.GetTerm()}
	t := c.state.Tenure()
	// While the log has a change of voters that is not applied here, others may go
	// by it already, and their quorums have nothing to do with this peer's.
	// Nor does one set of voters decide while a change is joint.
	m := &c.members
	steady := m.votes(c.cfg.NodeID) && len(m.Outgoing) == 0 && c.votersChange <= c.state.Token().Index
	if steady && c.settled() && t.GetEra() != 0 && !t.GetRetired() && t.GetTtlMillis() == 0 && c.authority.fenced[state.Era(t.GetEra())] == 0 {
		w.Tenure, w.Token, w.Voters = t, c.state.Token(), m.Voters
	}
	if old := c.word.Load(); old == nil || old.Term != w.Term || old.Tenure != w.Tenure || old.Token != w.Token {
		c.word.Store(&w)
	}
}

// Confirm is the answer that the word makes with those of others of its term; nil:
// it confirms nothing of what r asks.
func (w Word) Confirm(r *rootv1.ConfirmTenureRequest) *rootv1.ConfirmTenureResponse {
	if w.Tenure == nil || !isHeldBy(w.Tenure, r) {
		return nil
	}
	return &rootv1.ConfirmTenureResponse{Active: true, Tenure: w.Tenure, Token: w.Token.Proto()}
}

// noteVoters notes entries on their way into the log that change who votes.
func (c *Core) noteVoters(entries []*raftpb.Entry) {
	for _, e := range entries {
		if e.GetType() != raftpb.EntryNormal {
			c.votersChange = e.GetIndex()
		}
	}
}

// isHeldBy says whether t is the era that r asks about, and of the process that asks.
func isHeldBy(t *rootv1.Tenure, r *rootv1.ConfirmTenureRequest) bool {
	return t.GetEra() == r.GetEra() && t.GetHolderId() == r.GetHolderId() && t.GetHolderIncarnation() == r.GetHolderIncarnation()
}
