package grpcroute_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/router"
)

// A handler that passes on everything that another member said, as proxies do, has run: its
// error is an answer, also when the trailers of somebody else's refusal come with it.
func TestP06ARefusalThatAHandlerPassesOnIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		c := w.dial(grpcroute.Config{})
		no := (&router.Refusal{Kind: router.NotOwned, Said: "not here"}).GRPCStatus().Err()
		pass := func(ctx context.Context) error {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(grpcroute.MetadataRefused, string(router.NotOwned), "of-the-handler", "yes"))
			return no
		}
		w.apps["m1"].said = pass
		var trailer metadata.MD
		_, err := ask(w.ctx("a", time.Minute), c, grpc.Trailer(&trailer))
		if n := w.apps["m1"].calls.Load(); n != 1 || status.Code(err) != codes.Unavailable || len(trailer["of-the-handler"]) != 1 {
			t.Errorf("the handler ran %d times, want once: %v, trailers %v", n, err, trailer)
		}
		w.apps["m1"].calls.Store(0)
		s, err := c.FullDuplexCall(w.ctx("a", time.Minute))
		must(t, err)
		_, err = echo(s, "one")
		if n := w.apps["m1"].calls.Load(); n != 1 || status.Code(err) != codes.Unavailable || len(s.Trailer()["of-the-handler"]) != 1 {
			t.Errorf("the handler of a stream ran %d times, want once: %v, trailers %v", n, err, s.Trailer())
		}
	})
}

// A member that is not made with this package, or whose details got lost on the way, says in
// one word of the trailers what it did: what it may have run is not run again.
func TestP08TheWordOfARefusalCountsWithoutItsDetails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1")
		w.assign("a", "m1")
		lis, err := w.members["m1"].Listen(context.Background(), "7002")
		must(t, err)
		var word string
		var ran int
		s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			if ran++; ran > 1 {
				return w.apps["m1"].reply("again"), nil
			}
			_ = grpc.SetTrailer(ctx, metadata.Pairs(grpcroute.MetadataRefused, word))
			return nil, status.Error(codes.Unavailable, "without details")
		}))
		testgrpc.RegisterTestServiceServer(s, w.apps["m1"])
		go func() { _ = s.Serve(lis) }()
		t.Cleanup(s.Stop)
		c := w.dial(grpcroute.Config{}, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.c.Dial(ctx, "m1:7002") }))
		for _, row := range []struct {
			word string
			ran  int
		}{{"not_owned", 2}, {"busy", 2}, {"outcome_unknown", 1}, {"pin_lost", 1}} {
			word, ran = row.word, 0
			if _, err := ask(w.ctx("a", time.Minute), c); ran != row.ran || (err == nil) != (ran == 2) {
				t.Errorf("%s: it was called %d times, want %d: %v", row.word, ran, row.ran, err)
			}
		}
		// The words of our own members say it too.
		w.gates["m1"].says.Store(&[]error{&member.NotOwned{Region: 1, Ran: true}})
		var trailer metadata.MD
		_, err = ask(w.ctx("a", time.Minute), w.dial(grpcroute.Config{}), grpc.Trailer(&trailer))
		if got := trailer[grpcroute.MetadataRefused]; len(got) != 1 || got[0] != "outcome_unknown" {
			t.Errorf("%v, trailers %v, want outcome_unknown", err, got)
		}
	})
}
