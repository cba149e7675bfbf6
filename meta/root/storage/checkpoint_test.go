package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// withLog opens a fake workdir that holds entries [1, n].
func withLog(t testing.TB, n uint64) (*storage.Storage, *disk.Fake) {
	t.Helper()
	f := disk.NewFake(5)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.SaveIdentity(identity))
	must(t, s.Append(hard(1, 1, n), entries(1, n+1, 1, 50), true))
	return s, f
}

func TestCheckpointRefusals(t *testing.T) {
	s, _ := withLog(t, 20)
	boom := errors.New("boom")
	err := s.WriteCheckpoint(meta(10, 1), func(yield func([]byte) error) error {
		must(t, yield(encoded(records(10)[0])))
		return boom
	})
	if err != boom {
		t.Fatalf("error of the records: %v", err)
	}
	if _, ok := s.Checkpoint(); ok {
		t.Fatal("half a checkpoint is current")
	}
	if _, _, err := s.OpenCheckpoint(); !errors.Is(err, storage.ErrNoCheckpoint) {
		t.Fatalf("open: %v", err)
	}
	if err := s.WriteCheckpoint(meta(21, 1), yieldRecords(21)); err == nil {
		t.Fatal("a checkpoint beyond the log")
	}
	if err := s.WriteCheckpoint(meta(10, 2), yieldRecords(10)); err == nil {
		t.Fatal("a checkpoint of another term")
	}
	must(t, s.WriteCheckpoint(meta(10, 1), yieldRecords(10)))
	if err := s.WriteCheckpoint(meta(10, 1), yieldRecords(10)); !errors.Is(err, storage.ErrOutdated) {
		t.Fatalf("the same again: %v", err)
	}
	// Nothing of this harmed the storage.
	must(t, s.Append(nil, entries(21, 23, 1, 0), true))
	must(t, checkCheckpoint(s, 10))
}

// TestReadingEndsWithTheReader: an error of who takes the records ends a read of
// many chunks, and is returned.
func TestReadingEndsWithTheReader(t *testing.T) {
	s, _ := withLog(t, 10)
	record := &rootv1.Record{Kind: &rootv1.Record_Region{Region: &rootv1.Region{StartKey: make([]byte, 200<<10)}}}
	must(t, s.WriteCheckpoint(meta(10, 1), func(yield func([]byte) error) error {
		for range 20 {
			must(t, yield(encoded(record)))
		}
		return nil
	}))
	for taken := range 20 {
		boom := errors.New("boom")
		n := 0
		if _, err := s.ReadCheckpoint(unpacked(func(*rootv1.Record) error {
			if n++; n > taken {
				return boom
			}
			return nil
		})); !errors.Is(err, boom) || n != taken+1 {
			t.Fatalf("after %d records: %v", n, err)
		}
	}
}

// TestChunksAreTheReaders: what was handed out stays as it is while more is read.
func TestChunksAreTheReaders(t *testing.T) {
	s, _ := withLog(t, 10)
	region := func(i int) *rootv1.Record {
		return &rootv1.Record{Kind: &rootv1.Record_Region{Region: &rootv1.Region{
			Id: uint64(i) + 1, StartKey: fmt.Appendf(nil, "%010d", i), EndKey: fmt.Appendf(nil, "%010d", i+1), Owners: []*rootv1.Owner{{MemberId: "m"}},
		}}}
	}
	const n = 50_000
	must(t, s.WriteCheckpoint(meta(10, 1), func(yield func([]byte) error) error {
		for i := range n {
			must(t, yield(encoded(region(i))))
		}
		return nil
	}))
	var chunks [][]byte
	_, err := s.ReadCheckpoint(func(packed []byte) error {
		chunks = append(chunks, packed)
		return nil
	})
	must(t, err)
	var got []*rootv1.Record
	for _, packed := range chunks {
		must(t, unpacked(func(r *rootv1.Record) error {
			got = append(got, r)
			return nil
		})(packed))
	}
	for i, r := range got {
		if !proto.Equal(r, region(i)) {
			t.Fatalf("record %d: %v", i, r)
		}
	}
	if len(got) != n {
		t.Errorf("%d records", len(got))
	}
}

