package storage_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// TestConcurrent appends while tail readers, checkpoints, compaction and Run
// go on; for the race detector, and no reader may see a gap.
func TestConcurrent(t *testing.T) {
	f := disk.NewFake(1)
	o := onFake(f)
	o.MarkInterval = time.Microsecond
	s, err := storage.Open(workdir, o)
	must(t, err)
	const n = 600
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	for range 2 {
		wg.Go(func() { follow(t, s, n) })
	}
	wg.Go(func() {
		for at := uint64(0); at < n/2; {
			last, _ := s.LastIndex()
			if last < at+50 {
				continue
			}
			at = last
			if err := s.WriteCheckpoint(meta(at, 1), yieldRecords(at)); err != nil {
				t.Errorf("checkpoint: %v", err)
			}
			if err := s.Compact(at - 20); err != nil {
				t.Errorf("compact: %v", err)
			}
		}
	})
	want := entries(1, n+1, 1, 200)
	for i := range want {
		must(t, s.Append(hard(1, 1, uint64(i)), want[i:i+1], true))
	}
	cancel()
	wg.Wait()
	must(t, s.Close())
	s, err = storage.Open(workdir, o)
	must(t, err)
	first, log, err := retainedLog(s)
	must(t, err)
	for i, e := range log {
		if !sameEntry(e, want[first-1+uint64(i)]) {
			t.Fatalf("entry %v", e)
		}
	}
}

// follow reads the log as a tail reader does, told when it is too late.
func follow(t *testing.T, s *storage.Storage, n uint64) {
	for next := uint64(1); next <= n; {
		es, err := s.Committed(next, math.MaxUint64, 2000)
		if errors.Is(err, storage.ErrCompacted) {
			next, _ = s.FirstIndex()
			continue
		}
		if err != nil {
			t.Errorf("committed: %v", err)
			return
		}
		for _, e := range es {
			if e.GetIndex() != next {
				t.Errorf("entry %d, want %d", e.GetIndex(), next)
				return
			}
			next++
		}
	}
}

// TestLoopDoesNotWaitForMaintenance: whatever disk operation the work in the
// background is at, Compact and Append into a prepared segment go on.
func TestLoopDoesNotWaitForMaintenance(t *testing.T) {
	for _, at := range []disk.OpKind{disk.OpCreate, disk.OpWrite, disk.OpSync, disk.OpRename, disk.OpSyncDir, disk.OpPut} {
		t.Run(string(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := withLog(t, 20)
				must(t, s.WriteCheckpoint(meta(20, 1), yieldRecords(20)))
				must(t, s.Maintain())
				must(t, s.Append(nil, entries(21, 23, 1, 1200), true)) // into the prepared segment
				if at == disk.OpPut {
					must(t, s.Maintain()) // leaves only the mark to put
					must(t, s.Append(nil, entries(23, 24, 1, 10), true))
				}
				release, blocked := make(chan struct{}), new(atomic.Bool)
				f.SetFault(func(op disk.Op) disk.Fault {
					if op.Kind == at && blocked.CompareAndSwap(false, true) {
						<-release
					}
					return disk.Fault{}
				})
				maintained := make(chan error, 1)
				go func() { maintained <- s.Maintain() }()
				synctest.Wait()
				if !blocked.Load() {
					t.Fatal("nothing is under way")
				}
				compacted := make(chan error, 1)
				go func() { compacted <- s.Compact(15) }()
				synctest.Wait()
				select {
				case err := <-compacted:
					must(t, err)
				default:
					t.Error("Compact waits")
				}
				last, _ := s.LastIndex()
				appended := make(chan error, 1)
				go func() { appended <- s.Append(nil, entries(last+1, last+2, 1, 10), true) }()
				synctest.Wait()
				select {
				case err := <-appended:
					must(t, err)
				default:
					t.Error("Append waits")
				}
				close(release)
				must(t, <-maintained)
				must(t, s.Maintain())
				if first, _ := s.FirstIndex(); first != 16 {
					t.Errorf("first index %d", first)
				}
				must(t, s.Close())
			})
		})
	}
}

// TestRunWaitsForWork: after however long without any, what was appended or compacted
// is maintained within MarkInterval, all of it at once.
func TestRunWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := disk.NewFake(1)
		o := onFake(f)
		o.MarkInterval = 50 * time.Millisecond
		s, err := storage.Open(workdir, o)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { must(t, s.Run(ctx)) })
		synctest.Wait()
		puts := new(atomic.Int64)
		f.SetFault(func(op disk.Op) disk.Fault {
			if op.Kind == disk.OpPut {
				puts.Add(1)
			}
			return disk.Fault{}
		})
		for i := uint64(0); i < 3; i++ {
			time.Sleep(time.Hour)
			must(t, s.Append(nil, entries(2*i+1, 2*i+2, 1, 10), true))
			synctest.Wait()
			must(t, s.Append(nil, entries(2*i+2, 2*i+3, 1, 10), true))
			if n := puts.Swap(0); n != 0 {
				t.Errorf("%d marks at once", n)
			}
			time.Sleep(o.MarkInterval)
			synctest.Wait()
			if n := puts.Swap(0); n != 1 {
				t.Errorf("%d marks after two appends", n)
			}
		}
		cancel()
		running.Wait()
		must(t, s.Close())
	})
}

