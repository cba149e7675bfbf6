package member_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// jumpy is a clock that is set forward, as elapsed time behind a suspend, and whose wall
// clock anybody may turn.
type jumpy struct {
	*clock.Monotonic
	elapsed, wall atomic.Int64
}

func (j *jumpy) Now() clock.Instant { return j.Monotonic.Now().Add(time.Duration(j.elapsed.Load())) }
func (j *jumpy) Wall() uint64       { return uint64(int64(j.Monotonic.Wall()) + j.wall.Load()) }

// Rule 4, and a member whose clock jumps: the wall clock says nothing; behind a suspend nothing
// is served, or said to have succeeded, before somebody has confirmed the member anew.
func TestRule4MemberWhoseClockJumps(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000, HoldRequestsMillis: 500}
	inBubble(t, terms, func(b *bubble) {
		at := &jumpy{Monotonic: clock.NewMonotonic()}
		p := b.start("m1", func(c *member.Config) { c.Clock = at })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.eventually("confirmed", func() bool { return p.ask(17, 3) == nil })
		year := int64(365 * 24 * time.Hour / time.Millisecond)
		for _, wall := range []int64{year, -30 * year, 0} {
			at.wall.Store(wall)
			for range 30 {
				if err := p.ask(17, 3); err != nil {
					t.Fatalf("the wall clock is off by %d ms: %v", wall, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
		for range 3 {
			err := p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				b.cluster.SetHolder("nobody who can be reached") // or it may be confirmed anew at once
				at.elapsed.Add(int64(time.Hour))
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
