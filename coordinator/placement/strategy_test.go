package placement_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// labelled registers a process with labels and a capacity.
func (c *cluster) labelled(id string, capacity uint64, labels map[string]string) {
	c.Helper()
	c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{
		Id: id, Address: id + ":1", StartNonce: 1, Labels: labels, Capacity: capacity,
	}}}})
}

// point makes a region of one key.
func (c *cluster) point(ks state.KeyspaceID, key string) state.RegionID {
	c.Helper()
	r := c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		KeyspaceId: uint32(ks), StartKey: []byte(key), EndKey: []byte(key + "\x00"), Owners: []*rootv1.Owner{{MemberId: "old"}},
	}}}})[0].Region
	return r.ID
}

func strategy(s rootv1.Strategy) *rootv1.KeyspaceSettings {
	settings := epochFence()
	settings.Policy = &rootv1.Policy{Strategy: s, RingVnodes: 150}
	return settings
}

// Every strategy gives out all regions, the same way every time, and nobody gets
// more than a quarter above its part by a strategy alone.
func TestA34StrategiesGiveOutSlots(t *testing.T) {
	for _, x := range []rootv1.Strategy{
		rootv1.Strategy_STRATEGY_BALANCED, rootv1.Strategy_STRATEGY_RING, rootv1.Strategy_STRATEGY_ROUND_ROBIN,
		rootv1.Strategy_STRATEGY_LEAST_LOADED, rootv1.Strategy_STRATEGY_RANDOM, rootv1.Strategy_STRATEGY_TWO_CHOICES,
	} {
		var first string
		for range 2 {
			c := newCluster(t)
			ids := []string{"m1", "m2", "m3", "m4"}
			for _, id := range ids {
				c.join(id)
			}
			ks := c.keyspace("ks", slots(128), strategy(x))
			c.round()
			owners := ""
			c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
				owners += fmt.Sprint(r.Owners[0].Member, " ")
				return true
			})
			if first == "" {
				first = owners
			}
			if owners != first {
				t.Errorf("%s gives out another way the second time", x)
			}
			for i, n := range c.counts(ids...) {
				if n < 16 || n > 40 {
					t.Errorf("%s gives %s %d of 128", x, ids[i], n)
				}
			}
		}
	}
}

// A region goes to who has the labels that its key asks for, and waits for such a member.
func TestP55LabelRulesHoldForNewRegions(t *testing.T) {
	c := newCluster(t)
	c.join("old")
	s := epochFence()
	s.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{
		{KeyPrefix: []byte("big-"), Labels: map[string]string{"dedicated": "yes"}},
		{KeyPrefix: []byte("big-a"), Labels: map[string]string{"dedicated": "a"}},
	}}
	ks := c.keyspace("ks", points(), s)
	big, small, other := c.point(ks, "big-b"), c.point(ks, "small"), c.point(ks, "big-a")
	c.labelled("m1", 1, nil)
	c.labelled("m2", 1, map[string]string{"dedicated": "yes"})
	c.set("old", failed)
	plan := c.round()
	if got := c.owner(big); got != "m2" {
		t.Errorf("the big one is %s's", got)
	}
	if got := c.owner(small); got != "m1" {
		t.Errorf("the small one is %s's, which has fewest", got)
	}
	if len(plan.Refusals) != 1 || plan.Refusals[0].Region != other || plan.Refusals[0].Why != placement.NoneMatches {
		t.Errorf("the refusals are %+v", plan.Refusals)
	}
	c.labelled("m3", 1, map[string]string{"dedicated": "a"})
	c.settle()
	if got := c.owner(other); got != "m3" {
		t.Errorf("the other one is %s's", got)
	}
}

// Members get regions by what they can take.
func TestCapacitiesCount(t *testing.T) {
	c := newCluster(t)
	c.labelled("m1", 1, nil)
	c.labelled("m2", 3, nil)
	c.keyspace("ks", slots(64), epochFence())
	c.settle()
	if got := c.counts("m1", "m2"); got[0] != 16 || got[1] != 48 {
		t.Errorf("they have %v", got)
	}
}

