package held

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nokv/nokv/rooted"
)

// What was given away is remembered by region and by key, so many and not more, the newest.
func TestWhatWasGivenAwayIsBounded(t *testing.T) {
	table := newTable()
	for i := range 2 * maxPast {
		id := rooted.RegionID(i + 1)
		key := fmt.Sprintf("%08d", i%(maxPast+7)) // some begin where one did before
		r := &rooted.Region{ID: id, Keyspace: rooted.KeyspaceID(1 + i%3), Start: key, End: key + "\x00"}
		table.remember(&departed{region: r, no: &Refusal{Verdict: NotOwned, Region: id}})
		switch {
		case i%5 == 0: // it comes and goes
			table.remember(&departed{region: r, no: &Refusal{Verdict: Moved, Region: id}})
		case i%7 == 0: // one that lasts, and of which others were cut
			table.remember(&departed{region: &rooted.Region{ID: id, Keyspace: r.Keyspace, Start: key[:7], End: key[:7] + "~"}, no: &Refusal{Verdict: NotOwned, Region: id}})
		}
	}
	gone := 0
	for _, of := range table.gone {
		gone += of.Len()
	}
	if len(table.order) != maxPast || len(table.past) > maxPast || gone > 2*maxPast || len(table.past) < maxPast/2 || gone < maxPast/2 {
		t.Errorf("%d are in order, %d are found by region and %d pieces by key, want %d at most", len(table.order), len(table.past), gone, maxPast)
	}
	for _, d := range table.order[maxPast-10:] {
		want, k := d, &keyspace{}
		for _, o := range table.order {
			if o.region.Keyspace == d.region.Keyspace && o.region.Contains(d.region.Start) {
				want = o
			}
		}
		k.now.Store(&Keyspace{ID: d.region.Keyspace})
		if table.past[d.region.ID] == nil || table.departed(&Request{Key: []byte(d.region.Start)}, k) != want {
			t.Errorf("region %d is forgotten", d.region.ID)
		}
	}
	for _, of := range table.gone {
		of.Scan(func(at string, p piece) bool {
			if table.order[0].region.ID > p.of.region.ID {
				t.Errorf("what begins at %q is still region %d, which is forgotten", at, p.of.region.ID)
			}
			return true
		})
	}
}

// A key that is in no region here is that of the region that held it here last, however wide others were, and where they
// began.
func TestAKeyIsOfTheRegionThatHeldItLast(t *testing.T) {
	const letters = "abcdefgh"
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(seed, 1))
		table, k := newTable(), &keyspace{}
		k.now.Store(&Keyspace{ID: 1, Name: "k"})
		var all []*rooted.Region
		for id := range rooted.RegionID(12) {
			from, to := chance.IntN(len(letters)+1), chance.IntN(len(letters)+1)
			r := &rooted.Region{ID: id + 1, Keyspace: 1, Start: letters[min(from, to):][:min(1, len(letters)-min(from, to))]}
			if from != to && max(from, to) < len(letters) {
				r.End = letters[max(from, to):][:1]
			}
			all = append(all, r)
			table.remember(&departed{region: r, no: &Refusal{Region: r.ID}})
			for _, key := range []string{"0", "a", "b", "b1", "c", "d", "e", "f", "f1", "g", "h", "i"} {
				want := rooted.RegionID(0)
				for _, r := range all {
					if r.Contains(key) {
						want = r.ID
					}
				}
				got := rooted.RegionID(0)
				if d := table.departed(&Request{Keyspace: "k", Key: []byte(key)}, k); d != nil {
					got = d.no.Region
				}
				if got != want {
					t.Fatalf("seed %d: behind %d regions, %q was last in region %d, want %d", seed, len(all), key, got, want)
				}
			}
		}
	}
}
