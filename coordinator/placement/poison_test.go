package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// deadly is a region whose owners die.
type deadly struct {
	*scene
	region state.RegionID
}

func newDeadly(t *testing.T) *deadly {
	d := &deadly{scene: newScene(t, 40, even, names(16)...)}
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
	d.now = d.now.Add(10 * time.Minute)
	d.step()      // one that lived, and what was before is long ago
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
		owner := d.owner(d.region)
		d.join(owner)
		d.shy[state.MemberID(owner)] = true // its regions go elsewhere
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

// Who comes out of quarantine goes back at the next death, for longer; whoever lives with it ends it.
func TestScenario23OneDeathMore(t *testing.T) {
	d := newDeadly(t)
	d.dies(0)
	for range 3 {
		d.dies(time.Second)
	}
	d.wants(t, true, "three died")
	for _, rest := range []time.Duration{time.Minute, 2 * time.Minute} {
		if got := d.poison.Until(d.region).Sub(d.now); got != rest {
			t.Errorf("it is quarantined for %s, not %s", got, rest)
		}
		d.now = d.now.Add(rest)
		d.poison.Expire(d.now)
		d.step()
		d.wants(t, false, "its time is over")
		d.dies(time.Second)
		d.wants(t, true, "one more died")
	}
	d.now = d.now.Add(d.poison.Until(d.region).Sub(d.now))
	d.poison.Expire(d.now)
	d.step()
	d.now = d.now.Add(placement.PoisonTime + time.Second)
	d.join("m99")
	d.dies(0)
	d.dies(time.Second)
	d.dies(time.Second)
	d.wants(t, false, "one lived with it, and two died since")
}

// A member that has nothing else gets the region at once; if it lives, the region is as any other.
func TestScenario23TheTrialEndsIt(t *testing.T) {
	for _, lives := range []bool{true, false} {
		d := newDeadly(t)
		d.dies(0)
		for range 2 {
			d.dies(time.Second)
		}
		d.dies(time.Second)
		d.wants(t, true, "three died")
		d.join("m99")
		d.set(names(16)[15], failed)
		for range 3 { // to even it out
			d.now = d.now.Add(10 * time.Second)
			d.report()
			d.step()
		}
		if got := d.owner(d.region); got != "m99" || d.st.MemberRegionCount("m99") != 1 {
			t.Fatalf("%s has it, m99 has %d regions", got, d.st.MemberRegionCount("m99"))
		}
		if lives {
			d.now = d.now.Add(placement.PoisonTime + time.Second)
			d.join("m98")
			d.wants(t, false, "its owner lives")
		} else {
			d.dies(time.Second)
			d.wants(t, true, "its owner died, too")
		}
	}
}

// Whoever a strategy proposes gets no region in quarantine.
func TestScenario23AStrategyGivesNoneAway(t *testing.T) {
	d := newDeadly(t)
	k := d.st.Keyspace(d.keyspace)
	settings := proto.CloneOf(k.GetSettings())
	settings.Policy.Strategy = rootv1.Strategy_STRATEGY_ROUND_ROBIN
	d.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: k.GetName(), ExpectedVersion: k.GetVersion(), Settings: settings}}})
	d.dies(0)
	for range 3 {
		d.dies(time.Second)
	}
	d.wants(t, true, "three died")
	if r := d.st.Region(d.region); d.st.Acts(r.Owners[0]) {
		t.Errorf("it is %s's, who has %d regions", r.Owners[0].Member, d.st.MemberRegionCount(r.Owners[0].Member))
	}
}

// Deaths that something else explains do not count.
func TestScenario23ExplainedDeaths(t *testing.T) {
	verdict := func(d *deadly, id string, signals ...string) {
		d.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: failed, Reason: "a test", Signals: signals}}})
	}
	for what, dies := range map[string]func(*deadly, string){
		"an operator's word":   func(d *deadly, id string) { verdict(d, id) },
		"a drain":              func(d *deadly, id string) { d.set(id, draining); d.set(id, failed) },
		"one that began again": func(d *deadly, id string) { d.set(id, draining); d.join(id) },
		"a goodbye":            func(d *deadly, id string) { verdict(d, id, "stream_closed", "goodbye", "gone") },
	} {
		d := newDeadly(t)
		d.dies(0)
		for range 6 {
			d.now = d.now.Add(time.Second)
			dies(d, d.owner(d.region))
			d.step()
		}
		d.wants(t, false, what)
	}
}

