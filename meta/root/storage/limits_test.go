package storage_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// TestBoltSizes: registers of every size are read back, shrinking too.
func TestBoltSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "root.raft.bin")
	for _, size := range []int{0, 10, 700, 1000, 2000, 4090, 9000, 100_000, 5} {
		want := bytes.Repeat([]byte{byte(size)}, size)
		r, err := storage.OpenBolt(path)
		must(t, err)
		must(t, r.Put(map[string][]byte{"a": want, "b": []byte("fixed")}))
		values, err := storage.ReadBolt(path)
		must(t, err)
		must(t, r.Close())
		if !bytes.Equal(values["a"], want) || string(values["b"]) != "fixed" {
			t.Fatalf("size %d: read %d bytes, %q", size, len(values["a"]), values["b"])
		}
		r, err = storage.OpenBolt(path)
		must(t, err)
		if got, err := r.Get("a"); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("size %d: opened with %d bytes, %v", size, len(got), err)
		}
		must(t, r.Close())
	}
}

// TestDiskFull: a full disk is named, ends the storage, and is over when there
// is room again.
func TestDiskFull(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	f.SetCapacity(3 * storage.MinSegmentBytes)
	var want truth
	for i := uint64(1); ; i++ {
		next := want.appended(hard(1, 1, 0), entries(i, i+1, 1, 900))
		if err = s.Append(next.hard, next.log[i-1:], true); err != nil {
			break
		}
		want = next
	}
	var failed *storage.FailedError
	if !errors.As(err, &failed) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("full disk: %v", err)
	}
	f.SetCapacity(0)
	if err := s.Append(nil, entries(1, 2, 1, 0), true); !errors.As(err, &failed) {
		t.Fatalf("retried: %v", err)
	}
	f.Kill()
	d := diary{acked: want, maybe: want}
	must(t, survive(f, &d, true))
}

// TestMisuse: what would break the log is stopped where it is asked for.
func TestMisuse(t *testing.T) {
	for name, misuse := range map[string]func(*storage.Storage){
		"gap":          func(s *storage.Storage) { _ = s.Append(nil, entries(5, 6, 1, 0), true) },
		"hole":         func(s *storage.Storage) { _ = s.Append(nil, append(entries(1, 2, 1, 0), entry(3, 1, "")), true) },
		"early commit": func(s *storage.Storage) { _ = s.Append(hard(1, 1, 9), nil, true) },
	} {
		s, err := storage.Open(workdir, onFake(disk.NewFake(1)))
		must(t, err)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: accepted", name)
				}
			}()
			misuse(s)
		}()
	}
	if _, err := storage.Open(workdir, storage.Options{SegmentBytes: 1000}); err == nil {
		t.Error("a segment size of 1000: accepted")
	}
}
