package placement_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Slots without owners are given out evenly, in one round and one entry: 128 over four are
// 32 each.
func TestP38FirstTouchOfSlots(t *testing.T) {
	c := newCluster(t)
	ids := []string{"m1", "m2", "m3", "m4"}
	for _, id := range ids {
		c.join(id)
	}
	c.keyspace("ks", slots(128), epochFence())
	plan := c.round()
	c.wantCounts([]int{32, 32, 32, 32}, ids...)
	if n := len(placement.Grants(plan.Operations)); n != 1 {
		t.Errorf("%d entries for 128 grants", n)
	}
	if o := plan.Operations[0]; o.Reason != firstTouch {
		t.Errorf("the reason is %s", o.Reason)
	}
	c.settle()
	if n := len(c.plan().Operations); n != 0 {
		t.Errorf("%d more operations", n)
	}
}

// A point that nobody owns is given to a member as any other region; without one that may
// take it, it is said so.
func TestP38PointsWithoutOwnersGetOne(t *testing.T) {
	c := newCluster(t)
	ks := c.keyspace("ks", points(), epochFence())
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		KeyspaceId: uint32(ks), StartKey: []byte("a"), EndKey: []byte("a\x00"),
	}}}})
	if r := c.plan().Refusals; len(r) != 1 || r[0].Why != placement.NoEligibleMember {
		t.Errorf("without members the refusals are %+v", r)
	}
	c.join("m1")
	c.settle()
	c.wantCounts([]int{1}, "m1")
}

// Only the regions of the member that failed go elsewhere, evenly: 1,024 of four are
// 341, 341 and 342 of three.
func TestA22A44R09Rule7RegionsOfTheFailedFollow(t *testing.T) {
	c := newCluster(t)
	ids := []string{"m1", "m2", "m3", "m4"}
	for _, id := range ids {
		c.join(id)
	}
	ks := c.keyspace("ks", slots(1024), epochFence())
	c.settle()
	before := c.st
	c.set("m4", failed)
	plan := c.round()
	c.wantCounts([]int{0, 341, 341, 342}, ids...)
	if len(plan.Operations) != 256 || len(placement.Grants(plan.Operations)) != 1 {
		t.Errorf("%d operations in %d entries, want 256 in one", len(plan.Operations), len(placement.Grants(plan.Operations)))
	}
	before.RegionsFrom(ks, "", func(r *state.Region) bool {
		now := c.st.Region(r.ID)
		if r.Owners[0].Member != "m4" && now.Owners[0] != r.Owners[0] {
			t.Fatalf("region %d of %s went to %s", r.ID, r.Owners[0].Member, now.Owners[0].Member)
		}
		return true
	})
	for _, o := range plan.Operations {
		if o.Reason != memberFailed {
			t.Fatalf("the reason is %s", o.Reason)
		}
	}
}

// The hottest first.
func TestC24Rule7HottestFirst(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(64), epochFence())
	c.settle()
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		if r.ID%3 != 0 { // of the others nothing is known
			c.reports[spot{r.ID, "m1"}] = placement.Report{Incarnation: 1, Phase: serving, Load: uint64(r.ID*7) % 32}
		}
		return true
	})
	c.join("m2")
	c.set("m1", failed)
	plan := c.plan()
	if len(plan.Operations) != 64 {
		t.Fatalf("%d operations, want 64", len(plan.Operations))
	}
	for i := 1; i < len(plan.Operations); i++ {
		a, b := plan.Operations[i-1], plan.Operations[i]
		if a.Load < b.Load || a.Load == b.Load && a.Region >= b.Region {
			t.Fatalf("region %d with load %d comes before region %d with load %d", a.Region, a.Load, b.Region, b.Load)
		}
	}
}

// Regions of a ttl fence wait for it, and no longer.
func TestRule5RegionsWaitForTheFence(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(1), ttlFence())
	c.settle()
	c.join("m2")
	c.set("m1", failed)
	id := c.first(ks).ID
	until := c.now.Add(500 * time.Millisecond)
	c.fences["m1/1"] = until
	if f := c.refusal(c.plan(), placement.FenceRuns); f.At != until || f.Region != id || f.Member != "m1" {
		t.Fatalf("the refusal is %+v", f)
	}
	if due := c.work.Due(c.now); due != until {
		t.Fatalf("it is looked at after %v", due.Sub(c.now))
	}
	c.now = until - 1
	if plan := c.plan(); len(plan.Operations)+len(plan.Refusals) != 0 {
		t.Fatalf("the plan is %+v", plan)
	}
	c.now = until
	c.one(c.round(), placement.Assign)
	if c.owner(id) != "m2" {
		t.Fatalf("it went to %s", c.owner(id))
	}
}

