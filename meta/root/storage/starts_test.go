package storage_test

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
)

// begun opens a workdir and counts a start.
func begun(t *testing.T, f *disk.Fake) (*storage.Storage, freshness.Claim) {
	t.Helper()
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	if _, ok := s.Identity(); !ok {
		must(t, s.SaveIdentity(storage.Identity{ClusterID: 1, NodeID: 2, Incarnation: 3, Member: true}))
	}
	claim, err := s.Begin()
	must(t, err)
	return s, claim
}

// Each start is one more, with a nonce of its own, and remembers those before; a power
// cut right behind it takes none back.
func TestEachStartIsCounted(t *testing.T) {
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir, 0o700))
	var before freshness.Claim
	for i := range uint64(freshness.MaxNonces + 5) {
		_, claim := begun(t, f)
		if claim.Count != i+1 || !claim.Valid() || claim.Newest() == before.Newest() {
			t.Fatalf("start %d claims %+v", i+1, claim)
		}
		if n := len(claim.Nonces); i > 0 && claim.Nonces[n-2] != before.Newest().Nonce || n > freshness.MaxNonces {
			t.Fatalf("start %d does not remember the one before", i+1)
		}
		before = claim
		f.Reboot()
	}
}

// A claim says what the log held when it was opened, whatever came since.
func TestFootingIsThatOfTheStart(t *testing.T) {
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir, 0o700))
	s, _ := begun(t, f)
	hard := &raftpb.HardState{Term: new(uint64(4)), Vote: new(uint64(3)), Commit: new(uint64(0))}
	must(t, s.Append(hard, append(entries(1, 6, 2, 10), entries(6, 9, 4, 10)...), true))
	f.Reboot()
	s, claim := begun(t, f)
	must(t, s.Append(&raftpb.HardState{Term: new(uint64(5))}, entries(9, 12, 5, 10), true))
	for _, c := range []struct {
		p     freshness.Promise
		lacks string
	}{
		{freshness.Promise{Term: 4, Vote: 3, Index: 8, IndexTerm: 4}, ""},
		{freshness.Promise{Term: 3, Vote: 1, Index: 80}, ""},
		{freshness.Promise{Term: 4, Index: 5, IndexTerm: 2}, ""},
		{freshness.Promise{Term: 4, Index: 5, IndexTerm: 3}, "one of term 2 there"},
		{freshness.Promise{Term: 4, Index: 9}, "acknowledged entry 9"},
		{freshness.Promise{Term: 4, Vote: 1}, "voted for root peer 1"},
		{freshness.Promise{Term: 5}, "was in term 5"},
	} {
		if got := claim.Lacks(c.p); (got == "") != (c.lacks == "") || !strings.Contains(got, c.lacks) {
			t.Errorf("%+v: lacks %q, want %q", c.p, got, c.lacks)
		}
	}
}

// What is remembered of another peer: a start is durable when it is admitted, a promise
// with the next mark.
func TestMemoryIsDurable(t *testing.T) {
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir, 0o700))
	s, _ := begun(t, f)
	other := freshness.Claim{History: freshness.History{}.Next(77)}
	if _, err := s.Memory().Admit(9, other); err != nil {
		t.Fatal(err)
	}
	f.Reboot()
	s, _ = begun(t, f)
	if k, ok := s.Memory().Of(9); !ok || k.Start != other.Newest() {
		t.Fatalf("a start that was admitted is forgotten: %+v", k)
	}
	promise := freshness.Promise{Term: 3, Vote: 1, Index: 10, IndexTerm: 2}
	s.Memory().Note(9, other.Newest(), promise)
	ops := f.Ops()
	must(t, s.Append(nil, entries(1, 2, 1, 10), true))
	if n := f.Ops() - ops; n > 2 {
		t.Errorf("an append took %d disk operations: a promise costs the commit path something", n)
	}
	must(t, s.Maintain())
	f.Reboot()
	s, _ = begun(t, f)
	if k, _ := s.Memory().Of(9); k.Now != promise {
		t.Errorf("remembered %+v", k)
	}
}

// A folder that was barred is not started again.
func TestBarredFolder(t *testing.T) {
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir, 0o700))
	s, _ := begun(t, f)
	must(t, s.Bar("root peer 1 says so"))
	f.Reboot()
	s, err := storage.Open(workdir, onFake(f))
	must(t, err)
	_, err = s.Begin()
	if e := new(freshness.StaleError); !errors.As(err, &e) || e.Node != 2 || !strings.Contains(err.Error(), "root peer 1 says so") {
		t.Errorf("a barred folder begins: %v", err)
	}
}

// A folder without the count of its starts is damaged: it could be any copy.
func TestMissingStartsAreDamage(t *testing.T) {
	f := disk.NewFake(1)
	must(t, f.MkdirAll(workdir, 0o700))
	begun(t, f)
	f.Reboot()
	o := onFake(f)
	open := o.OpenRegisters
	o.OpenRegisters = func(path string) (storage.Registers, error) {
		r, err := open(path)
		return without{r, "starts"}, err
	}
	_, err := storage.Open(workdir, o)
	if e := new(storage.DamageError); !errors.As(err, &e) || !strings.Contains(err.Error(), "the starts register is missing") {
		t.Errorf("opened: %v", err)
	}
}

// without are registers that lack one.
type without struct {
	storage.Registers
	key string
}

func (w without) Get(key string) ([]byte, error) {
	if key == w.key {
		return nil, nil
	}
	return w.Registers.Get(key)
}
