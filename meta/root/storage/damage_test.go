package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/test/size"
)

const (
	walPath        = workdir + "/root.events.wal/"
	checkpointPath = workdir + "/root.checkpoint.binpb"
	registersPath  = workdir + "/root.raft.bin"
)

// smallWorkdir fills a workdir with a bit of everything and closes it.
func smallWorkdir(t testing.TB, dir string, o storage.Options) truth {
	t.Helper()
	s, err := storage.Open(dir, o)
	must(t, err)
	must(t, s.SaveIdentity(identity))
	log := append(entries(1, 4, 1, 40), entries(4, 9, 2, 500)...)
	must(t, s.Append(hard(1, 2, 0), log[:3], true))
	must(t, s.Append(hard(2, 3, 3), log[3:6], true))
	must(t, s.Append(hard(2, 3, 8), log[6:], true))
	must(t, s.WriteCheckpoint(meta(5, 2), yieldRecords(5)))
	must(t, s.Maintain())
	must(t, s.Append(hard(3, 1, 8), entries(9, 11, 3, 100), true))
	must(t, s.Close())
	return truth{log: append(log, entries(9, 11, 3, 100)...), hard: hard(3, 1, 8), commit: 8, checkpoint: 5, identity: true}
}

// onDisk puts the files of a real workdir on a fake disk.
func onDisk(t testing.TB, dir string) *disk.Fake {
	t.Helper()
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir+"/root.events.wal", 0))
	for _, pattern := range []string{"root.events.wal/*", "root.checkpoint.binpb"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			must(t, err)
			rel, err := filepath.Rel(dir, name)
			must(t, err)
			h, err := f.OpenFile(workdir+"/"+rel, os.O_RDWR|os.O_CREATE, 0)
			must(t, err)
			_, err = h.WriteAt(b, 0)
			must(t, err)
			must(t, errors.Join(h.Sync(), h.Close()))
		}
	}
	values, err := storage.ReadBolt(filepath.Join(dir, "root.raft.bin"))
	must(t, err)
	r, err := f.OpenRegisters(registersPath)
	must(t, err)
	must(t, r.Put(values))
	for _, d := range []string{".", workdir, workdir + "/root.events.wal"} {
		must(t, f.SyncDir(d))
	}
	return f
}

// openAndCheck opens a workdir and reads all of it: nil when it holds what it
// must, a *DamageError when it was refused.
func openAndCheck(dir string, o storage.Options, want truth) error {
	s, err := storage.Open(dir, o)
	if err != nil {
		return err
	}
	err = want.check(s)
	return errors.Join(err, s.Close())
}

// flipStride is of what is no header. It is odd, so that every bit of a byte is flipped in some byte.
var flipStride = size.Int("flip.stride", 13, 1, "flip one bit in so many")

// TestEveryFlippedBit: a single flipped bit of log and checkpoint, any of them, is
// refused or changes nothing, and Verify sees what Open refuses.
func TestEveryFlippedBit(t *testing.T) {
	dir := t.TempDir()
	want := smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	base := onDisk(t, dir)
	must(t, openAndCheck(workdir, onFake(base.Clone(0)), want))
	names, err := base.ReadDir(workdir + "/root.events.wal")
	must(t, err)
	if len(names) < 2 {
		t.Fatalf("segments: %v", names)
	}
	refused, harmless := 0, 0
	for _, file := range append(names, checkpointPath) {
		if !strings.HasPrefix(file, workdir) {
			file = walPath + file
		}
		st, err := base.Stat(file)
		must(t, err)
		h, err := base.OpenFile(file, os.O_RDWR, 0)
		must(t, err)
		raw := make([]byte, st.Size)
		_, err = h.ReadAt(raw, 0)
		must(t, errors.Join(err, h.Close()))
		for bit := int64(0); bit < st.Size*8; bit++ {
			if bit%int64(*flipStride) != 0 && !inHeader(file, raw, bit/8) {
				continue
			}
			f := base.Clone(1)
			must(t, f.FlipBit(file, bit))
			err := openAndCheck(workdir, onFake(f.Clone(2)), want)
			switch {
			case err == nil:
				harmless++
			case isDamage(err) && strings.Contains(err.Error(), file):
				refused++
				if report, err := storage.Verify(workdir, onFake(f)); err != nil || len(report.Damage) == 0 || report.Damage[0].File != file {
					t.Fatalf("%s bit %d: refused, and verify says %v %+v", file, bit, err, report.Damage)
				}
			default:
				t.Fatalf("%s bit %d: %v", file, bit, err)
			}
		}
	}
	if refused < 100 || harmless < 100 {
		t.Fatalf("refused %d, harmless %d", refused, harmless)
	}
	t.Logf("refused %d, harmless %d", refused, harmless)
}

