package replica_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func force(t testing.TB, e *rootv1.Event) *replica.Reshape {
	t.Helper()
	r, err := replica.NewReshape(e, true)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// changes says which steps ride in a message.
func changes(m *raftpb.Message) (kinds []string) {
	for _, e := range m.GetEntries() {
		change, data, err := storage.Payload(e)
		if err != nil || change == nil {
			continue
		}
		var entry rootv1.Entry
		if err := proto.Unmarshal(data, &entry); err != nil {
			continue
		}
		kinds = append(kinds, fmt.Sprintf("%T", entry.GetCommands()[0].GetEvents()[0].GetKind()))
	}
	return kinds
}

// carries says whether a message brings the step kind.
func carries(m *raftpb.Message, kind any) bool {
	for _, k := range changes(m) {
		if k == fmt.Sprintf("%T", kind) {
			return true
		}
	}
	return false
}

// joint forces 4 into the place of 3, which lives, and keeps the end of the joint
// change from everybody.
func joint(t testing.TB, c *cluster) {
	t.Helper()
	c.lead(1)
	c.join(4)
	c.tick(12)
	c.ask(force(t, addPeer(4)))
	c.tick(10)
	c.drop = func(m *raftpb.Message) bool { return carries(m, &rootv1.Event_RootPeersSettled{}) }
	r := force(t, promotePeer(4))
	if c.ask(r); r.Err != nil {
		t.Fatal(r.Err)
	}
	c.tick(3)
	for _, id := range c.order {
		wantMembers(t, c.peers[id], "[1 2 4] [1 2 3] []")
	}
}

// A peer that lives is never taken for a lost one, whatever the moment, and a
// leader that has just been elected does not know yet.
func TestALivingPeerIsNotReplaced(t *testing.T) {
	for _, leader := range []uint64{1, 2} {
		c := newCluster(t, 3, nil)
		c.lead(3 - leader)
		c.lead(leader)
		l := c.peers[leader]
		for n := range 40 {
			// The tick at which raft forgets who was heard from is among them, and
			// 3 answers later than the other.
			r := reshape(t, addPeer(4))
			c.clock.Advance(testTick)
			l.turn(1)
			c.peers[3-leader].turn(1)
			l.turn(0, r)
			c.peers[3].turn(1)
			c.settle()
			if r.Err == nil {
				t.Fatalf("leader %d, tick %d: root peer 3 lives, and is being replaced: %+v", leader, n, r.Result)
			}
		}
		// Of the voters none is taken for silent either.
		for n := range 40 {
			r := reshape(t, addPeer(uint64(10+n)))
			r.Force = true
			c.clock.Advance(testTick)
			l.turn(1, r)
			c.peers[3-leader].turn(1)
			c.peers[3].turn(1)
			if c.settle(); r.Err != nil {
				t.Fatalf("tick %d: %v", n, r.Err)
			}
			l.turn(0, reshape(t, dropPeer(uint64(10+n))))
			c.settle()
		}
	}
}

// Who becomes leader asks again who is alive: it has heard of nobody yet.
func TestANewLeaderDoesNotKnowWhoIsAlive(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.tick(30)
	c.drop = func(m *raftpb.Message) bool { return m.GetFrom() == 3 } // For a moment.
	l := c.peers[1]
	l.turn(0, replica.NewTransfer(2))
	c.settle()
	r := reshape(t, addPeer(4))
	c.peers[2].turn(0, r)
	c.settle()
	if r.Err == nil {
		t.Fatalf("replaced by a leader of a moment: %+v", r.Result)
	}
}

// A step for a peer that is not there is refused at once: queued, it would meet
// the peer later, and was judged without it.
func TestPromotionOfNobody(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.lose(3)
	add, promote := reshape(t, addPeer(4)), reshape(t, promotePeer(4))
	l.turn(0, add, promote)
	c.tick(3)
	if add.Err != nil {
		t.Fatal(add.Err)
	}
	wantReason(t, promote.Err, rootv1.Reason_REASON_NOT_FOUND)
	wantMembers(t, l, "[1 2 3] [] [4]")
}

// What a learner has it got from a voter: their agreement proves nothing, and no
// right peer stops because of it.
func TestALearnerDoesNotBearOut(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.HashEvery = 4 })
	c.lead(1)
	c.lose(3)
	c.join(4)
	c.ask(reshape(t, addPeer(4)))
	c.dropHashes = true
	for i := range 8 {
		c.ask(propose(t, fmt.Sprint("a", i)))
	}
	p := c.peers[2]
	at := p.view.Applied / 4 * 4
	for _, from := range []uint64{1, 4} {
		p.events = append(p.events, replica.Event{Kind: replica.PeerStateHash, Peer: from, Index: at, Hash: 0xbad})
	}
	p.turn(0)
	var diverged *replica.DivergenceError
	if errors.As(p.err, &diverged) {
		t.Fatalf("a voter and its learner against one voter: %v", p.err)
	}
	c.tick(1)
	if p.view.HashMismatches == 0 {
		t.Error("the difference was not noticed")
	}
	// The learner itself stops when the voters agree that it is wrong.
	l := c.peers[4]
	for _, from := range []uint64{1, 2} {
		l.events = append(l.events, replica.Event{Kind: replica.PeerStateHash, Peer: from, Index: at, Hash: 0xbad})
	}
	if l.turn(0); !errors.As(l.err, &diverged) {
		t.Errorf("two voters against a learner: %v", l.err)
	}
}

