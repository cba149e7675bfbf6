package member_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func TestRule2RegionsComeAndGo(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		if e := is[*member.NotOwned](t, p.Do(b.Context(), member.Request{Keyspace: "games", Key: []byte("k17")}, nil)); e.Region != 0 {
			t.Errorf("nothing is its own, and it says %v", e)
		}
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		ran := false
		if err := p.Do(b.Context(), member.Request{Keyspace: "games", Key: []byte("k17"), Epoch: epoch(3)}, func(_ context.Context, r member.Region) error {
			ran = r.ID == 17 && r.Keyspace == "games" && r.Frontier == "f3" && r.Start == "k17"
			return nil
		}); err != nil || !ran {
			t.Fatalf("%v, ran as it should: %t", err, ran)
		}
		if e := is[*member.EpochStale](t, p.ask(17, 2)); e.Current != epoch(3) {
			t.Errorf("a lower epoch: %v", e)
		}
		is[*member.NotOwned](t, p.ask(17, 4)) // behind the wait for it

		// It is lost while a request runs: nobody may be told that it succeeded.
		err := p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(_ context.Context, r member.Region) error {
			b.cluster.End("m1", 17)
			<-r.Leaving()
			return nil
		})
		if e := is[*member.NotOwned](t, err); !e.Ran {
			t.Errorf("it was lost meanwhile: %v", e)
		}
		b.eventually("it is dropped", func() bool { return p.app.called("evict 17@1.3 f3") == 1 })
		b.await("m1", "it is gone", func(r fakecoordinator.Reported) bool { return len(r.Regions) == 0 })
	})
}

// Rules 8 and 9, and issue line "a drain under load": an exclusive region moves while
// callers ask without a pause. Each follows what it is told, and none sees an error.
func TestA42Rule8Rule9MoveUnderLoad(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		at := map[string]*process{"m1": b.start("m1", nil), "m2": b.start("m2", nil)}
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)

		ctx, stop := context.WithCancel(b.Context())
		var callers sync.WaitGroup
		var mu sync.Mutex
		served := map[string]int{}
		inside := 0
		for i := range 20 {
			callers.Go(func() {
				to, conf := "m1", uint64(3)
				for ctx.Err() == nil {
					req := member.Request{Region: 17, Epoch: epoch(conf)}
					if i%2 == 0 {
						req = member.Request{Keyspace: "games", Key: []byte("k17"), Epoch: epoch(conf)}
					}
					err := at[to].Do(context.Background(), req, func(context.Context, member.Region) error {
						mu.Lock()
						served[to]++
						inside++
						if served["m2"] > 0 && to == "m1" {
							t.Error("m1 serves behind m2")
						}
						mu.Unlock()
						time.Sleep(5 * time.Millisecond)
						mu.Lock()
						inside--
						mu.Unlock()
						return nil
					})
					if moved, ok := errors.AsType[*member.Moved](err); ok {
						to, conf = string(moved.To), moved.Epoch.ConfVersion
						continue
					}
					if err != nil {
						t.Errorf("at %s, epoch %d: %v", to, conf, err)
						return
					}
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", false))
		b.cluster.Show("m2", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m1", false))
		b.awaitPhase("m2", 17, ready)
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.await("m1", "released", func(r fakecoordinator.Reported) bool {
			return r.Phase(17) == released && string(r.Regions[17].GetFrontier()) == "after f3" && r.Regions[17].GetTransitionId() == "move-17-1.3"
		})
		mu.Lock()
		if inside != 0 {
			t.Errorf("%d requests run behind the release", inside)
		}
		mu.Unlock()
		next := own(17, 4)
		next.Region.Frontier = []byte("after f3")
		b.cluster.End("m1", 17)
		b.cluster.Show("m2", next)
		b.awaitPhase("m2", 17, serving)
		time.Sleep(100 * time.Millisecond)
		stop()
		callers.Wait()
		if served["m1"] == 0 || served["m2"] == 0 {
			t.Errorf("served: %v", served)
		}
		for _, want := range []string{"prepare from m1 17@1.3 f3", "acquire 17@1.4 after f3"} {
			if at["m2"].app.called(want) != 1 {
				t.Errorf("m2 was asked %q, not once %q", at["m2"].app.calls, want)
			}
		}
	})
}

// Two processes under one id: one serves, the other is told.
func TestA21AnotherProcessUnderThisID(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		first := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		second := b.start("m1", nil)
		<-first.ended
		if !errors.Is(first.result, member.ErrSuperseded) {
			t.Errorf("the first one ended with %v", first.result)
		}
		if first.app.called("evict 17@1.3 f3") != 1 {
			t.Errorf("the first one was asked %q", first.app.calls)
		}
		if err := first.ask(17, 3); !errors.Is(err, member.ErrNotRunning) {
			t.Errorf("the first one, ended, says %v", err)
		}
		b.cluster.Show("m1", own(17, 5))
		b.awaitPhase("m1", 17, serving)
		if err := second.ask(17, 5); err != nil {
			t.Error(err)
		}
	})
}

