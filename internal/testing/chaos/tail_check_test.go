package chaos

import (
	"fmt"

	"github.com/nokv/nokv/meta/root/state"
)

// tail: each watch brings every change of the log, once, in whole entries, in
// order, from where it was; a snapshot is the log replayed to its position.
func (j *judge) tail() error {
	for client, batches := range j.watches {
		w := &watchCheck{judge: j}
		for _, b := range batches {
			if err := w.take(b); err != nil {
				return fmt.Errorf("the watch of %s: %w", client, err)
			}
		}
	}
	return nil
}

// watchCheck follows one watch.
type watchCheck struct {
	*judge
	at state.Token
	// have are changes of batches that did not move the position yet, nil for what
	// went; snapshot those of a snapshot that has not ended.
	have, snapshot map[state.RegionID]*state.Region
}

func (w *watchCheck) take(b *batch) error {
	if b.to.Index > uint64(len(w.log)) {
		return fmt.Errorf("it is at %s, the log ends at %d", b.to, len(w.log))
	}
	if b.snapshot {
		return w.takeSnapshot(b)
	}
	w.snapshot = nil
	if b.to.Compare(w.at) < 0 {
		return fmt.Errorf("it went back from %s to %s", w.at, b.to)
	}
	if w.have == nil {
		w.have = make(map[state.RegionID]*state.Region)
	}
	for _, r := range b.regions {
		w.have[r.ID] = r.Region
		if r.removed {
			w.have[r.ID] = nil
		}
	}
	if b.to == w.at {
		return nil
	}
	want := make(map[state.RegionID]*state.Region)
	for i := w.at.Index + 1; i <= b.to.Index; i++ {
		for _, c := range w.changes[i] {
			want[c.Region.ID] = c.Region
			if c.Removed {
				want[c.Region.ID] = nil
			}
		}
	}
	if err := same(w.have, want); err != nil {
		return fmt.Errorf("from %s to %s: %w", w.at, b.to, err)
	}
	w.at, w.have = b.to, nil
	return nil
}

func (w *watchCheck) takeSnapshot(b *batch) error {
	if b.snapshotBegin || w.snapshot == nil {
		w.snapshot = make(map[state.RegionID]*state.Region)
	}
	for _, r := range b.regions {
		w.snapshot[r.ID] = r.Region
	}
	if !b.snapshotEnd {
		return nil
	}
	if b.to.Compare(w.at) < 0 {
		return fmt.Errorf("a snapshot took it back from %s to %s", w.at, b.to)
	}
	if err := same(w.snapshot, w.snapshots[b.to.Index]); err != nil {
		return fmt.Errorf("the snapshot of %s: %w", b.to, err)
	}
	w.at, w.have, w.snapshot = b.to, nil, nil
	return nil
}

func same(got, want map[state.RegionID]*state.Region) error {
	for id, r := range want {
		if _, ok := got[id]; !ok || !sameRegion(got[id], r) {
			return fmt.Errorf("it has %s of region %d, the log %s", show(got[id]), id, show(r))
		}
	}
	for id, r := range got {
		if _, ok := want[id]; !ok {
			return fmt.Errorf("it has %s of region %d, the log has no change of it", show(r), id)
		}
	}
	return nil
}
