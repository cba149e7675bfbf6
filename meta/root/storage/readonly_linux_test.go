package storage_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/nokv/nokv/meta/root/storage"
)

// asReader runs fn as somebody who may read what is below dir and write nothing,
// as on a disk that was put in for inspection. It skips the test where there is nobody
// like that.
func asReader(t *testing.T, dir string, fn func()) {
	t.Helper()
	mode := func(dirs, files fs.FileMode) {
		must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return errors.Join(err, os.Chmod(name, files))
			}
			return os.Chmod(name, dirs)
		}))
	}
	mode(0o555, 0o444)
	defer mode(0o700, 0o600)
	nobody := ""
	var reader sync.WaitGroup
	reader.Go(func() {
		if os.Getuid() == 0 { // whom modes do not stop
			runtime.LockOSThread() // and never unlocked: the thread ends with its user
			must(t, syscall.Setfsuid(65534))
		}
		switch f, err := os.OpenFile(filepath.Join(dir, "root.raft.bin"), os.O_RDWR, 0); {
		case err == nil:
			_ = f.Close()
			nobody = "this process may write everything, whoever it is"
		case !readable(dir):
			nobody = "the folder of temporary files is closed to others"
		default:
			fn()
		}
	})
	reader.Wait()
	if nobody != "" {
		t.Skip("SKIPPED: " + nobody)
	}
}

func readable(dir string) bool {
	_, err := os.ReadDir(dir)
	return err == nil
}

// A workdir that cannot be written is read as any other, and a process that has
// it is noticed.
func TestAWorkdirThatCannotBeWritten(t *testing.T) {
	above := t.TempDir()
	must(t, os.Chmod(filepath.Dir(above), 0o755))
	dir := filepath.Join(above, "work")
	smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	before := filesOf(t, dir)
	asReader(t, dir, func() {
		report, err := storage.Verify(dir, storage.Options{})
		if err != nil || report.InUse || len(report.Damage) != 0 || report.LastIndex != 10 {
			t.Errorf("verify: %+v, %v", report, err)
		}
		w, err := storage.OpenOffline(dir, storage.Options{})
		if err != nil {
			t.Errorf("read: %v", err)
			return
		}
		if _, err := w.ReadCheckpoint(func([]byte) error { return nil }); err != nil {
			t.Errorf("checkpoint: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, b := range filesOf(t, dir) {
		if before[name] != b {
			t.Errorf("%s was changed", name)
		}
	}
	s := openReal(t, dir)
	asReader(t, dir, func() {
		if report, err := storage.Verify(dir, storage.Options{}); err != nil || !report.InUse {
			t.Errorf("verify of a workdir in use: %+v, %v", report, err)
		}
		if _, err := storage.OpenOffline(dir, storage.Options{}); !errors.As(err, new(*storage.LockedError)) {
			t.Errorf("read of a workdir in use: %v", err)
		}
	})
	must(t, s.Close())
}
