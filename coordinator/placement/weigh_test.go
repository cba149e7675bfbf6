package placement_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// loaded is a cluster in which members have ten regions each of one keyspace, that is evened
// out by load, and tell loads.
type loaded struct {
	*cluster
	ks   state.KeyspaceID
	book *load.Book
	of   map[state.RegionID]float64
}

// newLoaded has a member's regions have a load each; negative: it tells none. most is what each
// member says that it can take.
func newLoaded(t failer, most float64, loads map[string]float64) *loaded {
	l := &loaded{cluster: newCluster(t), book: load.NewBook(1 << 10), of: map[state.RegionID]float64{}}
	for id := range loads {
		l.join(id)
	}
	s := epochFence()
	s.Moves = &rootv1.Moves{InFlight: 1000}
	s.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}}
	l.ks = l.keyspace("ks", slots(uint32(10*len(loads))), s)
	l.settle()
	totals := map[uint64]float64{}
	for _, r := range regionsOf(l.st, l.ks) {
		l.book.Follow(r.ID, r.Epoch, r.Owners, l.now)
		if x := loads[string(r.Owners[0].Member)]; x >= 0 {
			l.of[r.ID] = x
			totals[r.Owners[0].Incarnation] += x
			l.book.Report(r.ID, r.Owners[0].Incarnation, r.Epoch, x, l.now)
		}
	}
	l.st.Members(func(m *rootv1.Member) bool {
		l.book.Total(m.GetIncarnation(), totals[m.GetIncarnation()], most, l.now)
		return true
	})
	return l
}

// drain has a member drain, and its moves begin; whom says how many regions go to whom.
func (l *loaded) drain(id string) (whom map[state.MemberID]int) {
	l.Helper()
	l.set(id, draining)
	in := l.work.Take(l, l.now)
	in.Loads = l.book
	plan := placement.Make(in)
	l.work.Planned(&plan)
	l.root(plan)
	whom = map[state.MemberID]int{}
	for _, o := range plan.Operations {
		whom[o.To.Member]++
	}
	return whom
}

// evens is how many moves the next round begins while those of drains are under way.
func (l *loaded) evens() int {
	in := placement.Input{State: l.st, Observed: l, Moves: l.work.Moves(), Now: l.now.Add(time.Second), Rebalance: []state.KeyspaceID{l.ks}, Loads: l.book}
	return len(placement.Make(in).Balanced[l.ks].Steps)
}

// moves has a keyspace have so many moves under way from a member, and to one, and evens out something.
func (l *loaded) moves(inFlight uint64, by rootv1.BalanceBy) {
	s := proto.CloneOf(l.st.Keyspace(l.ks).GetSettings())
	s.Moves.InFlight, s.Policy.Rebalance.By = inFlight, by
	l.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
		KeyspaceId: uint32(l.ks), ExpectedVersion: l.st.Keyspace(l.ks).GetVersion(), Settings: s,
	}}})
}

// Sums that are kept from plan to plan go on by what changes: while members drain, fail and come back each plan is
// what it would be if everything was weighed anew.
func TestKeptSumsAreWhatNewOnesWouldBe(t *testing.T) {
	l := newLoaded(t, 0, map[string]float64{"m1": 1, "m2": 3, "m3": 2, "m4": 5, "m5": -1})
	sums := &placement.Sums{}
	l.follows = func(changes []state.Change) {
		sums.Follow(l.book, changes, l.now)
		for _, x := range changes {
			if x.Kind == state.ChangeRegion {
				l.book.Follow(x.Region.ID, x.Region.Epoch, x.Region.Owners, l.now)
			}
		}
	}
	l.moves(3, rootv1.BalanceBy_BALANCE_BY_LOAD)
	operations := 0
	for turn := range 60 {
		switch turn {
		case 0:
			l.set("m1", draining)
		case 10:
			l.set("m4", failed)
		case 15:
			l.moves(2, rootv1.BalanceBy_BALANCE_BY_BOTH)
		case 20:
			l.join("m6")
			l.set("m5", draining)
		}
		in := l.work.Take(l, l.now)
		in.Loads, in.Sums = l.book, sums
		plan := placement.Make(in)
		in.Sums = nil
		if want := placement.Make(in); !reflect.DeepEqual(plan, want) {
			t.Fatalf("plan %d is %+v, and anew %+v", turn, plan, want)
		}
		operations += len(plan.Operations)
		l.work.Planned(&plan)
		l.root(plan)
		l.obey(l.ks)
	}
	if n := l.st.MemberRegionCount("m1") + l.st.MemberRegionCount("m4") + l.st.MemberRegionCount("m5"); n > 0 || operations < 30 {
		t.Errorf("%d operations, and %d regions stay", operations, n)
	}
}

