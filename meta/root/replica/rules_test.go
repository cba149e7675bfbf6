package replica_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// The answer to an attempt that was given up says nothing about what was asked
// after it was sent.
func TestAnswerToAnEarlierAttemptCountsForNobody(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	f := c.peers[2]
	var asked []*raftpb.Message
	c.drop = func(m *raftpb.Message) bool {
		if m.GetType() != raftpb.MsgReadIndex {
			return false
		}
		asked = append(asked, m)
		return true
	}
	read := replica.NewRead()
	f.turn(0, read)
	for len(asked) < 2 {
		c.tick(1)
	}
	f.inbox = append(f.inbox, &raftpb.Message{
		Type: raftpb.MsgReadIndexResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(f.view.Term),
		Index: new(f.view.Commit), Entries: asked[0].GetEntries(),
	})
	f.turn(0)
	if f.answered(read) {
		t.Fatal("answered by what was asked before")
	}
	c.drop = nil
	for ticks := 0; !f.answered(read); ticks++ {
		if ticks > 20 {
			t.Fatal("not asked again")
		}
		c.tick(1)
	}
	if read.Err != nil {
		t.Fatal(read.Err)
	}
}

// A holder is a process: another one of the same name is not confirmed.
func TestAnotherProcessOfTheHolderIsNotConfirmed(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	if !applied(c.claim(l, "a", 0, testTTL)) {
		t.Fatal("the first claim was refused")
	}
	held := l.view.State.Tenure()
	for _, incarnation := range []uint64{held.GetHolderIncarnation(), held.GetHolderIncarnation() + 1} {
		r := replica.NewConfirm(&rootv1.ConfirmTenureRequest{Era: 1, HolderId: "a", HolderIncarnation: incarnation})
		l.turn(0, r)
		c.settle()
		if want := incarnation == held.GetHolderIncarnation(); !l.answered(r) || r.Err != nil || r.Response.GetActive() != want {
			t.Errorf("incarnation %d: answered %v, %v, error %v", incarnation, l.answered(r), r.Response, r.Err)
		}
	}
}

// Two claims arrive together, the second over the era that the first begins:
// that era has not been looked at when the second is judged.
func TestClaimOverAnEraThatBeginsMeanwhile(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	first, second := claim(t, "a", 0, testTTL), claim(t, "b", 1, testTTL)
	l.turn(0, first, second)
	c.settle()
	if !l.answered(first) || !l.answered(second) || first.Err != nil || second.Err != nil {
		t.Fatalf("errors %v, %v", first.Err, second.Err)
	}
	if !applied(first.Response) || applied(second.Response) {
		t.Errorf("claims: %v, %v", first.Response, second.Response)
	}
	if !c.confirm(l, 1, "a") {
		t.Error("era 1 is over before its ttl")
	}
}
