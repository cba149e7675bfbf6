package rootview

import (
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootpb "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestNamesOfRetainedChanges: which keyspaces have had a name is known at every
// moment for just the changes that are retained, without reading them.
func TestNamesOfRetainedChanges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	f := &feed{limit: 64, limitBytes: 1 << 20}
	dropped, most := 0, 0
	for index := uint64(1); index < 5_000; index++ {
		b := Batch{Token: state.Token{Incarnation: 1, Term: 1, Index: index}, first: index, Snapshot: rnd.IntN(500) == 0}
		for range rnd.IntN(4) {
			b.Changes = append(b.Changes, state.Change{
				Kind:     state.ChangeKeyspace,
				Keyspace: &rootpb.Keyspace{Id: 1 + uint32(rnd.IntN(9)), Name: strconv.Itoa(rnd.IntN(5))},
			})
		}
		b.ends = []uint32{uint32(len(b.Changes))}
		head := len(f.batches) - f.head
		f.addLocked(b)
		dropped += head + 1 - (len(f.batches) - f.head)

		want := map[string]map[state.KeyspaceID]int{}
		for _, kept := range f.batches[f.head:] {
			for name, id := range kept.keyspaces() {
				if want[name] == nil {
					want[name] = map[state.KeyspaceID]int{}
				}
				want[name][id]++
			}
		}
		most = max(most, len(want))
		if !maps.EqualFunc(f.named, want, maps.Equal) {
			t.Fatalf("index %d: %v, retained are %v", index, f.named, want)
		}
	}
	if dropped < 1_000 || most < 5 {
		t.Fatalf("%d batches dropped, %d names: the test tried nothing", dropped, most)
	}
}
