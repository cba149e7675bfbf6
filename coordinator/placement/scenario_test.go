package placement_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// scene is a cluster with loads, whose members do what they are shown: the next owner of
// a move is ready when asked, or never, and the old one lets go.
type scene struct {
	*cluster
	t         *testing.T
	keyspace  state.KeyspaceID
	policy    balance.Policy
	book      *load.Book
	budget    balance.Budget
	poison    *placement.Poison
	leaves    map[state.MemberID]placement.Leave
	joined    map[state.MemberID]clock.Instant
	drained   clock.Instant
	neverTold bool
	load      func(*state.Region) float64
	moved     map[rootv1.OperationReason]float64
	moves     map[state.RegionID]int
	last      placement.Plan
}

func newScene(t *testing.T, regions uint32, p balance.Policy, members ...string) *scene {
	s := &scene{
		cluster: newCluster(t), t: t, book: load.NewBook(1 << 20), poison: placement.NewPoison(placement.PoisonTime), policy: p,
		leaves: map[state.MemberID]placement.Leave{}, joined: map[state.MemberID]clock.Instant{},
		moved: map[rootv1.OperationReason]float64{}, moves: map[state.RegionID]int{}, load: func(*state.Region) float64 { return 1 },
	}
	s.now = clock.Instant(time.Hour)
	for _, id := range members {
		s.join(id)
	}
	settings := epochFence()
	settings.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{MeanPermille: 1200}}
	s.keyspace = s.cluster.keyspace("ks", slots(regions), settings)
	s.settle()
	s.report()
	s.now = s.now.Add(20 * time.Minute)
	s.report()
	return s
}

func (s *scene) Member(id state.MemberID) placement.MemberInsight {
	return placement.MemberInsight{Joined: s.joined[id]}
}

func (s *scene) Region(id state.RegionID) placement.RegionInsight {
	return placement.RegionInsight{Quarantined: s.poison.Quarantined(id)}
}

// report tells all loads.
func (s *scene) report() {
	totals := map[uint64]float64{}
	s.st.RegionsFrom(s.keyspace, "", func(r *state.Region) bool {
		s.book.Follow(r.ID, r.Epoch, r.Owners, s.now)
		for _, o := range r.Owners {
			if l := s.load(r); s.st.Acts(o) {
				s.book.Report(r.ID, o.Incarnation, r.Epoch, l, s.now)
				totals[o.Incarnation] += l
			}
		}
		return true
	})
	s.st.Members(func(m *rootv1.Member) bool {
		s.book.Total(m.GetIncarnation(), totals[m.GetIncarnation()], 0, s.now)
		return true
	})
}

// step plans, has the root take it, and has the members do their part.
func (s *scene) step() placement.Plan {
	s.t.Helper()
	in := s.work.Take(s.cluster, s.now)
	in.Rebalance, in.Loads, in.Insight = []state.KeyspaceID{s.keyspace}, s.book, s
	in.Policies, in.Budgets = map[state.KeyspaceID]balance.Policy{s.keyspace: s.policy}, map[state.KeyspaceID]balance.Budget{s.keyspace: s.budget}
	in.Leaves, in.Drained = s.leaves, s.drained
	s.last = placement.Make(in)
	s.work.Planned(&s.last)
	s.budget = s.last.Balanced[s.keyspace].Budget
	for _, o := range s.last.Operations {
		if o.Kind == placement.PlanMove {
			s.moved[o.Reason] += s.load(s.st.Region(o.Region))
			s.moves[o.Region]++
		}
	}
	s.root(s.last)
	s.st.Transitions(func(x *rootv1.Transition) bool {
		id := state.RegionID(x.GetRegionId())
		if s.st.PendingTransition(id) != x {
			return true
		}
		if !s.neverTold {
			s.tell(id, x.GetOwner().GetMemberId(), ready)
		}
		if from := x.GetFrom().GetMemberId(); x.GetReadyAt() != nil && s.st.Acts(state.Owner{Member: state.MemberID(from), Incarnation: x.GetFrom().GetIncarnation()}) {
			s.tell(id, from, released, frontier("f"))
		}
		return true
	})
	return s.last
}

