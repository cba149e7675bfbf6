package member_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Rule 4, rule 6: who said that it is gone is granted nothing any more, at once and without
// a wait: nothing that it let in before may be said to be good behind that.
func TestRule6NothingIsGoodBehindGone(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 60_000, HoldRequestsMillis: 500}
	inBubble(t, terms, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.eventually("confirmed", func() bool { return p.ask(17, 3) == nil })
		free, said := make(chan struct{}), make(chan error, 1)
		go func() {
			said <- p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				<-free
				return nil
			})
		}()
		synctest.Wait()
		p.stop()
		<-p.ended
		if !errors.Is(p.result, member.ErrStuck) {
			t.Errorf("it ended with %v", p.result)
		}
		b.await("m1", "gone", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetGone() })
		close(free)
		if err := <-said; err == nil {
			t.Error("a request is said to be good although the process said that it serves nothing")
		}
	})
}
