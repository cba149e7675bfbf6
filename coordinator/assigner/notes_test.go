package assigner_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A region whose third owner dies is in quarantine: the log says so and why, and so does a
// note of it. Released by somebody it is given out at once, and the log says who and why.
func TestScenario23QuarantineIsSeenAndReleased(t *testing.T) {
	gather(t, evened(40, nil), 16, func(t *testing.T, c *crowd) {
		poisonous := c.owned("m1")[0].ID
		for range 4 {
			c.ends(c.now().Region(poisonous).Owners[0].Member)
		}
		c.run(time.Second)
		r := c.now().Region(poisonous)
		if c.now().Acts(r.Owners[0]) {
			t.Fatalf("behind four deaths region %d is given to %v", poisonous, r.Owners)
		}
		note := c.a.RegionNote(poisonous)
		if note.GetRefused() != "poison_suspected" || !strings.Contains(note.GetQuarantined(), "poison_suspected") || note.GetQuarantineMillis() == 0 {
			t.Errorf("the note is %v", note)
		}
		if all, more := c.a.RegionNotes(2); len(all) != 1 || more {
			t.Errorf("notes of the keyspace: %v", all)
		}
		if s := c.a.Stuck(); len(s) != 1 || s[0].GetWhy() != "poison_suspected" || s[0].GetCount() != 1 || s[0].GetRegionId() != uint64(poisonous) {
			t.Errorf("it waits for %v", s)
		}
		if whys := c.whysOf(""); len(whys) != 1 || !strings.Contains(whys[0], "poison_suspected") {
			t.Errorf("the log says %q", whys)
		}
		if released, _, err := c.a.ReleaseRegion(t.Context(), c.owned("m5")[0].ID, "", ""); released || err != nil {
			t.Errorf("one that is in none: %v, %v", released, err)
		}
		if _, _, err := c.a.ReleaseRegion(t.Context(), 1<<40, "", ""); reason.Of(err) != rootv1.Reason_REASON_NOT_FOUND {
			t.Errorf("one that is not there: %v", err)
		}
		if released, _, err := c.a.ReleaseRegion(t.Context(), poisonous, "operator/anna", "ticket 7"); !released || err != nil {
			t.Fatalf("%v, %v", released, err)
		}
		c.run(time.Second)
		if x := c.now().Region(poisonous); !c.now().Acts(x.Owners[0]) || c.a.RegionNote(poisonous) != nil || len(c.a.Stuck()) != 0 {
			t.Errorf("released, it is %v's, %v", x.Owners, c.a.RegionNote(poisonous))
		}
		if whys := c.whysOf("operator/anna"); len(whys) != 1 || !strings.Contains(whys[0], "ticket 7") {
			t.Errorf("the log says %q", whys)
		}
		c.claim("other", 9)
		synctest.Wait()
		if _, _, err := c.a.ReleaseRegion(t.Context(), poisonous, "", ""); reason.Of(err) != rootv1.Reason_REASON_TENURE_NOT_HELD {
			t.Errorf("without the Tenure: %v", err)
		}
	})
}

// whysOf are those of commands that an actor asked for, of those that have one.
func (c *crowd) whysOf(actor string) (all []string) {
	for _, cmd := range c.commands() {
		if cmd.GetWhy() != "" && cmd.GetActor() == actor {
			all = append(all, cmd.GetWhy())
		}
	}
	return all
}

// tellKeys has the owners of all regions say how many keys are in them.
func (c *crowd) tellKeys(keys func(r *state.Region) uint64, median string) {
	c.now().RegionsFrom(2, "", func(r *state.Region) bool {
		id := r.Owners[0].Member
		n := keys(r)
		c.report(id, r.Proto(), func(p *coordinatorv1.RegionReport) { p.KeyCount, p.MedianKey = n, []byte(median) })
		c.frame(id, func(f *server.HeardFrame) {
			f.Loads = append(f.Loads, server.RegionLoad{Region: r.ID, Epoch: r.Epoch, Load: 1, Keys: n})
		})
		return true
	})
	synctest.Wait()
}

