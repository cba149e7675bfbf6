package coordinator

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Rule 6: whose word counts at a member's address is said by its certificate. Another member's says nothing for it,
// whatever line it speaks; what no CA of the cluster has signed proves nothing.
func TestRule6AProbeIsAnsweredByTheMemberItself(t *testing.T) {
	certs, foreign := proctest.NewCertificates(t, "prod"), proctest.NewCertificates(t, "prod")
	own := certs.Open(principal.Coordinator, "c1")
	for name, c := range map[string]struct {
		shows *mtls.Source
		want  liveness.ProbeResult
	}{
		"itself":         {certs.Open(principal.Member, "m1"), liveness.AnsweredSame},
		"another member": {certs.Open(principal.Member, "m2"), liveness.NoAnswer},
		"a coordinator":  {certs.Open(principal.Coordinator, "m1"), liveness.AnsweredOther},
		"of another CA":  {foreign.Open(principal.Member, "m1"), liveness.NoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			defer func() { <-done }()
			defer lis.Close()
			go func() {
				defer close(done)
				for {
					raw, err := lis.Accept()
					if err != nil {
						return
					}
					if conn, _, err := c.shows.ServerConn(t.Context(), raw); err == nil {
						_, _ = io.WriteString(conn, "nokv-member m1 7\n")
						_ = conn.Close()
					}
				}
			}()
			k := memberProber{certs: own, dial: dialTCP}
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			if got, _ := k.once(ctx, liveness.Probe{Member: "m1", Incarnation: 7, Address: lis.Addr().String()}); got != c.want {
				t.Errorf("the probe says %d, want %d", got, c.want)
			}
		})
	}
}

// A coordinator asks another one by its name: at an address where a third one is by now nobody is asked whom it hears,
// no stream is passed on, and the health of that one says nothing of the holder's.
func TestAnotherCoordinatorIsTheOneThatIsMeant(t *testing.T) {
	certs := proctest.NewCertificates(t, "prod")
	own := certs.Open(principal.Coordinator, "c1")
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, well := grpc.NewServer(grpc.Creds(certs.Open(principal.Coordinator, "c2").Server())), health.NewServer()
	well.SetServingStatus(coordinatorv1.Coordinator_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, well)
	coordinatorv1.RegisterCoordinatorServer(server, hears{})
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	o := newOthers(own, func() uint64 { return 1 })
	defer o.close()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	for id, meant := range map[string]bool{"c2": true, "c3": false} { // in any order: connections are not shared
		to := &rootv1.Coordinator{Id: id, Address: lis.Addr().String()}
		words, err := o.heard(ctx, to, []state.MemberID{"m1"})
		if (err == nil && len(words) == 1) != meant {
			t.Errorf("%s: it hears %v, %v", id, words, err)
		}
		stream, err := o.relay(ctx, to)
		if err == nil {
			_, err = stream.Recv()
		}
		if _, refused := mtls.RefusalOf(err); refused == meant {
			t.Errorf("%s: a stream that is passed on: %v", id, err)
		}
		p, want := newProber(own, nil), tenure.HealthUnknown
		if meant {
			p.knockFor, want = 2*proctest.Patience, tenure.HealthServing // half of it for a connection
		}
		if got := p.probe(ctx, &rootv1.Tenure{HolderId: id, HolderAddress: to.GetAddress()}); got != want {
			t.Errorf("%s: its health is %v, want %v", id, got, want)
		}
		p.close()
	}
}

// hears is a coordinator that hears m1.
type hears struct {
	coordinatorv1.UnimplementedCoordinatorServer
}

// HeardMembers implements coordinatorv1.CoordinatorServer.
func (hears) HeardMembers(context.Context, *coordinatorv1.HeardMembersRequest) (*coordinatorv1.HeardMembersResponse, error) {
	return &coordinatorv1.HeardMembersResponse{Members: []*coordinatorv1.HeardMember{{MemberId: "m1"}}}, nil
}

// MemberStream implements coordinatorv1.CoordinatorServer.
func (hears) MemberStream(s grpc.BidiStreamingServer[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]) error {
	return s.Send(&coordinatorv1.MemberAnswer{})
}
