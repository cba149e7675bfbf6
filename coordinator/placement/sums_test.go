package placement_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What members have of other keyspaces is added up anew once in a while, and not for every
// round of a small one.
func TestOtherKeyspacesAreLookedAtOnceInAWhile(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	byLoad := epochFence()
	byLoad.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}}
	small := c.keyspace("small", slots(2), byLoad)
	big := c.keyspace("big", slots(4096), epochFence())
	c.settle()
	book := load.NewBook(1 << 16)
	follow := func(id state.KeyspaceID) {
		c.st.RegionsFrom(id, "", func(r *state.Region) bool {
			book.Follow(r.ID, r.Epoch, r.Owners, c.now)
			return true
		})
	}
	report := func(id state.KeyspaceID, of state.MemberID) {
		c.st.RegionsFrom(id, "", func(r *state.Region) bool {
			if o := r.Owners[0]; of == "" || o.Member == of {
				book.Report(r.ID, o.Incarnation, r.Epoch, 1, c.now)
			}
			return true
		})
	}
	follow(small)
	follow(big)
	report(small, "")
	for _, id := range []string{"m1", "m2"} {
		book.Heard(c.st.Member(state.MemberID(id)).GetIncarnation(), c.now)
	}
	sums := &placement.Sums{}
	imbalance := func(sums *placement.Sums) uint64 {
		in := placement.Input{State: c.st, Observed: c, Moves: c.work.Moves(), Now: c.now, Rebalance: []state.KeyspaceID{small}, Loads: book, Sums: sums}
		return placement.Make(in).Balanced[small].Before
	}
	even := imbalance(sums)
	report(big, "m1")
	uneven := imbalance(nil)
	if even == uneven {
		t.Fatalf("imbalance %d whatever others have", even)
	}
	c.now = c.now.Add(50 * time.Millisecond)
	if got := imbalance(sums); got != even {
		t.Errorf("imbalance %d behind 50 ms, want %d: 4,098 regions were looked at for two", got, even)
	}
	c.now = c.now.Add(50 * time.Millisecond)
	if got := imbalance(sums); got != uneven {
		t.Errorf("imbalance %d behind 100 ms, want %d", got, uneven)
	}
}
