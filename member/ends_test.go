package member_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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

// Abort is for who acts in place of a process that is dead: nothing is asked of it any more, what
// does not return is not waited for, and coordinators are told at once that nothing is served.
func TestC06AbortTellsAtOnceAndReleasesNothing(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		hangs := make(chan struct{})
		p.app.mu.Lock()
		p.app.do = func(_ context.Context, call string, r member.Region) error {
			<-hangs
			return nil
		}
		p.app.mu.Unlock()
		b.cluster.Show("m1", own(18, 3)) // Acquire does not return
		b.eventually("asked", func() bool { return p.app.called("acquire 18@1.3 f3") == 1 })
		begin := time.Now()
		p.Abort("the process ended")
		<-p.ended
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		if !errors.Is(p.result, member.ErrAborted) {
			t.Errorf("it ended with %v", p.result)
		}
		b.await("m1", "gone", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetGone() })
		if n := p.app.called("release 17@1.3 f3"); n != 0 {
			t.Errorf("a dead process was asked %d times to release", n)
		}
		if err := p.ask(17, 3); err == nil {
			t.Error("a request was let in behind it")
		}
		close(hangs)
	})
}

// Abort before the member is registered, or while it is, ends it all the same.
func TestC06AbortBeforeItRuns(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		m, err := member.New(member.Config{ID: "m1", Address: "m1:7000", Client: b.client})
		if err != nil {
			t.Fatal(err)
		}
		m.Abort("the process ended")
		if err := m.Run(b.Context(), &app{}); !errors.Is(err, member.ErrAborted) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Left says for how long a right is confirmed: the ttl from when the newest confirmed frame was sent.
func TestRule4HowLongItIsLeft(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 60_000, HoldRequestsMillis: 500}
	for fence, terms := range map[string]*coordinatorv1.KeyspaceTerms{"ttl": terms, "epoch": games} {
		inBubble(t, terms, func(b *bubble) {
			p := b.start("m1", nil)
			b.cluster.Show("m1", own(17, 3))
			b.awaitPhase("m1", 17, serving)
			b.eventually("confirmed", func() bool { return p.ask(17, 3) == nil })
			for _, k := range b.coordinators {
				k.Mute(true)
			}
			_ = p.Do(b.Context(), member.Request{Region: 17}, func(_ context.Context, r member.Region) error {
				before, limited := p.Left(r)
				if limited != (fence == "ttl") {
					t.Fatalf("fence %s: it ends by time: %t", fence, limited)
				}
				time.Sleep(20 * time.Second)
				after, _ := p.Left(r)
				if limited && (before <= 50*time.Second || before > time.Minute || before-after < 15*time.Second) {
					t.Errorf("%v are left, and 20 s later %v", before, after)
				}
				return nil
			})
		})
	}
}
