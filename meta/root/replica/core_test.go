package replica_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

func TestBootstrapAndPropose(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCluster(t, n, nil)
			l := c.elect()
			cluster := l.view.State.Cluster()
			if cluster.GetClusterId() != 77 || cluster.GetCreatedUnixMillis() == 0 || len(cluster.GetPeers()) != n {
				t.Fatalf("cluster %v", cluster)
			}
			p := propose(t, "c1")
			l.turn(0, p)
			c.settle()
			if !l.answered(p) || p.Err != nil || p.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
				t.Fatalf("answered %v, error %v, results %v", l.answered(p), p.Err, p.Results)
			}
			if got := p.Results[0].Token; got.Incarnation != 1 || got.Index != l.view.Applied {
				t.Fatalf("token %v, applied %d", got, l.view.Applied)
			}
			c.tick(3)
			c.same()
			if got := l.view.State.CoordinatorCount(); got != 1 {
				t.Fatalf("%d coordinators", got)
			}
		})
	}
}

// A leader sends before its own durable write, a follower answers after it,
// and nobody asks for or gives a vote that is not durable.
func TestOrderOfPersistAndSend(t *testing.T) {
	c := newCluster(t, 3, nil)
	for c.leader() == nil {
		c.tick(1)
	}
	for _, id := range c.order {
		trace := c.peers[id].trace
		for i, line := range trace {
			if strings.HasPrefix(line, "send MsgVote") && !slices.Contains(trace[:i], "append 0") {
				t.Errorf("peer %d sent %q before any append: %q", id, line, trace)
			}
		}
	}
	l := c.elect()
	for _, id := range c.order {
		c.peers[id].trace = nil
	}
	l.turn(0, propose(t, "c1"))
	want := "send MsgApp to 1,send MsgApp to 2,send MsgApp to 3,append 1"
	want = strings.ReplaceAll(want, fmt.Sprintf("send MsgApp to %d,", l.id), "")
	if got := strings.Join(l.trace, ","); got != want {
		t.Errorf("leader: %s, want %s", got, want)
	}
	c.settle()
	for _, id := range c.order {
		if p := c.peers[id]; p != l {
			got := strings.Join(p.trace[:2], ",")
			if want := fmt.Sprintf("append 1,send MsgAppResp to %d", l.id); got != want {
				t.Errorf("follower %d: %s, want %s", id, got, want)
			}
		}
	}
}

// All that waits shares one durable write and as few entries as fit.
func TestBatching(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	appends, entries := 0, 0
	l.log.onAppend = func(e []*raftpb.Entry) error {
		appends++
		entries += len(e)
		return nil
	}
	var requests []replica.Request
	for i := range 1000 {
		requests = append(requests, propose(t, fmt.Sprintf("c%d", i)))
	}
	l.turn(0, requests...)
	c.settle()
	if appends != 1 || entries != 1 {
		t.Fatalf("%d appends of %d entries, want 1 of 1", appends, entries)
	}
	for _, r := range requests {
		if p := r.(*replica.Proposal); !l.answered(r) || p.Err != nil || len(p.Results) != 1 {
			t.Fatalf("proposal: error %v, results %v", p.Err, p.Results)
		}
	}
	if got := l.view.State.CoordinatorCount(); got != 1000 {
		t.Fatalf("%d coordinators, want 1000", got)
	}
}

// Commands of one entry stay below MaxEntryBytes, in order, results to their
// owners.
func TestEntriesAreBounded(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.MaxEntryBytes = 100 })
	l := c.elect()
	var sizes []int
	l.log.onAppend = func(entries []*raftpb.Entry) error {
		for _, e := range entries {
			sizes = append(sizes, len(e.GetData()))
		}
		return nil
	}
	var requests []replica.Request
	for i := range 20 {
		p, err := replica.NewProposal([]*rootv1.Command{command(fmt.Sprintf("a%d", i)), command(fmt.Sprintf("b%d", i))})
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, p)
	}
	l.turn(0, requests...)
	c.settle()
	for _, size := range sizes {
		if size > 100 {
			t.Errorf("entry of %d bytes", size)
		}
	}
	if len(sizes) < 2 {
		t.Errorf("%d entries", len(sizes))
	}
	var last uint64
	for _, r := range requests {
		p := r.(*replica.Proposal)
		if len(p.Results) != 2 || p.Results[0].Token.Index < last {
			t.Fatalf("results %v after index %d", p.Results, last)
		}
		last = p.Results[0].Token.Index
	}
}

func TestFollowerRefusesWithLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	p := propose(t, "c1")
	c.peers[2].turn(0, p)
	if !c.peers[2].answered(p) {
		t.Fatal("not answered at once")
	}
	if d := wantReason(t, p.Err, rootv1.Reason_REASON_NOT_LEADER); d.LeaderId != l.id {
		t.Fatalf("leader %d, want %d", d.LeaderId, l.id)
	}
}

// What a deposed leader had in its log may be committed by the next one; what
// it had not offered to raft is certainly not.
func TestLeadershipLost(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.MaxUncommittedBytes = 60 })
	l := c.lead(1)
	c.isolate(1)
	var requests []replica.Request
	for i := range 6 {
		requests = append(requests, propose(t, fmt.Sprintf("lost%d", i)))
		l.turn(0, requests[i])
	}
	if l.answered(requests[0]) {
		t.Fatal("answered without a quorum")
	}
	c.elect()
	c.heal()
	c.tick(5)
	unknown, refused := 0, 0
	for _, r := range requests {
		p := r.(*replica.Proposal)
		switch {
		case !l.answered(p):
			t.Fatal("a proposal was never answered")
		case strings.Contains(p.Err.Error(), "outcome_unknown"):
			unknown++
			if refused > 0 {
				t.Fatal("unknown behind refused")
			}
		default:
			wantReason(t, p.Err, rootv1.Reason_REASON_NOT_LEADER)
			refused++
		}
	}
	if unknown == 0 || refused == 0 {
		t.Fatalf("%d unknown, %d refused: want some of both", unknown, refused)
	}
	c.tick(5)
	c.same()
}

func TestOverload(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.MaxQueuedProposals, cfg.MaxQueuedReads = 2, 2 })
	l := c.lead(1)
	c.isolate(1)
	over := propose(t, "c")
	l.turn(0, propose(t, "a"), propose(t, "b"), over)
	if !l.answered(over) {
		t.Fatal("not refused at once")
	}
	wantReason(t, over.Err, rootv1.Reason_REASON_OVERLOADED)
	read := replica.NewRead()
	l.turn(0, replica.NewRead(), replica.NewRead(), read)
	wantReason(t, read.Err, rootv1.Reason_REASON_OVERLOADED)
	c.heal()
	c.tick(20)
	again := propose(t, "d")
	c.elect().turn(0, again)
	c.settle()
	if again.Err != nil || again.Results == nil {
		t.Fatalf("after the queue drained: %v", again.Err)
	}
}

func TestClockBound(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
		Mandate: rootv1.Mandate_MANDATE_TSO, Era: 1, Size: (c.clock.Wall() + 11*60*1000) << 18,
	}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, p)
	wantReason(t, p.Err, rootv1.Reason_REASON_CLOCK_BOUND)
}

