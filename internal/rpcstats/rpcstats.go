// Package rpcstats counts the RPCs of a gRPC server by method and code, and
// their latencies.
//
// It owns counters and nothing else. It promises: (1) on the path of an RPC
// it takes no lock and, after the first call of a method, allocates nothing;
// (2) its memory is bounded by the number of methods that the server has;
// (3) reading never disturbs counting. Publishing (expvar, Prometheus) is left to
// the process that serves.
//
//	stats := rpcstats.New()
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(stats.Unary),
//		grpc.ChainStreamInterceptor(stats.Stream),
//	)
//	expvar.Publish("rpc", expvar.Func(func() any { return stats.Snapshot() }))
package rpcstats

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// numCodes is how many gRPC codes there are; unknown ones count as Unknown.
const numCodes = int(codes.Unauthenticated) + 1

// Stats are the counters of one server. Make it with New.
type Stats struct {
	// methods is replaced as a whole when a method is seen for the first time.
	methods atomic.Pointer[map[string]*Method]
	mu      sync.Mutex // serialises replacement of methods
}

// New returns counters that are all zero.
func New() *Stats {
	s := &Stats{}
	s.methods.Store(&map[string]*Method{})
	return s
}

// Method returns the counters of a method, making them at the first call. name
// is the full name ("/package.Service/Method"), or a name of the caller's own for
// something that is not one RPC, such as a request inside a stream.
func (s *Stats) Method(name string) *Method {
	if m, ok := (*s.methods.Load())[name]; ok {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.methods.Load()
	if m, ok := old[name]; ok {
		return m
	}
	next := make(map[string]*Method, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	m := &Method{}
	next[name] = m
	s.methods.Store(&next)
	return m
}

// Unary is a grpc.UnaryServerInterceptor that counts. Chain it first, so that
// what later interceptors refuse is counted too.
func (s *Stats) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := s.Method(info.FullMethod)
	start := m.Begin()
	resp, err := handler(ctx, req)
	m.End(start, err)
	return resp, err
}

// Stream is a grpc.StreamServerInterceptor that counts; the latency of a
// stream is its whole life.
func (s *Stats) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := s.Method(info.FullMethod)
	start := m.Begin()
	err := handler(srv, stream)
	m.End(start, err)
	return err
}

// Method is the counters of one method. Its methods may be called from any
// goroutine.
type Method struct {
	inFlight atomic.Int64
	codes    [numCodes]atomic.Uint64
	latency  Histogram
}

// Begin counts one request in flight and returns when it began.
func (m *Method) Begin() time.Time {
	m.inFlight.Add(1)
	return time.Now()
}

// End counts the request that began at start as ended with err.
func (m *Method) End(start time.Time, err error) {
	m.inFlight.Add(-1)
	m.Observe(time.Since(start), err)
}

// Observe counts one request that took d and ended with err.
func (m *Method) Observe(d time.Duration, err error) {
	m.codes[codeOf(err)].Add(1)
	m.latency.Observe(d)
}

// Snapshot returns the counters as they are.
func (m *Method) Snapshot() MethodSnapshot {
	out := MethodSnapshot{InFlight: m.inFlight.Load(), Codes: map[string]uint64{}, Latency: m.latency.Summary()}
	for c := range m.codes {
		if n := m.codes[c].Load(); n > 0 {
			out.Codes[codes.Code(c).String()] = n
		}
	}
	return out
}

// MethodSnapshot is the counters of one method at one moment.
type MethodSnapshot struct {
	// InFlight is the number of requests begun and not ended.
	InFlight int64 `json:"in_flight"`
	// Codes counts ended requests by gRPC code ("OK", "Unavailable"); only what occurred.
	Codes map[string]uint64 `json:"codes"`
	// Latency is over all codes.
	Latency Latency `json:"latency"`
}

// Snapshot returns the counters of every method that was called, by full name.
func (s *Stats) Snapshot() map[string]MethodSnapshot {
	methods := *s.methods.Load()
	out := make(map[string]MethodSnapshot, len(methods))
	for name, m := range methods {
		out[name] = m.Snapshot()
	}
	return out
}

// codeOf is the gRPC code that err travels under, found without building a
// status for the refusals of package reason.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if refused, ok := errors.AsType[*reason.Error](err); ok {
		return known(reason.Code(refused.Detail.GetReason()))
	}
	if s, ok := status.FromError(err); ok {
		return known(s.Code())
	}
	return known(status.FromContextError(err).Code())
}

func known(c codes.Code) codes.Code {
	if int(c) >= numCodes {
		return codes.Unknown
	}
	return c
}
