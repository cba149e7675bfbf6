package placement_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// hpass is served.pass for any keyspaces, shared regions and failing prepares.
func (s *served) hpass(d time.Duration, kss []state.KeyspaceID, prepareFails func(id string, r *state.Region) bool) {
	s.Helper()
	for end := s.now.Add(d); s.now < end; s.now = s.now.Add(time.Second) {
		var all []placement.Getting
		seen := map[spot]bool{}
		get := func(r *state.Region, o state.Owner, failed bool) {
			at := spot{r.ID, o.Member}
			seen[at] = true
			old, known := s.said[at]
			if !known || old.Incarnation != o.Incarnation {
				old = placement.Getting{Region: r.ID, Incarnation: o.Incarnation, Since: s.now}
			}
			old.Failed = failed
			s.said[at] = old
			all = append(all, old)
		}
		for _, ks := range kss {
			s.st.RegionsFrom(ks, "", func(r *state.Region) bool {
				t := s.st.PendingTransition(r.ID)
				for _, o := range r.Owners {
					gives := t != nil && (t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER && t.GetOwner().GetMemberId() == string(o.Member) ||
						t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE && t.GetReadyAt() != nil)
					switch {
					case gives:
						s.tell(r.ID, string(o.Member), released, frontier("f"))
					case s.fails(string(o.Member), r.ID):
						s.tell(r.ID, string(o.Member), acquiring, func(r *placement.Report) { r.Failed = true })
						get(r, o, true)
					default:
						s.tell(r.ID, string(o.Member), serving)
					}
				}
				if t != nil && t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE && t.GetReadyAt() == nil {
					to := state.Owner{Member: state.MemberID(t.GetOwner().GetMemberId()), Incarnation: t.GetOwner().GetIncarnation()}
					if prepareFails != nil && prepareFails(string(to.Member), r) {
						s.tell(r.ID, string(to.Member), preparing, func(r *placement.Report) { r.Failed = true })
						get(r, to, true)
					} else {
						s.tell(r.ID, string(to.Member), ready)
					}
				}
				return true
			})
		}
		for at := range s.said {
			if !seen[at] {
				delete(s.said, at)
			}
		}
		for _, id := range s.unserved.Look(s.st, all, s.serves, s.now) {
			s.work.Mark(id)
		}
		s.last = s.round()
		for range 3 {
			s.round()
		}
	}
}

func (s *served) countChanges() *int {
	n := new(int)
	s.follows = func(changes []state.Change) {
		for _, c := range changes {
			if c.Kind == state.ChangeRegion && c.OldRegion != nil && !slices.Equal(c.Region.Owners, c.OldRegion.Owners) {
				*n++
			}
		}
	}
	return n
}

// The only owner of a shared region that fails to acquire it stays where nobody else could have it.
func TestRule11TheOnlyOwnerOfASharedRegionStays(t *testing.T) {
	s := &served{cluster: newCluster(t), said: map[spot]placement.Getting{}}
	s.fails = func(string, state.RegionID) bool { return true }
	s.unserved = placement.NewUnserved()
	s.join("m1")
	ks := s.keyspace("shared", slots(1), sharedBy(2))
	s.settle()
	id := s.first(ks).ID
	n := s.countChanges()
	orphaned := 0
	s.hpassOrphans(5*time.Minute, ks, &orphaned)
	if *n != 0 || orphaned != 0 {
		t.Errorf("the only member's region changed owners %d times, was without an owner %d times; epoch %v", *n, orphaned, s.st.Region(id).Epoch)
	}
	s.join("m2") // which can
	s.fails = func(id string, _ state.RegionID) bool { return id == "m1" }
	s.hpassOrphans(5*time.Minute, ks, &orphaned)
	if r := s.st.Region(id); orphaned != 0 || !slices.ContainsFunc(r.Owners, func(o state.Owner) bool { return o.Member == "m2" }) {
		t.Errorf("beside one that can acquire it, it was without an owner %d times; its owners are %v", orphaned, r.Owners)
	}
}

func (s *served) hpassOrphans(d time.Duration, ks state.KeyspaceID, orphaned *int) {
	old := s.follows
	s.follows = func(changes []state.Change) {
		old(changes)
		for _, c := range changes {
			if c.Kind == state.ChangeRegion && len(c.Region.Owners) == 0 {
				*orphaned++
			}
		}
	}
	s.hpass(d, []state.KeyspaceID{ks}, nil)
}

