package grpcroute

import (
	"context"
	"errors"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/router"
)

// Member lets requests in: a *member.Member does.
type Member interface {
	Do(ctx context.Context, req member.Request, fn func(context.Context, member.Region) error) error
}

// Server is the part of a member's gRPC server that lets calls in: those of a region that is
// its own, at the epoch that they name. One of an epoch that is on its way here is held as
// long as the keyspace's settings say. The others get the refusal as a status with an
// ErrorDetail, which says whom to ask where that is known, and MetadataRefused in the trailers.
type Server struct {
	// Member must be set.
	Member Member
	// Open says of full methods that they are not about keys: health, reflection and the
	// like. nil: all of packages grpc.health and grpc.reflection are.
	Open func(method string) bool
}

// Options are those of a server whose handlers are let in. Interceptors of other options of
// grpc.NewServer that come before run before, and those that come behind only for who was let in.
func (s Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

func (s Server) open(method string) bool {
	if s.Open != nil {
		return s.Open(method)
	}
	return hasPrefix(method, "/grpc.health.") || hasPrefix(method, "/grpc.reflection.")
}

func hasPrefix(s, p string) bool { return len(s) >= len(p) && s[:len(p)] == p }

type regionOfCall struct{}

// RegionFrom is the region that a handler was let in for. false: its method is open.
func RegionFrom(ctx context.Context) (member.Region, bool) {
	r, ok := ctx.Value(regionOfCall{}).(member.Region)
	return r, ok
}

// Unary is a grpc.UnaryServerInterceptor. A region that is to go waits for the handler.
func (s Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if s.open(info.FullMethod) {
		return handle(ctx, req)
	}
	want, err := requestOf(ctx)
	if err != nil {
		return nil, err
	}
	var reply any
	ran := false
	err = s.Member.Do(ctx, want, func(ctx context.Context, r member.Region) (err error) {
		ran = true
		reply, err = handle(context.WithValue(ctx, regionOfCall{}, r), req)
		return passed(err)
	})
	if err == nil {
		return reply, nil
	}
	return nil, refuse(ctx, ran, err)
}

// handled is an error of a handler, which is no refusal, whatever it is made of.
type handled struct{ error }

func passed(err error) error {
	if err == nil {
		return nil
	}
	return &handled{err}
}

// refuse is how an error of Do goes out. One of the trailers that fails belongs to a call
// that is over.
func refuse(ctx context.Context, ran bool, err error) error {
	if h, ok := err.(*handled); ok { //nolint:errorlint // the outermost
		// A handler may have passed on all trailers of somebody who refused. They cannot be
		// taken back; a word that is there twice is none.
		if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Trailer() metadata.MD }); ok && len(s.Trailer()[MetadataRefused]) > 0 {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(MetadataRefused, ""))
		}
		return h.error
	}
	no := router.RefusalOf(err)
	if no == nil {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return status.FromContextError(err).Err()
		}
		if ran {
			return err
		}
		no = &router.Refusal{Kind: router.NotOwned, Said: err.Error()} // a member that ends
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(MetadataRefused, no.Word()))
	return no.GRPCStatus().Err()
}

// errLeaving is the cause of the end of a stream's context.
var errLeaving = errors.New("the region is leaving this member")

// Stream is a grpc.StreamServerInterceptor. When the region is to go the handler's context
// ends, and what it sends and receives fails; the region waits for it to return.
func (s Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if s.open(info.FullMethod) {
		return handle(srv, ss)
	}
	ctx := ss.Context()
	want, err := requestOf(ctx)
	if err != nil {
		return err
	}
	ran := false
	var left *router.Refusal
	err = s.Member.Do(ctx, want, func(ctx context.Context, r member.Region) error {
		ran = true
		ctx, cancel := context.WithCancelCause(context.WithValue(ctx, regionOfCall{}, r))
		defer cancel(nil)
		in := &letIn{ServerStream: ss, ctx: ctx}
		over := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() {
			select {
			case <-r.Leaving():
				cancel(errLeaving)
			case <-over:
			}
		})
		defer watch.Wait()
		defer close(over) // also when it panics
		err := handle(srv, in)
		if err != nil && context.Cause(ctx) == errLeaving { //nolint:errorlint // it is that
			left = &router.Refusal{Kind: router.NotOwned, Epoch: r.Epoch, Ran: true, Said: errLeaving.Error() + ": the stream ended before its handler was done; begin it anew"}
		}
		return passed(err)
	})
	if left != nil && !errors.As(err, new(*member.NotOwned)) {
		err = left
	}
	return refuse(ss.Context(), ran, err)
}

// letIn is the stream of a handler that was let in.
type letIn struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (l *letIn) Context() context.Context { return l.ctx }

// RecvMsg and SendMsg implement grpc.ServerStream. What gRPC waits for ends with the stream,
// which is when the handler has returned: so they do not wait for it when the context is over.
func (l *letIn) RecvMsg(m any) error {
	into := blank(m) // the message is the handler's as soon as it is back, also without an answer
	err := l.within(func() error { return l.ServerStream.RecvMsg(into) })
	if err == nil {
		give(m, into)
	}
	return err
}

// blank is a message like another one, which is a pointer, without what is in it.
func blank(m any) any {
	if p, ok := m.(proto.Message); ok {
		return p.ProtoReflect().New().Interface()
	}
	return reflect.New(reflect.TypeOf(m).Elem()).Interface() // of a codec of its own
}

// give moves what is in a blank into its message.
func give(m, from any) {
	p, ok := m.(proto.Message)
	if !ok {
		reflect.ValueOf(m).Elem().Set(reflect.ValueOf(from).Elem())
		return
	}
	proto.Reset(p)
	to, moved := p.ProtoReflect(), from.(proto.Message).ProtoReflect()
	moved.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(field, v)
		return true
	})
	to.SetUnknown(moved.GetUnknown())
}

func (l *letIn) SendMsg(m any) error {
	prepared := &grpc.PreparedMsg{} // the handler may change m as soon as it is back
	if err := prepared.Encode(l.ServerStream, m); err != nil {
		return err
	}
	return l.within(func() error { return l.ServerStream.SendMsg(prepared) })
}

func (l *letIn) within(do func() error) error {
	if l.ctx.Err() != nil {
		return l.over()
	}
	done := make(chan error, 1)
	go func() { done <- do() }() // ends with the stream, soon behind the handler
	select {
	case err := <-done:
		if err != nil && l.ServerStream.Context().Err() != nil {
			<-l.ctx.Done() // which is told behind gRPC's: a handler that hears of the end finds it in its context
		}
		return err
	case <-l.ctx.Done():
		select {
		case err := <-done:
			return err
		default:
			return l.over()
		}
	}
}

func (l *letIn) over() error {
	if err := context.Cause(l.ctx); err == errLeaving { //nolint:errorlint // it is that
		return err
	}
	return status.FromContextError(l.ctx.Err()).Err()
}
