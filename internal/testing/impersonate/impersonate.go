// Package impersonate gives the connections of tests the names that certificates give
// them elsewhere, and makes every call that a server has.
package impersonate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Cluster is the one that all callers are of.
const Cluster = "test"

// Named is a caller.
func Named(role principal.Role, name string) principal.Principal {
	return principal.Principal{Cluster: Cluster, Role: role, Name: name}
}

// Server believes what Client says.
func Server() grpc.ServerOption { return grpc.Creds(trusting{}) }

// Client says who calls, before anything else.
func Client(p principal.Principal) grpc.DialOption {
	return grpc.WithTransportCredentials(trusting{p})
}

// trusting are credentials without any secret: the name goes first, in a line.
type trusting struct{ p principal.Principal }

func (t trusting) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, err := io.WriteString(c, t.p.URI().String()+"\n")
	return c, info(principal.Principal{}), err
}

func (t trusting) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one[0]) {
		if _, err := io.ReadFull(c, one); err != nil || one[0] == '\n' || len(line) > 1024 {
			break
		}
	}
	p, err := principal.Parse(string(line))
	return c, info(p), err
}

func info(p principal.Principal) principal.Info {
	return principal.Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Principal: p}
}

func (t trusting) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "trusting"}
}
func (t trusting) Clone() credentials.TransportCredentials { return t }
func (t trusting) OverrideServerName(string) error         { return nil }

// Methods are all calls that the server of a connection has, as its reflection
// tells an operator.
func Methods(t testing.TB, ctx context.Context, conn *grpc.ClientConn) []protoreflect.MethodDescriptor {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var all []protoreflect.MethodDescriptor
	for _, s := range answer.GetListServicesResponse().GetService() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(s.GetName()))
		if err != nil {
			t.Fatal(err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			all = append(all, methods.Get(i))
		}
	}
	return all
}

// FullMethod is a method's name on the wire.
func FullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// Request is an empty request of a method.
func Request(t testing.TB, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return typ.New().Interface()
}

// Call makes a call with one request, and returns the first refusal: of the call,
// or inside its first answer. nil: it was answered.
func Call(t testing.TB, ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, request proto.Message) error {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, FullMethod(m))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	answer := typ.New().Interface()
	if err := stream.RecvMsg(answer); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return inside(answer)
}

// inside is a refusal in an answer.
func inside(answer proto.Message) error {
	if a, ok := answer.(interface{ GetError() *rootv1.ErrorDetail }); ok && a.GetError() != nil {
		return &reason.Error{Detail: a.GetError()}
	}
	if a, ok := answer.(interface {
		GetResults() []*rootv1.CommandResult
	}); ok {
		for _, r := range a.GetResults() {
			if r.GetError() != nil {
				return &reason.Error{Detail: r.GetError()}
			}
		}
	}
	return nil
}

// Denied says whether a refusal is one of permission. It checks that the sentence
// names the caller.
func Denied(t testing.TB, err error, p principal.Principal) bool {
	t.Helper()
	detail := reason.From(err)
	if detail.GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
		return false
	}
	if !strings.Contains(detail.GetMessage(), p.Actor()) {
		t.Errorf("the refusal does not name %v: %s", p, detail.GetMessage())
	}
	return true
}
