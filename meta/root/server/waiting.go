package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// Wait serves on lis until ctx ends, for a peer that belongs to no cluster yet. waits
// says in a sentence what it waits for. cfg needs no cluster, replica, log and peers. lis
// stays open for the Server that follows; connections end.
func Wait(ctx context.Context, cfg Config, lis net.Listener, waits func() string) error {
	lent, ok := lis.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return fmt.Errorf("listener %s has no deadlines", lis.Addr())
	}
	room := waitingRoom{waits: waits}
	cfg.Replica, cfg.RaiseAfter = room, -1
	cfg.ServerOptions = slices.Concat(cfg.ServerOptions, []grpc.ServerOption{grpc.ChainUnaryInterceptor(room.unary), grpc.ChainStreamInterceptor(room.stream)})
	cfg.setDefaults()
	// Nothing that is asked here is worth finishing: it ends with a cause of its own.
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { stop(errStopping) })()
	err := newServer(cfg).Serve(inner, lentListener{lis, lent.SetDeadline})
	stop(nil)
	if e := lent.SetDeadline(time.Time{}); err == nil && e != nil {
		err = fmt.Errorf("release listener: %w", e)
	}
	return err
}

// lentListener is a listener that stays open: Close ends an Accept that waits.
type lentListener struct {
	net.Listener
	setDeadline func(time.Time) error
}

// Close implements net.Listener.
func (l lentListener) Close() error { return l.setDeadline(time.Unix(1, 0)) }

// waitingRoom refuses what a peer without a cluster cannot do.
type waitingRoom struct {
	Replica // nobody gets as far as to ask it
	waits   func() string
}

func (w waitingRoom) refusal() error {
	return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "%s", w.waits())
}

// ReadIndex is what health asks for.
func (w waitingRoom) ReadIndex(context.Context) (state.Token, error) {
	return state.Token{}, w.refusal()
}

// isRoot says that a method is one of the root, and not of health or reflection.
func isRoot(method string) bool {
	return strings.HasPrefix(method, "/"+rootv1.Root_ServiceDesc.ServiceName+"/")
}

func (w waitingRoom) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if isRoot(info.FullMethod) {
		return nil, w.refusal()
	}
	return handler(ctx, req)
}

func (w waitingRoom) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isRoot(info.FullMethod) {
		return w.refusal()
	}
	return handler(srv, stream)
}
