package rootview_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func reaches(t *testing.T, f *rootview.Follower, r *fakeRoot, after time.Duration) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	v := f.View()
	if want := r.log.last(); v.Token != want.Token() || v.State.Hash() != want.Hash() {
		t.Fatalf("view %s, root %s", v.Token, want.Token())
	}
}

func TestASilentPeerIsLeft(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.mute = true })
		time.Sleep(510 * time.Millisecond)
		r.set(func(r *fakeRoot) { r.mute = false })
		r.grow(2)
		reaches(t, f, r, 30*time.Millisecond)
		if tails, _, _ := r.counts(); tails != 2 {
			t.Fatalf("%d tails", tails)
		}
	})
}

func TestALeaderlessPeerIsLeftButNotInALoop(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.leaderless = 60_000 })
		time.Sleep(10 * time.Second)
		if tails, _, _ := r.counts(); tails < 8 || tails > 21 {
			t.Fatalf("%d tails in 10 s without any leader", tails)
		}
		if mode := f.View().Mode(clockNow(f)); mode != unavailable {
			t.Fatalf("mode %v", mode)
		}
	})
}

// clockNow is an instant at which the view counts as just heard or not: far
// ahead of every instant a follower saw would hide a mistake, so the newest.
func clockNow(f *rootview.Follower) (now clockInstant) {
	return f.View().QuorumAt + clockInstant(10*time.Second)
}

func TestAPeerBehindTheViewIsLeft(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.grow(5)
		synctest.Wait()
		r.set(func(r *fakeRoot) { r.commit = 3 })
		time.Sleep(2 * time.Second)
		if tails, _, _ := r.counts(); tails < 3 || tails > 5 {
			t.Fatalf("%d tails in 2 s", tails)
		}
	})
}

func TestReconnectPausesGrow(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.down = true })
		time.Sleep(10 * time.Second)
		tails, _, _ := r.counts()
		if tails < 15 || tails > 60 {
			t.Fatalf("%d tails in 10 s", tails)
		}
		r.set(func(r *fakeRoot) { r.down = false })
		r.grow(3)
		reaches(t, f, r, 510*time.Millisecond)
		if s := f.Stats(); s.Reconnects != uint64(tails) || s.LastError == "" {
			t.Fatalf("stats %+v after %d tails", s, tails)
		}
	})
}

func TestBootstrapWhenTheLogIsGone(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.down = true })
		synctest.Wait()
		r.grow(9)
		r.set(func(r *fakeRoot) { r.down, r.first = false, 8 })
		reaches(t, f, r, time.Second)
		if _, snapshots, _ := r.counts(); snapshots != 1 || f.Stats().Bootstraps != 1 {
			t.Fatalf("%d snapshots", snapshots)
		}
		r.grow(1)
		reaches(t, f, r, 0)
	})
}

// Who waits for a loaded view is woken when it is one, also when the snapshot had all that
// the root ever wrote: nothing moves the view afterwards.
func TestALoadedViewWakes(t *testing.T) {
	full := func(cfg *rootview.Config) {
		cfg.Root.(*fakeRoot).set(func(r *fakeRoot) {
			r.log.grow(9)
			r.first = 8
		})
	}
	bubble(t, full, func(t *testing.T, f *rootview.Follower, _ *fakeRoot) {
		for changed := f.Changed(); !f.View().Loaded(); changed = f.Changed() {
			select {
			case <-changed:
			case <-time.After(time.Minute):
				t.Fatalf("nobody was told; loaded: %t, at %s", f.View().Loaded(), f.View().Token)
			}
		}
	})
}

func TestAWrongSnapshotIsLoadedAgainLater(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.down = true })
		synctest.Wait()
		r.grow(9)
		r.set(func(r *fakeRoot) {
			r.down, r.first = false, 8
			r.spoil = func(c []*rootv1.SnapshotChunk) { c[len(c)-1].StateHash++ }
		})
		time.Sleep(60 * time.Second)
		if _, snapshots, _ := r.counts(); snapshots < 8 || snapshots > 25 {
			t.Fatalf("%d snapshots in a minute", snapshots)
		}
		v, _, err := f.Serve(t.Context(), nil)
		if err != nil || v.Token.Index != 2 || v.CatchUp(v.QuorumAt) != coordinatorv1.CatchUpState_CATCH_UP_STATE_BOOTSTRAP_REQUIRED {
			t.Fatalf("view %s, %v", v.Token, err)
		}
		r.set(func(r *fakeRoot) { r.spoil = nil })
		reaches(t, f, r, 11*time.Second)
	})
}

// A peer that hears the leader and sends nothing of what is committed is left, also when
// its own numbers stand still and nobody asks the root for anything.
func TestAPeerThatDoesNotGoOnIsLeft(t *testing.T) {
	for name, told := range map[string]uint64{"it knows of more": 0, "it knows of nothing": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
				r.grow(5)
				synctest.Wait()
				at := int(f.View().Token.Index)
				r.set(func(r *fakeRoot) {
					r.visible, r.commit = at, uint64(at)*told
					if told == 0 {
						r.commit = uint64(at) + 3
					}
				})
				r.grow(3)
				time.Sleep(4 * time.Second)
				if tails, _, _ := r.counts(); tails < 2 {
					t.Fatalf("%d tails: the coordinator stays", tails)
				}
				r.set(func(r *fakeRoot) { r.visible, r.commit = -1, 0 })
				reaches(t, f, r, time.Second)
			})
		})
	}
}
