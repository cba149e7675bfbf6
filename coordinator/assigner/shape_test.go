package assigner_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Scenario 22: a shared region that is saturated gets one owner more, once; cool for long
// enough it has one less, and never fewer than it shall have.
func TestP47Scenario22SaturatedRegionGetsAnOwner(t *testing.T) {
	settings := evened(3, &rootv1.Rebalance{IntervalMillis: 10_000})
	settings.Ownership = &rootv1.Ownership{MaxOwners: 3}
	gather(t, settings, 4, func(t *testing.T, c *crowd) {
		c.run(time.Minute)
		region := c.owned("m1")[0].ID
		owners := func() int { return len(c.now().Region(region).Owners) }
		say := func(saturated bool) {
			for _, o := range c.now().Region(region).Owners {
				r := c.now().Region(region)
				c.report(o.Member, r.Proto(), func(p *coordinatorv1.RegionReport) { p.Saturated = saturated && o.Member == "m1" })
				c.frame(o.Member, func(f *server.HeardFrame) {
					f.Loads = append(f.Loads, server.RegionLoad{Region: region, Epoch: r.Epoch, Load: 1, Saturated: saturated && o.Member == "m1"})
				})
			}
			synctest.Wait()
		}
		say(true)
		c.run(20 * time.Second)
		if n := owners(); n != 2 {
			t.Fatalf("a saturated region has %d owners, want 2", n)
		}
		c.run(time.Minute) // the new owner has not said that it serves: nobody knows whether that is enough
		if n := owners(); n != 2 {
			t.Fatalf("before the second owner serves, there are %d", n)
		}
		say(false)
		c.run(12 * time.Minute)
		if n := owners(); n != 1 {
			t.Errorf("a region that cooled down has %d owners, want 1", n)
		}
		c.run(30 * time.Minute)
		if n := owners(); n != 1 {
			t.Errorf("it has %d owners in the end", n)
		}
		kinds := map[string]int{}
		for _, cmd := range c.commands() {
			for _, e := range cmd.GetEvents() {
				if p := e.GetPeerChangePlanned(); p != nil {
					kinds[fmt.Sprint(p.GetKind(), p.GetReason())]++
				}
			}
		}
		want := map[string]int{"TRANSITION_KIND_ADD_PEER OPERATION_REASON_SATURATED": 1, "TRANSITION_KIND_REMOVE_PEER OPERATION_REASON_COLD": 1}
		if fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("what was planned is %v, want %v", kinds, want)
		}
	})
}

// Scenario 21: a range that is hot is cut at the median that its owner told, and one part
// of it moves; what is cold and adjacent is joined again, much later.
func TestScenario21HotRangeIsCut(t *testing.T) {
	settings := state.DefaultSettings()
	settings.Policy.Rebalance = byLoad()
	settings.Policy.Rebalance.Reshape = true
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		for i := range 4 {
			c.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: 2, StartKey: fmt.Appendf(nil, "%c", 'a'+i), EndKey: fmt.Appendf(nil, "%c", 'b'+i),
			}}}})
		}
		heated := false
		hot := func(r *state.Region) bool { return r.Start >= "a" && r.End <= "b" }
		c.load = func(r *state.Region) float64 {
			switch {
			case !heated || !hot(r):
				return 10
			case r.Start == "a" && r.End == "b":
				return 100
			default:
				return 50
			}
		}
		c.run(15 * time.Minute) // nobody is a newcomer any more
		heated = true
		c.speak()
		id := state.RegionID(0)
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			if hot(r) {
				id = r.ID
				c.report(r.Owners[0].Member, r.Proto(), func(p *coordinatorv1.RegionReport) { p.Load, p.MedianKey = 100, []byte("am") })
			}
			return true
		})
		before := len(c.planned())
		for range 1500 {
			if c.run(200 * time.Millisecond); c.now().Region(id).End == "am" {
				break
			}
		}
		c.silent["m1"], c.silent["m2"] = true, true // what the parts have is known of the whole
		c.run(time.Minute)
		left := c.now().Region(id)
		if left == nil || left.End != "am" {
			t.Fatalf("the hot region is %+v", left)
		}
		splits, parts := 0, map[state.MemberID]int{}
		for _, cmd := range c.commands() {
			for _, e := range cmd.GetEvents() {
				if s := e.GetSplitPlanned(); s != nil {
					splits++
					if s.GetReason() != rootv1.OperationReason_OPERATION_REASON_HOT {
						t.Errorf("the split is %v", s)
					}
				}
			}
		}
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			if hot(r) {
				parts[r.Owners[0].Member]++
			}
			return true
		})
		if splits != 1 || len(parts) != 2 || len(c.planned()) > before+2 {
			t.Errorf("%d splits, %d moves; the parts are on %v, want one on each", splits, len(c.planned())-before, parts)
		}
	})
}
