// Package rpcstats counts the requests of a gRPC server by method and code, with
// their latencies, and its streams.
//
// A request is a call, or a message inside a stream that is answered by itself: the
// server counts it under the name of the call that asks the same. A stream is no request:
// how it ends, and how long it was open, is its caller's affair.
//
// It owns counters and nothing else. It promises: (1) on the path of a request
// it takes no lock and, after the first one of a method, allocates nothing;
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
//	expvar.Publish("streams", expvar.Func(func() any { return stats.Streams() }))
package rpcstats

import (
	"context"
	"errors"
	"maps"
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
	methods table[Method]
	streams table[tally]
}

// New returns counters that are all zero.
func New() *Stats { return &Stats{} }

// table has counters by the full names of methods ("/package.Service/Method").
type table[T any] struct {
	// all is replaced as a whole when a name is seen for the first time.
	all atomic.Pointer[map[string]*T]
	mu  sync.Mutex // serialises replacement of all
}

func (t *table[T]) load() map[string]*T {
	if all := t.all.Load(); all != nil {
		return *all
	}
	return nil
}

// of returns the counters of a name, making them at the first call.
func (t *table[T]) of(name string) *T {
	if one := t.load()[name]; one != nil {
		return one
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.load()
	if one := old[name]; one != nil {
		return one
	}
	next := make(map[string]*T, len(old)+1)
	maps.Copy(next, old)
	next[name] = new(T)
	t.all.Store(&next)
	return next[name]
}

// Method returns the counters of a method by its full name, for requests that come in
// streams.
func (s *Stats) Method(name string) *Method { return s.methods.of(name) }

// Unary is a grpc.UnaryServerInterceptor that counts. Chain it first, so that
// what later interceptors refuse is counted too.
func (s *Stats) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m, start := s.Method(info.FullMethod), time.Now()
	m.Begin(1)
	resp, err := handler(ctx, req)
	m.End(1, start, err)
	return resp, err
}

// Stream is a grpc.StreamServerInterceptor that counts streams; the requests inside are
// the server's to count.
func (s *Stats) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	t := s.streams.of(info.FullMethod)
	t.begin(1)
	err := handler(srv, stream)
	t.end(1, err)
	return err
}

// tally counts what is under way, and what has ended by its code.
type tally struct {
	open  atomic.Int64
	codes [numCodes]atomic.Uint64
}

func (t *tally) begin(n int) { t.open.Add(int64(n)) }

func (t *tally) end(n int, err error) {
	t.open.Add(int64(-n))
	t.codes[codeOf(err)].Add(uint64(n))
}

// ended counts what has ended by the name of its code; only what occurred.
func (t *tally) ended() map[string]uint64 {
	out := map[string]uint64{}
	for c := range t.codes {
		if n := t.codes[c].Load(); n > 0 {
			out[codes.Code(c).String()] = n
		}
	}
	return out
}

// Method is the counters of one method. Its methods may be called from any
// goroutine.
type Method struct {
	requests tally
	latency  Histogram
}

// Begin counts n requests in flight. End must follow for each, together or one by one.
func (m *Method) Begin(n int) { m.requests.begin(n) }

// End counts n requests that are in flight as ended with err, each of which came at start.
func (m *Method) End(n int, start time.Time, err error) {
	m.requests.end(n, err)
	m.latency.observe(time.Since(start), n)
}

// MethodSnapshot is the counters of one method at one moment.
type MethodSnapshot struct {
	// InFlight is the number of requests begun and not ended. What waits in a stream behind
	// requests that are being answered has not begun.
	InFlight int64 `json:"in_flight"`
	// Codes counts ended requests by gRPC code ("OK", "Unavailable"); only what occurred.
	Codes map[string]uint64 `json:"codes"`
	// Latency is over all codes, from when a request came until its answer was made.
	// Requests of a stream that are answered together have that of the first of them.
	Latency Latency `json:"latency"`
}

// Snapshot returns the counters of every method that was called, by full name.
func (s *Stats) Snapshot() map[string]MethodSnapshot {
	methods := s.methods.load()
	out := make(map[string]MethodSnapshot, len(methods))
	for name, m := range methods {
		out[name] = MethodSnapshot{InFlight: m.requests.open.Load(), Codes: m.requests.ended(), Latency: m.latency.Summary()}
	}
	return out
}

// StreamSnapshot is the streams of one method at one moment.
type StreamSnapshot struct {
	// Open is how many there are.
	Open int64 `json:"open"`
	// Ended counts those that have ended by gRPC code ("Canceled": the caller went); only
	// what occurred.
	Ended map[string]uint64 `json:"ended"`
}

// Streams returns the streams of every method that any were opened of, by full name.
func (s *Stats) Streams() map[string]StreamSnapshot {
	streams := s.streams.load()
	out := make(map[string]StreamSnapshot, len(streams))
	for name, t := range streams {
		out[name] = StreamSnapshot{Open: t.open.Load(), Ended: t.ended()}
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
