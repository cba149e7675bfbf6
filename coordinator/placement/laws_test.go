package placement_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// asBytes is a plan as bytes.
func asBytes(p placement.Plan) []byte { return fmt.Appendf(nil, "%+v", p) }

// act does one thing that may happen to a cluster.
func (c *cluster) act(t *rapid.T) {
	id := rapid.SampledFrom([]string{"m1", "m2", "m3", "m4"}).Draw(t, "member")
	m := c.st.Member(state.MemberID(id))
	var regions []state.RegionID
	for ks := range 4 {
		c.st.RegionsFrom(state.KeyspaceID(ks+2), "", func(r *state.Region) bool {
			regions = append(regions, r.ID)
			return true
		})
	}
	region := rapid.SampledFrom(regions).Draw(t, "region")
	switch rapid.IntRange(0, 9).Draw(t, "act") {
	case 0:
		c.join(id, rapid.SampledFrom([][]string{nil, nil, {"a", "b", "d"}, {"c", "d"}}).Draw(t, "keyspaces")...)
	case 1:
		c.propose(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: failed}}})
		c.fences[fmt.Sprint(id, "/", m.GetIncarnation())] = c.now.Add(20 * time.Second)
	case 2:
		c.propose(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: draining}}})
	case 3:
		c.shy[state.MemberID(id)] = !c.shy[state.MemberID(id)]
		c.work.Wake()
	case 4:
		c.now = c.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 61}).Draw(t, "s")) * time.Second)
	case 5, 6, 7:
		if x := c.st.PendingTransition(region); x != nil {
			c.tell(region, x.GetOwner().GetMemberId(), ready)
			if from := x.GetFrom().GetMemberId(); from != "" && rapid.Bool().Draw(t, "released") {
				c.tell(region, from, released, frontier("f"))
			}
		} else {
			c.tell(region, id, serving, func(r *placement.Report) { r.Load = uint64(region) % 5 })
		}
	case 8:
		if r := c.st.Region(region); m != nil {
			c.propose(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
				RegionId: uint64(region), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: id}},
			}}}}})
		}
	case 9:
		if x := c.st.PendingTransition(region); x != nil {
			c.propose(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: x.GetId()}}})
		}
	}
}

// atOnce is how many moves may be under way from a member, and to one, in laws; ruled is which tier may
// have keyspace d, and perMember how many of its regions.
const (
	atOnce    = 2
	ruled     = "x"
	perMember = 3
)

// lawful makes keyspaces of each kind, of which members m1 to m4 take some.
func (c *cluster) lawful() {
	c.labels = map[string]map[string]string{"m1": {"tier": ruled}, "m2": {"tier": "y"}, "m3": {"tier": ruled}, "m5": {"tier": ruled}}
	d := epochFence()
	d.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{{Labels: map[string]string{"tier": ruled}}}}
	d.Limits = &rootv1.Limits{MaxRegionsPerMember: perMember}
	for _, k := range []struct {
		name string
		s    *rootv1.KeyspaceSettings
	}{{"a", epochFence()}, {"b", ttlFence()}, {"c", sharedBy(3)}, {"d", d}} {
		k.s.Moves = &rootv1.Moves{InFlight: atOnce}
		if k.s.Policy == nil {
			k.s.Policy = &rootv1.Policy{}
		}
		k.s.Policy.Rebalance = &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200, InFlight: atOnce}
		c.keyspace(k.name, slots(uint32(4+k.s.GetLimits().GetMaxRegionsPerMember())), k.s)
	}
}