// A region with more keys than its keyspace allows is shown, and no more once it has fewer
// or is allowed as many. A limit that is below what is there drops nothing.
func TestR29KeysOverTheLimitAreSeen(t *testing.T) {
	settings := evened(4, &rootv1.Rebalance{IntervalMillis: 10_000})
	settings.Limits = &rootv1.Limits{MaxKeysPerRegion: 2000}
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		c.run(10 * time.Second)
		hot := c.owned("m1")[0].ID
		c.tellKeys(func(r *state.Region) uint64 {
			if r.ID == hot {
				return 2001
			}
			return 2000
		}, "")
		c.run(time.Second)
		if n := c.a.RegionNote(hot); n.GetKeyCount() != 2001 || n.GetMaxKeys() != 2000 {
			t.Errorf("the note is %v", n)
		}
		if s := c.a.Stuck(); len(s) != 1 || s[0].GetWhy() != "keys_over_limit" || s[0].GetCount() != 1 || s[0].GetRegionId() != uint64(hot) {
			t.Errorf("it shows %v", s)
		}
		before := c.now()
		update := func(limits *rootv1.Limits) {
			k := c.now().KeyspaceByName("ks")
			s := state.MergeSettings(k.GetSettings(), nil)
			s.Limits = limits
			c.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: k.GetId(), ExpectedVersion: k.GetVersion(), Settings: s}}})
			c.run(20 * time.Second)
		}
		update(&rootv1.Limits{MaxKeysPerRegion: 1000, MaxRegionsPerMember: 1, RefuseKeys: true})
		if s := c.a.Stuck(); len(s) != 1 || s[0].GetCount() != 4 {
			t.Errorf("with a lower limit it shows %v", s)
		}
		why := map[string]uint64{}
		for _, f := range c.a.Rounds()[0].GetRefused() {
			why[f.GetWhy()] = f.GetCount()
		}
		if why["keys_over_limit"] != 4 || why["no_active_members"]+why["capacity_exceeded"]+why["no_gain"] == 0 && len(why) < 2 {
			t.Errorf("the round refuses %v", why)
		}
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			if old := before.Region(r.ID); old == nil || r.Epoch != old.Epoch || !c.now().Acts(r.Owners[0]) {
				t.Errorf("region %d is %s of %v", r.ID, r.Epoch, r.Owners)
			}
			return true
		})
		update(nil)
		if s, n := c.a.Stuck(), c.a.RegionNote(hot); len(s) != 0 || n != nil {
			t.Errorf("without a limit it shows %v, %v", s, n)
		}
	})
}

// A range that has more keys than it may have, and is to be refused that, is cut where its
// owner says that half of it is, whatever its load.
func TestR29RangesAreCutAtTheLimit(t *testing.T) {
	settings := state.DefaultSettings()
	settings.Policy.Rebalance = &rootv1.Rebalance{IntervalMillis: 10_000, Reshape: true}
	settings.Limits = &rootv1.Limits{MaxKeysPerRegion: 100, RefuseKeys: true}
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		c.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 2, Owners: []*rootv1.Owner{{MemberId: "m1"}}}}}})
		c.run(time.Second)
		c.tellKeys(func(*state.Region) uint64 { return 101 }, "m")
		c.run(30 * time.Second)
		var cuts []string
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			cuts = append(cuts, r.Start)
			return true
		})
		if len(cuts) != 2 || cuts[1] != "m" {
			t.Errorf("the ranges begin at %q", cuts)
		}
	})
}

// Scenario 20: keys whose rule nobody satisfies wait, and that is seen with the reason;
// others do not, and once somebody comes that has the labels nobody waits any more.
func TestScenario20RuleThatNobodySatisfiesIsSeen(t *testing.T) {
	settings := evened(4, nil)
	settings.Policy.LabelRules = []*rootv1.LabelRule{{KeyPrefix: []byte("\x00\x00\x00\x00\x00\x00\x00\x01"), Labels: map[string]string{"disk": "ssd"}}}
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		c.run(10 * time.Second)
		s := c.a.Stuck()
		if len(s) != 1 || s[0].GetWhy() != "no_eligible_member" || s[0].GetCount() != 1 || s[0].GetKeyspace() != "ks" {
			t.Fatalf("it waits for %v", s)
		}
		if n := c.a.RegionNote(state.RegionID(s[0].GetRegionId())); n.GetRefused() != "no_eligible_member" {
			t.Errorf("the note is %v", n)
		}
		c.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: "m3", Address: "m3:1", StartNonce: 77, Labels: map[string]string{"disk": "ssd"}},
		}}})
		c.open("m3")
		c.run(time.Second)
		if n := len(c.a.Stuck()); n != 0 || c.now().Orphaned() != 0 {
			t.Errorf("%d reasons, %d orphans", n, c.now().Orphaned())
		}
	})
}
