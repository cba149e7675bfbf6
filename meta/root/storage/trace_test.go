package storage_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// traced returns the operations of a step, one a line.
func traced(t *testing.T, f *disk.Fake, step func() error) string {
	t.Helper()
	f.SetTrace(true)
	must(t, step())
	var out []string
	for _, op := range f.Trace() {
		out = append(out, op.String())
	}
	return strings.Join(out, "\n")
}

// TestTrace: the order of disk operations is part of the design.
func TestTrace(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.Append(hard(1, 1, 0), entries(1, 3, 1, 100), true))
	must(t, s.Maintain())
	const (
		one = walPath + "0000000000000001.wal"
		two = walPath + "0000000000000002.wal"
		reg = registersPath
	)
	for _, c := range []struct {
		name string
		step func() error
		want []string
	}{
		{
			"append", func() error { return s.Append(hard(1, 1, 2), entries(3, 6, 1, 100), true) },
			[]string{"write " + one + " [1024, 1536)", "sync " + one},
		},
		{"nothing", func() error { return s.Append(nil, nil, true) }, nil},
		{"commit index alone", func() error { return s.Append(hard(1, 1, 5), nil, false) }, nil},
		{
			"append of several sectors", func() error { return s.Append(nil, entries(6, 8, 1, 700), true) },
			[]string{"write " + one + " [1536, 3072)", "sync " + one},
		},
		{
			"rotation into a prepared segment", func() error { return s.Append(nil, entries(8, 10, 1, 900), true) },
			[]string{"write " + two + " [512, 2560)", "sync " + two},
		},
		{"mark", s.MarkDurable, []string{"put " + reg}},
		{"mark of the same", s.MarkDurable, nil},
		{"prepare", s.Maintain, []string{
			"create " + walPath + "3.spare",
			"write " + walPath + "3.spare [0, 4096)",
			"write " + walPath + "3.spare [0, 512)",
			"sync " + walPath + "3.spare",
			"rename " + walPath + "3.spare -> " + walPath + "0000000000000003.wal",
			"syncdir work/root.events.wal",
		}},
		{"checkpoint", func() error { return s.WriteCheckpoint(meta(9, 1), yieldRecords(9)) }, []string{
			"create " + checkpointPath + ".tmp",
			"write " + checkpointPath + ".tmp [0, 64)",
			"write " + checkpointPath + ".tmp [64, 196)",
			"write " + checkpointPath + ".tmp [196, 232)",
			"sync " + checkpointPath + ".tmp",
			"rename " + checkpointPath + ".tmp -> " + checkpointPath,
			"syncdir work",
			"put " + reg,
		}},
		{"compact", func() error { return s.Compact(8) }, nil},
		{"retire what was compacted", s.Maintain, []string{
			"put " + reg,
			"rename " + one + " -> " + walPath + "4.spare",
			"syncdir work/root.events.wal",
		}},
		{"close", s.Close, []string{"put " + reg}},
	} {
		if got, want := traced(t, f, c.step), strings.Join(c.want, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.name, got, want)
		}
	}
}

// TestCleanStartWritesNothing: after Close a start trusts the log as it is,
// keeps the prepared segment, and only puts the mark.
func TestCleanStartWritesNothing(t *testing.T) {
	f := disk.NewFake(1)
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	must(t, s.Append(hard(1, 1, 0), entries(1, 3, 1, 100), true))
	must(t, s.Maintain())
	must(t, s.Close())
	f.SetTrace(true)
	_, err = storage.Open(workdir, onFake(f))
	must(t, err)
	for _, op := range f.Trace() {
		switch {
		case op.Kind == disk.OpSyncDir, op.Kind == disk.OpPut, !op.Kind.Changes():
		default:
			t.Errorf("a clean start did: %v", op)
		}
	}
}