// Whatever happens, in whatever order the lists are: the same plan; every operation is
// one that the root takes; nothing is taken from who may still act, and nothing goes where it
// may not; and what followed the changes knows as much as what looks at everything.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.lawful()
		book, budgets := load.NewBook(1000), map[state.KeyspaceID]balance.Budget{}
		for range rapid.IntRange(1, 60).Draw(t, "acts") {
			c.act(t)
			in := c.work.Take(c, c.now)
			if rapid.Bool().Draw(t, "even") {
				c.weigh(t, book)
				in.Loads, in.Rebalance, in.Budgets = book, []state.KeyspaceID{5, 2, 4, 3}, maps.Clone(budgets)
			}
			plan := placement.Make(in)
			for id, out := range plan.Balanced {
				budgets[id] = out.Budget
			}
			rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)).Shuffle(len(in.Regions), func(i, j int) { in.Regions[i], in.Regions[j] = in.Regions[j], in.Regions[i] })
			in.Regions, in.Draining = append(in.Regions, in.Regions...), append(slices.Clone(in.Draining), in.Draining...)
			slices.Reverse(in.Draining)
			slices.Reverse(in.Rebalance)
			if again := placement.Make(in); !bytes.Equal(asBytes(plan), asBytes(again)) {
				t.Fatalf("two plans:\n%+v\n%+v", plan, again)
			}
			c.work.Planned(&plan)
			c.safe(t, plan)
			c.eligible(t, plan)
			c.root(plan)
		}
		c.complete(t)
	})
}

// weigh has members that are there tell loads.
func (c *cluster) weigh(t *rapid.T, book *load.Book) {
	for ks := range state.KeyspaceID(4) {
		c.st.RegionsFrom(ks+2, "", func(r *state.Region) bool {
			book.Follow(r.ID, r.Epoch, r.Owners, c.now)
			for _, o := range r.Owners {
				book.Report(r.ID, o.Incarnation, r.Epoch, float64(rapid.SampledFrom([]int{0, 1, 9}).Draw(t, "load")), c.now)
				book.Heard(o.Incarnation, c.now)
			}
			return true
		})
	}
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		book.Heard(c.st.Member(state.MemberID(id)).GetIncarnation(), c.now)
	}
}

// eligible fails for what goes to a member that may not get it, and for more at a time than may be.
func (c *cluster) eligible(t *rapid.T, plan placement.Plan) {
	takes, gives, counts := map[state.MemberID]int{}, map[state.MemberID]int{}, map[state.MemberID]int{}
	for _, o := range plan.Operations {
		r := c.st.Region(o.Region)
		to := o.Owners
		if o.Kind == placement.PlanMove || o.Kind == placement.AddOwner {
			to = []state.Owner{o.To}
			takes[o.To.Member]++
		} else if o.Kind != placement.Assign {
			to = nil
		}
		if o.Kind == placement.PlanMove || o.Kind == placement.RemoveOwner {
			gives[o.From.Member]++
		}
		if o.Kind == placement.Assign && o.Keyspace == 5 { // from who is over, and was counted
			for _, x := range r.Owners {
				counts[x.Member]--
			}
		}
		for _, x := range to {
			if slices.Contains(r.Owners, x) {
				continue
			}
			m, k := c.st.Member(x.Member), c.st.Keyspace(o.Keyspace)
			counts[x.Member] += int(o.Keyspace / 5)
			switch {
			case m.GetState() != active || m.GetIncarnation() != x.Incarnation || c.shy[x.Member]:
				t.Fatalf("%+v goes to who is not there", o)
			case len(m.GetKeyspaces()) > 0 && !slices.Contains(m.GetKeyspaces(), k.GetName()):
				t.Fatalf("%+v goes to who takes nothing of %s", o, k.GetName())
			case o.Keyspace == 5 && m.GetLabels()["tier"] != ruled:
				t.Fatalf("%+v breaks the label rule", o)
			case o.Keyspace == 5 && c.st.MemberKeyspaceRegionCount(x.Member, 5)+counts[x.Member] > perMember:
				t.Fatalf("%+v breaks the limit", o)
			}
		}
	}
	moves := c.work.Moves()
	for id, n := range takes {
		if moves.Takes(id)+n > atOnce {
			t.Fatalf("%d moves to %s beside %d: %+v", n, id, moves.Takes(id), plan.Operations)
		}
	}
	for id, n := range gives {
		if moves.Gives(id)+n > atOnce {
			t.Fatalf("%d moves from %s beside %d: %+v", n, id, moves.Gives(id), plan.Operations)
		}
	}
}

