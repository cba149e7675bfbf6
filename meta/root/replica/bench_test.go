package replica_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
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

var restartRegions = flag.Int("restart.regions", 200_000, "regions in BenchmarkRestart")

// BenchmarkRestart opens a workdir and builds the state of its checkpoint. It
// reports seconds of processor time beside those that passed, and what is live and
// resident afterwards.
func BenchmarkRestart(b *testing.B) {
	dir := b.TempDir()
	makeCheckpoint(b, dir, *restartRegions)
	runtime.GC()
	var spent time.Duration
	for b.Loop() {
		before := processorTime(b)
		store, err := storage.Open(dir, storage.Options{})
		if err != nil {
			b.Fatal(err)
		}
		st, err := replica.LoadState(store)
		if err != nil || st.RegionCount() != *restartRegions {
			b.Fatal(err)
		}
		spent += processorTime(b) - before
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		resident := memoryOf(b, "VmRSS")
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(resident)/float64(*restartRegions), "resident-B/region")
		b.ReportMetric(float64(m.HeapAlloc)/float64(*restartRegions), "live-B/region")
		runtime.KeepAlive(st)
		st = nil
		b.StartTimer()
	}
	b.ReportMetric(spent.Seconds()/float64(b.N), "cpu-s/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memoryOf is a field of this process's status in bytes.
func memoryOf(b *testing.B, field string) (bytes int) {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			if _, err := fmt.Sscanf(rest, "%d kB", &bytes); err != nil {
				b.Fatal(err)
			}
		}
	}
	return bytes << 10
}

// makeCheckpoint makes a workdir whose checkpoint holds so many regions of one
// owner each.
func makeCheckpoint(b *testing.B, dir string, regions int) {
	b.Helper()
	base := state.New()
	apply := func(e *rootv1.Event) {
		b.Helper()
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		var out state.Applied
		if err == nil {
			err = base.ApplyEntry(1, base.Token().Index+1, data, &out)
		}
		if err != nil || out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			b.Fatal(err, out.Results)
		}
	}
	apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 5, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1}}},
	}}})
	apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: "m1", Address: "m1:1", StartNonce: 1},
	}}})
	var all []*rootv1.Record
	if err := base.Records(func(r *rootv1.Record) error {
		if a := r.GetAllocators(); a != nil {
			a.IdFence = uint64(regions)
		}
		all = append(all, r)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	for i := range regions {
		all = append(all, &rootv1.Record{Kind: &rootv1.Record_Region{Region: &rootv1.Region{
			Id: uint64(i) + 1, KeyspaceId: 1, StartKey: fmt.Appendf(nil, "%010d", i), EndKey: fmt.Appendf(nil, "%010d", i+1),
			Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Owners: []*rootv1.Owner{{MemberId: "m1"}}, Revision: 2,
		}}})
	}
	st, err := state.Restore(base.Token(), func() (*rootv1.Record, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		r := all[0]
		all = all[1:]
		return r, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	store, err := storage.Open(dir, storage.Options{})
	if err != nil {
		b.Fatal(err)
	}
	at := st.Token()
	entries := []*raftpb.Entry{{Index: new(uint64(1)), Term: new(uint64(1))}, {Index: new(uint64(2)), Term: new(uint64(1))}}
	if err := store.Append(&raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(1)), Commit: new(uint64(2))}, entries, true); err != nil {
		b.Fatal(err)
	}
	meta := storage.CheckpointMeta{ClusterID: 5, ClusterIncarnation: at.Incarnation, Index: at.Index, Term: at.Term, StateHash: st.Hash()}
	if err := store.WriteCheckpoint(meta, st.EncodedRecords); err != nil {
		b.Fatal(err)
	}
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
}
