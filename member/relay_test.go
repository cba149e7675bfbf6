package member_test

import (
	"slices"
	"testing"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestRule10AMemberThatCannotReachTheHolder is heard and confirmed by it through any other
// coordinator, and goes back when the holder answers.
func TestRule10AMemberThatCannotReachTheHolder(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 10_000, HoldRequestsMillis: 500}
	inBubble(t, terms, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(1, 1))
		b.awaitPhase("m1", 1, serving)
		served := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				if err := p.ask(1, 1); err != nil {
					t.Fatalf("%v before the end: %v", time.Until(end), err)
				}
			}
		}
		served(5 * time.Second)
		b.coordinators[0].Mute(true) // c1 holds the Tenure
		served(60 * time.Second)
		b.coordinators[1].Mute(true)
		served(60 * time.Second)
		if n := p.app.called("stopped actors 0@0.0 "); n > 0 {
			t.Errorf("the member stopped %d times", n)
		}
		b.coordinators[0].Mute(false)
		b.coordinators[1].Mute(false)
		b.eventually("the holder answers again, and the way through others is given up", func() bool {
			return slices.Contains(p.Status().Coordinators, "c1") && b.coordinators[0].Streams() == 1 && b.coordinators[1].Streams() == 1 && b.coordinators[2].Streams() == 1
		})
		served(30 * time.Second)
	})
}
