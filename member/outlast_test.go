package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A request that goes on when its region is to be let go loses its right behind RequestGrace,
// and its context ends: one that hears of it lets the region go then, one that does not
// HandlerTimeout later. Neither is told to be good.
func TestRequestsThatDoNotEndLoseTheirRight(t *testing.T) {
	for name, hears := range map[string]bool{"hears": true, "is deaf": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				p := b.start("m1", func(cfg *member.Config) { cfg.RequestGrace = 7 * time.Second })
				b.cluster.Show("m1", own(17, 3))
				b.awaitPhase("m1", 17, serving)
				free, said := make(chan struct{}), make(chan error, 1)
				go func() {
					said <- p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(ctx context.Context, _ member.Region) error {
						if hears {
							<-ctx.Done()
						} else {
							<-free
						}
						return nil
					})
				}()
				synctest.Wait()
				begun := time.Now()
				b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
				b.awaitPhase("m1", 17, released)
				want := 7 * time.Second
				if !hears {
					want += 5 * time.Second // HandlerTimeout
				}
				if d := time.Since(begun); d < want || d > want+100*time.Millisecond {
					t.Errorf("it was released after %v, want %v", d, want)
				}
				b.cluster.Show("m1", own(17, 3)) // the move is given up
				b.eventually("it is served behind the move", func() bool { return p.ask(17, 3) == nil })
				close(free)
				if e := is[*member.NotOwned](t, <-said); !e.Ran {
					t.Errorf("the request is told %v", e)
				}
			})
		})
	}
}

// A move whose deadline is short is done all the same.
func TestRequestsThatDoNotEndHaveAPartOfTheDeadline(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		free := make(chan struct{})
		go func() {
			_ = p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				<-free
				return nil
			})
		}()
		defer close(free)
		synctest.Wait()
		begun := time.Now()
		r := moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true)
		r.Move.DeadlineMillis = 4000
		b.cluster.Show("m1", r)
		b.awaitPhase("m1", 17, released)
		if d := time.Since(begun); d > 2100*time.Millisecond {
			t.Errorf("it was released after %v", d)
		}
	})
}

// A request that never ends keeps the region from nobody: not from its own member, either,
// which is given it again.
func TestRequestsThatDoNotEndKeepNoRegion(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		free := make(chan struct{})
		go func() {
			_ = p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
				<-free
				return nil
			})
		}()
		defer close(free)
		synctest.Wait()
		b.cluster.End("m1", 17)
		b.cluster.Show("m1", own(17, 5))
		b.await("m1", "serves again", func(r fakecoordinator.Reported) bool {
			return r.Phase(17) == serving && r.Regions[17].GetEpoch().GetConfVersion() == 5
		})
		b.eventually("it lets requests in", func() bool { return p.ask(17, 5) == nil })
	})
}

// A Release that goes on when its move is given up is called off, and the region is served.
func TestAReleaseIsCalledOffWithItsMove(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(cfg *member.Config) { cfg.HandlerTimeout = time.Minute })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		p.app.mu.Lock()
		p.app.do = func(ctx context.Context, call string, _ member.Region) error {
			if call == "release" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		p.app.mu.Unlock()
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.awaitPhase("m1", 17, coordinatorv1.RegionPhase_REGION_PHASE_RELEASING)
		b.eventually("asked to release", func() bool { return p.app.called("release 17@1.3 f3") == 1 })
		b.cluster.Show("m1", own(17, 3))
		begun := time.Now()
		b.eventually("it is served again", func() bool { return p.ask(17, 3) == nil })
		if d := time.Since(begun); d > time.Second {
			t.Errorf("it was served again after %v", d)
		}
		p.app.mu.Lock()
		p.app.do = nil
		p.app.mu.Unlock()
	})
}

