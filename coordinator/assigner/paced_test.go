package assigner_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// many gives the first member many points.
func (w *world) many(points int) {
	w.t.Helper()
	var events []*rootv1.Event
	for i := range points {
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 2, StartKey: fmt.Appendf(nil, "q%05d", i), Owners: []*rootv1.Owner{{MemberId: string(name(0))}},
		}}}})
	}
	for part := range slices.Chunk(events, 4000) {
		w.must(part...)
	}
}

// Changes of others get in between the grants of a member with many regions: an entry is
// applied as a whole, and they wait for it. There are few entries all the same: at most 20
// for 10,000 regions.
func TestGrantsLeaveRoomForOthers(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		const points = 4000
		w.hosts(3, 3)
		w.many(points)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		before := w.now()
		w.close("m1")
		w.pass(100*time.Millisecond, "m2", "m3")
		w.wantHomed(moved(before, "m1"))
		w.root.mu.Lock()
		defer w.root.mu.Unlock()
		calls, most := 0, 0
		for _, cmds := range w.asked {
			granted := 0
			for _, cmd := range cmds {
				for _, e := range cmd.GetEvents() {
					granted += len(e.GetRegionsAssigned().GetAssignments())
				}
			}
			if granted > 0 {
				calls++
			}
			most = max(most, granted)
		}
		if calls > points*20/10_000+1 || most > 768 {
			t.Errorf("%d grants in %d calls of %d at most; want %d calls of 768", points+1, calls, most, points*20/10_000)
		}
	})
}

// Very many moves from one member, whose regions get ready and are let go of a few at a
// time: their steps take few entries, at most 20 of grants for 10,000 regions.
func TestStepsOfManyMovesGather(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		const points, few = 10_000, 100
		w.crowd(points)
		turned := map[string]int{}
		for range 100 * points / few {
			w.turn(few, turned)
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if len(w.owned("m1")) == 0 {
				break
			}
		}
		if n := len(w.owned("m1")); n > 0 {
			t.Fatalf("%d regions are not given away", n)
		}
		calls, most := 0, 0
		for _, cmds := range w.asked {
			granted, steps := 0, 0
			for _, cmd := range cmds {
				steps += len(cmd.GetEvents())
				for _, e := range cmd.GetEvents() {
					if e.GetTransitionCompleted() != nil {
						granted++
					}
				}
			}
			if granted > 0 {
				calls++
			}
			most = max(most, steps)
		}
		if calls > 20 || most > 768 {
			t.Errorf("%d grants in %d calls, %d steps in one at most; want 20 calls, 768 steps", points, calls, most)
		}
	})
}

// crowd drains a member that has many points, and may give them all away at a time.
func (w *world) crowd(points int) {
	w.t.Helper()
	w.hosts(3, 0)
	k := w.now().Keyspace(2)
	settings := proto.CloneOf(k.GetSettings())
	settings.Moves = &rootv1.Moves{InFlight: 4096, PrepareMaxMillis: 60_000, DeadlineMillis: 120_000}
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: 2, ExpectedVersion: k.GetVersion(), Settings: settings}}})
	w.many(points)
	w.claim(self, life)
	w.pass(time.Second, "m1", "m2", "m3")
	w.must(memberDrains("m1"))
	synctest.Wait()
}

// turn has members report so many more regions ready, and let go of, at most. It counts
// what was said of a transition in turned.
func (w *world) turn(most int, turned map[string]int) {
	w.t.Helper()
	left := map[bool]int{true: most, false: most}
	by := map[state.MemberID][]state.RegionID{}
	w.now().Transitions(func(x *rootv1.Transition) bool {
		ready := x.GetReadyAt() != nil
		if x.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING || left[ready] == 0 || ready && turned[x.GetId()] == 2 || !ready && turned[x.GetId()] == 1 {
			return true
		}
		turned[x.GetId()]++
		left[ready]--
		who, phase := x.GetOwner().GetMemberId(), coordinatorv1.RegionPhase_REGION_PHASE_READY
		if ready {
			who, phase = x.GetFrom().GetMemberId(), coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
		}
		id := state.RegionID(x.GetRegionId())
		by[state.MemberID(who)] = append(by[state.MemberID(who)], id)
		w.report(state.MemberID(who), w.now().Region(id).Proto(), func(p *coordinatorv1.RegionReport) {
			p.Phase, p.TransitionId, p.SetFrontier = phase, x.GetId(), ready
		})
		return true
	})
	w.mu.Lock()
	w.shown = w.now().Token()
	w.mu.Unlock()
	for _, id := range []state.MemberID{"m1", "m2", "m3"} {
		w.frame(id, func(f *server.HeardFrame) { f.Turned, f.Showed = by[id], true })
	}
}

// A root merges calls that come at a time into one entry: of very many moves there is one
// under way.
func TestCallsOfManyMoves(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.crowd(4000)
		w.root.mu.Lock()
		w.slow, w.calls = make(chan struct{}), 0
		w.root.mu.Unlock()
		w.turn(3000, map[string]int{})
		synctest.Wait()
		w.root.mu.Lock()
		defer w.root.mu.Unlock()
		if w.calls != 1 {
			t.Errorf("%d calls are under way, want 1", w.calls)
		}
		close(w.slow)
		w.slow = nil
	})
}

// Steps of a few moves are sent at once: somebody waits for the region.
func TestStepsOfFewMovesAreSentAtOnce(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 6)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		begun := time.Now()
		w.must(memberDrains("m1"))
		synctest.Wait()
		pending := 0
		w.now().Transitions(func(*rootv1.Transition) bool { pending++; return true })
		if pending != 2 || time.Since(begun) > 0 {
			t.Errorf("%d moves are rooted behind %v, want 2 at once", pending, time.Since(begun))
		}
	})
}

func memberDrains(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: id, State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: "test",
	}}}
}

// A root that is slow has few calls to merge into one entry.
func TestCallsUnderWayAreFew(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 3)
		w.many(4000)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		w.root.mu.Lock()
		w.spoil = func(call int) fault {
			if call == 1 { // the verdict passes; what is behind it hangs
				w.slow = make(chan struct{})
			}
			return fine
		}
		w.calls = 0
		w.root.mu.Unlock()
		w.close("m1")
		w.pass(time.Second, "m2", "m3")
		w.root.mu.Lock()
		defer w.root.mu.Unlock()
		if w.calls != 1+2 {
			t.Errorf("%d calls are under way behind the verdict, want 2", w.calls-1)
		}
		close(w.slow)
		w.slow = nil
	})
}
