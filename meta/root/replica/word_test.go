package replica_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// untrue says what a message makes untrue of the word that stands when it
// leaves; nil: nothing.
func untrue(w replica.Word, m *raftpb.Message) error {
	switch m.GetType() {
	case raftpb.MsgPreVote, raftpb.MsgPreVoteResp: // They promise nothing.
	default:
		if m.GetTerm() > w.Term {
			return fmt.Errorf("%v of term %d leaves while the word is of term %d", m.GetType(), m.GetTerm(), w.Term)
		}
	}
	for _, e := range m.GetEntries() {
		entry := &rootv1.Entry{}
		if m.GetType() != raftpb.MsgApp || w.Tenure == nil || proto.Unmarshal(e.GetData(), entry) != nil {
			continue
		}
		for _, c := range entry.GetCommands() {
			for _, event := range c.GetEvents() {
				if claim := event.GetTenureClaimed(); claim.GetPredecessorExpired() && claim.GetExpectedEra() == w.Tenure.GetEra() && e.GetIndex() > w.Token.Index {
					return fmt.Errorf("a claim over era %d leaves while the word confirms it", w.Tenure.GetEra())
				}
			}
		}
	}
	return nil
}

// confirmedBy confirms by the words of two peers, the leader's first.
func confirmedBy(leader, other replica.Word) uint64 {
	if leader.Tenure == nil || leader.Term != other.Term {
		return 0
	}
	return leader.Tenure.GetEra()
}

func TestWordConfirmsAnEraWithoutTTL(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	if w := l.core.Word(); w.Tenure != nil || w.Term != l.view.Term {
		t.Fatalf("before the first era: %+v", w)
	}
	c.claim(l, "a", 0, 0)
	for id, p := range c.peers {
		w, want := p.core.Word(), uint64(0)
		if id == 1 {
			want = 1
		}
		if w.Term != l.view.Term || w.Tenure.GetEra() != want || confirmedBy(w, c.peers[3].core.Word()) != want {
			t.Errorf("peer %d says %+v", id, w)
		}
	}
	if w := l.core.Word(); w.Token.Index != l.view.Applied {
		t.Errorf("the word is of index %d, applied %d", w.Token.Index, l.view.Applied)
	}
}

// With a ttl the leader must know when it confirmed, which takes a Turn.
func TestWordLeavesAnEraWithTTLToTurns(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	if w := l.core.Word(); w.Tenure != nil {
		t.Fatalf("an era with a ttl is confirmed by a word: %v", w.Tenure)
	}
}

// From the moment a claim over the era is proposed until its outcome is known
// the word confirms nothing; and then the era that is.
func TestWordKeepsSilentWhileAClaimIsUnderWay(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, 0)
	c.drop = func(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgApp }
	r := claim(t, "b", 1, 0)
	l.turn(0, r)
	c.settle()
	if w := l.core.Word(); l.answered(r) || w.Tenure != nil {
		t.Fatalf("claim answered %v, the word is %+v", l.answered(r), w)
	}
	c.drop = nil
	for ticks := 0; !l.answered(r); ticks++ {
		if ticks > 20 {
			t.Fatal("the claim is not answered")
		}
		c.tick(1)
	}
	if w := l.core.Word(); !applied(r.Response) || w.Tenure.GetEra() != 2 {
		t.Fatalf("claim %v, the word is %+v", r.Response, w)
	}
}

func TestWordEndsWithTheTenure(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, 0)
	p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
		Era: 1, HolderId: "a", HolderIncarnation: incarnation("a"), Consumed: &rootv1.Frontiers{},
	}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, p)
	c.settle()
	if w := l.core.Word(); p.Err != nil || p.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED || w.Tenure != nil {
		t.Fatalf("retired: %v %v, the word is %+v", p.Err, p.Results, w)
	}
}

// A leader that was cut off says the same as before: the others' words are of
// another term by then. A new one confirms nothing before it has applied an
// entry of its own.
func TestWordOfALeaderThatWasReplaced(t *testing.T) {
	c := newCluster(t, 3, nil)
	old := c.lead(1)
	c.claim(old, "a", 0, 0)
	said := old.core.Word()
	c.isolate(1)
	c.drop = func(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgApp }
	for ticks := 0; c.leader() == nil || c.leader() == old; ticks++ {
		if ticks > 400 {
			t.Fatal("nobody else leads")
		}
		c.tick(1)
	}
	for id := uint64(2); id <= 3; id++ {
		w := c.peers[id].core.Word()
		if confirmedBy(said, w) != 0 || w.Tenure != nil {
			t.Errorf("peer %d says %+v, the old leader %+v", id, w, said)
		}
	}
	c.drop = nil
	l := c.elect()
	if w := l.core.Word(); l.id == 1 || w.Tenure.GetEra() != 1 {
		t.Errorf("peer %d leads and says %+v", l.id, w)
	}
}

// Nothing is said after a failure.
func TestWordEndsWithAFailure(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, 0)
	l.log.setOnAppend(func([]*raftpb.Entry) error { return errDisk })
	l.turn(0, propose(t, "x"))
	if w := l.core.Word(); l.err == nil || w.Term != 0 || w.Tenure != nil {
		t.Errorf("error %v, the word is %+v", l.err, w)
	}
}
