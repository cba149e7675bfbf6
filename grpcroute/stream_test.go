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

// echo sends and receives one message.
func echo(s grpc.BidiStreamingClient[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse], text string) (string, error) {
	if err := s.Send(body(text)); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	got, err := s.Recv()
	return string(got.GetPayload().GetBody()), err
}

// A stream whose region moves ends with a clear code, and the move does not wait for it: also
// when the caller says nothing, or does not read. One that has begun to is begun anew elsewhere.
func TestP32P84AStreamWhoseRegionMovesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{})
		quiet, err := c.FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		if got, err := echo(quiet, "one"); err != nil || got != "m1 one" {
			t.Fatalf("%q %v", got, err)
		}
		deaf, err := c.FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		go func() { // until the flow control of its answers stops the handler
			for deaf.Send(body(fmt.Sprintf("%65536d", 1))) == nil {
			}
		}()
		synctest.Wait()
		begun := time.Now()
		w.c.Assign(t, "games", []byte("a"), "m2")
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("the move took %v", took)
		}
		for name, s := range map[string]grpc.BidiStreamingClient[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]{"quiet": quiet, "deaf": deaf} {
			var err error
			for err == nil {
				_, err = s.Recv()
			}
			if reason.Of(err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
				t.Errorf("%s: it ends with %v, want outcome_unknown", name, err)
			}
		}
		anew, err := c.FullDuplexCall(w.ctx("a", time.Minute))
		must(t, err)
		if got, err := echo(anew, "two"); err != nil || got != "m2 two" {
			t.Errorf("anew: %q %v", got, err)
		}
		must(t, anew.CloseSend())
		if _, err := anew.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
	})
}

// What is refused is tried again, streams with what was sent of them, and nobody sees that;
// but what is too long to keep, or has run, is not.
func TestP06P08RefusedCallsAndStreamsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{MaxReplay: 1000})
		epoch := rooted.Epoch{Version: 1, ConfVersion: 1}
		for _, row := range []struct {
			name   string
			says   []error
			code   codes.Code
			stream codes.Code
			text   int
		}{
			{name: "not owned", says: []error{&member.NotOwned{Region: 1}}},
			{name: "stale", says: []error{&member.EpochStale{Region: 1, Current: epoch}}},
			{name: "unconfirmed, twice", says: []error{&member.Unconfirmed{Region: 1}, &member.Unconfirmed{Region: 1}}},
			{name: "busy", says: []error{member.ErrTooManyHeld}},
			{name: "it ends", says: []error{member.ErrNotRunning}},
			{name: "moved to nobody", says: []error{&member.Moved{Region: 1, To: "m9", Address: "m9:7000", Epoch: rooted.Epoch{Version: 99, ConfVersion: 99}}}},
			{name: "it ran", says: []error{&member.NotOwned{Region: 1, Ran: true}}, code: status.Code((&router.Refusal{Ran: true}).GRPCStatus().Err()), stream: status.Code((&router.Refusal{Ran: true}).GRPCStatus().Err())},
			{name: "too long", says: []error{&member.NotOwned{Region: 1}}, stream: codes.Unavailable, text: 2000},
		} {
			w.gates["m1"].says.Store(&row.says)
			begun := time.Now()
			if _, err := ask(w.ctx("a", time.Minute), c); status.Code(err) != row.code || time.Since(begun) > time.Second {
				t.Errorf("%s: after %v: %v", row.name, time.Since(begun), err)
			}
			w.gates["m1"].says.Store(&row.says)
			s, err := c.FullDuplexCall(w.ctx("a", time.Minute))
			must(t, err)
			text := fmt.Sprintf("%*d", row.text, 1)
			got, err := echo(s, text)
			if status.Code(err) != row.stream || err == nil && got != "m1 "+text {
				t.Errorf("%s: a stream: %.20q %v", row.name, got, err)
			}
			if err != nil {
				continue
			}
			if got, err := echo(s, "more"); err != nil || got != "m1 more" {
				t.Errorf("%s: a stream goes on: %q %v", row.name, got, err)
			}
			must(t, s.CloseSend())
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: the end is %v", row.name, err)
			}
		}
	})
}

