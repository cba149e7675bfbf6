package replica_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a peer tells of itself is what it promised: a follower's acknowledgements, a
// leader's own log, everybody's term and vote. Peers that campaigned in the same term
// voted for themselves: what counts is the vote that is on the disk.
func TestPeersTellWhatTheyPromised(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	for range 5 {
		l.turn(0, propose(t, "x"))
		c.settle()
	}
	c.tick(4)
	for id, p := range c.peers {
		got := p.standing.Promise
		kept, _, err := p.log.InitialState()
		if err != nil {
			t.Fatal(err)
		}
		if got.Term != l.view.Term || got.Index != l.view.LastIndex || got.IndexTerm != l.view.Term || got.Vote != kept.GetVote() || got.Vote == 0 {
			t.Errorf("peer %d tells %+v, the log ends at %d of term %d, its vote on the disk is for %d", id, got, l.view.LastIndex, l.view.Term, kept.GetVote())
		}
		if p.standing.Index != l.view.Applied || p.standing.Hash != l.view.State.Hash() {
			t.Errorf("peer %d rests at %d and tells the hash at %d", id, l.view.Applied, p.standing.Index)
		}
	}
}

// Two peers of three that differ, without the third, stop voting and say why, and go on
// when a majority has settled it.
func TestPeersThatDifferStopVoting(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	l.turn(0, propose(t, "x"))
	c.settle()
	c.tick(4)
	c.isolate(3)
	f, at := c.peers[2], l.view.Applied
	c.dropHashes = true
	differ := func(to *peer, from uint64) {
		to.events = append(to.events, replica.Event{Kind: replica.PeerStateHash, Peer: from, Index: at + 1, Hash: 7})
	}
	l.turn(0, propose(t, "y"))
	c.settle()
	differ(l, 2)
	differ(f, 1)
	c.tick(25)
	for _, p := range []*peer{l, f} {
		if p.err != nil || !p.view.Silent || p.view.HashMismatches == 0 || !strings.Contains(p.view.Differs, "differs from that of root peer") {
			t.Fatalf("peer %d goes on: %v, %+v", p.id, p.err, p.view)
		}
		if p.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
			t.Errorf("peer %d leads", p.id)
		}
		read := replica.NewRead()
		p.turn(0, read)
		if err := replica.Request(read).Refusal(); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || !strings.Contains(err.Error(), "differs") {
			t.Errorf("peer %d answers a read: %v", p.id, err)
		}
	}
	terms := l.view.Term + f.view.Term
	c.tick(40)
	if l.view.Term+f.view.Term != terms {
		t.Error("a peer that does not vote campaigns")
	}
	// The third bears the first one out.
	c.heal()
	l.take(replica.Input{Events: []replica.Event{{Kind: replica.PeerStateHash, Peer: 3, Index: at + 1, Hash: hashAt(t, l, at+1)}}})
	c.tick(2)
	if l.view.Silent || l.view.Differs == "" {
		t.Errorf("silent %v, %q", l.view.Silent, l.view.Differs)
	}
}

// hashAt is the hash that a peer had at a position at which it rested.
func hashAt(t *testing.T, p *peer, index uint64) uint64 {
	t.Helper()
	hash, ok := p.hashes[index]
	if !ok {
		t.Fatalf("peer %d told no hash at %d: %v", p.id, index, p.hashes)
	}
	return hash
}

// One peer that differs from two is no reason for these to stop.
func TestMajorityGoesOn(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	l.turn(0, propose(t, "x"))
	c.settle()
	c.tick(4)
	l.take(replica.Input{Events: []replica.Event{{Kind: replica.PeerStateHash, Peer: 3, Index: l.view.Applied, Hash: 7}}})
	c.dropHashes = true
	c.tick(40)
	if l.view.Silent || c.leader() != l || l.view.Differs == "" || l.view.HashMismatches != 1 {
		t.Errorf("silent %v, %q, %d mismatches", l.view.Silent, l.view.Differs, l.view.HashMismatches)
	}
}
