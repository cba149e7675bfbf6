package grpcroute_test

import (
	"context"
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

// A member that is stopped keeps its connection, and never answers. Calls and streams there end when it was said to have
// failed and another one has their key: what may be run twice is answered there, streams that had begun and the rest end with
// UNAVAILABLE.
func TestCallsAndStreamsDoNotWaitForAStoppedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		safe := w.dial(grpcroute.Config{Idempotent: func(string) bool { return true }})
		once := w.dial(grpcroute.Config{})
		begun, err := safe.FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		if got, err := echo(begun, "one"); err != nil || got != "m1 one" {
			t.Fatalf("%q %v", got, err)
		}
		_, err = ask(w.ctx("a", time.Minute), once) // so that there is a connection
		must(t, err)
		resume := w.c.Pause("m1")
		type end struct {
			what, said string
			err        error
		}
		ends := make(chan end, 5)
		for what, c := range map[string]testgrpc.TestServiceClient{"call, may be repeated": safe, "call, may have been run": once} {
			go func() {
				said, err := ask(w.ctx("a", time.Hour), c)
				ends <- end{what, said, err}
			}()
		}
		for what, c := range map[string]testgrpc.TestServiceClient{"stream, may be repeated": safe, "stream, may have been run": once} {
			go func() {
				s, err := c.FullDuplexCall(w.ctx("a", time.Hour))
				if err != nil {
					ends <- end{what, "", err}
					return
				}
				said, err := echo(s, "two")
				ends <- end{what, said, err}
			}()
		}
		go func() {
			_, err := begun.Recv()
			ends <- end{"stream that had begun", "", err}
		}()
		w.c.AwaitOwner(t, "games", []byte("a"), "m2")
		since := time.Now()
		want := map[string]string{"call, may be repeated": "m2 a", "stream, may be repeated": "m2 two"}
		for range cap(ends) {
			e := <-ends
			if took := time.Since(since); took > 5*time.Second || e.said != want[e.what] || (e.err == nil) != (e.said != "") || e.err != nil && status.Code(e.err) != codes.Unavailable {
				t.Errorf("%s: %q %v, %v behind the next owner; want %q", e.what, e.said, e.err, took, want[e.what])
			}
		}
		resume()
	})
}

// What a stopped member has said is there for a caller that reads slowly. Behind that it is not waited for, by who reads or by who
// sends.
func TestWhatAStoppedMemberHasSaidIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{})
		reads, err := c.FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		sends, err := c.FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		for _, s := range []grpc.BidiStreamingClient[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]{reads, sends} {
			if got, err := echo(s, "one"); err != nil || got != "m1 one" {
				t.Fatalf("%q %v", got, err)
			}
		}
		must(t, reads.Send(body("two")))
		time.Sleep(time.Second) // until its answer is here
		resume := w.c.Pause("m1")
		w.c.AwaitOwner(t, "games", []byte("a"), "m2")
		time.Sleep(20 * time.Second)
		if got, err := reads.Recv(); err != nil || string(got.GetPayload().GetBody()) != "m1 two" {
			t.Errorf("what had come is lost: %q %v", got.GetPayload().GetBody(), err)
		}
		begun := time.Now()
		if _, err := reads.Recv(); status.Code(err) != codes.Unavailable || time.Since(begun) > 3*time.Second {
			t.Errorf("who reads waits %v: %v", time.Since(begun), err)
		}
		begun = time.Now()
		for err = nil; err == nil; {
			err = sends.Send(body(strings.Repeat("x", 64<<10)))
		}
		if time.Since(begun) > 3*time.Second {
			t.Errorf("who sends waits %v: %v", time.Since(begun), err)
		}
		resume()
	})
}

