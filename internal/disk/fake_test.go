package disk_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"github.com/nokv/nokv/internal/disk"
)

func create(t *testing.T, f disk.FS, name, content string) disk.File {
	t.Helper()
	h, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.WriteAt([]byte(content), 0); err != nil {
		t.Fatal(err)
	}
	return h
}

func content(f disk.FS, name string) (string, error) {
	h, err := f.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer h.Close()
	size, err := h.Size()
	if err != nil {
		return "", err
	}
	b := make([]byte, size)
	if _, err := h.ReadAt(b, 0); err != nil && err != io.EOF {
		return "", err
	}
	return string(b), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSyncedSurvives: what was synced, name and bytes, is there after any crash.
func TestSyncedSurvives(t *testing.T) {
	for seed := range uint64(100) {
		f := disk.NewFake(seed)
		must(t, f.MkdirAll("d", 0o700))
		must(t, f.SyncDir("."))
		h := create(t, f, "d/a", "durable")
		must(t, h.Sync())
		must(t, f.SyncDir("d"))
		f.Reboot()
		if got, err := content(f, "d/a"); err != nil || got != "durable" {
			t.Fatalf("seed %d: %q, %v", seed, got, err)
		}
		if _, err := h.ReadAt(make([]byte, 1), 0); !errors.Is(err, disk.ErrCrashed) {
			t.Fatalf("a file stayed open over a crash: %v", err)
		}
	}
}

// TestUnsyncedFates: each sector is kept, lost or spoilt, each name kept or
// lost, and over many seeds every one of these happens.
func TestUnsyncedFates(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		f := disk.NewFake(seed)
		h := create(t, f, "a", string(make([]byte, 3*disk.SectorBytes)))
		must(t, h.Sync())
		must(t, f.SyncDir("."))
		_, err := h.WriteAt(bytes.Repeat([]byte{1}, 2*disk.SectorBytes), 0)
		must(t, err)
		must(t, f.Rename("a", "b"))
		f.Reboot()
		name := "a"
		if _, err := f.Stat("b"); err == nil {
			name = "b"
		}
		seen["name "+name]++
		got, err := content(f, name)
		must(t, err)
		for i := range 3 {
			seen[sector(i, got[i*disk.SectorBytes:][:disk.SectorBytes])]++
		}
	}
	for _, want := range []string{"name a", "name b", "0 kept", "0 lost", "0 garbage", "1 kept", "1 lost", "1 garbage"} {
		if seen[want] < 30 {
			t.Errorf("%s: %d times in 300", want, seen[want])
		}
	}
	if seen["2 lost"] != 300 {
		t.Errorf("a sector that was not written changed: %v", seen)
	}
}

func sector(i int, got string) string {
	name := string(rune('0' + i))
	switch got {
	case string(bytes.Repeat([]byte{1}, disk.SectorBytes)):
		return name + " kept"
	case string(make([]byte, disk.SectorBytes)):
		return name + " lost"
	}
	return name + " garbage"
}

// TestFailedSyncForgets: after a sync that failed, a sync that succeeds does
// not bring the bytes back, though readers see them until the crash.
func TestFailedSyncForgets(t *testing.T) {
	lost := 0
	for seed := range uint64(60) {
		f := disk.NewFake(seed)
		h := create(t, f, "a", "old")
		must(t, h.Sync())
		must(t, f.SyncDir("."))
		_, err := h.WriteAt([]byte("new"), 0)
		must(t, err)
		f.SetFault(func(op disk.Op) disk.Fault { return disk.Fault{Err: syscall.EIO} })
		if err := h.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		f.SetFault(nil)
		must(t, h.Sync())
		if got, _ := content(f, "a"); got != "new" {
			t.Fatalf("seed %d: a reader sees %q", seed, got)
		}
		f.Reboot()
		if got, _ := content(f, "a"); got != "new" {
			lost++
		}
	}
	if lost < 20 {
		t.Fatalf("a failed sync lost its bytes %d times in 60", lost)
	}
}

func TestFaults(t *testing.T) {
	f := disk.NewFake(1)
	h := create(t, f, "a", "0123456789")
	fail := func(fault disk.Fault) {
		f.SetFault(func(disk.Op) disk.Fault { return fault })
	}
	fail(disk.Fault{Err: syscall.EIO, Short: 3})
	if n, err := h.WriteAt([]byte("abcdef"), 0); n != 3 || !errors.Is(err, syscall.EIO) {
		t.Fatalf("short write: %d, %v", n, err)
	}
	fail(disk.Fault{Err: syscall.EIO, Effect: true})
	if err := f.Rename("a", "b"); !errors.Is(err, syscall.EIO) {
		t.Fatalf("rename: %v", err)
	}
	f.SetFault(nil)
	if got, err := content(f, "b"); err != nil || got != "abc3456789" {
		t.Fatalf("%q, %v", got, err)
	}
	f.SetCapacity(12)
	if _, err := h.WriteAt([]byte("xyz"), 10); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("full disk: %v", err)
	}
	must(t, f.FlipBit("b", 8))
	if got, _ := content(f, "b"); got != "acc3456789" {
		t.Fatalf("flipped: %q", got)
	}
	fail(disk.Fault{Crash: true})
	if err := h.Sync(); !errors.Is(err, disk.ErrCrashed) {
		t.Fatalf("crash: %v", err)
	}
	f.Kill()
	if got, err := content(f, "b"); err != nil || got != "acc3456789" {
		t.Fatalf("a killed process lost bytes: %q, %v", got, err)
	}
}

