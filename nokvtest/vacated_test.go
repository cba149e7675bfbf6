package nokvtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A key is taken from m1, which is shown that and goes on; then its region is removed: whoever
// claims the key gets it.
func TestRule5AKeyRemovedBehindItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("games")
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, 5000
		s.Cadence = nil
		c := nokvtest.Start(t, nokvtest.Coordinators(1), nokvtest.Keyspace("games", "", s))
		c.Member(t, "m1", &app{})
		if _, err := c.Client().Claim(t.Context(), "games", []byte("k")); err != nil {
			t.Fatal(err)
		}
		r := c.AwaitOwner(t, "games", []byte("k"), "m1")
		thaw := c.FreezePlanner()
		if _, err := c.Client().AssignRegions(t.Context(), 0, &rootv1.Assignment{RegionId: uint64(r.Region.ID)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		r, err := c.Client().GetRegionByKey(t.Context(), []byte("k"), client.In("games"), client.Strong())
		if err != nil || len(r.Region.Owners) > 0 {
			t.Fatal(r, err)
		}
		if _, err := c.Client().RemoveRegion(t.Context(), r.Region.ID, r.Region.Epoch); err != nil {
			t.Fatal(err)
		}
		thaw()
		time.Sleep(20 * time.Second)
		begun := time.Now()
		if _, err := c.Client().Claim(t.Context(), "games", []byte("k")); err != nil {
			t.Fatal(err)
		}
		for time.Since(begun) < 10*time.Minute {
			time.Sleep(100 * time.Millisecond)
			if r, err := c.Client().GetRegionByKey(t.Context(), []byte("k"), client.In("games"), client.Strong()); err == nil && len(r.Region.Owners) > 0 {
				return
			}
		}
		t.Errorf("after 10 minutes the key has no owner: m1 let go of it before the region was removed, and is well")
	})
}
