package storage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A closed workdir is read as it would be opened, and not a byte of it changes.
func TestOfflineReadsWhatIsCommitted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	want := smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	before := filesOf(t, dir)
	w, err := storage.OpenOffline(dir, storage.Options{})
	must(t, err)
	if w.Identity.NodeID != identity.NodeID || !w.HasCheckpoint || w.Checkpoint.Index != 5 || w.Commit != 8 || w.LastIndex != 10 {
		t.Errorf("%+v", w)
	}
	n := 0
	meta, err := w.ReadCheckpoint(unpacked(func(*rootv1.Record) error { n++; return nil }))
	if err != nil || meta.Index != 5 || n != len(records(5)) {
		t.Errorf("%d records of %+v, %v", n, meta, err)
	}
	at := uint64(5)
	err = w.Entries(func(e *raftpb.Entry) error {
		at++
		if !sameEntry(e, want.log[at-1]) {
			t.Errorf("entry %d differs", at)
		}
		return nil
	})
	if err != nil || at != 8 {
		t.Errorf("read up to %d, %v; want all that is committed, 8", at, err)
	}
	stop := errors.New("stop")
	if err := w.Entries(func(*raftpb.Entry) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if _, err := storage.Open(dir, storage.Options{}); !errors.As(err, new(*storage.LockedError)) {
		t.Errorf("a peer could start while its workdir was read: %v", err)
	}
	must(t, w.Close())
	must(t, w.Close())
	for name, b := range filesOf(t, dir) {
		if before[name] != b {
			t.Errorf("%s was changed", name)
		}
	}
}

func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		out[name] = string(b)
		return err
	}))
	return out
}

func TestOfflineRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	if _, err := storage.OpenOffline(dir, storage.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	must(t, os.Mkdir(dir, 0o700))
	if _, err := storage.OpenOffline(dir, storage.Options{}); err == nil {
		t.Error("an empty folder was read")
	}
	s := openReal(t, dir)
	if _, err := storage.OpenOffline(dir, storage.Options{}); !errors.As(err, new(*storage.LockedError)) {
		t.Errorf("in use: %v", err)
	}
	must(t, s.Close())
	w, err := storage.OpenOffline(dir, storage.Options{})
	must(t, err)
	if _, err := w.ReadCheckpoint(nil); !errors.Is(err, storage.ErrNoCheckpoint) || w.LastIndex != 0 {
		t.Errorf("fresh: last index %d, %v", w.LastIndex, err)
	}
	must(t, w.Close())
}

// Damage is refused with file and offset, never read over.
func TestOfflineRefusesDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	for name, spoil := range map[string]func(f *disk.Fake) error{
		"log":        func(f *disk.Fake) error { return flip(f, walPath+"0000000000000001.wal", 512+60) },
		"checkpoint": func(f *disk.Fake) error { return flip(f, checkpointPath, 90) },
		"no log":     func(f *disk.Fake) error { return removeAll(f, walPath) },
		"registers":  func(f *disk.Fake) error { return f.Remove(registersPath) },
	} {
		f := onDisk(t, dir)
		must(t, spoil(f))
		w, err := storage.OpenOffline(workdir, onFake(f))
		if err == nil {
			_, err = w.ReadCheckpoint(func([]byte) error { return nil })
			must(t, w.Close())
		}
		if !isDamage(err) {
			t.Errorf("%s: %v, want damage", name, err)
			continue
		}
		// What loses acknowledged entries, or makes another cluster, is no advice.
		if said := err.Error(); strings.Contains(said, "backup") || !strings.Contains(said, "never") || !strings.Contains(said, "older copy") || !strings.Contains(said, "replace this peer") {
			t.Errorf("%s: the advice is %q", name, said)
		}
	}
}

func flip(f *disk.Fake, name string, at int64) error {
	h, err := f.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := h.ReadAt(b, at); err != nil {
		return errors.Join(err, h.Close())
	}
	b[0] ^= 4
	_, err = h.WriteAt(b, at)
	return errors.Join(err, h.Close())
}

func removeAll(f *disk.Fake, dir string) error {
	names, err := f.ReadDir(dir)
	for _, name := range names {
		err = errors.Join(err, f.Remove(dir+name))
	}
	return err
}
