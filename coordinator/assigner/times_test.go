package assigner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Rule 8: a goodbye says how much time the process has left, and its regions are given away
// in that, also if those that take them do not get ready.
func TestRule8GoodbyesDeadline(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 3)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		const left = 2 * time.Second
		w.frame("m1", func(f *server.HeardFrame) {
			f.Goodbye = &coordinatorv1.Goodbye{DeadlineMillis: uint64(left.Milliseconds()), Reason: "upgrade"}
		})
		w.pass(left, "m1", "m2", "m3")
		released := false
		w.now().Transitions(func(x *rootv1.Transition) bool {
			released = released || x.GetReadyAt() != nil
			if most := time.Duration(x.GetPrepareMaxMillis()) * time.Millisecond; most >= left {
				t.Errorf("region %d: the next owner may prepare for %v, the process has %v", x.GetRegionId(), most, left)
			}
			return true
		})
		if !released {
			t.Errorf("%v behind the goodbye nobody is told to let go", left)
		}
		synctest.Wait()
	})
}

type streamless struct{}

func (streamless) Shown(state.MemberID, uint64) (state.Token, clock.Instant) {
	return state.Token{}, 0
}

// Rule 8: a move ends by its deadline, also where the planner goes on from views without
// knowing what changed: it has seen the move before.
func TestRule8DeadlinesOutliveJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{root: newRoot(t), clock: clock.NewMonotonic(), soft: catalog.NewSoft(catalog.SoftConfig{}), streams: map[state.MemberID]uint64{}}
		view := func() *rootview.View {
			st := w.now()
			return &rootview.View{State: st, Token: st.Token()}
		}
		raw := assigner.NewRaw(assigner.RawConfig{
			ID: self, Incarnation: life, View: view, Streams: streamless{}, Soft: w.soft,
			Identities: identity.NewSource(), Clock: w.clock, Logger: hclog.NewNullLogger(), Wake: func() {},
		})
		settings, _ := state.Preset("games")
		settings.Moves = &rootv1.Moves{PrepareMaxMillis: 10_000, DeadlineMillis: 20_000}
		w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
		w.join("m1")
		w.join("m2")
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 2, StartKey: []byte("p"), Owners: []*rootv1.Owner{{MemberId: "m1"}},
		}}}})
		w.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: 1, ExpectedEpoch: w.now().Region(1).Epoch.Proto(), From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
			PrepareMaxMillis: 10_000, DeadlineMillis: 20_000,
		}}})
		w.claim(self, life)
		for range 60 {
			raw.Jump(view())
			for _, id := range []state.MemberID{"m1", "m2"} {
				raw.Frame(server.HeardFrame{Member: id, Incarnation: w.lives(id), At: w.clock.Now()})
			}
			orders, _ := raw.Look()
			for _, c := range orders.Calls {
				w.root.mu.Lock()
				results := w.root.appendLocked(c.Commands...)
				w.root.mu.Unlock()
				raw.Judged(c, results)
			}
			if w.now().PendingTransition(1) == nil {
				return
			}
			time.Sleep(time.Second)
		}
		t.Errorf("a move with a deadline of 20s goes on behind a minute: %v", w.now().PendingTransition(1))
	})
}
