package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// A publisher that has all the proposals it may have refuses itself: another one
// still proposes, and claims, confirmations and read indexes do not wait behind it.
func TestProposalsAreInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.hold = make(chan struct{})
		s := serve(t, r, func(c *server.Config) { c.MaxProposals, c.MaxReads, c.MaxConfirmations = 8, 2, 2 })
		greedy, other := s.root(), s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose := func(ctx context.Context, root rootv1.RootClient) error {
			_, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{joined("a", 1)}})
			return err
		}
		for range 6 {
			go func() { _ = propose(ctx, greedy) }()
		}
		synctest.Wait()
		if err := propose(ctx, greedy); reason.Of(err) != rootv1.Reason_REASON_OVERLOADED || reason.From(err).GetRetryAfterMillis() == 0 {
			t.Errorf("above its share: %v", err)
		}
		short, stop := within(time.Second)
		defer stop()
		if err := propose(short, other); reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("another publisher: %v", err)
		}
		fence := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: rootv1.Mandate_MANDATE_TSO, Era: 1, Size: 1,
		}}}}}
		if _, err := greedy.Propose(short, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{fence}}); reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("a fence of the greedy publisher: %v", err)
		}
		if _, err := greedy.ReadIndex(ctx, &rootv1.ReadIndexRequest{ClusterId: cluster}); err != nil {
			t.Errorf("read index: %v", err)
		}
		if _, err := greedy.ConfirmTenure(ctx, &rootv1.ConfirmTenureRequest{ClusterId: cluster, Era: 1}); reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("confirmation: %v", err)
		}
		claim := &rootv1.TenureClaimed{HolderId: "c1", HolderAddress: "a:1"}
		if _, err := greedy.ClaimTenure(ctx, &rootv1.ClaimTenureRequest{ClusterId: cluster, Claim: claim}); reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("claim: %v", err)
		}
		close(r.hold)
		synctest.Wait()
	})
}

// Tools read no more than a quarter of what may be read at a time, so that a
// coordinator that starts finds a snapshot and a tail.
func TestToolsLeaveRoomForCoordinators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, newFakeReplica(t), func(c *server.Config) { c.MaxReaders = 8 })
		ctx, cancel := within(time.Minute)
		defer cancel()
		tail := func(name string) error {
			stream, err := s.root().Tail(ctx, &rootv1.TailRequest{ReaderId: name})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}
		for i, want := range []rootv1.Reason{0, 0, rootv1.Reason_REASON_OVERLOADED} {
			if got := reason.Of(tail("")); got != want {
				t.Errorf("tool %d: %v, want %v", i+1, got, want)
			}
		}
		for range 3 {
			if err := tail("c1"); err != nil {
				t.Errorf("coordinator: %v", err)
			}
		}
	})
}

// The bytes of proposals are shared out among callers like their places: one that has
// all it may have refuses itself, and what a holder needs waits behind nobody's bytes.
func TestProposalBytesAreInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.hold = make(chan struct{})
		s := serve(t, r, func(c *server.Config) {
			c.Budget = budget.New(16 << 20) // 2 MiB wait
			c.ServerOptions = []grpc.ServerOption{impersonate.Server()}
		})
		greedy := rootv1.NewRootClient(s.as(impersonate.Named(principal.Coordinator, "c1")))
		other := rootv1.NewRootClient(s.as(impersonate.Named(principal.Coordinator, "c2")))
		ctx, cancel := within(time.Minute)
		defer cancel()
		propose := func(ctx context.Context, root rootv1.RootClient, e ...*rootv1.Command) error {
			_, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: e})
			return err
		}
		for size := 15_000; size > 10; size /= 2 { // ever smaller pieces, until nothing is left
			for range 200 {
				go func() { _ = propose(ctx, greedy, joined("a", size)) }()
			}
			synctest.Wait()
		}
		if err := propose(ctx, greedy, joined("b", 15_000)); reason.Of(err) != rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("above its share: %v", err)
		}
		fence := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: rootv1.Mandate_MANDATE_TSO, Era: 1, Size: 1,
		}}}}}
		for what, err := range map[string]error{
			"another caller's command":     propose(short(t), other, joined("c", 1000)),
			"a fence of the greedy caller": propose(short(t), greedy, fence),
		} {
			if reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
				t.Errorf("%s: %v", what, err)
			}
		}
		close(r.hold)
		synctest.Wait()
	})
}

func short(t *testing.T) context.Context {
	ctx, cancel := within(time.Second)
	t.Cleanup(cancel)
	return ctx
}
