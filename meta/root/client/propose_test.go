package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// propose proposes one command and checks that the answer is its own.
func propose(ctx context.Context, t *testing.T, c *client.Client, n uint64) {
	t.Helper()
	results, err := c.Propose(ctx, command(n))
	if err != nil {
		t.Errorf("Propose(%d) = %v", n, err)
		return
	}
	if len(results) != 1 || results[0].Token.Index != n {
		t.Errorf("Propose(%d) was answered with %v", n, results)
	}
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func TestOneCallerCostsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		start := time.Now()
		for n := uint64(2); n <= 11; n++ {
			propose(ctx, t, c, n)
		}
		if took := time.Since(start); took != 10*r.delay {
			t.Errorf("10 proposals took %v, want 10 times the leader's %v", took, r.delay)
		}
	})
}

func TestConcurrentCallersShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		start := time.Now()
		var callers sync.WaitGroup
		for n := range uint64(1000) {
			callers.Go(func() {
				for round := range uint64(4) {
					propose(ctx, t, c, 10+n*10+round)
				}
			})
		}
		callers.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		total := 0
		for _, n := range r.peers[1].requests {
			total += n
			if n > client.MaxRequestCommands {
				t.Errorf("a request held %d commands", n)
			}
		}
		if total != 4001 {
			t.Errorf("%d commands arrived, want 4001", total)
		}
		if n := len(r.peers[1].requests); n > 1500 {
			t.Errorf("4,001 commands took %d requests", n)
		}
		if took := time.Since(start); took > 200*r.delay {
			t.Errorf("took %v of virtual time", took)
		}
	})
}

func TestFollowsTheLeader(t *testing.T) {
	for _, hints := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newFakeRoot(t, 3)
			r.hints = hints
			r.leader = 3
			c := r.start(r.config())
			ctx, cancel := within(time.Minute)
			defer cancel()
			start := time.Now()
			propose(ctx, t, c, 1)
			r.lead(2)
			propose(ctx, t, c, 2)
			if _, err := c.Claim(ctx, &rootv1.TenureClaimed{}); err != nil {
				t.Errorf("Claim = %v", err)
			}
			// Redirects and a first round over all peers cost no wait.
			if took := time.Since(start); took > 30*time.Millisecond {
				t.Errorf("hints %v: took %v", hints, took)
			}
		})
	}
}

func TestRedirectToAPeerThatWasNotConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.leader = 3
		cfg := r.config()
		cfg.Peers = map[uint64]string{1: address(1)}
		c := r.start(cfg)
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		if got := len(c.Status(ctx)); got != 2 {
			t.Errorf("%d peers known, want the given and the learned one", got)
		}
	})
}

func TestLeaderCrashLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		r.with(func() { r.peers[1].dropAfter = 3; r.delay = time.Hour })
		var callers sync.WaitGroup
		for n := range uint64(50) {
			callers.Go(func() { propose(ctx, t, c, 100+n) })
		}
		synctest.Wait()
		r.with(func() { r.delay = time.Millisecond; r.leader = 2 })
		r.peers[1].stop()
		callers.Wait()
		seen := map[uint64]int{}
		r.with(func() {
			for _, cmd := range r.log {
				seen[cmd.RequireEra]++
			}
		})
		for n := range uint64(50) {
			if seen[100+n] == 0 {
				t.Errorf("command %d was acknowledged and is not in the log", 100+n)
			}
		}
	})
}

// A broken stream may have carried the command into the log: it is sent again.
func TestBrokenStreamIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		r.with(func() { r.peers[1].dropAfter = 2 })
		propose(ctx, t, c, 1)
		propose(ctx, t, c, 2)
		r.with(func() {
			if len(r.log) != 3 {
				t.Errorf("log has %d commands, want the second one twice", len(r.log))
			}
		})
	})
}

func TestSilentLeaderIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		r.with(func() { r.peers[1].silent = true; r.leader = 2 })
		start := time.Now()
		propose(ctx, t, c, 2)
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("took %v, want little more than the attempt timeout of 1 s", took)
		}
	})
}

// What a tail says about the leader ends the wait for one that is silent.
func TestTailHintEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		cfg := r.config()
		cfg.AttemptTimeout = time.Hour
		c := r.start(cfg)
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		tail := followTail(ctx, t, c, r, 1)
		defer tail.Close()
		r.with(func() { r.peers[1].silent = true; r.leader = 2 })
		start := time.Now()
		var callers sync.WaitGroup
		callers.Go(func() { propose(ctx, t, c, 2) })
		callers.Go(func() {
			if _, err := c.ReadIndex(ctx); err != nil {
				t.Errorf("ReadIndex = %v", err)
			}
		})
		go func() {
			for {
				if _, err := tail.Recv(); err != nil {
					return
				}
			}
		}()
		callers.Wait()
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("took %v, want little more than the patience of 250 ms", took)
		}
	})
}

func TestUnknownOutcomeIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		r.with(func() { r.delay = time.Hour })
		short, cancelShort := within(100 * time.Millisecond)
		defer cancelShort()
		_, err := c.Propose(short, command(2))
		if reason.Of(err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Propose = %v, want outcome unknown, deadline exceeded", err)
		}
		r.with(func() { r.delay = time.Millisecond })
	})
}

func TestNobodyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		r.leader = 0
		c := r.start(r.config())
		ctx, cancel := within(2 * time.Second)
		defer cancel()
		_, err := c.Propose(ctx, command(1))
		if reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Propose = %v, want root unavailable", err)
		}
		ctx, cancel = within(2 * time.Second)
		defer cancel()
		if _, err = c.ReadIndex(ctx); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
			t.Errorf("ReadIndex = %v, want root unavailable", err)
		}
		start := time.Now()
		ctx, cancel = within(time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { r.lead(2) })
		propose(ctx, t, c, 2)
		if took := time.Since(start); took > 1300*time.Millisecond {
			t.Errorf("the new leader was found after %v", took-time.Second)
		}
	})
}

func TestOverloadedPeerIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		r.with(func() { r.peers[1].overloaded = 4 })
		start := time.Now()
		propose(ctx, t, c, 2)
		if took := time.Since(start); took < 20*time.Millisecond || took > 500*time.Millisecond {
			t.Errorf("took %v, want some backoff", took)
		}
		r.with(func() { r.peers[1].overloaded = 2 })
		if _, err := c.ReadIndex(ctx); err != nil {
			t.Errorf("ReadIndex = %v", err)
		}
	})
}

func TestFinalRefusalIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		r.with(func() { r.peers[1].refuse = reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "no") })
		if _, err := c.Propose(ctx, command(2)); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("Propose = %v", err)
		}
		r.with(func() { r.peers[1].refuse = status.Error(codes.PermissionDenied, "no") })
		if _, err := c.Claim(ctx, nil); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Claim = %v", err)
		}
	})
}

// A command that cannot be written is refused, and costs those that travel with it
// nothing but another try.
func TestCommandThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 3)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose(ctx, t, c, 1)
		begun := time.Now()
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := c.Propose(ctx, command(3), &rootv1.Command{Why: "\xff"}); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Errorf("Propose = %v", err)
			}
		})
		callers.Go(func() { propose(ctx, t, c, 2) })
		callers.Wait()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		cfg := r.config()
		cfg.MaxQueuedCommands = 2
		c, err := client.New(cfg) // Never runs: everything stays queued.
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := within(time.Second)
		defer cancel()
		if _, err := c.Propose(ctx, make([]*rootv1.Command, client.MaxRequestCommands+1)...); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("too many commands: %v", err)
		}
		if results, err := c.Propose(ctx); results != nil || err != nil {
			t.Errorf("no commands: %v, %v", results, err)
		}
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := c.Propose(ctx, command(1), command(2)); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
				t.Errorf("queued: %v", err)
			}
		})
		synctest.Wait()
		if _, err := c.Propose(ctx, command(3)); reason.Of(err) != rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("queue full: %v", err)
		}
		fence := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: rootv1.Mandate_MANDATE_TSO, Era: 1, Size: 1,
		}}}}}
		if _, err := c.Propose(ctx, fence); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
			t.Errorf("a holder's fence beside a full queue: %v", err)
		}
		callers.Wait()
	})
}

func TestCloseFailsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		c, err := client.New(r.config())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := within(time.Minute)
		defer cancel()
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := c.Propose(ctx, command(1)); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Propose = %v", err)
			}
		})
		callers.Go(func() {
			if _, err := c.ReadIndex(ctx); !errors.Is(err, client.ErrClosed) {
				t.Errorf("ReadIndex = %v", err)
			}
		})
		synctest.Wait()
		c.Close()
		callers.Wait()
		if _, err := c.Propose(ctx, command(1)); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Propose after Close = %v", err)
		}
		if _, err := c.Claim(ctx, nil); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Claim after Close = %v", err)
		}
	})
}

// A client whose Run ends says of what it had sent that nobody knows.
func TestRunEndsWithRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		r.delay = 100 * time.Millisecond
		c, err := client.New(r.config())
		if err != nil {
			t.Fatal(err)
		}
		run, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() { _ = c.Run(run) })
		all.Go(func() {
			ctx, cancel := within(time.Minute)
			defer cancel()
			_, err := c.Propose(ctx, command(1))
			if reason.Of(err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN || !errors.Is(err, client.ErrClosed) {
				t.Errorf("Propose = %v, want outcome unknown, closed", err)
			}
		})
		synctest.Wait()
		stop()
		all.Wait()
	})
}

func TestLargestRequestThatTheRootTakesIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t, 1)
		c := r.start(r.config())
		ctx, cancel := within(time.Minute)
		defer cancel()
		full := command(1)
		full.Events = []*rootv1.Event{{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
			Reason: strings.Repeat("x", client.MaxRequestBytes-14),
		}}}}
		if n := proto.Size(full); n != client.MaxRequestBytes {
			t.Fatalf("the command has %d bytes, want %d", n, client.MaxRequestBytes)
		}
		if _, err := c.Propose(ctx, full); err != nil {
			t.Errorf("a command of the largest size: %v", err)
		}
		full.Events[0].GetMemberStateChanged().Reason += "x"
		if _, err := c.Propose(ctx, full); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("a larger command: %v", err)
		}
	})
}