// A region that is taken from an owner is given to nobody while that one may act for it:
// until it has been shown that it is not its own, or its fence has run out.
func TestRule5TakenFromAnOwnerThatMayAct(t *testing.T) {
	for name, ends := range map[string]func(*cluster){
		"shown": func(c *cluster) {
			c.taken["m1/1"] = c.st.Token()
			c.work.MarkMember("m1")
		},
		"proof": func(c *cluster) {
			c.fences["m1/1"] = 0
			c.work.MarkIncarnation(1)
		},
		"fence": func(c *cluster) {
			c.fences["m1/1"] = c.now
			c.now = c.work.Due(c.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.join("m1")
			ks := c.keyspace("ks", slots(1), ttlFence())
			c.settle()
			id := c.first(ks).ID
			c.join("m2")
			c.taken["m1/1"] = c.st.Token()
			c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{RegionId: uint64(id)}}}}})
			if f := c.refusal(c.plan(), placement.FenceRuns); f.Region != id || f.Member != "m1" || f.At <= c.now {
				t.Fatalf("the refusal is %+v", f)
			}
			c.work = placement.NewWork(c.st, c.now) // the next holder waits as well
			c.refusal(c.plan(), placement.FenceRuns)
			ends(c)
			if o := c.one(c.round(), placement.Assign); o.Reason != orphaned {
				t.Errorf("the reason is %s", o.Reason)
			}
			if c.st.Region(id).Former != nil {
				t.Errorf("it is granted, and still %+v's", c.st.Region(id).Former)
			}
		})
	}
}

// A proof that comes while the fence is waited for ends the wait.
func TestRule6ProofEndsTheWait(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.keyspace("ks", slots(4), ttlFence())
	c.settle()
	c.join("m2")
	c.set("m1", failed)
	if plan := c.plan(); len(plan.Operations) != 0 || len(plan.Refusals) != 4 {
		t.Fatalf("the plan is %+v", plan)
	}
	c.fences["m1/1"] = 0
	c.work.MarkIncarnation(1)
	c.round()
	c.wantCounts([]int{4}, "m2")
}

// A newer registration of the id ends the old incarnation; its regions go wherever there is room,
// also back to it.
func TestRegionsOfAnOldIncarnationAreOrphans(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(2), epochFence())
	c.settle()
	next := c.join("m1")
	plan := c.round()
	if len(plan.Operations) != 2 || plan.Operations[0].Reason != orphaned {
		t.Fatalf("the plan is %+v", plan)
	}
	if o := c.first(ks).Owners[0]; o.Member != "m1" || o.Incarnation != next {
		t.Fatalf("the owner is %+v, want incarnation %d", o, next)
	}
}

// Nobody can take: it waits, it is counted, and it is given out when somebody can.
func TestA26OrphansWaitForAMember(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.shy["m1"] = true // suspected, say
	c.keyspace("ks", slots(3), epochFence())
	plan := c.round()
	if len(plan.Operations) != 0 || len(plan.Refusals) != 3 || plan.Refusals[0].Why.String() != "no_active_members" || c.work.Waiting() != 3 {
		t.Fatalf("the plan is %+v, %d wait", plan, c.work.Waiting())
	}
	if c.work.Due(c.now) != never {
		t.Fatal("it is looked at although nothing changes")
	}
	c.shy = nil
	c.work.Wake()
	c.settle()
	c.wantCounts([]int{3}, "m1")
	if c.work.Waiting() != 0 {
		t.Errorf("%d still wait", c.work.Waiting())
	}
}

// A member that failed too often gets what nobody else may have, and nothing else.
func TestDampedMembersAreBetterThanNobody(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	c.shy["m1"], c.damped = true, map[state.MemberID]bool{"m1": true}
	c.keyspace("ks", slots(4), epochFence())
	c.settle()
	if n := c.st.MemberRegionCount("m2"); n != 4 {
		t.Errorf("m2, which takes what there is, has %d of 4", n)
	}

	c = newCluster(t)
	c.join("m1")
	c.join("m2")
	c.shy["m1"], c.shy["m2"], c.damped = true, true, map[state.MemberID]bool{"m1": true}
	c.keyspace("ks", slots(4), epochFence())
	c.settle()
	if n := c.st.MemberRegionCount("m1"); n != 4 {
		t.Errorf("m1, which failed too often, has %d of 4, and nobody else is there", n)
	}
}