// What an application or a hook names is taken if that member may take it; a dead one, one with
// too much, or none at all is not, and the region has an owner nevertheless.
func TestP61WhatIsBroughtOnlyProposes(t *testing.T) {
	c := newCluster(t)
	for _, id := range []string{"m1", "m2", "m3", "m4", "m5", "m6"} {
		c.join(id)
	}
	c.set("m3", failed)
	ks := c.keyspace("ks", slots(10), epochFence())
	fixed := propose.Fixed{}
	var ids []state.RegionID
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		ids = append(ids, r.ID)
		return true
	})
	fixed[ids[0]], fixed[ids[1]], fixed[ids[2]] = "m5", "m3", "nobody"
	in := c.work.Take(c, c.now)
	in.Strategies = map[state.KeyspaceID]propose.Strategy{ks: fixed}
	plan := placement.Make(in)
	c.work.Planned(&plan)
	c.root(plan)
	if got := c.owner(ids[0]); got != "m5" {
		t.Errorf("the first is %s's", got)
	}
	c.wantCounts([]int{2, 2, 2, 2, 2}, "m1", "m2", "m4", "m5", "m6")

	// Nor is a region given to whom a rule keeps from it.
	c = newCluster(t)
	c.join("old")
	ruled := epochFence()
	ruled.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{{KeyPrefix: []byte("big-"), Labels: map[string]string{"dedicated": "yes"}}}}
	ks = c.keyspace("ks", points(), ruled)
	big := c.point(ks, "big-a")
	c.labelled("m1", 1, nil)
	c.labelled("m2", 1, map[string]string{"dedicated": "yes"})
	c.set("old", failed)
	in = c.work.Take(c, c.now)
	in.Strategies = map[state.KeyspaceID]propose.Strategy{ks: always(0)}
	plan = placement.Make(in)
	c.work.Planned(&plan)
	c.root(plan)
	if got := c.owner(big); got != "m2" {
		t.Errorf("the dedicated one is %s's", got)
	}

	c = newCluster(t)
	c.join("m1")
	c.join("m2")
	ks = c.keyspace("ks", slots(10), epochFence())
	in = c.work.Take(c, c.now)
	in.Strategies = map[state.KeyspaceID]propose.Strategy{ks: always(0)}
	plan = placement.Make(in)
	c.work.Planned(&plan)
	c.root(plan)
	if got := c.counts("m1", "m2"); got[0] > 7 {
		t.Errorf("who was always named has %d of 10", got[0])
	}
}

type always int

func (a always) Propose(*propose.Question) (int, bool) { return int(a), true }

// asked is a strategy that notes the regions that it was asked for.
type asked map[state.RegionID]int

func (a asked) Propose(q *propose.Question) (int, bool) {
	a[q.Region]++
	return 0, false
}

// A strategy is asked for a region that has no owner, the first time or because its owner
// failed, and never for one that has.
func TestP56StrategyIsAskedForWhatHasNoOwner(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.keyspace("ks", slots(10), epochFence())
	round := func() asked {
		all := asked{}
		in := c.work.Take(c, c.now)
		in.Strategies = map[state.KeyspaceID]propose.Strategy{ks: all}
		plan := placement.Make(in)
		c.work.Planned(&plan)
		c.root(plan)
		return all
	}
	if all := round(); len(all) != 10 {
		t.Errorf("for the first touch it was asked for %v", all)
	}
	c.work.Wake()
	if all := round(); len(all) != 0 {
		t.Errorf("of regions that have owners it was asked for %v", all)
	}
	dead := asked{}
	c.st.MemberRegionsAfter("m2", 0, func(r *state.Region) bool {
		dead[r.ID] = 1
		return true
	})
	c.set("m2", failed)
	if all := round(); len(dead) != 5 || !maps.Equal(all, dead) {
		t.Errorf("behind a failure it was asked for %v, want %v", all, dead)
	}
}
