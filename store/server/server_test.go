package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
	"github.com/nokv/nokv/store/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func one() uint64 { return 1 }

// serve serves store-1, which follows region 1, and returns a client of it.
func serve(t *testing.T) (storev1.StoreClient, *rootv1.Region) {
	t.Helper()
	disk, err := local.Open(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.Open(host.Config{Self: "store-1", Disk: disk, Peers: server.NewPeers(one, nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	h.Serve()
	region := &rootv1.Region{
		Id: 1, KeyspaceId: 1, Revision: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
		Owners: []*rootv1.Owner{{MemberId: "store-2"}, {MemberId: "store-1"}},
	}
	if err := h.Follow([]host.Change{{Region: rooted.RegionFromProto(region)}}, true, 1); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Config{
		Host: h, ClusterID: one, Budget: budget.New(budget.Minimum), Status: func() *storev1.StatusResponse { return &storev1.StatusResponse{} },
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), append(clusterid.Caller(one).Options(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial.TCP))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = disk.Close()
	})
	return storev1.NewStoreClient(conn), region
}

// One copy is taken at a time: who sends one, and stops, keeps others waiting only for as
// long as a copy may take.
func TestCopiesHaveAnEnd(t *testing.T) {
	c, region := serve(t)
	try := func(ctx context.Context) error {
		t.Helper()
		stream, err := c.Import(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&storev1.ImportRequest{Header: &storev1.ImportHeader{Region: region}}); err != nil && !errors.Is(err, io.EOF) { // EOF: it was refused, RecvMsg says why
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- stream.RecvMsg(new(storev1.ImportResponse)) }()
		select {
		case err := <-ended:
			return reason.FromGRPC(err)
		case <-time.After(proctest.Patience):
			t.Error("it waits for the rest of the copy")
			return nil
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := try(ctx); reason.Of(err) != rootv1.Reason_REASON_DEADLINE_REQUIRED {
		t.Errorf("without a deadline: %v", err)
	}
	long, cancel := context.WithTimeout(ctx, 24*time.Hour)
	defer cancel()
	if err := try(long); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("for a day: %v", err)
	}
}