// A region that nobody can acquire is tried elsewhere less and less often, and counts against nobody.
func TestRule11RegionThatNobodyCanAcquireForHours(t *testing.T) {
	s := newServed(t, "m1", "m2", "m3")
	s.settle()
	bad := s.first(s.ks)
	s.fails = func(_ string, id state.RegionID) bool { return id == bad.ID }
	n := s.countChanges()
	unfit := map[string]time.Duration{}
	for range 6 * 60 {
		s.pass(time.Minute)
		for _, id := range []string{"m1", "m2", "m3"} {
			if s.unfit(id) {
				unfit[id] += time.Minute
			}
		}
	}
	if *n < 2 || *n > 8 || len(unfit) > 0 {
		t.Errorf("in 6 h: %d changes of owners (incl. of evening out); barred: %v", *n, unfit)
	}
}

// The next owner cannot fetch anything from one that does not serve: it gets the region all the same.
func TestRule11NothingToFetchFromAnOwnerThatDoesNotServe(t *testing.T) {
	s := newServed(t, "m1")
	s.settle()
	s.join("m2")
	s.join("m3")
	s.fails = func(id string, _ state.RegionID) bool { return id == "m1" }
	s.hpass(time.Hour, []state.KeyspaceID{s.ks}, func(string, *state.Region) bool { return true })
	if got := s.counts("m1", "m2", "m3"); got[0] != 0 {
		t.Errorf("behind an hour the members own %v; unfit: m1 %v m2 %v m3 %v; %+v", got, s.unfit("m1"), s.unfit("m2"), s.unfit("m3"), s.last.Refusals[:1])
	}
}

// What all owners need is away: one region is tried elsewhere, and no more.
func TestRule11WhatAllOwnersNeedIsAway(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	// the process of m1 is replaced while the backend is away; m2 serves what it acquired before.
	own := map[state.RegionID]bool{}
	for _, r := range s.regionsOf("m2") {
		own[r.ID] = true
	}
	s.fails = func(id string, r state.RegionID) bool { return !(id == "m2" && own[r]) }
	s.hpass(5*time.Minute, []state.KeyspaceID{s.ks}, nil)
	if got := s.counts("m1", "m2"); got[0] < 5 {
		t.Errorf("nobody can acquire anything, and everything moved: %v; unfit m1 %v m2 %v", got, s.unfit("m1"), s.unfit("m2"))
	}
}

// beside has m1, which alone takes keyspace a, fail to acquire the one region of it; m2 takes
// keyspace b, as m1 does.
func beside(t *testing.T) (*served, state.KeyspaceID) {
	s := &served{cluster: newCluster(t), said: map[spot]placement.Getting{}}
	s.unserved = placement.NewUnserved()
	s.join("m1", "a", "b")
	s.join("m2", "b")
	a := s.keyspace("a", slots(1), epochFence())
	s.settle()
	bad := s.first(a).ID
	s.fails = func(_ string, id state.RegionID) bool { return id == bad }
	return s, a
}

// A region of one keyspace that only one member takes bars it in no other.
func TestRule11UnfitInOneKeyspaceOnly(t *testing.T) {
	s, a := beside(t)
	s.hpass(2*time.Hour, []state.KeyspaceID{a}, nil)
	b := s.keyspace("b", slots(10), epochFence())
	s.hpass(time.Minute, []state.KeyspaceID{a, b}, nil)
	got := []int{s.st.MemberKeyspaceRegionCount("m1", b), s.st.MemberKeyspaceRegionCount("m2", b)}
	if got[0] == 0 {
		t.Errorf("m1, m2 have %v regions of b", got)
	}
}

// A member whose process ends gives everything away although one of those who may take it fails to prepare.
func TestRule11ADrainGoesAroundWhoFailsToPrepare(t *testing.T) {
	s := newServed(t, "m1")
	s.settle()
	s.join("m2")
	s.join("m3")
	s.set("m1", draining)
	s.work.Leave("m1", s.st.Member("m1").GetIncarnation(), placement.Leave{Said: s.now, Ends: s.now.Add(time.Minute)})
	begin := s.now
	cancelled, to3 := 0, 0
	s.follows = func(changes []state.Change) {
		for _, c := range changes {
			if c.Kind != state.ChangeTransition {
				continue
			}
			switch c.Transition.GetStatus() {
			case rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED, rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED:
				cancelled++
			case rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
				to3++
			}
		}
	}
	for s.now < begin.Add(time.Minute) {
		s.hpass(time.Second, []state.KeyspaceID{s.ks}, func(id string, _ *state.Region) bool { return id == "m2" })
	}
	if n := s.st.MemberRegionCount("m1"); n > 0 {
		t.Errorf("m1 said 60 s ago that its process ends now, and has %d of 12 regions; %d moves were given up, %d done; m3 was ready at once each time; %+v", n, cancelled, to3, s.last.Refusals)
	}
}