// What was sent of a stream is sent again while its answers are read: a member that answers before
// it has read all of it is not waited for in vain.
func TestP06AStreamIsSentAgainWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{MaxReplay: 64 << 20}, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
		for _, closed := range []bool{false, true} {
			w.gates["m1"].says.Store(&[]error{&member.NotOwned{Region: 1}})
			s, err := c.FullDuplexCall(w.ctx("a", time.Minute))
			must(t, err)
			const messages = 15
			long := strings.Repeat("x", 2<<20) // more than anybody takes who does not read
			for i := range messages {
				must(t, s.Send(body(fmt.Sprint(i, long))))
			}
			if closed {
				must(t, s.CloseSend())
			}
			for i := range messages {
				got, err := s.Recv()
				if want := fmt.Sprint("m1 ", i, long); err != nil || string(got.GetPayload().GetBody()) != want {
					t.Fatalf("answer %d, closed %t: %v", i, closed, err)
				}
				if i == 0 {
					must(t, s.CloseSend())
				}
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the end: %v", err)
			}
		}
	})
}

// A message is the handler's own when RecvMsg is back, also when its region leaves and the caller
// goes on sending.
func TestP84AMessageIsTheHandlersBehindRecvMsg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		w.assign("a", "m1")
		back, look := make(chan error), make(chan struct{})
		w.apps["m1"].stream = func(s grpc.ServerStream) error {
			m := &testgrpc.StreamingOutputCallRequest{}
			if err := s.RecvMsg(m); err != nil || string(m.GetPayload().GetBody()) != "one" {
				t.Errorf("the first message: %v %v", m, err)
			}
			m.Payload, m.ResponseStatus = nil, &testgrpc.EchoStatus{Message: "mine"}
			err := s.RecvMsg(m)
			back <- err
			<-look
			if m.GetPayload() != nil || m.GetResponseStatus().GetMessage() != "mine" {
				t.Errorf("the message became %.100v", m)
			}
			m.ResponseStatus = nil
			return err
		}
		s, err := w.dial(grpcroute.Config{}).FullDuplexCall(w.ctx("a", time.Hour))
		must(t, err)
		must(t, s.Send(body("one")))
		synctest.Wait()
		moved := make(chan struct{})
		go func() { w.c.Assign(t, "games", []byte("a"), "m2"); close(moved) }()
		if err := <-back; err == nil {
			t.Error("a message came that nobody sent")
		}
		must(t, s.Send(body("two")))
		synctest.Wait()
		close(look)
		<-moved
		for err == nil {
			_, err = s.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			t.Errorf("the stream ends with %v", err)
		}
	})
}

// A caller ends a stream, or a call: the handler hears of it, and nothing is left.
func TestP32CancelReachesTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		ctx, cancel := context.WithCancel(w.ctx("a", time.Hour))
		s, err := w.dial(grpcroute.Config{}).FullDuplexCall(ctx)
		must(t, err)
		if _, err := echo(s, "one"); err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if _, err := s.Recv(); status.Code(err) != codes.Canceled || w.apps["m1"].left.Load() != 1 {
			t.Errorf("it ends with %v, %d handlers heard of it", err, w.apps["m1"].left.Load())
		}
	})
}

// What comes without our client is let in by the same rules, and told what is missing.
func TestP12AServerLetsInWhatNamesKeyAndEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		route := w.c.AwaitOwner(t, "games", []byte("a"), "m1")
		// What names its region waits for it to arrive.
		first := member.Request{Region: route.Region.ID, Keyspace: "games", Key: []byte("a"), Epoch: route.Region.Epoch}
		must(t, w.members["m1"].Do(w.ctx("a", time.Minute), first, func(context.Context, member.Region) error { return nil }))
		conn, err := grpc.NewClient("passthrough:///m1:7000", grpc.WithContextDialer(w.c.Dial), plain)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		c := testgrpc.NewTestServiceClient(conn)
		epoch, region := route.Region.Epoch.String(), fmt.Sprint(route.Region.ID)
		stale := rooted.Epoch{Version: 1, ConfVersion: 0}.String()
		for _, row := range []struct {
			md   []string
			code codes.Code
			why  rootv1.Reason
		}{
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", epoch}, codes.OK, 0},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", epoch, "nokv-region", region}, codes.OK, 0},
			{nil, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games"}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", "0.0"}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", "garbage"}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", epoch, "nokv-epoch", epoch}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-epoch", epoch}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", epoch, "nokv-region", "x"}, codes.InvalidArgument, rootv1.Reason_REASON_INVALID_REQUEST},
			{[]string{"nokv-key", "b", "nokv-keyspace", "games", "nokv-epoch", epoch}, codes.Unavailable, rootv1.Reason_REASON_EPOCH_STALE},
			{[]string{"nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", stale}, codes.Unavailable, rootv1.Reason_REASON_EPOCH_STALE},
			{[]string{"nokv-key", "a", "nokv-keyspace", "other", "nokv-epoch", epoch}, codes.Unavailable, rootv1.Reason_REASON_EPOCH_STALE},
		} {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), row.md...), time.Minute)
			var trailer metadata.MD
			_, err := ask(ctx, c, grpc.Trailer(&trailer))
			cancel()
			refused := row.why == rootv1.Reason_REASON_EPOCH_STALE
			if status.Code(err) != row.code || reason.Of(err) != row.why || refused != (len(trailer["nokv-refused"]) == 1) {
				t.Errorf("%v: %v, trailers %v, want %s %s", row.md, err, trailer, row.code, row.why)
			}
		}
	})
}