// TestEveryFlippedBitOfRegisters: the same for the real root.raft.bin; where
// bbolt has checksums of its own or unused room, it is read as it was.
func TestEveryFlippedBitOfRegisters(t *testing.T) {
	dir := t.TempDir()
	want := smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	name := filepath.Join(dir, "root.raft.bin")
	good, err := os.ReadFile(name)
	must(t, err)
	values, err := storage.ReadBolt(name)
	must(t, err)
	spoilt := filepath.Join(t.TempDir(), "root.raft.bin")
	must(t, os.WriteFile(spoilt, good, 0o600))
	h, err := os.OpenFile(spoilt, os.O_RDWR, 0)
	must(t, err)
	defer h.Close()
	refused, harmless := 0, 0
	flip := func(bit int) {
		b := good[bit/8] ^ 1<<(bit%8)
		_, err := h.WriteAt([]byte{b}, int64(bit/8))
		must(t, err)
		got, err := storage.ReadBolt(spoilt)
		switch {
		case err == nil && same(got, values):
			harmless++
		case isDamage(err):
			refused++
		default:
			t.Fatalf("bit %d: %v %q", bit, err, got)
		}
		_, err = h.WriteAt(good[bit/8:bit/8+1], int64(bit/8))
		must(t, err)
	}
	for bit := 0; bit < len(good)*8; bit++ {
		used := good[bit/8] != 0 || bit/8 > 0 && good[bit/8-1] != 0
		each := bit%8 == bit/8%8 // one bit of each byte
		if used && (each || bit%*flipStride == 0) || bit%509 == 0 {
			flip(bit)
		}
	}
	if refused < 20 || harmless < 20 {
		t.Fatalf("refused %d, harmless %d", refused, harmless)
	}
	t.Logf("refused %d, harmless %d", refused, harmless)
	must(t, openAndCheck(dir, storage.Options{SegmentBytes: storage.MinSegmentBytes}, want))
}

// inHeader says whether a byte of the log or of the checkpoint is one of a header, or of the
// footer, that is written.
func inHeader(file string, raw []byte, at int64) bool {
	const (
		sector, segmentHeader, segmentChecksum, frameHeader = 512, 80, 508, 36
		checkpointHeader, chunkHeader, checkpointFooter     = 64, 12, 36
	)
	if file == checkpointPath {
		return at < checkpointHeader+chunkHeader || at >= int64(len(raw))-checkpointFooter
	}
	if at < sector {
		return at < segmentHeader || at >= segmentChecksum
	}
	begin := at / sector * sector
	salt := raw[40:48] // a frame has that of its segment's use
	return at-begin < frameHeader && bytes.Equal(raw[begin+16:begin+24], salt)
}

func same(a, b map[string][]byte) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

var openStride = size.Int("open.stride", 61, 7, "open a workdir with one spoilt byte in so many of its registers")

// TestFlippedRegistersOpen opens real workdirs with spoilt registers.
func TestFlippedRegistersOpen(t *testing.T) {
	dir := t.TempDir()
	o := storage.Options{SegmentBytes: storage.MinSegmentBytes}
	want := smallWorkdir(t, dir, o)
	name := filepath.Join(dir, "root.raft.bin")
	good, err := os.ReadFile(name)
	must(t, err)
	opened := 0
	for byteAt := 0; byteAt < len(good); byteAt += *openStride {
		if good[byteAt] == 0 {
			continue
		}
		opened++
		bad := append([]byte(nil), good...)
		bad[byteAt] ^= 0x10
		copyTo := t.TempDir()
		must(t, os.CopyFS(copyTo, os.DirFS(dir)))
		must(t, os.WriteFile(filepath.Join(copyTo, "root.raft.bin"), bad, 0o600))
		if err := openAndCheck(copyTo, o, want); err != nil && !isDamage(err) {
			t.Fatalf("byte %d: %v", byteAt, err)
		}
	}
	if opened < 10 {
		t.Errorf("%d workdirs were opened", opened)
	}
	t.Logf("%d workdirs opened", opened)
}

