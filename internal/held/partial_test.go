package held_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestALastWordDuringACompleteReport: a complete report of several frames is under way when the process
// ends. The frame that ends the last word comes behind everything that was released.
func TestALastWordDuringACompleteReport(t *testing.T) {
	now := clock.Instant(1)
	c, answer := served(t, &now, &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "k", Fence: rootv1.Fence_FENCE_EPOCH})
	const regions = 200 // of 4 KiB each: four frames
	set := &coordinatorv1.ShownSet{Token: at(1), Complete: true}
	for id := uint64(1); id <= regions; id++ {
		key := []byte{byte(id >> 8), byte(id)}
		set.Regions = append(set.Regions, &coordinatorv1.ShownRegion{Region: &rootv1.Region{Id: id, KeyspaceId: 1, Epoch: (rooted.Epoch{Version: 1, ConfVersion: 1}).Proto(), StartKey: key, EndKey: append(append([]byte{}, key...), 0), Frontier: []byte("rooted")}})
	}
	answer(&coordinatorv1.MemberAnswer{Set: set})
	long := strings.Repeat("f", 4000)
	var late []held.Call
	work := func(hold rooted.RegionID) {
		for _, call := range c.Calls(100000, now) {
			switch {
			case call.Kind == held.Release && call.Region.ID == hold:
				late = append(late, call)
			case call.Kind == held.Release:
				c.Done(call.ID, held.Result{Frontier: long}, now)
			default:
				c.Done(call.ID, held.Result{}, now)
			}
		}
	}
	work(0)
	for range 20 { // all is said on the first stream
		now = now.Add(1e7)
		c.Frame(0, now)
	}
	c.Close(0) // the coordinator was restarted
	c.Open(0)  // and the line is there again
	c.Stop(now)
	work(1) // region 1 takes a moment longer than others
	said := map[uint64]*coordinatorv1.RegionReport{}
	frames := 0
	next := func() *coordinatorv1.MemberFrame {
		now = now.Add(1e7)
		f := c.Frame(0, now)
		frames++
		for _, r := range f.GetRegions() {
			said[r.GetRegionId()] = r
		}
		return f
	}
	if f := next(); !f.GetPartial() || said[1].GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASING {
		t.Fatalf("the first of the frames: partial %v, region 1 is %v", f.GetPartial(), said[1])
	}
	for _, call := range late {
		c.Done(call.ID, held.Result{Frontier: "exactly-42"}, now)
	}
	if c.Holding() != 0 {
		t.Fatalf("it holds %d", c.Holding())
	}
	c.Gone("the process ends")
	for {
		f := next()
		if f == nil || f.GetGoodbye().GetGone() && !f.GetPartial() {
			break // the stream ends here
		}
	}
	if r := said[1]; r.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED || string(r.GetFrontier()) != "exactly-42" {
		t.Errorf("behind the last of %d frames region 1, which was released at exactly-42, is told as %v at %q", frames, r.GetPhase(), r.GetFrontier())
	}
}

// TestACompleteReportIsAboutTheSetThatItNames: a frame that no other continues says all of the set that it
// names, by which coordinators tell what was said of a plan from what was said of an earlier one.
func TestACompleteReportIsAboutTheSetThatItNames(t *testing.T) {
	now := clock.Instant(1)
	c, answer := served(t, &now, &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "k", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 60_000})
	const regions = 200
	region := func(id uint64) *coordinatorv1.ShownRegion {
		key := []byte{byte(id >> 8), byte(id)}
		return &coordinatorv1.ShownRegion{Region: &rootv1.Region{Id: id, KeyspaceId: 1, Epoch: (rooted.Epoch{Version: 1, ConfVersion: 1}).Proto(), StartKey: key, EndKey: append(append([]byte{}, key...), 0), Frontier: []byte("rooted")}}
	}
	moving := func(release bool) *coordinatorv1.ShownRegion {
		r := region(1)
		r.Move = &coordinatorv1.ShownMove{TransitionId: "move-1-1.1", Role: coordinatorv1.MoveRole_MOVE_ROLE_GIVES, PeerId: "m2", ReleaseNow: release}
		return r
	}
	long := strings.Repeat("f", 4000)
	work := func() {
		for range 3 {
			for _, call := range c.Calls(100000, now) {
				f := long
				if call.Region != nil && call.Region.ID == 1 {
					f = "old-41"
				}
				if call.Kind == held.Release || call.Kind == held.Checkpoint {
					c.Done(call.ID, held.Result{Frontier: f}, now)
				} else {
					c.Done(call.ID, held.Result{}, now)
				}
			}
		}
	}
	set := &coordinatorv1.ShownSet{Token: at(1), Complete: true, Regions: []*coordinatorv1.ShownRegion{moving(true)}}
	for id := uint64(2); id <= regions; id++ {
		set.Regions = append(set.Regions, region(id))
	}
	answer(&coordinatorv1.MemberAnswer{Set: set})
	work()
	for id := uint64(2); id <= regions; id++ { // long enough reports: each has said how far it got
		answer(&coordinatorv1.MemberAnswer{Commands: []*coordinatorv1.MemberCommand{{Era: 1, Id: id, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT, RegionId: id, Epoch: (rooted.Epoch{Version: 1, ConfVersion: 1}).Proto()}}})
	}
	work()
	for range 30 {
		now = now.Add(1e7)
		c.Frame(0, now)
	}
	var said *coordinatorv1.RegionReport
	next := func() *coordinatorv1.MemberFrame {
		now = now.Add(1e7)
		f := c.Frame(0, now)
		for _, r := range f.GetRegions() {
			if r.GetRegionId() == 1 {
				said = r
			}
		}
		return f
	}
	answer(&coordinatorv1.MemberAnswer{ReportAgain: true})
	if f := next(); !f.GetPartial() || said.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
		t.Fatalf("the first of the frames: partial %v, region 1 is %v", f.GetPartial(), said)
	}
	answer(&coordinatorv1.MemberAnswer{Set: &coordinatorv1.ShownSet{Token: at(2), Regions: []*coordinatorv1.ShownRegion{region(1)}}}) // it is given up
	work()
	answer(&coordinatorv1.MemberAnswer{Set: &coordinatorv1.ShownSet{Token: at(3), Regions: []*coordinatorv1.ShownRegion{moving(false)}}}) // and planned anew
	work()
	if phase, _ := c.Phase(1); phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
		t.Fatalf("it is %v", phase)
	}
	f := next()
	for f.GetPartial() {
		f = next()
	}
	if f.GetShown().GetToken().GetIndex() == 3 && said.GetPhase() == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
		t.Errorf("of the set at %v all is said, and region 1, which serves, is said to be %v for %s at %q", f.GetShown().GetToken().GetIndex(), said.GetPhase(), said.GetTransitionId(), said.GetFrontier())
	}
}