// run goes on for a time.
func (s *scene) run(d time.Duration) {
	s.t.Helper()
	for until := s.now.Add(d); s.now < until; s.now = s.now.Add(time.Second) {
		s.step()
		s.report()
	}
}

func (s *scene) balanced() (moved float64) {
	return s.moved[rootv1.OperationReason_OPERATION_REASON_COUNT] + s.moved[rootv1.OperationReason_OPERATION_REASON_LOAD] + s.moved[rootv1.OperationReason_OPERATION_REASON_HOT]
}

func (s *scene) all() (moved float64) {
	for _, m := range s.moved {
		moved += m
	}
	return moved
}

var even = balance.Policy{By: balance.Load, Even: true, Relative: 1200}

func names(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("m%03d", i))
	}
	return ids
}

// The moves of a join are as few as there can be, by the root too; of a death, only its
// regions go elsewhere.
func TestA44R08R09Scenario01JoinAndDeath(t *testing.T) {
	s := newScene(t, 128, even, "m1", "m2", "m3")
	s.join("m4")
	s.joined["m4"] = s.now
	s.run(30 * time.Second)
	s.wantCounts([]int{32, 32, 32, 32}, "m1", "m2", "m3", "m4")
	if s.all() != 32 {
		t.Errorf("%v moved", s.moved)
	}

	s = newScene(t, 1024, even, "m1", "m2", "m3", "m4")
	s.set("m4", failed)
	plan := s.step()
	s.wantCounts([]int{341, 341, 342}, "m1", "m2", "m3")
	if len(plan.Operations) != 256 || s.all() != 0 {
		t.Errorf("%d operations, %v moved", len(plan.Operations), s.moved)
	}
}

// One of many dies: its regions go, hottest first, to who has least; nobody has too much afterwards.
func TestScenario16OneOfManyDies(t *testing.T) {
	s := newScene(t, 2000, even, names(100)...)
	s.load = func(r *state.Region) float64 { return 1 + float64(uint64(r.ID)%7) }
	s.report()
	s.now = s.now.Add(20 * time.Minute)
	s.report()
	dead := map[state.RegionID]bool{}
	s.st.MemberRegionsAfter("m050", 0, func(r *state.Region) bool {
		dead[r.ID] = true
		return true
	})
	s.set("m050", failed)
	plan := s.step()
	n := 0
	for _, o := range plan.Operations {
		if o.Kind != placement.Assign {
			continue
		}
		if n++; !dead[o.Region] {
			t.Errorf("%+v is not its region", o)
		}
	}
	if n != len(dead) {
		t.Errorf("%d of %d regions are given out", n, len(dead))
	}
	if !slices.IsSortedFunc(plan.Operations, func(a, b placement.Operation) int {
		return cmp.Or(cmp.Compare(min(a.Kind, placement.PlanMove), min(b.Kind, placement.PlanMove)), cmp.Compare(b.Load, a.Load))
	}) {
		t.Error("the hottest do not come first")
	}
	s.report()
	if worst := s.worst(); worst > 1.2 {
		t.Errorf("the fullest has %.2f of the mean", worst)
	}
}

// worst is the highest load of an active member by the mean.
func (s *scene) worst() float64 {
	by, sum, most, n := map[state.MemberID]float64{}, 0.0, 0.0, 0.0
	s.st.RegionsFrom(s.keyspace, "", func(r *state.Region) bool {
		for _, o := range r.Owners {
			by[o.Member] += s.load(r)
			sum += s.load(r)
		}
		return true
	})
	s.st.Members(func(m *rootv1.Member) bool {
		if m.GetState() == active {
			n++
			most = max(most, by[state.MemberID(m.GetId())])
		}
		return true
	})
	return most / (sum / n)
}