// TestLostFiles: a file that is gone is missed, never taken for a fresh start.
func TestLostFiles(t *testing.T) {
	dir := t.TempDir()
	o := storage.Options{SegmentBytes: storage.MinSegmentBytes}
	smallWorkdir(t, dir, o)
	segments, err := filepath.Glob(filepath.Join(dir, "root.events.wal", "*.wal"))
	must(t, err)
	lost := []string{"root.raft.bin", "root.events.wal", "root.checkpoint.binpb"}
	for _, s := range segments[:2] {
		lost = append(lost, "root.events.wal/"+filepath.Base(s))
	}
	for _, name := range lost {
		copyTo := t.TempDir()
		must(t, os.CopyFS(copyTo, os.DirFS(dir)))
		must(t, os.RemoveAll(filepath.Join(copyTo, name)))
		report, err := storage.Verify(copyTo, o)
		if err != nil || len(report.Damage) == 0 || !strings.HasSuffix(report.Damage[0].File, name) {
			t.Errorf("without %s verify says %v %+v", name, err, report)
		}
		var d *storage.DamageError
		if _, err := storage.Open(copyTo, o); !errors.As(err, &d) || !strings.HasSuffix(d.File, name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestSwappedFiles: a file of another workdir, or an older one of this, is
// refused by name.
func TestSwappedFiles(t *testing.T) {
	o := storage.Options{SegmentBytes: storage.MinSegmentBytes}
	dir, other := t.TempDir(), t.TempDir()
	smallWorkdir(t, dir, o)
	old := t.TempDir()
	must(t, os.CopyFS(old, os.DirFS(dir)))
	smallWorkdir(t, other, o)
	s := openReal(t, dir)
	must(t, s.Append(hard(4, 1, 10), entries(11, 14, 4, 900), true))
	must(t, s.WriteCheckpoint(meta(9, 3), yieldRecords(9)))
	must(t, s.Close())
	first := "root.events.wal/0000000000000001.wal"
	spent, err := filepath.Glob(filepath.Join(old, "root.events.wal", "*.wal"))
	must(t, err)
	for _, c := range []struct{ from, name string }{
		{other, first},
		{other, "root.events.wal/0000000000000002.wal"},
		{other, "root.raft.bin"},
		{old, "root.checkpoint.binpb"},
		{old, "root.events.wal/" + filepath.Base(spent[len(spent)-1])},
	} {
		copyTo := t.TempDir()
		must(t, os.CopyFS(copyTo, os.DirFS(dir)))
		b, err := os.ReadFile(filepath.Join(c.from, c.name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(copyTo, c.name), b, 0o600))
		if _, err := storage.Open(copyTo, o); !isDamage(err) {
			t.Errorf("%s of %s: %v", c.name, c.from, err)
		} else if report, err := storage.Verify(copyTo, o); err != nil || len(report.Damage) == 0 {
			t.Errorf("%s of %s: verify says %v %+v", c.name, c.from, err, report)
		}
	}
}

// TestLocked: two processes on one workdir.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s := openReal(t, dir)
	var locked *storage.LockedError
	if _, err := storage.Open(dir, storage.Options{}); !errors.As(err, &locked) || locked.Dir != dir || !errors.Is(err, disk.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	must(t, s.Append(hard(1, 1, 0), entries(1, 3, 1, 0), true))
	must(t, s.Close())
	s = openReal(t, dir)
	must(t, s.Close())
	if report, err := storage.Verify(dir, storage.Options{}); err != nil || report.InUse || len(report.Damage) > 0 || report.LastIndex != 2 {
		t.Fatalf("verify: %v %+v", err, report)
	}
}

// TestNewerFormat: files of a newer release are refused by name.
func TestNewerFormat(t *testing.T) {
	dir := t.TempDir()
	smallWorkdir(t, dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	base := onDisk(t, dir)
	for _, file := range []string{walPath + "0000000000000001.wal", checkpointPath} {
		f := base.Clone(1)
		must(t, newerVersion(f, file))
		var v *storage.VersionError
		if _, err := storage.Open(workdir, onFake(f.Clone(1))); !errors.As(err, &v) || v.File != file || v.Found != 2 || v.Known != 1 {
			t.Errorf("%s: %v", file, err)
		}
		if report, err := storage.Verify(workdir, onFake(f)); err != nil || len(report.Damage) == 0 || !strings.Contains(report.Damage[0].What, "newer") {
			t.Errorf("%s: verify says %v %+v", file, err, report)
		}
	}
	r, err := base.OpenRegisters(registersPath)
	must(t, err)
	must(t, r.Put(map[string][]byte{"format": []byte(`{"version":9,"log":"00"}`)}))
	var v *storage.VersionError
	if _, err := storage.Open(workdir, onFake(base)); !errors.As(err, &v) || v.Found != 9 {
		t.Errorf("registers: %v", err)
	}
}

// newerVersion raises the version in a header and makes its checksum right.
func newerVersion(f *disk.Fake, file string) error {
	h, err := f.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	size := 512
	if file == checkpointPath {
		size = 64
	}
	b := make([]byte, size)
	if _, err := h.ReadAt(b, 0); err != nil && err != io.EOF {
		return err
	}
	b[8]++
	putChecksum(b)
	_, err = h.WriteAt(b, 0)
	return err
}
