package grpcroute_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// counted counts connections that are open.
type counted struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool
}

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// Only members that are called are connected, so many at most, and not for longer than they
// are used.
func TestP11ConnectionsAreToWhomIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := []string{"m1", "m2", "m3", "m4"}
		w := start(t, router.Config{OnUnreachable: func(m client.Member, err error) { t.Errorf("%s counts as not reachable: %v", m.ID, err) }}, ids...)
		for _, id := range ids {
			w.assign("key-"+id, rooted.MemberID(id))
		}
		var open, dialled atomic.Int64
		c := w.dial(grpcroute.Config{MaxMembers: 2, IdleFor: time.Minute, Hold: time.Second}, grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
			conn, err := w.c.Dial(ctx, a)
			if err != nil {
				return nil, err
			}
			dialled.Add(1)
			open.Add(1)
			return &counted{Conn: conn, open: &open}, nil
		}))
		for range 3 {
			for _, id := range ids[:2] {
				if got, err := ask(w.ctx("key-"+id, time.Minute), c); err != nil || got != id+" key-"+id {
					t.Errorf("%s: %q %v", id, got, err)
				}
			}
		}
		if dialled.Load() != 2 {
			t.Errorf("%d connections to two members", dialled.Load())
		}
		for _, id := range ids { // more than there may be, one after another
			if _, err := ask(w.ctx("key-"+id, time.Minute), c); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		synctest.Wait()
		if open.Load() != 2 {
			t.Errorf("%d connections are open, want 2", open.Load())
		}
		// Those that are in use stay, and another member has to wait.
		var streams []grpc.BidiStreamingClient[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]
		for _, id := range ids[:2] {
			s, err := c.FullDuplexCall(w.ctx("key-"+id, time.Hour))
			must(t, err)
			if _, err := echo(s, "x"); err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		begun := time.Now()
		_, err := ask(w.ctx("key-m3", time.Minute), c)
		if status.Code(err) != codes.Unavailable || time.Since(begun) > 2*time.Second {
			t.Errorf("a third member, after %v: %v", time.Since(begun), err)
		}
		time.Sleep(10 * time.Minute)
		for _, s := range streams {
			if _, err := echo(s, "y"); err != nil {
				t.Errorf("a stream in use: %v", err)
			}
			must(t, s.CloseSend())
			_, _ = s.Recv()
		}
		time.Sleep(5 * time.Minute)
		if open.Load() != 0 {
			t.Errorf("%d connections that nobody uses are open", open.Load())
		}
		if _, err := ask(w.ctx("key-m4", time.Minute), c); err != nil {
			t.Errorf("behind that: %v", err)
		}
	})
}

// That a ClientConn is closed is not its members' fault, whatever waits there.
func TestP41AClosedClientConnCountsAgainstNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{OnUnreachable: func(m client.Member, err error) { t.Errorf("%s counts as not reachable: %v", m.ID, err) }}, "m1")
		w.assign("a", "m1")
		w.gates["m1"].says.Store(&[]error{member.ErrTooManyHeld, member.ErrTooManyHeld, member.ErrTooManyHeld, member.ErrTooManyHeld})
		conn, err := grpcroute.NewClient("nokv:///games", grpcroute.Config{Router: w.router}, grpc.WithContextDialer(w.c.Dial))
		must(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := ask(w.ctx("a", time.Minute), testgrpc.NewTestServiceClient(conn))
			ended <- err
		}()
		time.Sleep(20 * time.Millisecond) // it waits for its next try
		must(t, conn.Close())
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("it ends with %v", err)
		}
	})
}

// A region of several owners: each call by itself goes to one of them, and around one that died.
func TestP09P41P56CallsSpreadOverOwners(t *testing.T) {
	for _, pick := range []router.Strategy{router.RoundRobin, router.Random, router.LeastLoaded, router.TwoChoices} {
		t.Run(fmt.Sprint(pick), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { spread(t, pick) }) })
	}
}

func spread(t *testing.T, pick router.Strategy) {
	w := start(t, router.Config{Pick: pick}, "m1", "m2", "m3")
	w.c.FreezePlanner()
	key := []byte("a")
	r := w.c.Assign(t, "shared", key, "m1").Region
	_, err := w.c.Client().PublishEvent(context.Background(), &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
		Owners: []*rootv1.Owner{{MemberId: "m1"}, {MemberId: "m2"}, {MemberId: "m3"}},
	}}}}})
	must(t, err)
	c := w.dialTo("shared", grpcroute.Config{Idempotent: func(string) bool { return true }})
	answered := func(n int) map[string]int {
		by := map[string]int{}
		for range n {
			got, err := ask(w.ctx("a", time.Second), c)
			must(t, err)
			by[got]++
		}
		return by
	}
	w.c.Await(t, "the router knows three owners", func() bool {
		return len(answered(20)) == 3
	})
	for who, n := range answered(300) {
		if n < 50 {
			t.Errorf("%s answered %d of 300", who, n)
		}
	}
	w.members["m2"].Kill(t)
	begun := time.Now()
	if by := answered(100); len(by) != 2 || by["m2 a"] > 0 || time.Since(begun) > time.Second {
		t.Errorf("without m2, in %v: %v", time.Since(begun), by)
	}
}
