package held

import "testing"

// Slow calls of a kind without which a region is served all the same have a quarter of the
// workers, whatever the kind; behind them, those that somebody waits for find the others free.
func TestEachKindOfCallHasItsShare(t *testing.T) {
	const workers = 8
	for kind, most := range map[CallKind]int{
		Release: workers, Evict: workers,
		Acquire: workers - workers/spare, Merge: workers - workers/spare,
		Prepare: workers / share, Abandon: workers / share,
		Checkpoint: workers / share, Idle: workers / share, TransferLeader: workers / share,
	} {
		c := New(Config{Member: "m1", Incarnation: 1, Workers: workers})
		id := uint64(0)
		add := func(kind CallKind, n int) {
			for range n {
				id++
				c.enqueue(callRef{keyspace: 1, class: classOf(kind, 0)}, Call{ID: id, Kind: kind, Keyspace: &Keyspace{ID: 1}})
			}
		}
		add(kind, 20)
		if got := len(c.Calls(1000, 1)); got != most {
			t.Errorf("%v: %d of %d workers, want %d", kind, got, workers, most)
		}
		busy := most
		for _, urgent := range []CallKind{Acquire, Evict, Release} {
			add(urgent, 1)
			calls := c.Calls(1000, 1)
			left := workers - busy
			if urgent == Acquire {
				left -= workers / spare
			}
			want := max(min(left, 1), 0)
			busy += want
			if len(calls) != want || want > 0 && calls[0].Kind != urgent {
				t.Errorf("behind calls of kind %v, %d of kind %v are made, want %d", kind, len(calls), urgent, want)
			}
		}
	}
}