// TestCompactStopsAtTheCheckpoint: entries behind it are kept, asked or not.
func TestCompactStopsAtTheCheckpoint(t *testing.T) {
	s, _ := withLog(t, 20)
	must(t, s.Compact(15))
	if first, _ := s.FirstIndex(); first != 1 {
		t.Fatalf("compacted to %d without a checkpoint", first)
	}
	must(t, s.WriteCheckpoint(meta(10, 1), yieldRecords(10)))
	must(t, s.Compact(15))
	if first, _ := s.FirstIndex(); first != 11 {
		t.Fatalf("first index %d", first)
	}
	if _, err := s.Committed(10, 12, 1000); !errors.Is(err, storage.ErrCompacted) {
		t.Fatalf("committed: %v", err)
	}
	if term, err := s.Term(10); term != 1 || err != nil {
		t.Fatalf("term: %d, %v", term, err)
	}
}

func TestReceiveRefusals(t *testing.T) {
	good := foreignCheckpoint(t, 40, 5)
	s, f := withLog(t, 20)
	boom := errors.New("boom")
	if _, err := s.ReceiveCheckpoint(io.MultiReader(bytes.NewReader(good[:100]), iotest.ErrReader(boom))); !errors.Is(err, boom) {
		t.Fatalf("broken stream: %v", err)
	}
	for cut := range good {
		if _, err := s.ReceiveCheckpoint(bytes.NewReader(good[:cut])); err == nil {
			t.Fatalf("cut to %d of %d bytes: accepted", cut, len(good))
		}
	}
	for bit := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := s.ReceiveCheckpoint(bytes.NewReader(bad)); err == nil {
			t.Fatalf("bit %d flipped: accepted", bit)
		}
	}
	if _, err := s.ReceiveCheckpoint(bytes.NewReader(append(bytes.Clone(good), 0))); err == nil {
		t.Fatal("a byte too many: accepted")
	}
	if err := s.InstallCheckpoint(meta(40, 5)); !errors.Is(err, storage.ErrNoCheckpoint) {
		t.Fatalf("install of nothing: %v", err)
	}
	names, err := f.ReadDir(workdir)
	must(t, err)
	for _, n := range names {
		if strings.HasSuffix(n, ".incoming") {
			t.Fatal("a refused checkpoint was left behind")
		}
	}
	must(t, s.Append(nil, entries(21, 22, 1, 0), true))
}

// TestReceiveChecksRecords: a checkpoint whose sums are right and whose records are
// not would end the peer at every start: it is refused when it comes, and found by
// Verify where it is.
func TestReceiveChecksRecords(t *testing.T) {
	good := foreignCheckpoint(t, 40, 5)
	f := disk.NewFake(5)
	o := onFake(f)
	s, err := storage.Open(workdir, o)
	must(t, err)
	must(t, s.SaveIdentity(identity))
	got, err := s.ReceiveCheckpoint(bytes.NewReader(good))
	must(t, err)
	must(t, s.InstallCheckpoint(got))
	must(t, s.Close())

	o.CheckRecords = func([]byte) error { return errors.New("boom") }
	report, err := storage.Verify(workdir, o)
	must(t, err)
	if len(report.Damage) != 1 || !strings.Contains(report.Damage[0].What, "boom") || report.Damage[0].Offset == 0 {
		t.Errorf("damage: %v", report.Damage)
	}
	s, err = storage.Open(workdir, o)
	must(t, err)
	if _, err := s.ReceiveCheckpoint(bytes.NewReader(foreignCheckpoint(t, 50, 5))); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("received: %v", err)
	}
}

