package tenure_test

import (
	"context"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
)

func benchHolder(b *testing.B, ttl, delay time.Duration) *process {
	h := startHolder(b, newTestRoot(delay), "c1", func(c *tenure.Config) {
		c.TTL, c.Clock = ttl, clock.NewSystem()
	})
	for {
		if _, _, err := h.Tso(within(time.Second), 1); err == nil {
			break
		}
	}
	b.ReportAllocs()
	return h
}

func BenchmarkTso(b *testing.B) {
	h := benchHolder(b, 200*time.Millisecond, 0)
	ctx := context.Background()
	for b.Loop() {
		if _, _, err := h.Tso(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllocID(b *testing.B) {
	h := benchHolder(b, 200*time.Millisecond, 0)
	ctx := context.Background()
	for b.Loop() {
		if _, _, err := h.AllocID(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTso64Callers(b *testing.B) {
	h := benchHolder(b, 200*time.Millisecond, 0)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		for pb.Next() {
			if _, _, err := h.Tso(ctx, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// With a ttl of 0, against a root that takes 200 microseconds to answer.
func BenchmarkTsoConfirmed256Callers(b *testing.B) {
	h := benchHolder(b, 0, 200*time.Microsecond)
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		for pb.Next() {
			if _, _, err := h.Tso(ctx, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSystemClock(b *testing.B) {
	c := clock.NewSystem()
	for b.Loop() {
		c.Now()
	}
}
