package assigner_test

import (
	"testing"
	"testing/synctest"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestMovesOfAKeyspaceThatIsGone: what counts against the moves that a member may have under
// way ends with its keyspace, also where both are learnt of at once.
func TestMovesOfAKeyspaceThatIsGone(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 1)
		w.claim(self, life)
		w.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: 1, ExpectedEpoch: w.now().Region(1).Epoch.Proto(), From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
			PrepareMaxMillis: 60_000, DeadlineMillis: 60_000,
		}}})
		synctest.Wait()
		if n := w.a.Vars().Moves; n != 1 {
			t.Fatalf("%d moves are under way, want 1", n)
		}
		id := w.now().PendingTransition(1).GetId()
		w.root.mu.Lock()
		w.root.appendLocked(
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: id}}}}},
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}}}},
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "games"}}}}},
		)
		gone := w.root.state.Keyspace(2) == nil
		w.root.mu.Unlock()
		if !gone {
			t.Fatal("the keyspace is there")
		}
		synctest.Wait()
		if n := w.a.Vars().Moves; n != 0 {
			t.Errorf("%d moves are counted of a keyspace that is gone", n)
		}
	})
}
