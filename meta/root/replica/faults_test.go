package replica_test

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// A leader whose write took longer than an election timeout steps down before
// it answers anything by what it knew, and does not keep others from electing.
func TestOverdueAppendStepsDown(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	request, read := confirm(1, "a"), replica.NewRead()
	l.turn(0, request, read)
	// The answers to the read's heartbeats wait in the mailbox of the turn that
	// stalls.
	c.peers[2].turn(0)
	c.peers[3].turn(0)
	l.overdue = true
	l.trace = nil
	p := propose(t, "c1")
	l.turn(0, p)
	l.overdue = false
	if l.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
		t.Fatal("still leads")
	}
	wantReason(t, p.Err, rootv1.Reason_REASON_OUTCOME_UNKNOWN)
	at := slices.Index(l.trace, "append 1")
	for _, line := range l.trace[at:] {
		if line == "send MsgHeartbeat to 2" || line == "send MsgHeartbeat to 3" {
			t.Fatalf("heartbeats after the stall: %q", l.trace)
		}
	}
	c.tick(60)
	c.elect()
	c.same()
}

// A leader that stood still between two Turns answers nothing by what it was told
// before, and vouches for nothing until a quorum has followed it again.
func TestFrozenLeaderAsksAgain(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	c.claim(l, "a", 0, testTTL)
	request, read := confirm(1, "a"), replica.NewRead()
	l.turn(0, request, read)
	c.peers[2].turn(0)
	c.peers[3].turn(0)
	before := c.clock.Now()
	c.clock.Advance(testElection + 1)
	l.turn(0)
	if l.view.LeaderlessSince != before || slices.Contains(l.done, replica.Request(request)) || slices.Contains(l.done, replica.Request(read)) {
		t.Fatalf("leaderless since %d, stood still since %d; answered %d requests", l.view.LeaderlessSince, before, len(l.done))
	}
	s := reshape(t, addPeer(4))
	s.Force = true
	l.turn(0, s)
	wantReason(t, s.Err, rootv1.Reason_REASON_ROOT_UNAVAILABLE) // It does not know who is alive.
	c.tick(1)
	if l.view.LeaderlessSince != 0 || l.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
		t.Errorf("leaderless since %d as %v", l.view.LeaderlessSince, l.view.Role)
	}
	if request.Err != nil || !request.Response.GetActive() || read.Err != nil || read.Token.Index == 0 {
		t.Errorf("asked again: %v, %v; %v, %v", request.Response, request.Err, read.Token, read.Err)
	}
}

// A follower that stood still does not know any more what is committed, whatever
// it stood still at, until a leader tells it: not by what waited meanwhile.
func TestStalledFollowerIsUninformed(t *testing.T) {
	for _, stalls := range []struct {
		name string
		turn func(f *peer, mail []*raftpb.Message)
	}{
		{"in an append", func(f *peer, mail []*raftpb.Message) {
			f.overdue = true
			f.take(replica.Input{Messages: mail})
			f.overdue = false
		}},
		{"between two Turns", func(f *peer, mail []*raftpb.Message) {
			f.c.clock.Advance(testElection + 1)
			f.take(replica.Input{Messages: mail, MessagesSince: f.c.clock.Now()}) // Out of its sockets.
		}},
		{"behind its mail", func(f *peer, mail []*raftpb.Message) {
			f.take(replica.Input{Messages: mail, MessagesSince: f.c.clock.Now() - clock.Instant(time.Minute)})
		}},
	} {
		t.Run(stalls.name, func(t *testing.T) {
			c := newCluster(t, 3, nil)
			l, f := c.lead(1), c.peers[2]
			l.turn(0, propose(t, "c1"))
			l.turn(2) // And a heartbeat.
			if f.view.LeaderlessSince != 0 || len(f.inbox) < 2 {
				t.Fatalf("before: leaderless since %d, %d messages", f.view.LeaderlessSince, len(f.inbox))
			}
			mail := f.inbox
			f.inbox = nil
			stalls.turn(f, mail)
			if f.view.LeaderlessSince == 0 || f.view.LeaderlessSince > c.clock.Now() {
				t.Errorf("it vouches: leaderless since %d", f.view.LeaderlessSince)
			}
			f.take(replica.Input{Messages: mail, MessagesSince: c.clock.Now() - clock.Instant(time.Minute)})
			if f.view.LeaderlessSince == 0 {
				t.Error("it is informed by what waited while it stood still")
			}
			c.tick(3)
			if f.view.LeaderlessSince != 0 {
				t.Error("it does not hear the leader")
			}
		})
	}
}

