package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// misused is an application that can do everything, and a call that it makes a mess of.
type misused struct{ merger }

func (m misused) Idle(ctx context.Context, r member.Region) (bool, error) {
	return true, m.note(ctx, "idle", r)
}

// misuse is how each call of a Handler comes about, of region 1, and what is reported of
// it when the call succeeds at last.
var misuse = map[string]struct {
	provoke func(b *bubble, p *process)
	then    func(r fakecoordinator.Reported) bool
}{
	"acquire": {
		func(b *bubble, _ *process) { b.cluster.Show("m1", own(1, 1)) },
		func(r fakecoordinator.Reported) bool { return r.Phase(1) == serving },
	},
	"release": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", own(1, 1))
			b.awaitPhase("m1", 1, serving)
			b.cluster.Show("m1", moving(1, 1, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		},
		func(r fakecoordinator.Reported) bool {
			return r.Phase(1) == released && string(r.Regions[1].GetFrontier()) == "after f1"
		},
	},
	"evict": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", own(1, 1))
			b.awaitPhase("m1", 1, serving)
			b.cluster.End("m1", 1)
		},
		func(r fakecoordinator.Reported) bool { return r.Regions[1] == nil },
	},
	"prepare": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", moving(1, 1, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m2", false))
		},
		func(r fakecoordinator.Reported) bool { return r.Phase(1) == ready },
	},
	"abandon": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", moving(1, 1, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m2", false))
			b.awaitPhase("m1", 1, ready)
			b.cluster.End("m1", 1)
		},
		func(r fakecoordinator.Reported) bool { return r.Regions[1] == nil },
	},
	"checkpoint": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", own(1, 1))
			b.awaitPhase("m1", 1, serving)
			command(b, 5, coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT)
		},
		func(r fakecoordinator.Reported) bool {
			return len(r.Replies) == 1 && r.Replies[0].GetDone() && string(r.Regions[1].GetFrontier()) == "checkpoint"
		},
	},
	"idle": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", own(1, 1))
			b.awaitPhase("m1", 1, serving)
			command(b, 5, coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_RELEASE_IF_IDLE)
		},
		func(r fakecoordinator.Reported) bool {
			return len(r.Replies) == 1 && r.Replies[0].GetDone() && r.Phase(1) == released
		},
	},
	"merge": {
		func(b *bubble, _ *process) {
			b.cluster.Show("m1", reshaping(own(1, 1), "merge-1-1.1", 1, 3), reshaping(own(3, 1), "merge-1-1.1", 1, 3))
		},
		func(r fakecoordinator.Reported) bool {
			return r.Phase(1) == released && string(r.Regions[1].GetFrontier()) == "f1 & f1"
		},
	},
}

func command(b *bubble, id uint64, kind coordinatorv1.MemberCommandKind) {
	b.cluster.Command("m1", &coordinatorv1.MemberCommand{Id: id, Kind: kind, RegionId: 1, Epoch: epoch(1).Proto()})
}

// messes is how often a call of a kind was made about region 1.
func (a *app) messes(kind string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if word, _, _ := strings.Cut(c, " "); word == kind && strings.Contains(c, " 1@") {
			n++
		}
	}
	return n
}

// inMisuse runs a test of each call of a Handler that has one worker, and serves region 9.
func inMisuse(t *testing.T, kinds []string, test func(b *bubble, p *process, kind string)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				p := b.startWith("m1", func(c *member.Config) { c.Workers = 1 }, func(a *app) member.Handler { return misused{merger{a}} })
				b.cluster.Show("m1", own(9, 1))
				b.awaitPhase("m1", 9, serving)
				test(b, p, kind)
			})
		})
	}
}

var allCalls = []string{"acquire", "release", "evict", "prepare", "abandon", "checkpoint", "idle", "merge"}

// mess has calls of a kind about region 1 do what a test says.
func (p *process) mess(kind string, do func(ctx context.Context) error) {
	p.app.mu.Lock()
	defer p.app.mu.Unlock()
	p.app.do = func(ctx context.Context, call string, r member.Region) error {
		if word, _, _ := strings.Cut(call, " "); word == kind && r.ID == 1 {
			return do(ctx)
		}
		return nil
	}
}

// others checks that another region is served, and one that comes is acquired.
func (p *process) others(b *bubble) {
	b.Helper()
	b.cluster.Show("m1", own(2, 1))
	b.awaitPhase("m1", 2, serving)
	for _, id := range []uint64{2, 9} {
		if err := p.ask(id, 1); err != nil {
			b.Errorf("region %d: %v", id, err)
		}
	}
}

// complaint is what is said of region 1: in its report, or in the answer to a command.
func complaint(r fakecoordinator.Reported) string {
	if s := r.Regions[1].GetError(); s != "" || len(r.Replies) == 0 {
		return s
	}
	return r.Replies[0].GetError().GetMessage()
}

// A call that panics is a failure that is reported, and made again after a growing pause
// unless it was a command, or of no use any more; no other region is harmed.
func TestHandlerThatPanics(t *testing.T) {
	inMisuse(t, allCalls, func(b *bubble, p *process, kind string) {
		slips := true
		p.mess(kind, func(context.Context) error {
			if slips {
				panic("a slip")
			}
			return nil
		})
		misuse[kind].provoke(b, p)
		once := kind == "checkpoint" || kind == "idle" || kind == "abandon"
		if kind != "abandon" { // nothing is left to be reported of
			b.await("m1", "the panic is reported", func(r fakecoordinator.Reported) bool { return complaint(r) == kind+" panicked: a slip" })
		}
		p.others(b)
		time.Sleep(time.Minute)
		switch n := p.app.messes(kind); {
		case once && n != 1, !once && (n < 3 || n > 20):
			b.Errorf("it was called %d times in a minute", n)
		}
		p.app.mu.Lock()
		slips = false
		p.app.mu.Unlock()
		if !once {
			b.await("m1", "it succeeds at last", misuse[kind].then)
		}
		if err := p.ask(9, 1); err != nil {
			b.Error(err)
		}
	})
}

