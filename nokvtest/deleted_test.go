package nokvtest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// A keyspace is deleted with its owners and made again under its name, and the owner of a key is cut off
// and knows nothing of it: it answers until its ttl is over, and only then the next one does, above its
// epoch.
func TestRule5AKeyspaceMadeAgainWaitsForItsLastOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("partitions")
		s.Layout.GetSlots().Count = 4
		s.Ownership.Fence, s.Ownership.TtlMillis = rootv1.Fence_FENCE_TTL, 20_000
		c := nokvtest.Start(t, nokvtest.Coordinators(1), nokvtest.Keyspace("fleet", "", s))
		members := []*nokvtest.Member{c.Member(t, "m1", &app{})}
		acts := func(m int, key byte) (epoch rooted.Epoch, ok bool) {
			err := members[m].Do(t.Context(), member.Request{Keyspace: "fleet", Key: []byte{key}}, func(_ context.Context, r member.Region) error {
				epoch = r.Epoch
				return nil
			})
			return epoch, err == nil
		}
		count := func(m int) (n int) {
			for key := range byte(madeAgain) {
				if _, ok := acts(m, key); ok {
					n++
				}
			}
			return n
		}
		c.Await(t, "m1 acts for all", func() bool { return count(0) == madeAgain })
		c.Cut("m1", "c1")
		members = append(members, c.Member(t, "m2", &app{}))
		remove := &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "fleet", Force: true}}}
		if _, err := c.Client().PublishEvent(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client().CreateKeyspaceOf(t.Context(), "fleet", s); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var old rooted.Epoch
		var ends time.Duration
		for time.Since(begun) < 5*time.Minute && count(1) < madeAgain {
			for key := range byte(madeAgain) {
				if e, ok := acts(0, key); ok {
					old, ends = e, time.Since(begun)
				}
				e, ok := acts(1, key)
				if _, both := acts(0, key); ok && both {
					t.Fatalf("after %v m1 acts for key %d at %v and m2 at %v", time.Since(begun), key, old, e)
				}
				if ok && e.Version <= old.Version {
					t.Fatalf("m1 acted for key %d until %v, and m2 acts at %v", key, old, e)
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		if n := count(1); n < madeAgain || ends < 10*time.Second {
			t.Errorf("m1 acted for %v; after %v m2 acts for %d of %d keys", ends, time.Since(begun), n, madeAgain)
		}
	})
}

// madeAgain are the keys that are asked for.
const madeAgain = 16
