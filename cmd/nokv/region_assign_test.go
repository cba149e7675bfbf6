package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// takesAll is an application that takes every region and keeps nothing.
type takesAll struct{}

func (takesAll) Acquire(context.Context, member.Region) error           { return nil }
func (takesAll) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

// A region is removed from under an owner that may act until its ttl is over, and published again:
// assign and add-owner refuse to give it to another member, and not to that one.
func TestRule5OperatorsGiveNoKeysThatOthersActFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("partitions")
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
		s.Cadence = nil
		c := nokvtest.Start(t, nokvtest.Coordinators(1), nokvtest.Keyspace("p", "", s))
		cl := c.Client()
		c.Member(t, "m1", takesAll{})
		c.Member(t, "m2", takesAll{})
		defer c.FreezePlanner()()
		p, err := cl.GetKeyspace(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		publish := func() client.Route {
			t.Helper()
			if _, err := cl.PublishEvent(t.Context(), &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
				Region: &rootv1.Region{KeyspaceId: p.GetKeyspace().GetId(), StartKey: []byte("a"), EndKey: []byte("b")},
			}}}); err != nil {
				t.Fatal(err)
			}
			r, err := cl.GetRegionByKey(t.Context(), []byte("a"), client.In("p"), client.Strong())
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		old := publish()
		if err := free(t.Context(), cl, old.Region, "m1"); err != nil {
			t.Fatal("of keys that nobody had:", err)
		}
		if _, err := cl.PublishEvent(t.Context(), assignment(old.Region, []rooted.Owner{{Member: "m1"}})); err != nil {
			t.Fatal(err)
		}
		old = c.AwaitOwner(t, "p", []byte("a"), "m1")
		if _, err := cl.RemoveRegion(t.Context(), old.Region.ID, old.Region.Epoch); err != nil {
			t.Fatal(err)
		}
		again := publish()
		if err := free(t.Context(), cl, again.Region, "m2"); err == nil || !strings.Contains(err.Error(), "were taken from m1, which may still serve them") {
			t.Errorf("given to m2: %v", err)
		}
		if err := free(t.Context(), cl, again.Region, "m1"); err != nil {
			t.Errorf("given back to m1: %v", err)
		}
	})
}