// More than half are not heard: nothing is evened out, and that is said.
func TestScenario17MostVanish(t *testing.T) {
	s := newScene(t, 100, even, names(10)...)
	s.join("m999")
	s.joined["m999"] = s.now
	s.report()
	for _, id := range names(6) {
		s.shy[state.MemberID(id)] = true
	}
	plan := s.step()
	if len(plan.Operations) != 0 || len(plan.Refusals) != 1 || plan.Refusals[0].Why != placement.MassFailureHold || plan.Refusals[0].Why.String() != "mass_failure_hold" {
		t.Fatalf("the plan is %+v", plan)
	}
	clear(s.shy)
	if plan := s.step(); len(plan.Operations) == 0 {
		t.Error("nothing happens when they are heard again")
	}
}

// A member with 1,000 regions has 30 seconds: all are elsewhere when four fifths of that are
// over, also if nobody ever says that it is ready.
func TestScenario18DrainBeforeTheDeadline(t *testing.T) {
	for _, seconds := range []int{30, 12} {
		for _, never := range []bool{false, true} {
			s := newScene(t, 1000, even, "m000")
			for _, id := range names(10)[1:] {
				s.join(id)
			}
			s.neverTold = never
			s.leaves["m000"] = placement.Leave{Said: s.now, Ends: s.now.Add(time.Duration(seconds) * time.Second)}
			s.set("m000", draining)
			for range seconds * 8 / 10 {
				s.step()
				if n := s.st.Orphaned(); n != 0 {
					t.Fatalf("%d are orphaned", n)
				}
				s.now = s.now.Add(time.Second)
			}
			if n := s.st.MemberRegionCount("m000"); n != 0 {
				t.Errorf("with %d s it still has %d regions", seconds, n)
			}
		}
	}
}

// What a member that drains has goes to the newest of those that joined and are let be.
func TestDrainsGoToTheNewestJoiner(t *testing.T) {
	s := newScene(t, 40, even, names(4)...)
	s.policy.Settle = time.Minute
	for _, id := range []string{"m900", "m800"} {
		s.join(id)
		s.joined[state.MemberID(id)] = s.now
	}
	s.report()
	s.set("m000", draining)
	s.run(10 * time.Second)
	if got := s.counts("m900", "m800"); got[0] != 4 || got[1] != 6 {
		t.Errorf("they have %v, want the newest to have its part of six, and the other one the rest", got)
	}
}

// A roll of twelve: with one spare member each region moves about once, and next to none to even out.
func TestScenario19RollingRestart(t *testing.T) {
	for _, surge := range []bool{true, false} {
		s := newScene(t, 240, even, names(12)...)
		s.policy.Settle = 30 * time.Second
		if surge {
			s.join("spare")
			s.joined["spare"] = s.now
			s.report()
		}
		for _, id := range names(12) {
			s.leaves[state.MemberID(id)] = placement.Leave{Said: s.now, Ends: s.now.Add(30 * time.Second)}
			s.set(id, draining)
			s.drained = s.now
			for n := 0; s.st.MemberRegionCount(state.MemberID(id)) > 0; n++ {
				if s.run(time.Second); n > 24 {
					t.Fatalf("%s is not drained in time", id)
				}
			}
			s.set(id, failed)
			s.now = s.now.Add(2 * time.Second)
			delete(s.leaves, state.MemberID(id))
			s.join(id)
			s.joined[state.MemberID(id)] = s.now
			s.report()
		}
		if surge {
			s.set("spare", draining)
		}
		s.run(3 * time.Minute)
		all, most := s.all()/240, 2.3
		if surge {
			most = 1.3
		}
		t.Logf("surge %v: moved %.2f of the load, %.3f to even out, the fullest has %.2f", surge, all, s.balanced()/240, s.worst())
		if all > most {
			t.Errorf("surge %v: %.2f of the load moved, %.1f may", surge, all, most)
		}
		if surge && s.balanced() > 0.05*240 {
			t.Errorf("%.2f of the load moved to even out", s.balanced()/240)
		}
		if s.worst() > 1.2 {
			t.Errorf("surge %v: the fullest has %.2f of the mean", surge, s.worst())
		}
	}
}

