package rpcstats_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCodesAreCountedByMethod(t *testing.T) {
	s := rpcstats.New()
	call := func(method string, err error) {
		_, got := s.Unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) {
				if n := s.Snapshot()[method].InFlight; n != 1 {
					t.Errorf("in flight during the call = %d, want 1", n)
				}
				return nil, err
			})
		if got != err {
			t.Errorf("interceptor changed the error: %v, want %v", got, err)
		}
	}
	call("/a/A", nil)
	call("/a/A", nil)
	call("/a/A", reason.New(rootv1.Reason_REASON_NOT_LEADER, "x"))
	call("/a/B", fmt.Errorf("wrapped: %w", context.DeadlineExceeded))
	call("/a/B", status.Error(codes.Code(99), "from the future"))
	call("/a/B", errors.New("plain"))

	snap := s.Snapshot()
	if a := snap["/a/A"]; a.Codes["OK"] != 2 || a.Codes["FailedPrecondition"] != 1 || a.InFlight != 0 || a.Latency.Count != 3 {
		t.Errorf("/a/A = %+v", a)
	}
	if b := snap["/a/B"]; b.Codes["DeadlineExceeded"] != 1 || b.Codes["Unknown"] != 2 {
		t.Errorf("/a/B = %+v", b)
	}
}

// A quantile is never below the true one and at most an eighth above it.
func TestQuantilesWithinOneBucket(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var h rpcstats.Histogram
	all := make([]time.Duration, 10_000)
	for i := range all {
		all[i] = time.Duration(rng.ExpFloat64() * float64(300*time.Microsecond))
		h.Observe(all[i])
	}
	slices.Sort(all)
	got := h.Summary()
	for _, q := range []struct {
		name     string
		permille int
		got      float64
	}{{"p50", 500, got.P50Us}, {"p99", 990, got.P99Us}, {"p999", 999, got.P999Us}, {"max", 1000, got.MaxUs}} {
		want := float64(all[len(all)*q.permille/1000-1]) / 1e3
		if q.got < want || q.got > want*1.126+1.1 {
			t.Errorf("%s = %.1f us, true one %.1f us", q.name, q.got, want)
		}
	}
}

func TestExtremesOfHistogram(t *testing.T) {
	var h rpcstats.Histogram
	if got := h.Summary(); got != (rpcstats.Latency{}) {
		t.Errorf("empty summary = %+v", got)
	}
	for _, d := range []time.Duration{-1, 0, 1, 1<<63 - 1} {
		h.Observe(d)
	}
	if got := h.Summary(); got.Count != 4 || got.P50Us > 2 || got.MaxUs < 9e15 {
		t.Errorf("summary = %+v", got)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	s := rpcstats.New()
	info := &grpc.UnaryServerInfo{FullMethod: "/a/A"}
	refused := reason.New(rootv1.Reason_REASON_NOT_LEADER, "x")
	handler := func(context.Context, any) (any, error) { return nil, refused }
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Unary(ctx, nil, info, handler) }); n != 0 {
		t.Errorf("%v allocations a call, want 0", n)
	}
	m, start := s.Method("/a/A"), time.Now()
	if n := testing.AllocsPerRun(100, func() { m.Begin(64); m.End(64, start, refused) }); n != 0 {
		t.Errorf("%v allocations for requests of a stream, want 0", n)
	}
}

// Requests that are answered together count each by itself, with the calls of the method.
func TestRequestsOfAStreamAreCountedWithCalls(t *testing.T) {
	s := rpcstats.New()
	_, _ = s.Unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/A"}, func(context.Context, any) (any, error) { return nil, nil })
	m, began := s.Method("/a/A"), time.Now()
	m.Begin(98)
	if n := s.Snapshot()["/a/A"].InFlight; n != 98 {
		t.Errorf("in flight = %d, want 98", n)
	}
	m.End(97, began.Add(-time.Second), nil)
	m.End(1, began.Add(-time.Minute), reason.New(rootv1.Reason_REASON_OVERLOADED, "x"))
	got := s.Snapshot()["/a/A"]
	if got.InFlight != 0 || got.Codes["OK"] != 98 || got.Codes["ResourceExhausted"] != 1 || got.Latency.Count != 99 {
		t.Errorf("counted %+v", got)
	}
	if l := got.Latency; l.P50Us < 1e6 || l.P50Us > 1.2e6 || l.P99Us < 60e6 || l.MeanUs < (97+60)*1e6/99 || l.MeanUs > (97+60)*1.1e6/99 {
		t.Errorf("latency %+v", l)
	}
}

// A stream is open, or has ended with a code. It is no request, and has no latency.
func TestStreamsAreNoRequests(t *testing.T) {
	s := rpcstats.New()
	stream := func(err error) {
		_ = s.Stream(nil, nil, &grpc.StreamServerInfo{FullMethod: "/a/Watch"}, func(any, grpc.ServerStream) error {
			if n := s.Streams()["/a/Watch"].Open; n != 1 {
				t.Errorf("open during the stream = %d, want 1", n)
			}
			return err
		})
	}
	stream(nil)
	stream(context.Canceled)
	stream(context.Canceled)
	if got := s.Streams()["/a/Watch"]; got.Open != 0 || got.Ended["OK"] != 1 || got.Ended["Canceled"] != 2 || len(got.Ended) != 2 {
		t.Errorf("streams %+v", got)
	}
	if got := s.Snapshot(); len(got) != 0 {
		t.Errorf("requests %+v", got)
	}
}

func BenchmarkUnary(b *testing.B) {
	s := rpcstats.New()
	info := &grpc.UnaryServerInfo{FullMethod: "/a/A"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = s.Unary(context.Background(), nil, info, handler)
		}
	})
}

// BenchmarkStream is what so many requests that are answered together cost.
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := rpcstats.New().Method("/a/A")
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					start := time.Now()
					m.Begin(n)
					m.End(n, start, nil)
				}
			})
		})
	}
}

// A merge has what both histograms have observed.
func TestMergeOfHistograms(t *testing.T) {
	var all, left, right rpcstats.Histogram
	for i := range 1000 {
		d := time.Duration(rand.Int63n(int64(time.Second)))
		all.Observe(d)
		if i%3 == 0 {
			left.Observe(d)
		} else {
			right.Observe(d)
		}
	}
	left.Merge(&right)
	if got, want := left.Summary(), all.Summary(); got != want {
		t.Errorf("merged %+v, want %+v", got, want)
	}
}
