package placement_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// moving has a region of m1, which drains, on its way to m2.
func moving(t *testing.T, s *rootv1.KeyspaceSettings) (*cluster, state.RegionID) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(1), s)
	c.settle()
	c.join("m2")
	c.set("m1", draining)
	o := c.one(c.round(), placement.PlanMove)
	if o.From.Member != "m1" || o.To.Member != "m2" || o.PrepareMax != 10*time.Second || o.Deadline != time.Minute || o.Reason != memberDraining {
		t.Fatalf("the operation is %+v", o)
	}
	return c, c.first(ks).ID
}

func (c *cluster) status(id state.RegionID, base state.Epoch) rootv1.TransitionStatus {
	var last rootv1.TransitionStatus
	c.st.Transitions(func(t *rootv1.Transition) bool {
		if state.RegionID(t.GetRegionId()) == id {
			last = t.GetStatus()
		}
		return true
	})
	return last
}

// Each stage of a move, and nothing in between.
func TestRule8Move(t *testing.T) {
	c, id := moving(t, ttlFence())
	epoch := c.st.Region(id).Epoch
	if f := c.refusal(c.plan(), placement.NotReady); f.At != c.now.Add(10*time.Second) {
		t.Fatalf("the refusal is %+v", f)
	}
	c.tell(id, "m2", preparing)
	c.refusal(c.plan(), placement.NotReady)
	c.tell(id, "m2", ready)
	c.one(c.round(), placement.Ready)
	c.refusal(c.plan(), placement.NotReleased)
	c.tell(id, "m1", released, frontier("exactly here"))
	o := c.one(c.round(), placement.Complete)
	r := c.st.Region(id)
	if c.owner(id) != "m2" || r.Frontier != "exactly here" || r.Epoch.ConfVersion != epoch.ConfVersion+1 || !o.SetFrontier {
		t.Fatalf("the region is %+v", r.Region)
	}
	c.settle()
	if n := c.work.Moves().Len(); n != 0 {
		t.Errorf("%d moves are under way", n)
	}
}

// The next owner is not ready: it is taken as it is.
func TestRule8PrepareMax(t *testing.T) {
	c, id := moving(t, epochFence())
	c.refusal(c.plan(), placement.NotReady)
	c.now = c.work.Due(c.now) - 1
	if plan := c.plan(); len(plan.Operations) != 0 {
		t.Fatalf("the plan is %+v", plan)
	}
	c.now++
	c.one(c.round(), placement.Ready)
	if f := c.refusal(c.plan(), placement.NotReleased); f.At.Sub(c.now) != 50*time.Second {
		t.Fatalf("the refusal is %+v", f)
	}
	c.tell(id, "m1", released, frontier(""))
	c.one(c.round(), placement.Complete)
}

// Without an exact frontier nothing was released.
func TestRule8ReleaseNeedsAFrontier(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m2", ready)
	c.round()
	c.tell(id, "m1", released)
	c.refusal(c.plan(), placement.NotReleased)
}

