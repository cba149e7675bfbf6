package placement_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	acquiring = coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING
	releasing = coordinatorv1.RegionPhase_REGION_PHASE_RELEASING
)

// served is a cluster whose members serve what they get, but for some that fail to acquire it.
type served struct {
	*cluster
	ks state.KeyspaceID
	// fails says which members cannot acquire a region; slow are those that do not come to an end.
	fails, slow func(id string, region state.RegionID) bool
	// mute says which members say nothing of a region that they own, before they let it go.
	mute func(id string, region state.RegionID) bool
	// keeps: those, and those that fail, do not say either that they let one go.
	keeps bool
	// hung is a region whose Release does not return; 0: none.
	hung      state.RegionID
	hungSince clock.Instant
	said      map[spot]placement.Getting
	last      placement.Plan
}

func newServed(t *testing.T, members ...string) *served {
	never := func(string, state.RegionID) bool { return false }
	s := &served{cluster: newCluster(t), fails: never, slow: never, mute: never, said: map[spot]placement.Getting{}}
	s.unserved = placement.NewUnserved()
	for _, id := range members {
		s.join(id)
	}
	s.ks = s.keyspace("ks", slots(12), epochFence())
	return s
}

// pass lets time go by: members say what they serve, and what is planned is done.
func (s *served) pass(d time.Duration) {
	s.Helper()
	for end := s.now.Add(d); s.now < end; s.now = s.now.Add(time.Second) {
		var all []placement.Getting
		s.st.RegionsFrom(s.ks, "", func(r *state.Region) bool {
			if len(r.Owners) == 0 {
				return true
			}
			if t := s.st.PendingTransition(r.ID); t != nil {
				s.tell(r.ID, t.GetOwner().GetMemberId(), ready)
				if old, known := s.said[spot{r.ID, r.Owners[0].Member}]; known && s.keeps {
					all = append(all, old)
					return true
				}
				s.tell(r.ID, string(r.Owners[0].Member), released, frontier("f"))
				return true
			}
			id := string(r.Owners[0].Member)
			if r.ID == s.hung {
				s.tell(r.ID, id, releasing)
				all = append(all, placement.Getting{Region: r.ID, Incarnation: r.Owners[0].Incarnation, Since: s.hungSince, Failed: true, Releases: true})
				return true
			}
			at, is := spot{r.ID, r.Owners[0].Member}, s.fails(id, r.ID)
			if s.mute(id, r.ID) {
				old, known := s.said[at]
				if !known || old.Incarnation != r.Owners[0].Incarnation {
					old = placement.Getting{Region: r.ID, Incarnation: r.Owners[0].Incarnation, Since: s.now, Failed: true, Unsaid: true}
				}
				s.said[at] = old
				all = append(all, old)
				return true
			}
			if !is && !s.slow(id, r.ID) {
				delete(s.said, at)
				s.tell(r.ID, id, serving)
				return true
			}
			old, known := s.said[at]
			if !known || old.Incarnation != r.Owners[0].Incarnation {
				old = placement.Getting{Region: r.ID, Incarnation: r.Owners[0].Incarnation, Since: s.now}
			}
			old.Failed = is
			s.said[at] = old
			s.tell(r.ID, id, acquiring, func(r *placement.Report) { r.Failed = is })
			all = append(all, old)
			return true
		})
		for _, id := range s.unserved.Look(s.st, all, s.serves, s.now) {
			s.work.Mark(id)
		}
		s.last = s.round()
		for range 3 {
			s.round()
		}
	}
}

func (s *served) unfit(id string) bool {
	return s.Unfit(state.Owner{Member: state.MemberID(id), Incarnation: s.st.Member(state.MemberID(id)).GetIncarnation()}, s.ks)
}

