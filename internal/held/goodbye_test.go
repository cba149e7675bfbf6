package held_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// served is a Core that has a stream on which it is answered, with the terms of keyspaces.
func served(t *testing.T, now *clock.Instant, terms ...*coordinatorv1.KeyspaceTerms) (c *held.Core, answer func(*coordinatorv1.MemberAnswer)) {
	c = held.New(held.Config{Member: "m1", Incarnation: 1})
	c.Open(0)
	answer = func(a *coordinatorv1.MemberAnswer) {
		t.Helper()
		a.Era = 1
		if err := c.Answer(0, a, *now); err != nil {
			t.Fatal(err)
		}
	}
	answer(&coordinatorv1.MemberAnswer{Terms: &coordinatorv1.MemberTerms{Keyspaces: terms}})
	return c, answer
}

// What a member says with its goodbye of two regions that are being merged.
func goneMerging(t *testing.T, mergeErr string) map[uint64]*coordinatorv1.RegionReport {
	now := clock.Instant(1)
	c, answer := served(t, &now, &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "k", Fence: rootv1.Fence_FENCE_EPOCH})
	show := func(token uint64, merge bool) {
		set := &coordinatorv1.ShownSet{Token: at(token), Complete: true}
		for id, keys := range map[uint64][2]string{1: {"a", "m"}, 2: {"m", "z"}} {
			p := &coordinatorv1.ShownRegion{Region: &rootv1.Region{Id: id, KeyspaceId: 1, Epoch: (rooted.Epoch{Version: 1, ConfVersion: 1}).Proto(), StartKey: []byte(keys[0]), EndKey: []byte(keys[1]), Frontier: []byte("rooted")}}
			if merge {
				p.Move = &coordinatorv1.ShownMove{TransitionId: "t", Role: coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES, ReleaseNow: true, LeftRegionId: 1, RightRegionId: 2}
			}
			set.Regions = append(set.Regions, p)
		}
		answer(&coordinatorv1.MemberAnswer{Set: set})
	}
	work := func() {
		for range 3 {
			for _, call := range c.Calls(100, now) {
				switch {
				case call.Kind == held.Release && call.Region.ID == 1:
					c.Done(call.ID, held.Result{Frontier: "left"}, now)
				case call.Kind == held.Release:
					c.Done(call.ID, held.Result{Frontier: "right"}, now)
				case call.Kind == held.Merge:
					c.Done(call.ID, held.Result{Frontier: "whole", Err: mergeErr}, now)
				default:
					c.Done(call.ID, held.Result{}, now)
				}
			}
		}
	}
	show(1, false)
	work()
	show(2, true)
	work()
	c.Stop(now)
	work()
	if c.Holding() != 0 {
		t.Fatalf("it holds %d", c.Holding())
	}
	c.Gone("the process ends")
	now = now.Add(time.Second)
	said := map[uint64]*coordinatorv1.RegionReport{}
	f := c.Frame(0, now)
	for _, r := range f.GetRegions() {
		said[r.GetRegionId()] = r
	}
	if !f.GetGoodbye().GetGone() {
		t.Fatal("it does not say gone")
	}
	return said
}

func TestRule7GoneInTheMiddleOfAMerge(t *testing.T) {
	for name, mergeErr := range map[string]string{"merged": "", "merge fails": "no"} {
		t.Run(name, func(t *testing.T) {
			l := goneMerging(t, mergeErr)[1]
			if l.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED || string(l.GetFrontier()) != "left" {
				t.Errorf("the left region was released at %q; said with the goodbye: %v at %q", "left", l.GetPhase(), l.GetFrontier())
			}
		})
	}
}
