package member_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Rule 4, and a member whose clock jumps forward, as elapsed time does behind a suspend: nothing
// is served, or said to have succeeded, before somebody has confirmed the member anew.
func TestRule4MemberWhoseClockJumps(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000, HoldRequestsMillis: 500}
	inBubble(t, terms, func(b *bubble) {
		var ahead atomic.Int64
		begun := time.Now()
		p := b.start("m1", func(c *member.Config) {
			c.Elapsed = func() time.Duration { return time.Since(begun) + time.Duration(ahead.Load()) }
		})
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.eventually("confirmed", func() bool { return p.ask(17, 3) == nil })
		for range 3 {
			err := p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				b.cluster.SetHolder("nobody who can be reached") // or it may be confirmed anew at once
				ahead.Add(int64(time.Hour))
				return nil
			})
			if e := is[*member.Unconfirmed](t, err); !e.Ran {
				t.Errorf("the process was suspended meanwhile: %v", err)
			}
			is[*member.Unconfirmed](t, p.ask(17, 3))
			b.cluster.SetHolder("c1")
			b.eventually("confirmed anew", func() bool { return p.ask(17, 3) == nil })
		}
		if n := p.app.called("acquire 17@1.3 f3"); n != 1 {
			t.Errorf("it was acquired %d times", n)
		}
	})
}
