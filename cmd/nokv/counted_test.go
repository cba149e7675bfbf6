package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rpcVars is what a process shows of requests and streams.
type rpcVars struct {
	RPC     map[string]rpcstats.MethodSnapshot `json:"rpc"`
	Streams map[string]rpcstats.StreamSnapshot `json:"streams"`
}

// What a client asks in streams is counted in the metrics of coordinators and root peers as calls
// are: each request, by its code, with the time that it took. Streams are open, or have ended.
func TestMetricsCountRequestsInStreams(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	cl, err := client.New(client.Config{Endpoints: c.CoordinatorAddrs})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()

	const each = 200
	var region uint64
	for n := range uint64(each) {
		_, noID := cl.AllocID(ctx, 1)
		_, noTimestamp := cl.Tso(ctx, 1)
		result, noChange := cl.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: region, KeyspaceId: 1, StartKey: []byte("a"), EndKey: []byte("b"), Epoch: &rootv1.RegionEpoch{Version: n + 1, ConfVersion: 1},
		}}}})
		_, noRoute := cl.GetRegionByKey(ctx, []byte("a"), client.Strong())
		if err := errors.Join(noID, noTimestamp, noChange, noRoute); err != nil {
			t.Fatal(err)
		}
		region = result.GetEvents()[0].GetRegion().GetId()
	}
	if _, err := cl.GetRegionByKey(ctx, []byte("a"), client.In("nobody")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a keyspace that is not there: %v", err)
	}

	var coordinator rpcVars
	if err := c.Vars(c.Roots(), &coordinator); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{
		coordinatorv1.Coordinator_AllocID_FullMethodName, coordinatorv1.Coordinator_Tso_FullMethodName,
		coordinatorv1.Coordinator_PublishRootEvents_FullMethodName, coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName,
	} {
		if got := coordinator.RPC[method]; got.Codes["OK"] != each || got.Latency.P99Us <= 0 || got.Latency.P99Us >= 1e6 {
			t.Errorf("%s was asked for %d times: %+v", method, each, got)
		}
	}
	if got := coordinator.RPC[coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName].Codes["NotFound"]; got == 0 {
		t.Error("the refusal is not counted")
	}
	var proposed, confirmed uint64
	for member := range c.Roots() {
		var root rpcVars
		if err := c.Vars(member, &root); err != nil {
			t.Fatal(err)
		}
		proposed += root.RPC[rootv1.Root_Propose_FullMethodName].Codes["OK"]
		confirmed += root.RPC[rootv1.Root_ConfirmTenure_FullMethodName].Codes["OK"]
		noStreams(t, root)
	}
	if proposed < each || confirmed == 0 {
		t.Errorf("root peers counted %d proposals and %d confirmations of %d changes", proposed, confirmed, each)
	}
	noStreams(t, coordinator)

	open := func(want int64, canceled uint64) error {
		var now rpcVars
		if err := c.Vars(c.Roots(), &now); err != nil {
			return err
		}
		for _, method := range []string{
			coordinatorv1.Coordinator_AllocIDStream_FullMethodName, coordinatorv1.Coordinator_TsoStream_FullMethodName,
			coordinatorv1.Coordinator_PublishStream_FullMethodName, coordinatorv1.Coordinator_RouteStream_FullMethodName,
		} {
			if got := now.Streams[method]; got.Open != want || got.Ended["Canceled"] < canceled {
				return fmt.Errorf("%s: %+v, want %d open and %d canceled", method, got, want, canceled)
			}
		}
		return nil
	}
	if err := open(1, 0); err != nil {
		t.Error(err)
	}
	cl.Close()
	proctest.Eventually(t, proctest.Patience, func() error { return open(0, 1) })
}

// noStreams checks that no stream is counted among the requests.
func noStreams(t *testing.T, c rpcVars) {
	t.Helper()
	for method := range c.RPC {
		if strings.Contains(method, "Stream") {
			t.Errorf("%s is counted as a request", method)
		}
	}
}
