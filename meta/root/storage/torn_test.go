package storage_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

func putChecksum(b []byte) {
	n := len(b) - 4
	binary.LittleEndian.PutUint32(b[n:], crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)))
}

// tornAppend leaves a workdir whose last append of several sectors was fully
// written and never acknowledged, and returns where it is.
func tornAppend(t testing.TB) (f *disk.Fake, want truth, file string, lo, hi int64) {
	t.Helper()
	f = disk.NewFake(9)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	want = truth{}.appended(hard(1, 1, 0), entries(1, 4, 1, 60))
	must(t, s.Append(want.hard, want.log, true))
	must(t, s.Maintain())
	f.SetTrace(true)
	f.SetFault(func(op disk.Op) disk.Fault { return disk.Fault{Crash: op.Kind == disk.OpSync, Effect: true} })
	if err := s.Append(hard(2, 1, 3), entries(4, 8, 2, 400), true); err == nil {
		t.Fatal("acknowledged")
	}
	op := f.Trace()[0]
	f.Kill()
	return f, want, op.Name, op.Off, op.Off + op.Len
}

// TestTornTail spoils the last append in every way a crash may, and expects
// what was acknowledged, and room to go on.
func TestTornTail(t *testing.T) {
	base, want, file, lo, hi := tornAppend(t)
	next := want.appended(hard(2, 1, 3), entries(4, 8, 2, 400))
	type tear func(b []byte)
	tears := map[string]tear{"whole": func([]byte) {}}
	sectors := int((hi - lo) / disk.SectorBytes)
	for i := range sectors {
		sector := func(b []byte) []byte { return b[i*disk.SectorBytes:][:disk.SectorBytes] }
		tears[fmt.Sprintf("sector %d zero", i)] = func(b []byte) { clear(sector(b)) }
		tears[fmt.Sprintf("sector %d garbage", i)] = func(b []byte) {
			for j, s := 0, sector(b); j < len(s); j++ {
				s[j] ^= byte(j*7 + 13)
			}
		}
		tears[fmt.Sprintf("only sector %d", i)] = func(b []byte) {
			keep := append([]byte(nil), sector(b)...)
			clear(b)
			copy(sector(b), keep)
		}
		tears[fmt.Sprintf("short before sector %d", i)] = func(b []byte) { clear(b[i*disk.SectorBytes:]) }
		tears[fmt.Sprintf("short inside sector %d", i)] = func(b []byte) { clear(b[i*disk.SectorBytes+20:]) }
		tears[fmt.Sprintf("last byte of sector %d", i)] = func(b []byte) { sector(b)[disk.SectorBytes-1] ^= 1 }
	}
	for name, tear := range tears {
		f := base.Clone(3)
		rewrite(t, f, file, lo, hi, tear)
		d := diary{acked: want, maybe: next}
		if err := survive(f, &d, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func rewrite(t testing.TB, f *disk.Fake, file string, lo, hi int64, change func([]byte)) {
	t.Helper()
	h, err := f.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	b := make([]byte, hi-lo)
	_, err = h.ReadAt(b, lo)
	must(t, err)
	change(b)
	_, err = h.WriteAt(b, lo)
	must(t, err)
	must(t, h.Sync())
	must(t, h.Close())
}

// TestDamageBeforeTheTail: a bad frame with a whole one behind it is refused
// even if no mark covers either.
func TestDamageBeforeTheTail(t *testing.T) {
	for flipped := range 3 {
		f := disk.NewFake(4)
		s, err := storage.Open(workdir, onFake(f))
		must(t, err)
		for i := range uint64(4) {
			must(t, s.Append(nil, entries(i+1, i+2, 1, 60), true))
		}
		f.Kill()
		must(t, f.FlipBit(walPath+"0000000000000001.wal", int64(flipped+1)*disk.SectorBytes*8+400))
		if _, err := storage.Open(workdir, onFake(f)); !isDamage(err) {
			t.Errorf("frame %d: %v", flipped+1, err)
		}
	}
}

// TestRepeatedFrameRepairs: the frame a start repeated covers for the first copy.
func TestRepeatedFrameRepairs(t *testing.T) {
	f := disk.NewFake(4)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	want := truth{}.appended(hard(1, 1, 0), entries(1, 3, 1, 60))
	must(t, s.Append(want.hard, want.log, true))
	f.Kill()
	s, err = storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.Close())
	must(t, f.FlipBit(walPath+"0000000000000001.wal", disk.SectorBytes*8+400))
	must(t, openAndCheck(workdir, onFake(f), want))
}

// TestRewrittenBehindTheOldestSegment: an append that went back into an older
// segment still reads when that segment is gone.
func TestRewrittenBehindTheOldestSegment(t *testing.T) {
	f := disk.NewFake(4)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	want := truth{}
	add := func(lo, hi, term uint64, size int) {
		t.Helper()
		es := entries(lo, hi, term, size)
		want = want.appended(hard(term, 1, 0), es)
		must(t, s.Append(want.hard, es, true))
	}
	add(1, 8, 1, 400)   // fills the first segment
	add(8, 11, 1, 600)  // opens the second
	add(6, 12, 2, 60)   // goes back into the first
	add(12, 20, 2, 300) // and on
	must(t, s.Append(hard(2, 1, 15), nil, true))
	must(t, s.WriteCheckpoint(meta(12, 2), yieldRecords(12)))
	must(t, s.Compact(12))
	must(t, s.Maintain())
	if _, err := f.Stat(walPath + "0000000000000001.wal"); err == nil {
		t.Fatal("the first segment is still there: the test does not test")
	}
	want.hard, want.commit, want.checkpoint, want.compacted = hard(2, 1, 15), 15, 12, 12
	f.Kill()
	must(t, openAndCheck(workdir, onFake(f), want))
}
