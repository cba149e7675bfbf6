package client_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// What is asked for is what goes over the wire, always with a deadline, and
// what a coordinator cannot do is not asked for twice.
func TestRequestsOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var got proto.Message
		times := 0
		record := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Errorf("%s has no deadline", info.FullMethod)
			}
			if _, ok := req.(*coordinatorv1.StatusRequest); !ok {
				got, times = req.(proto.Message), times+1
			}
			return handler(ctx, req)
		}
		type unable struct {
			coordinatorv1.UnimplementedCoordinatorServer
		}
		w.start("a", &unable{}, grpc.UnaryInterceptor(record))
		w.start("b", &unable{}, grpc.UnaryInterceptor(record))
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		ctx := context.Background()
		strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
		event := &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 4}}}
		settings := &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED}
		store := &coordinatorv1.StoreHeartbeatRequest{MemberId: "m1", Sequence: 3}
		beat := &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Leader: true}
		entries, millis := uint64(5), uint64(1500)
		for _, x := range []struct {
			call func() error
			want proto.Message
		}{
			{func() error { _, err := c.GetRegion(ctx, 9, client.Strong()); return err }, &coordinatorv1.GetRegionRequest{RegionId: 9, Read: strong}},
			{
				func() error {
					_, err := c.GetRegion(ctx, 9, client.Bounded(5, 1500*time.Millisecond), client.AtRevision(8), client.AtLeast(rooted.Token{Incarnation: 1, Term: 2, Index: 3}))
					return err
				},
				&coordinatorv1.GetRegionRequest{RegionId: 9, Read: &coordinatorv1.ReadOptions{
					Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: &entries, MaxRootLagMillis: &millis,
					RequiredDescriptorRevision: 8, RequiredRootToken: &rootv1.RootToken{Incarnation: 1, Term: 2, Index: 3},
				}},
			},
			{func() error { _, err := c.AssessRootEvent(ctx, event); return err }, &coordinatorv1.AssessRootEventRequest{Event: event}},
			{func() error { _, err := c.PublishRootEvent(ctx, event); return err }, &coordinatorv1.PublishRootEventRequest{Event: event}},
			{func() error { return firstError(c.ListTransitions(ctx, 4, true, client.Limit(7))) }, &coordinatorv1.ListTransitionsRequest{RegionId: 4, IncludeEnded: true, Limit: 7}},
			{func() error { _, err := c.RemoveRegion(ctx, 4, rooted.Epoch{}); return err }, &coordinatorv1.RemoveRegionRequest{RegionId: 4}},
			{
				func() error { _, err := c.RemoveRegion(ctx, 4, rooted.Epoch{Version: 2, ConfVersion: 1}); return err },
				&coordinatorv1.RemoveRegionRequest{RegionId: 4, ExpectedEpoch: &rootv1.RegionEpoch{Version: 2, ConfVersion: 1}},
			},
			{func() error { _, err := c.StoreHeartbeat(ctx, store); return err }, store},
			{func() error { _, err := c.RegionHeartbeat(ctx, beat); return err }, beat},
			{func() error { return firstError(c.ListMembers(ctx)) }, &coordinatorv1.ListMembersRequest{Limit: 256}},
			{func() error { return firstError(c.ListCoordinators(ctx, client.Strong())) }, &coordinatorv1.ListCoordinatorsRequest{Limit: 256, Read: strong}},
			{func() error { _, err := c.Witness(ctx, client.Strong()); return err }, &coordinatorv1.WitnessRequest{Read: strong}},
			{func() error { _, err := c.CreateKeyspace(ctx, "ks", "kv", settings); return err }, &coordinatorv1.CreateKeyspaceRequest{Name: "ks", Preset: "kv", Settings: settings}},
			{func() error { _, err := c.UpdateKeyspace(ctx, "ks", 3, settings); return err }, &coordinatorv1.UpdateKeyspaceRequest{Name: "ks", ExpectedVersion: 3, Settings: settings}},
			{func() error { _, err := c.DeleteKeyspace(ctx, "ks", 3); return err }, &coordinatorv1.DeleteKeyspaceRequest{Name: "ks", ExpectedVersion: 3}},
			{func() error { _, err := c.GetKeyspace(ctx, "ks"); return err }, &coordinatorv1.GetKeyspaceRequest{Name: "ks"}},
			{func() error { return firstError(c.ListKeyspaces(ctx)) }, &coordinatorv1.ListKeyspacesRequest{Limit: 256}},
		} {
			got, times = nil, 0
			err := x.call()
			if err == nil {
				t.Errorf("%T: no error", x.want)
			}
			switch x.want.(type) {
			case *coordinatorv1.GetRegionRequest, *coordinatorv1.AssessRootEventRequest,
				*coordinatorv1.ListTransitionsRequest, *coordinatorv1.ListMembersRequest, *coordinatorv1.ListCoordinatorsRequest, *coordinatorv1.WitnessRequest,
				*coordinatorv1.GetKeyspaceRequest, *coordinatorv1.ListKeyspacesRequest:
				if times != 1 || !proto.Equal(got, x.want) {
					t.Errorf("asked %d times, last %v, want once %v", times, got, x.want)
				}
			default: // the check of the cluster failed first
				if times != 0 {
					t.Errorf("%v was sent to a coordinator whose cluster is unknown", got)
				}
			}
		}
		// With the cluster known, changes go out too.
		w.start("c", &fake{cluster: newCluster(7)}, grpc.UnaryInterceptor(record))
		c2, end2 := w.client(client.Config{}, "c")
		defer end2()
		for _, x := range []struct {
			call func() error
			want proto.Message
		}{
			{func() error { _, err := c2.StoreHeartbeat(ctx, store); return err }, store},
			{func() error { _, err := c2.RegionHeartbeat(ctx, beat); return err }, beat},
			{func() error { _, err := c2.PublishRootEvent(ctx, event); return err }, &coordinatorv1.PublishRootEventRequest{Event: event}},
			{func() error { _, err := c2.RemoveRegion(ctx, 4, rooted.Epoch{Version: 2}); return err }, &coordinatorv1.RemoveRegionRequest{RegionId: 4, ExpectedEpoch: &rootv1.RegionEpoch{Version: 2}}},
			{func() error { _, err := c2.CreateKeyspace(ctx, "ks", "kv", settings); return err }, &coordinatorv1.CreateKeyspaceRequest{Name: "ks", Preset: "kv", Settings: settings}},
			{func() error { _, err := c2.UpdateKeyspace(ctx, "ks", 3, settings); return err }, &coordinatorv1.UpdateKeyspaceRequest{Name: "ks", ExpectedVersion: 3, Settings: settings}},
			{func() error { _, err := c2.DeleteKeyspace(ctx, "ks", 3); return err }, &coordinatorv1.DeleteKeyspaceRequest{Name: "ks", ExpectedVersion: 3}},
		} {
			got, times = nil, 0
			_ = x.call()
			if id := got.ProtoReflect().Descriptor().Fields().ByName("identity"); id != nil && got.ProtoReflect().Has(id) {
				got.ProtoReflect().Clear(id)
			} else if id != nil {
				t.Errorf("%T has no identity", got)
			}
			if times != 1 || !proto.Equal(got, x.want) {
				t.Errorf("asked %d times, last %v, want once %v", times, got, x.want)
			}
		}
	})
}

func firstError[T any](list iter.Seq2[T, error]) error {
	for _, err := range list {
		return err
	}
	return nil
}
