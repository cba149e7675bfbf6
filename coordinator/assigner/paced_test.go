package assigner_test

import (
	"fmt"
	"testing"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// many gives the first member many points in one entry.
func (w *world) many(points int) {
	w.t.Helper()
	var events []*rootv1.Event
	for i := range points {
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: 2, StartKey: fmt.Appendf(nil, "q%05d", i), Owners: []*rootv1.Owner{{MemberId: string(name(0))}},
		}}}})
	}
	w.must(events...)
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
		if calls > points*20/10_000+1 || most > 512 {
			t.Errorf("%d grants in %d calls of %d at most; want %d calls of 512", points+1, calls, most, points*20/10_000)
		}
	})
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