// While a change is joint a state is wrong only by a majority of both sets.
func TestBothSetsBearOut(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.HashEvery = 4 })
	joint(t, c)
	c.dropHashes = true
	p := c.peers[2]
	tell := func(at uint64, from ...uint64) error {
		for _, id := range from {
			p.events = append(p.events, replica.Event{Kind: replica.PeerStateHash, Peer: id, Index: at, Hash: 0xbad})
		}
		p.turn(0)
		return p.err
	}
	at := p.view.Applied / 4 * 4
	if err := tell(at, 1, 4); err != nil {
		t.Fatalf("one of the old three: %v", err)
	}
	var diverged *replica.DivergenceError
	if err := tell(at, 3); !errors.As(err, &diverged) {
		t.Fatalf("two of the old, two of the new: %v", err)
	}
}

// A leader that is on its way out hands over, and the change comes to its end.
func TestTheLeaderThatLeavesHandsOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	joint(t, c)
	c.peers[1].crash()
	hold := c.drop
	c.drop = func(m *raftpb.Message) bool {
		return hold(m) || m.GetType() == raftpb.MsgPreVote && m.GetFrom() != 3
	}
	three := c.peers[3]
	three.trace = nil
	leads := func() bool {
		return three.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER || slices.ContainsFunc(three.trace, func(what string) bool { return strings.HasPrefix(what, "send MsgTimeoutNow") })
	}
	for n := 0; !leads(); n++ {
		if c.tick(1); n > 100 {
			t.Fatal("peer 3 does not get to lead")
		}
	}
	c.drop = nil
	c.tick(8)
	if l := c.leader(); l == nil || l.id == 3 {
		t.Fatalf("the one that leaves leads on: %+v", l)
	}
	c.peers[1].open()
	c.tick(12)
	c.ask(propose(t, "settled"))
	c.tick(3)
	for _, id := range []uint64{1, 2, 4} {
		wantMembers(t, c.peers[id], "[1 2 4] [] []")
	}
	c.peers[3].crash()
	c.tick(30)
	c.ask(propose(t, "without-3"))
}

// The end of a joint change waits behind no queue of callers: a leader that finds the
// change in its state ends it, however much it was asked before it may.
func TestAFullQueueDoesNotHoldUpTheEndOfAJointChange(t *testing.T) {
	for name, limit := range map[string]func(*replica.Config){
		"count": func(cfg *replica.Config) { cfg.MaxQueuedProposals = 1 },
		"bytes": func(cfg *replica.Config) { cfg.MaxQueuedBytes = 100 },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, limit)
			joint(t, c)
			c.peers[1].crash()
			// Whoever leads next hears only that its first entry is there.
			var first uint64
			c.drop = func(m *raftpb.Message) bool {
				if m.GetType() == raftpb.MsgAppResp && m.GetIndex() > first && !m.GetReject() {
					if first == 0 {
						return true
					}
					m.Index = new(first)
				}
				return m.GetType() == raftpb.MsgPreVote && m.GetFrom() != 2
			}
			two := c.peers[2]
			for n := 0; two.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER; n++ {
				if c.tick(1); n > 100 {
					t.Fatal("peer 2 does not get to lead")
				}
			}
			first = two.view.LastIndex
			for refused := false; !refused; {
				p := propose(t, "a")
				two.turn(0, p)
				refused = two.answered(p)
			}
			for n := 0; two.view.Applied < first; n++ {
				if c.tick(1); n > 20 {
					t.Fatalf("%d is applied of %d", two.view.Applied, first)
				}
			}
			c.drop = nil
			c.tick(12)
			for _, id := range []uint64{2, 3, 4} {
				wantMembers(t, c.peers[id], "[1 2 4] [] []")
			}
		})
	}
}

