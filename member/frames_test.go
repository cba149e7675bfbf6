package member_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
)

// A member speaks at the interval that it is told, whatever that is and whether or not it
// has something to say: so often, and not more, on the stream to each coordinator.
func TestC05P22R15FramesComeAtTheInterval(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, 5 * time.Second, 10 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				b.cluster.IntervalMillis = uint64(interval.Milliseconds())
				p := b.start("m1", nil)
				b.cluster.Show("m1", own(17, 3))
				b.awaitPhase("m1", 17, serving)
				b.eventually("three lines", func() bool { return len(p.Status().Coordinators) == 3 })
				time.Sleep(2 * interval)
				synctest.Wait()
				before := map[*fakecoordinator.Coordinator]int{}
				for _, k := range b.coordinators {
					before[k] = k.Frames()
				}
				const frames = 20
				for i := range frames {
					p.SetLoad(member.Load{Load: float64(i)}) // it goes with the next one
					time.Sleep(interval)
				}
				synctest.Wait()
				for k, n := range before {
					if n = k.Frames() - n; n < frames-1 || n > frames+1 {
						t.Errorf("%d frames in %d intervals", n, frames)
					}
				}
			})
		})
	}
}

// From its start on a member is registered, with where it is, what it takes and what it is,
// under an incarnation of its own, and speaks under that; all it has to be given is its name
// and one coordinator.
func TestC18C62RegisteredFromItsStart(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(c *member.Config) { c.Kind, c.Capacity, c.Keyspaces = "core", 500, []string{"games"} })
		first := b.cluster.Member("m1")
		if first.GetAddress() != "m1:7000" || first.GetKind() != "core" || first.GetCapacity() != 500 || len(first.GetKeyspaces()) != 1 || first.GetStartNonce() == 0 || first.GetIncarnation() != 1 {
			t.Errorf("it is registered as %v", first)
		}
		b.eventually("it speaks", func() bool { return b.coordinators[0].Frames() > 0 && p.Status().Incarnation == 1 })
		p.stop()
		<-p.ended
		again := b.start("m1", nil)
		if m := b.cluster.Member("m1"); m.GetStartNonce() == first.GetStartNonce() || m.GetIncarnation() != 2 {
			t.Errorf("its next process is registered as %v", m)
		}
		b.eventually("it speaks", func() bool { return again.Status().Incarnation == 2 })
	})
}
