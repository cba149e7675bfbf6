package placement_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// BenchmarkEven is a full rebalance of ten or 64 keyspaces by loads of Zipf 0.6, 100 regions for
// each member: from rooted state to the plan. With 1,000 members 200 ms are its bound, with
// 10,000 2 s.
func BenchmarkEven(b *testing.B) {
	for _, members := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) { evenOut(b, members) })
	}
}

func evenOut(b *testing.B, members int) {
	c := newCluster(b)
	for i := range members {
		c.join(fmt.Sprintf("m%05d", i))
	}
	book := load.NewBook(1 << 20)
	in := placement.Input{Policies: map[state.KeyspaceID]balance.Policy{}, Loads: book}
	keyspaces := 10
	if members > 1000 {
		keyspaces = 64 // slots are few thousands
	}
	for i := range keyspaces {
		in.Rebalance = append(in.Rebalance, c.keyspace(fmt.Sprintf("ks%d", i), slots(uint32(100*members/keyspaces)), epochFence()))
		in.Policies[in.Rebalance[i]] = even
		c.settle()
	}
	totals := map[uint64]float64{}
	for _, ks := range in.Rebalance {
		n := uint64(c.st.KeyspaceRegionCount(ks))
		c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
			x := math.Pow(float64(1+uint64(r.ID)*7919%n), -0.6)
			book.Follow(r.ID, r.Epoch, r.Owners, c.now)
			book.Report(r.ID, r.Owners[0].Incarnation, r.Epoch, x, c.now)
			totals[r.Owners[0].Incarnation] += x
			return true
		})
	}
	c.st.Members(func(m *rootv1.Member) bool {
		book.Total(m.GetIncarnation(), totals[m.GetIncarnation()], 0, c.now)
		return true
	})
	in.State, in.Observed, in.Moves, in.Now = c.st, c, c.work.Moves(), c.now.Add(time.Second)
	in.Sums = &placement.Sums{} // kept from plan to plan, as the assigner does
	b.ReportAllocs()
	operations := 0
	for b.Loop() {
		operations = len(placement.Make(in).Operations)
	}
	if operations == 0 {
		b.Fatal("there is nothing to even out")
	}
	b.ReportMetric(float64(operations), "operations")
}