// A promotion that is said to be done already is known by a majority: the leader
// that said so may be lost at once, with its disk.
func TestDoneIsKnownByAMajority(t *testing.T) {
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprint("asked ", asked), func(t *testing.T) {
			c := newCluster(t, 3, nil)
			c.lead(1)
			c.lose(3)
			c.join(4)
			c.ask(reshape(t, addPeer(4)))
			c.tick(10)
			// That the end of the joint change is committed the leader tells nobody.
			var end uint64
			c.drop = func(m *raftpb.Message) bool {
				if m.GetType() == raftpb.MsgApp && carries(m, &rootv1.Event_RootPeersSettled{}) && end == 0 {
					end = m.GetIndex() + uint64(len(m.GetEntries()))
				}
				return m.GetFrom() == 1 && end != 0 && m.GetCommit() >= end
			}
			c.ask(reshape(t, promotePeer(4)))
			c.tick(2)
			wantMembers(t, c.peers[1], "[1 2 4] [] []")
			wantMembers(t, c.peers[2], "[1 2 4] [1 2 3] []")
			r := reshape(t, promotePeer(4))
			c.peers[1].turn(0, r)
			c.settle()
			if c.peers[1].answered(r) {
				t.Fatalf("nobody else knows: %+v, %v", r.Result, r.Err)
			}
			if asked {
				c.drop = nil
				if c.tick(3); r.Err != nil || r.Result.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
					t.Fatalf("%+v, %v", r.Result, r.Err)
				}
			}
			c.peers[1].crash()
			c.tick(60)
			serves := c.leader() != nil
			if serves != asked {
				t.Errorf("without the leader the others serve: %v", serves)
			}
		})
	}
}

// A learner neither campaigns, even when the port of its leader is closed, nor is
// it given leadership.
func TestALearnerDoesNotLead(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.lose(3)
	c.join(4)
	c.ask(reshape(t, addPeer(4)))
	c.tick(5)
	r := replica.NewTransfer(4)
	c.ask(r)
	wantReason(t, r.Err, rootv1.Reason_REASON_INVALID_REQUEST)
	l := c.peers[4]
	l.trace = nil
	l.events = append(l.events, replica.Event{Kind: replica.PeerRefused, Peer: 1})
	l.turn(0)
	c.isolate(4)
	for range 60 {
		c.clock.Advance(testTick)
		l.turn(1)
	}
	for _, what := range l.trace {
		if what == "send MsgPreVote to 1" || what == "send MsgVote to 1" || what == "send MsgPreVote to 2" || what == "send MsgVote to 2" {
			t.Fatalf("a learner campaigns: %v", l.trace)
		}
	}
}

// A peer that was replaced is not listened to, whatever it says.
func TestReplacedPeersAreNotListenedTo(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.lose(3)
	c.join(4)
	c.steps(t, 4)
	p := c.peers[2]
	// So many others since that its address is forgotten: its number is not.
	for id := uint64(5); len(p.view.State.Cluster().GetReplacedNodeIds()) < 66; id++ {
		c.lose(id - 1)
		c.join(id)
		e := addPeer(id)
		e.GetRootPeerAdded().Replaces = id - 1
		for _, step := range []*rootv1.Event{e, promotePeer(id)} {
			r := reshape(t, step)
			for c.ask(r); r.Err != nil; c.ask(r) {
				wantReason(t, r.Err, rootv1.Reason_REASON_UNHEALTHY_MEMBER) // It has not caught up.
				c.tick(5)
				r = reshape(t, step)
			}
			c.tick(3)
		}
	}
	before := p.view.Term
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgHeartbeat.Enum(), Term: new(before + 5)},
		{Type: raftpb.MsgVote.Enum(), Term: new(before + 5), Index: new(p.view.LastIndex + 9), LogTerm: new(before + 4), Context: []byte("CampaignTransfer")},
	} {
		m.From, m.To = new(uint64(3)), new(uint64(2))
		p.inbox = append(p.inbox, m)
		p.turn(0)
	}
	if c.tick(3); p.view.Term != before || p.view.Leader != 1 {
		t.Errorf("term %d with leader %d, it was %d with 1", p.view.Term, p.view.Leader, before)
	}
}

