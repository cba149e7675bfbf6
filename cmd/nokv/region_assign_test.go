package main

import (
	"context"
	"errors"
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

// A region is taken from an owner that may act until its ttl is over, or removed from under it and
// published again: another member is given it only at once.
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
		p, err := cl.GetKeyspace(t.Context(), "p", client.Strong())
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
		give := func(r client.Route, to rooted.MemberID, atOnce bool) error {
			_, err := cl.PublishEvent(t.Context(), assignment(r.Region, []rooted.Owner{{Member: to}}, atOnce))
			return err
		}
		if err := give(publish(), "m1", false); err != nil {
			t.Fatal("of keys that nobody had:", err)
		}
		old := c.AwaitOwner(t, "p", []byte("a"), "m1")
		if err := give(old, "m2", false); !errors.Is(err, client.ErrRangeChangePending) {
			t.Errorf("taken from m1: %v", err)
		}
		if _, err := cl.RemoveRegion(t.Context(), old.Region.ID, old.Region.Epoch); err != nil {
			t.Fatal(err)
		}
		again := publish()
		if err := give(again, "m2", false); !errors.Is(err, client.ErrRangeChangePending) || !strings.Contains(err.Error(), `member "m1" may still act`) {
			t.Errorf("given to m2: %v", err)
		}
		if err := give(again, "m2", true); err != nil {
			t.Errorf("given to m2 at once: %v", err)
		}
	})
}
