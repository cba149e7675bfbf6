package server_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// rawCodec sends and receives bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

// reads never change the root, whatever they answer.
var reads = map[string]bool{
	"GetRegionByKey": true, "GetRegionsByKeys": true, "RouteStream": true, "GetRegion": true, "ScanRegions": true,
	"WatchRegions": true, "AllocID": true, "AllocIDStream": true, "Tso": true, "TsoStream": true, "AssessRootEvent": true, "ListTransitions": true,
	"GetKeyspace": true, "ListKeyspaces": true, "StoreHeartbeat": true, "ListMembers": true, "ListCoordinators": true, "Status": true,
}

// FuzzRequests sends bytes as the request of each method: the server answers
// or refuses, a refusal changes nothing, and the answer is of its type.
func FuzzRequests(f *testing.F) {
	w := routed(f)
	methods := coordinatorv1.File_nokv_coordinator_v1_coordinator_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		for _, seed := range seeds(f, methods.Get(i)) {
			f.Add(uint8(i), seed)
		}
	}
	f.Fuzz(func(t *testing.T, method uint8, request []byte) {
		m := methods.Get(int(method) % methods.Len())
		before := w.root.changes()
		answers, err := w.raw(m, request)
		if (err != nil || reads[string(m.Name())]) && w.root.changes() != before {
			t.Errorf("%s changed the root, error %v", m.Name(), err)
		}
		if reason.Of(err) == rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			t.Errorf("%s proposed what the root cannot apply: %v", m.Name(), err)
		}
		for _, answer := range answers {
			if err := proto.Unmarshal(answer, dynamicpb.NewMessage(m.Output())); err != nil {
				t.Errorf("%s answered with bytes that are no %s: %v", m.Name(), m.Output().Name(), err)
			}
		}
		if _, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{}); err != nil {
			t.Fatalf("after %s: %v", m.Name(), err)
		}
	})
}

// raw calls a method with one request and returns its answers; a watch's first only.
func (w *world) raw(m protoreflect.MethodDescriptor, request []byte) (answers [][]byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	desc := &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}
	stream, err := w.conn.NewStream(ctx, desc, "/nokv.coordinator.v1.Coordinator/"+string(m.Name()), grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_ = stream.CloseSend()
	for {
		var answer []byte
		err := stream.RecvMsg(&answer)
		if errors.Is(err, io.EOF) {
			return answers, nil
		}
		if err != nil {
			return answers, err
		}
		answers = append(answers, answer)
		if m.Name() == "WatchRegions" || !m.IsStreamingServer() {
			return answers, nil
		}
	}
}

// seeds are requests that reach behind the first check.
func seeds(f *testing.F, m protoreflect.MethodDescriptor) [][]byte {
	f.Helper()
	full := dynamicpb.NewMessage(m.Input())
	fill(full, 0)
	typed := map[protoreflect.Name]proto.Message{
		"GetRegionByKey":    &coordinatorv1.GetRegionByKeyRequest{Key: []byte("a"), Read: &coordinatorv1.ReadOptions{Freshness: 1}},
		"GetRegionsByKeys":  &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a"), []byte("z")}},
		"RouteStream":       &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a"), []byte("z")}},
		"ScanRegions":       &coordinatorv1.ScanRegionsRequest{StartKey: []byte("a"), EndKey: []byte("z")},
		"PublishRootEvent":  &coordinatorv1.PublishRootEventRequest{Event: publish(9, 1, "a", "b", 2, "m1")},
		"PublishStream":     &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(join("x"))}},
		"CreateKeyspace":    &coordinatorv1.CreateKeyspaceRequest{Name: "x", Preset: "kv"},
		"RegionHeartbeat":   &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: 1, Region: publish(1, 1, "", "c", 5, "m1").GetRegionPublished().GetRegion()},
		"PublishRootEvents": &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(publish(3, 1, "n", "q", 2, "m2"))}},
	}
	all := [][]byte{nil, {0xff}, marshal(f, full)}
	if t := typed[m.Name()]; t != nil {
		all = append(all, marshal(f, t))
	}
	return all
}

func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// fill sets every field to something.
func fill(m protoreflect.Message, depth int) {
	if depth > 4 {
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		switch {
		case fd.IsMap():
		case fd.IsList() && fd.Message() != nil:
			fill(m.Mutable(fd).List().AppendMutable().Message(), depth+1)
		case fd.IsList():
			m.Mutable(fd).List().Append(scalar(fd))
		case fd.Message() != nil:
			fill(m.Mutable(fd).Message(), depth+1)
		default:
			m.Set(fd, scalar(fd))
		}
	}
}

func scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("a"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	default:
		return protoreflect.ValueOfUint64(1)
	}
}

// Every method of the service is in the table of the fuzzer.
func TestFuzzedMethodsExist(t *testing.T) {
	for name := range reads {
		full := protoreflect.FullName("nokv.coordinator.v1.Coordinator." + name)
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(full); err != nil {
			t.Error(err)
		}
	}
}