// A verdict that this process has failed is obeyed at once; it comes back empty, in a
// new incarnation.
func TestA32A41FailedMemberBeginsAnew(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3), own(18, 1))
		b.awaitPhase("m1", 17, serving)
		b.awaitPhase("m1", 18, serving)
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_FAILED)
		b.eventually("registered anew", func() bool { return b.cluster.Member("m1").GetIncarnation() == 2 })
		for _, want := range []string{"evict 17@1.3 f3", "evict 18@1.1 f1"} {
			if p.app.called(want) != 1 {
				t.Errorf("it was asked %q", p.app.calls)
			}
		}
		b.cluster.Show("m1", own(17, 7))
		b.awaitPhase("m1", 17, serving)
		if err := p.ask(17, 7); err != nil {
			t.Error(err)
		}
	})
}

// What the cluster does not understand yet it will when the upgrade is done: the member
// waits for it.
func TestRegistersWhenTheClusterUnderstands(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		tries := 0
		early := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == coordinatorv1.Coordinator_RegisterMember_FullMethodName {
				if tries++; tries <= 3 {
					return reason.New(rootv1.Reason_REASON_FEATURE_LEVEL, "the cluster is at 3").GRPCStatus().Err()
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		c, err := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(b.cluster.Dial), grpc.WithUnaryInterceptor(early)}})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		p := b.start("m1", func(cfg *member.Config) { cfg.Client = c })
		p.stop()
		if <-p.ended; p.result != nil || tries != 4 {
			t.Errorf("registered with %d tries, it ended with %v", tries, p.result)
		}
	})
}

func TestRemovedMemberEnds(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_REMOVED)
		<-p.ended
		if !errors.Is(p.result, member.ErrRemoved) {
			t.Errorf("it ended with %v", p.result)
		}
	})
}

// A handler that panics or blocks is reported, and harms no other region.
func TestHandlerThatPanicsOrBlocks(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(c *member.Config) { c.Workers = 2 })
		free := make(chan struct{})
		p.app.mu.Lock()
		p.app.do = func(_ context.Context, call string, r member.Region) error {
			switch {
			case call == "acquire" && r.ID == 1 && p.app.called("acquire 1@1.1 f1") < 3:
				panic("a slip")
			case call == "acquire" && r.ID >= 2 && r.ID <= 5:
				<-free
			}
			return nil
		}
		p.app.mu.Unlock()
		for id := uint64(1); id <= 8; id++ {
			b.cluster.Show("m1", own(id, 1))
		}
		b.await("m1", "the panic is reported", func(r fakecoordinator.Reported) bool {
			return r.Regions[1].GetError() == "acquire panicked: a slip"
		})
		b.await("m1", "the block is reported", func(r fakecoordinator.Reported) bool {
			return r.Regions[2].GetError() == "acquire has not returned for 5s" && r.Phase(2) == acquiring
		})
		for _, id := range []uint64{1, 6, 7, 8} {
			b.awaitPhase("m1", id, serving)
			if err := p.ask(id, 1); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if n := p.app.called("acquire 2@1.1 f1"); n != 1 {
			t.Errorf("a call that has not returned was made %d times", n)
		}
		close(free)
		for id := uint64(2); id <= 5; id++ {
			b.awaitPhase("m1", id, serving)
		}
	})
}

// Rule 4: when the holder of the Tenure says nothing for the ttl, the member stops, tells
// the application, and keeps what it has; confirmed by another holder it goes on.
func TestRule4StopsUnconfirmed(t *testing.T) {
	terms := &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "actors", Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000, HoldRequestsMillis: 500}
	inBubble(t, terms, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.eventually("confirmed", func() bool { return p.ask(17, 3) == nil })
		b.cluster.SetHolder("nobody who can be reached")
		begun := time.Now()
		b.eventually("stopped", func() bool { return p.app.called("stopped actors 0@0.0 ") == 1 })
		if d := time.Since(begun); d > 1100*time.Millisecond {
			t.Errorf("it stopped after %v", d)
		}
		is[*member.Unconfirmed](t, p.ask(17, 3))
		b.cluster.SetHolder("c2")
		b.eventually("resumed", func() bool { return p.app.called("resumed actors 0@0.0 ") == 1 })
		err := p.Do(b.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(context.Context, member.Region) error {
			b.cluster.SetHolder("")
			time.Sleep(1100 * time.Millisecond)
			return nil
		})
		if e := is[*member.Unconfirmed](t, err); !e.Ran {
			t.Errorf("the work outlived the confirmation: %v", err)
		}
		if p.app.called("acquire 17@1.3 f3") != 1 {
			t.Errorf("it was asked %q", p.app.calls)
		}
	})
}

