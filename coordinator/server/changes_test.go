package server_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
)

// callAll begins every method of the service with an empty request and tells
// each one's error.
func callAll(t *testing.T, conn *grpc.ClientConn, ctx context.Context, told func(method string, err error)) {
	t.Helper()
	desc := coordinatorv1.Coordinator_ServiceDesc
	for _, m := range desc.Methods {
		method := "/" + desc.ServiceName + "/" + m.MethodName
		told(method, conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	for _, d := range desc.Streams {
		method := "/" + desc.ServiceName + "/" + d.StreamName
		ctx, cancel := context.WithCancel(ctx)
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err == nil {
			_ = stream.SendMsg(&emptypb.Empty{})
			_ = stream.CloseSend()
			err = stream.RecvMsg(&emptypb.Empty{})
		}
		cancel()
		told(method, err)
	}
}

// A call that names another cluster is not begun, and one that changes something, or gives out ids or
// timestamps, must name this one.
func TestCallsNameTheirCluster(t *testing.T) {
	w := routed(t)
	before := w.root.changes()
	bare := w.dialAs(t, 0)
	defer bare.Close()
	other := w.dialAs(t, clusterID+1)
	defer other.Close()

	callAll(t, other, within(t), func(method string, err error) {
		d := refused(t, err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		if d.GetClusterId() != clusterID {
			t.Errorf("%s: %v does not say which cluster this is", method, d)
		}
	})
	callAll(t, bare, within(t), func(method string, err error) {
		if required := reason.Of(err) == rootv1.Reason_REASON_CLUSTER_REQUIRED; required != (server.Changes(method) || strings.Contains(method, "AllocID") || strings.Contains(method, "Tso")) {
			t.Errorf("%s without a cluster: %v", method, err)
		}
	})
	malformed := metadata.AppendToOutgoingContext(within(t), clusterid.Key, "1234")
	callAll(t, bare, malformed, func(method string, err error) {
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	})
	both := metadata.AppendToOutgoingContext(within(t), clusterid.Key, clusterid.String(clusterID), clusterid.Key, clusterid.String(clusterID+1))
	callAll(t, bare, both, func(method string, err error) {
		refused(t, err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
	})
	if w.root.changes() != before {
		t.Error("a refused call changed the root")
	}
}

// Every method either reads, or is known to change something.
func TestMethodsThatChange(t *testing.T) {
	reads := "GetRegionByKey GetRegionsByKeys RouteStream GetRegion ScanRegions WatchRegions AllocID AllocIDStream Tso TsoStream " +
		"AssessRootEvent ListTransitions GetKeyspace ListKeyspaces ListMembers ListCoordinators Status Witness ListGrants CheckAccess HeardMembers RegionNotes Plan PinKeys ResolvePin WatchRevoked"
	desc := coordinatorv1.Coordinator_ServiceDesc
	var all []string
	for _, m := range desc.Methods {
		all = append(all, m.MethodName)
	}
	for _, s := range desc.Streams {
		all = append(all, s.StreamName)
	}
	for _, name := range all {
		if read := strings.Contains(" "+reads+" ", " "+name+" "); read == server.Changes("/"+desc.ServiceName+"/"+name) {
			t.Errorf("%s: is it a read, or does it change something? Name it in Changes or here", name)
		}
	}
}

// A coordinator that has not heard of its cluster cannot tell for whom a change
// is, and begins none.
func TestChangesBeforeTheClusterIsKnown(t *testing.T) {
	root := newMemoryRoot(t)
	root.setDown(true)
	w := startDown(t, root)
	_, err := w.client.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1})
	refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	if len(root.asked) != 1 { // the bootstrap
		t.Errorf("%v was proposed", root.asked[1:])
	}
}

// The identity of a change is its caller's, or else one that the coordinator
// made for it.
func TestChangesCarryIdentities(t *testing.T) {
	w := routed(t)
	before := len(w.root.asked)
	mine := &rootv1.CommandIdentity{Origin: 77, Sequence: 1, KnownIndex: 1}
	ctx := within(t)
	_, _ = w.client.RemoveRegion(ctx, &coordinatorv1.RemoveRegionRequest{RegionId: 1, Identity: mine})
	_, _ = w.client.CreateKeyspace(ctx, &coordinatorv1.CreateKeyspaceRequest{Name: "a", Identity: mine})
	_, _ = w.client.PublishRootEvent(ctx, &coordinatorv1.PublishRootEventRequest{Event: created("b"), Identity: mine})
	_, _ = w.client.PublishRootEvents(ctx, &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Events: []*rootv1.Event{created("c")}, Identity: mine}}})
	passed := w.root.asked[before:]
	if len(passed) != 4 {
		t.Fatalf("%d commands for 4 changes", len(passed))
	}
	for _, cmd := range passed {
		if id := cmd.GetIdentity(); id.GetOrigin() != 77 || id.GetSequence() != 1 || id.GetKnownIndex() != 1 {
			t.Errorf("%v does not carry its caller's identity", cmd)
		}
	}
	before = len(w.root.asked)
	_, _ = w.client.RemoveRegion(ctx, &coordinatorv1.RemoveRegionRequest{RegionId: 1})
	_, _ = w.client.PublishRootEvents(ctx, &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(created("d")), command(created("e"))}})
	seen := map[uint64]bool{}
	for _, cmd := range w.root.asked[before:] {
		id := cmd.GetIdentity()
		if id.GetOrigin() == 0 || id.GetSequence() == 0 || id.GetKnownIndex() == 0 || seen[id.GetSequence()] {
			t.Errorf("%v has no identity of its own", cmd)
		}
		seen[id.GetSequence()] = true
	}
}

// What callers may publish ends no coordinator and forges no authority.
func TestOnlyCallersEventsArePublished(t *testing.T) {
	w := routed(t)
	before := w.root.changes()
	for _, event := range []*rootv1.Event{
		{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{Id: coordinatorID, Address: "a:1", Incarnation: 1 << 60}}},
		{Kind: &rootv1.Event_CoordinatorLeft{CoordinatorLeft: &rootv1.CoordinatorLeft{Id: coordinatorID, Incarnation: 99}}},
		{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{Secret: make([]byte, 32)}}},
		{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{HolderId: "x", HolderAddress: "x:1", Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}}}},
		{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{Era: 1, HolderId: "x"}}},
		{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: 1}}},
		{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{ClusterId: 9}}}},
		join("m9"),
	} {
		_, err := w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: event})
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		_, err = w.client.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(event)}})
		refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	}
	if w.root.changes() != before {
		t.Error("one of them was published")
	}
}
