package member_test

import (
	"context"
	"testing"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Each command is carried out at most once, however often it comes, and each time answered
// the same; in another era its number is another command's.
func TestCommandsAtMostOnce(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.startWith("m1", nil, func(a *app) member.Handler { return leads{misused{merger{a}}} })
		b.cluster.Show("m1", own(1, 1), own(2, 1))
		b.awaitPhase("m1", 1, serving)
		b.awaitPhase("m1", 2, serving)
		kinds := []coordinatorv1.MemberCommandKind{
			coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT,
			coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_TRANSFER_LEADER,
			coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_RELEASE_IF_IDLE,
		}
		answered := 0
		round := func(times int) {
			t.Helper()
			for id, kind := range kinds {
				for range times {
					command(b, uint64(id+5), kind)
					answered++
					b.await("m1", kind.String(), func(r fakecoordinator.Reported) bool { return len(r.Replies) == answered })
				}
			}
		}
		round(3)
		for _, call := range []string{"checkpoint 1@1.1 f1", "lead 1@1.1 f1", "idle 1@1.1 f1", "release 1@1.1 f1"} {
			if n := p.app.called(call); n != 1 {
				t.Errorf("%q was asked %d times", call, n)
			}
		}
		b.await("m1", "results", func(r fakecoordinator.Reported) bool {
			for _, a := range r.Replies {
				if !a.GetDone() {
					t.Errorf("%v", a)
				}
			}
			return r.Phase(1) == released
		})
		b.cluster.SetHolder("c2") // of another era: the region is not served here by now
		b.eventually("a line to c2", func() bool { return p.Status().Holder == "c2" })
		round(1)
		b.await("m1", "refusals", func(r fakecoordinator.Reported) bool {
			for _, a := range r.Replies[9:] {
				if a.GetDone() || a.GetError().GetReason() != rootv1.Reason_REASON_NOT_FOUND {
					t.Errorf("%v", a)
				}
			}
			return true
		})
	})
}

type leads struct{ misused }

func (l leads) TransferLeader(ctx context.Context, r member.Region, to rooted.MemberID) error {
	return l.note(ctx, "lead", r)
}
