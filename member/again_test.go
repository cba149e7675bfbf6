package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// incarnationWithin is the incarnation that a member has come to when a time is over, or
// when it has come to most.
func (b *bubble) incarnationWithin(id string, most uint64, within time.Duration) uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = b.cluster.Await(ctx, id, func(fakecoordinator.Reported) bool { return b.cluster.Member(id).GetIncarnation() >= most })
	return b.cluster.Member(id).GetIncarnation()
}

// A coordinator that says of every incarnation that it is over, and is wrong, gets ever fewer
// of them; once one was served, the next begins at once.
func TestIncarnationsBeginWithPauses(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		for _, k := range b.coordinators {
			k.Refuse(reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "the member was removed, as far as is known here"))
		}
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_FAILED)
		if n := b.incarnationWithin("m1", 1000, 2*time.Minute); n < 20 || n > 60 {
			t.Errorf("it registered %d times in two minutes", n)
		}
		for _, k := range b.coordinators {
			k.Refuse(nil)
		}
		b.eventually("served again", func() bool { return len(p.Status().Coordinators) > 0 })
		time.Sleep(time.Minute)
		at := p.Status().Incarnation
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_FAILED)
		if n := b.incarnationWithin("m1", at+1, 100*time.Millisecond); n != at+1 {
			t.Errorf("incarnation %d was served for a minute, and the next one did not begin", at)
		}
	})
}

// A Drain that took too long can be asked for again, with the time that there is by then; not
// A drain that the root refuses says so when its time is over.
func TestARefusedDrainSaysWhy(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- p.Drain(ctx, "a roll") }()
		b.await("m1", "said goodbye", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetReason() == "a roll" })
		b.cluster.RefuseDrain("m1", &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_MEMBER_RETIRED, Message: "it is of another time"})
		if err := <-drained; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the root refused it: member_retired: it is of another time") {
			t.Errorf("the drain ended with %v", err)
		}
	})
}

// beside one that goes on.
func TestDrainAgain(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		drain := func(within time.Duration, why string) error {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			return p.Drain(ctx, why)
		}
		first := make(chan error, 1)
		go func() { first <- drain(time.Second, "first") }()
		b.await("m1", "said goodbye", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetReason() == "first" })
		if err := drain(time.Minute, "beside it"); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one goes on, and another one ended with %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first one ended with %v", err)
		}
		second := make(chan error, 1)
		go func() { second <- drain(time.Minute, "second") }()
		b.await("m1", "said goodbye anew", func(r fakecoordinator.Reported) bool {
			return r.Goodbye.GetReason() == "second" && r.Goodbye.GetDeadlineMillis() > 50_000
		})
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_DRAINING)
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.awaitPhase("m1", 17, released)
		b.cluster.End("m1", 17)
		if err := <-second; err != nil {
			t.Errorf("the second one ended with %v", err)
		}
		if err := drain(time.Second, "nothing is left"); err != nil {
			t.Errorf("a third one ended with %v", err)
		}
	})
}

// A drain that was refused once, and then begins, is not refused.
func TestARefusalThatIsOverIsForgotten(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- p.Drain(ctx, "a roll") }()
		b.await("m1", "said goodbye", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetReason() == "a roll" })
		b.cluster.RefuseDrain("m1", &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ERA_STALE, Message: "era 1 is over, era 2 is active"})
		time.Sleep(500 * time.Millisecond) // in virtual time
		b.cluster.RefuseDrain("m1", nil)
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_DRAINING) // the next holder drained it
		if err := <-drained; !strings.Contains(err.Error(), "regions are left: 1") {
			t.Errorf("the member drains, and one region was not taken in time; the drain ended with %v", err)
		}
	})
}