// Of a shared region a drain gives the place of who serves to nobody that fails to prepare.
func TestRule11SharedDrainGoesAroundWhoFailsToPrepare(t *testing.T) {
	s := &served{cluster: newCluster(t), said: map[spot]placement.Getting{}}
	s.unserved = placement.NewUnserved()
	s.fails = func(id string, _ state.RegionID) bool { return id == "m2" }
	s.join("m1")
	ks := s.keyspace("shared", slots(1), sharedBy(2))
	s.settle()
	s.join("m2")
	s.set("m1", draining)
	id := s.first(ks).ID
	for range 60 {
		if tr := s.st.PendingTransition(id); tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER {
			s.tell(id, "m2", preparing, func(r *placement.Report) { r.Failed = true })
		}
		s.hpass(time.Second, []state.KeyspaceID{ks}, nil)
	}
	if r := s.st.Region(id); len(r.Owners) != 1 || r.Owners[0].Member != "m1" {
		t.Errorf("m1 served it and m2 failed to prepare it all the time: owners %v", r.Owners)
	}
}

// Regions of keyspace b go to m1, though it fails to acquire one of keyspace a: the others of b are full.
func TestRule11NobodyIsForgottenBesideAnUnfitMember(t *testing.T) {
	s, a := beside(t)
	s.hpass(time.Minute, []state.KeyspaceID{a}, nil)
	limited := epochFence()
	limited.Limits = &rootv1.Limits{MaxRegionsPerMember: 6}
	b := s.keyspace("b", slots(10), limited)
	for range 60 {
		s.hpass(time.Minute, []state.KeyspaceID{a, b}, nil)
		s.work.Wake()
	}
	if n := s.st.KeyspaceOrphaned(b); n > 0 {
		t.Errorf("an hour later %d of 10 regions have no owner: m1 has %d of b, m2 has %d, at most 6 fit; %+v", n,
			s.st.MemberKeyspaceRegionCount("m1", b), s.st.MemberKeyspaceRegionCount("m2", b), s.last.Refusals)
	}
}

// What a process that is over could not acquire is not held against the next one of its member.
func TestRule11FailureOfAnotherProcess(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	s.join("m1") // its process is replaced, with a full disk
	s.settle()
	s.fails = func(id string, _ state.RegionID) bool { return id == "m1" }
	s.hpass(time.Minute, []state.KeyspaceID{s.ks}, nil)
	before := s.counts("m1", "m2")
	s.join("m1") // replaced again: the disk has room
	s.join("m2") // and now m2's disk is full; it gets its regions back
	for _, r := range s.regionsOf("m2") {
		s.give(r, "m2")
	}
	s.settle()
	before = append(before, s.counts("m1", "m2")...)
	s.fails = func(id string, _ state.RegionID) bool { return id == "m2" }
	s.hpass(5*time.Minute, []state.KeyspaceID{s.ks}, nil)
	if got := s.counts("m1", "m2"); got[1] > 0 {
		t.Errorf("before m2 failed the members had %v; 5 minutes later m2, which serves nothing, has %v; m1 is well; unfit: m1 %v m2 %v", before, got, s.unfit("m1"), s.unfit("m2"))
	}
}

// A trial that ended while nobody followed is none any more: what else a member fails to acquire
// goes elsewhere.
func TestRule11TrialThatEndedInAJump(t *testing.T) {
	s := newServed(t, "m1", "m2")
	s.settle()
	s.fails = func(id string, _ state.RegionID) bool { return id == "m2" }
	var tried state.RegionID
	for range 60 {
		s.pass(time.Second)
		if tried = s.moving(); tried != 0 {
			break
		}
	}
	if tried == 0 {
		t.Fatal("nothing is tried elsewhere")
	}
	followed := s.unserved
	s.unserved = nil
	s.tell(tried, "m1", ready)
	s.tell(tried, "m2", released, frontier("f"))
	for range 3 {
		s.round()
	}
	if s.unserved = followed; s.owner(tried) != "m1" {
		t.Fatalf("it is %s's", s.owner(tried))
	}
	s.pass(2 * time.Minute)
	s.wantCounts([]int{0, 12}, "m1", "m2")
}

// moving is a region that is on its way; 0: none is.
func (s *served) moving() (id state.RegionID) {
	s.st.Transitions(func(t *rootv1.Transition) bool {
		if t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			id = state.RegionID(t.GetRegionId())
		}
		return true
	})
	return id
}
