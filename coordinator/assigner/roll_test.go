package assigner_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// served fails where a request to a region would fail: its owner is not there.
func (w *weather) served(ks state.KeyspaceID) {
	w.Helper()
	w.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		if len(r.Owners) != 1 || !w.st.Acts(r.Owners[0]) || !w.host(r.Owners[0].Member).up {
			w.Fatalf("at %v region %d is %v's, which is not there", time.Duration(w.now()), r.ID, r.Owners)
		}
		return true
	})
}

// Scenario 19, through the whole assigner: twelve members are restarted one after the other, with
// goodbyes. No request fails; about the load of all moves once with a spare member,
// twice without; and next to none of it to even out.
func TestA44Scenario19RollOfTwelve(t *testing.T) {
	const regions = 240
	for name, spare := range map[string]bool{"with a spare": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := newWeather(t, 3, 12)
			s := evened(regions, byLoad())
			s.Policy.Rebalance.SettleMillis = 30_000
			k := w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}})
			ks := state.KeyspaceID(k.GetEvents()[0].GetKeyspace().GetId())
			live := func(d time.Duration) {
				for end := w.now().Add(d); w.now() < end; {
					w.pass(time.Second)
					for _, h := range w.hosts {
						if h.up {
							w.frame(h, nil)
						}
					}
					w.served(ks)
				}
			}
			live(15 * time.Minute)
			if len(w.moves) > 0 {
				t.Fatalf("%d moves before anybody leaves", len(w.moves))
			}
			rolled := w.hosts[:12:12]
			if spare {
				w.hosts = append(w.hosts, &host{id: "spare"})
				w.start(w.hosts[12])
			}
			longest := time.Duration(0)
			for _, h := range rolled {
				longest = max(longest, w.restart(h, live))
			}
			if spare {
				w.leave(w.hosts[12])
			}
			live(3 * time.Minute)
			evened, all := 0.0, 0.0
			for _, m := range w.moves {
				if all += m.load / regions; m.reason != rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING {
					evened += m.load / regions
				}
			}
			worst, _ := w.imbalance(ks)
			testreport.Linef(t, "roll of 12 members, %s: moved %.2f of the load, %.3f of it to even out, longest drain %v, highest by the mean %.2f", name, all, evened, longest, worst)
			if most := map[bool]float64{true: 1.3, false: 2.3}[spare]; all > most || evened > 0.05*most {
				t.Errorf("%.2f of the load moved, %.3f to even out; %.1f may", all, evened, most)
			}
			if worst > 1.2 || longest > 24*time.Second {
				t.Errorf("the highest load is %.2f of the mean in the end, the longest drain took %v", worst, longest)
			}
		})
	}
}

// restart has a process leave within 30 s, and starts the next one 2 s behind its end.
func (w *weather) restart(h *host, live func(time.Duration)) (took time.Duration) {
	w.Helper()
	h.leaves = w.now()
	w.frame(h, &coordinatorv1.Goodbye{DeadlineMillis: 30_000, Reason: "an upgrade"})
	for w.st.MemberRegionCount(h.id) > 0 {
		if live(time.Second); w.now().Sub(h.leaves) > 30*time.Second {
			w.Fatalf("%s is not drained", h.id)
		}
	}
	took = w.now().Sub(h.leaves)
	w.frame(h, &coordinatorv1.Goodbye{Gone: true})
	w.stop(h, 0)
	live(2 * time.Second)
	w.start(h)
	return took
}
