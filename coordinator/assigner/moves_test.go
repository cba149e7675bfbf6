package assigner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
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

// drains has m1 drain, which lets nothing go.
func (w *world) drains() {
	w.hosts(2, 1)
	w.claim(self, life)
	w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: "m1", Incarnation: w.lives("m1"), State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: "test",
	}}})
	w.pass(time.Second, "m1", "m2")
	if w.now().PendingTransition(1) == nil {
		w.t.Fatal("nothing is on its way")
	}
}

// A region that its owner does not let go is served most of the time that a drain lasts: it
// is not asked for again as soon as the move is given up.
func TestADrainDoesNotDarkenARegionThatIsNotLetGo(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.drains()
		dark, looks := 0, 0
		for range 600 {
			w.pass(time.Second, "m1", "m2")
			if looks++; w.now().PendingTransition(1) != nil {
				dark++
			}
		}
		if dark > looks/2 || dark < looks/10 {
			t.Errorf("it is on its way in %d of %d looks", dark, looks)
		}
	})
}

// A deadline goes on while the Tenure changes hands.
func TestADeadlineGoesOnWithAnotherHolder(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.drains()
		began := time.Now()
		w.pass(25*time.Second, "m1", "m2")
		w.claim(other, 1)
		w.pass(25*time.Second, "m1", "m2")
		w.claim(self, life)
		var region state.RegionID = 1
		for w.now().PendingTransition(region) != nil && time.Since(began) < 3*time.Minute {
			w.pass(time.Second, "m1", "m2")
		}
		if d := time.Since(began); d < 55*time.Second || d > 65*time.Second {
			t.Errorf("the move was given up after %v, want its deadline of a minute", d)
		}
	})
}
