package member_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
)

// TestAnAbortIsSaidAtOnce: whatever the interval of frames is.
func TestAnAbortIsSaidAtOnce(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, 10 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				b.cluster.IntervalMillis = uint64(interval.Milliseconds())
				p := b.start("m1", nil)
				b.cluster.Show("m1", own(17, 3))
				b.awaitPhase("m1", 17, serving)
				time.Sleep(3 * interval)
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				p.Abort("the process ended")
				<-p.ended
				if !errors.Is(p.result, member.ErrAborted) {
					t.Errorf("it ended with %v", p.result)
				}
				gone := false
				b.await("m1", "state", func(r fakecoordinator.Reported) bool { gone = r.Goodbye.GetGone(); return true })
				if !gone {
					t.Errorf("Run has returned, and no coordinator was told that it serves nothing")
				}
			})
		})
	}
}

// TestTheEndIsSaidAlthoughOneCallHangs: what was released of other regions counts by the goodbye alone.
func TestTheEndIsSaidAlthoughOneCallHangs(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, 10 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				b.cluster.IntervalMillis = uint64(interval.Milliseconds())
				p := b.start("m1", nil) // its HandlerTimeout is 5 s
				b.cluster.Show("m1", own(17, 3), own(18, 3))
				b.awaitPhase("m1", 17, serving)
				b.awaitPhase("m1", 18, serving)
				time.Sleep(3*interval + 300*time.Millisecond)
				free := make(chan struct{})
				p.app.mu.Lock()
				p.app.do = func(_ context.Context, call string, r member.Region) error {
					if call == "release" && r.ID == 18 {
						<-free
					}
					return nil
				}
				p.app.mu.Unlock()
				p.stop()
				<-p.ended
				if !errors.Is(p.result, member.ErrStuck) {
					t.Errorf("it ended with %v", p.result)
				}
				b.await("m1", "state", func(r fakecoordinator.Reported) bool {
					if !r.Goodbye.GetGone() {
						t.Errorf("Run has returned, region 17 was %v at %q, and no coordinator was told that the process serves nothing", r.Phase(17), r.Regions[17].GetFrontier())
					}
					return true
				})
				close(free)
			})
		})
	}
}
