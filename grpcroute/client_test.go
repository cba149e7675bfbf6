package grpcroute_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Each call goes to the owner of its own key, wherever the key comes from.
func TestP06P11P14CallsGoToTheOwnersOfTheirKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		w.assign("b\x00\x01", "m2")
		c := w.dial(grpcroute.Config{})
		for _, row := range []struct {
			ctx  context.Context
			want string
		}{
			{w.ctx("a", time.Minute), "m1 a"},
			{w.ctx("b\x00\x01", time.Minute), "m2 b\x00\x01"},
			{metadata.AppendToOutgoingContext(context.Background(), "nokv-key", "a", "nokv-epoch", "9.9", "nokv-region", "77"), "m1 a"},
			{metadata.AppendToOutgoingContext(context.Background(), "nokv-key-bin", "b\x00\x01"), "m2 b\x00\x01"},
		} {
			if got, err := ask(row.ctx, c); err != nil || got != row.want {
				t.Errorf("%q answers (%v), want %q", got, err, row.want)
			}
		}
		by := w.dial(grpcroute.Config{Key: func(_ context.Context, method string, m any) ([]byte, error) {
			switch m := m.(type) {
			case *testgrpc.SimpleRequest:
				return m.GetPayload().GetBody(), nil
			case *testgrpc.StreamingOutputCallRequest:
				return m.GetPayload().GetBody(), nil
			}
			return nil, status.Error(codes.InvalidArgument, method)
		}})
		r, err := by.UnaryCall(context.Background(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte("a")}})
		if err != nil || r.GetHostname() != "m1 a" {
			t.Errorf("a key in the message: %v %v", r, err)
		}
		s, err := by.FullDuplexCall(w.ctx("unused", time.Minute))
		must(t, err)
		must(t, s.Send(body("b\x00\x01")))
		if got, err := s.Recv(); err != nil || string(got.GetPayload().GetBody()) != "m2 b\x00\x01" {
			t.Errorf("a key in the first message: %v %v", got, err)
		}
		must(t, s.CloseSend())
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the end is %v", err)
		}
		if _, err := by.EmptyCall(context.Background(), &testgrpc.Empty{}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a key function that fails: %v", err)
		}
	})
}

// What has no owner to go to has a code, a reason, and does not wait.
func TestP43P44CallsWithoutAnOwnerSayWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{Hold: time.Second})
		for _, row := range []struct {
			name string
			ctx  context.Context
			code codes.Code
			why  rootv1.Reason
		}{
			{"no region", w.ctx("none", time.Minute), codes.NotFound, rootv1.Reason_REASON_NOT_FOUND},
			{"no key", context.Background(), codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{"an empty key", w.ctx("", time.Minute), codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{"a key above the limit", w.ctx(strings.Repeat("k", rooted.MaxKeyBytes+1), time.Minute), codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{"two keys", metadata.AppendToOutgoingContext(context.Background(), "nokv-key", "a", "nokv-key", "b"), codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
		} {
			_, err := ask(row.ctx, c)
			if status.Code(err) != row.code || reason.Of(err) != row.why {
				t.Errorf("%s: %v, want %s %s", row.name, err, row.code, row.why)
			}
		}
		if got, err := ask(w.ctx("none", time.Minute), w.dial(grpcroute.Config{ClaimOnMiss: true})); err != nil || got != "m1 none" {
			t.Errorf("a key that is claimed: %q %v", got, err)
		}
		if got, err := ask(w.ctx(strings.Repeat("k", rooted.MaxKeyBytes), time.Minute), w.dial(grpcroute.Config{ClaimOnMiss: true})); err != nil || !strings.HasPrefix(got, "m1 kkk") {
			t.Errorf("the longest key: %.20q %v", got, err)
		}
		for _, target := range []string{"games", "nokv:///", "nokv:///none", "dns:///games"} {
			if _, err := grpcroute.NewClient(target, grpcroute.Config{Router: w.router}); err == nil {
				t.Errorf("target %q is taken", target)
			}
		}
	})
}

// The owner is killed under load: no call that may be repeated fails, and no one else waits.
func TestP37P85NoIdempotentCallFailsWhenAMemberIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		w.assign("b", "m1")
		config, err := grpcroute.ServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":2,"initialBackoff":"0.01s","maxBackoff":"0.1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)
		must(t, err)
		ends := []func() int64{
			w.load(w.dial(grpcroute.Config{Idempotent: func(string) bool { return true }}), 4, "a", "b"),
			w.load(w.dial(grpcroute.Config{}, grpc.WithDefaultServiceConfig(config)), 4, "a", "b"),
		}
		time.Sleep(100 * time.Millisecond)
		w.members["m1"].Kill(t)
		begun := time.Now()
		for _, key := range []string{"a", "b"} {
			w.c.AwaitOwner(t, "games", []byte(key), "m2")
		}
		for w.apps["m2"].calls.Load() < 50 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("50 calls were answered %v behind the death of their owner", took)
		}
		for _, end := range ends {
			if n := end(); n < 100 {
				t.Errorf("%d calls", n)
			}
		}
	})
}

