package replica_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// diskLogs opens real workdirs in a temporary folder.
func diskLogs(b *testing.B) func(id uint64) replica.Log {
	b.Helper()
	dir := b.TempDir()
	return func(id uint64) replica.Log {
		s, err := storage.Open(fmt.Sprintf("%s/%d", dir, id), storage.Options{})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		b.Cleanup(func() {
			cancel()
			<-ended
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		return s
	}
}

// BenchmarkPropose commits small commands on three replicas in one process
// over an in-memory transport, with callers that wait for each answer.
func BenchmarkPropose(b *testing.B) {
	for _, log := range []string{"mem", "disk"} {
		for _, callers := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("%s/callers=%d", log, callers), func(b *testing.B) {
				logs := memLogs
				if log == "disk" {
					logs = diskLogs(b)
				}
				// A busy machine stands still longer than an election timeout of
				// 200 ms.
				r := run(b, 3, logs, func(cfg *replica.Config) { cfg.ElectionTicks = 100 })
				l := r.leader(1, 2, 3)
				commands := make([][]*rootv1.Command, callers)
				for i := range commands {
					commands[i] = []*rootv1.Command{command(fmt.Sprint("caller", i))}
				}
				b.ReportAllocs()
				b.ResetTimer()
				each(b, callers, func(i int) error {
					_, err := l.Propose(context.Background(), commands[i])
					return err
				})
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
				r.stop(1, 2, 3)
			})
		}
	}
}

// BenchmarkReadIndex confirms reads on the leader.
func BenchmarkReadIndex(b *testing.B) {
	for _, callers := range []int{1, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := run(b, 3, memLogs, nil)
			l := r.leader(1, 2, 3)
			b.ReportAllocs()
			b.ResetTimer()
			each(b, callers, func(int) error {
				_, err := l.ReadIndex(context.Background())
				return err
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
			r.stop(1, 2, 3)
		})
	}
}

// each spreads b.N calls over callers and reports the slow ones.
func each(b *testing.B, callers int, fn func(caller int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	var slowest atomic.Int64
	var failed sync.Once
	for caller := range callers {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				began := time.Now()
				if err := fn(caller); err != nil {
					failed.Do(func() { b.Error(err) })
					return
				}
				if d := int64(time.Since(began)); d > slowest.Load() {
					slowest.Store(d)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(slowest.Load())/1e6, "max-ms")
}
