package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Cache is the routes of one keyspace, kept current by a watch. A lookup loads
// one pointer, takes no lock and allocates nothing.
//
// A cached route may be behind the truth by as much as the watch is; members
// check the epoch of what reaches them and say so. A caller that is told calls
// Invalidate and asks Route again.
type Cache struct {
	c     *Client
	cfg   CacheConfig
	ready chan struct{} // closed when the first snapshot is complete

	table atomic.Pointer[table]

	mu   sync.Mutex // guards what follows and the writing of table
	byID map[rooted.RegionID]*rooted.Region
	// A snapshot that has not ended: what becomes the table, and its regions.
	arriving *table
	arrived  []*rooted.Region
}

// CacheConfig says what a Cache holds.
type CacheConfig struct {
	// Keyspace is its name. Empty: "default".
	Keyspace string
	// MaxRegions bounds the regions held; the others are asked for one by one.
	// Default 1,048,576.
	MaxRegions int
}

// NewCache makes a cache that is empty until Run fills it.
func (c *Client) NewCache(cfg CacheConfig) *Cache {
	if cfg.Keyspace == "" {
		cfg.Keyspace = "default"
	}
	if cfg.MaxRegions <= 0 {
		cfg.MaxRegions = 1 << 20
	}
	k := &Cache{c: c, cfg: cfg, ready: make(chan struct{}), byID: map[rooted.RegionID]*rooted.Region{}}
	k.table.Store(&table{})
	return k
}

