package server_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// TestRule7TheLastWordIsTheLast: what comes of an incarnation on other streams, when it has said that it
// has ended, was said before: it takes nothing back of what was released.
func TestRule7TheLastWordIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := hosting(t, func(c *server.Config) { c.Soft = soft })
		defer w.end(t)
		m := w.hosted(t, "m1")
		w.must(t, assign(1, "m1"))
		m.say(lastWord("exactly-42"))
		synctest.Wait()
		for name, frame := range map[string]*coordinatorv1.MemberFrame{
			"of its own":          {Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}, Complete: true},
			"that it has nothing": {Complete: true},
		} {
			late := w.speak(t, "m1", w.incarnation("m1"))
			late.say(frame)
			if err := late.fails(); reason.Of(err) != rootv1.Reason_REASON_MEMBER_RETIRED {
				t.Errorf("%s: a stream behind the last word ends with %v", name, err)
			}
			if own, _ := soft.Own(1, w.incarnation("m1")); own.Frontier != "exactly-42" || own.Phase != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
				t.Errorf("%s: known is %+v", name, own)
			}
		}
	})
}

// heldClock holds up who asks for the time next, once it is told to.
type heldClock struct {
	clock.Clock
	armed   atomic.Bool
	release chan struct{}
}

func (c *heldClock) Now() clock.Instant {
	if c.armed.CompareAndSwap(true, false) {
		<-c.release
	}
	return c.Clock.Now()
}

// TestRule7AFrameUnderWayIsBeforeTheLastWord: a frame of an older stream that was judged before the
// last word came on another one, and is slow to be taken, is taken before it.
func TestRule7AFrameUnderWayIsBeforeTheLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft, held := catalog.NewSoft(catalog.SoftConfig{}), &heldClock{release: make(chan struct{})}
		w := hosting(t, func(c *server.Config) { c.Soft, held.Clock, c.Clock = soft, c.Clock, held })
		defer w.end(t)
		older := w.hosted(t, "m1")
		w.must(t, assign(1, "m1"))
		synctest.Wait()
		held.armed.Store(true)
		older.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}})
		synctest.Wait()
		if held.armed.Load() {
			t.Fatal("the frame of the older stream is not under way")
		}
		newer := w.speak(t, "m1", w.incarnation("m1"))
		newer.say(lastWord("exactly-42"))
		for i := 0; i < 100_000 && !soft.Ended("m1", w.incarnation("m1")); i++ {
			runtime.Gosched() // whether the last word can overtake it
		}
		close(held.release)
		synctest.Wait()
		checkReleased(t, w, soft, true)
	})
}

func lastWord(frontier string) *coordinatorv1.MemberFrame {
	released := reported(1, coordinatorv1.RegionPhase_REGION_PHASE_RELEASED)
	released.Frontier, released.SetFrontier = []byte(frontier), true
	return &coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{released}, Complete: true, Goodbye: &coordinatorv1.Goodbye{Gone: true}}
}

// checkReleased wants to find that m1's last words of region 1 count, and whether all are said.
func checkReleased(t *testing.T, w *world, soft *catalog.Soft, all bool) {
	t.Helper()
	synctest.Wait()
	own, _ := soft.Own(1, w.incarnation("m1"))
	if own.Frontier != "exactly-42" || own.Phase != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
		t.Errorf("known is %+v", own)
	}
	if ended := soft.Ended("m1", w.incarnation("m1")); ended != all {
		t.Errorf("ended is %v", ended)
	}
}

// TestRule7TheLastWordInParts: between its parts no other stream takes the place of the one that it
// comes on, and what could not be finished on one is said on another.
func TestRule7TheLastWordInParts(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			soft := catalog.NewSoft(catalog.SoftConfig{})
			w := hosting(t, func(c *server.Config) { c.Soft = soft })
			defer w.end(t)
			w.must(t, assign(1, "m1"))
			m := w.hosted(t, "m1")
			part := lastWord("exactly-42")
			part.Partial = true
			m.say(part)
			checkReleased(t, w, soft, false)
			late := w.speak(t, "m1", w.incarnation("m1"))
			late.say(&coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}, Complete: true})
			if err := late.fails(); reason.Of(err) != rootv1.Reason_REASON_MEMBER_RETIRED {
				t.Errorf("a stream that was opened before ends with %v", err)
			}
			checkReleased(t, w, soft, false)
			if breaks {
				m.end()
				synctest.Wait()
				m = w.speak(t, "m1", w.incarnation("m1"))
				m.say(part)
			}
			m.say(&coordinatorv1.MemberFrame{Goodbye: &coordinatorv1.Goodbye{Gone: true}})
			checkReleased(t, w, soft, true)
		})
	}
}

// TestWhatWaitsOnAnOlderStream: frames of an older stream, which are looked at behind what came on the
// newer one, say nothing any more: neither behind a part of a last word, nor of a region that is served
// again.
func TestWhatWaitsOnAnOlderStream(t *testing.T) {
	part, serves := lastWord("exactly-42"), &coordinatorv1.MemberFrame{Regions: []*coordinatorv1.RegionReport{reported(1, phaseServing)}}
	part.Partial = true
	released := lastWord("old-41")
	released.Goodbye, released.Complete = nil, false
	for name, c := range map[string]struct{ waits, newer *coordinatorv1.MemberFrame }{
		"a last word": {serves, part}, "served again": {released, &coordinatorv1.MemberFrame{Regions: serves.GetRegions(), Complete: true}},
	} {
		for range 20 { // whether a frame is read that came before the end is a matter of chance
			synctest.Test(t, func(t *testing.T) {
				soft, heard := catalog.NewSoft(catalog.SoftConfig{}), &slowListener{first: make(chan struct{}), next: make(chan struct{})}
				w := hosting(t, func(c *server.Config) { c.Soft, c.Members = soft, heard })
				defer w.end(t)
				w.must(t, assign(1, "m1"))
				older := w.speak(t, "m1", w.incarnation("m1"))
				older.say(&coordinatorv1.MemberFrame{Regions: serves.GetRegions(), Complete: true})
				older.say(proto.CloneOf(c.waits))
				synctest.Wait() // the first is taken, and what hears of it is slow
				m := w.speak(t, "m1", w.incarnation("m1"))
				m.say(proto.CloneOf(c.newer))
				synctest.Wait()
				close(heard.first)
				close(heard.next)
				synctest.Wait()
				own, _ := soft.Own(1, w.incarnation("m1"))
				if want := c.newer.GetRegions()[0]; own.Phase != want.GetPhase() || own.Frontier != string(want.GetFrontier()) {
					t.Errorf("%s: known is %+v", name, own)
				}
				m.end()
			})
		}
	}
}
