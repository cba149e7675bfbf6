package held

import (
	"testing"

	"github.com/nokv/nokv/rooted"
)

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

// What is let go of finds a worker beside slow Acquires, of its own keyspace and of another one.
func TestWhatIsLetGoOfFindsAWorkerBesideOtherKeyspaces(t *testing.T) {
	for _, workers := range []int{8, 32} {
		for _, fromA := range []bool{true, false} {
			c := New(Config{Member: "m1", Incarnation: 1, Workers: workers})
			c.keyspaces[1], c.keyspaces[2] = &keyspace{}, &keyspace{}
			id := uint64(0)
			add := func(kind CallKind, ks int, n int) {
				for range n {
					id++
					k := &Keyspace{ID: 1}
					if ks == 2 {
						k = &Keyspace{ID: 2}
					}
					c.enqueue(callRef{keyspace: k.ID, class: classOf(kind, 0)}, Call{ID: id, Kind: kind, Keyspace: k})
				}
			}
			add(Acquire, 1, 100)
			a := len(c.Calls(1000, 1))
			b := 0
			if !fromA {
				add(Acquire, 2, 100)
				b = len(c.Calls(1000, 1))
			}
			ks := 1
			if !fromA {
				ks = 2
			}
			add(Release, ks, 1)
			got := c.Calls(1000, 1)
			if len(got) != 1 {
				t.Errorf("workers %d: %d acquires of A and %d of B run, %d workers are free, and a Release of keyspace %d is not made", workers, a, b, workers-c.queue.running, ks)
			}
		}
	}
}

// Slow calls by which a keyspace lets go leave workers to another one, for whatever it needs.
func TestSlowReleasesOfAKeyspaceHoldUpNoOther(t *testing.T) {
	for _, workers := range []int{4, 8, 32} {
		for _, slow := range []CallKind{Release, Evict} {
			for _, kind := range []CallKind{Release, Evict, Acquire} {
				c := New(Config{Member: "m1", Incarnation: 1, Workers: workers})
				c.keyspaces[1], c.keyspaces[2] = &keyspace{}, &keyspace{}
				id := uint64(0)
				add := func(kind CallKind, ks rooted.KeyspaceID, n int) {
					for range n {
						id++
						c.enqueue(callRef{region: 99, keyspace: ks, class: classOf(kind, 0)}, Call{ID: id, Kind: kind, Keyspace: &Keyspace{ID: ks}})
					}
				}
				add(slow, 1, 100)
				first := c.Calls(1000, 1)
				if n := len(first); n < workers/2 {
					t.Errorf("of %d workers %d are at slow calls, and others wait", workers, n)
				}
				add(kind, 2, 1)
				if got := c.Calls(1000, 1); len(got) != 1 || got[0].Keyspace.ID != 2 {
					t.Errorf("of %d workers %d are at slow calls of kind %v, and a call of kind %v of another keyspace is not made", workers, len(first), slow, kind)
				}
				for _, call := range first {
					c.Done(call.ID, Result{}, 1)
				}
				if n := len(c.Calls(1000, 1)); n < workers/2 {
					t.Errorf("behind the first calls %d of %d workers go on", n, workers)
				}
			}
		}
	}
}
