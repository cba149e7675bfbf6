package replica_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

func TestReadIndexOnAnyPeer(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	p := propose(t, "c1")
	l.turn(0, p)
	c.settle()
	for _, id := range c.order {
		read := replica.NewRead()
		c.peers[id].turn(0, read)
		c.settle()
		if !c.peers[id].answered(read) || read.Err != nil {
			t.Fatalf("peer %d: answered %v, error %v", id, c.peers[id].answered(read), read.Err)
		}
		if read.Token.Index < p.Results[0].Token.Index || c.peers[id].view.Applied < read.Token.Index {
			t.Fatalf("peer %d: read at %v, written at %v, applied %d", id, read.Token, p.Results[0].Token, c.peers[id].view.Applied)
		}
	}
}

// A leader without a quorum answers no read, whatever it believes; the read is
// answered once there is a quorum again, with what was written meanwhile.
func TestReadWithoutQuorumWaits(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.isolate(1)
	read := replica.NewRead()
	l.turn(0, read)
	c.tick(5)
	if l.answered(read) {
		t.Fatal("answered without a quorum")
	}
	next := c.elect()
	for range 10 {
		c.tick(1)
		next = c.elect()
	}
	p := propose(t, "meanwhile")
	next.turn(0, p)
	c.settle()
	if l.answered(read) {
		t.Fatal("a deposed leader answered")
	}
	c.heal()
	c.tick(40)
	if !l.answered(read) || read.Err != nil || read.Token.Index < p.Results[0].Token.Index {
		t.Fatalf("answered %v, error %v, token %v, written at %v", l.answered(read), read.Err, read.Token, p.Results[0].Token)
	}
}

// A read that comes while an attempt is in flight is not served by it.
func TestLaterReadsWaitForTheNextAttempt(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	first, second := replica.NewRead(), replica.NewRead()
	l.turn(0, first)
	early := map[uint64][]*raftpb.Message{2: c.peers[2].inbox, 3: c.peers[3].inbox}
	c.peers[2].inbox, c.peers[3].inbox = nil, nil
	l.turn(0, second)
	if len(c.peers[2].inbox)+len(c.peers[3].inbox) > 0 {
		t.Fatal("two attempts in flight")
	}
	c.peers[2].inbox, c.peers[3].inbox = early[2], early[3]
	c.peers[2].turn(0)
	l.turn(0)
	if !l.answered(first) || l.answered(second) {
		t.Fatalf("after the first attempt: first %v, second %v", l.answered(first), l.answered(second))
	}
	c.settle()
	if !l.answered(second) {
		t.Fatal("the second attempt was not made")
	}
}

// Lost messages: a follower tries again with another id, and an answer to the
// first attempt that comes late counts for nobody.
func TestFollowerRetriesReads(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	f := c.peers[2]
	read := replica.NewRead()
	f.turn(0, read)
	old := c.peers[1].inbox
	c.peers[1].inbox = nil
	if len(old) != 1 || old[0].GetType() != raftpb.MsgReadIndex {
		t.Fatalf("follower sent %v", old)
	}
	for range 4 {
		c.tick(1)
	}
	if f.answered(read) {
		t.Fatal("answered without asking")
	}
	stale := &raftpb.Message{
		Type: raftpb.MsgReadIndexResp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(f.view.Term),
		Index: new(uint64(1)), Entries: old[0].GetEntries(),
	}
	c.tick(2)
	f.inbox = append(f.inbox, stale)
	c.tick(4)
	if !f.answered(read) || read.Err != nil || read.Token.Index < f.view.Commit {
		t.Fatalf("answered %v, error %v, at %v", f.answered(read), read.Err, read.Token)
	}
}

// An answer to an attempt of an earlier run of the process is not ours.
func TestReadIdsAreUniqueAcrossRestarts(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	f := c.peers[2]
	f.turn(0, replica.NewRead())
	before := c.peers[1].inbox[0].GetEntries()[0].GetData()
	c.peers[1].inbox = nil
	f.crash()
	f.open()
	c.tick(3)
	f.turn(0, replica.NewRead())
	for _, m := range c.peers[1].inbox {
		if m.GetType() == raftpb.MsgReadIndex && string(m.GetEntries()[0].GetData()) == string(before) {
			t.Fatal("the same id after a restart")
		}
	}
}

// A single peer that restarts knows an old commit index: it must not answer
// before it has committed in its new term.
func TestSinglePeerReadsItsWritesAfterRestart(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	var last *replica.Proposal
	for range 20 {
		last = propose(t, "c1")
		l.turn(0, last)
	}
	l.crash()
	l.open()
	read := replica.NewRead()
	l.turn(0, read)
	for range 50 {
		if l.answered(read) {
			break
		}
		c.tick(1)
	}
	if !l.answered(read) || read.Token.Index < last.Results[0].Token.Index {
		t.Fatalf("answered %v at %v, written at %v", l.answered(read), read.Token, last.Results[0].Token)
	}
}

// Nobody waits any more: the queue is empty again.
func TestAbandonedReadsAreDropped(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.MaxQueuedReads = 8 })
	l := c.lead(1)
	c.isolate(1)
	for range 8 {
		read := replica.NewRead()
		l.turn(0, read)
		read.Abandon()
	}
	c.tick(12)
	read := replica.NewRead()
	l.turn(0, read)
	if l.answered(read) {
		t.Fatalf("refused: %v", read.Err)
	}
}

// The others answer reads through the leader while one peer is away.
func TestConfirmOnFollowerIsRefused(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.lead(1)
	confirm := replica.NewConfirm(&rootv1.ConfirmTenureRequest{Era: 1})
	c.peers[3].turn(0, confirm)
	if d := wantReason(t, confirm.Err, rootv1.Reason_REASON_NOT_LEADER); d.LeaderId != 1 {
		t.Fatalf("leader %d", d.LeaderId)
	}
}