// Who is suspected, damped, draining or failed gets nothing.
func TestA30OnlyEligibleMembersGetRegions(t *testing.T) {
	c := newCluster(t)
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		c.join(id)
	}
	c.shy["m2"] = true
	c.set("m3", draining)
	c.set("m4", failed)
	c.keyspace("ks", slots(8), epochFence())
	c.settle()
	c.wantCounts([]int{0, 0, 0, 8}, "m1", "m2", "m3", "m4")
}

// A member that names keyspaces takes regions of those.
func TestMembersTakeRegionsOfTheirKeyspaces(t *testing.T) {
	c := newCluster(t)
	a, b := c.keyspace("a", slots(6), epochFence()), c.keyspace("b", slots(6), epochFence())
	c.join("m1", "a")
	c.join("m2", "b", "x")
	c.join("m3")
	c.settle()
	for id, want := range map[state.MemberID][2]int{"m1": {3, 0}, "m2": {0, 3}, "m3": {3, 3}} {
		if got := [2]int{c.st.MemberKeyspaceRegionCount(id, a), c.st.MemberKeyspaceRegionCount(id, b)}; got != want {
			t.Errorf("%s has %v, want %v", id, got, want)
		}
	}
}

// Where there is not room for all, the hottest are served.
func TestRule7HottestGetTheRoom(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	s := epochFence()
	s.Limits = &rootv1.Limits{MaxRegionsPerMember: 3}
	ks := c.keyspace("ks", slots(3), s)
	c.settle()
	var last state.RegionID
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		last = r.ID
		return true
	})
	c.reports[spot{last, "m1"}] = placement.Report{Incarnation: 1, Phase: serving, Load: 5}
	k := c.st.Keyspace(ks)
	s.Limits.MaxRegionsPerMember = 1
	c.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: k.GetId(), ExpectedVersion: k.GetVersion(), Settings: s}}})
	c.join("m2")
	c.set("m1", failed)
	if plan := c.plan(); len(plan.Operations) != 1 || plan.Operations[0].Region != last {
		t.Fatalf("the plan is %+v, want region %d to be served", plan, last)
	}
}

func TestLimitOfRegionsPerMember(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	s := epochFence()
	s.Limits = &rootv1.Limits{MaxRegionsPerMember: 3}
	c.keyspace("ks", slots(5), s)
	plan := c.round()
	if len(plan.Operations) != 3 || len(plan.Refusals) != 2 || plan.Refusals[0].Why != placement.MembersFull {
		t.Fatalf("the plan is %+v", plan)
	}
	c.join("m2")
	c.settle()
	c.wantCounts([]int{2, 3}, "m1", "m2")
}

// A dead owner of a shared region is taken out; another one comes when none is left.
func TestP36P37P41P86SharedRegionsLoseDeadOwners(t *testing.T) {
	c := newCluster(t)
	for _, id := range []string{"m1", "m2", "m3"} {
		c.join(id)
	}
	ks := c.keyspace("ks", slots(1), sharedBy(4))
	r := c.first(ks)
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1"}, {MemberId: "m2"}},
	}}}}})
	c.settle()
	c.set("m1", failed)
	c.one(c.round(), placement.Assign)
	if got := c.owner(r.ID); got != "m2" {
		t.Fatalf("it is %s's", got)
	}
	c.set("m2", failed)
	c.one(c.round(), placement.Assign)
	if got := c.owner(r.ID); got != "m3" {
		t.Fatalf("it is %s's", got)
	}
}

// Grants of many regions are few entries, and each of them is one that the root takes.
func TestGrantsFitEntries(t *testing.T) {
	c := newCluster(t)
	for i := range 10 {
		c.join(fmt.Sprintf("member-with-a-rather-long-name-%02d", i))
	}
	c.keyspace("ks", slots(10_000), epochFence())
	plan := c.round()
	if n := len(placement.Grants(plan.Operations)); n > 20 || len(plan.Operations) != 10_000 {
		t.Fatalf("%d operations in %d entries", len(plan.Operations), n)
	}
}

// What is rooted under another epoch meanwhile is refused by the root, not overwritten.
func TestP40Rule1AStalePlanIsRefused(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.keyspace("ks", slots(1), epochFence())
	plan := c.plan()
	r, other := c.first(ks), "m2"
	if plan.Operations[0].Owners[0].Member == "m2" {
		other = "m1"
	}
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: other}},
	}}}}})
	if out := c.propose(placement.Grants(plan.Operations)...); out.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
		t.Fatalf("the outcome is %s", out.Outcome)
	}
}

