package idle_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func within(t *testing.T, members int, fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, members)
		stop := w.run()
		defer func() { stop() }()
		fn(t, w)
	})
}

// What nobody uses for the idle time is released and removed, and not before; what is used
// stays.
func TestC37C38C67UnusedRegionsAreReleased(t *testing.T) {
	within(t, 2, func(t *testing.T, w *world) {
		w.claim("m0", "a", "b")
		w.claim("m1", "c")
		for range 40 { // 4 s
			time.Sleep(100 * time.Millisecond)
			if done, no := w.members["m0"].touch("a"); no == nil {
				done()
			}
			if w.clock.Now() < 1_900_000_000 && w.regions() != 3 {
				t.Fatalf("%d regions after %v", w.regions(), time.Duration(w.clock.Now()))
			}
		}
		if r := w.View().State.RegionAt(w.ks, "a"); r == nil || w.regions() != 1 {
			t.Errorf("%d regions are left", w.regions())
		}
		if _, no := w.members["m1"].touch("c"); no == nil || no.Verdict != held.NotOwned {
			t.Errorf("what is gone answers %v", no)
		}
		time.Sleep(4 * time.Second)
		if w.regions() != 0 {
			t.Error("what is not used any more stays")
		}
		w.claim("m1", "a")
		time.Sleep(100 * time.Millisecond)
		if done, no := w.members["m1"].touch("a"); no != nil {
			t.Errorf("claimed again: %v", no)
		} else {
			done()
		}
	})
}

// The application may say no, and is asked again when nobody has used the region for as long
// as before: not at each scan.
func TestC38TheOwnerMaySayNo(t *testing.T) {
	within(t, 1, func(t *testing.T, w *world) {
		w.members["m0"].busy = func(*held.Call) bool { return true }
		w.claim("m0", "a")
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		asked := w.members["m0"].asked
		w.members["m0"].busy = nil
		w.mu.Unlock()
		if w.regions() != 1 || asked < 2 || asked > 5 {
			t.Errorf("%d regions, asked %d times", w.regions(), asked)
		}
		time.Sleep(idleAfter + 3*scan)
		if w.regions() != 0 {
			t.Error("it is not released when the owner says yes")
		}
	})
}

// Whoever touches a region while it is released is served by its owner, waits, or finds
// that it is gone and its key free for a new one: no touch is served by a right that ends,
// and none is refused for ever.
func TestC38NoTouchIsLostWhileARegionIsReleased(t *testing.T) {
	within(t, 1, func(t *testing.T, w *world) {
		m := w.members["m0"]
		w.slow = 200 * time.Millisecond
		all := keys(50)
		w.claim("m0", all...)
		served, waited, again, chance := 0, 0, 0, rand.New(rand.NewPCG(38, 1))
		for range 4000 {
			time.Sleep(time.Duration(chance.IntN(10)) * time.Millisecond)
			key := all[chance.IntN(len(all))]
			for try := 0; ; try++ {
				done, no := m.touch(key)
				if no == nil {
					time.Sleep(time.Duration(chance.IntN(3)) * time.Millisecond)
					done()
					served++
					break
				}
				if no.Verdict == held.Wait {
					waited++
				} else if w.View().State.RegionAt(w.ks, key) == nil {
					again++
					w.claim("m0", key)
				}
				if try > 300 {
					t.Fatalf("%s is %v for 3 s", key, no.Verdict)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if chance.IntN(300) == 0 {
				time.Sleep(idleAfter + time.Duration(chance.IntN(1500))*time.Millisecond) // a lull, in which some go
			}
		}
		if served != 4000 || waited == 0 || again == 0 {
			t.Errorf("%d touches are served, %d waited, %d found a new region", served, waited, again)
		}
	})
}

// What one holder had stopped the next one removes: nobody is refused for ever because a
// holder ended in between.
func TestA22C38TheNextHolderRemovesWhatIsStopped(t *testing.T) {
	within(t, 1, func(t *testing.T, w *world) {
		w.slow = 200 * time.Millisecond
		w.claim("m0", keys(100)...)
		w.mu.Lock()
		w.spoil = func(int) error { return errLost }
		w.mu.Unlock()
		w.hold("c2", 5)
		time.Sleep(3 * time.Second)
		if w.regions() != 100 {
			t.Fatal("one who does not hold the Tenure removed regions")
		}
		w.hold("c1", life)
		for w.stopped() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		w.hold("c2", 5) // nothing is removed in the name of an era that is over
		time.Sleep(time.Second)
		if w.stopped() == 0 || w.regions() != 100 {
			t.Fatalf("%d are stopped, %d regions", w.stopped(), w.regions())
		}
		w.mu.Lock()
		w.spoil = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.hold("c1", life)
		time.Sleep(2 * time.Second)
		if w.stopped() > 0 {
			t.Errorf("%d are stopped and there", w.stopped())
		}
	})
}

// Many at once: what is asked and removed at a time is bounded, and all of it goes soon.
func TestC37C67ManyAtOnceAreReleasedInParts(t *testing.T) {
	within(t, 4, func(t *testing.T, w *world) {
		const n = 1500
		for i, id := range []string{"m0", "m1", "m2", "m3"} {
			var own []string
			for j, key := range keys(4 * n) {
				if j%4 == i {
					own = append(own, key)
				}
			}
			w.claim(state.MemberID(id), own...)
		}
		time.Sleep(idleAfter)
		began := time.Now()
		for w.regions() > 0 && time.Since(began) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if w.regions() > 0 || time.Since(began) > 10*time.Second {
			t.Errorf("%d are left after %v", w.regions(), time.Since(began))
		}
		for id, m := range w.members {
			if m.most > 64 || m.asked > n+n/10 {
				t.Errorf("%s was asked %d times, %d waited at once", id, m.asked, m.most)
			}
		}
		if w.most > 128 {
			t.Errorf("%d are removed by one call", w.most)
		}
	})
}

// One that the root does not remove, because it has gone to another epoch, keeps none of
// those beside it.
func TestC38OneThatIsRefusedKeepsNobody(t *testing.T) {
	within(t, 2, func(t *testing.T, w *world) {
		w.slow = 200 * time.Millisecond
		w.claim("m0", keys(20)...)
		r := w.View().State.RegionAt(w.ks, "key000007")
		for w.stopped() < 20 {
			time.Sleep(time.Millisecond)
		}
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: uint64(r.ID), Owners: []*rootv1.Owner{{MemberId: "m1"}}, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
		}}}}})
		time.Sleep(time.Second)
		if at := w.View().State.Region(r.ID); w.regions() != 1 || at == nil || at.Owners[0].Member != "m1" {
			t.Errorf("%d regions are left, one of them %v", w.regions(), at)
		}
	})
}

