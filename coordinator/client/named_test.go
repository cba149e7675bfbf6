package client_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// speaks is a coordinator that takes members' streams.
type speaks struct {
	coordinatorv1.UnimplementedCoordinatorServer
}

// Status implements coordinatorv1.CoordinatorServer.
func (speaks) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	return &coordinatorv1.StatusResponse{Disclosure: &coordinatorv1.Disclosure{ClusterId: 7}}, nil
}

// MemberStream implements coordinatorv1.CoordinatorServer.
func (speaks) MemberStream(s grpc.BidiStreamingServer[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]) error {
	return s.Send(&coordinatorv1.MemberAnswer{})
}

// An address that an answer names is one coordinator's: where another one is by now nobody is asked, and when
// an answer names that one, it is.
func TestALearnedCoordinatorIsTheOneThatIsMeant(t *testing.T) {
	certs := proctest.NewCertificates(t, "prod")
	var addresses []string
	for _, id := range []string{"c1", "c2"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(grpc.Creds(certs.Open(principal.Coordinator, id).Server()))
		coordinatorv1.RegisterCoordinatorServer(s, speaks{})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		addresses = append(addresses, l.Addr().String())
	}
	c, err := client.New(client.Config{Endpoints: addresses[:1], TLS: certs.Open(principal.Member, "m1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for _, id := range []rooted.CoordinatorID{"c3", "c2", "c3"} {
		ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
		stream, err := c.MemberStream(ctx, id, addresses[1])
		if err == nil {
			_, err = stream.Recv()
		}
		cancel()
		if (err == nil) != (id == "c2") || err != nil && !strings.Contains(err.Error(), "has a certificate of coordinator/c2, want coordinator/c3") {
			t.Errorf("c2, where %s is meant: %v", id, err)
		}
	}
}
