package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// noRoom are the words of a file system that has no room.
var noRoom = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// beforeCheckpoint is a workdir of 20 entries with a checkpoint of the ninth.
func beforeCheckpoint(t *testing.T, f *disk.Fake) (*storage.Storage, truth) {
	t.Helper()
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.SaveIdentity(identity))
	log := entries(1, 21, 1, 300)
	must(t, s.Append(hard(1, 2, 20), log, true))
	must(t, s.WriteCheckpoint(meta(9, 1), yieldRecords(9)))
	must(t, s.Compact(9))
	must(t, s.Maintain())
	return s, truth{log: log, hard: hard(1, 2, 20), commit: 20, checkpoint: 9, compacted: 9, identity: true}
}

// lacking makes operations from the nth on, or that one alone, find no room.
func lacking(f *disk.Fake, n int, alone bool, err error) {
	first := f.Ops() + n
	f.SetFault(func(op disk.Op) disk.Fault {
		if op.Kind.Changes() && (op.N == first || op.N > first && !alone) {
			return disk.Fault{Err: &os.PathError{Op: string(op.Kind), Path: op.Name, Err: err}, Short: op.Len / 2}
		}
		return disk.Fault{}
	})
}

// A checkpoint that finds no room, at whatever step, is dropped: what was acknowledged
// stays, appends go on, a crash finds all of it, and a later checkpoint is written.
func TestACheckpointThatFindsNoRoomIsDropped(t *testing.T) {
	incoming := foreignCheckpoint(t, 40, 1)
	for name, attempt := range map[string]func(*storage.Storage) error{
		"write": func(s *storage.Storage) error { return s.WriteCheckpoint(meta(17, 1), yieldRecords(17)) },
		"receive": func(s *storage.Storage) error {
			_, err := s.ReceiveCheckpoint(bytes.NewReader(incoming))
			return err
		},
	} {
		f := disk.NewFake(1)
		s, _ := beforeCheckpoint(t, f)
		f.SetTrace(true)
		must(t, attempt(s))
		ops := f.Trace()
		for n, op := range ops {
			if !op.Kind.Changes() {
				continue
			}
			for _, alone := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%d %s, alone %v", name, n, op.Kind, alone), func(t *testing.T) {
					dropped(t, uint64(n), n+1, alone, noRoom[n%len(noRoom)], attempt)
				})
			}
		}
	}
}

func dropped(t *testing.T, seed uint64, n int, alone bool, cause error, attempt func(*storage.Storage) error) {
	f := disk.NewFake(seed)
	s, want := beforeCheckpoint(t, f)
	lacking(f, n, alone, cause)
	err := attempt(s)
	var lack *storage.NoRoomError
	if !errors.As(err, &lack) || !errors.Is(err, cause) {
		t.Fatalf("it says %v", err)
	}
	if short := s.Shortage(); short.Why == "" || short.Count == 0 {
		t.Errorf("the shortage is %+v", short)
	}
	f.SetFault(nil)
	names, err := f.ReadDir(workdir)
	must(t, err)
	if alone && slices.ContainsFunc(names, func(name string) bool {
		return name == checkpointPath[len(workdir)+1:]+".tmp" || filepath.Ext(name) == ".incoming"
	}) {
		t.Errorf("the unfinished file is left: %q", names)
	}
	c, ok := s.Checkpoint()
	if !ok || c.Index != 9 && c.Index != 17 {
		t.Fatalf("the checkpoint is %+v", c)
	}
	must(t, checkCheckpoint(s, c.Index))
	// What is not durable yet is not counted on.
	must(t, s.Compact(17))
	must(t, s.Maintain())
	if first, _ := s.FirstIndex(); first != 10 {
		t.Errorf("the log begins at %d", first)
	}
	more := entries(21, 24, 1, 300)
	must(t, s.Append(hard(1, 2, 23), more, true))
	want.log = append(want.log, more...)
	want.hard, want.commit = hard(1, 2, 23), 23
	for crash := range uint64(4) {
		g := f.Clone(crash)
		g.Reboot()
		d := diary{acked: want, maybe: want}
		d.maybe.checkpoint = 17
		if err := survive(g, &d, true); err != nil {
			t.Fatalf("crash %d: %v", crash, err)
		}
	}
	must(t, s.WriteCheckpoint(meta(18, 1), yieldRecords(18)))
	if short := s.Shortage(); short.Why != "" || short.Count == 0 {
		t.Errorf("with room the shortage is %+v", short)
	}
	must(t, s.Compact(18))
	must(t, s.Maintain())
	must(t, s.Close())
	want.checkpoint, want.compacted = 18, 18
	d := diary{acked: want, maybe: want}
	must(t, survive(f, &d, true))
}

