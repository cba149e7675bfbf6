package replica_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// addPeer, promotePeer and dropPeer are the steps of putting 4 in the place of 3.
func addPeer(node uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
		Peer: &rootv1.RootPeer{NodeId: node, Incarnation: 100 + node, TransportAddress: fmt.Sprintf("127.0.0.1:%d", node)}, Replaces: 3,
	}}}
}

func promotePeer(node uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RootPeerPromoted{RootPeerPromoted: &rootv1.RootPeerPromoted{NodeId: node}}}
}

func dropPeer(node uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: node}}}
}

func reshape(t testing.TB, e *rootv1.Event) *replica.Reshape {
	t.Helper()
	r, err := replica.NewReshape(e, false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// join adds an empty peer that waits to be sent the log.
func (c *cluster) join(id uint64) *peer {
	p := &peer{t: c.t, c: c, id: id, log: newMemLog(), hashes: make(map[uint64]uint64)}
	p.cfg = c.peers[1].cfg
	p.cfg.NodeID, p.cfg.Voters, p.cfg.Join, p.cfg.Bootstrap, p.cfg.Transport = id, nil, true, nil, p
	p.cfg.Overdue = nil
	c.peers[id] = p
	c.order = append(slices.Clone(c.order), id)
	p.open()
	return p
}

// ask gives the leader a request and ticks until it is answered.
func (c *cluster) ask(r replica.Request) {
	c.t.Helper()
	l := c.elect()
	l.turn(0, r)
	for range 100 {
		if l.answered(r) {
			return
		}
		c.tick(1)
	}
	c.t.Fatalf("no answer to %T", r)
}

// lose takes peer 3 away for good.
func (c *cluster) lose(id uint64) {
	c.peers[id].crash()
	c.isolate(id)
	c.order = slices.DeleteFunc(slices.Clone(c.order), func(o uint64) bool { return o == id })
	c.tick(30) // More than an election timeout: it is not heard from.
}

func wantMembers(t testing.TB, p *peer, want string) {
	t.Helper()
	m := p.view.Members
	if got := fmt.Sprintf("%v %v %v", m.Voters, m.Outgoing, m.Learners); got != want {
		t.Errorf("peer %d: members %s, want %s", p.id, got, want)
	}
}

func (c *cluster) steps(t testing.TB, node uint64) {
	t.Helper()
	for _, e := range []*rootv1.Event{addPeer(node), promotePeer(node)} {
		for range 2 { // The command is rerun: the second time nothing is left to do.
			r := reshape(t, e)
			for tries := 0; ; tries++ {
				if c.ask(r); r.Err == nil {
					break
				}
				wantReason(t, r.Err, rootv1.Reason_REASON_UNHEALTHY_MEMBER) // It has not caught up.
				if tries > 20 {
					t.Fatalf("%v: %v; peer %d: %v %+v", e, r.Err, node, c.peers[node].err, c.peers[node].view)
				}
				c.tick(5)
				r = reshape(t, e)
			}
			if r.Result.Reject != nil {
				t.Fatalf("%v", r.Result.Reject)
			}
			c.tick(3)
		}
	}
}

// A lost peer is replaced by an empty one, which gets a checkpoint and the log
// behind it, while writes go on; a restart of everybody finds the same peers.
func TestReplaceALostPeer(t *testing.T) {
	for name, every := range map[string]uint64{"by the log": 0, "by a checkpoint": 10} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, func(cfg *replica.Config) { cfg.CheckpointEntries, cfg.RetainEntries = every, every/2 })
			c.lead(1)
			for i := range 50 {
				c.ask(propose(t, fmt.Sprint("a", i)))
			}
			c.lose(3)
			c.join(4)
			c.steps(t, 4)
			for i := range 30 {
				c.ask(propose(t, fmt.Sprint("b", i)))
			}
			c.tick(5)
			for _, id := range []uint64{1, 2, 4} {
				wantMembers(t, c.peers[id], "[1 2 4] [] []")
			}
			c.same()
			if (c.snapshots > 0) != (every > 0) {
				t.Errorf("%d checkpoints sent", c.snapshots)
			}
			// Two of the new three decide: the new one counts.
			c.peers[2].crash()
			c.lead(4)
			c.ask(propose(t, "without-2"))
			for _, id := range c.order {
				c.peers[id].crash()
				c.peers[id].open()
			}
			c.elect()
			c.ask(propose(t, "after-a-restart"))
			c.tick(5)
			for _, id := range []uint64{1, 2, 4} {
				wantMembers(t, c.peers[id], "[1 2 4] [] []")
			}
			c.same()
		})
	}
}

// What could cost the quorum is refused, and changes nothing.
func TestReplaceRefuses(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	want := func(what string, e *rootv1.Event, reason rootv1.Reason) {
		t.Helper()
		r := reshape(t, e)
		c.ask(r)
		if r.Err == nil {
			t.Errorf("%s: not refused: %v", what, r.Result)
			return
		}
		wantReason(t, r.Err, reason)
		wantMembers(t, c.peers[1], "[1 2 3] [] []")
	}
	want("the lost one is alive", addPeer(4), rootv1.Reason_REASON_UNHEALTHY_MEMBER)
	leads := addPeer(4)
	leads.GetRootPeerAdded().Replaces = 1
	want("the leader itself", leads, rootv1.Reason_REASON_INVALID_REQUEST)
	c.peers[3].crash()
	c.peers[2].crash()
	c.tick(8) // Both are silent; the leader has not stepped down yet.
	if l := c.leader(); l != nil && l.id == 1 {
		r := reshape(t, addPeer(4))
		l.turn(0, r)
		c.tick(40)
		if !l.answered(r) || r.Err == nil {
			t.Errorf("with one peer of three: %v %v", r.Result, r.Err)
		}
	}
	if _, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{addPeer(4)}}}); err == nil {
		t.Error("a caller may propose a change of the root peers")
	}
	if _, err := replica.NewReshape(command("x").Events[0], false); err == nil {
		t.Error("any event may change the root peers")
	}
}

// A learner that does not come is given up, and another one takes its place.
func TestDropALearner(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.lose(3)
	c.ask(reshape(t, addPeer(4)))
	c.tick(3)
	wantMembers(t, c.peers[1], "[1 2 3] [] [4]")
	r := reshape(t, promotePeer(4))
	c.ask(r)
	wantReason(t, r.Err, rootv1.Reason_REASON_UNHEALTHY_MEMBER)
	c.ask(reshape(t, dropPeer(4)))
	c.tick(3)
	wantMembers(t, c.peers[2], "[1 2 3] [] []")
	c.join(5)
	c.steps(t, 5)
	wantMembers(t, c.peers[2], "[1 2 5] [] []")
}