func TestLock(t *testing.T) {
	for name, f := range map[string]disk.FS{"fake": disk.NewFake(1), "os": disk.OS()} {
		dir := filepath.Join(t.TempDir(), "work")
		if name == "fake" {
			dir = "work"
		}
		if _, err := f.Lock(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: lock of nothing: %v", name, err)
		}
		must(t, f.MkdirAll(dir, 0o700))
		lock, err := f.Lock(dir)
		must(t, err)
		must(t, lock.Held())
		if _, err := f.Lock(dir); !errors.Is(err, disk.ErrLocked) {
			t.Fatalf("%s: second lock: %v", name, err)
		}
		must(t, f.Rename(dir, dir+".moved"))
		if err := lock.Held(); !errors.Is(err, disk.ErrMoved) {
			t.Fatalf("%s: moved: %v", name, err)
		}
		must(t, f.MkdirAll(dir, 0o700))
		if err := lock.Held(); !errors.Is(err, disk.ErrMoved) {
			t.Fatalf("%s: another one is there: %v", name, err)
		}
		if _, err := f.Lock(dir + ".moved"); !errors.Is(err, disk.ErrLocked) {
			t.Fatalf("%s: lock of what was moved: %v", name, err)
		}
		must(t, lock.Close())
		again, err := f.Lock(dir + ".moved")
		must(t, err)
		must(t, again.Close())
	}
}

// TestFakeBehavesLikeOS runs one script on both when nothing goes wrong.
func TestFakeBehavesLikeOS(t *testing.T) {
	real := script(t, disk.OS(), t.TempDir())
	fake := disk.NewFake(1)
	must(t, fake.MkdirAll("d", 0o700))
	if got := script(t, fake, "d"); !reflect.DeepEqual(got, real) {
		t.Fatalf("fake: %v\nreal: %v", got, real)
	}
}

func script(t *testing.T, f disk.FS, dir string) (out []any) {
	t.Helper()
	at := func(name string) string { return dir + "/" + name }
	class := func(err error) string {
		for name, is := range map[string]error{"exist": fs.ErrExist, "missing": fs.ErrNotExist, "closed": fs.ErrClosed, "eof": io.EOF} {
			if errors.Is(err, is) {
				return name
			}
		}
		if err != nil {
			return "error"
		}
		return "ok"
	}
	see := func(values ...any) { out = append(out, values...) }
	_, err := f.OpenFile(at("a"), os.O_RDWR, 0)
	see(class(err))
	h, err := f.OpenFile(at("a"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	see(class(err))
	n, err := h.WriteAt([]byte("hello"), 700)
	see(n, class(err))
	b := make([]byte, 10)
	n, err = h.ReadAt(b, 698)
	see(n, class(err), string(b))
	n, err = h.ReadAt(b, 5000)
	see(n, class(err))
	size, err := h.Size()
	see(size, class(err), class(h.Sync()))
	_, err = f.OpenFile(at("a"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	see(class(err), class(f.MkdirAll(at("x/y"), 0o700)), class(f.Rename(at("none"), at("b"))))
	see(class(f.Rename(at("a"), at("b"))), class(f.Remove(at("a"))), class(f.SyncDir(dir)), class(f.SyncDir(at("none"))))
	names, err := f.ReadDir(dir)
	see(names, class(err))
	st, err := f.Stat(at("b"))
	see(st, class(err))
	st, err = f.Stat(at("x"))
	see(st, class(err))
	_, err = f.Stat(at("none"))
	see(class(err))
	trunc, err := f.OpenFile(at("b"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	see(class(err))
	size, err = trunc.Size()
	see(size, class(err), class(trunc.Close()), class(trunc.Close()), class(h.Close()), class(f.Remove(at("b"))))
	return out
}

// TestRegisters: a Put is there or not after a crash, and there after it returned.
func TestRegisters(t *testing.T) {
	f := disk.NewFake(3)
	r, err := f.OpenRegisters("r")
	must(t, err)
	must(t, r.Put(map[string][]byte{"a": []byte("1"), "b": []byte("1")}))
	f.SetFault(func(op disk.Op) disk.Fault { return disk.Fault{Crash: true, Effect: op.Kind == disk.OpPut} })
	if err := r.Put(map[string][]byte{"a": []byte("2")}); !errors.Is(err, disk.ErrCrashed) {
		t.Fatal(err)
	}
	f.Reboot()
	values, err := f.ReadRegisters("r")
	must(t, err)
	if string(values["a"]) != "2" || string(values["b"]) != "1" {
		t.Fatalf("%q", values)
	}
}

// TestSameSeedSameFate: a Fake is a function of its seed and its operations.
func TestSameSeedSameFate(t *testing.T) {
	run := func() string {
		f := disk.NewFake(42)
		h := create(t, f, "a", string(make([]byte, 20*disk.SectorBytes)))
		must(t, h.Sync())
		must(t, f.SyncDir("."))
		_, err := h.WriteAt(bytes.Repeat([]byte{9}, 20*disk.SectorBytes), 0)
		must(t, err)
		f.Clone(7)
		f.Reboot()
		got, err := content(f, "a")
		must(t, err)
		return got
	}
	if first, second := run(), run(); first != second {
		t.Fatal("two runs of one seed differ")
	}
}
