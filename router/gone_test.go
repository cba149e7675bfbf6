package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/pin"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hangs is a request at a member that is stopped: nothing comes, and the connection stays.
func hangs(ctx context.Context, _ router.Target) error {
	<-ctx.Done()
	return ctx.Err()
}

// A function of Do that waits for a member that is stopped ends when the member was said to have failed and another one has the
// key. It is run there if that does no harm; else the error says that it may have been run. In a planned move it is waited for,
// and so is one that nobody else has the key of.
func TestDoDoesNotWaitForAStoppedMember(t *testing.T) {
	for _, row := range []struct {
		name          string
		failed, moved bool
		signals       []string
		idempotent    bool
		named         bool // the owner named m3, of which the root says nothing yet
		want          string
	}{
		{name: "may be repeated", failed: true, moved: true, idempotent: true, want: "m2"},
		{name: "may have been run", failed: true, moved: true, want: "gone"},
		{name: "named by its owner", failed: true, moved: true, named: true, idempotent: true, want: "m2"},
		{name: "a planned move", moved: true, want: "waits"},
		{name: "nobody else has the key", failed: true, want: "waits"},
		{name: "drained and left", failed: true, moved: true, signals: []string{rooted.DrainedSignal}, want: "waits"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, end := start(t, router.Config{})
				defer end()
				b.snapshot(region(1, "", "m", 2, 1))
				stopped := 1
				if row.named {
					stopped = 3
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begun, done, at := time.Now(), make(chan error, 1), ""
				go func() {
					done <- b.Do(ctx, []byte("k"), router.Options{Idempotent: row.idempotent}, func(ctx context.Context, t router.Target) error {
						if at = string(t.Member); row.named && at == "m1" {
							return &router.Refusal{Kind: router.Moved, Member: "m3", Epoch: epoch(4)}
						}
						if at != "m2" {
							return hangs(ctx, t)
						}
						return nil
					})
				}()
				synctest.Wait()
				if row.failed {
					m := member(stopped, failed)
					m.Signals = row.signals
					b.members(m)
				}
				if row.moved {
					b.regions(region(1, "", "m", 7, 2))
				}
				err := <-done
				gone, _ := errors.AsType[*router.Gone](err)
				switch took := time.Since(begun); {
				case row.want == "m2" && (err != nil || at != "m2" || took > 3*time.Second):
					t.Errorf("at %s after %v: %v", at, took, err)
				case row.want == "gone" && (gone == nil || gone.Member != "m1" || !errors.Is(err, io.ErrUnexpectedEOF) || status.Code(err) != codes.Unavailable || took > 3*time.Second):
					t.Errorf("after %v: %v", took, err)
				case row.want == "waits" && (!errors.Is(err, context.DeadlineExceeded) || took != time.Minute):
					t.Errorf("after %v: %v, want it to be waited for", took, err)
				}
			})
		})
	}
}

// A member may lose a key in a planned move, have it back, and fail later: who still waits there waits no longer than for one
// that fails with it.
func TestAFormerOwnerThatFailsLaterIsNotWaitedFor(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{})
			defer end()
			b.snapshot(region(1, "", "m", 2, 1))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- b.Do(ctx, []byte("k"), router.Options{}, hangs) }()
			synctest.Wait()
			b.regions(region(1, "", "m", 7, 2))
			time.Sleep(1500 * time.Millisecond)
			if back {
				b.regions(region(1, "", "m", 8, 1))
				time.Sleep(3 * time.Second)
			}
			b.members(member(1, failed))
			begun := time.Now()
			if back {
				if time.Sleep(20 * time.Second); len(done) > 0 {
					t.Fatalf("nobody else has the key: %v", <-done)
				}
				b.regions(region(1, "", "m", 9, 2))
				begun = time.Now()
			}
			if err := <-done; !errors.As(err, new(*router.Gone)) || time.Since(begun) > 3*time.Second {
				t.Errorf("back %t: after %v: %v", back, time.Since(begun), err)
			}
		})
	}
}