// TestRule7AGoodbyeIsARelease: what an incarnation released before it left is where the next owner
// starts, with a finished drain or without, also when the same member comes back, and when a
// move was under way. What was reported by one that did not leave, of another epoch, or of
// another incarnation is not.
func TestRule7AGoodbyeIsARelease(t *testing.T) {
	last := func(r *placement.Report) { r.Last = true }
	for name, x := range map[string]struct {
		change []func(*placement.Report)
		want   string
	}{
		"released, and left":         {[]func(*placement.Report){frontier("exactly-42"), last}, "exactly-42"},
		"released at nothing":        {[]func(*placement.Report){frontier(""), last}, ""},
		"released, and was killed":   {[]func(*placement.Report){frontier("exactly-42")}, "rooted"},
		"released without an answer": {[]func(*placement.Report){last}, "rooted"},
		"serving":                    {[]func(*placement.Report){frontier("x"), last, func(r *placement.Report) { r.Phase = serving }}, "rooted"},
		"at an older epoch":          {[]func(*placement.Report){frontier("x"), last, func(r *placement.Report) { r.Epoch.ConfVersion-- }}, "rooted"},
		"of another incarnation":     {[]func(*placement.Report){frontier("x"), last, func(r *placement.Report) { r.Incarnation++ }}, "rooted"},
	} {
		for _, then := range []string{"another takes it", "it comes back", "a move was under way"} {
			c := newCluster(t)
			c.join("m1")
			ks := c.keyspace("ks", slots(1), epochFence())
			c.settle()
			id := c.first(ks).ID
			c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
				RegionId: uint64(id), ExpectedEpoch: c.st.Region(id).Epoch.Proto(), Owners: []*rootv1.Owner{c.st.Region(id).Owners[0].Proto()},
				Frontier: []byte("rooted"), SetFrontier: true, Acknowledged: true,
			}}}}})
			if then != "it comes back" {
				c.join("m2")
			}
			if then == "a move was under way" {
				c.set("m1", rootv1.MemberState_MEMBER_STATE_DRAINING)
				c.round()
			}
			c.tell(id, "m1", released, append(x.change, func(r *placement.Report) { r.Transition = "" })...)
			if c.set("m1", rootv1.MemberState_MEMBER_STATE_FAILED); then == "it comes back" {
				c.join("m1")
			}
			c.settle()
			if r := c.st.Region(id); r.Frontier != x.want || len(r.Owners) != 1 || !c.st.Acts(r.Owners[0]) {
				t.Errorf("%s, %s: the next owner %v starts at %q, want %q", name, then, r.Owners, r.Frontier, x.want)
			}
		}
	}
}

// Keys of a region that was removed under a ttl fence go to somebody else when its owner has let
// go of them, as it has been shown that they are not its own; or when its fence has run out. Keys
// beside, and those of an epoch fence, wait for nothing.
func TestRule5KeysOfARemovedRegionWaitForItsOwner(t *testing.T) {
	for name, s := range map[string]struct {
		settings *rootv1.KeyspaceSettings
		waits    bool
		lets     func(c *cluster)
	}{
		"it is shown":       {ttlFence(), true, func(c *cluster) { c.taken["m1/1"] = c.st.Token() }},
		"its fence is over": {ttlFence(), true, func(c *cluster) { c.fences["m1/1"] = c.now }},
		"an epoch fence":    {epochFence(), false, func(*cluster) {}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.join("m1")
			ks := c.keyspace("ks", &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}, s.settings)
			publish := func(start, end string) {
				c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
					KeyspaceId: uint32(ks), StartKey: []byte(start), EndKey: []byte(end),
				}}}})
			}
			at := func(key string) string {
				r := c.st.RegionAt(ks, key)
				if r == nil || len(r.Owners) == 0 {
					return ""
				}
				return string(r.Owners[0].Member)
			}
			publish("c", "m")
			c.settle()
			c.join("m2")
			c.shy["m1"] = true
			c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(c.st.RegionAt(ks, "c").ID)}}})
			publish("a", "b")
			publish("d", "e")
			c.round()
			if got := at("a"); got != "m2" {
				t.Errorf("keys beside are %q's", got)
			}
			if got := at("d"); (got == "") != s.waits {
				t.Errorf("the keys are %q's", got)
			}
			s.lets(c)
			c.now = c.now.Add(2 * time.Second)
			c.settle()
			if at("d") != "m2" {
				t.Errorf("the keys are %q's", at("d"))
			}
		})
	}
}
