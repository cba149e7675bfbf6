package grpcroute_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// A call goes to the member that it means: where another one registers at the address of the first, which is still
// there, no call for it goes over the first one's connection.
func TestACallGoesToTheMemberThatItMeans(t *testing.T) {
	certs := proctest.NewCertificates(t, "prod")
	w := start(t, router.Config{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	a := &app{id: "m1"}
	m := w.c.MemberOf(t, member.Config{ID: "m1", Address: lis.Addr().String()}, a)
	w.c.MemberOf(t, member.Config{ID: "m2", Address: lis.Addr().String()}, &app{id: "m2"})
	s := grpc.NewServer(append(grpcroute.Server{Member: m}.Options(), grpc.Creds(certs.Open(principal.Member, "m1").Server()))...)
	testgrpc.RegisterTestServiceServer(s, a)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	for key, to := range map[string]rooted.MemberID{"a": "m1", "b": "m2"} {
		w.assign(key, to)
	}
	conn, err := grpcroute.NewClient("nokv:///games", grpcroute.Config{Router: w.router, TLS: certs.Open(principal.Client, "web"), Hold: time.Second})
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	c := testgrpc.NewTestServiceClient(conn)
	if got, err := ask(w.ctx("a", proctest.Patience), c); err != nil || got != "m1 a" {
		t.Fatalf("%q, %v", got, err)
	}
	_, err = ask(w.ctx("b", proctest.Patience), c)
	if err == nil || !strings.Contains(err.Error(), "has a certificate of member/m1, want member/m2") || a.calls.Load() != 1 {
		t.Errorf("m1 was called %d times: %v", a.calls.Load(), err)
	}
}