// TestReceiveDuringReceive: one owner of the incoming file.
func TestReceiveDuringReceive(t *testing.T) {
	good := foreignCheckpoint(t, 40, 5)
	s, _ := withLog(t, 20)
	r, w := io.Pipe()
	done := make(chan error)
	var got storage.CheckpointMeta
	go func() {
		var err error
		got, err = s.ReceiveCheckpoint(r)
		done <- err
	}()
	_, err := w.Write(good[:50])
	must(t, err)
	if _, err := s.ReceiveCheckpoint(bytes.NewReader(good)); !errors.Is(err, storage.ErrReceiving) {
		t.Fatalf("second receive: %v", err)
	}
	if err := s.InstallCheckpoint(meta(40, 5)); !errors.Is(err, storage.ErrReceiving) {
		t.Fatalf("install during a receive: %v", err)
	}
	_, err = w.Write(good[50:])
	must(t, err)
	must(t, w.Close())
	must(t, <-done)
	must(t, s.InstallCheckpoint(got))
	if first, _ := s.FirstIndex(); first != 41 {
		t.Fatalf("first index %d", first)
	}
	must(t, checkCheckpoint(s, 40))
	if err := s.InstallCheckpoint(got); !errors.Is(err, storage.ErrNoCheckpoint) {
		t.Fatalf("installed twice: %v", err)
	}
	must(t, s.Append(hard(5, 1, 41), entries(41, 43, 5, 0), true))
}

// TestHeldCheckpointIsNotReplaced: between the decision to install it and the
// install nothing can take its place; released, it can be replaced.
func TestHeldCheckpointIsNotReplaced(t *testing.T) {
	s, _ := withLog(t, 20)
	first, err := s.ReceiveCheckpoint(bytes.NewReader(foreignCheckpoint(t, 40, 5)))
	must(t, err)
	if s.HoldCheckpoint(meta(41, 5)) {
		t.Fatal("held what was never received")
	}
	for range 2 {
		if !s.HoldCheckpoint(first) {
			t.Fatal("not held")
		}
		if s.HoldCheckpoint(meta(41, 5)) { // And the first one stays held.
			t.Fatal("held another one")
		}
	}
	newer := foreignCheckpoint(t, 50, 5)
	if _, err := s.ReceiveCheckpoint(bytes.NewReader(newer)); !errors.Is(err, storage.ErrReceiving) {
		t.Fatalf("receive while one is held: %v", err)
	}
	s.ReleaseCheckpoint()
	second, err := s.ReceiveCheckpoint(bytes.NewReader(newer))
	must(t, err)
	if s.HoldCheckpoint(first) || !s.HoldCheckpoint(second) {
		t.Fatal("the newer one did not replace the older one")
	}
	must(t, s.InstallCheckpoint(second))
	s.ReleaseCheckpoint()
	must(t, checkCheckpoint(s, 50))
	if _, err := s.ReceiveCheckpoint(bytes.NewReader(foreignCheckpoint(t, 60, 5))); err != nil {
		t.Fatalf("receive after an install: %v", err)
	}
}

// TestOldCheckpointStaysReadable: a transfer goes on while a newer one lands.
func TestOldCheckpointStaysReadable(t *testing.T) {
	s, _ := withLog(t, 20)
	must(t, s.WriteCheckpoint(meta(10, 1), yieldRecords(10)))
	in, m, err := s.OpenCheckpoint()
	must(t, err)
	must(t, s.WriteCheckpoint(meta(20, 1), yieldRecords(20)))
	b, err := io.ReadAll(in)
	must(t, err)
	must(t, in.Close())
	other, err := storage.Open("other", onFake(disk.NewFake(1)))
	must(t, err)
	got, err := other.ReceiveCheckpoint(bytes.NewReader(b))
	must(t, err)
	if got != m || got.Index != 10 {
		t.Fatalf("received %+v, opened %+v", got, m)
	}
}
