package held

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/rooted"
)

// What was given away is remembered by region and by key, so many and not more, the newest.
func TestWhatWasGivenAwayIsBounded(t *testing.T) {
	table := newTable()
	for i := range 2 * maxPast {
		id := rooted.RegionID(i + 1)
		key := fmt.Sprintf("%08d", i%(maxPast+7)) // some begin where one did before
		table.remember(&departed{&rooted.Region{ID: id, Keyspace: rooted.KeyspaceID(1 + i%3), Start: key, End: key + "\x00"}, &Refusal{Verdict: NotOwned, Region: id}})
		if i%5 == 0 { // it comes and goes
			table.remember(&departed{&rooted.Region{ID: id, Keyspace: rooted.KeyspaceID(1 + i%3), Start: key, End: key + "\x00"}, &Refusal{Verdict: Moved, Region: id}})
		}
	}
	gone := 0
	for _, of := range table.gone {
		gone += of.Len()
	}
	if len(table.order) != maxPast || len(table.past) > maxPast || gone > maxPast || len(table.past) < maxPast/2 || gone < maxPast/2 {
		t.Errorf("%d are in order, %d are found by region and %d by key, want at most %d", len(table.order), len(table.past), gone, maxPast)
	}
	for _, d := range table.order[maxPast-10:] {
		if last, ok := table.gone[d.region.Keyspace].Get(d.region.Start); table.past[d.region.ID] == nil || !ok || last.region.ID != d.region.ID {
			t.Errorf("region %d is forgotten", d.region.ID)
		}
	}
}