// TestAppendDoesNotWaitForRetirement: an Append that needs a segment, and finds none
// made ahead, makes one, whatever becomes of those that are being retired.
func TestAppendDoesNotWaitForRetirement(t *testing.T) {
	for _, at := range []disk.OpKind{disk.OpPut, disk.OpRename, disk.OpRemove, disk.OpSyncDir} {
		t.Run(string(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := withLog(t, 20)
				for i := uint64(21); i <= 40; i++ { // many segments
					must(t, s.Append(nil, entries(i, i+1, 1, 1200), true))
				}
				must(t, s.WriteCheckpoint(meta(40, 1), yieldRecords(40)))
				must(t, s.Maintain())
				must(t, s.Compact(35)) // More than are kept for use again.
				release, blocked, retiring := make(chan struct{}), new(atomic.Bool), at == disk.OpPut
				f.SetFault(func(op disk.Op) disk.Fault {
					retiring = retiring || op.Kind == disk.OpPut
					if retiring && op.Kind == at && blocked.CompareAndSwap(false, true) {
						<-release
					}
					return disk.Fault{}
				})
				maintained := make(chan error, 1)
				go func() { maintained <- s.Maintain() }()
				synctest.Wait()
				if !blocked.Load() {
					t.Fatal("nothing is under way")
				}
				appended := make(chan error, 1)
				go func() {
					var err error
					for last, _ := s.LastIndex(); last < 60 && err == nil; last++ { // several segments
						err = s.Append(nil, entries(last+1, last+2, 1, 1200), true)
					}
					appended <- err
				}()
				synctest.Wait()
				select {
				case err := <-appended:
					must(t, err)
				default:
					t.Error("Append waits")
				}
				close(release)
				must(t, <-maintained)
				must(t, s.Maintain())
				must(t, s.Close())
				f.SetFault(nil)
				s, err := storage.Open(workdir, onFake(f))
				must(t, err)
				if last, _ := s.LastIndex(); last < 60 {
					t.Errorf("last index %d", last)
				}
				must(t, s.Close())
			})
		})
	}
}

// TestBackgroundFailureStops: when Run fails, so does the next Append.
func TestBackgroundFailureStops(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.Append(hard(1, 1, 0), entries(1, 2, 1, 0), true))
	f.SetFault(func(op disk.Op) disk.Fault {
		if op.Kind == disk.OpPut {
			return disk.Fault{Err: errIO}
		}
		return disk.Fault{}
	})
	var failed *storage.FailedError
	if err := s.Run(t.Context()); !errors.As(err, &failed) || !errors.Is(err, errIO) {
		t.Fatalf("run: %v", err)
	}
	f.SetFault(nil)
	if err := s.Append(nil, entries(2, 3, 1, 0), true); !errors.As(err, &failed) {
		t.Fatalf("append after a failure: %v", err)
	}
	if err := s.Close(); !errors.As(err, &failed) {
		t.Fatalf("close: %v", err)
	}
}

// Whatever Maintain does while an Append begins a segment, a power cut before that
// Append is durable finds what was acknowledged: here a vote in term 7, in the log
// that a checkpoint covers whole.
func TestRetirementWhileASegmentBegins(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := disk.NewFake(seed)
				s, err := storage.Open(workdir, onFake(f))
				must(t, err)
				must(t, s.SaveIdentity(identity))
				must(t, s.Append(hard(1, 1, 20), entries(1, 21, 1, 50), true))
				must(t, s.WriteCheckpoint(meta(20, 1), yieldRecords(20)))
				must(t, s.Compact(20))
				must(t, s.Maintain())
				must(t, s.Append(hard(7, 3, 20), nil, true))
				release, blocked := make(chan struct{}), new(atomic.Bool)
				f.SetFault(func(op disk.Op) disk.Fault {
					if op.Kind == disk.OpWrite && blocked.CompareAndSwap(false, true) {
						<-release
						return disk.Fault{Crash: true}
					}
					return disk.Fault{}
				})
				appended := make(chan error, 1)
				go func() { appended <- s.Append(nil, entries(21, 23, 7, 1500), true) }() // begins a segment
				synctest.Wait()
				if !blocked.Load() {
					t.Fatal("no write is under way")
				}
				maintained := make(chan error, 1)
				go func() { maintained <- s.Maintain() }()
				synctest.Wait()
				close(release)
				<-appended
				<-maintained
				f.Reboot()
				s, err = storage.Open(workdir, onFake(f))
				if err != nil {
					t.Fatalf("power was cut before the append was durable: %v", err)
				}
				hs, _, err := s.InitialState()
				must(t, err)
				if hs.GetTerm() != 7 || hs.GetVote() != 3 {
					t.Errorf("hard state %v, a vote in term 7 was acknowledged", hs)
				}
				must(t, s.Close())
			})
		})
	}
}