func TestTransfer(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	tr := replica.NewTransfer(3)
	l.turn(0, tr)
	c.settle()
	if !l.answered(tr) || tr.Err != nil || tr.Leader != 3 {
		t.Fatalf("answered %v leader %d error %v", l.answered(tr), tr.Leader, tr.Err)
	}
	c.isolate(1)
	tr = replica.NewTransfer(1)
	l = c.peers[3]
	l.turn(0, tr)
	c.tick(25)
	wantReason(t, tr.Err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	p := propose(t, "after")
	l.turn(0, p)
	c.settle()
	if p.Err != nil || p.Results == nil {
		t.Fatalf("after a transfer that failed: %v", p.Err)
	}
}

// A failed write ends the peer: nothing is acknowledged with it or after it.
func TestStorageErrorIsFinal(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.elect()
	l.log.onAppend = func([]*raftpb.Entry) error { return errDisk }
	p := propose(t, "c1")
	l.turn(0, p)
	if !errors.Is(l.err, errDisk) || l.answered(p) {
		t.Fatalf("error %v, answered %v", l.err, l.answered(p))
	}
	l.log.onAppend = nil
	if _, err := l.core.Turn(replica.Input{Now: c.clock.Now()}); !errors.Is(err, errDisk) {
		t.Fatalf("next turn: %v", err)
	}
}

// Every peer stops at an entry that cannot be applied, and names it.
func TestPoisonEntry(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	last := l.view.LastIndex
	term := l.view.Term
	for _, id := range c.order {
		p := c.peers[id]
		p.crash()
		if err := p.log.MemoryStorage.Append([]*raftpb.Entry{{Term: new(term), Index: new(last + 1), Data: []byte("\xff\xff garbage")}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range c.order {
		c.peers[id].open()
	}
	c.tick(100)
	for _, id := range c.order {
		var poison *replica.PoisonError
		if err := c.peers[id].err; !errors.As(err, &poison) || poison.Index != last+1 {
			t.Errorf("peer %d: error %v, want poison at %d", id, err, last+1)
		} else if strings.Count(err.Error(), "apply entry") != 1 {
			t.Errorf("peer %d: %q does not name the entry once", id, err)
		}
	}
}

func TestUnknownEventIsNotProposed(t *testing.T) {
	_, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{}}}})
	if err == nil {
		t.Fatal("an event without a kind was accepted")
	}
}

// The transport hears of a raised feature level at once, and after a restart.
func TestTransportHearsTheFeatureLevel(t *testing.T) {
	t.Cleanup(state.Trial("access_granted"))
	c := newCluster(t, 3, nil)
	l := c.elect()
	p, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_FeatureLevelRaised{
		FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: 1, To: 2},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.turn(0, p)
	c.settle()
	c.tick(3)
	c.peers[1].crash()
	c.peers[1].open()
	c.elect()
	c.tick(3)
	for _, id := range c.order {
		if got := c.peers[id].told.GetFeatureLevel(); got != 2 {
			t.Errorf("peer %d: the transport knows feature level %d, want 2", id, got)
		}
	}
}

// A crash keeps what was acknowledged, for clusters of any size.
func TestCrashAndReopenAll(t *testing.T) {
	for _, n := range []int{1, 3} {
		c := newCluster(t, n, nil)
		l := c.elect()
		for i := range 50 {
			l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
			c.settle()
		}
		for _, id := range c.order {
			c.peers[id].crash()
		}
		for _, id := range c.order {
			c.peers[id].open()
			c.peers[id].view = nil
		}
		l = c.elect()
		if got := l.view.State.CoordinatorCount(); got != 50 {
			t.Fatalf("%d peers: %d coordinators after a crash, want 50", n, got)
		}
	}
}

// An idle peer that restarts has its state without a leader.
func TestRestartKnowsWhatWasCommitted(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	p := propose(t, "c1")
	l.turn(0, p)
	c.settle()
	c.tick(15)
	for _, id := range c.order {
		c.peers[id].crash()
	}
	f := c.peers[2]
	f.open()
	f.view = nil
	f.turn(0)
	if f.view.Applied < p.Results[0].Token.Index || f.view.Leader != 0 {
		t.Fatalf("applied %d, leader %d, written at %d", f.view.Applied, f.view.Leader, p.Results[0].Token.Index)
	}
	if trace := strings.Join(f.trace, ","); strings.Count(trace, "append 0") > 4 {
		t.Fatalf("an idle peer keeps writing: %s", trace)
	}
}

// What a holder needs is taken when the bytes of others fill the queue.
func TestAHolderHasRoomOfItsOwn(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.MaxQueuedBytes = 100 })
	l := c.lead(1)
	c.isolate(1)
	for refused := false; !refused; {
		p := propose(t, "a")
		l.turn(0, p)
		refused = l.answered(p)
	}
	fence, err := replica.NewProposal([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
		Mandate: rootv1.Mandate_MANDATE_TSO, Era: 1, Size: 1,
	}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if l.turn(0, fence); l.answered(fence) {
		t.Errorf("a fence beside bytes of others: %v", fence.Err)
	}
}
