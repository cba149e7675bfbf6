package nokvtest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/nokvtest"
)

// cutOff cuts the holder from the other coordinators, callers and some members of five.
func cutOff(t *testing.T, c *nokvtest.Cluster, members, coordinators int) (holder string) {
	holder = c.Holder(t)
	for _, id := range []string{"c1", "c2", "c3"} {
		if id != holder && coordinators > 0 {
			coordinators--
			c.Cut(holder, id)
		}
	}
	for i := range members {
		c.Cut(holder, fmt.Sprintf("m%d", i+1))
	}
	return holder
}

// A holder that reaches the root and nobody else loses the Tenure: a standby that most
// members ask in vain to be passed on to it asks the era to end. It does not come back, nor go
// round, while it is cut off.
func TestRule10AHolderThatOnlyTheRootReaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(3), nokvtest.TenureTTL(200*time.Millisecond), nokvtest.Keyspace("streams", "partitions"))
		for i := range 5 {
			c.Member(t, fmt.Sprintf("m%d", i+1), &app{})
		}
		c.Await(t, "all are owned", func() bool { return owned(t, c) == 128 })
		era := c.Client().Era()
		holder := cutOff(t, c, 5, 2)
		c.Cut(holder, nokvtest.Outside)
		begun := time.Now()
		c.Await(t, "timestamps are given", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Client().Tso(ctx, 1)
			return err == nil && c.Client().Era() > era
		})
		took := time.Since(begun)
		if now := c.Holder(t); now == holder || took > 45*time.Second {
			t.Errorf("%s holds the Tenure after %v, the one cut off is %s", now, took, holder)
		}
		c.Await(t, "all are owned", func() bool { return owned(t, c) == 128 })
		time.Sleep(3 * time.Minute)
		if _, err := c.Client().Tso(t.Context(), 1); err != nil || c.Client().Era() != era+1 {
			t.Errorf("era %d after 3 minutes, %v: want %d", c.Client().Era(), err, era+1)
		}
	})
}

// A holder keeps the Tenure while most members reach it, be it through another coordinator,
// and while a standby does.
func TestRule10AHolderThatMostReachStays(t *testing.T) {
	for _, c := range []struct {
		what                  string
		members, coordinators int
	}{{"two of five members and both others are cut", 2, 2}, {"all members and one other are cut", 5, 1}} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := nokvtest.Start(t, nokvtest.Coordinators(3), nokvtest.TenureTTL(200*time.Millisecond), nokvtest.Keyspace("streams", "partitions"))
				for i := range 5 {
					cluster.Member(t, fmt.Sprintf("m%d", i+1), &app{})
				}
				cluster.Await(t, "all are owned", func() bool { return owned(t, cluster) == 128 })
				era := cluster.Client().Era()
				cutOff(t, cluster, c.members, c.coordinators)
				time.Sleep(2 * time.Minute)
				if _, err := cluster.Client().Tso(t.Context(), 1); err != nil || cluster.Client().Era() != era {
					t.Errorf("era %d, %v: want %d", cluster.Client().Era(), err, era)
				}
			})
		})
	}
}

// owned counts the regions of streams that have an owner.
func owned(t *testing.T, c *nokvtest.Cluster) (n int) {
	for r, err := range c.Client().ScanRegions(t.Context(), nil, nil, client.In("streams")) {
		if err != nil {
			return -1
		}
		if len(r.Region.Owners) > 0 {
			n++
		}
	}
	return n
}