// What requests ask their context is what it says: it is the caller's, ends with it, and with
// the request, and knows what that one knows.
func TestTheContextOfARequestIsItsCallers(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(b.Context(), key{}, "v"), time.Minute)
		defer cancel()
		var inner context.Context
		if err := p.Do(ctx, member.Request{Region: 17, Epoch: epoch(3)}, func(own context.Context, _ member.Region) error {
			if _, has := own.Deadline(); !has || own.Value(key{}) != "v" || own.Err() != nil {
				t.Errorf("it is another one: %v", own)
			}
			var end context.CancelFunc
			inner, end = context.WithCancel(own)
			defer end()
			cancel()
			<-inner.Done()
			return own.Err()
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("the caller went away: %v", err)
		}
		if err := p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(own context.Context, _ member.Region) error {
			inner = own
			return own.Err()
		}); err != nil {
			t.Fatal(err)
		}
		<-inner.Done()
	})
}

// A frontier that is too long is an error of Release that says what to do, in the log and to
// coordinators.
func TestFrontiersAreBoundedWhereTheyAreReturned(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		var log written.Text
		b.startWith("m1", func(cfg *member.Config) {
			cfg.Logger = log.Logger(hclog.Warn)
		}, func(a *app) member.Handler { return long{a} })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		const want = "the frontier that it returned has 4097 bytes, and MaxFrontierBytes is 4096: keep more than that elsewhere, and return where it is"
		b.await("m1", "says so", func(r fakecoordinator.Reported) bool { return r.Regions[17].GetError() == want })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		synctest.Wait()
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log says %s", log.String())
		}
	})
}

// What Checkpoint returns is bounded as well, and what Merge does: the region goes on at the frontier that it had.
func TestFrontiersOfCheckpointsAndMergesAreBounded(t *testing.T) {
	const want = "the frontier that it returned has 4097 bytes, and MaxFrontierBytes is 4096: keep more than that elsewhere, and return where it is"
	inBubble(t, tables, func(b *bubble) {
		b.startWith("m1", nil, func(a *app) member.Handler { return longer{a} })
		b.cluster.Show("m1", part(17, 2, "a", "m", "x"), part(18, 2, "m", "z", "y"))
		b.awaitPhase("m1", 17, serving)
		b.awaitPhase("m1", 18, serving)
		b.cluster.Command("m1", &coordinatorv1.MemberCommand{
			Id: 5, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT, RegionId: 17, Epoch: &rootv1.RegionEpoch{Version: 2, ConfVersion: 1},
		})
		b.await("m1", "the checkpoint has failed", func(r fakecoordinator.Reported) bool {
			return len(r.Replies) == 1 && strings.Contains(r.Replies[0].GetError().GetMessage(), want) && !r.Replies[0].GetSetFrontier() && r.Phase(17) == serving
		})
		b.cluster.Show("m1", reshaping(part(17, 2, "a", "m", "x"), "merge-17-2.1", 17, 18), reshaping(part(18, 2, "m", "z", "y"), "merge-17-2.1", 17, 18))
		b.await("m1", "the merge has failed", func(r fakecoordinator.Reported) bool {
			return r.Regions[17].GetError() == want && r.Phase(17) != released
		})
		b.cluster.Show("m1", part(17, 2, "a", "m", "x"), part(18, 2, "m", "z", "y"))
		b.awaitPhase("m1", 17, serving)
		b.awaitPhase("m1", 18, serving)
	})
}

// longer says more than a frontier may have, but where it releases.
type longer struct{ *app }

func (longer) Checkpoint(context.Context, member.Region) ([]byte, error) {
	return make([]byte, member.MaxFrontierBytes+1), nil
}

func (longer) Merge(context.Context, member.Region, member.Region) ([]byte, error) {
	return make([]byte, member.MaxFrontierBytes+1), nil
}

// long says more than a frontier may have.
type long struct{ member.Handler }

func (long) Release(context.Context, member.Region) ([]byte, error) {
	return make([]byte, member.MaxFrontierBytes+1), nil
}
