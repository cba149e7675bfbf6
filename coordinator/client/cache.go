package client

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

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

	arriving changeset // Run's alone

	mu   sync.Mutex // guards what follows and the writing of table
	byID map[rooted.RegionID]*rooted.Region
	// refuted are revisions of regions that a member said were out of date.
	refuted map[rooted.RegionID]uint64
	// untold are the regions that are not what OnChange heard of last, as it heard
	// of them; nil: it knows of none.
	untold map[rooted.RegionID]*rooted.Region
	// telling: OnChange reads the snapshot in All, and no answer comes into it.
	telling bool
}

// maxRefuted bounds what a Cache remembers of Invalidate.
const maxRefuted = 4096

// CacheConfig says what a Cache holds.
type CacheConfig struct {
	// Keyspace is its name. Empty: "default".
	Keyspace string
	// MaxRegions bounds the regions held; the others are asked for one by one.
	// Default 1,048,576.
	MaxRegions int
	// OnChange, if set, hears of every batch after the cache shows it, in order and
	// signs of life among them, on the goroutine of Run, which goes on when it
	// returns. With a batch it hears of what Route and Invalidate changed since the
	// one before.
	OnChange func(Update)
}

// NewCache makes a cache that is empty until Run fills it.
func (c *Client) NewCache(cfg CacheConfig) *Cache {
	if cfg.Keyspace == "" {
		cfg.Keyspace = "default"
	}
	if cfg.MaxRegions <= 0 {
		cfg.MaxRegions = 1 << 20
	}
	k := &Cache{
		c: c, cfg: cfg, ready: make(chan struct{}),
		byID: map[rooted.RegionID]*rooted.Region{}, refuted: map[rooted.RegionID]uint64{}, untold: map[rooted.RegionID]*rooted.Region{},
	}
	k.table.Store(&table{})
	return k
}

// Run keeps the cache current until ctx ends, which is no error. It returns
// ErrNotFound when there is no such keyspace, and other errors that will not
// go away. The cache stays as it was and may be run again, by one caller at a
// time.
func (k *Cache) Run(ctx context.Context) error {
	at, _ := k.At()
	for b, err := range k.c.WatchRegions(ctx, at, In(k.cfg.Keyspace), WithMembers()) {
		if err != nil {
			return ended(ctx, err)
		}
		if whole := k.arriving.take(b, k.cfg.MaxRegions); whole != nil {
			k.apply(whole)
		}
	}
	return nil
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Ready is closed when the cache has been complete for the first time.
func (k *Cache) Ready() <-chan struct{} { return k.ready }

// At returns the position that the cache reflects; false before Ready.
func (k *Cache) At() (Position, bool) {
	t := k.table.Load()
	return t.at, t.complete
}

// Len returns the number of regions held.
func (k *Cache) Len() int { return k.table.Load().count }

// All yields the routes that the cache holds, in key order, as they are at one
// position.
func (k *Cache) All() iter.Seq[Route] {
	return func(yield func(Route) bool) {
		t := k.table.Load()
		for _, c := range t.chunks {
			for _, r := range c.regions {
				if !yield(Route{Region: r, At: t.at.Token, cached: t.members}) {
					return
				}
			}
		}
	}
}

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
	return Route{Region: r, At: t.at.Token, cached: t.members}, true
}

// Route finds the region that holds a key, here or, if it is not here, at a
// coordinator, and keeps the answer. With options it always asks. The answer is
// never older than the cache, nor what was invalidated, unless the root itself
// says that it is still so.
func (k *Cache) Route(ctx context.Context, key []byte, opts ...ReadOption) (Route, error) {
	if len(opts) == 0 {
		if r, ok := k.Lookup(key); ok {
			return r, nil
		}
	}
	opts = append(opts[:len(opts):len(opts)], In(k.cfg.Keyspace))
	if at, ok := k.At(); ok {
		opts = append(opts, AtLeast(at.Token))
	}
	r, err := k.c.GetRegionByKey(ctx, key, opts...)
	if err == nil && k.isRefuted(r.Region) {
		if r, err = k.c.GetRegionByKey(ctx, key, append(opts, Strong())...); err == nil {
			k.confirm(r.Region)
		}
	}
	if err == nil && r.Region != nil {
		k.keep(r)
	}
	return r, err
}

// isRefuted says whether a region is what a member called out of date.
func (k *Cache) isRefuted(r *rooted.Region) bool {
	if r == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return r.Revision <= k.refuted[r.ID]
}

// confirm forgets what a member said of a region: the root says otherwise.
func (k *Cache) confirm(r *rooted.Region) {
	if r != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.refuted, r.ID)
	}
}

// keep takes in an answer that is not older than the cache.
func (k *Cache) keep(r Route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.table.Load()
	if !t.complete || k.telling || r.Region.Keyspace != t.keyspace || r.At.Compare(t.at.Token) < 0 {
		return
	}
	e := t.edit()
	k.put(e, r.Region)
	next := e.done(t)
	var owners []memberChange
	for _, o := range r.Region.Owners {
		if m, ok := r.member(o.Member); ok {
			if had, _ := t.members.get(o.Member); had != m {
				owners = append(owners, memberChange{member: m})
			}
		}
	}
	next.members = t.members.with(owners)
	k.table.Store(next)
}