// A call that does not return, whatever its context says, is reported and gives its worker
// back; nothing else is asked of the region, and no other waits for it.
func TestHandlerThatBlocks(t *testing.T) {
	inMisuse(t, allCalls, func(b *bubble, p *process, kind string) {
		free := make(chan struct{})
		told := make(chan error, 1)
		p.mess(kind, func(ctx context.Context) error {
			<-ctx.Done()
			told <- ctx.Err()
			<-free
			return nil
		})
		begun := time.Now()
		misuse[kind].provoke(b, p)
		b.await("m1", "the block is reported", func(r fakecoordinator.Reported) bool { return complaint(r) == kind+" has not returned for 5s" })
		if d := time.Since(begun); d > 6*time.Second {
			b.Errorf("it was reported after %v", d)
		}
		if err := <-told; !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("its context ended with %v", err)
		}
		p.others(b)
		time.Sleep(time.Minute)
		if n := p.app.messes(kind); n != 1 {
			b.Errorf("a call that has not returned was made %d times", n)
		}
		close(free)
		b.await("m1", "it has returned", misuse[kind].then)
		p.others(b)
	})
}

// Run ends although every region's call hangs: one worker would be asked for each in turn.
func TestDrainWithAHandlerThatBlocks(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(c *member.Config) { c.Workers = 1 })
		free := make(chan struct{})
		defer close(free)
		p.mess("release", func(context.Context) error {
			<-free
			return nil
		})
		b.cluster.Show("m1", own(1, 1), own(2, 1))
		b.awaitPhase("m1", 1, serving)
		b.awaitPhase("m1", 2, serving)
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- p.Drain(ctx, "the host goes away") }()
		for id := uint64(1); id <= 2; id++ {
			b.cluster.Show("m1", moving(id, 1, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		}
		b.awaitPhase("m1", 2, released)
		b.cluster.End("m1", 2)
		begun := time.Now()
		if err := <-drained; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "regions are left: 1") || time.Since(begun) > 20*time.Second {
			t.Errorf("the drain ended with %v after %v", err, time.Since(begun))
		}
		p.stop()
		<-p.ended
		if !errors.Is(p.result, member.ErrStuck) {
			t.Errorf("it ended with %v", p.result)
		}
	})
}

// A handler that panics while the member drains is asked again, and the drain ends.
func TestDrainWithAHandlerThatPanics(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		p.mess("release", func(context.Context) error {
			if p.app.messes("release") < 4 {
				panic("a slip")
			}
			return nil
		})
		b.cluster.Show("m1", own(1, 1))
		b.awaitPhase("m1", 1, serving)
		p.stop()
		<-p.ended
		if p.result != nil || p.app.messes("release") != 4 {
			t.Errorf("it ended with %v, asked %q", p.result, p.app.calls)
		}
	})
}

// A request that panics has left its region: that can be released, and the panic is the
// caller's.
func TestRequestThatPanics(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(1, 1))
		b.awaitPhase("m1", 1, serving)
		func() {
			defer func() {
				if recover() != "a slip" {
					t.Error("the caller does not hear of its panic")
				}
			}()
			_ = p.Do(b.Context(), member.Request{Region: 1}, func(context.Context, member.Region) error { panic("a slip") })
		}()
		b.cluster.Show("m1", moving(1, 1, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.awaitPhase("m1", 1, released)
	})
}

// An application that panics or hangs when it is told that it is stopped serves nothing
// meanwhile all the same, and goes on once it is confirmed.
func TestStoppedThatPanicsOrBlocks(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000, HoldRequestsMillis: 500}
	for _, kind := range []string{"panics", "blocks"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, terms, func(b *bubble) {
				p := b.start("m1", func(c *member.Config) { c.Workers = 1 })
				free := make(chan struct{})
				p.app.mu.Lock()
				p.app.do = func(_ context.Context, call string, _ member.Region) error {
					if call != "stopped actors" {
						return nil
					}
					if kind == "panics" {
						panic("a slip")
					}
					<-free
					return nil
				}
				p.app.mu.Unlock()
				b.cluster.Show("m1", own(1, 1))
				b.awaitPhase("m1", 1, serving)
				b.eventually("confirmed", func() bool { return p.ask(1, 1) == nil })
				b.cluster.SetHolder("nobody who can be reached")
				b.eventually("stopped", func() bool { return p.app.called("stopped actors 0@0.0 ") == 1 })
				is[*member.Unconfirmed](t, p.ask(1, 1))
				time.Sleep(6 * time.Second) // the one worker is given back
				b.cluster.SetHolder("c2")
				b.eventually("served", func() bool { return p.ask(1, 1) == nil })
				b.cluster.Show("m1", own(2, 1))
				b.awaitPhase("m1", 2, serving)
				close(free)
				b.eventually("resumed", func() bool { return p.app.called("resumed actors 0@0.0 ") == 1 })
			})
		})
	}
}