// A member that ends again and again, with all that it has, speaks against none of it: its regions are not apart.
func TestScenario23AMemberThatEndsAgainAndAgain(t *testing.T) {
	d := newDeadly(t)
	for range 10 {
		d.now = d.now.Add(time.Second)
		d.join(d.owner(d.region))
		d.step()
	}
	if n := len(d.poison.InQuarantine()); n > 0 || d.st.Orphaned() > 0 {
		t.Errorf("%d regions are quarantined, %d have no owner", n, d.st.Orphaned())
	}
}

// A machine that ends with all of its members is nobody's fault, also if some of them are there again by then.
func TestScenario23MachinesThatDie(t *testing.T) {
	for _, whole := range []bool{true, false} {
		d := newDeadly(t)
		where := func(id string) string { // three on each machine
			var n int
			_, _ = fmt.Sscanf(id, "m%d", &n)
			return fmt.Sprint("10.0.0.", n/3)
		}
		for _, id := range names(16) {
			m := d.st.Member(state.MemberID(id))
			d.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Follows: m.GetIncarnation(), Member: &rootv1.Member{
				Id: id, Address: where(id) + ":1" + id[1:], StartNonce: m.GetStartNonce(),
			}}}})
		}
		for range 4 {
			d.now = d.now.Add(20 * time.Second)
			machine := where(d.owner(d.region))
			d.set(d.owner(d.region), failed)
			for _, id := range names(16) {
				if m := d.st.Member(state.MemberID(id)); whole && where(id) == machine && m.GetState() == active {
					d.now = d.now.Add(time.Second)
					d.set(id, failed)
				}
			}
			d.step()
		}
		d.wants(t, !whole, fmt.Sprintf("whole machines died: %v", whole))
	}
}

// Members that are killed at random, and come back, bring no region into quarantine: whatever is killed, some regions
// were with the last few. Some of these histories have more of that than others.
func TestC06RandomKillsQuarantineNobody(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 6))
		members := 4 + r.IntN(6)
		d := &deadly{scene: newScene(t, uint32(8<<r.IntN(5)), even, names(members)...)}
		d.follows = func(changes []state.Change) { d.poison.Follow(d.st, changes, d.now) }
		d.now = d.now.Add(10 * time.Minute)
		back := map[string]clock.Instant{}
		for range 100 {
			d.now = d.now.Add(time.Duration(1+r.IntN(30)) * time.Second)
			d.poison.Expire(d.now)
			for _, id := range names(members) {
				if at, dead := back[id]; dead && at <= d.now {
					d.join(id)
					delete(back, id)
				}
			}
			if id := names(members)[r.IntN(members)]; len(back) < members-2 && back[id] == 0 {
				d.set(id, failed)
				back[id] = d.now.Add(time.Duration(r.IntN(40)) * time.Second)
			}
			d.step()
			if n := len(d.poison.InQuarantine()); n > 0 {
				t.Fatalf("seed %d: %d of %d regions of %d members are quarantined", seed, n, d.st.RegionCount(), members)
			}
		}
	}
}

// A region that kills each owner soon is found among many, and nothing else is, although other members die now and
// then.
func TestC06PoisonIsFoundAmongRandomKills(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 7))
		d := &deadly{scene: newScene(t, 128, even, names(9)...)}
		d.follows = func(changes []state.Change) { d.poison.Follow(d.st, changes, d.now) }
		d.region = d.first(d.keyspace).ID
		d.now = d.now.Add(10 * time.Minute)
		for deaths := 1; !d.poison.Quarantined(d.region); deaths++ {
			if deaths > 12 {
				t.Fatalf("seed %d: %d owners died", seed, deaths)
			}
			d.now = d.now.Add(time.Duration(1+r.IntN(20)) * time.Second)
			killed := d.owner(d.region)
			d.set(killed, failed)
			d.report() // as members do all the time
			d.step()
			if deaths == 2 {
				other := names(9)[r.IntN(9)]
				for other == d.owner(d.region) || d.st.Member(state.MemberID(other)).GetState() != active {
					other = names(9)[r.IntN(9)]
				}
				d.set(other, failed)
				d.step()
				d.join(other)
			}
			d.now = d.now.Add(time.Second)
			d.join(killed)
			d.report()
			d.step()
		}
		if n := len(d.poison.InQuarantine()); n != 1 {
			t.Errorf("seed %d: %d regions are quarantined", seed, n)
		}
	}
}

// A plan's operations are in order, the hottest first, whatever keyspaces they are of.
func TestC24OperationsComeHottestFirst(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	keyspaces := []state.KeyspaceID{c.keyspace("one", slots(4), epochFence()), c.keyspace("two", slots(4), epochFence())}
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
