package placement_test

import (
	"maps"
	"slices"
	"testing"
	"time"

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