// A next owner that nobody hears gets nothing when its time to prepare is over, unless it was ready.
func TestRule8ANextOwnerThatNobodyHears(t *testing.T) {
	for name, x := range map[string]struct {
		happens func(*cluster, state.RegionID)
		want    placement.Kind
	}{
		"is silent":              {func(c *cluster, _ state.RegionID) { c.shy["m2"] = true }, placement.Cancel},
		"failed too often":       {func(c *cluster, _ state.RegionID) { c.shy["m2"], c.damped = true, map[state.MemberID]bool{"m2": true} }, placement.Ready},
		"was ready, then silent": {func(c *cluster, id state.RegionID) { c.tell(id, "m2", ready); c.shy["m2"] = true }, placement.Ready},
	} {
		c, id := moving(t, epochFence())
		c.refusal(c.plan(), placement.NotReady)
		x.happens(c, id)
		c.now = c.now.Add(10 * time.Second)
		if o := c.one(c.round(), x.want); o.Kind == placement.Cancel && (o.Because != "the next owner is not heard" || c.owner(id) != "m1") {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// What is said of another move, by another incarnation, or at another epoch, does not count.
func TestRule8OnlyWhatIsSaidOfThisMoveCounts(t *testing.T) {
	wrong := map[string]func(*placement.Report){
		"transition":  func(r *placement.Report) { r.Transition = "move-1-1.1" },
		"incarnation": func(r *placement.Report) { r.Incarnation-- },
		"epoch":       func(r *placement.Report) { r.Epoch.ConfVersion-- },
		"phase":       func(r *placement.Report) { r.Phase = serving },
	}
	for name, change := range wrong {
		c, id := moving(t, epochFence())
		c.tell(id, "m2", ready, change)
		c.tell(id, "m1", released, frontier("x"), change)
		if plan := c.plan(); len(plan.Operations) != 0 {
			t.Errorf("another %s: the plan is %+v", name, plan)
		}
	}
}

func TestRule8Deadline(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m2", ready)
	c.round()
	c.refusal(c.plan(), placement.NotReleased)
	c.now = c.work.Due(c.now)
	o := c.one(c.round(), placement.Cancel)
	if c.owner(id) != "m1" || o.Because == "" || c.status(id, o.Epoch) != rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED {
		t.Fatalf("it is %s's, because %q", c.owner(id), o.Because)
	}
	c.now = c.refusal(c.round(), placement.Resting).At
	c.one(c.round(), placement.PlanMove) // it still drains
}

// A move that is under way when its old owner says that its process ends has half of the
// time that is left, and a fifth is spared: also if the planner jumps meanwhile. What another
// incarnation says, or would have it take longer, does not count.
func TestRule8AMoveUnderWayWhenItsOwnerLeaves(t *testing.T) {
	c, _ := moving(t, epochFence())
	c.refusal(c.plan(), placement.NotReady)
	c.now = c.now.Add(time.Second)
	m1 := c.st.Member("m1").GetIncarnation()
	ends := func(after time.Duration) placement.Leave { return placement.Leave{Said: c.now, Ends: c.now.Add(after)} }
	c.work.Leave("m1", m1+1, ends(time.Millisecond))
	c.work.Leave("m1", m1, ends(5*time.Second))
	due := c.now.Add(2 * time.Second)
	c.refusal(c.plan(), placement.NotReady)
	c.now = c.now.Add(time.Second)
	c.work.Leave("m1", m1, ends(time.Hour))
	c.work = c.work.Jump(c.st, c.now)
	c.refusal(c.plan(), placement.NotReady)
	if at := c.work.Due(c.now); at != due {
		t.Fatalf("it is looked at in %v, want %v", at.Sub(c.now), due.Sub(c.now))
	}
	c.now = due
	c.one(c.round(), placement.Ready)
}

// Who began again is not leaving.
func TestRule8AGoodbyeIsOfOneIncarnation(t *testing.T) {
	c := newCluster(t)
	m1 := c.join("m1")
	c.work.Leave("m1", m1, placement.Leave{Said: c.now, Ends: c.now.Add(time.Second)})
	if in := c.work.Take(c, c.now); len(in.Leaves) != 1 {
		t.Fatalf("%v leave", in.Leaves)
	}
	c.join("m1")
	if in := c.work.Take(c, c.now); len(in.Leaves) != 0 {
		t.Fatalf("%v leave", in.Leaves)
	}
}

// Who said when its process ends, and is there after that, asks for another drain: what it
// says now is what it has.
func TestRule8AGoodbyeThatWasNone(t *testing.T) {
	c := newCluster(t)
	m1 := c.join("m1")
	c.work.Leave("m1", m1, placement.Leave{Said: c.now, Ends: c.now.Add(time.Second)})
	c.now = c.now.Add(10 * time.Second)
	again := placement.Leave{Said: c.now, Ends: c.now.Add(time.Minute)}
	c.work.Leave("m1", m1, again)
	if in := c.work.Take(c, c.now); in.Leaves["m1"] != again {
		t.Fatalf("it leaves at %v, want %v", in.Leaves["m1"], again)
	}
}

// Released in time and heard of late is done all the same.
func TestRule8ReleasedAtTheDeadline(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m1", released, frontier("x"))
	c.now = c.now.Add(time.Hour)
	c.one(c.round(), placement.Complete)
	if c.owner(id) != "m2" {
		t.Fatalf("it is %s's", c.owner(id))
	}
}

func TestRule8OldOwnerDies(t *testing.T) {
	for _, prepared := range []bool{true, false} {
		c, id := moving(t, ttlFence())
		if prepared {
			c.tell(id, "m2", ready)
			c.round()
		}
		c.join("m3")
		c.settle()
		c.set("m1", failed)
		c.fences["m1/1"] = c.now.Add(100 * time.Millisecond)
		c.refusal(c.plan(), placement.FenceRuns) // rule 5, also in the middle of a move
		c.now = c.now.Add(100 * time.Millisecond)
		o := c.one(c.round(), placement.Assign)
		if c.owner(id) != "m2" || o.Reason != memberFailed || c.status(id, o.Epoch) != rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
			t.Fatalf("prepared %t: it is %s's because %s", prepared, c.owner(id), o.Reason)
		}
	}
}

// It released, and then it died: the frontier that it said is exact.
func TestRule8OldOwnerDiesReleased(t *testing.T) {
	c, id := moving(t, ttlFence())
	c.tell(id, "m1", released, frontier("last"))
	c.set("m1", failed)
	c.one(c.round(), placement.Complete)
	if c.owner(id) != "m2" || c.st.Region(id).Frontier != "last" {
		t.Fatalf("the region is %+v", c.st.Region(id).Region)
	}
}

// The next owner dies, registers again, or drains itself: the old one keeps the
// region, and another is looked for.
func TestRule8NextOwnerDies(t *testing.T) {
	for name, happens := range map[string]func(*cluster){
		"fails":           func(c *cluster) { c.set("m2", failed) },
		"registers again": func(c *cluster) { c.join("m2") },
		"drains":          func(c *cluster) { c.set("m2", draining) },
	} {
		c, id := moving(t, epochFence())
		c.tell(id, "m2", ready)
		c.round()
		c.tell(id, "m1", released, frontier("x"))
		happens(c)
		c.one(c.round(), placement.Cancel)
		if c.owner(id) != "m1" {
			t.Fatalf("%s: it is %s's", name, c.owner(id))
		}
		if name != "registers again" {
			c.join("m3")
		}
		c.one(c.round(), placement.PlanMove)
	}
}

// A move that was given up and planned again has the same id. What was said of the first
// does not count: the old owner may have gone on since.
func TestRule8WhatWasSaidOfAnEarlierMoveDoesNotCount(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m2", ready)
	c.round()
	c.tell(id, "m1", released, frontier("too old"))
	c.set("m2", failed)
	cancel := c.one(c.round(), placement.Cancel)
	first := cancel.Transition
	c.join("m3")
	c.one(c.round(), placement.PlanMove)
	if again := c.st.PendingTransition(id).GetId(); again != first {
		t.Fatalf("the ids are %s and %s: this test shows nothing", first, again)
	}
	// Nor do copies of what ended the first that come late.
	for _, kind := range []placement.Kind{placement.Ready, placement.Complete, placement.Cancel} {
		late := cancel
		late.Kind = kind
		if got := c.propose(late.Event()); got.Reject.GetReason() != rootv1.Reason_REASON_TRANSITION_CLOSED {
			t.Errorf("a late %v: %v %v", kind, got.Outcome, got.Reject)
		}
	}
	c.refusal(c.plan(), placement.NotReady)
	c.tell(id, "m1", released, frontier("exact"))
	c.one(c.round(), placement.Complete)
	if f := c.st.Region(id).Frontier; f != "exact" {
		t.Fatalf("the frontier is %q", f)
	}
}

// While an operation is on its way nothing else is planned for its region, whatever
// happens: it may still apply.
func TestNothingIsPlannedBesideAnOperationOnItsWay(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m1", released, frontier("x"))
	o := c.one(c.plan(), placement.Complete) // sent, and no answer came
	c.apply(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: o.Transition}}})
	c.work.Mark(id)
	if plan := c.plan(); len(plan.Operations) != 0 {
		t.Fatalf("the plan is %+v", plan)
	}
	c.set("m2", failed)
	c.set("m1", failed)
	c.join("m3")
	if plan := c.plan(); len(plan.Operations) != 0 {
		t.Fatalf("the plan is %+v", plan)
	}
	c.work.Judged(id)
	c.one(c.plan(), placement.Assign)
}

