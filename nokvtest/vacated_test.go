package nokvtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
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

// A key is taken from a member that is cut off, and then the member is removed: nobody else acts for the
// key before its ttl is over.
func TestRule5AMemberThatIsRemovedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("partitions")
		s.Layout.GetSlots().Count = 1
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, 20_000
		c := nokvtest.Start(t, nokvtest.Coordinators(1), nokvtest.Keyspace("fleet", "", s))
		m1 := c.Member(t, "m1", &app{})
		r := c.AwaitOwner(t, "fleet", []byte("k"), "m1")
		time.Sleep(30 * time.Second) // as long as the era is new, everybody is waited for
		acts := func(m *nokvtest.Member) bool {
			return m.Do(t.Context(), member.Request{Keyspace: "fleet", Key: []byte("k")}, nothing) == nil
		}
		c.Await(t, "m1 acts", func() bool { return acts(m1) })
		c.Cut("m1", "c1")
		m2 := c.Member(t, "m2", &app{})
		begun := time.Now()
		if _, err := c.Client().AssignRegions(t.Context(), 0, &rootv1.Assignment{RegionId: uint64(r.Region.ID)}); err != nil {
			t.Fatal(err)
		}
		removed := &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m1", State: rootv1.MemberState_MEMBER_STATE_REMOVED}}}
		if _, err := c.Client().PublishEvent(t.Context(), removed); err != nil {
			t.Fatal(err)
		}
		var ends time.Duration
		for !acts(m2) {
			if acts(m1) {
				ends = time.Since(begun)
			}
			if time.Since(begun) > 5*time.Minute {
				t.Fatal("after 5 minutes m2 does not act for the key")
			}
			time.Sleep(50 * time.Millisecond)
		}
		if acts(m1) || ends < 10*time.Second {
			t.Errorf("m2 acts after %v, m1 acted for %v and still does: %t", time.Since(begun), ends, acts(m1))
		}
	})
}

// A region is removed and published again while its owner is cut off: nobody else acts for its keys before
// the owner's ttl is over, and the new region begins above the old one.
func TestRule5ARegionRemovedUnderAnOwnerThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("partitions")
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, 20_000
		c := nokvtest.Start(t, nokvtest.Coordinators(1), nokvtest.Keyspace("fleet", "", s))
		p, err := c.Client().GetKeyspace(t.Context(), "fleet")
		if err != nil {
			t.Fatal(err)
		}
		publish := func() {
			t.Helper()
			if _, err := c.Client().PublishEvent(t.Context(), &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
				Region: &rootv1.Region{KeyspaceId: p.GetKeyspace().GetId(), StartKey: []byte("a"), EndKey: []byte("z")},
			}}}); err != nil {
				t.Fatal(err)
			}
		}
		m1 := c.Member(t, "m1", &app{})
		publish()
		old := c.AwaitOwner(t, "fleet", []byte("k"), "m1")
		time.Sleep(30 * time.Second) // as long as the era is new, everybody is waited for
		acts := func(m *nokvtest.Member) bool {
			return m.Do(t.Context(), member.Request{Keyspace: "fleet", Key: []byte("k")}, nothing) == nil
		}
		c.Await(t, "m1 acts", func() bool { return acts(m1) })
		m2 := c.Member(t, "m2", &app{})
		c.Cut("m1", "c1")
		begun := time.Now()
		if _, err := c.Client().RemoveRegion(t.Context(), old.Region.ID, old.Region.Epoch); err != nil {
			t.Fatal(err)
		}
		publish()
		var ends time.Duration
		for !acts(m2) {
			if acts(m1) {
				ends = time.Since(begun)
			}
			if time.Since(begun) > 5*time.Minute {
				t.Fatal("after 5 minutes m2 does not act for the key")
			}
			time.Sleep(50 * time.Millisecond)
		}
		if acts(m1) || ends < 10*time.Second {
			t.Errorf("m2 acts after %v, m1 acted for %v and still does: %t", time.Since(begun), ends, acts(m1))
		}
		if r := c.AwaitOwner(t, "fleet", []byte("k"), "m2"); !r.Region.Epoch.NewerThan(old.Region.Epoch) || r.Region.Epoch.Version <= old.Region.Epoch.Version {
			t.Errorf("region %d begins at %s, and %d was at %s", r.Region.ID, r.Region.Epoch, old.Region.ID, old.Region.Epoch)
		}
	})
}