// A line to the Tenure's holder and to two more coordinators, found through any of
// them; those that break, or say nothing, are replaced, and come back.
func TestC04R02LinesToCoordinators(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		fourth := b.cluster.Start("c4")
		p := b.start("m1", nil)
		lines := func() map[string]bool {
			at := map[string]bool{}
			for _, a := range p.Status().Coordinators {
				at[a] = true
			}
			return at
		}
		b.eventually("three lines", func() bool { return len(lines()) == 3 && lines()["c1"] })
		for _, holder := range []string{"c2", "c3", "c4", "c1"} {
			b.cluster.SetHolder(holder)
			b.eventually("a line to "+holder, func() bool { return len(lines()) == 3 && lines()[holder] && p.Status().Holder == holder })
		}
		b.cluster.SetHolder("c4")
		b.eventually("a line to c4", func() bool { return lines()["c4"] })
		fourth.Mute(true)
		b.eventually("the silent one is left", func() bool { return fourth.Streams() == 0 })
		fourth.Mute(false)
		b.eventually("and asked again", func() bool { return len(lines()) == 3 && lines()["c4"] })
		fourth.Stop()
		b.cluster.SetHolder("c1")
		b.eventually("three others", func() bool { return len(lines()) == 3 && !lines()["c4"] })
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
	})
}

// All coordinators are gone and come back: what is its own is served all the time.
func TestC69R01ServesWithoutCoordinators(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.cluster.Stop()
		for range 20 {
			time.Sleep(time.Second)
			if err := p.ask(17, 3); err != nil {
				t.Fatal(err)
			}
		}
		b.cluster.Start("c1")
		b.cluster.Show("m1", own(18, 1))
		b.awaitPhase("m1", 18, serving)
		if p.app.called("acquire 17@1.3 f3") != 1 {
			t.Errorf("it was asked %q", p.app.calls)
		}
	})
}

func TestC43DrainEndsWhenNothingIsLeft(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		if err := p.Drain(context.Background(), "why"); err == nil {
			t.Error("a drain without a deadline")
		}
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- p.Drain(ctx, "the host goes away") }()
		b.await("m1", "goodbye", func(r fakecoordinator.Reported) bool {
			return r.Goodbye.GetReason() == "the host goes away" && r.Goodbye.GetDeadlineMillis() > 10_000 && r.Goodbye.GetDeadlineMillis() <= 20_000
		})
		b.cluster.SetState("m1", rootv1.MemberState_MEMBER_STATE_DRAINING)
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("it is drained with a region left: %v", err)
		default:
		}
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.awaitPhase("m1", 17, released)
		b.cluster.End("m1", 17)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		p.stop()
		<-p.ended
		b.await("m1", "gone", func(r fakecoordinator.Reported) bool { return r.Goodbye.GetGone() })
	})
}

// An orderly end without a drain releases everything, then says that it is gone.
func TestC20EndReleasesEverything(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		for id := uint64(1); id <= 100; id++ {
			b.cluster.Show("m1", own(id, 1))
		}
		b.eventually("all are served", func() bool { return p.Status().Holding == 100 && p.ask(100, 1) == nil && p.ask(1, 1) == nil })
		p.stop()
		<-p.ended
		if p.result != nil {
			t.Errorf("it ended with %v", p.result)
		}
		b.await("m1", "released and gone", func(r fakecoordinator.Reported) bool {
			for id := uint64(1); id <= 100; id++ {
				if r.Phase(id) != released || string(r.Regions[id].GetFrontier()) != "after f1" {
					return false
				}
			}
			return r.Goodbye.GetGone()
		})
	})
}

// What does not let go of a region bounds the end all the same.
func TestEndIsBounded(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		free := make(chan struct{})
		defer close(free)
		p.app.mu.Lock()
		p.app.do = func(_ context.Context, call string, _ member.Region) error {
			if call == "release" {
				<-free
			}
			return nil
		}
		p.app.mu.Unlock()
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		begun := time.Now()
		p.stop()
		<-p.ended
		if !errors.Is(p.result, member.ErrStuck) || time.Since(begun) > 7*time.Second {
			t.Errorf("it ended with %v after %v", p.result, time.Since(begun))
		}
	})
}