// Both die: whoever is left gets it.
func TestRule8BothDie(t *testing.T) {
	c, id := moving(t, epochFence())
	c.join("m3")
	c.set("m2", failed)
	c.set("m1", failed)
	c.one(c.round(), placement.Assign)
	if c.owner(id) != "m3" {
		t.Fatalf("it is %s's", c.owner(id))
	}
}

// The next owner cannot be reached, and the old one died: somebody else takes it.
func TestRule8OldOwnerDiesNextOneIsSuspected(t *testing.T) {
	c, id := moving(t, epochFence())
	c.join("m3")
	c.shy["m2"] = true
	c.set("m1", failed)
	c.one(c.round(), placement.Assign)
	if c.owner(id) != "m3" {
		t.Fatalf("it is %s's", c.owner(id))
	}
}

// An operator gave it up.
func TestRule8Cancelled(t *testing.T) {
	c, id := moving(t, epochFence())
	c.settle()
	c.apply(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{
		TransitionId: c.st.PendingTransition(id).GetId(), Reason: "changed my mind",
	}}})
	c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m1", State: active}}})
	if plan := c.plan(); len(plan.Operations) != 0 || c.owner(id) != "m1" || c.work.Moves().Len() != 0 {
		t.Fatalf("the plan is %+v", plan)
	}
}

