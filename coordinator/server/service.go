package server

import (
	"context"
	"slices"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
)

// Changes says whether a method of the service, by its full name, changes something.
func Changes(method string) bool {
	switch method {
	case coordinatorv1.Coordinator_PublishRootEvent_FullMethodName,
		coordinatorv1.Coordinator_PublishRootEvents_FullMethodName,
		coordinatorv1.Coordinator_PublishStream_FullMethodName,
		coordinatorv1.Coordinator_RemoveRegion_FullMethodName,
		coordinatorv1.Coordinator_CreateKeyspace_FullMethodName,
		coordinatorv1.Coordinator_UpdateKeyspace_FullMethodName,
		coordinatorv1.Coordinator_DeleteKeyspace_FullMethodName,
		coordinatorv1.Coordinator_RegisterMember_FullMethodName,
		coordinatorv1.Coordinator_DrainMember_FullMethodName,
		coordinatorv1.Coordinator_FailMember_FullMethodName,
		coordinatorv1.Coordinator_RemoveMember_FullMethodName,
		coordinatorv1.Coordinator_AssignRegions_FullMethodName,
		coordinatorv1.Coordinator_RotatePinKey_FullMethodName,
		coordinatorv1.Coordinator_RemoveCoordinator_FullMethodName,
		coordinatorv1.Coordinator_EndTenure_FullMethodName,
		coordinatorv1.Coordinator_GrantAccess_FullMethodName,
		coordinatorv1.Coordinator_RevokeAccess_FullMethodName,
		coordinatorv1.Coordinator_CreateToken_FullMethodName,
		coordinatorv1.Coordinator_RevokeToken_FullMethodName,
		coordinatorv1.Coordinator_RotateTokenKey_FullMethodName,
		coordinatorv1.Coordinator_ReleaseRegion_FullMethodName,
		coordinatorv1.Coordinator_ClaimRegions_FullMethodName,
		coordinatorv1.Coordinator_ApplyPlan_FullMethodName,
		coordinatorv1.Coordinator_StoreHeartbeat_FullMethodName,
		coordinatorv1.Coordinator_MemberStream_FullMethodName,
		coordinatorv1.Coordinator_RegionHeartbeat_FullMethodName:
		return true
	default:
		return false
	}
}

// NamesCluster says whether a call of a method, by its full name, must name its cluster: it changes
// something, or gives out what another cluster gives out too.
func NamesCluster(method string) bool {
	switch method {
	case coordinatorv1.Coordinator_AllocID_FullMethodName, coordinatorv1.Coordinator_AllocIDStream_FullMethodName,
		coordinatorv1.Coordinator_Tso_FullMethodName, coordinatorv1.Coordinator_TsoStream_FullMethodName:
		return true
	default:
		return Changes(method)
	}
}

// serviceDesc is the generated description of the service, with the hot
// methods replaced by ones that read and write the wire format themselves.
func serviceDesc() *grpc.ServiceDesc {
	desc := coordinatorv1.Coordinator_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	desc.Streams = slices.Clone(desc.Streams)
	for i := range desc.Methods {
		switch m := &desc.Methods[i]; methodPrefix + m.MethodName {
		case coordinatorv1.Coordinator_GetRegionByKey_FullMethodName:
			m.Handler = direct(coordinatorv1.Coordinator_GetRegionByKey_FullMethodName, (*Server).regionByKey)
		case coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName:
			m.Handler = direct(coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName, (*Server).regionsByKeys)
		case coordinatorv1.Coordinator_ScanRegions_FullMethodName:
			m.Handler = written(coordinatorv1.Coordinator_ScanRegions_FullMethodName, (*Server).scanRegions)
		}
	}
	for i := range desc.Streams {
		switch d := &desc.Streams[i]; methodPrefix + d.StreamName {
		case coordinatorv1.Coordinator_TsoStream_FullMethodName:
			d.Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*Server).tsoStream(stream) }
		case coordinatorv1.Coordinator_AllocIDStream_FullMethodName:
			d.Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*Server).idStream(stream) }
		case coordinatorv1.Coordinator_RouteStream_FullMethodName:
			d.Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*Server).routeStream(stream) }
		}
	}
	return &desc
}

// direct makes a method handler of a function that reads a raw request and
// answers with a packet.
func direct[R any, P interface {
	*R
	decoder
	release()
}](method string, f func(*Server, context.Context, P) (*packet, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := P(new(R))
		defer req.release()
		return answerWritten(srv, ctx, dec, interceptor, method, req, f)
	}
}

// written makes a method handler of a function that answers with a packet.
func written[R any](method string, f func(*Server, context.Context, *R) (*packet, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		return answerWritten(srv, ctx, dec, interceptor, method, new(R), f)
	}
}

func answerWritten[R any](srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor,
	method string, req R, f func(*Server, context.Context, R) (*packet, error),
) (any, error) {
	s := srv.(*Server)
	if err := dec(req); err != nil {
		return nil, err
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: method}
	return interceptor(ctx, req, info, func(ctx context.Context, _ any) (any, error) {
		p, err := f(s, ctx, req)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}
