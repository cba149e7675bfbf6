package state

import (
	"fmt"
	"strings"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// What is noted of owners that lost keys is bounded: behind that of their keys, all keys of the
// keyspace count; behind that of owners, regions are not removed.
func TestVacatedIsBounded(t *testing.T) {
	k := &rootv1.Keyspace{}
	add := func(incarnation uint64, start, end string) bool {
		return addVacated(k, rooted.FormerOwner{Member: "m", Incarnation: incarnation, Revision: incarnation}, place{start: start, end: end}, incarnation)
	}
	bytes := func() (n int) {
		for _, x := range k.Vacated {
			n += len(x.GetStartKey()) + len(x.GetEndKey())
		}
		return n
	}
	for i := range uint64(maxVacated) {
		if !add(i+1, fmt.Sprintf("%s%05d", strings.Repeat("k", 100), i), fmt.Sprintf("%s%05d", strings.Repeat("k", 100), i+1)) {
			t.Fatalf("no room for %d", i+1)
		}
	}
	if n := bytes(); n > maxVacatedBytes || n < maxVacatedBytes/2 {
		t.Errorf("%d bytes of keys", n)
	}
	last := k.Vacated[maxVacated-1]
	if len(last.GetStartKey()) != 0 || len(last.GetEndKey()) != 0 {
		t.Errorf("of the last one not all keys are noted: %v", last)
	}
	if add(maxVacated+1, "a", "b") {
		t.Error("there is room for one more")
	}
	if !add(1, "a", "b") || string(k.Vacated[0].GetStartKey()) != "a" || len(k.Vacated) != maxVacated {
		t.Errorf("one that is noted: %v", k.Vacated[0])
	}
}