// Two checkpoints announced in one Turn: the one that raft took is still there
// when it is installed.
func TestSecondHoldLeavesTheFirst(t *testing.T) {
	from := newMemLog()
	from.meta = storage.CheckpointMeta{Index: 5, Term: 1}
	l := newMemLog()
	first := l.receive(from)
	if !l.HoldCheckpoint(first) || l.HoldCheckpoint(storage.CheckpointMeta{Index: 6, Term: 1}) {
		t.Fatal("the first is not held, or the second is")
	}
	from.meta.Index = 6
	l.receive(from)
	if !l.HoldCheckpoint(first) {
		t.Error("the first is not there any more")
	}
}

// The only peer of a cluster has nobody to step down for, but answers nothing
// by what it knew.
func TestSinglePeerSurvivesStall(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	l.overdue = true
	p := propose(t, "c1")
	l.turn(0, p)
	l.overdue = false
	if p.Err != nil || l.view.Role != rootv1.RaftRole_RAFT_ROLE_LEADER {
		t.Fatalf("error %v, role %v", p.Err, l.view.Role)
	}
}

func TestFastCampaign(t *testing.T) {
	for gone := uint64(1); gone <= 3; gone++ {
		c := newCluster(t, 3, nil)
		c.lead(gone)
		c.peers[gone].crash()
		for _, id := range c.order {
			c.peers[id].events = append(c.peers[id].events, replica.Event{Kind: replica.PeerRefused, Peer: gone})
		}
		c.settle()
		ticks := 0
		for c.leader() == nil {
			c.tick(1)
			if ticks++; ticks > 5 {
				t.Fatalf("peer %d gone: nobody leads after %d ticks, an election timeout is %d", gone, ticks, c.peers[1].cfg.ElectionTicks)
			}
		}
	}
}

// Peers see the closed port one after the other: whoever asked too early for the
// others to answer is answered when they see it, without any tick.
func TestFastCampaignIsAnsweredLate(t *testing.T) {
	for gone := uint64(1); gone <= 3; gone++ {
		c := newCluster(t, 3, nil)
		c.lead(gone)
		c.peers[gone].crash()
		for _, id := range c.order {
			if id != gone {
				c.peers[id].events = append(c.peers[id].events, replica.Event{Kind: replica.PeerRefused, Peer: gone})
				c.settle()
			}
		}
		if c.leader() == nil {
			t.Errorf("peer %d gone: nobody leads", gone)
		}
	}
}

// A refused connection of somebody who does not lead, or told to somebody who
// does not follow, changes nothing.
func TestRefusedConnectionsOfOthersChangeNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	term := l.view.Term
	l.events = append(l.events, replica.Event{Kind: replica.PeerRefused, Peer: 2}, replica.Event{Kind: replica.PeerRefused, Peer: 1})
	c.peers[2].events = append(c.peers[2].events, replica.Event{Kind: replica.PeerRefused, Peer: 3})
	c.tick(30)
	if c.leader() != l || l.view.Term != term {
		t.Fatalf("leader %d in term %d, was 1 in %d", l.view.Leader, l.view.Term, term)
	}
	// One peer that cannot reach a living leader does not depose it.
	c.peers[3].events = append(c.peers[3].events, replica.Event{Kind: replica.PeerRefused, Peer: 1})
	c.tick(30)
	if c.leader() != l || l.view.Term != term {
		t.Fatalf("leader %d in term %d, was 1 in %d", l.view.Leader, l.view.Term, term)
	}
}

func smallCheckpoints(cfg *replica.Config) {
	cfg.CheckpointEntries, cfg.RetainEntries = 20, 10
	cfg.HashEvery = 16
}

func TestCheckpointCompactionAndCatchUp(t *testing.T) {
	c := newCluster(t, 3, smallCheckpoints)
	l := c.lead(1)
	c.isolate(3)
	write := func(from, n int) {
		for i := range n {
			p := propose(t, fmt.Sprintf("c%d", from+i))
			l.turn(0, p)
			c.settle()
			if p.Err != nil || p.Results == nil {
				t.Fatalf("write %d: %v", i, p.Err)
			}
		}
	}
	write(0, 100)
	if !l.view.HasCheckpoint || l.view.FirstIndex < 50 || l.view.LastIndex-l.view.FirstIndex < 9 {
		t.Fatalf("checkpoint at %d, log [%d, %d]", l.view.Checkpoint.Index, l.view.FirstIndex, l.view.LastIndex)
	}
	c.heal()
	c.tick(10)
	if c.snapshots == 0 {
		t.Fatal("the slow peer was not sent a checkpoint")
	}
	c.same()
	// The log behind an installed checkpoint goes on, also after a crash.
	write(100, 15)
	c.tick(3)
	f := c.peers[3]
	f.crash()
	f.open()
	f.view = nil
	c.tick(10)
	c.same()
	if got := f.view.State.CoordinatorCount(); got != 115 {
		t.Fatalf("%d coordinators, want 115", got)
	}
}

