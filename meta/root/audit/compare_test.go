package audit_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/audit"
	"github.com/nokv/nokv/meta/root/storage"
)

// Folders of one cluster are compared wherever two have a state: those of one past agree,
// also when one is behind the other; of two pasts the first position that differs is named.
func TestFoldersAreCompared(t *testing.T) {
	n := uint64(len(events))
	other := slices.Clone(events)
	other[n-3] = proto.CloneOf(other[n-3])
	other[n-3].GetRegionPublished().Region.StartKey = []byte("elsewhere")
	whole, behind, ahead := workdir(t, 0, n, nil), workdir(t, 0, n-4, nil), workdir(t, n-1, n, nil)
	strange := workdirOf(t, other, 0, n, nil)
	results, compared, err := audit.Compare([]string{whole, behind, ahead, strange}, storage.Options{SegmentBytes: storage.MinSegmentBytes})
	must(t, err)
	if len(results) != 4 || len(compared) != 6 {
		t.Fatalf("%d results, %d comparisons", len(results), len(compared))
	}
	for _, c := range compared {
		want := audit.Comparison{A: c.A, B: c.B}
		switch {
		case c.A == behind && c.B == ahead:
		case c.B == strange && c.A == ahead:
			want.Positions, want.Index = 2, n-1
		case c.B == strange && c.A == whole:
			want.Positions, want.Index = n, n-2
		case c.B == ahead:
			want.Positions = 2
		default:
			want.Positions = n - 4
		}
		if want.What = c.What; c != want || (c.Index == 0) != (c.What == "") {
			t.Errorf("compared %+v, want %+v", c, want)
		}
	}
	if _, _, err := audit.Compare([]string{whole, t.TempDir()}, storage.Options{}); err == nil {
		t.Error("a folder of nobody is compared")
	}
}
