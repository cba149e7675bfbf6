package placement_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// deadly is a region whose owners die.
type deadly struct {
	*scene
	region state.RegionID
}

func newDeadly(t *testing.T) *deadly {
	d := &deadly{scene: newScene(t, 40, even, names(8)...)}
	d.follows = func(changes []state.Change) { d.poison.Follow(d.st, changes, d.now) }
	d.region = d.first(d.keyspace).ID
	d.now = d.now.Add(10 * time.Minute)
	return d
}

// dies has the region's owner die after it has had it for so long.
func (d *deadly) dies(after time.Duration) {
	d.now = d.now.Add(after)
	d.set(d.owner(d.region), failed)
	d.step()
}

func (d *deadly) wants(t *testing.T, quarantined bool, what string) {
	t.Helper()
	if got := d.poison.Quarantined(d.region); got != quarantined {
		t.Errorf("%s: it is quarantined: %v", what, got)
	}
}

// Deaths count that come soon after a grant, and only in a row.
func TestScenario23DeathsThatDoNotCount(t *testing.T) {
	d := newDeadly(t)
	d.dies(0)
	for range 5 {
		d.dies(placement.PoisonTime + time.Second)
	}
	d.wants(t, false, "each owner had it for longer")

	d = newDeadly(t)
	d.dies(0)
	d.dies(time.Second)
	d.dies(time.Second)
	d.now = d.now.Add(placement.PoisonTime + time.Second)
	d.step()      // one that lived
	d.join("m99") // so that it is looked at
	d.dies(time.Second)
	d.dies(time.Second)
	d.wants(t, false, "one in between lived")
	d.dies(time.Second)
	d.dies(time.Second)
	d.wants(t, true, "three in a row")
}

// An owner that is started again at once, before anybody judges it, has died too: also one that nothing was heard
// of since the deaths are counted.
func TestScenario23AnOwnerThatStartsAgainHasDied(t *testing.T) {
	d := newDeadly(t)
	d.dies(0)
	for range 3 {
		d.wants(t, false, "fewer than three have died soon")
		d.now = d.now.Add(time.Second)
		d.join(d.owner(d.region))
		d.step()
	}
	d.wants(t, true, "three processes were started again")
}

// One death of an owner is one, however often it is heard of.
func TestScenario23ADeathCountsOnce(t *testing.T) {
	d := newDeadly(t)
	d.dies(0)
	owner := d.owner(d.region)
	for range 4 {
		d.now = d.now.Add(time.Second)
		record := d.st.Member(state.MemberID(owner))
		dead := &rootv1.Member{Id: record.GetId(), Incarnation: record.GetIncarnation(), State: failed}
		d.poison.Follow(d.st, []state.Change{{Kind: state.ChangeMember, Member: dead}}, d.now)
	}
	d.wants(t, false, "one owner died")
}

// Members that die one soon after the other leave a few regions that have seen it all: too many for each to be
// the reason, and few beside what the last one had.
func TestScenario23DeathsOfManyAreNobodysFault(t *testing.T) {
	d := &deadly{scene: newScene(t, 1000, even, names(5)...)}
	d.follows = func(changes []state.Change) { d.poison.Follow(d.st, changes, d.now) }
	d.now = d.now.Add(10 * time.Minute)
	for range 4 {
		d.region = d.first(d.keyspace).ID
		d.dies(time.Second)
	}
	if n := d.poison.Fresh(); len(n) > 0 {
		t.Errorf("%d regions are quarantined", len(n))
	}
}

// Who comes out of quarantine goes back at the next death.
func TestScenario23OneDeathMore(t *testing.T) {
	d := newDeadly(t)
	d.dies(0)
	for range 3 {
		d.dies(time.Second)
	}
	d.wants(t, true, "three died")
	d.now = d.now.Add(10 * time.Minute)
	d.poison.Expire(d.now)
	d.step()
	d.wants(t, false, "its time is over")
	d.dies(time.Second)
	d.wants(t, true, "one more died")
}

// A plan's operations are in order, the hottest first, whatever keyspaces they are of.
func TestC24OperationsComeHottestFirst(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	keyspaces := []state.KeyspaceID{c.keyspace("one", slots(4), eraFence()), c.keyspace("two", slots(4), eraFence())}
	c.settle()
	c.join("m2")
	for n, ks := range keyspaces {
		hot := uint64(n)
		c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
			hot += 2
			c.tell(r.ID, c.owner(r.ID), 0, func(x *placement.Report) { x.Load = hot * 1000 })
			return true
		})
	}
	c.set("m1", failed)
	plan := c.plan()
	hottest := func(a, b placement.Operation) int { return int(b.Load) - int(a.Load) }
	if len(plan.Operations) != 8 || !slices.IsSortedFunc(plan.Operations, hottest) {
		t.Errorf("%+v", plan.Operations)
	}
}
