package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nokv/nokv/internal/cow"
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

	takers atomic.Int64 // members that may be given regions
	found  sync.Map     // of peers, for who takes no lock

	mu    sync.Mutex // guards what follows and the writing of table
	byID  map[rooted.RegionID]*rooted.Region
	bytes int // of byID
	peers map[rooted.MemberID]*Peer
	// answers are the regions that are here beyond the bounds, because they were asked
	// for: those used last.
	answers answers
	// changed is closed at the next change; nil: nobody waits for one.
	changed chan struct{}
	waits   waits
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
	// MaxRegions and MaxBytes bound the regions held; the others are asked for one by
	// one. Defaults 1,048,576 and 1 GiB.
	MaxRegions, MaxBytes int
	// MaxAnswers bounds how many of these others are held too, with an eighth of MaxBytes:
	// those used last. The watch keeps them current like all, so that they need no time
	// to live. Default 10,000; below 0: none.
	MaxAnswers int
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
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 1 << 30
	}
	if cfg.MaxAnswers == 0 {
		cfg.MaxAnswers = 10_000
	}
	k := &Cache{
		waits: waits{byKey: cow.New[string, *wait]()},
		peers: map[rooted.MemberID]*Peer{}, answers: answers{byID: map[rooted.RegionID]*answer{}},
		c: c, cfg: cfg, ready: make(chan struct{}),
		byID: map[rooted.RegionID]*rooted.Region{}, refuted: map[rooted.RegionID]uint64{}, untold: map[rooted.RegionID]*rooted.Region{},
	}
	k.table.Store(&table{})
	return k
}

// Run keeps the cache current until ctx ends, which is no error. It returns
// ErrNotFound when there is no such keyspace, ErrPermissionDenied when a grant was
// taken back, and other errors that will not go away. Behind these two the cache is
// empty until it has a snapshot that is not older; else it stays as it was. It may be run
// again, by one caller at a time.
func (k *Cache) Run(ctx context.Context) error {
	opts := []ReadOption{In(k.cfg.Keyspace), WithMembers()}
	at, complete := k.At()
	if !complete && at != (Position{}) { // it was emptied
		opts, at = append(opts, AtLeast(at.Token)), Position{}
	}
	for b, err := range k.c.WatchRegions(ctx, at, opts...) {
		if errors.Is(err, ErrNotFound) || errors.Is(err, ErrPermissionDenied) {
			k.forget()
		}
		if err != nil {
			return ended(ctx, err)
		}
		if whole := k.arriving.take(b, k.cfg.MaxRegions, k.cfg.MaxBytes); whole != nil {
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

// forget drops what the cache has of a keyspace that is not there for this process any more.
func (k *Cache) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.table.Load(); t.complete {
		k.empty()
		k.show(&table{at: t.at})
	}
}

// empty lets go of all regions, before a table without them is shown.
func (k *Cache) empty() {
	k.waits.everything()
	for id := range k.byID {
		k.answers.forget(id)
		k.set(id, nil)
	}
}

// Ready is closed when the cache has been complete for the first time.
func (k *Cache) Ready() <-chan struct{} { return k.ready }

// At returns the position that the cache reflects; false: nothing came yet, or it was emptied
// behind that, as Run says.
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
		t.scan(func(e *entry) bool { return yield(Route{Region: e.region, At: t.at.Token, peers: e.owners.peers}) })
	}
}

// Held is what a cache holds of a key, from where a caller who is in a hurry finds it.
// The zero Held is nothing: see Cache.Find.
type Held struct {
	entry *entry
	table *table
}

// Region that holds the key. It is shared: read only.
func (h Held) Region() *rooted.Region { return h.entry.region }

// Epoch of the region.
func (h Held) Epoch() rooted.Epoch { return h.entry.epoch() }

// Incarnation is the one of the first owner that the region was granted to.
func (h Held) Incarnation() uint64 { return h.entry.incarnation }

// Peers are the owners, in the order of the region. It is shared: read only.
func (h Held) Peers() []*Peer { return h.entry.owners.peers }