// Who asks for the header of a stream first loses nothing by it: what is refused is tried
// again, and what failed says so.
func TestP08AHeaderThatIsAskedForDoesNotEndTheTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{})
		for _, row := range []struct {
			name string
			says []error
			code codes.Code
		}{
			{"refused", []error{&member.NotOwned{Region: 1}, &member.Unconfirmed{Region: 1}}, codes.OK},
			{"it ran", []error{&member.NotOwned{Region: 1, Ran: true}}, status.Code((&router.Refusal{Ran: true}).GRPCStatus().Err())},
		} {
			w.gates["m1"].says.Store(&row.says)
			s, err := c.FullDuplexCall(w.ctx("a", time.Minute))
			must(t, err)
			if row.code == codes.OK {
				must(t, s.Send(body("one")))
			}
			md, err := s.Header()
			if err != nil && status.Code(err) != row.code || (md != nil) != (row.code == codes.OK) {
				t.Errorf("%s: header %v, %v", row.name, md, err)
			}
			if got, err := s.Recv(); status.Code(err) != row.code || err == nil && string(got.GetPayload().GetBody()) != "m1 one" {
				t.Errorf("%s: %v %v", row.name, got, err)
			}
			must(t, s.CloseSend())
		}
		// A stream that ends well without a header has none.
		s, err := c.FullDuplexCall(w.ctx("a", time.Minute))
		must(t, err)
		must(t, s.CloseSend())
		if _, err := s.Header(); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("an empty stream: header %v", err)
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("an empty stream: %v", err)
		}
	})
}

// A stream of no message has no key in one: it is that of the context, or there is none, and
// whoever waits for the answer is told.
func TestP06AStreamOfNoMessageBeginsWhenItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{Key: func(_ context.Context, _ string, m any) ([]byte, error) {
			return m.(*testgrpc.StreamingOutputCallRequest).GetPayload().GetBody(), nil
		}})
		none, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for name, ctx := range map[string]context.Context{"": w.ctx("a", time.Minute), "no key": none} {
			begun := time.Now()
			s, err := c.FullDuplexCall(ctx)
			must(t, err)
			must(t, s.CloseSend())
			_, err = s.Recv()
			if want := map[bool]codes.Code{true: codes.InvalidArgument, false: codes.OK}[name != ""]; time.Since(begun) > time.Second || want != codes.OK && status.Code(err) != want || want == codes.OK && !errors.Is(err, io.EOF) {
				t.Errorf("%q: after %v: %v", name, time.Since(begun), err)
			}
		}
	})
}

// lets is a member that lets everything in, to a region that stays.
type lets struct{}

func (lets) Do(ctx context.Context, _ member.Request, fn func(context.Context, member.Region) error) error {
	return fn(ctx, member.Region{})
}

// bare is a stream that has nothing but its context.
type bare struct {
	grpc.ServerStream
	ctx context.Context
}

func (b bare) Context() context.Context { return b.ctx }

// A handler that panics below an interceptor that recovers leaves nothing behind, though its
// region stays.
func TestP32AHandlerThatPanicsLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if broke := recover(); broke != "broken" {
				t.Errorf("the panic is %v", broke)
			}
			// A goroutine that is left fails the bubble.
		}()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("nokv-key", "a", "nokv-keyspace", "games", "nokv-epoch", "1.1"))
		s := grpcroute.Server{Member: lets{}}
		_ = s.Stream(nil, bare{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/a/b"}, func(any, grpc.ServerStream) error { panic("broken") })
		t.Error("the panic is gone")
	})
}
