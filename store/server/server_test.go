package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/strangers"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
	"github.com/nokv/nokv/store/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func one() uint64 { return 1 }

// serve serves store-1, which follows region 1 of store-2, with certificates if there are any; as dials it.
func serve(t *testing.T, certs *mtls.Source) (as func(credentials.TransportCredentials) storev1.StoreClient, _ *rootv1.Region) {
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
		Host: h, ClusterID: one, Budget: budget.New(budget.Minimum), Status: func() *storev1.StatusResponse { return &storev1.StatusResponse{} }, TLS: certs,
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = disk.Close()
	})
	return func(shows credentials.TransportCredentials) storev1.StoreClient {
		conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), append(clusterid.Caller(one).Options(),
			grpc.WithTransportCredentials(shows), grpc.WithContextDialer(dial.TCP))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return storev1.NewStoreClient(conn)
	}, region
}

// One copy is taken at a time: who sends one, and stops, keeps others waiting only for as
// long as a copy may take.
func TestCopiesHaveAnEnd(t *testing.T) {
	as, region := serve(t, nil)
	c := as(insecure.NewCredentials())
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

// A store asks no grants: whose certificate is of the cluster gets by each call what the table of strangers says, and nothing more.
func TestAStrangerHasOfAStoreWhatItsRowSays(t *testing.T) {
	authority, err := ca.New("test", time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	certs := func(role principal.Role, name string) *mtls.Source {
		dir := filepath.Join(t.TempDir(), name)
		pair, err := authority.Issue(ca.Request{Role: role, Name: name, Life: 24 * time.Hour}, time.Now())
		if err == nil {
			err = pair.Save(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := mtls.Open(dir, mtls.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	as, region := serve(t, certs(principal.Member, "store-1"))
	at := &storev1.RegionAt{RegionId: region.GetId(), Epoch: region.GetEpoch()}
	calls := map[protoreflect.Name]func(context.Context, storev1.StoreClient) error{
		"Get": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Get(ctx, &storev1.GetRequest{Region: at, Key: []byte("k")})
			return err
		},
		"Put": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Put(ctx, &storev1.PutRequest{Region: at, Key: []byte("k")})
			return err
		},
		"Delete": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Delete(ctx, &storev1.DeleteRequest{Region: at, Key: []byte("k")})
			return err
		},
		"Scan": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Scan(ctx, &storev1.ScanRequest{Region: at})
			return err
		},
		"Split": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Split(ctx, &storev1.SplitRequest{Region: at, Key: []byte("k")})
			return err
		},
		"Merge": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.Merge(ctx, &storev1.MergeRequest{Left: at, Right: at})
			return err
		},
		"TransferLeader": func(ctx context.Context, c storev1.StoreClient) error {
			_, err := c.TransferLeader(ctx, &storev1.TransferLeaderRequest{Region: at, ToMemberId: "store-2"})
			return err
		},
		"Import": func(ctx context.Context, c storev1.StoreClient) error {
			stream, err := c.Import(ctx)
			if err != nil {
				return err
			}
			for _, part := range []*storev1.ImportRequest{{Header: &storev1.ImportHeader{Region: region}}, {Last: true}} {
				if err := stream.Send(part); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
			}
			_, err = stream.CloseAndRecv()
			return err
		},
		"Status": func(ctx context.Context, c storev1.StoreClient) error {
			got, err := c.Status(ctx, &storev1.StatusRequest{})
			if err == nil && len(got.GetRegions()) != 1 {
				t.Errorf("Status shows %v", got)
			}
			return err
		},
	}
	type caller struct {
		storev1.StoreClient
		who principal.Principal
		may func(protoreflect.Name) bool
	}
	stranger := func(name protoreflect.Name) bool { return strangers.Store[name] != strangers.Row{} }
	var callers []caller
	for _, c := range []caller{
		{who: principal.Principal{Role: principal.Client, Name: "x"}, may: stranger},
		{who: principal.Principal{Role: principal.Member, Name: "m9"}, may: stranger},
		{who: principal.Principal{Role: principal.Member, Name: "store-2"}, may: func(name protoreflect.Name) bool { return stranger(name) || name == "Import" }}, // it leads the region
		{who: principal.Principal{Role: principal.Operator, Name: "o"}, may: func(name protoreflect.Name) bool { return name != "Import" }},
	} {
		c.StoreClient = as(certs(c.who.Role, c.who.Name).Client(mtls.Peer{Role: principal.Member, Name: "store-1"}))
		callers = append(callers, c)
	}
	for name := range strangers.Store {
		call := calls[name]
		if call == nil {
			t.Errorf("%s has a row and is not tried", name)
			continue
		}
		for _, c := range callers {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := reason.FromGRPC(call(ctx, c))
			cancel()
			// What is answered otherwise was judged by what is asked for, and not by who asks.
			if why := reason.Of(err); err != nil && why == rootv1.Reason_REASON_UNSPECIFIED || (why == rootv1.Reason_REASON_PERMISSION_DENIED) == c.may(name) {
				t.Errorf("%s by %v: %v, want it refused to who asks: %t", name, c.who, err, !c.may(name))
			}
		}
	}
}