// safe fails for a grant of what somebody may still act for. Who may not own a region, and keeps it, has it taken off:
// nobody gets it in the same step.
func (c *cluster) safe(t *rapid.T, plan placement.Plan) {
	seen := map[state.RegionID]bool{}
	for _, o := range plan.Operations {
		if seen[o.Region] {
			t.Fatalf("two operations for region %d: %+v", o.Region, plan.Operations)
		}
		seen[o.Region] = true
		r := c.st.Region(o.Region)
		if o.Kind != placement.Assign || o.Keyspace == 4 {
			continue
		}
		for _, old := range r.Owners {
			m := c.st.Member(old.Member)
			if o.Reason == rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED && len(o.Owners) == 0 && !placement.Accepts(c.st, m, c.st.Keyspace(o.Keyspace).GetName()) {
				continue
			}
			if m.GetIncarnation() == old.Incarnation && (m.GetState() == active || m.GetState() == draining) {
				t.Fatalf("%+v takes a region from %+v, which is there", o, old)
			}
			if at := c.ClearAt(old.Member, old.Incarnation, liveness.Fence{TTL: 20 * time.Second}); o.Keyspace == 3 && at > c.now {
				t.Fatalf("%+v takes a region from %+v before its fence has run out", o, old)
			}
		}
	}
}

// complete compares with a Work that looked at everything, and has everything owned
// and at rest in the end.
func (c *cluster) complete(t *rapid.T) {
	fresh := placement.NewWork(c.st, c.now)
	if a, b := movesOf(c.work), movesOf(fresh); !reflect.DeepEqual(a, b) {
		t.Fatalf("the moves followed are %v, those found %v", a, b)
	}
	c.join("m5")
	for id := range c.shy {
		c.shy[id] = false
	}
	c.work.Wake()
	for _, old := range []string{"m1", "m2", "m3", "m4", "m5"} {
		for i := range uint64(200) {
			c.fences[fmt.Sprint(old, "/", i)] = 0
		}
	}
	for range 60 { // what was tried in vain rests for minutes
		c.now = c.now.Add(time.Second)
		c.work.Wake() // who looks after it does so now and then
		c.round()
		c.st.Transitions(func(x *rootv1.Transition) bool {
			if id := state.RegionID(x.GetRegionId()); c.st.PendingTransition(id) == x {
				c.tell(id, x.GetOwner().GetMemberId(), ready)
				if from := x.GetFrom().GetMemberId(); from != "" {
					c.tell(id, from, released, frontier("f"))
				}
			}
			return true
		})
		for ks := range state.KeyspaceID(4) {
			c.st.RegionsFrom(ks+1, "", func(r *state.Region) bool {
				for _, o := range r.Owners {
					x := c.st.PendingTransition(r.ID)
					if id := string(o.Member); id != x.GetOwner().GetMemberId() && id != x.GetFrom().GetMemberId() {
						c.tell(r.ID, id, serving) // it may have been added for another one
					}
				}
				return true
			})
		}
		c.now = c.now.Add(10 * time.Second) // who is to be removed has time enough
	}
	if n := c.work.Moves().Len(); n != 0 {
		t.Fatalf("%d moves never end", n)
	}
	ruledMembers := 0
	c.st.Members(func(m *rootv1.Member) bool {
		if m.GetState() == active && m.GetLabels()["tier"] == ruled {
			ruledMembers++
		}
		return true
	})
	for ks := range 4 {
		if ks == 3 && ruledMembers < 3 {
			continue // they have no room for all
		}
		c.st.RegionsFrom(state.KeyspaceID(ks+2), "", func(r *state.Region) bool {
			if len(r.Owners) == 0 {
				t.Fatalf("region %d is nobody's", r.ID)
			}
			for _, o := range r.Owners {
				if m := c.st.Member(o.Member); m.GetIncarnation() != o.Incarnation || m.GetState() != active && m.GetState() != draining {
					t.Fatalf("region %d is %+v's, which is gone", r.ID, o)
				}
			}
			return true
		})
	}
}