// A member that is gone owes nothing while nobody waits for it: an answer that has begun is taken as slowly as its caller likes.
func TestWhoTakesAnAnswerSlowlyIsNotCutOff(t *testing.T) {
	for _, row := range []struct {
		signals []string
		within  time.Duration
	}{{nil, 3 * time.Second}, {[]string{rooted.DrainedSignal}, time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{})
			defer end()
			b.snapshot(region(1, "", "m", 2, 1))
			must(t, b.Wait(t.Context()))
			at, err := b.Resolve(t.Context(), []byte("k"), router.Options{})
			must(t, err)
			ctx, a := b.WhileOwner(t.Context(), []byte("k"), router.Options{}, at)
			defer a.End(nil)
			a.Waiting()
			a.Waited(true)
			m := member(1, failed)
			m.Signals = row.signals
			b.members(m)
			b.regions(region(1, "", "m", 7, 2))
			for range 10 {
				time.Sleep(7 * time.Second)
				a.Waiting()
				time.Sleep(row.within / 10)
				a.Waited(true)
			}
			if err := context.Cause(ctx); err != nil {
				t.Fatalf("it was cut off: %v", err)
			}
			a.Waiting()
			begun := time.Now()
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.As(err, new(*router.Gone)) || time.Since(begun) > 2*row.within {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
		})
	}
}

// What a function of Do has got of a member that is gone counts, and so does that nothing was sent.
func TestDoKeepsWhatItsFunctionSaysOfAMemberThatIsGone(t *testing.T) {
	other := errors.New("no such user")
	for _, row := range []struct {
		says, want error
	}{{nil, nil}, {router.NotSent(other), other}, {&router.Refusal{Kind: router.PinLost}, &router.Refusal{Kind: router.PinLost}}} {
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{Hold: time.Second})
			defer end()
			b.snapshot(region(1, "", "m", 2, 1))
			done := make(chan error, 1)
			go func() {
				done <- b.Do(t.Context(), []byte("k"), router.Options{}, func(ctx context.Context, t router.Target) error {
					if t.Member == "m2" {
						return other
					}
					<-ctx.Done()
					return row.says
				})
			}()
			synctest.Wait()
			b.members(member(1, failed))
			b.regions(region(1, "", "m", 7, 2))
			if err := <-done; fmt.Sprint(err) != fmt.Sprint(row.want) {
				t.Errorf("it says %v, and Do %v", row.says, err)
			}
		})
	}
}

// A request of a pin ends with its process: it goes nowhere else.
func TestDoPinnedDoesNotWaitForAStoppedMember(t *testing.T) {
	for _, incarnation := range []uint64{1, 2} { // it failed, or runs again
		synctest.Test(t, func(t *testing.T) {
			b, end := start(t, router.Config{})
			defer end()
			key, err := pin.Derive(bytes.Repeat([]byte{1}, 32), 7, 1, 1)
			must(t, err)
			ring := pin.NewRing(7, 1)
			must(t, ring.Learn(time.Now(), key))
			text, err := ring.Seal(&pin.Pin{Region: 1, Member: "m4", Incarnation: 9, Expires: time.Now().Add(time.Hour)})
			must(t, err)
			b.c.desk = desk{key: key, denies: true} // a coordinator says where it is: m4 at incarnation 9
			b.snapshot(region(1, "", "m", 2, 1))
			must(t, b.Wait(t.Context()))
			at := func(incarnation uint64, state rootv1.MemberState) {
				m := member(4, state)
				m.Incarnation = incarnation
				b.members(m)
			}
			at(8, failed) // what the watch has is older than what the coordinator says
			done, begun, tries := make(chan error, 1), time.Now(), 0
			go func() {
				done <- b.DoPinned(t.Context(), text, "", func(ctx context.Context, t router.Target) error { tries++; return hangs(ctx, t) })
			}()
			time.Sleep(20 * time.Second)
			at(9, rootv1.MemberState_MEMBER_STATE_ACTIVE)
			time.Sleep(20 * time.Second)
			if at(8+incarnation, map[uint64]rootv1.MemberState{1: failed, 2: rootv1.MemberState_MEMBER_STATE_ACTIVE}[incarnation]); len(done) > 0 {
				t.Fatalf("it ended while its process lived: %v", <-done)
			}
			err = <-done
			if took := time.Since(begun) - 40*time.Second; !errors.As(err, new(*router.Gone)) || tries != 1 || took > 3*time.Second {
				t.Errorf("%d tries, after %v: %v", tries, took, err)
			}
		})
	}
}
