package liveness_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
)

// Rule 4: who takes nothing that it is shown is not confirmed, whatever it sends, and fails as one that is
// silent does; what was taken from it before is free when its ttl has run out. Who takes it is confirmed again.
func TestRule4WhoTakesNothingIsNotConfirmed(t *testing.T) {
	for _, again := range []bool{false, true} {
		w := crowd(t)
		delete(w.owned, 1)
		w.confirm("m1", 1)
		last := w.now
		w.core.Behind("m1", 1, true)
		w.run(time.Second)
		w.connect("m1", 1) // a new stream changes nothing
		if w.core.Answered("m1", 1, w.now) {
			t.Error("it is confirmed")
		}
		w.run(5 * time.Second)
		w.health("m1", liveness.Suspected)
		if again {
			w.core.Behind("m1", 1, false)
			w.run(200 * ms)
			w.health("m1", liveness.Live)
			w.confirm("m1", 1)
			w.run(time.Minute)
			w.noVerdict()
			continue
		}
		if w.clear("m1", 1, ttl) {
			t.Error("nobody ended it, and its regions are free")
		}
		w.run(10 * time.Second)
		if v := w.verdict("m1", last, 9*time.Second, 11*time.Second); v.Reason() != "it takes nothing that it is shown" {
			t.Errorf("the reason is %q", v.Reason())
		}
		w.root("m1", 1, failed, "fenced")
		if at, want := w.core.ClearAt("m1", 1, liveness.Fence{TTL: ttl}), last.Add(ttl+ttl/100); at != want {
			t.Errorf("clear at %v, want %v", time.Duration(at), time.Duration(want))
		}
	}
}
