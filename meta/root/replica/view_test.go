package replica_test

import (
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A follower that hears of its leader again, but lacks entries, knows that it
// does: who reads its tail must not take what it has for the present.
func TestFollowerThatLagsKnowsIt(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	lagging := c.peers[3]
	had := lagging.view.Commit
	c.isolate(3)
	for _, id := range []string{"c1", "c2", "c3"} {
		p := propose(t, id)
		l.turn(0, p)
		c.settle()
		if p.Err != nil {
			t.Fatal(p.Err)
		}
	}
	if lagging.view.Known != had {
		t.Fatalf("knows %d, has %d", lagging.view.Known, had)
	}
	c.heal()
	// The first thing it hears is a heartbeat, which tells raft nothing new.
	for lagging.view.Known == had {
		for range l.cfg.HeartbeatTicks {
			l.turn(1)
		}
		lagging.turn(0)
		if lagging.view.Leader == l.view.Leader && lagging.view.Known < l.view.Commit {
			t.Fatalf("follows a leader that is at %d, knows %d, has %d", l.view.Commit, lagging.view.Known, lagging.view.Commit)
		}
	}
	c.tick(20)
	for _, id := range c.order {
		if v := c.peers[id].view; v.Known != l.view.Commit || v.Commit != l.view.Commit {
			t.Errorf("peer %d in the end: commit %d, known %d, the leader has %d", id, v.Commit, v.Known, l.view.Commit)
		}
	}
	if l.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
		t.Error("the leader changed")
	}
}

// A new leader does not know which entries of its predecessor are committed
// until one of its own is: neither it nor its followers say to be level.
func TestNewLeaderIsNotInformedBeforeItHasCommitted(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	c.peers[1].crash()
	left := []*peer{c.peers[2], c.peers[3]}
	led := false
	for range 200 {
		c.clock.Advance(testTick)
		for _, p := range left {
			p.turn(1)
		}
		for len(left[0].inbox)+len(left[1].inbox) > 0 {
			for i, p := range left {
				p.turn(0)
				leads := p.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER
				if p.view.Leader != 0 && p.view.State.Token().Term != p.view.Term && p.view.LeaderlessSince == 0 {
					t.Fatalf("peer %d says to be level in term %d, of which nothing is committed", p.id, p.view.Term)
				}
				led = led || leads && p.view.State.Token().Term != p.view.Term
				if other := left[1-i]; leads && led && other.view.Applied == p.view.Applied && other.view.Leader == p.id && p.view.State.Token().Term == p.view.Term {
					if p.view.LeaderlessSince != 0 || other.view.LeaderlessSince != 0 {
						t.Fatalf("in the end: leaderless since %d and %d", p.view.LeaderlessSince, other.view.LeaderlessSince)
					}
					return
				}
			}
		}
	}
	t.Fatal("nobody leads")
}
