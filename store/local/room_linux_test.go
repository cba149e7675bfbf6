package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/store/local"
)

// A full disk refuses writes and breaks nothing: what is there is read, a start works, and
// with room again writes do.
func TestAFullDiskRefusesWrites(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("SKIPPED, AND NOT SHOWN: a full disk needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	work := filepath.Join(dir, "work")
	d, err := local.Open(work, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	write := func(key string, value []byte) error {
		_, err := d.Write(local.Write{Key: []byte(key), Value: value, Admit: func() error { return nil }})
		return err
	}
	filler := filepath.Join(dir, "filler")
	if err := errors.Join(write("a", []byte("1")), os.WriteFile(filler, make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 200<<10)
	for n := 0; err == nil && n < 100; n++ {
		err = write(string(rune('b'+n)), large)
	}
	if !errors.Is(err, local.ErrNoRoom) {
		t.Fatalf("it says %v", err)
	}
	if err := d.Broken(); err != nil {
		t.Errorf("it is broken: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = local.Open(work, 1); err != nil {
		t.Fatal(err)
	}
	if e, err := d.Get([]byte("a")); err != nil || string(e.Value) != "1" {
		t.Errorf("%q, %v", e.Value, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := write("z", large); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// The lock is the folder's, and a folder that was moved is not written any more.
func TestAFolderIsOfOneProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	d, err := local.Open(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if err := os.Remove(filepath.Join(dir, local.File)); err != nil {
		t.Fatal(err)
	}
	if other, err := local.Open(dir, 1); err == nil {
		t.Error("a second process has the folder")
		_ = other.Close()
	}
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := d.Settle(); !errors.Is(err, disk.ErrMoved) || d.Broken() == nil {
		t.Errorf("a folder that was moved: %v", err)
	}
}
