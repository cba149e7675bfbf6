package placement_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
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
	for ks := range 3 {
		c.st.RegionsFrom(state.KeyspaceID(ks+2), "", func(r *state.Region) bool {
			regions = append(regions, r.ID)
			return true
		})
	}
	region := rapid.SampledFrom(regions).Draw(t, "region")
	switch rapid.IntRange(0, 9).Draw(t, "act") {
	case 0:
		c.join(id)
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

// Whatever happens, in whatever order the lists are: the same plan; every operation is
// one that the root takes; nothing is taken from who may still act; and what followed
// the changes knows as much as what looks at everything.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.keyspace("a", slots(4), eraFence())
		c.keyspace("b", slots(4), ttlFence())
		c.keyspace("c", slots(4), sharedBy(3))
		for range rapid.IntRange(1, 60).Draw(t, "acts") {
			c.act(t)
			in := c.work.Take(c, c.now)
			plan := placement.Make(in)
			rand.Shuffle(len(in.Regions), func(i, j int) { in.Regions[i], in.Regions[j] = in.Regions[j], in.Regions[i] })
			in.Regions, in.Draining = append(in.Regions, in.Regions...), append(slices.Clone(in.Draining), in.Draining...)
			slices.Reverse(in.Draining)
			if again := placement.Make(in); !bytes.Equal(asBytes(plan), asBytes(again)) {
				t.Fatalf("two plans:\n%+v\n%+v", plan, again)
			}
			c.work.Planned(&plan)
			c.safe(t, plan)
			c.root(plan)
		}
		c.complete(t)
	})
}

// safe fails for a grant of what somebody may still act for.
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
	for range 30 {
		c.now = c.now.Add(time.Second)
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
		c.now = c.now.Add(10 * time.Second) // who is to be removed has time enough
	}
	if n := c.work.Moves().Len(); n != 0 {
		t.Fatalf("%d moves never end", n)
	}
	for ks := range 3 {
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
func BenchmarkFailure(b *testing.B) {
	const members = 1000
	c := newCluster(b)
	for i := range members {
		c.join(fmt.Sprintf("m%03d", i))
	}
	for i := range 10 {
		c.keyspace(fmt.Sprintf("ks%d", i), slots(10_000), eraFence())
	}
	c.settle()
	if n := c.st.MemberRegionCount("m500"); n != 100 {
		b.Fatalf("it owns %d regions", n)
	}
	before := c.st
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		c.st, c.work = before, placement.NewWork(before, c.now)
		c.plan()
		b.StartTimer()
		c.set("m500", failed)
		if plan := c.plan(); len(plan.Operations) != 100 {
			b.Fatalf("%d operations", len(plan.Operations))
		}
	}
}