// What a member cannot acquire counts as not served behind 5 s, and goes elsewhere behind
// prepare_max; who failed is given nothing, first of a minute, then of two.
func TestRule11WhoCannotAcquireLosesItsRegions(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	s.join("m3")
	for _, r := range s.regionsOf("m1")[:3] { // as if it had been evened out
		s.give(r, "m3")
	}
	bad := true
	s.fails = func(id string, _ state.RegionID) bool { return bad && id == "m3" }
	s.pass(4 * time.Second)
	if len(s.last.Refusals) != 0 || s.unfit("m3") {
		t.Errorf("behind 4 s: %+v, unfit %v", s.last.Refusals, s.unfit("m3"))
	}
	s.pass(3 * time.Second)
	if n := len(s.last.Refusals); n != 3 || s.last.Refusals[0].Why != placement.NotServed || !s.unfit("m3") {
		t.Errorf("behind 7 s: %+v, unfit %v", s.last.Refusals, s.unfit("m3"))
	}
	s.pass(40 * time.Second)
	s.wantCounts([]int{0, 6, 6}, "m1", "m2", "m3")
	if len(s.last.Refusals) != 0 || !s.unfit("m3") {
		t.Errorf("behind 47 s: %+v, unfit %v", s.last.Refusals, s.unfit("m3"))
	}
	s.pass(time.Minute)
	if s.unfit("m3") {
		t.Error("m3 rests for longer than a minute the first time")
	}
	s.give(s.regionsOf("m1")[0], "m3")
	s.pass(50 * time.Second)
	s.pass(time.Minute)
	if !s.unfit("m3") {
		t.Error("m3 rests for a minute only the second time")
	}
	s.pass(time.Minute)
	bad = false
	s.give(s.regionsOf("m1")[0], "m3")
	s.pass(time.Minute)
	if s.owner(s.regionsOf("m3")[0].ID) != "m3" || s.unfit("m3") {
		t.Error("what m3 serves is taken from it")
	}
}

// Behind its rest a member gets one region, and the others once it serves that one.
func TestRule11OneRegionBehindItsRest(t *testing.T) {
	for _, mended := range []bool{false, true} {
		s := newServed(t, "m1", "m2")
		s.settle()
		s.join("m3")
		for _, r := range s.regionsOf("m1")[:3] {
			s.give(r, "m3")
		}
		bad := true
		s.fails = func(id string, _ state.RegionID) bool { return bad && id == "m3" }
		s.pass(2 * time.Minute)
		s.wantCounts([]int{0, 6, 6}, "m1", "m2", "m3")
		bad = !mended
		if s.unfit("m3") {
			t.Error("m3 rests for longer than a minute the first time")
		}
		in := s.work.Take(s.cluster, s.now)
		in.Rebalance, in.Policies, in.Unserved = []state.KeyspaceID{s.ks}, map[state.KeyspaceID]balance.Policy{s.ks: even}, s.unserved
		moves := 0
		plan := placement.Make(in)
		for _, o := range plan.Operations {
			if o.To.Member == "m3" {
				moves++
			}
		}
		if moves != 1 {
			t.Errorf("%d regions are moved to m3 to even out, want 1: %+v", moves, plan)
		}
		s.set("m2", failed)
		s.settle()
		s.pass(4 * time.Second)
		if n := len(s.regionsOf("m3")); n != 1 {
			t.Errorf("m3 gets %d regions behind its rest, want 1", n)
		}
		if s.unfit("m3") == mended {
			t.Errorf("mended %v, unfit %v", mended, s.unfit("m3"))
		}
		s.set("m1", failed)
		s.settle()
		if n := len(s.regionsOf("m3")); n != 12 {
			t.Errorf("m3 is better than nobody, and has %d regions", n)
		}
	}
}

// An acquire that has not failed is waited for, and shown; so is the only member's.
func TestRule11SlowAcquireIsShownOnly(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.slow = func(id string, _ state.RegionID) bool { return id == "m1" }
	s.settle()
	s.pass(5 * time.Minute)
	if s.wantCounts([]int{6, 6}, "m1", "m2"); s.unfit("m1") || len(s.last.Refusals) != 6 {
		t.Errorf("unfit %v, %+v", s.unfit("m1"), s.last.Refusals)
	}
	one := newServed(t, "m1")
	one.fails = func(string, state.RegionID) bool { return true }
	one.settle()
	one.pass(5 * time.Minute)
	if one.wantCounts([]int{12}, "m1"); len(one.last.Refusals) != 12 || one.last.Refusals[0].Why != placement.NotServed {
		t.Errorf("%+v", one.last.Refusals)
	}
}

// A region of which its owner says nothing goes the way of one that it fails to acquire: it is shown, the
// owner gets no more, and it goes elsewhere.
func TestRule11OwnedAndNeverSaid(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	s.join("m3")
	for _, r := range s.regionsOf("m1")[:3] {
		s.give(r, "m3")
	}
	s.mute = func(id string, _ state.RegionID) bool { return id == "m3" }
	s.pass(4 * time.Second)
	if len(s.last.Refusals) != 0 || s.unfit("m3") {
		t.Errorf("behind 4 s: %+v, unfit %v", s.last.Refusals, s.unfit("m3"))
	}
	s.pass(3 * time.Second)
	if n := len(s.last.Refusals); n != 3 || s.last.Refusals[0].Why != placement.NotServed || !s.unfit("m3") {
		t.Errorf("behind 7 s: %+v, unfit %v", s.last.Refusals, s.unfit("m3"))
	}
	s.pass(40 * time.Second)
	s.wantCounts([]int{0, 6, 6}, "m1", "m2", "m3")
}

