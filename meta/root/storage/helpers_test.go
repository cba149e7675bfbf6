package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const workdir = "work"

// onFake are options for a workdir on a fake disk, with tiny segments.
func onFake(f *disk.Fake) storage.Options {
	return storage.Options{
		FS: f,
		OpenRegisters: func(path string) (storage.Registers, error) {
			r, err := f.OpenRegisters(path)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
		ReadRegisters: f.ReadRegisters,
		SegmentBytes:  storage.MinSegmentBytes,
		Recycle:       1,
	}
}

// openReal opens a workdir on the real disk, with tiny segments.
func openReal(t testing.TB, dir string) *storage.Storage {
	t.Helper()
	s, err := storage.Open(dir, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func entry(index, term uint64, data string) *raftpb.Entry {
	e := &raftpb.Entry{Index: &index, Term: &term}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

// entries makes [lo, hi) with data of about size bytes that tell them apart.
func entries(lo, hi, term uint64, size int) []*raftpb.Entry {
	var out []*raftpb.Entry
	for i := lo; i < hi; i++ {
		data := fmt.Sprintf("entry %d of term %d ", i, term)
		for len(data) < size {
			data += string(rune('a' + (i+uint64(len(data)))%26))
		}
		out = append(out, entry(i, term, data))
	}
	return out
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
}

// records are the records of the checkpoint at index.
func records(index uint64) []*rootv1.Record {
	var out []*rootv1.Record
	for i := range 5 + index%3 {
		out = append(out, &rootv1.Record{Kind: &rootv1.Record_Member{Member: &rootv1.Member{
			Id: fmt.Sprintf("m%d-%d", index, i), Address: "127.0.0.1:1", Revision: index,
		}}})
	}
	return out
}

func yieldRecords(index uint64) func(func([]byte) error) error {
	return func(yield func([]byte) error) error {
		for _, r := range records(index) {
			if err := yield(encoded(r)); err != nil {
				return err
			}
		}
		return nil
	}
}

func encoded(r *rootv1.Record) []byte {
	b, err := proto.Marshal(r)
	if err != nil {
		panic(err)
	}
	return b
}

func meta(index, term uint64) storage.CheckpointMeta {
	return storage.CheckpointMeta{ClusterID: 0xc1, ClusterIncarnation: 1, Index: index, Term: term, StateHash: index * 31}
}

var identity = storage.Identity{ClusterID: 0xc1, NodeID: 2, Incarnation: 77, Member: true, Peers: []storage.Peer{
	{NodeID: 1, Incarnation: 76, Address: "a:1"}, {NodeID: 2, Incarnation: 77, Address: "b:1"}, {NodeID: 3, Incarnation: 78, Address: "c:1"},
}}

// foreignCheckpoint is a checkpoint file as another peer would send it.
func foreignCheckpoint(t testing.TB, index, term uint64) []byte {
	t.Helper()
	s, err := storage.Open(workdir, onFake(disk.NewFake(1)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	must(t, s.Append(hard(term, 0, index), entries(1, index+1, term, 0), true))
	must(t, s.WriteCheckpoint(meta(index, term), yieldRecords(index)))
	in, _, err := s.OpenCheckpoint()
	must(t, err)
	b, err := io.ReadAll(in)
	must(t, err)
	must(t, in.Close())
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// retainedLog returns what a reader of the whole log gets.
func retainedLog(s *storage.Storage) (first uint64, log []*raftpb.Entry, err error) {
	if first, err = s.FirstIndex(); err != nil {
		return 0, nil, err
	}
	last, err := s.LastIndex()
	if err != nil {
		return 0, nil, err
	}
	log, err = s.Committed(first, last+1, math.MaxUint64)
	if err == nil && uint64(len(log)) != last+1-first {
		err = fmt.Errorf("log of [%d, %d) gave %d entries", first, last+1, len(log))
	}
	return first, log, err
}

func sameEntry(a, b *raftpb.Entry) bool {
	return a.GetIndex() == b.GetIndex() && a.GetTerm() == b.GetTerm() && a.GetType() == b.GetType() && bytes.Equal(a.GetData(), b.GetData())
}

// unpacked takes packed records and calls fn for each.
func unpacked(fn func(*rootv1.Record) error) func([]byte) error {
	return func(packed []byte) error {
		for len(packed) > 0 {
			b, n := protowire.ConsumeBytes(packed)
			if n < 0 {
				return protowire.ParseError(n)
			}
			packed = packed[n:]
			r := &rootv1.Record{}
			if err := errors.Join(proto.Unmarshal(b, r), fn(r)); err != nil {
				return err
			}
		}
		return nil
	}
}

// readRecords reads the current checkpoint and compares it with what index must hold.
func checkCheckpoint(s *storage.Storage, index uint64) error {
	i := 0
	want := records(index)
	m, err := s.ReadCheckpoint(unpacked(func(r *rootv1.Record) error {
		if i >= len(want) || !proto.Equal(r, want[i]) {
			return fmt.Errorf("record %d of checkpoint %d differs", i, index)
		}
		i++
		return nil
	}))
	if err != nil {
		return err
	}
	if i != len(want) || m.Index != index || m.StateHash != index*31 {
		return fmt.Errorf("checkpoint %d has %d of %d records: %+v", index, i, len(want), m)
	}
	return nil
}

func isDamage(err error) bool {
	var d *storage.DamageError
	return errors.As(err, &d)
}