// A region that kills its owners is given out no more after the third, but to a member that has nothing;
// those that died with it are.
func TestScenario23PoisonousRegion(t *testing.T) {
	s := newScene(t, 40, even, names(16)...)
	s.follows = func(changes []state.Change) { s.poison.Follow(s.st, changes, s.now) }
	r := s.first(s.keyspace).ID
	s.now = s.now.Add(10 * time.Minute)
	// It was owned for long when the first one dies; then three owners die of it, soon after they got it.
	for n := range 4 {
		owner := s.owner(r)
		s.now = s.now.Add(5 * time.Second)
		s.set(owner, failed)
		s.step()
		if got := s.poison.Quarantined(r); got != (n == 3) {
			t.Fatalf("after %d deaths it is quarantined: %v", n+1, got)
		}
	}
	if !slices.ContainsFunc(s.last.Refusals, func(f placement.Refusal) bool {
		return f.Region == r && f.Why == placement.PoisonSuspected
	}) {
		t.Fatalf("the refusals are %+v", s.last.Refusals)
	}
	if n := s.st.Orphaned(); n != 1 {
		t.Fatalf("%d regions are orphaned", n)
	}
	s.st.RegionsFrom(s.keyspace, "", func(x *state.Region) bool {
		if x.ID != r && s.poison.Quarantined(x.ID) {
			t.Errorf("region %d is quarantined", x.ID)
		}
		return true
	})
	s.now = s.now.Add(10 * time.Minute)
	s.poison.Expire(s.now)
	s.step()
	if n := s.st.Orphaned(); n != 0 {
		t.Errorf("its time is over, and it is not given out")
	}
}

// Where members die of something else, their regions are not quarantined for it.
func TestScenario23MembersDieOfSomethingElse(t *testing.T) {
	s := newScene(t, 40, even, names(6)...)
	s.follows = func(changes []state.Change) { s.poison.Follow(s.st, changes, s.now) }
	s.now = s.now.Add(10 * time.Minute)
	for n := range 24 { // whose regions all go to one other, which dies next
		id := names(6)[n%2]
		s.now = s.now.Add(5 * time.Second)
		s.set(id, failed)
		s.step()
		s.join(id)
		for _, other := range names(6)[2:] {
			s.shy[state.MemberID(other)] = true
		}
		s.step()
	}
	if n := s.st.Orphaned(); n != 0 {
		t.Errorf("%d regions are orphaned", n)
	}
	n := 0
	s.st.RegionsFrom(s.keyspace, "", func(x *state.Region) bool {
		if s.poison.Quarantined(x.ID) {
			n++
		}
		return true
	})
	if n > 1 { // that one was with each of the first ones that died
		t.Errorf("%d regions are quarantined", n)
	}
}

// The next holder goes on with what is rooted, and no region moves twice.
func TestScenario24NextHolderGoesOn(t *testing.T) {
	s := newScene(t, 200, even, names(4)...)
	s.join("m100")
	s.joined["m100"] = s.now
	s.report()
	s.step()
	if s.all() == 0 {
		t.Fatal("nothing moves")
	}
	s.work = placement.NewWork(s.st, s.now)
	s.budget = balance.Budget{}
	s.run(time.Minute)
	for id, n := range s.moves {
		if n > 1 {
			t.Errorf("region %d moved %d times", id, n)
		}
	}
	s.wantCounts([]int{40, 40, 40, 40, 40}, append(names(4), "m100")...)
}