// With another peer away too, a replacement waits for it, at either step.
func TestReplacementWaitsForWhoIsAway(t *testing.T) {
	c := newCluster(t, 5, nil)
	c.lead(1)
	c.lose(3)
	c.join(6)
	c.isolate(2)
	c.tick(30)
	refused := func(e *rootv1.Event) {
		t.Helper()
		r := reshape(t, e)
		c.ask(r)
		if d := wantReason(t, r.Err, rootv1.Reason_REASON_UNHEALTHY_MEMBER); !strings.Contains(d.GetMessage(), "root peer 2") {
			t.Errorf("refused because %q", d.GetMessage())
		}
	}
	refused(addPeer(6))
	c.heal()
	c.tick(15)
	c.ask(reshape(t, addPeer(6)))
	c.tick(5)
	c.isolate(2)
	c.tick(30)
	refused(promotePeer(6))
	c.heal()
	c.tick(15)
	c.steps(t, 6)
	wantMembers(t, c.peers[2], "[1 2 4 5 6] [] []")
}

// Who receives a checkpoint goes by the root peers in it: it may be newer, or
// older, than what its sender announced.
func TestACheckpointTellsWhoVotes(t *testing.T) {
	for name, announced := range map[string]*raftpb.ConfState{
		"older": {Voters: []uint64{1, 2, 3}}, "newer": {Voters: []uint64{1, 2, 4, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, func(cfg *replica.Config) { cfg.CheckpointEntries, cfg.RetainEntries = 10, 5 })
			c.lead(1)
			for i := range 40 {
				c.ask(propose(t, fmt.Sprint("a", i)))
			}
			c.lose(3)
			c.join(4)
			c.drop = func(m *raftpb.Message) bool {
				if m.GetType() == raftpb.MsgSnap {
					m.Snapshot.Metadata.ConfState = announced
				}
				return false
			}
			c.steps(t, 4)
			c.tick(5)
			if c.snapshots == 0 {
				t.Error("no checkpoint was sent")
			}
			c.peers[1].crash() // Who was told of other voters would wait for them.
			c.tick(60)
			c.ask(propose(t, "without-1"))
			wantMembers(t, c.peers[4], "[1 2 4] [] []")
		})
	}
}

// One peer alone cannot be replaced: nobody else has the log.
func TestReplaceTheOnlyPeer(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.lead(1)
	c.tick(12)
	e := addPeer(4)
	e.GetRootPeerAdded().Replaces = 1
	r := force(t, e)
	c.ask(r)
	d := wantReason(t, r.Err, rootv1.Reason_REASON_INVALID_REQUEST)
	if d.GetMessage() == "" {
		t.Error("no word of what to do")
	}
}

// Without the joint change two disjoint pairs would both decide: the new one has
// 1 and 4, the old one 2 and 3, and what was acknowledged by one is lost by the
// other.
func TestJointChangeIsNeeded(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.join(4)
	c.tick(12)
	c.ask(force(t, addPeer(4)))
	c.tick(10)
	// The promotion is committed by 1 and 3, and only 1 gets to know.
	c.drop = func(m *raftpb.Message) bool {
		return m.GetTo() == 2 && m.GetFrom() == 1 || m.GetFrom() == 1 && m.GetTo() == 3 && len(m.GetEntries()) == 0
	}
	r := force(t, promotePeer(4))
	c.peers[1].turn(0, r)
	c.settle()
	if !c.peers[1].answered(r) || r.Err != nil {
		t.Fatalf("the promotion: %+v, %v", r.Result, r.Err)
	}
	c.drop = nil
	for _, a := range []uint64{1, 4} {
		for _, b := range []uint64{2, 3} {
			c.cut[[2]uint64{a, b}], c.cut[[2]uint64{b, a}] = true, true
		}
	}
	w := propose(t, "by-1-and-4")
	c.peers[1].turn(0, w)
	c.settle()
	acknowledged := c.peers[1].answered(w) && w.Err == nil
	c.tick(60)
	for _, id := range []uint64{2, 3} {
		if v := c.peers[id].view; acknowledged && v.Applied >= w.Results[0].Token.Index {
			t.Fatalf("1 and 4 acknowledged a write at %v, peer %d has applied something else up to %v", w.Results[0].Token, id, v.State.Token())
		}
	}
	c.heal()
	c.tick(60)
	c.ask(propose(t, "all"))
	c.tick(5)
	for _, id := range []uint64{1, 2, 4} {
		wantMembers(t, c.peers[id], "[1 2 4] [] []")
	}
}