// What will pass by itself is UNAVAILABLE, the code with which clients of gRPC try again: refusals of members, and keys that have no
// owner to go to yet. What will not has another one.
func TestWhatPassesByItselfIsUnavailable(t *testing.T) {
	for _, kind := range []router.Kind{router.Moved, router.EpochStale, router.NotOwned, router.Unconfirmed, router.Busy, router.PinLost} {
		for _, ran := range []bool{false, true} {
			want := codes.Unavailable
			if kind == router.PinLost && !ran {
				want = codes.FailedPrecondition
			}
			no := &router.Refusal{Kind: kind, Ran: ran, Epoch: rooted.Epoch{Version: 1, ConfVersion: 2}}
			if err := no.GRPCStatus().Err(); status.Code(err) != want || router.RefusalOf(err).Ran != ran {
				t.Errorf("%s, ran %t: %v, want %s", kind, ran, err, want)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{Hold: 50 * time.Millisecond})
		w.members["m1"].Kill(t)
		w.c.Await(t, "the router knows that nobody owns the key", func() bool {
			_, err := w.router.Resolve(t.Context(), []byte("a"), router.Options{Keyspace: "games"})
			return err != nil
		})
		_, err := ask(w.ctx("a", time.Minute), c)
		if why := reason.Of(err); status.Code(err) != codes.Unavailable || why != rootv1.Reason_REASON_NO_ACTIVE_MEMBERS && why != rootv1.Reason_REASON_UNHEALTHY_MEMBER {
			t.Errorf("nobody owns the key: %v", err)
		}
		if _, err := ask(w.ctx("none", time.Minute), c); status.Code(err) != codes.NotFound {
			t.Errorf("a key without a region: %v", err)
		}
	})
}

// A refusal is repaired by the router, at once. gRPC, whose retryPolicy lists the code of refusals, would ask the same
// member again first, and wait before it does; and the router would not know what was run.
func TestARefusalIsNotRepeatedBelowTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		config, err := grpcroute.ServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"5s","maxBackoff":"5s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)
		must(t, err)
		c := w.dial(grpcroute.Config{}, grpc.WithDefaultServiceConfig(config))
		_, err = ask(w.ctx("a", time.Minute), c)
		must(t, err)
		w.gates["m1"].says.Store(&[]error{&member.NotOwned{Region: 1}})
		begun := time.Now()
		if got, err := ask(w.ctx("a", time.Minute), c); err != nil || got != "m1 a" || time.Since(begun) > time.Second {
			t.Errorf("after %v: %q %v", time.Since(begun), got, err)
		}
		// What the method may be run twice for is, and not by gRPC.
		w.apps["m1"].calls.Store(0)
		w.apps["m1"].said = func(context.Context) error {
			if w.apps["m1"].calls.Load() == 1 {
				return status.Error(codes.Unavailable, "it passes")
			}
			return nil
		}
		begun = time.Now()
		if got, err := ask(w.ctx("a", time.Minute), c); err != nil || got != "m1 a" || w.apps["m1"].calls.Load() != 2 || time.Since(begun) > time.Second {
			t.Errorf("after %v and %d runs: %q %v", time.Since(begun), w.apps["m1"].calls.Load(), got, err)
		}
	})
}

// A client of gRPC without this package, that goes to one member and tries again what is UNAVAILABLE, rides out the
// moment in which that one refuses.
func TestAPlainClientWithARetryPolicyRidesOutARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		route := w.c.AwaitOwner(t, "games", []byte("a"), "m1")
		conn, err := grpc.NewClient("passthrough:///m1:7000", grpc.WithContextDialer(w.c.Dial), plain,
			grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`))
		must(t, err)
		defer conn.Close()
		c := testgrpc.NewTestServiceClient(conn)
		w.gates["m1"].says.Store(&[]error{&member.NotOwned{Region: 1}, &member.Unconfirmed{Region: 1}, member.ErrTooManyHeld})
		ctx := metadata.AppendToOutgoingContext(w.ctx("a", time.Minute), "nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", route.Region.Epoch.String())
		if got, err := ask(ctx, c); err != nil || got != "m1 a" {
			t.Errorf("%q %v", got, err)
		}
	})
}