// A checkpoint that arrives while an earlier one waits for its turn replaces it.
// That one is not installed any more, and the peer goes on and catches up.
func TestCheckpointReplacedBeforeItsTurn(t *testing.T) {
	c := newCluster(t, 3, smallCheckpoints)
	l := c.lead(1)
	c.isolate(3)
	write := func(n int) {
		for i := range n {
			l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
			c.peers[2].turn(0)
			l.turn(0)
		}
	}
	write(100)
	c.heal()
	f := c.peers[3]
	for n := 0; c.snapshots == 0; n++ {
		f.turn(0)
		l.turn(1)
		if n > 100 {
			t.Fatal("the slow peer was not sent a checkpoint")
		}
	}
	write(60)
	if f.log.receive(l.log).Index <= f.log.meta.Index || f.log.meta.Index != 0 {
		t.Fatal("there is no newer checkpoint")
	}
	f.turn(0)
	if f.err != nil {
		t.Fatalf("the peer stopped: %v", f.err)
	}
	c.tick(30)
	c.same()
	if f.log.meta.Index == 0 {
		t.Fatal("the slow peer never installed a checkpoint")
	}
}

// A checkpoint that takes long does not hold the log up, and only one is under
// way.
func TestSlowCheckpoint(t *testing.T) {
	c := newCluster(t, 1, smallCheckpoints)
	l := c.elect()
	l.hold = true
	for i := range 100 {
		l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
	}
	if len(l.tasks) != 1 || l.view.FirstIndex != 1 {
		t.Fatalf("%d tasks, log from %d", len(l.tasks), l.view.FirstIndex)
	}
	task := l.tasks[0]
	l.take(replica.Input{Checkpointed: task.Write(l.log, func() error { return nil })})
	if l.view.FirstIndex > task.Meta.Index+1 || l.view.FirstIndex == 1 {
		t.Fatalf("log from %d, checkpoint at %d", l.view.FirstIndex, task.Meta.Index)
	}
	if len(l.tasks) != 2 {
		t.Fatalf("%d tasks after the first ended", len(l.tasks))
	}
	l.take(replica.Input{Checkpointed: &replica.Checkpointed{Meta: l.tasks[1].Meta, Err: errDisk}})
	if !errors.Is(l.err, errDisk) {
		t.Fatalf("error %v", l.err)
	}
}

// A checkpoint that found no room ends nothing: the log is kept, writes go on, and it is
// tried again some time later, at the position of then.
func TestACheckpointWithoutRoomIsTriedAgain(t *testing.T) {
	c := newCluster(t, 1, smallCheckpoints)
	l := c.elect()
	l.hold = true
	propose30 := func() {
		for i := range 30 {
			l.turn(0, propose(t, fmt.Sprintf("c%d-%d", l.view.Applied, i)))
		}
	}
	propose30()
	full := &storage.NoRoomError{Op: "write a checkpoint", Err: syscall.ENOSPC}
	l.take(replica.Input{Checkpointed: &replica.Checkpointed{Meta: l.tasks[0].Meta, Err: full}})
	propose30()
	if l.err != nil || len(l.tasks) != 1 || l.view.FirstIndex != 1 {
		t.Fatalf("error %v, %d tasks, log from %d", l.err, len(l.tasks), l.view.FirstIndex)
	}
	for ticks := 0; len(l.tasks) == 1; ticks++ {
		if ticks > 10_000 {
			t.Fatal("it is never tried again")
		}
		l.turn(1)
	}
	again := l.tasks[1]
	if again.Meta.Index <= l.tasks[0].Meta.Index+20 {
		t.Errorf("the one at %d is tried again", again.Meta.Index)
	}
	l.take(replica.Input{Checkpointed: again.Write(l.log, func() error { return nil })})
	if l.err != nil || l.view.Checkpoint.Index != again.Meta.Index || l.view.FirstIndex == 1 {
		t.Errorf("error %v, checkpoint at %d, log from %d", l.err, l.view.Checkpoint.Index, l.view.FirstIndex)
	}
	for range 2 * 600 { // nothing new: none is due
		l.turn(1)
	}
	if len(l.tasks) != 2 {
		t.Errorf("%d tasks", len(l.tasks))
	}
}

// Bytes start a checkpoint too, and bound what is kept.
func TestCheckpointByBytes(t *testing.T) {
	c := newCluster(t, 1, func(cfg *replica.Config) { cfg.CheckpointBytes, cfg.RetainBytes = 2000, 1000 })
	l := c.elect()
	for i := range 200 {
		l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
	}
	if kept := l.view.LastIndex - l.view.FirstIndex; !l.view.HasCheckpoint || kept > 150 || kept < 20 {
		t.Fatalf("checkpoint %v, %d entries kept", l.view.HasCheckpoint, kept)
	}
}

