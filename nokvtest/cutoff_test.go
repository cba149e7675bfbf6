package nokvtest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/nokvtest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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

// The next era is taken by the only coordinator that members reach, and not by one of those that
// are cut off as well.
func TestRule10TheNextHolderIsOneThatMembersReach(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := nokvtest.Start(t, nokvtest.Coordinators(n), nokvtest.TenureTTL(200*time.Millisecond), nokvtest.Keyspace("streams", "partitions"))
			for i := range 5 {
				c.Member(t, fmt.Sprintf("m%d", i+1), &app{})
			}
			c.Await(t, "all are owned", func() bool { return owned(t, c) == 128 })
			good := "c1"
			if c.Holder(t) == good {
				good = "c2"
			}
			before, _ := newestEra(t, c)
			for i := range n {
				bad := fmt.Sprintf("c%d", i+1)
				if bad == good {
					continue
				}
				for j := range 5 {
					if o := fmt.Sprintf("c%d", j+1); o != bad && j < n {
						c.Cut(bad, o)
					}
					c.Cut(bad, fmt.Sprintf("m%d", j+1))
				}
				c.Cut(bad, nokvtest.Outside)
			}
			time.Sleep(2 * time.Minute)
			if era, holder := newestEra(t, c); era != before+1 || holder != good {
				t.Errorf("of %d: era %d of %s, want %d of %s", n, era, holder, before+1, good)
			}
		})
	}
}

// A coordinator that reaches the root and nobody else takes no era of others: not of a holder that is
// asked to end it, nor of one that was killed.
func TestRule10WhoReachesTheRootAloneTakesNoEra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(3), nokvtest.TenureTTL(200*time.Millisecond), nokvtest.Keyspace("streams", "partitions"))
		for i := range 3 {
			c.Member(t, fmt.Sprintf("m%d", i+1), &app{})
		}
		c.Await(t, "all are owned", func() bool { return owned(t, c) == 128 })
		alone := "c1"
		if c.Holder(t) == alone {
			alone = "c2"
		}
		for i := range 3 {
			if o := fmt.Sprintf("c%d", i+1); o != alone {
				c.Cut(alone, o)
			}
			c.Cut(alone, fmt.Sprintf("m%d", i+1))
		}
		c.Cut(alone, nokvtest.Outside)
		time.Sleep(30 * time.Second) // it knows by then that its streams are dead
		for i := range 8 {
			time.Sleep(15 * time.Second)
			before, holder := newestEra(t, c)
			if i%2 == 0 {
				c.EndEra(t)
			} else {
				c.KillCoordinator(t, holder)
			}
			c.Await(t, "another era is heard of", func() bool {
				era, _ := newestEra(t, c)
				return era > before
			})
			c.RestartCoordinator(t, holder)
			if era, by := newestEra(t, c); era != before+1 || by == alone {
				t.Errorf("handover %d: era %d is that of %s, and behind era %d of %s; %s is alone", i, era, by, before, holder, alone)
			}
		}
	})
}

// A holder that four stores reach keeps the Tenure, also when they beat at the standby while that was the holder.
func TestRule10AHolderThatStoresReachStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.TenureTTL(200*time.Millisecond), nokvtest.Keyspace("streams", "partitions"))
		c.Member(t, "m1", &app{})
		c.Await(t, "all are owned", func() bool { return owned(t, c) == 128 })
		other := c.Holder(t)
		stores := map[string]*rootv1.Member{}
		for i := range 4 {
			id := fmt.Sprintf("store-%d", i+1)
			m, err := c.Client().RegisterMember(t.Context(), &rootv1.Member{Id: id, Address: id + ":1", StartNonce: 7, Keyspaces: []string{"default"}})
			if err != nil {
				t.Fatal(err)
			}
			stores[id] = m
		}
		sequence := uint64(0)
		failed := 0
		beat := func() {
			sequence++
			for id, m := range stores {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if _, err := c.Client().StoreHeartbeat(ctx, &coordinatorv1.StoreHeartbeatRequest{MemberId: id, Incarnation: m.GetIncarnation(), Sequence: sequence}); err != nil {
					failed++
				}
				cancel()
			}
		}
		beat()
		time.Sleep(6 * time.Second)
		era := c.EndEra(t)
		holder := c.Holder(t)
		if holder == other {
			t.Fatal("the same holder")
		}
		for range 20 {
			beat()
			time.Sleep(3 * time.Second)
		}
		c.Cut(holder, other)
		c.Cut(other, nokvtest.Outside)
		c.Cut(holder, "m1")
		failed = 0
		for range 100 {
			beat()
			time.Sleep(3 * time.Second)
		}
		if now, by := newestEra(t, c); failed > 0 || now != uint64(era) {
			_, err := c.Client().Tso(t.Context(), 1)
			t.Errorf("era %d of %s, want %d of %s, whom four of five members reach: %d beats fail; tso: %v", now, by, era, holder, failed, err)
		}
	})
}

// newestEra is the newest era that any coordinator tells of that is reached from outside.
func newestEra(t *testing.T, c *nokvtest.Cluster) (uint64, string) {
	var era uint64
	holder := ""
	for _, at := range c.Addresses() {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		s, err := c.Client().Status(ctx, at)
		cancel()
		if err == nil && s.GetTenure().GetEra() > era {
			era, holder = s.GetTenure().GetEra(), s.GetTenure().GetHolderId()
		}
	}
	return era, holder
}