// A keyspace is weighed once in a while, and not for each wave of a drain.
func TestDrainsWeighOnceInAWhile(t *testing.T) {
	l := newLoaded(t, 0, map[string]float64{"m1": 1, "m2": 2, "m3": 2})
	l.keyspace("big", slots(4096), epochFence())
	l.settle()
	l.moves(2, rootv1.BalanceBy_BALANCE_BY_LOAD)
	l.set("m1", draining)
	sums := &placement.Sums{}
	heavier := func() (n int) { // how many of two moves go to who has ten times as much
		l.work.Wake()
		in := l.work.Take(l, l.now)
		in.Draining, in.Loads, in.Sums = []state.MemberID{"m1"}, l.book, sums
		for _, o := range placement.Make(in).Operations {
			if o.Keyspace == l.ks && o.To.Member == "m2" {
				n++
			}
		}
		return n
	}
	if n := heavier(); n != 1 {
		t.Fatalf("%d of two moves go to m2, which has as much as m3", n)
	}
	for _, r := range regionsOf(l.st, l.ks) {
		if o := r.Owners[0]; o.Member == "m2" {
			l.book.Report(r.ID, o.Incarnation, r.Epoch, 2e6, l.now)
		}
	}
	l.now = l.now.Add(50 * time.Millisecond)
	if n := heavier(); n != 1 {
		t.Errorf("%d of two moves go to m2 behind 50 ms: 4,126 regions were looked at for two", n)
	}
	l.now = l.now.Add(50 * time.Millisecond)
	if n := heavier(); n != 0 {
		t.Errorf("%d of two moves go to m2 behind 100 ms", n)
	}
}

// What a drain gives away weighs what it weighs in the round behind it, which has nothing left to
// move: also what is idle, of what members can take, and what is not known, or on its way.
func TestDrainsAndRoundsWeighAlike(t *testing.T) {
	for name, c := range map[string]struct {
		most   float64
		loads  map[string]float64
		drains []string
		// want is how many regions members get, the fewest first.
		want []int
	}{
		"idle": {
			1000,
			map[string]float64{"m1": 0, "m2": 0.1, "m3": 0.11, "m4": 0.12},
			[]string{"m1"},
			[]int{3, 3, 4},
		},
		"not known": {
			0,
			map[string]float64{"m1": -1, "m2": 1, "m3": 1.01, "m4": 1.02, "m5": 1.03, "m6": 1.04, "m7": 1.05},
			[]string{"m1"},
			[]int{1, 1, 2, 2, 2, 2},
		},
		"under way": {
			0,
			map[string]float64{"m1": 1, "m2": 3, "m3": 2, "m4": 1},
			[]string{"m1", "m2"},
			[]int{5, 15},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoaded(t, c.most, c.loads)
			got := map[state.MemberID]int{}
			for _, id := range c.drains {
				for to, n := range l.drain(id) {
					got[to] += n
				}
			}
			if n := slices.Sorted(maps.Values(got)); !slices.Equal(n, c.want) {
				t.Errorf("members get %v, want %v", got, c.want)
			}
			if n := l.evens(); n != 0 {
				t.Errorf("%d moves to even out behind the drains", n)
			}
		})
	}
}
