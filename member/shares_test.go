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
)

// checkpoints are regions from 100 on whose checkpoints last for 15 s, called off or not.
func checkpoints(b *bubble, p *process, regions uint64) {
	b.Helper()
	for id := range regions {
		b.cluster.Show("m1", own(id+100, 3))
	}
	b.await("m1", "all are served", func(r fakecoordinator.Reported) bool {
		for id := range regions {
			if r.Phase(id+100) != serving {
				return false
			}
		}
		return true
	})
	p.app.mu.Lock()
	p.app.do = func(_ context.Context, call string, _ member.Region) error {
		if call == "checkpoint" {
			time.Sleep(15 * time.Second)
		}
		return nil
	}
	p.app.mu.Unlock()
	for id := range regions {
		b.cluster.Command("m1", &coordinatorv1.MemberCommand{Id: id + 1, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT, RegionId: id + 100, Epoch: epoch(3).Proto()})
	}
	b.eventually("checkpoints are asked for", func() bool { return p.app.called("checkpoint 100@1.3 f3") == 1 })
}

// A region of a dead neighbour is acquired at once, however many checkpoints are slow.
func TestSlowCheckpointsHoldUpNoFailover(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(cfg *member.Config) { cfg.HandlerTimeout = 20 * time.Second })
		checkpoints(b, p, 300)
		time.Sleep(time.Second) // all commands have come
		begun := time.Now()
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		if d := time.Since(begun); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// What is to be given away is released at once, but for the regions whose checkpoint runs.
func TestSlowCheckpointsHoldUpNoDrain(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(cfg *member.Config) { cfg.HandlerTimeout = 20 * time.Second })
		const regions = 301
		checkpoints(b, p, regions)
		time.Sleep(time.Second)
		begun := time.Now()
		for id := range uint64(regions) {
			b.cluster.Show("m1", moving(id+100, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		}
		for _, left := range []int{8, 0} {
			b.await("m1", "released", func(r fakecoordinator.Reported) bool {
				n := 0
				for id := range uint64(regions) {
					if r.Phase(id+100) == released {
						n++
					}
				}
				return n >= regions-left
			})
			if d := time.Since(begun); left > 0 && d > time.Second {
				t.Errorf("it took %v", d)
			}
		}
	})
}

// Requests for one region that is on its way leave room for those of others.
func TestRule9HeldRequestsOfOneRegionLeaveRoom(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(cfg *member.Config) { cfg.MaxHeld = 100 })
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m2", false), moving(18, 3, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m2", false))
		b.awaitPhase("m1", 17, ready)
		b.awaitPhase("m1", 18, ready)
		results := make(chan error, 200)
		for range 200 {
			go func() { results <- p.ask(17, 4) }()
		}
		synctest.Wait()
		for range 200 - 75 {
			if err := <-results; !errors.Is(err, member.ErrTooManyHeld) {
				t.Errorf("one more than its share: %v", err)
			}
		}
		other := make(chan error, 1)
		go func() { other <- p.ask(18, 4) }()
		synctest.Wait()
		b.cluster.Show("m1", own(18, 4))
		if err := <-other; err != nil {
			t.Errorf("for another region: %v", err)
		}
		for range 75 {
			is[*member.NotOwned](t, <-results)
		}
		if n := p.Status().Held; n != 0 {
			t.Errorf("%d still wait", n)
		}
	})
}