// An owner that does not serve its regions, and never says that it lets them go, loses them when the deadlines
// of their moves have passed, and counts as one that let them go: what others serve then it does not get
// again. What it says in time is waited for.
func TestRule11WhoDoesNotLetGoLosesWhatItDoesNotServe(t *testing.T) {
	for _, mute := range []bool{true, false} {
		s := newServed(t, "m1", "m2")
		s.settle()
		s.join("m3")
		for _, r := range s.regionsOf("m1")[:3] {
			s.give(r, "m3")
		}
		is := func(id string, _ state.RegionID) bool { return id == "m3" }
		if s.keeps = true; mute {
			s.mute = is
		} else {
			s.fails = is
		}
		s.pass(70 * time.Second)
		s.wantCounts([]int{3, 3, 6}, "m1", "m2", "m3")
		s.pass(10 * time.Second)
		s.wantCounts([]int{2, 4, 6}, "m1", "m2", "m3")
		s.pass(70 * time.Second)
		s.wantCounts([]int{0, 6, 6}, "m1", "m2", "m3")
		s.pass(20 * time.Second)
		if s.wantCounts([]int{0, 6, 6}, "m1", "m2", "m3"); !s.unfit("m3") {
			t.Errorf("mute %v: nothing is held against m3", mute)
		}
	}
}

// A region whose Release does not return, though no move asks for it any more, is shown as not served,
// stays where it is, and counts against nobody: no other may act for it.
func TestRule11AReleaseThatDoesNotReturnIsShown(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	r := s.regionsOf("m1")[0]
	s.hung, s.hungSince = r.ID, s.now
	s.pass(4 * time.Second)
	if len(s.last.Refusals) != 0 {
		t.Errorf("behind 4 s: %+v", s.last.Refusals)
	}
	s.pass(10 * time.Minute)
	if s.wantCounts([]int{6, 6}, "m1", "m2"); s.unfit("m1") || len(s.last.Refusals) != 1 || s.last.Refusals[0].Why != placement.NotServed || s.last.Refusals[0].Region != r.ID {
		t.Errorf("unfit %v, %+v", s.unfit("m1"), s.last.Refusals)
	}
	s.hung = 0
	s.pass(2 * time.Second)
	if len(s.last.Refusals) != 0 {
		t.Errorf("served again: %+v", s.last.Refusals)
	}
}

// A region that no member can acquire goes elsewhere once, and is held against nobody.
func TestRule11RegionThatNobodyCanAcquire(t *testing.T) {
	s := newServed(t, "m1", "m2", "m3")
	s.settle()
	bad := s.first(s.ks)
	s.fails = func(_ string, id state.RegionID) bool { return id == bad.ID }
	moves := 0
	s.follows = func(changes []state.Change) {
		for _, c := range changes {
			if c.Kind == state.ChangeRegion && c.OldRegion != nil && !slices.Equal(c.Region.Owners, c.OldRegion.Owners) {
				moves++
			}
		}
	}
	s.pass(9 * time.Minute)
	if moves != 1 || s.unfit("m1") || s.unfit("m2") || s.unfit("m3") {
		t.Errorf("%d moves; unfit: %v %v %v", moves, s.unfit("m1"), s.unfit("m2"), s.unfit("m3"))
	}
	if len(s.last.Refusals) != 1 || s.last.Refusals[0].Why != placement.NotServed {
		t.Errorf("%+v", s.last.Refusals)
	}
}

// A next owner whose prepare fails is not given the region when its time is over: the old one
// serves on.
func TestRule11WhoFailsToPrepareGetsNothing(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(1), epochFence())
	c.settle()
	c.join("m2")
	id := c.first(ks).ID
	c.set("m1", draining)
	c.root(c.plan())
	c.tell(id, "m2", preparing, func(r *placement.Report) { r.Failed = true })
	c.settle()
	most := time.Duration(c.st.PendingTransition(id).GetPrepareMaxMillis()) * time.Millisecond
	c.now = c.now.Add(most)
	c.work.Mark(id)
	if o := c.one(c.plan(), placement.Cancel); o.Because == "" {
		t.Errorf("it does not say why: %+v", o)
	}
}

// regionsOf are the regions of a member.
func (s *served) regionsOf(id string) (all []*state.Region) {
	s.st.MemberRegionsAfter(state.MemberID(id), 0, func(r *state.Region) bool {
		all = append(all, r)
		return true
	})
	return all
}

// give has a region be a member's.
func (s *served) give(r *state.Region, id string) {
	s.Helper()
	to := state.Owner{Member: state.MemberID(id), Incarnation: s.st.Member(state.MemberID(id)).GetIncarnation()}
	s.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{to.Proto()}, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
	}}}}})
}
