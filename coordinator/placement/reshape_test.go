package placement_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func ranges() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
}

func (c *cluster) publish(ks state.KeyspaceID, start, end, owner string) state.RegionID {
	r := &rootv1.Region{KeyspaceId: uint32(ks), StartKey: []byte(start), EndKey: []byte(end)}
	if owner != "" {
		r.Owners = []*rootv1.Owner{{MemberId: owner}}
	}
	return c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})[0].Region.ID
}

func (c *cluster) split(id state.RegionID, key string) state.RegionID {
	c.Helper()
	return state.RegionID(c.apply(&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
		RegionId: uint64(id), ExpectedEpoch: c.st.Region(id).Epoch.Proto(), SplitKey: []byte(key),
	}}})[0].Transition.GetRightRegionId())
}

func (c *cluster) merge(left, right state.RegionID) {
	c.Helper()
	c.apply(&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
		LeftRegionId: uint64(left), LeftExpectedEpoch: c.st.Region(left).Epoch.Proto(),
		RightRegionId: uint64(right), RightExpectedEpoch: c.st.Region(right).Epoch.Proto(),
	}}})
}

// ranged has a region of m1 in a keyspace of ranges, and m2, which has nothing.
func ranged(t *testing.T, s *rootv1.KeyspaceSettings) (*cluster, state.KeyspaceID, state.RegionID) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.keyspace("ks", ranges(), s)
	id := c.publish(ks, "", "", "m1")
	c.settle()
	return c, ks, id
}

// Neighbours without an owner are not joined when nobody says how far both got.
func TestAMergeLosesNoFrontier(t *testing.T) {
	c := newCluster(t)
	ks := c.keyspace("ks", ranges(), ttlFence())
	left, right := c.publish(ks, "", "m", ""), c.publish(ks, "m", "", "")
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(right), Frontier: []byte("far"), SetFrontier: true,
	}}}}})
	c.merge(left, right)
	if o := c.one(c.round(), placement.Cancel); o.Because != "the regions have no owner, and different frontiers" {
		t.Errorf("it is cancelled because %q", o.Because)
	}
	if c.st.Region(right).Frontier != "far" {
		t.Error("the right one's frontier is lost")
	}
}

// A region is split once its owner has let go of it: both parts are its owner's again, at
// the frontier that it said.
func TestRule8SplitKeepsTheOwner(t *testing.T) {
	c, _, id := ranged(t, ttlFence())
	right := c.split(id, "m")
	if f := c.refusal(c.plan(), placement.NotReleased); f.At != c.now.Add(time.Minute) || f.Region != id {
		t.Fatalf("the refusal is %+v", f)
	}
	c.tell(id, "m1", serving)
	c.refusal(c.plan(), placement.NotReleased)
	c.tell(id, "m1", released, frontier("said of another epoch"), func(r *placement.Report) { r.Epoch.Version-- })
	c.refusal(c.plan(), placement.NotReleased)
	c.tell(id, "m1", released)
	c.refusal(c.plan(), placement.NotReleased)
	c.tell(id, "m1", released, frontier("exactly here"))
	c.one(c.round(), placement.Complete)
	for _, part := range []state.RegionID{id, right} {
		if r := c.st.Region(part); c.owner(part) != "m1" || r.Frontier != "exactly here" || r.Epoch != (state.Epoch{Version: 2, ConfVersion: 1}) {
			t.Errorf("region %d is %+v", part, r)
		}
	}
	c.settle()
	if n := c.work.Moves().Len(); n != 0 {
		t.Errorf("%d moves are under way", n)
	}
}

// Of two neighbours the left one's owner says the frontier of both.
func TestRule8MergeKeepsTheOwner(t *testing.T) {
	c, _, left := ranged(t, epochFence())
	right := c.split(left, "m")
	c.tell(left, "m1", released, frontier("f"))
	c.round()
	c.settle()
	c.merge(left, right)
	c.refusal(c.plan(), placement.NotReleased)
	c.tell(right, "m1", released, frontier("right"))
	if plan := c.plan(); len(plan.Operations)+len(plan.Refusals) != 0 {
		t.Fatalf("the right one alone: %+v", plan)
	}
	c.tell(left, "m1", released, frontier("of both"))
	c.one(c.round(), placement.Complete)
	if r := c.st.Region(left); c.st.Region(right) != nil || r.Start+r.End != "" || r.Frontier != "of both" || c.owner(left) != "m1" {
		t.Errorf("the whole is %+v", r)
	}
}

// Past its deadline a split is given up, and the owner keeps the whole.
func TestRule8SplitHasADeadline(t *testing.T) {
	c, _, id := ranged(t, epochFence())
	c.split(id, "m")
	epoch := c.st.Region(id).Epoch
	c.plan()
	c.now = c.now.Add(time.Minute)
	c.one(c.round(), placement.Cancel)
	if c.status(id, epoch) != rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED || c.st.Region(id).Epoch != epoch || c.owner(id) != "m1" {
		t.Errorf("the region is %+v", c.st.Region(id))
	}
}

// The regions of an owner that dies go to others as they are; what was planned for them
// has then ended.
func TestRule8ReshapedOwnerDies(t *testing.T) {
	for name, merge := range map[string]bool{"split": false, "merge": true} {
		t.Run(name, func(t *testing.T) {
			c, _, id := ranged(t, epochFence())
			ids := []state.RegionID{id}
			right := c.split(id, "m")
			if merge {
				c.tell(id, "m1", released, frontier("f"))
				c.round()
				c.settle()
				c.merge(id, right)
				ids = append(ids, right)
			}
			c.set("m1", failed)
			c.settle()
			for _, id := range ids {
				if c.owner(id) != "m2" || c.st.PendingTransition(id) != nil {
					t.Errorf("region %d is %+v, pending %v", id, c.st.Region(id), c.st.PendingTransition(id))
				}
			}
		})
	}
}

// Owners that share a region, and none, are not waited for.
func TestRule8NobodyIsWaitedForWhoHasNoFrontier(t *testing.T) {
	c, ks, id := ranged(t, sharedBy(2))
	c.split(id, "m")
	c.one(c.round(), placement.Complete)
	c.settle()
	if n := len(regionsOf(c.st, ks)); n != 2 {
		t.Errorf("there are %d regions", n)
	}
}

func regionsOf(st *state.State, ks state.KeyspaceID) (all []*state.Region) {
	st.RegionsFrom(ks, "", func(r *state.Region) bool {
		all = append(all, r)
		return true
	})
	return all
}
