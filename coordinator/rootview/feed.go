package rootview

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/nokv/nokv/meta/root/state"
	"google.golang.org/protobuf/proto"
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
	bytes int      // about what it keeps in memory; set in a feed
}

// Empty says that the batch moves nobody.
func (b *Batch) Empty() bool { return len(b.ends) == 0 && !b.Snapshot }

// Entries calls fn with the changes of each entry that made some, in order, and the
// position behind it; its term is that of the batch's end. Of a batch that a reader
// began in the middle of they come at once.
func (b *Batch) Entries(fn func(at state.Token, changes []state.Change)) {
	if len(b.ends) == 0 && len(b.Changes) > 0 {
		fn(b.Token, b.Changes)
	}
	from := uint32(0)
	for i, end := range b.ends {
		if end > from {
			at := b.Token
			at.Index = b.first + uint64(i)
			fn(at, b.Changes[from:end])
		}
		from = end
	}
}

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
	limit, limitBytes int // most entries and changes retained, together, and their bytes

	mu sync.Mutex
	// Guarded by mu. Everything behind base is in batches[head:].
	base        state.Token
	batches     []Batch
	head        int
	size, bytes int
	// named counts the changes that are retained of each keyspace, by the name
	// that it had.
	named map[string]map[state.KeyspaceID]int
}

func (f *feed) addLocked(b Batch) {
	if b.Snapshot {
		f.base, f.batches, f.head, f.size, f.bytes, f.named = b.Token, nil, 0, 0, 0, nil
		return
	}
	b.bytes = b.measure()
	f.batches = append(f.batches, b)
	for name, id := range b.keyspaces() {
		if f.named == nil {
			f.named = map[string]map[state.KeyspaceID]int{}
		}
		if f.named[name] == nil {
			f.named[name] = map[state.KeyspaceID]int{}
		}
		f.named[name][id]++
	}
	f.size, f.bytes = f.size+b.cost(), f.bytes+b.bytes
	for (f.size > f.limit || f.bytes > f.limitBytes) && len(f.batches)-f.head > 1 {
		f.dropOldestLocked()
	}
}

// keyspaces yields name and id of each keyspace that the batch changed.
func (b *Batch) keyspaces() iter.Seq2[string, state.KeyspaceID] {
	return func(yield func(string, state.KeyspaceID) bool) {
		for i := range b.Changes {
			c := &b.Changes[i]
			if c.Kind == state.ChangeKeyspace && !yield(c.Keyspace.GetName(), state.KeyspaceID(c.Keyspace.GetId())) {
				return
			}
		}
	}
}

func (b *Batch) cost() int { return len(b.Changes) + len(b.ends) }

// measure is about how many bytes a batch keeps in memory.
func (b *Batch) measure() int {
	n := 4 * len(b.ends)
	for i := range b.Changes {
		n += changeBytes(&b.Changes[i])
	}
	return n
}

// Bytes of a change in memory, beside its record; and of a region, an owner and
// another record, beside its texts.
const (
	bytesOfChange = 112
	bytesOfRegion = 136
	bytesOfOwner  = 48
	bytesOfRecord = 256
)

func changeBytes(c *state.Change) int {
	n := bytesOfChange
	switch c.Kind {
	case state.ChangeRegion:
		// What it replaced is kept alive too.
		return n + regionBytes(c.Region) + regionBytes(c.OldRegion)
	case state.ChangeKeyspace:
		return n + bytesOfRecord + proto.Size(c.Keyspace)
	case state.ChangeMember:
		return n + bytesOfRecord + proto.Size(c.Member)
	default:
		return n + bytesOfRecord
	}
}

func regionBytes(r *state.Region) int {
	if r == nil {
		return 0
	}
	n := bytesOfRegion + len(r.Start) + len(r.End) + len(r.Frontier)
	for i := range r.Owners {
		n += bytesOfOwner + len(r.Owners[i].Member)
	}
	if r.Former != nil {
		n += bytesOfOwner + len(r.Former.Member)
	}
	return n
}

func (f *feed) dropOldestLocked() {
	b := &f.batches[f.head]
	f.base = b.Token
	f.size, f.bytes = f.size-b.cost(), f.bytes-b.bytes
	for name, id := range b.keyspaces() {
		if f.named[name][id]--; f.named[name][id] == 0 {
			delete(f.named[name], id)
		}
		if len(f.named[name]) == 0 {
			delete(f.named, name)
		}
	}
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

// KeyspacesNamed returns the keyspaces that have a name or had it within the
// changes that are retained: whose changes concern a reader of that name,
// wherever it stands.
func (f *Follower) KeyspacesNamed(name string) []state.KeyspaceID {
	f.feed.mu.Lock()
	defer f.feed.mu.Unlock()
	ids := slices.Collect(maps.Keys(f.feed.named[name]))
	if k := f.View().State.KeyspaceByName(name); k != nil {
		ids = append(ids, state.KeyspaceID(k.GetId()))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
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

// NextAll is Next for all batches that are there, the oldest first, up to about
// so many bytes in memory; at least one.
func (r *Reader) NextAll(ctx context.Context, maxBytes int) ([]Batch, error) {
	b, err := r.Next(ctx)
	if err != nil {
		return nil, err
	}
	all := []Batch{b}
	for size := b.bytes; size < maxBytes; size += b.bytes {
		var ok bool
		if b, ok, err = r.f.feed.after(r.at); err != nil || !ok {
			break // an error comes again with the next call
		}
		r.at = b.Token
		all = append(all, b)
	}
	return all, nil
}
