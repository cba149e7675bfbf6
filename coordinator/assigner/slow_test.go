package assigner_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Members are probed, asked about and confirmed while a plan is made that takes long: here an
// application's code takes ten seconds for a region of another keyspace.
func TestASlowPlanHoldsUpNoProbe(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var asked sync.Once
		w.applied.propose = func(*propose.Question) (int, bool) {
			asked.Do(func() { time.Sleep(10 * time.Second) })
			return 0, true
		}
		probes := 0
		w.probe = func(_ context.Context, p liveness.Probe) liveness.ProbeResult {
			w.mu.Lock()
			defer w.mu.Unlock()
			if p.Member == "m1" {
				probes++
			}
			return liveness.Refused
		}
		w.crew(3)
		s, _ := state.Preset("games")
		s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}}
		w.keyspaceOf("code", s)
		synctest.Wait()
		begun := time.Now()
		w.close("m1")
		w.pass(time.Second, "m2", "m3")
		w.mu.Lock()
		n := probes
		w.mu.Unlock()
		if n != 2 || len(w.owned("m1"))+len(w.owned("m2"))+len(w.owned("m3")) != 0 {
			t.Errorf("m1 was probed %d times while a plan was made, want 2", n)
		}
		if !w.a.Answered("m2", w.lives("m2"), 0) || w.a.Answered("m1", w.lives("m1"), 0) {
			t.Error("while a plan is made m2 is not confirmed, or m1 is, whose death is proven")
		}
		w.pass(10*time.Second, "m2", "m3")
		if m := w.now().Member("m1"); m.GetState() != failed {
			t.Errorf("%v behind its end m1 is %v", time.Since(begun), m)
		}
	})
}