// Invalidate drops a route that a member refused as stale, unless the cache
// has a newer one of the region already, and does not take it in again.
func (k *Cache) Invalidate(stale Route) {
	if stale.Region == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	mine := k.byID[stale.Region.ID]
	if mine != nil && mine.Revision > stale.Region.Revision {
		return
	}
	if len(k.refuted) >= maxRefuted {
		clear(k.refuted) // what is forgotten is asked about again
	}
	k.refuted[stale.Region.ID] = max(k.refuted[stale.Region.ID], stale.Region.Revision)
	if mine == nil {
		return
	}
	t := k.table.Load()
	e := t.edit()
	k.drop(e, mine)
	k.table.Store(e.done(t))
}

// apply takes in one batch of the watch, and shows it all at once.
func (k *Cache) apply(n *changeset) {
	update := k.applied(n)
	if k.cfg.OnChange == nil {
		return
	}
	k.cfg.OnChange(update)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.telling = false
}

func (k *Cache) applied(n *changeset) Update {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.snapshot {
		k.swap(n)
		clear(k.untold)
		k.telling = k.cfg.OnChange != nil
		return Update{At: n.at, Whole: true}
	}
	update := Update{At: n.at}
	t := k.renamed(k.table.Load(), n)
	e := t.edit()
	for _, c := range n.regions {
		mine := k.byID[c.region.ID]
		switch {
		case !c.removed && c.region.Keyspace == t.keyspace:
			k.put(e, c.region)
		case c.removed && mine != nil && mine.Revision <= c.region.Revision:
			k.drop(e, mine)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(k.untold)) {
		update.Regions = append(update.Regions, RegionUpdate{Old: k.untold[id], New: k.byID[id]})
	}
	clear(k.untold)
	next := e.done(t)
	next.members = t.members.with(n.members)
	next.at = n.at
	k.table.Store(next)
	return update
}

// renamed takes in what became of the keyspace itself: another one under its
// name begins empty.
func (k *Cache) renamed(t *table, n *changeset) *table {
	for _, c := range n.keyspaces {
		id := rooted.KeyspaceID(c.keyspace.GetId())
		if c.keyspace.GetName() != k.cfg.Keyspace || (c.removed && id != t.keyspace) {
			continue
		}
		if c.removed || id != t.keyspace {
			t = &table{at: t.at, members: t.members, complete: t.complete}
			for id := range k.byID {
				k.set(id, nil)
			}
		}
		if !c.removed {
			described := *t
			described.describe(c.keyspace)
			t = &described
		}
	}
	return t
}

// swap makes a complete snapshot the table. Answers that are newer stay.
func (k *Cache) swap(n *changeset) {
	next := &table{at: n.at, complete: true, members: memberTable{}.with(n.members)}
	for _, c := range n.keyspaces {
		if c.keyspace.GetName() == k.cfg.Keyspace {
			next.describe(c.keyspace)
		}
	}
	var newer []*rooted.Region
	for _, r := range k.byID {
		if r.Revision > n.at.Token.Index && r.Keyspace == next.keyspace {
			newer = append(newer, r)
		}
	}
	clear(k.byID)
	k.c.count.cacheSkipped.Add(uint64(n.skipped))
	var kept []*rooted.Region
	for _, c := range n.regions {
		if r := c.region; r.Keyspace == next.keyspace && r.Revision > k.refuted[r.ID] {
			kept = append(kept, r)
			k.byID[r.ID] = r
		}
	}
	next.fill(kept)
	e := next.edit()
	for _, r := range newer {
		k.put(e, r)
	}
	k.table.Store(e.done(next))
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

// put takes in a descriptor, newest revision first: what it overlaps and is
// newer keeps it out, what is older goes.
func (k *Cache) put(e *edit, r *rooted.Region) {
	if wrong, ok := k.refuted[r.ID]; ok {
		if r.Revision <= wrong {
			return
		}
		delete(k.refuted, r.ID)
	}
	if mine := k.byID[r.ID]; mine != nil {
		if mine.Revision > r.Revision {
			return
		}
		if mine.Start == r.Start && mine.End == r.End {
			e.replace(r)
			k.set(r.ID, r)
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
	k.set(r.ID, r)
}

func (k *Cache) drop(e *edit, r *rooted.Region) {
	e.remove(r)
	k.set(r.ID, nil)
}

// set makes r the region of an id; nil: there is none.
func (k *Cache) set(id rooted.RegionID, r *rooted.Region) {
	was := k.byID[id]
	if r != nil {
		k.byID[id] = r
	} else {
		delete(k.byID, id)
	}
	if k.cfg.OnChange == nil {
		return
	}
	if told, ok := k.untold[id]; !ok {
		k.untold[id] = was
	} else if told == r {
		delete(k.untold, id)
	}
}
