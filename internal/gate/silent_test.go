package gate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/gate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A call of one request that never sends it ends, however far its deadline is; one that
// sent it, and a stream of requests, are let be.
func TestSilentCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(gate.Config{MaxStreams: 100, Changes: func(string) bool { return false }, Logger: hclog.NewNullLogger()})
		server := grpc.NewServer(grpc.Creds(g.Credentials(nil)), grpc.InTapHandle(g.Tap), grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
		hang := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		method := grpc.MethodDesc{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			req := new(wrapperspb.BytesValue)
			if err := dec(req); err != nil {
				return nil, err
			}
			return intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/t.S/Unary"}, func(ctx context.Context, _ any) (any, error) { return nil, hang(ctx) })
		}}
		stream := func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
				return err
			}
			return hang(s.Context())
		}
		server.RegisterService(&grpc.ServiceDesc{ServiceName: "t.S", HandlerType: (*service)(nil), Methods: []grpc.MethodDesc{method}, Streams: []grpc.StreamDesc{
			{StreamName: "Watch", ServerStreams: true, Handler: stream}, {StreamName: "Chat", ServerStreams: true, ClientStreams: true, Handler: stream},
		}}, nil)
		g.Serves(server)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.Run(ctx)
		lis := bufconn.Listen(64 << 10)
		go func() { _ = server.Serve(lis) }()
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()

		far, cancelFar := context.WithTimeout(ctx, 1000*time.Hour)
		defer cancelFar()
		for _, c := range []struct {
			what, method string
			ctx          context.Context
			says, ends   bool
		}{
			{"silent", "Unary", ctx, false, true},
			{"silent, with a far deadline", "Unary", far, false, true},
			{"a silent watch", "Watch", ctx, false, true},
			{"a call", "Unary", far, true, false},
			{"a watch", "Watch", ctx, true, false},
			{"a silent stream of requests", "Chat", ctx, false, false},
		} {
			before := g.Vars(nil).SilentStreams
			callCtx, end := context.WithCancel(c.ctx)
			s, err := conn.NewStream(callCtx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/t.S/"+c.method)
			if err != nil {
				t.Fatal(err)
			}
			if c.says {
				if err := errors.Join(s.SendMsg(wrapperspb.Bytes(nil)), s.CloseSend()); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- s.RecvMsg(new(wrapperspb.BytesValue)) }()
			time.Sleep(gate.RequestTimeout - time.Second)
			synctest.Wait()
			if len(ended) != 0 {
				t.Errorf("%s ended before its time: %v", c.what, <-ended)
			}
			time.Sleep(2 * gate.RequestTimeout)
			synctest.Wait()
			over := len(ended) == 1
			if over != c.ends || (g.Vars(nil).SilentStreams > before) != c.ends {
				t.Errorf("%s: ended %t, %+v", c.what, over, g.Vars(nil))
			}
			if c.ends && over {
				if err := <-ended; err == nil || errors.Is(err, io.EOF) {
					t.Errorf("%s ended with %v", c.what, err)
				}
			}
			end()
			synctest.Wait()
			if n := g.Vars(nil).Streams; n != 0 {
				t.Errorf("%s: %d calls are open behind it", c.what, n)
			}
		}
	})
}
