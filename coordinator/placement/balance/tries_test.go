package balance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// owned is an input in which the members m1, m2 ... have so many regions, of load one each.
func owned(p balance.Policy, counts ...int) balance.Input {
	p.Even = true
	in := balance.Input{Keyspace: 2, Policy: p, Now: clock.Instant(10 * time.Hour)}
	for i, n := range counts {
		m := balance.Member{ID: state.MemberID(fmt.Sprintf("m%d", i+1)), Incarnation: uint64(i + 1), Takes: true, Regions: n}
		in.Members = append(in.Members, m)
		for range n {
			in.Regions = append(in.Regions, balance.Region{
				ID: state.RegionID(len(in.Regions) + 1), Owners: []state.Owner{{Member: m.ID, Incarnation: m.Incarnation}}, Load: load.Same(load.One), Known: true,
			})
		}
	}
	return in
}

// A plan takes from each as much as it has too much, in one go where so many moves may be
// under way: what it has begun is not tried again.
func TestFillTakesAllThatAMemberLacks(t *testing.T) {
	for _, p := range []balance.Policy{byCount, byLoad} {
		p.InFlight = 1000
		if n := len(balance.Make(owned(p, 300, 300, 0)).Steps); n != 200 {
			t.Errorf("by %v: %d moves are begun for one that has nothing, want 200", p.By, n)
		}
	}
}

// Regions that cannot move are not in the way of those that can, also where they are most.
func TestWhatCannotMoveIsPassed(t *testing.T) {
	for _, p := range []balance.Policy{byCount, byLoad} {
		for what, counts := range map[string][]int{"fill": {300, 0}, "shed": {300, 100}} {
			p.InFlight, p.Round = 1000, 1000
			in := owned(p, counts...)
			first := balance.Make(in).Steps
			busy := map[state.RegionID]bool{}
			for i := 0; len(busy) < 150; i++ { // those that would move, and others
				if i < len(first) {
					busy[first[i].Region] = true
				} else {
					busy[state.RegionID(1+i-len(first))] = true
				}
			}
			for i := range in.Regions {
				in.Regions[i].Busy = busy[in.Regions[i].ID]
			}
			again := balance.Make(in).Steps
			if len(again) != len(first) {
				t.Errorf("%s by %v: %d moves while half of the regions cannot move, and %d if all can", what, p.By, len(again), len(first))
			}
			if slices.ContainsFunc(again, func(s balance.Step) bool { return busy[s.Region] }) {
				t.Errorf("%s by %v: what cannot move moves", what, p.By)
			}
		}
	}
}
