package nokvtest_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// unwell cannot acquire anything while it is set.
type unwell struct {
	app
	is atomic.Bool
}

func (u *unwell) Acquire(ctx context.Context, r member.Region) error {
	if u.is.Load() {
		return errors.New("the disk is full")
	}
	return u.app.Acquire(ctx, r)
}

// Rule 11: a member that joins and cannot acquire gets its part of 32 regions, because nobody
// knows yet; the state says that they are not served, they go back, and it gets no more. When it
// is well again, and has rested, it gets its part, and the state says that all is well.
func TestRule11OwnedIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions"))
		c.Member(t, "m1", &app{})
		c.Member(t, "m2", &app{})
		owns := func(id rooted.MemberID) (n int) {
			for r, err := range c.Client().ScanRegions(t.Context(), nil, nil, client.In("streams")) {
				if err != nil {
					return -1
				}
				for _, o := range r.Region.Owners {
					if o.Member == id {
						n++
					}
				}
			}
			return n
		}
		waits := func(why string) bool {
			st, err := c.Client().Status(t.Context(), c.Holder(t)+":7100")
			for _, x := range st.GetStuck() {
				if x.GetWhy() == why {
					return true
				}
			}
			return err != nil
		}
		c.Await(t, "all are owned", func() bool { return owns("m1")+owns("m2") > 0 && !waits("not_served") })
		all := owns("m1") + owns("m2")
		sick := &unwell{}
		sick.is.Store(true)
		c.Member(t, "m3", sick)
		c.Await(t, "m3 gets some", func() bool { return owns("m3") > 0 })
		c.Await(t, "they are said not to be served", func() bool { return waits("not_served") })
		c.Await(t, "a plan says so", func() bool {
			plan, err := c.Client().Plan(t.Context(), &coordinatorv1.PlanRequest{Keyspace: "streams"})
			return err == nil && slices.ContainsFunc(plan.GetRefusals(), func(r *coordinatorv1.PlannedRefusal) bool {
				return r.GetWhy() == "not_served" && r.GetMemberId() == "m3"
			})
		})
		c.Await(t, "they go back", func() bool { return owns("m3") == 0 })
		c.Await(t, "m3 is said to rest", func() bool {
			for m, err := range c.Client().ListMembers(t.Context()) {
				if err == nil && m.GetMember().GetId() == "m3" && m.GetRestingMillis() > 0 {
					return true
				}
			}
			return false
		})
		c.EndEra(t) // the next holder knows as well
		for range 10 {
			time.Sleep(5 * time.Second)
			if n := owns("m3"); n > 0 {
				t.Fatalf("m3 has %d of %d, and cannot acquire them", n, all)
			}
		}
		sick.is.Store(false)
		c.Await(t, "m3 has its part", func() bool { return owns("m3") > 0 && !waits("not_served") && len(sick.calls()) > 0 })
	})
}