func TestCommandsReachTheApplication(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		b.cluster.Command("m1", &coordinatorv1.MemberCommand{Id: 5, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT, RegionId: 17, Epoch: epoch(3).Proto()})
		b.cluster.Command("m1", &coordinatorv1.MemberCommand{Id: 6, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_TRANSFER_LEADER, RegionId: 17, Epoch: epoch(3).Proto()})
		b.await("m1", "checkpoint", func(r fakecoordinator.Reported) bool {
			return len(r.Replies) == 2 && string(r.Regions[17].GetFrontier()) == "checkpoint"
		})
		if p.app.called("checkpoint 17@1.3 f3") != 1 {
			t.Errorf("it was asked %q", p.app.calls)
		}
	})
}

// Requests wait for what is on its way, so many and not more, and for a bounded time.
func TestRule9HeldRequestsAreBounded(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", func(c *member.Config) { c.MaxHeld = 3 })
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, "m2", false))
		b.awaitPhase("m1", 17, ready)
		if e := is[*member.Moved](t, p.ask(17, 3)); e.To != "m2" || e.Address != "m2:7000" || e.Epoch != epoch(3) {
			t.Errorf("who asks for the old epoch is told %v", e)
		}
		results := make(chan error, 10)
		for range 5 {
			go func() { results <- p.ask(17, 4) }()
		}
		synctest.Wait()
		for range 2 {
			if err := <-results; !errors.Is(err, member.ErrTooManyHeld) {
				t.Errorf("one more than may wait: %v", err)
			}
		}
		b.cluster.Show("m1", own(17, 4))
		for range 3 {
			if err := <-results; err != nil {
				t.Errorf("it waited for the region, and was told %v", err)
			}
		}
		begun := time.Now()
		is[*member.NotOwned](t, p.ask(17, 9))
		if d := time.Since(begun); d != 2*time.Second {
			t.Errorf("an epoch that does not come was waited for for %v", d)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := p.Do(ctx, member.Request{Region: 17, Epoch: epoch(9)}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller went away: %v", err)
		}
	})
}

// What is told of regions reaches coordinators when it has changed enough; NaN and the
// like are nothing.
func TestP46ReportsAndHotKeys(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		p.SetLoad(member.Load{Load: 100, Capacity: 1000})
		if p.Report(99, member.Stats{Load: 1}) || !p.Report(17, member.Stats{Load: 60, Keys: 5, Bytes: 700}) {
			t.Error("it is known which regions are its own")
		}
		for range 1000 {
			if err := p.Do(b.Context(), member.Request{Keyspace: "games", Key: []byte("k17"), Epoch: epoch(3)}, func(context.Context, member.Region) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		p.Report(17, member.Stats{Load: 60, Keys: 5, Bytes: 700})
		b.await("m1", "hot keys", func(r fakecoordinator.Reported) bool {
			at := r.Regions[17]
			return at.GetLoad() == 60 && at.GetKeyCount() == 5 && len(at.GetHotKeys()) == 1 && string(at.GetHotKeys()[0].GetKey()) == "k17" && at.GetHotKeys()[0].GetPermille() == 1000
		})
		zero := 0.0
		p.Report(17, member.Stats{Load: zero / zero})
		b.await("m1", "no number", func(r fakecoordinator.Reported) bool { return r.Regions[17].GetLoad() == 0 })
	})
}

// Whether its share of a region is too much is for the application to say, by what it knows
// of its own limits and queues: it is told at once, and again when that is over.
func TestP48SaturationIsTheOwnersWord(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", own(17, 3))
		b.awaitPhase("m1", 17, serving)
		for _, saturated := range []bool{true, false, true} {
			p.Report(17, member.Stats{Load: 60, Saturated: saturated})
			b.await("m1", fmt.Sprint("saturated ", saturated), func(r fakecoordinator.Reported) bool {
				return r.Regions[17].GetLoad() == 60 && r.Regions[17].GetSaturated() == saturated
			})
		}
	})
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for want, cfg := range map[string]member.Config{
		"member config: ID is empty: give the process a name that it keeps when it restarts":                                            {},
		"member config: Address is empty: give host:port, where callers reach this process":                                             {ID: "m1"},
		"member config: Client is nil: make one with client.New":                                                                        {ID: "m1", Address: "a:1"},
		`member config: Address is "[::]:80", which is all addresses of this machine: give the one where callers reach this process`:    {ID: "m1", Address: "[::]:80"},
		`member config: Address is "0.0.0.0:80", which is all addresses of this machine: give the one where callers reach this process`: {ID: "m1", Address: "0.0.0.0:80"},
		`member config: Address is ":80", which is all addresses of this machine: give the one where callers reach this process`:        {ID: "m1", Address: ":80"},
	} {
		if _, err := member.New(cfg); fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
