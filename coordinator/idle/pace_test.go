package idle_test

import (
	"testing"
	"time"
)

// What is released is work for every process, for which others wait: one call is under way,
// the root is left alone for as long as it took, and members stop no more than it removes.
func TestC37C67ReleasesLeaveRoomForOthers(t *testing.T) {
	within(t, 4, func(t *testing.T, w *world) {
		w.slow = 20 * time.Millisecond
		const n = 1000
		all := keys(4 * n)
		for i := range w.members {
			at := int(i[1] - '0')
			w.claim(i, all[at*n:(at+1)*n]...)
		}
		time.Sleep(idleAfter)
		began, stopped := time.Now(), 0
		for w.regions() > 0 && time.Since(began) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			stopped = max(stopped, w.stopped())
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		took := time.Since(began)
		if len(w.members) != 4 || w.state.KeyspaceRegionCount(w.ks) > 0 || took > 5*time.Second {
			t.Errorf("%d regions are left after %v", w.state.KeyspaceRegionCount(w.ks), took)
		}
		if w.unders > 1 || w.most > 128 || w.hasty > 0 {
			t.Errorf("%d calls at a time, of %d regions, %d without a pause", w.unders, w.most, w.hasty)
		}
		if stopped > 1000 {
			t.Errorf("%d were stopped at a time and not removed", stopped)
		}
	})
}

// With a root that does not answer little is stopped: nobody serves what is.
func TestC37C67LittleIsStoppedThatTheRootDoesNotRemove(t *testing.T) {
	within(t, 4, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.spoil = func(int) error { return errLost }
		w.slow = time.Second
		w.mu.Unlock()
		for i := range w.members {
			var own []string
			for _, key := range keys(1000) {
				own = append(own, string(i)+key)
			}
			w.claim(i, own...)
		}
		time.Sleep(idleAfter + 900*time.Millisecond)
		if n := w.stopped(); n == 0 || n > 1000 {
			t.Errorf("%d regions are stopped", n)
		}
	})
}