// Route is what is held as a route.
func (h Held) Route() Route {
	return Route{Region: h.entry.region, At: h.table.at.Token, peers: h.entry.owners.peers}
}

// At is the position that it reflects.
func (h Held) At() rooted.Token { return h.table.at.Token }

// AsOf is when that position was the newest, at the latest; see Batch.AsOf.
func (h Held) AsOf() time.Time { return h.table.level }

// Replicas says that the owners of the region are replicas of which the first leads,
// and not equal.
func (h Held) Replicas() bool { return h.table.replicas }

// AsOf is when what the cache shows was the newest, at the latest; see Batch.AsOf.
func (k *Cache) AsOf() time.Time { return k.table.Load().level }

// Takers is how many members may be given regions of the keyspace, as rooted.
func (k *Cache) Takers() int { return int(k.takers.Load()) }

// Bytes is about how much memory the regions take.
func (k *Cache) Bytes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes
}

// Changed returns a channel that is closed when the cache shows something else than now, also
// a newer position. Who waits for one key calls ChangedAt.
func (k *Cache) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

// show makes t the table. Called with mu held.
func (k *Cache) show(t *table) {
	k.table.Store(t)
	k.waits.shown()
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// Lookup finds the region that holds a key. false: the cache does not know,
// which does not mean that there is none; see Route.
func (k *Cache) Lookup(key []byte) (Route, bool) {
	h, ok := k.Find(key)
	if !ok {
		return Route{}, false
	}
	return h.Route(), true
}

// Find is Lookup for a caller in a hurry.
func (k *Cache) Find(key []byte) (Held, bool) {
	t := k.table.Load()
	var slot [8]byte
	routeKey := unsafe.String(unsafe.SliceData(key), len(key)) // lives only in this call
	if t.slots != nil {
		b := rooted.AppendRouteKey(slot[:0], t.slots, key)
		routeKey = unsafe.String(unsafe.SliceData(b), len(b))
	}
	e := t.find(routeKey)
	if e == nil {
		return Held{}, false
	}
	if a := e.owners.answer; a != nil && !a.used.Load() {
		a.used.Store(true)
	}
	return Held{e, t}, true
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
	at, known := k.At()
	if known {
		opts = append(opts, AtLeast(at.Token))
	}
	r, err := k.c.GetRegionByKey(ctx, key, opts...)
	if err == nil && k.isRefuted(r.Region) {
		if r, err = k.c.GetRegionByKey(ctx, key, append(opts, Strong())...); err == nil {
			k.confirm(r.Region)
		}
	}
	if err == nil && known {
		err = asNew("Route", r.At, at.Token)
	}
	if err != nil {
		return Route{}, err
	}
	if r.Region != nil {
		k.keep(r)
	}
	return r, nil
}

// asNew refuses an answer that is older than what was asked for.
func asNew(op string, got, asked rooted.Token) error {
	if got.Compare(asked) >= 0 {
		return nil
	}
	return &Error{Op: op, Cause: fmt.Errorf("%w: it is of %s, the cache is at %s", errUnfit, got, asked)}
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

// Keep takes in a route that was found otherwise, such as by a claim, unless the cache
// is ahead of it or has none yet.
func (k *Cache) Keep(r Route) {
	if r.Region != nil {
		k.keep(r)
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
	k.put(e, r.Region, true)
	news := len(e.made) > 0
	for _, o := range r.Region.Owners {
		if p := k.peers[o.Member]; p != nil {
			if m, ok := r.member(o.Member); ok {
				news = k.hear(p, m) || news
			}
		}
	}
	if news {
		k.show(e.done(t))
	}
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
	k.show(e.done(t))
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
	for _, c := range n.members {
		k.learn(c)
	}
	e := t.edit()
	for _, c := range n.regions {
		mine := k.byID[c.region.ID]
		if !c.removed && same(mine, c.region) {
			continue // it was asked for before
		}
		k.waits.region(c.region) // whether it will be held or not
		switch {
		case !c.removed && c.region.Keyspace == t.keyspace:
			k.put(e, c.region, false)
		case c.removed && mine != nil && mine.Revision <= c.region.Revision:
			k.drop(e, mine)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(k.untold)) {
		update.Regions = append(update.Regions, RegionUpdate{Old: k.untold[id], New: k.byID[id]})
	}
	clear(k.untold)
	next := e.done(t)
	next.at, next.level = n.at, newest(n.asOf, t.level)
	k.show(next)
	return update
}

// same says whether a is b. One entry of the root may change a region twice: the revision does not
// say so.
func same(a, b *rooted.Region) bool {
	return a != nil && a.Revision == b.Revision && reflect.DeepEqual(a, b)
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
			k.empty()
			t = &table{at: t.at, level: t.level, complete: t.complete}
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
	next := &table{at: n.at, level: newest(n.asOf, k.table.Load().level), complete: true}
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
	k.waits.everything()
	clear(k.byID)
	k.bytes, k.answers = 0, answers{byID: map[rooted.RegionID]*answer{}}
	k.meet(n.members)
	k.c.count.cacheSkipped.Add(uint64(n.skipped))
	kept := make([]entry, 0, len(n.regions))
	for _, c := range n.regions {
		if r := c.region; r.Keyspace == next.keyspace && r.Revision > k.refuted[r.ID] {
			k.byID[r.ID] = r
			k.bytes += sizeOf(r)
			k.refer(r, 1)
			kept = append(kept, k.entryOf(r))
		}
	}
	byStart := func(a, b entry) int { return cmp.Compare(a.start(), b.start()) }
	if !slices.IsSortedFunc(kept, byStart) {
		slices.SortFunc(kept, byStart)
	}
	next.fill(kept)
	e := next.edit()
	for _, r := range newer {
		k.put(e, r, false)
	}
	k.show(e.done(next))
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

// meet makes the members of a snapshot those that there are. No region has an owner yet.
func (k *Cache) meet(all []memberChange) {
	gone := k.peers
	k.peers = make(map[rooted.MemberID]*Peer, len(all))
	for _, c := range all {
		if p := gone[c.member.ID]; p != nil {
			k.peers[c.member.ID], p.refs = p, 0
			delete(gone, c.member.ID)
		}
		k.learn(c)
	}
	for id, p := range gone {
		k.lose(id, p)
		k.forgetPeer(id)
	}
}

func newest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// put takes in a descriptor, newest revision first: what it overlaps and is
// newer keeps it out, what is older goes. Beyond the bounds only what was asked for
// is taken in.
func (k *Cache) put(e *edit, r *rooted.Region, asked bool) {
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
			if asked && mine.Revision == r.Revision {
				return // many ask for the same
			}
			k.set(r.ID, r)
			k.waits.region(r)
			e.replace(k.entryOf(r))
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
	if k.full() && !(asked && k.admit(e, r)) {
		k.c.count.cacheSkipped.Add(1)
		return
	}
	k.set(r.ID, r)
	k.waits.region(r)
	e.insert(k.entryOf(r))
}

// full says that there is no room for what nobody asked for.
func (k *Cache) full() bool {
	return len(k.byID)-len(k.answers.byID) >= k.cfg.MaxRegions || k.bytes-k.answers.bytes > k.cfg.MaxBytes
}

// drop is of a region that is not what it was, or not known to be.
func (k *Cache) drop(e *edit, r *rooted.Region) {
	k.waits.region(r)
	k.evict(e, r)
}

// evict lets go of a region that is as it was, of which nobody is told: who waits for it
// would only ask for it again, and others would have to make room.
func (k *Cache) evict(e *edit, r *rooted.Region) {
	e.remove(r)
	k.answers.forget(r.ID)
	k.set(r.ID, nil)
}

// set makes r the region of an id; nil: there is none.
func (k *Cache) set(id rooted.RegionID, r *rooted.Region) {
	was := k.byID[id]
	k.bytes += sizeOf(r) - sizeOf(was)
	if r != nil {
		k.byID[id] = r
		k.refer(r, 1)
	} else {
		delete(k.byID, id)
	}
	if was != nil {
		k.refer(was, -1)
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
