package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/rpcstats"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

const (
	serving    = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// Health is a read index: it is lost with the root and comes back with it, and
// asking often costs the root little.
func TestHealthIsAReadIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		client := healthpb.NewHealthClient(w.conn)
		check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
			resp, err := client.Check(within(t), &healthpb.HealthCheckRequest{Service: service})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStatus()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "nokv.coordinator.v1.Coordinator"})
		if err != nil {
			t.Fatal(err)
		}
		next := func() healthpb.HealthCheckResponse_ServingStatus {
			resp, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStatus()
		}
		if got := next(); got != serving {
			t.Errorf("watch began with %v", got)
		}
		reads := w.root.countedReads()
		for range 20 {
			if check("") != serving || check("nokv.coordinator.v1.Coordinator") != serving {
				t.Error("not serving")
			}
		}
		if asked := w.root.countedReads() - reads; asked > 1 {
			t.Errorf("40 checks asked the root %d times", asked)
		}
		w.root.setDown(true)
		time.Sleep(300 * time.Millisecond)
		if check("") != notServing || next() != notServing {
			t.Error("serving without the root")
		}
		if err := w.server.Healthy(within(t)); err == nil {
			t.Error("healthy without the root")
		}
		w.root.setDown(false)
		if next() != serving {
			t.Error("the watch did not see the root come back")
		}
		if err := w.server.Healthy(within(t)); err != nil {
			t.Error(err)
		}
		list, err := client.List(within(t), &healthpb.HealthListRequest{})
		if err != nil || len(list.GetStatuses()) != 2 {
			t.Errorf("%v, %v", list, err)
		}
		if _, err := client.Check(within(t), &healthpb.HealthCheckRequest{Service: "nope"}); status.Code(err) != codes.NotFound {
			t.Errorf("unknown service: %v", err)
		}
		cancel()
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A confirmation of the era says what a read index says, for as long: a holder is asked
// how it is at no cost to the root, and only while its confirmations come.
func TestHealthIsAConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		monotonic := clock.NewMonotonic()
		client := healthpb.NewHealthClient(w.conn)
		check := func() healthpb.HealthCheckResponse_ServingStatus {
			resp, err := client.Check(within(t), &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStatus()
		}
		asked := 0 // while somebody waits: a view asks now and then by itself
		for range 10 {
			time.Sleep(150 * time.Millisecond)
			w.authority.confirmedAt.Store(int64(monotonic.Now()))
			time.Sleep(150 * time.Millisecond)
			synctest.Wait()
			before := w.root.countedReads()
			if check() != serving {
				t.Error("not serving with a confirmation")
			}
			asked += w.root.countedReads() - before
		}
		if asked != 0 {
			t.Errorf("the root was asked %d times", asked)
		}
		w.root.setDown(true)
		time.Sleep(300 * time.Millisecond)
		if check() != notServing {
			t.Error("serving with a confirmation of long ago")
		}
		cancelled := w.stop()
		if cancelled != nil {
			t.Error(cancelled)
		}
	})
}

func TestReflectionAndStats(t *testing.T) {
	stats := rpcstats.New()
	w := start(t, func(c *server.Config) { c.Stats = stats })
	stream, err := reflectionpb.NewServerReflectionClient(w.conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "nokv.coordinator.v1.Coordinator",
	}})
	resp, err := stream.Recv()
	if err != nil || len(resp.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v, %v", resp, err)
	}
	_, _ = w.client.GetRegionByKey(context.Background(), byKey("a"))
	if got := stats.Snapshot()[coordinatorv1.Coordinator_GetRegionByKey_FullMethodName]; got.Codes[codes.InvalidArgument.String()] != 1 {
		t.Errorf("counted %v", got)
	}
}

func TestStatus(t *testing.T) {
	peers := []*coordinatorv1.RootEndpoint{{NodeId: 1, Address: "127.0.0.1:1", Reachable: true, Leader: true}}
	w := routed(t, func(c *server.Config) {
		c.RootPeers = func(context.Context) []*coordinatorv1.RootEndpoint { return peers }
	})
	if brief, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{Brief: true}); err != nil || brief.GetCoordinatorId() == "" || len(brief.GetRootPeers()) > 0 {
		t.Errorf("brief: %v, %v", brief, err)
	}
	got, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetCoordinatorId() != coordinatorID || got.GetAddress() == "" || got.GetIncarnation() != 99 || got.GetVersion() != "test" ||
		got.GetCluster().GetClusterId() != clusterID || got.GetAllocators() == nil || !got.GetServingAuthority() ||
		got.GetIdWindowLeft() != 3 || got.GetTsoWindowLeft() != 4 || got.GetKeyspaces() != 1 || got.GetRegions() != 3 ||
		got.GetMembers() != 2 || len(got.GetRootPeers()) != 1 {
		t.Errorf("status %v", got)
	}
	checkDisclosure(t, w, got.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
	if list, err := w.client.ListCoordinators(within(t), &coordinatorv1.ListCoordinatorsRequest{}); err != nil || list.GetDisclosure() == nil {
		t.Errorf("%v, %v", list, err)
	}
}
