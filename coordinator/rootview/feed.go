package rootview

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"

	"github.com/nokv/nokv/meta/root/state"
)

// Batch is what one message from the root changed: applied as a whole it takes
// a reader to Token.
type Batch struct {
	// Token is the position after the batch.
	Token state.Token
	// Known is the newest position heard of then.
	Known state.Token
	// Era is the newest era at Token.
	Era state.Era
	// Changes in the order they happened. They are shared: nobody changes them.
	Changes []state.Change
	// Snapshot is set when the view jumped to Token: what changed on the way is
	// not known.
	Snapshot bool

	first uint64   // index of the first entry
	ends  []uint32 // per entry the number of changes up to its end
}

// Empty says that the batch moves nobody.
func (b *Batch) Empty() bool { return len(b.ends) == 0 && !b.Snapshot }

// behind returns what of the batch lies behind an index. ok is false for an
// index behind the batch's end.
func (b Batch) behind(index uint64) (rest Batch, ok bool) {
	if index < b.first {
		return b, true
	}
	skip := index - b.first + 1
	if skip > uint64(len(b.ends)) {
		return Batch{}, false
	}
	b.Changes = b.Changes[b.ends[skip-1]:]
	b.first, b.ends = index+1, nil
	return b, true
}

// ErrSnapshotNeeded says that the changes behind a reader's position are no
// longer retained: it takes a View, and reads on behind that View's Token.
var ErrSnapshotNeeded = errors.New("changes are no longer retained: start from a snapshot")

// feed retains the batches of the recent past, once for all readers.
type feed struct {
	limit int // most entries and changes retained, together

	mu sync.Mutex
	// Guarded by mu. Everything behind base is in batches[head:].
	base    state.Token
	batches []Batch
	head    int
	size    int
}

func (f *feed) add(b Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.Snapshot {
		f.base, f.batches, f.head, f.size = b.Token, nil, 0, 0
		return
	}
	f.batches = append(f.batches, b)
	f.size += b.cost()
	for f.size > f.limit && len(f.batches)-f.head > 1 {
		f.dropOldestLocked()
	}
}

func (b *Batch) cost() int { return len(b.Changes) + len(b.ends) }

func (f *feed) dropOldestLocked() {
	b := &f.batches[f.head]
	f.base = b.Token
	f.size -= b.cost()
	*b = Batch{}
	f.head++
	if f.head > len(f.batches)/2 && f.head > 16 {
		f.batches = slices.Delete(f.batches, 0, f.head)
		f.head = 0
	}
}

// after returns the first batch that leads on from a position; ok is false when
// there is none yet.
func (f *feed) after(at state.Token) (b Batch, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at.Compare(f.base) < 0 {
		return Batch{}, false, ErrSnapshotNeeded
	}
	kept := f.batches[f.head:]
	i := sort.Search(len(kept), func(i int) bool { return kept[i].Token.Compare(at) > 0 })
	if i == len(kept) {
		return Batch{}, false, nil
	}
	if b, ok = kept[i].behind(at.Index); !ok {
		return Batch{}, false, ErrSnapshotNeeded // a position that this log never had
	}
	return b, true, nil
}

// Reader reads the changes behind a position. It holds no memory but its
// position; it is used by one goroutine.
type Reader struct {
	f  *Follower
	at state.Token
}

// Subscribe returns a Reader of the changes behind a position: a View's Token,
// or the Token of a Batch that any coordinator of the cluster gave. A position
// that this process has not reached is waited for.
func (f *Follower) Subscribe(after state.Token) *Reader {
	return &Reader{f: f, at: after}
}

// At is the Token of the batch returned last, or where the Reader started.
func (r *Reader) At() state.Token { return r.at }

// Next waits for the next Batch. It returns ErrSnapshotNeeded when the Reader
// was overtaken, and the context's error when that ends.
func (r *Reader) Next(ctx context.Context) (Batch, error) {
	var changed <-chan struct{} // asked for only when there is nothing to read
	for {
		b, ok, err := r.f.feed.after(r.at)
		if err != nil {
			return Batch{}, err
		}
		if ok {
			r.at = b.Token
			return b, nil
		}
		if changed == nil {
			changed = r.f.Changed()
			continue // what came before the channel did is not announced on it
		}
		select {
		case <-changed:
			changed = nil
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
	}
}
