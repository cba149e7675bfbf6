package server_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// reads are the methods that change nothing; every other one does.
var reads = []string{"ReadIndex", "ConfirmTenure", "ConfirmStream", "Tail", "Snapshot", "Status"}

// A request that changes something says which cluster it is for, or nothing is
// begun: whoever still has the address of another cluster is told so.
func TestChangesNameTheirCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		conn := serve(t, r, nil).conn()
		ctx, cancel := within(time.Second)
		defer cancel()
		judge := func(name string, err error) {
			t.Helper()
			d := reason.From(err)
			required := d.GetReason() == rootv1.Reason_REASON_CLUSTER_REQUIRED
			if required == slices.Contains(reads, name) || required && d.GetClusterId() != cluster {
				t.Errorf("%s without a cluster: %v", name, err)
			}
		}
		desc := rootv1.Root_ServiceDesc
		for _, m := range desc.Methods {
			judge(m.MethodName, conn.Invoke(ctx, "/"+desc.ServiceName+"/"+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{}))
		}
		for _, d := range desc.Streams {
			judge(d.StreamName, firstAnswer(ctx, conn, "/"+desc.ServiceName+"/"+d.StreamName))
		}
		r.with(func() {
			if r.held+r.reshaped+len(r.claims) > 0 || len(r.log) != 1 {
				t.Errorf("begun: %d proposals, %d steps, %d claims", r.held, r.reshaped, len(r.claims))
			}
		})
	})
}

// firstAnswer is how a stream answers an empty request.
func firstAnswer(ctx context.Context, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	var resp rootv1.ProposeResponse // of the one stream that answers refusals without ending
	if err := stream.RecvMsg(&resp); err != nil {
		return err
	}
	if resp.GetError() != nil {
		return &reason.Error{Detail: resp.GetError()}
	}
	return nil
}