// A call that may have been run, and may not again, is not repeated, and says that.
func TestP31ACallThatMayHaveBeenRunIsRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		w.apps["m1"].said = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		done := make(chan error, 1)
		c := w.dial(grpcroute.Config{})
		go func() { _, err := ask(w.ctx("a", time.Minute), c); done <- err }()
		synctest.Wait()
		w.members["m1"].Kill(t)
		if err := <-done; status.Code(err) != codes.Unavailable {
			t.Errorf("it ends with %v", err)
		}
		w.c.AwaitOwner(t, "games", []byte("a"), "m2")
		if n := w.apps["m1"].calls.Load() + w.apps["m2"].calls.Load(); n != 1 {
			t.Errorf("it was run %d times", n)
		}
	})
}

// Planned moves under load: nothing fails, idempotent or not.
func TestP84NoCallFailsInAPlannedMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		end := w.load(w.dial(grpcroute.Config{}), 8, "a")
		for _, to := range []rooted.MemberID{"m2", "m1", "m2"} {
			time.Sleep(50 * time.Millisecond)
			w.c.Assign(t, "games", []byte("a"), to)
		}
		time.Sleep(50 * time.Millisecond)
		if n := end(); n < 200 || w.apps["m1"].calls.Load() == 0 || w.apps["m2"].calls.Load() == 0 {
			t.Errorf("%d calls", n)
		}
	})
}

// What a handler says is its answer, also when it looks like a refusal of somebody else's.
func TestARefusalOfSomebodyElseIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{})
		for _, says := range []error{
			(&router.Refusal{Kind: router.Moved, Member: "m9", Address: "m9:1", Epoch: rooted.Epoch{Version: 9, ConfVersion: 9}}).GRPCStatus().Err(),
			(&router.Refusal{Kind: router.Busy}).GRPCStatus().Err(),
			&member.NotOwned{Region: 3}, member.ErrTooManyHeld, status.Error(codes.Unavailable, "a database is down"),
		} {
			w.apps["m1"].calls.Store(0)
			w.apps["m1"].said = func(context.Context) error { return says }
			begun := time.Now()
			_, err := ask(w.ctx("a", time.Minute), c)
			if n := w.apps["m1"].calls.Load(); err == nil || n != 1 || time.Since(begun) > time.Second || status.Code(err) != status.Code(says) {
				t.Errorf("%v: run %d times in %v: %v", says, n, time.Since(begun), err)
			}
		}
	})
}

// An address that is nobody's, does not resolve, is another process, or speaks no gRPC.
func TestP69AnOwnerThatIsNotAtItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		for i, address := range []string{"nobody.invalid:7000", "m1:7000"} {
			id := fmt.Sprint("x", i)
			w.apps[id] = &app{id: id}
			w.members[id] = w.c.MemberOf(t, member.Config{ID: id, Address: address, ProbeAddress: id + ":1"}, w.apps[id])
			key := "key of " + address
			w.assign(key, rooted.MemberID(id))
			begun := time.Now()
			_, err := ask(w.ctx(key, time.Minute), w.dial(grpcroute.Config{Hold: time.Second}))
			if took := time.Since(begun); err == nil || took > 6*time.Second || took < 500*time.Millisecond { // another member holds it as long as its keyspace says
				t.Errorf("%s: after %v: %v", address, took, err)
			}
			if code := status.Code(err); code != codes.Unavailable {
				t.Errorf("%s: %v", address, err)
			}
		}
		if w.apps["m1"].calls.Load() != 0 {
			t.Error("another process ran the call")
		}
		// Nothing else is disturbed.
		w.assign("a", "m2")
		if got, err := ask(w.ctx("a", time.Second), w.dial(grpcroute.Config{})); err != nil || got != "m2 a" {
			t.Errorf("%q %v", got, err)
		}
	})
}

// wait_for_ready, timeouts and deadlines mean what they mean without us.
func TestServiceConfigAndDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		config, err := grpcroute.ServiceConfig(`{"methodConfig":[{"name":[{}],"timeout":"3s"}]}`)
		must(t, err)
		w.servers["m1"].Stop()
		for _, row := range []struct {
			name   string
			cfg    grpcroute.Config
			dial   []grpc.DialOption
			call   []grpc.CallOption
			within time.Duration
			want   time.Duration
			code   codes.Code
		}{
			{name: "held", within: time.Minute, want: 5 * time.Second, code: codes.Unavailable},
			{name: "held shorter", cfg: grpcroute.Config{Hold: time.Second}, within: time.Minute, want: time.Second, code: codes.Unavailable},
			{name: "its deadline", within: 2 * time.Second, want: 2 * time.Second, code: codes.DeadlineExceeded},
			{name: "a timeout of the method", dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(config)}, within: time.Minute, want: 3 * time.Second, code: codes.DeadlineExceeded},
			{name: "it waits", call: []grpc.CallOption{grpc.WaitForReady(true)}, within: 20 * time.Second, want: 20 * time.Second, code: codes.DeadlineExceeded},
		} {
			begun := time.Now()
			_, err := ask(w.ctx("a", row.within), w.dial(row.cfg, row.dial...), row.call...)
			if took := time.Since(begun); took < row.want-200*time.Millisecond || took > row.want+10*time.Millisecond || status.Code(err) != row.code {
				t.Errorf("%s: after %v: %v, want %v %s", row.name, took, err, row.want, row.code)
			}
		}
		// It comes back: who waits is served, soon.
		done := make(chan error, 1)
		go func() {
			_, err := ask(w.ctx("a", time.Minute), w.dial(grpcroute.Config{}), grpc.WaitForReady(true))
			done <- err
		}()
		time.Sleep(30 * time.Second)
		w.serve("m1", "m1", "7000")
		begun := time.Now()
		if err := <-done; err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}