// The larger the last checkpoint, the more of the log comes before the next: to a
// bound.
func TestCheckpointsGrowWithTheState(t *testing.T) {
	for _, of := range []struct {
		last  uint64 // bytes of the last checkpoint
		least int    // checkpoints of 200 entries of about 45 bytes
		most  int
	}{{0, 18, 26}, {2000, 12, 16}, {1 << 30, 4, 8}} {
		c := newCluster(t, 1, func(cfg *replica.Config) { cfg.CheckpointEntries, cfg.CheckpointBytes = 10, 300 })
		l := c.elect()
		l.hold = true
		n := 0
		for i := range 200 {
			l.turn(0, propose(t, fmt.Sprintf("c%d", i%10)))
			if len(l.tasks) > 0 {
				n++
				task := l.tasks[0]
				l.tasks = nil
				done := task.Write(l.log, func() error { return nil })
				l.log.setBytes(of.last)
				l.take(replica.Input{Checkpointed: done})
			}
		}
		if n < of.least || n > of.most {
			t.Errorf("%d checkpoints of %d bytes, want %d to %d", n, of.last, of.least, of.most)
		}
	}
}

func TestDivergenceStopsTheOddOne(t *testing.T) {
	c := newCluster(t, 3, smallCheckpoints)
	l := c.lead(1)
	for i := range 40 {
		l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
		c.settle()
	}
	const index = 32
	hash, ok := c.peers[2].hashes[index]
	if !ok || hash != c.peers[1].hashes[index] || l.view.HashMismatches != 0 {
		t.Fatalf("hashes at %d: %x and %x", index, hash, c.peers[1].hashes[index])
	}
	tell := func(to, from, index, hash uint64) {
		c.peers[to].events = append(c.peers[to].events, replica.Event{Kind: replica.PeerStateHash, Peer: from, Index: index, Hash: hash})
		c.settle()
	}
	// One that differs settles nothing; two that agree do.
	next := uint64(48)
	for l.view.Applied < next-1 {
		l.turn(0, propose(t, "x"))
		c.settle()
	}
	c.dropHashes = true
	tell(3, 1, next, 7)
	if c.peers[3].err != nil {
		t.Fatalf("stopped by one: %v", c.peers[3].err)
	}
	tell(3, 2, next, 7)
	if c.peers[3].err != nil {
		t.Fatalf("stopped before its own hash is known: %v", c.peers[3].err)
	}
	p := propose(t, "y")
	l.turn(0, p)
	c.settle()
	var diverged *replica.DivergenceError
	if err := c.peers[3].err; !errors.As(err, &diverged) || diverged.Index != next || diverged.Majority != 7 {
		t.Fatalf("error %v", err)
	}
	if c.peers[1].err != nil || c.peers[2].err != nil || p.Err != nil {
		t.Fatalf("the others: %v %v, proposal %v", c.peers[1].err, c.peers[2].err, p.Err)
	}
}

func TestMismatchIsCounted(t *testing.T) {
	c := newCluster(t, 3, smallCheckpoints)
	l := c.lead(1)
	for range 20 {
		l.turn(0, propose(t, "x"))
		c.settle()
	}
	l.take(replica.Input{Events: []replica.Event{{Kind: replica.PeerStateHash, Peer: 2, Index: 16, Hash: 1}}})
	if l.err != nil || l.view.HashMismatches != 1 {
		t.Fatalf("error %v, %d mismatches", l.err, l.view.HashMismatches)
	}
}

// What peers do not send to one another does nothing.
func TestForeignMessagesAreDropped(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	last := l.view.LastIndex
	f := c.peers[2]
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgProp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Entries: []*raftpb.Entry{{Data: []byte("x")}}},
		{Type: raftpb.MsgForgetLeader.Enum(), From: new(uint64(1)), To: new(uint64(2))},
		{Type: raftpb.MsgHup.Enum(), From: new(uint64(1)), To: new(uint64(2))},
		{Type: raftpb.MsgVote.Enum(), From: new(uint64(9)), To: new(uint64(2)), Term: new(uint64(99))},
		{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(3)), To: new(uint64(1)), Term: new(uint64(99))},
		{Type: raftpb.MsgTransferLeader.Enum(), From: new(uint64(2)), To: new(uint64(1))},
	} {
		to := f
		if m.GetType() == raftpb.MsgProp || m.GetType() == raftpb.MsgTransferLeader {
			to = l
		}
		to.inbox = append(to.inbox, m)
	}
	c.tick(30)
	if c.leader() != l || l.view.LastIndex != last || l.view.Term > 50 || f.view.Term > 50 {
		t.Fatalf("last index %d, was %d; terms %d, %d", l.view.LastIndex, last, l.view.Term, f.view.Term)
	}
}
