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