// Another holder goes on where the one before left off; to one that has just started, a move
// that is under way has just begun.
func TestRule8AnotherHolderGoesOn(t *testing.T) {
	c, id := moving(t, epochFence())
	c.tell(id, "m2", ready)
	c.round()
	c.now = c.now.Add(time.Hour)
	c.work, c.attempts = placement.NewWork(c.st, c.now), placement.NewAttempts(c.st, c.now)
	if f := c.refusal(c.plan(), placement.NotReleased); f.At.Sub(c.now) != time.Minute {
		t.Fatalf("the refusal is %+v", f)
	}
	c.tell(id, "m1", released, frontier("x"))
	c.one(c.round(), placement.Complete)
}

// A shared region is made before it is broken.
func TestRule8SharedMakeBeforeBreak(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(1), sharedBy(4))
	c.settle()
	c.join("m2")
	c.set("m1", draining)
	id := c.first(ks).ID
	c.one(c.round(), placement.AddOwner)
	c.refusal(c.plan(), placement.NotReady)
	c.tell(id, "m2", ready)
	c.one(c.round(), placement.Complete)
	if n := len(c.st.Region(id).Owners); n != 2 {
		t.Fatalf("%d owners after one was added", n)
	}
	c.one(c.round(), placement.RemoveOwner)
	c.refusal(c.plan(), placement.NotReleased) // m2 does not say yet that it serves
	c.tell(id, "m2", serving)
	c.one(c.round(), placement.Complete)
	if c.owner(id) != "m2" {
		t.Fatalf("it is %s's", c.owner(id))
	}
	c.settle()
}

// A shared region without room for one more owner moves as an exclusive one does.
func TestRule8SharedAndFull(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.keyspace("ks", slots(1), sharedBy(2))
	r := c.first(ks)
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1"}, {MemberId: "m2"}},
	}}}}})
	c.join("m3")
	c.set("m1", draining)
	c.set("m2", draining)
	if o := c.one(c.round(), placement.PlanMove); o.From.Member != "m1" || o.To.Member != "m3" {
		t.Fatalf("the operation is %+v", o)
	}
}

// Drains go in waves of as many moves as may be under way, from one member
// and to one, until nothing is left, and no region is ever without an owner.
func TestC34A30DrainInWaves(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	s := epochFence()
	s.Moves = nil
	ks := c.keyspace("ks", slots(100), s)
	c.settle()
	c.join("m2")
	c.join("m3")
	c.set("m1", draining)
	rounds := 0
	for ; c.st.MemberRegionCount("m1") > 0; rounds++ {
		if rounds > 1000 {
			t.Fatalf("%v after a thousand rounds", c.counts("m1", "m2", "m3"))
		}
		for _, o := range c.round().Operations {
			if o.Kind == placement.Assign {
				t.Fatalf("a drain assigns: %+v", o)
			}
		}
		if n := c.work.Moves().Gives("m1"); n > 16 || c.work.Moves().Takes("m2") > 16 {
			t.Fatalf("%d moves from one member", n)
		}
		c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
			if len(r.Owners) != 1 {
				t.Fatalf("region %d has the owners %v", r.ID, r.Owners)
			}
			if x := c.st.PendingTransition(r.ID); x != nil && rounds%2 == 0 {
				c.tell(r.ID, x.GetOwner().GetMemberId(), ready)
				c.tell(r.ID, "m1", released, frontier("x"))
			}
			return true
		})
	}
	c.settle()
	c.wantCounts([]int{0, 50, 50}, "m1", "m2", "m3")
	if rounds < 100/16 {
		t.Errorf("%d rounds", rounds)
	}
}

// Nobody can take a drainer's regions: it is refused, once a keyspace, and goes on
// when somebody can.
func TestDrainWithoutTargets(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.keyspace("ks", slots(100), epochFence())
	c.settle()
	c.set("m1", draining)
	if f := c.refusal(c.plan(), placement.NoEligibleMember); f.Member != "m1" {
		t.Fatalf("the refusal is %+v", f)
	}
	if c.work.Due(c.now) != never {
		t.Fatal("it is looked at although nothing changes")
	}
	c.join("m2")
	if c.work.Due(c.now) != c.now {
		t.Fatal("somebody can take, and it is not looked at")
	}
	if n := len(c.plan().Operations); n != 16 {
		t.Fatalf("%d operations, want 16", n)
	}
}

// As many moves as may be under way to one member, whoever gives.
func TestMovesInFlightToOneMember(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	c.keyspace("ks", slots(100), epochFence())
	c.settle()
	c.set("m1", draining)
	c.set("m2", draining)
	c.join("m3")
	for range 3 {
		c.round()
	}
	if n := c.work.Moves().Takes("m3"); n != 16 {
		t.Fatalf("%d moves to one member, want 16", n)
	}
}