// A segment that is made ahead can wait for room: the log goes on in the one it has, and
// the next is made when there is room.
func TestASegmentAheadThatFindsNoRoomIsDropped(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	f.SetCapacity(storage.MinSegmentBytes + 2000)
	must(t, s.Maintain())
	if short := s.Shortage(); short.Count != 1 || short.Why == "" {
		t.Errorf("the shortage is %+v", short)
	}
	names, err := f.ReadDir(walPath)
	must(t, err)
	if len(names) != 1 {
		t.Errorf("what was begun is left: %q", names)
	}
	must(t, s.Maintain())
	if short := s.Shortage(); short.Count != 1 {
		t.Errorf("it was tried again, and the log has not grown: %+v", short)
	}
	must(t, s.Append(hard(1, 1, 0), entries(1, 3, 1, 500), true))
	must(t, s.Maintain())
	if short := s.Shortage(); short.Count != 2 {
		t.Errorf("it was not tried again: %+v", short)
	}
	f.SetCapacity(0)
	must(t, s.Append(hard(1, 1, 0), entries(3, 5, 1, 500), true))
	must(t, s.Maintain())
	if short := s.Shortage(); short.Why != "" {
		t.Errorf("with room the shortage is %+v", short)
	}
	if names, err = f.ReadDir(walPath); err != nil || len(names) != 2 {
		t.Errorf("segments %q, %v", names, err)
	}
}

// The log comes first: a checkpoint that is being written gives up the room that a
// segment needs.
func TestTheLogTakesTheRoomOfACheckpoint(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.Append(hard(1, 2, 2), entries(1, 3, 1, 100), true))
	var log []*raftpb.Entry
	appended := make(chan error)
	began := false
	err = s.WriteCheckpoint(meta(2, 1), func(yield func([]byte) error) error {
		record := encoded(records(2)[0])
		for {
			if err := yield(record); err != nil {
				return err
			}
			st, err := f.Stat(checkpointPath + ".tmp")
			if err != nil {
				return err
			}
			if began || st.Size < 1<<20 {
				continue
			}
			began = true
			f.SetCapacity(used(t, f) + storage.MinSegmentBytes - 1) // no room for one more segment
			log = entries(3, 6, 1, 2000)
			go func() { appended <- s.Append(hard(1, 2, 2), log, true) }()
		}
	})
	if !errors.As(err, new(*storage.NoRoomError)) {
		t.Errorf("the checkpoint ended with %v", err)
	}
	if err := <-appended; err != nil {
		t.Errorf("the log found no room: %v", err)
	}
}

// used is the size of all files of a workdir.
func used(t *testing.T, f *disk.Fake) (bytes int64) {
	t.Helper()
	for _, dir := range []string{workdir + "/", walPath} {
		names, err := f.ReadDir(dir)
		must(t, err)
		for _, name := range names {
			st, err := f.Stat(dir + name)
			must(t, err)
			bytes += st.Size
		}
	}
	return bytes
}

