package liveness_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
)

// A coordinator that stood still has heard nobody meanwhile, which says nothing of members: what it
// has not read yet is waited for. Who is silent from then on is gone.
func TestSilenceWhileTheCoordinatorStoodStillDoesNotCount(t *testing.T) {
	for name, first := range map[string]func(w *ward){
		"its timers are first":  func(w *ward) { w.turn() },
		"a stream ends first":   func(w *ward) { w.core.Closed("m02", 1, 3, w.now); w.turn() },
		"a keyspace is changed": func(w *ward) { w.keyspace(99, "new", nil); w.turn() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			ids := w.many(3, "slow")
			w.now = w.now.Add(time.Minute)
			w.core.Noticed(w.now)
			first(w)
			w.run(time.Second) // also who is a little behind
			w.noVerdict()
			w.hang(ids[0])
			w.run(2 * time.Minute)
			if len(w.verdicts) != 1 || string(w.verdicts[0].Member) != ids[0] {
				t.Fatalf("the verdicts are %s, want %s", names(w.verdicts), ids[0])
			}
			for _, id := range ids[1:2] {
				w.health(id, liveness.Live)
			}
		})
	}
}
