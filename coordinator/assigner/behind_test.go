package assigner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A region that was taken from a member waits for as long as that one may act for it: while it is heard, and
// confirmed. Who takes nothing that it is shown is not confirmed, fails, and is not waited for.
func TestWhoTakesNothingIsNotWaitedForWithoutEnd(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		s, _ := state.Preset("games")
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}}
		s.Ownership = &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 2000}
		w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}})
		assigned := func(owners ...*rootv1.Owner) {
			w.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{RegionId: 1, Owners: owners}}}}})
			synctest.Wait()
		}
		for i := range 3 {
			w.join(name(i))
		}
		assigned(&rootv1.Owner{MemberId: "m1"})
		for i := range 3 {
			w.open(name(i))
		}
		w.claim(self, life)
		pass := func(d time.Duration, behind bool) {
			t.Helper()
			for range d / (100 * time.Millisecond) {
				w.pass(100*time.Millisecond, "m2", "m3")
				w.frame("m1", func(f *server.HeardFrame) { f.Behind = behind })
				if w.a.Answered("m1", w.lives("m1"), 0) == behind {
					t.Fatalf("m1 is behind: %v, and confirmed: %v", behind, !behind)
				}
			}
		}
		pass(5*time.Second, false)
		assigned()
		pass(time.Minute, false)
		if owners := w.now().Region(1).Owners; len(owners) > 0 {
			t.Fatalf("m1 may act, and the region is of %v", owners)
		}
		pass(10*time.Second, true)
		if owners := w.now().Region(1).Owners; len(owners) != 1 || owners[0].Member == "m1" || w.now().Member("m1").GetState() != failed {
			t.Errorf("the region is of %v, and m1 is %v", owners, w.now().Member("m1").GetState())
		}
	})
}