// Answers that are lost are asked for again under the same identity: a region that somebody
// made of the same key meanwhile stays.
func TestC38ALostAnswerRemovesNothingTwice(t *testing.T) {
	within(t, 1, func(t *testing.T, w *world) {
		w.claim("m0", "a")
		var made bool // guarded by w.mu, under which it is written
		others := func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return made
		}
		w.mu.Lock()
		w.spoil = func(call int) error {
			if call > 3 {
				return nil
			}
			if !made {
				made = true
				w.appendLocked(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
					KeyspaceId: uint32(w.ks), StartKey: []byte("a"), Owners: []*rootv1.Owner{{MemberId: "m0"}},
				}}}}}})
			}
			return errLost
		}
		w.mu.Unlock()
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			if others() {
				break
			}
		}
		time.Sleep(time.Second)
		if w.regions() != 1 || !others() {
			t.Errorf("%d regions, the other one is made: %v", w.regions(), others())
		}
	})
}

// A member that does not answer, or has no stream here, is left alone, and asked when it is back.
func TestC38AMemberThatIsSilent(t *testing.T) {
	within(t, 1, func(t *testing.T, w *world) {
		w.claim("m0", "a")
		time.Sleep(time.Second)
		w.mu.Lock()
		w.members["m0"].deaf = true
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		if w.regions() != 1 {
			t.Error("it was removed without its owner's word")
		}
		w.mu.Lock()
		w.members["m0"].deaf = false
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		if w.regions() != 0 {
			t.Error("it is not released")
		}
	})
}

// A region that others serve too is not removed because one of its owners says that it has
// stopped.
func TestC38OneOwnersWordIsNotThatOfAll(t *testing.T) {
	within(t, 2, func(t *testing.T, w *world) {
		ks := w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "shared", Settings: &rootv1.KeyspaceSettings{
			Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Ownership: &rootv1.Ownership{MaxOwners: 2, Fence: rootv1.Fence_FENCE_EPOCH},
		}}}}).GetEvents()[0].GetKeyspace().GetId()
		r := w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: ks, StartKey: []byte("a"), Owners: []*rootv1.Owner{{MemberId: "m0"}, {MemberId: "m1"}},
		}}}}).GetEvents()[0].GetRegion()
		m := w.members["m1"]
		w.mu.Lock()
		turned, err := w.soft.Report(w.state, w.state.Member("m1"), &coordinatorv1.RegionReport{
			RegionId: r.GetId(), Epoch: r.GetEpoch(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, IdleMillis: 60_000,
		}, w.clock.Now())
		w.mu.Unlock()
		if err != nil || !turned {
			t.Fatal(turned, err)
		}
		synctest.Wait() // the era has begun
		w.releaser.Frame(server.HeardFrame{Member: m.id, Incarnation: m.incarnation, Turned: []state.RegionID{state.RegionID(r.GetId())}})
		synctest.Wait()
		if w.View().State.Region(state.RegionID(r.GetId())) == nil {
			t.Error("it is removed while another owner serves it")
		}
	})
}
