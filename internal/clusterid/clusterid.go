// Package clusterid has every call name the cluster that it is for, in gRPC
// metadata, so that another cluster refuses it before anything is tried.
//
// It promises: (1) a client's call names the cluster as soon as it is known;
// (2) a server never begins a call that names another cluster, and no call that
// changes something, or gives out ids or timestamps, before its cluster was named and is known here.
package clusterid

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Key of the metadata; the value is the cluster id in 16 hexadecimal digits.
const Key = "nokv-cluster"

// String is a cluster id as it is written everywhere.
func String(id uint64) string { return fmt.Sprintf("%016x", id) }

// Parse reads a cluster id as String writes it.
func Parse(s string) (uint64, error) {
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil || len(s) != 16 || id == 0 {
		return 0, fmt.Errorf("cluster id %.32q: want 16 hexadecimal digits, not all 0, as `nokv status` shows it", s)
	}
	return id, nil
}

// Caller names the cluster in the calls of a connection. 0: not known yet,
// nothing is named.
type Caller func() uint64

func (c Caller) name(ctx context.Context) context.Context {
	if id := c(); id != 0 {
		return metadata.AppendToOutgoingContext(ctx, Key, String(id))
	}
	return ctx
}

// Unary is a grpc.UnaryClientInterceptor.
func (c Caller) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoker(c.name(ctx), method, req, reply, cc, opts...)
}

// Stream is a grpc.StreamClientInterceptor.
func (c Caller) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(c.name(ctx), desc, cc, method, opts...)
}

// Options are both interceptors.
func (c Caller) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Gate refuses calls that are for another cluster.
type Gate struct {
	// Own is the cluster served; 0 while it is not known.
	Own func() uint64
	// Required says whether a call of a method, by its full name, has to name its cluster.
	Required func(method string) bool
}

// Unary is a grpc.UnaryServerInterceptor.
func (g Gate) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := g.Admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// Stream is a grpc.StreamServerInterceptor.
func (g Gate) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := g.Admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

// Admit says why a call may not begin; nil: it may.
func (g Gate) Admit(ctx context.Context, method string) error {
	named := metadata.ValueFromIncomingContext(ctx, Key)
	if len(named) == 0 && !g.Required(method) {
		return nil
	}
	own := g.Own()
	if len(named) == 0 {
		return refusal(rootv1.Reason_REASON_CLUSTER_REQUIRED, own,
			"a call that changes something, or gives out ids or timestamps, names its cluster in the metadata %q%s", Key, example(own))
	}
	for _, value := range named {
		id, err := Parse(value)
		switch {
		case err != nil:
			return refusal(rootv1.Reason_REASON_INVALID_REQUEST, own, "metadata %q: %v", Key, err)
		case own == 0 && g.Required(method):
			return refusal(rootv1.Reason_REASON_ROOT_UNAVAILABLE, 0, "this coordinator has not heard of its cluster yet: ask another one")
		case own != 0 && id != own:
			return refusal(rootv1.Reason_REASON_CLUSTER_MISMATCH, own, "the call is for cluster %s, this is cluster %s: check the address", String(id), String(own))
		}
	}
	return nil
}

func example(own uint64) string {
	if own == 0 {
		return ": 16 hexadecimal digits, as `nokv status` shows them"
	}
	return ": " + String(own) + ", if this cluster is meant"
}

func refusal(r rootv1.Reason, own uint64, format string, args ...any) error {
	e := reason.New(r, format, args...)
	e.Detail.ClusterId = own
	return e
}