// A start writes the registers where they are: it needs no room for them.
func TestAStartCopiesNoRegisters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "root.raft.bin")
	r, err := storage.OpenBolt(path)
	must(t, err)
	must(t, r.Put(map[string][]byte{"a": bytes.Repeat([]byte("a"), 2000)}))
	must(t, r.Close())
	before, err := os.Stat(path)
	must(t, err)
	for n := range 21 {
		r, err = storage.OpenBolt(path)
		must(t, err)
		value := bytes.Repeat([]byte{byte(n)}, 2000)
		must(t, r.Put(map[string][]byte{"a": value}))
		must(t, r.Close())
		if values, err := storage.ReadBolt(path); err != nil || !bytes.Equal(values["a"], value) {
			t.Fatalf("start %d: %d bytes, %v", n, len(values["a"]), err)
		}
	}
	after, err := os.Stat(path)
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("a start made another file")
	}
	if after.Size() != before.Size() || after.Sys().(*syscall.Stat_t).Blocks != before.Sys().(*syscall.Stat_t).Blocks {
		t.Errorf("the file grew from %d to %d bytes, %d to %d blocks", before.Size(), after.Size(),
			before.Sys().(*syscall.Stat_t).Blocks, after.Sys().(*syscall.Stat_t).Blocks)
	}
}

// The lock is the folder's: no file that is removed gives it up.
func TestNothingRemovedGivesUpTheLock(t *testing.T) {
	dir := t.TempDir()
	s := openReal(t, dir)
	names, err := os.ReadDir(dir)
	must(t, err)
	for _, name := range names {
		if !name.IsDir() {
			must(t, os.Remove(filepath.Join(dir, name.Name())))
		}
	}
	if _, err := storage.Open(dir, storage.Options{}); !errors.As(err, new(*storage.LockedError)) {
		t.Errorf("second open: %v", err)
	}
	must(t, s.Close())
}

// A process whose folder was moved or removed stops: by the name it would write into the
// folder of another one.
func TestAMovedWorkdirStopsItsProcess(t *testing.T) {
	for name, move := range map[string]func(dir string) error{
		"moved":    func(dir string) error { return os.Rename(dir, dir+".moved") },
		"removed":  os.RemoveAll,
		"replaced": func(dir string) error { return errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "work")
			s := openReal(t, dir)
			must(t, s.Append(hard(1, 1, 0), entries(1, 3, 1, 0), true))
			must(t, move(dir))
			var failed *storage.FailedError
			if err := s.Maintain(); !errors.As(err, &failed) || !errors.Is(err, disk.ErrMoved) {
				t.Errorf("it says %v", err)
			}
			if err := s.Append(nil, entries(3, 4, 1, 0), true); !errors.As(err, &failed) {
				t.Errorf("an append says %v", err)
			}
			if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
				t.Errorf("it wrote %v into another folder", names)
			}
			_ = s.Close()
		})
	}
}

// A disk that fills is told of before anything lacks room, and no longer when there is enough.
func TestRoomIsToldBeforeItLacks(t *testing.T) {
	f := disk.NewFake(1)
	s, _ := beforeCheckpoint(t, f)
	defer s.Close()
	room := func() storage.Room {
		t.Helper()
		room, err := s.Room()
		must(t, err)
		return room
	}
	if r := room(); r.Low() != "" {
		t.Errorf("without a limit: %s", r.Low())
	}
	need := int64(room().Need)
	newest, _ := s.Checkpoint()
	if least := int64(4 * newest.Bytes); newest.Bytes == 0 || need <= least {
		t.Errorf("%d bytes are needed, with a checkpoint of %d", need, newest.Bytes)
	}
	f.SetCapacity(1 << 60)
	used := int64(1<<60 - room().Free)
	f.SetCapacity(used + need)
	if r := room(); r.Low() != "" || r.Free != uint64(need) || r.Total != uint64(used+need) {
		t.Errorf("with just enough: %+v: %s", r, r.Low())
	}
	f.SetCapacity(used + need - 1)
	if r := room(); r.Low() == "" || s.Shortage().Why != "" {
		t.Errorf("with a byte too little: %+v, %q lacks room", r, s.Shortage().Why)
	}
	must(t, s.WriteCheckpoint(meta(17, 1), yieldRecords(17))) // there is still enough for what comes next
}

// A file system that does not know its room says 0 of 0.
func TestRoomThatIsNotKnownIsNotLow(t *testing.T) {
	if low := (storage.Room{Free: 0, Total: 0, Need: 128 << 20}).Low(); low != "" {
		t.Errorf("a file system that does not know (0 of 0): %q", low)
	}
}