func movesOf(w *placement.Work) (counts [][2]int) {
	for _, id := range []state.MemberID{"m1", "m2", "m3", "m4"} {
		counts = append(counts, [2]int{w.Moves().Gives(id), w.Moves().Takes(id)})
	}
	return counts
}

// BenchmarkFailure is one of 1,000 members that dies, with its part of 100,000 regions:
// from the change in the view to the plan.
func BenchmarkFailure(b *testing.B) { benchmarkFailure(b, epochFence(), nil, false) }

// BenchmarkFailureByLoad is that where keyspaces are evened out by load: what members have is
// weighed as a round weighs it.
func BenchmarkFailureByLoad(b *testing.B) {
	benchmarkFailure(b, fencedByLoad(), load.NewBook(1<<20), false)
}

// BenchmarkFailureByLoadAnew is the first plan in a while: everything is weighed for it.
func BenchmarkFailureByLoadAnew(b *testing.B) {
	benchmarkFailure(b, fencedByLoad(), load.NewBook(1<<20), true)
}

func fencedByLoad() *rootv1.KeyspaceSettings {
	s := epochFence()
	s.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}}
	return s
}

func benchmarkFailure(b *testing.B, s *rootv1.KeyspaceSettings, book *load.Book, anew bool) {
	const members = 1000
	c := newCluster(b)
	for i := range members {
		c.join(fmt.Sprintf("m%03d", i))
	}
	for i := range 10 {
		ks := c.keyspace(fmt.Sprintf("ks%d", i), slots(10_000), s)
		c.settle()
		for _, r := range regionsOf(c.st, ks) {
			if book != nil {
				book.Follow(r.ID, r.Epoch, r.Owners, c.now)
				book.Report(r.ID, r.Owners[0].Incarnation, r.Epoch, float64(1+r.ID%7), c.now)
			}
		}
	}
	sums := &placement.Sums{}
	if n := c.st.MemberRegionCount("m500"); n != 100 {
		b.Fatalf("it owns %d regions", n)
	}
	before := c.st
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		c.st, c.work = before, placement.NewWork(before, c.now)
		c.plan()
		if anew {
			sums = &placement.Sums{}
		}
		b.StartTimer()
		c.set("m500", failed)
		in := c.work.Take(c, c.now)
		in.Attempts, in.Loads, in.Sums = c.attempts, book, sums
		if plan := placement.Make(in); len(plan.Operations) != 100 {
			b.Fatalf("%d operations", len(plan.Operations))
		}
	}
}

// What a plan gives to members by repair counts for what it moves there to put something
// right: a member gets no more of both than it may have.
func TestLimitHoldsForRepairAndRoundsTogether(t *testing.T) {
	c := newCluster(t)
	c.labels = map[string]map[string]string{"m1": {"tier": "x"}}
	s := epochFence()
	s.Limits = &rootv1.Limits{MaxRegionsPerMember: 3}
	c.join("m2")
	c.join("m3")
	ks := c.keyspace("d", slots(6), s)
	c.settle()
	s.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{{Labels: map[string]string{"tier": "x"}}}}
	c.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: uint32(ks), ExpectedVersion: 1, Settings: s}}})
	c.join("m1")
	c.set("m2", failed) // its three are orphans, and those of the third member are where they may not be
	in := c.work.Take(c, c.now)
	in.Rebalance = []state.KeyspaceID{ks}
	gets := 0
	for _, o := range placement.Make(in).Operations {
		if o.To.Member == "m1" || len(o.Owners) > 0 && o.Owners[0].Member == "m1" {
			gets++
		}
	}
	if gets != 3 {
		t.Errorf("it gets %d regions, 3 is the limit", gets)
	}
}
