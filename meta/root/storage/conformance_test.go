package storage_test

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// TestConformance: as raft.Storage, it answers as raft.MemoryStorage does,
// before and after being closed and opened again.
func TestConformance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := disk.NewFake(1)
		s, err := storage.Open(workdir, onFake(f))
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		check(err)
		m := raft.NewMemoryStorage()
		term, commit := uint64(1), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				last, _ := m.LastIndex()
				first := rapid.Uint64Range(commit+1, last+1).Draw(t, "first")
				term += rapid.Uint64Range(0, 1).Draw(t, "term")
				es := entries(first, first+rapid.Uint64Range(0, 6).Draw(t, "count"), term, rapid.IntRange(0, 900).Draw(t, "size"))
				hs := hard(term, 0, commit)
				check(s.Append(hs, es, rapid.Bool().Draw(t, "sync")))
				check(errors.Join(m.Append(es), m.SetHardState(hs)))
			},
			"hard state": func(t *rapid.T) {
				last, _ := m.LastIndex()
				commit = rapid.Uint64Range(commit, last).Draw(t, "commit")
				hs := hard(term, rapid.Uint64Range(0, 3).Draw(t, "vote"), commit)
				check(s.Append(hs, nil, rapid.Bool().Draw(t, "sync")))
				check(m.SetHardState(hs))
			},
			"checkpoint": func(t *rapid.T) {
				snap, _ := m.Snapshot()
				if commit <= snap.GetMetadata().GetIndex() {
					return
				}
				at, err := m.Term(commit)
				check(err)
				check(s.WriteCheckpoint(meta(commit, at), yieldRecords(commit)))
				_, err = m.CreateSnapshot(commit, nil, nil)
				check(err)
			},
			"compact": func(t *rapid.T) {
				snap, _ := m.Snapshot()
				first, _ := m.FirstIndex()
				if snap.GetMetadata().GetIndex() < first {
					return
				}
				to := rapid.Uint64Range(first, snap.GetMetadata().GetIndex()).Draw(t, "to")
				check(s.Compact(to))
				check(m.Compact(to))
			},
			"reopen": func(t *rapid.T) {
				check(s.Close())
				s, err = storage.Open(workdir, onFake(f))
				check(err)
				// Whole segments go, so that more may be retained: drop it.
				if first, _ := m.FirstIndex(); first > 1 {
					check(s.Compact(first - 1))
				}
			},
			"": func(t *rapid.T) { compareStorages(t, s, m) },
		})
	})
}

func compareStorages(t *rapid.T, s, m raft.Storage) {
	ask := func(st raft.Storage) string {
		hs, _, err := st.InitialState()
		first, _ := st.FirstIndex()
		last, _ := st.LastIndex()
		out := fmt.Sprintln(hs.GetTerm(), hs.GetVote(), hs.GetCommit(), err, first, last)
		for i := uint64(0); i <= last+2; i++ {
			term, err := st.Term(i)
			out += fmt.Sprintln(i, term, err)
		}
		snap, err := st.Snapshot()
		return out + fmt.Sprintln(snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm(), err)
	}
	if a, b := ask(s), ask(m); a != b {
		t.Fatalf("got:\n%s\nwant:\n%s", a, b)
	}
	first, _ := m.FirstIndex()
	last, _ := m.LastIndex()
	lo := rapid.Uint64Range(0, last).Draw(t, "lo")
	hi := rapid.Uint64Range(max(lo, first), last+1).Draw(t, "hi")
	if last < first {
		return
	}
	size := rapid.Uint64Range(0, 3000).Draw(t, "size")
	a, errA := s.Entries(lo, hi, size)
	b, errB := m.Entries(lo, hi, size)
	if errA != errB || len(a) != len(b) {
		t.Fatalf("entries [%d, %d) up to %d bytes: %d, %v; want %d, %v", lo, hi, size, len(a), errA, len(b), errB)
	}
	for i := range a {
		if !sameEntry(a[i], b[i]) {
			t.Fatalf("entry %v, want %v", a[i], b[i])
		}
	}
}

// TestEntrySizes: sizes are those of the wire, or limits would differ.
func TestEntrySizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := storage.Open(workdir, onFake(disk.NewFake(1)))
		if err != nil {
			t.Fatal(err)
		}
		term := rapid.Uint64Range(1, 1<<63).Draw(t, "term")
		a, b := entry(1, term, rapid.StringN(0, -1, 300).Draw(t, "data")), entry(2, term, "x")
		if rapid.Bool().Draw(t, "conf") {
			a.Type = raftpb.EntryConfChangeV2.Enum()
		}
		if err := s.Append(nil, []*raftpb.Entry{a, b}, true); err != nil {
			t.Fatal(err)
		}
		both := uint64(proto.Size(a) + proto.Size(b))
		for limit, want := range map[uint64]int{both: 2, both - 1: 1, 0: 1} {
			if got, err := s.Entries(1, 3, limit); err != nil || len(got) != want {
				t.Fatalf("limit %d: %d entries, %v; want %d", limit, len(got), err, want)
			}
		}
	})
}
