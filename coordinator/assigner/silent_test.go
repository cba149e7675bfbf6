package assigner_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Of three members with twelve regions one hangs, and nothing proves its death. It has
// failed when the preset's time is over, and its fence with it; each of the others has two
// of its regions a moment later, at the next epoch and at the frontier that was rooted last.
// What was not its own stays where it is. When it comes back it is active, and empty.
func TestA22A41R20R30SilentMemberIsReplaced(t *testing.T) {
	for preset, dead := range map[string]time.Duration{"partitions": 30 * time.Second, "actors": 90 * time.Second} {
		t.Run(preset, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.mu.Lock()
				w.probe = func(context.Context, liveness.Probe) liveness.ProbeResult { return liveness.NoAnswer }
				w.mu.Unlock()
				w.twelve(preset)
				w.claim(self, life)
				w.pass(time.Minute, "m1", "m2", "m3")
				before := w.now()
				begun := time.Now()
				w.pass(dead-time.Second, "m1", "m2")
				if w.now().Member("m3").GetState() == failed || len(w.owned("m3")) != 4 {
					t.Fatalf("%s after its last frame it is %v", time.Since(begun), w.now().Member("m3"))
				}
				w.pass(3*time.Second, "m1", "m2")
				w.wantHomed(moved(before, "m3"))
				if a, b := len(w.owned("m1")), len(w.owned("m2")); a != 6 || b != 6 {
					t.Errorf("m1 has %d regions and m2 %d, want 6 each", a, b)
				}
				w.now().RegionsFrom(2, "", func(r *state.Region) bool {
					old := before.Region(r.ID)
					if r.Frontier != fmt.Sprint("checkpoint of ", r.ID) || old.Owners[0].Member != "m3" && old.Owners[0] != r.Owners[0] {
						t.Errorf("what was %+v is %+v", old, r)
					}
					return true
				})
				w.join("m3")
				if m := w.now().Member("m3"); m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetIncarnation() <= before.Member("m3").GetIncarnation() || len(w.owned("m3")) != 0 {
					t.Errorf("it comes back as %v with %d regions", m, len(w.owned("m3")))
				}
			})
		})
	}
}

// twelve makes a keyspace of a preset with twelve regions, each at a frontier, that members
// m1 to m3 own in turn, and opens their streams.
func (w *world) twelve(preset string) {
	w.t.Helper()
	settings, _ := state.Preset(preset)
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 12}}}
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: preset, Settings: settings}}})
	for i := range 3 {
		w.join(name(i))
	}
	grants := &rootv1.RegionsAssigned{}
	for i := range uint64(12) {
		grants.Assignments = append(grants.Assignments, &rootv1.Assignment{
			RegionId: i + 1, Owners: []*rootv1.Owner{{MemberId: string(name(int(i) % 3))}}, Frontier: fmt.Append(nil, "checkpoint of ", i+1), SetFrontier: true,
		})
	}
	w.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: grants}})
	synctest.Wait()
	for i := range 3 {
		w.open(name(i))
	}
}