// Run keeps the cache current until ctx ends, which is no error. It returns
// ErrNotFound when there is no such keyspace, and other errors that will not
// go away. The cache stays as it was and may be run again.
func (k *Cache) Run(ctx context.Context) error {
	if err := k.learnLayout(ctx); err != nil {
		return ended(ctx, err)
	}
	for b, err := range k.c.WatchRegions(ctx, k.cfg.Keyspace, rooted.Token{}) {
		if err != nil {
			return ended(ctx, err)
		}
		k.apply(b)
	}
	return nil
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// learnLayout finds out how the keyspace is cut, as long as it takes.
func (k *Cache) learnLayout(ctx context.Context) error {
	for {
		reply, err := k.c.GetKeyspace(ctx, k.cfg.Keyspace)
		if err == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			t := *k.table.Load()
			t.describe(reply.GetKeyspace())
			k.table.Store(&t)
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// Ready is closed when the cache has been complete for the first time.
func (k *Cache) Ready() <-chan struct{} { return k.ready }

// At returns the position that the cache reflects; false before Ready.
func (k *Cache) At() (rooted.Token, bool) {
	t := k.table.Load()
	return t.at, t.complete
}

// Len returns the number of regions held.
func (k *Cache) Len() int { return k.table.Load().count }

// Lookup finds the region that holds a key. false: the cache does not know,
// which does not mean that there is none; see Route.
func (k *Cache) Lookup(key []byte) (Route, bool) {
	t := k.table.Load()
	var slot [8]byte
	routeKey := unsafe.String(unsafe.SliceData(key), len(key)) // lives only in this call
	if t.slots != nil {
		b := rooted.AppendRouteKey(slot[:0], t.slots, key)
		routeKey = unsafe.String(unsafe.SliceData(b), len(b))
	}
	r := t.find(routeKey)
	if r == nil {
		return Route{}, false
	}
	return Route{Region: r, At: t.at, members: t.members}, true
}

// Route finds the region that holds a key, here or, if it is not here, at a
// coordinator, and keeps the answer. With options it always asks.
func (k *Cache) Route(ctx context.Context, key []byte, opts ...ReadOption) (Route, error) {
	if len(opts) == 0 {
		if r, ok := k.Lookup(key); ok {
			return r, nil
		}
	}
	r, err := k.c.GetRegionByKey(ctx, key, append(opts[:len(opts):len(opts)], In(k.cfg.Keyspace))...)
	if err == nil && r.Region != nil {
		k.keep(r)
	}
	return r, err
}

// keep takes in an answer that is not older than the cache.
func (k *Cache) keep(r Route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.table.Load()
	if !t.complete || r.Region.Keyspace != t.keyspace || r.At.Compare(t.at) < 0 {
		return
	}
	e := t.edit()
	k.put(e, r.Region)
	next := e.done(t)
	for _, o := range r.Region.Owners {
		if m, ok := r.members[o.Member]; ok {
			next.setMember(m)
		}
	}
	k.table.Store(next)
}

// Invalidate drops a route that a member refused as stale, unless the cache
// has a newer one of the region already.
func (k *Cache) Invalidate(stale Route) {
	if stale.Region == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	mine := k.byID[stale.Region.ID]
	if mine == nil || mine.Revision > stale.Region.Revision {
		return
	}
	t := k.table.Load()
	e := t.edit()
	k.drop(e, mine)
	k.table.Store(e.done(t))
}

// apply takes in one batch of the watch, and shows it all at once.
func (k *Cache) apply(b Batch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.GetSnapshot() {
		k.applySnapshot(b)
		return
	}
	k.arriving, k.arrived = nil, nil
	t := k.renamed(k.table.Load(), b)
	e := t.edit()
	for _, change := range b.GetChanges() {
		r := rooted.RegionFromProto(change.GetRegion())
		switch mine := k.byID[r.ID]; {
		case !change.GetRemoved() && r.Keyspace == t.keyspace:
			k.put(e, r)
		case change.GetRemoved() && mine != nil && mine.Revision <= b.Position().Index:
			k.drop(e, mine)
		}
	}
	next := e.done(t)
	for _, m := range b.GetMembers() {
		next.setMember(memberOf(m))
	}
	if at := b.Position(); at.Compare(next.at) > 0 {
		next.at = at
	}
	k.table.Store(next)
}

// renamed takes in what became of the keyspace itself: another one under its
// name begins empty.
func (k *Cache) renamed(t *table, b Batch) *table {
	for _, change := range b.GetKeyspaces() {
		id := rooted.KeyspaceID(change.GetKeyspace().GetId())
		if change.GetKeyspace().GetName() != k.cfg.Keyspace || (change.GetRemoved() && id != t.keyspace) {
			continue
		}
		if change.GetRemoved() || id != t.keyspace {
			t = &table{at: t.at, members: t.members, complete: t.complete}
			clear(k.byID)
		}
		if !change.GetRemoved() {
			described := *t
			described.describe(change.GetKeyspace())
			t = &described
		}
	}
	return t
}

// applySnapshot gathers a snapshot beside the table and swaps at its end.
func (k *Cache) applySnapshot(b Batch) {
	if b.SnapshotBegin || k.arriving == nil {
		old := k.table.Load()
		k.arriving, k.arrived = &table{keyspace: old.keyspace, slots: old.slots, members: directory{}, complete: true}, nil
	}
	next := k.arriving
	for _, change := range b.GetKeyspaces() {
		if change.GetKeyspace().GetName() == k.cfg.Keyspace {
			next.describe(change.GetKeyspace())
		}
	}
	for _, change := range b.GetChanges() {
		k.arrived = append(k.arrived, rooted.RegionFromProto(change.GetRegion()))
	}
	for _, m := range b.GetMembers() {
		next.members[rooted.MemberID(m.GetId())] = memberOf(m)
	}
	if b.GetSnapshotEnd() {
		k.swap(next, b.Position())
	}
}

// swap makes a complete snapshot the table.
func (k *Cache) swap(next *table, at rooted.Token) {
	clear(k.byID)
	kept := k.arrived[:0]
	for _, r := range k.arrived {
		switch {
		case r.Keyspace != next.keyspace:
		case len(kept) >= k.cfg.MaxRegions:
			k.c.count.cacheSkipped.Add(1)
		default:
			kept = append(kept, r)
			k.byID[r.ID] = r
		}
	}
	next.fill(kept)
	next.at = at
	k.arriving, k.arrived = nil, nil
	k.table.Store(next)
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

// put takes in a descriptor, newest revision first: what it overlaps and is
// newer keeps it out, what is older goes.
func (k *Cache) put(e *edit, r *rooted.Region) {
	if mine := k.byID[r.ID]; mine != nil {
		if mine.Revision > r.Revision {
			return
		}
		if mine.Start == r.Start && mine.End == r.End {
			e.replace(r)
			k.byID[r.ID] = r
			return
		}
		k.drop(e, mine)
	}
	old := e.overlaps(r)
	for _, o := range old {
		if o.Revision > r.Revision {
			return
		}
	}
	for _, o := range old {
		k.drop(e, o)
	}
	if len(k.byID) >= k.cfg.MaxRegions {
		k.c.count.cacheSkipped.Add(1)
		return
	}
	e.insert(r)
	k.byID[r.ID] = r
}

func (k *Cache) drop(e *edit, r *rooted.Region) {
	e.remove(r)
	delete(k.byID, r.ID)
}

func memberOf(m *rootv1.Member) Member {
	return Member{ID: rooted.MemberID(m.GetId()), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation()}
}
