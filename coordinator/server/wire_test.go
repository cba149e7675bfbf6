package server

import (
	"bytes"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// What is encoded by hand is what the generated code reads.
func TestWireIsProto(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		region := drawRegion(t)
		member := &rootv1.Member{
			Id: rapid.String().Draw(t, "member"), Address: rapid.String().Draw(t, "address"),
			State: rootv1.MemberState(rapid.IntRange(0, 4).Draw(t, "state")), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
		}
		d := drawDisclosure(t)
		positions := rapid.SliceOfN(rapid.Uint32Range(0, 1024), 0, 300).Draw(t, "positions")

		p := newPacket()
		p.data = appendRegion(p.data, 1, region)
		p.data = appendPositions(p.data, 2, positions)
		p.data = appendOwner(p.data, 3, state.MemberID(member.Id), member)
		p.data = appendDisclosure(p.data, 4, d)
		p.data = appendDetail(p.data, 5, &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OVERLOADED, Message: "m"})
		want := &coordinatorv1.GetRegionsByKeysResponse{
			Regions: []*rootv1.Region{region.Proto()}, RegionOfKey: positions,
			Owners: []*coordinatorv1.OwnerAddress{{
				MemberId: member.Id, Address: member.Address, State: member.State, Incarnation: member.Incarnation,
			}},
			Disclosure: d,
			Error:      &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OVERLOADED, Message: "m"},
		}
		got := &coordinatorv1.GetRegionsByKeysResponse{}
		data, err := newCodec().Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := newCodec().Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		data.Free()
		if !proto.Equal(got, want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
	})
}

func drawRegion(t *rapid.T) *state.Region {
	key := func(label string) string {
		return string(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, label))
	}
	r := &state.Region{Region: rooted.Region{
		ID: state.RegionID(rapid.Uint64().Draw(t, "id")), Keyspace: state.KeyspaceID(rapid.Uint32().Draw(t, "keyspace")),
		Start: key("start"), End: key("end"), Frontier: key("frontier"), Revision: rapid.Uint64().Draw(t, "revision"),
		Epoch: state.Epoch{Version: rapid.Uint64().Draw(t, "version"), ConfVersion: rapid.Uint64().Draw(t, "conf")},
	}}
	for range rapid.IntRange(0, 5).Draw(t, "owners") {
		r.Owners = append(r.Owners, state.Owner{
			Member: state.MemberID(rapid.String().Draw(t, "owner")), Peer: rapid.Uint64().Draw(t, "peer"),
			Incarnation: rapid.Uint64().Draw(t, "granted"), Role: rootv1.OwnerRole(rapid.IntRange(0, 2).Draw(t, "role")),
		})
	}
	if rapid.Bool().Draw(t, "taken") {
		r.Former = &rooted.FormerOwner{
			Member: state.MemberID(rapid.String().Draw(t, "former")), Incarnation: rapid.Uint64().Draw(t, "former incarnation"),
			Revision: rapid.Uint64().Draw(t, "taken at"),
		}
	}
	return r
}

func drawDisclosure(t *rapid.T) *coordinatorv1.Disclosure {
	return &coordinatorv1.Disclosure{
		ServedRootToken:  &rootv1.RootToken{Incarnation: 1, Term: rapid.Uint64().Draw(t, "term"), Index: rapid.Uint64().Draw(t, "index")},
		CurrentRootToken: &rootv1.RootToken{},
		RootLag:          rapid.Uint64().Draw(t, "lag"), RootLagMillis: rapid.Uint64().Draw(t, "millis"),
		ServedFreshness: coordinatorv1.Freshness(rapid.IntRange(0, 3).Draw(t, "freshness")),
		ServedByLeader:  rapid.Bool().Draw(t, "leader"),
		DegradedMode:    coordinatorv1.DegradedMode(rapid.IntRange(0, 3).Draw(t, "mode")),
		CatchUpState:    coordinatorv1.CatchUpState(rapid.IntRange(0, 4).Draw(t, "catchup")),
		CatchUpAction:   coordinatorv1.CatchUpAction(rapid.IntRange(0, 4).Draw(t, "action")),
		ServingClass:    coordinatorv1.ServingClass(rapid.IntRange(0, 3).Draw(t, "class")),
		SyncHealth:      coordinatorv1.SyncHealth(rapid.IntRange(0, 3).Draw(t, "sync")),
		Era:             rapid.Uint64().Draw(t, "era"), CoordinatorId: rapid.String().Draw(t, "coordinator"),
		ClusterId: rapid.Uint64().Draw(t, "cluster"),
	}
}

// What is read by hand is what the generated code writes.
func TestRequestsAreReadFromTheWire(t *testing.T) {
	sent := &coordinatorv1.GetRegionsByKeysRequest{
		Keys: [][]byte{[]byte("a"), []byte("bc"), {}}, Keyspace: "default",
		Read: &coordinatorv1.ReadOptions{MaxRootLag: proto.Uint64(3), RequiredRootToken: &rootv1.RootToken{Index: 4}},
	}
	var many keysRequest
	read(t, sent, &many)
	if len(many.keys) != 3 || !bytes.Equal(many.keys[1], sent.Keys[1]) || many.keyspace != "default" || !proto.Equal(many.lookup.read, sent.Read) {
		t.Errorf("read %+v", &many)
	}
	many.release()
	if len(many.keys) != 0 || many.lookup.read != nil || many.keyspace != "" || many.options.MaxRootLag != nil {
		t.Errorf("after release: %+v", &many)
	}
	var one keyRequest
	read(t, &coordinatorv1.GetRegionByKeyRequest{Key: []byte("k"), Keyspace: "x"}, &one)
	if string(one.key) != "k" || one.keyspace != "x" || one.lookup.read != nil {
		t.Errorf("read %+v", &one)
	}
	var count countRequest
	read(t, &coordinatorv1.TsoRequest{Count: 77}, &count)
	if count.count != 77 {
		t.Errorf("read %+v", count)
	}
}

func read(t *testing.T, m proto.Message, into decoder) {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into); err != nil {
		t.Fatal(err)
	}
}

// A detail that is no text still says its reason.
func TestDetailThatIsNoText(t *testing.T) {
	data := appendDetail(nil, 5, &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OVERLOADED, Message: "\xff"})
	got := &coordinatorv1.GetRegionsByKeysResponse{}
	if err := proto.Unmarshal(data, got); err != nil || got.GetError().GetReason() != rootv1.Reason_REASON_OVERLOADED {
		t.Errorf("got %v, %v", got, err)
	}
}

// The hand-made descriptions still name every method that they replace.
func TestServiceDescIsComplete(t *testing.T) {
	if got := serviceDesc(); len(got.Methods)+len(got.Streams) != len(coordinatorv1.Coordinator_ServiceDesc.Methods)+len(coordinatorv1.Coordinator_ServiceDesc.Streams) {
		t.Error("methods are missing")
	}
}
