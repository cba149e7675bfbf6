package assigner_test

import (
	"testing"
	"time"
)

// Of three members with twelve regions one hangs and has failed: the metrics say how many
// members there are, who has how much, how late each is, and that nothing is orphaned.
func TestC47A47A48A49A50A51MetricsOfMembers(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.twelve("partitions")
		w.claim(self, life)
		w.pass(time.Minute, "m1", "m2", "m3")
		if v := w.a.Vars(); v.Era == 0 || v.Nodes.Active != 3 || v.Nodes.Failed != 0 || v.Assigned != 12 || v.Orphaned != 0 || len(v.Members) != 3 || v.MembersHidden != 0 {
			t.Errorf("of three members: %+v", v)
		}
		w.pass(2*time.Minute, "m1", "m2")
		v := w.a.Vars()
		if v.Nodes.Active != 2 || v.Nodes.Failed != 1 || v.Nodes.Draining != 0 || v.Assigned != 12 || v.Orphaned != 0 || v.Moves != 0 || v.Uneven != 0 {
			t.Errorf("one has failed: %+v", v)
		}
		if v.Verdicts != 1 || v.VerdictSignals["silent"] != 1 {
			t.Errorf("%d verdicts, by %v", v.Verdicts, v.VerdictSignals)
		}
		for _, m := range v.Members {
			if m.Regions != 6 || m.State != "active" || m.HeartbeatAgeMillis < 0 || m.HeartbeatAgeMillis > 10_000 || m.HeartbeatGapMillis <= 0 {
				t.Errorf("member %+v", m)
			}
		}
		if len(v.Members) != 2 || v.Distribution.Members != 2 {
			t.Errorf("%d members are told of, %+v", len(v.Members), v.Distribution)
		}
	})
}
