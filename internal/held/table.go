package held

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/hotkeys"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/tidwall/btree"
)

// Verdict is why a request was refused.
type Verdict uint8

// Verdicts.
const (
	// NotOwned: the region is not this member's, or no region holds the key.
	NotOwned Verdict = iota + 1
	// Moved: To has it, or is about to, at Epoch or above.
	Moved
	// EpochStale: Epoch is the one that this member acts at.
	EpochStale
	// Unconfirmed: nobody confirmed the member for the ttl of the keyspace.
	Unconfirmed
	// Wait: the region is on its way here; look again when Changed says so, for at most
	// Hold.
	Wait
)

var verdictNames = [...]string{"", "not_owned", "moved", "epoch_stale", "unconfirmed", "wait"}

// String is the verdict in a word.
func (v Verdict) String() string { return verdictNames[v] }

// Refusal is why a request was refused, with the way out.
type Refusal struct {
	Verdict Verdict
	// Region that was asked for or holds the key; 0: none is known.
	Region rooted.RegionID
	// Epoch that is known of the region; zero: none.
	Epoch rooted.Epoch
	// To and Address are who has the region, with Moved.
	To      rooted.MemberID
	Address string
	// Hold is how long a request may wait, with Wait.
	Hold time.Duration
}

// Request is what somebody wants to act for.
type Request struct {
	// Region, or 0: the one that holds Key in Keyspace. With both the region has to be in Keyspace.
	Region   rooted.RegionID
	Keyspace string
	// Key has to be in the region; with a Region it may be left out.
	Key []byte
	// Epoch that the asker knows; zero: it knows none.
	Epoch rooted.Epoch
}

// maxPast is how many regions that were given away are remembered.
const maxPast = 16384

// unknownHold is how long a request may wait for a region of which nothing is known.
const unknownHold = 2 * time.Second

const shards = 64

// Table is what requests are admitted by. Any number of goroutines may ask it.
type Table struct {
	// confirmed is when the newest confirmed frame was sent; 0: none was.
	confirmed atomic.Int64
	retired   atomic.Bool
	// hold is the longest time that a known keyspace lets requests wait.
	hold atomic.Int64

	shards [shards]shard
	// names leads to the keyspaces; replaced, never changed.
	names atomic.Pointer[map[string]*keyspace]

	mu sync.Mutex
	// Guarded by mu: what was given away, the oldest first in order; and who waits for
	// a change of a region, or for the region of a key. waiting is how many do.
	past    map[rooted.RegionID]*departed
	gone    map[rooted.KeyspaceID]*btree.Map[string, piece] // by where they begin
	order   []*departed
	changed *btree.Map[rooted.RegionID, *waiters]
	keys    map[rooted.KeyspaceID]*btree.Map[string, *waiters] // by route key; of keyspaces that are not known all at 0 and ""
	waiting atomic.Int64
}

type shard struct {
	mu sync.RWMutex
	at map[rooted.RegionID]*Grant
}

// keyspace is one whose regions the member has. The Core owns call, stopped and told.
type keyspace struct {
	now atomic.Pointer[Keyspace]

	// call is Stop or Resume under way. stopped is how it is, told what the
	// application knows.
	call          uint64
	stopped, told bool
	// longer is the ttl of confirmations of frames that are sent from longerFrom on; 0: as
	// of all.
	longer     time.Duration
	shorter    time.Duration // the last ttl that counted; 0: there was none
	longerFrom clock.Instant

	mu sync.RWMutex
	// Guarded by mu: grants by the start of their ranges; points are found by their
	// whole key.
	exact  map[string]*Grant
	ranges *btree.Map[string, *Grant]
}

// Keyspace is what a member knows of a keyspace.
type Keyspace struct {
	ID     rooted.KeyspaceID
	Name   string
	Layout *rootv1.Layout
	// TTL is the time that a confirmation is good for; 0: the epoch is the fence.
	TTL time.Duration
	// Hold is how long requests wait for a region that is on its way.
	Hold time.Duration
	// Idle is how long nobody has to use a region for it to be reported as unused; 0: none is.
	Idle   time.Duration
	Shared bool
}

// Grant is the right to act for a region at an epoch, or why there is none. It never
// changes.
type Grant struct {
	// Region with the epoch that it is held at.
	Region *rooted.Region

	space *keyspace
	gate  *gate // nil: refused
	why   *Refusal
	// shown: the newest set names the region. Only then it is found by its keys: they may
	// be another one's by now.
	shown bool
	hot   *hotkeys.Sketch
}

// Keyspace is the terms of the region's keyspace.
func (g *Grant) Keyspace() *Keyspace { return g.space.now.Load() }

// gate counts admitted work. closed: no more is admitted; ended: what was admitted
// has lost its right.
type gate struct {
	state atomic.Uint64
	// used: work was admitted since the Core looked last.
	used atomic.Bool

	mu sync.Mutex
	// Guarded by mu: leaving is made when somebody asks for it, and closed with the gate.
	leaving chan struct{}
	told    bool
	// over are called when the gate has expired, one a grant at most.
	over    map[*Grant]func()
	expired bool
}

const (
	gateClosed = 1 << 63
	gateEnded  = 1 << 62
	gateCount  = gateEnded - 1
)

// enter leaves the count of a closed gate alone: whoever leaves last has worked.
func (g *gate) enter() bool {
	for {
		n := g.state.Load()
		if n&gateClosed != 0 {
			return false
		}
		if g.state.CompareAndSwap(n, n+1) {
			if !g.used.Load() {
				g.used.Store(true)
			}
			return true
		}
	}
}

// leave says whether it was the last behind a closed gate.
func (g *gate) leave() bool {
	n := g.state.Add(^uint64(0))
	return n&gateClosed != 0 && n&gateCount == 0
}

func (g *gate) busy() bool  { return g != nil && g.state.Load()&gateCount != 0 }
func (g *gate) ended() bool { return g.state.Load()&gateEnded != 0 }
func (g *gate) close()      { g.shut(gateClosed) }
func (g *gate) end()        { g.shut(gateClosed | gateEnded) }

func (g *gate) shut(bits uint64) {
	g.state.Or(bits)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving != nil && !g.told {
		close(g.leaving)
		g.told = true
	}
}

func (g *gate) reopen() {
	g.state.And(^uint64(gateClosed))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaving, g.told = nil, false
}

// Leaving is closed when the region is to be let go, or is lost: work that would go on
// for long should end.
func (g *Grant) Leaving() <-chan struct{} {
	at := g.gate
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.leaving == nil {
		at.leaving = make(chan struct{})
		if at.told = at.state.Load()&gateClosed != 0; at.told {
			close(at.leaving)
		}
	}
	return at.leaving
}

func newTable() *Table {
	t := &Table{
		past: map[rooted.RegionID]*departed{}, gone: map[rooted.KeyspaceID]*btree.Map[string, piece]{},
		changed: btree.NewMap[rooted.RegionID, *waiters](0), keys: map[rooted.KeyspaceID]*btree.Map[string, *waiters]{},
	}
	for i := range t.shards {
		t.shards[i].at = map[rooted.RegionID]*Grant{}
	}
	t.names.Store(&map[string]*keyspace{})
	return t
}

func (t *Table) shard(id rooted.RegionID) *shard { return &t.shards[id%shards] }

func (t *Table) find(id rooted.RegionID) *Grant {
	s := t.shard(id)
	s.mu.RLock()
	g := s.at[id]
	s.mu.RUnlock()
	return g
}

// Admit lets a request act, or says why not. Who is let in calls Leave behind the
// work, and Check before it tells anybody of it. The clock is looked at only where
// the fence is a ttl.
func (t *Table) Admit(q Request, now clock.Clock) (*Grant, *Refusal) {
	for range 100 {
		g := t.lookup(&q)
		if g == nil || !g.holds(q.Key) {
			return nil, t.elsewhere(g, &q)
		}
		if g.why != nil {
			return nil, g.refusal(&q)
		}
		if q.Epoch != g.Region.Epoch && q.Epoch != (rooted.Epoch{}) {
			return nil, g.otherEpoch(q.Epoch)
		}
		if !t.confirms(g, now) {
			return nil, &Refusal{Verdict: Unconfirmed, Region: g.Region.ID, Epoch: g.Region.Epoch}
		}
		if g.gate.enter() {
			return g, nil
		}
		// It was closed since it was looked up, and what is there now says why.
	}
	return nil, &Refusal{Verdict: Wait, Region: q.Region, Hold: unknownHold}
}

// Check says whether the right that a request was let in with still holds: behind the
// work, and before the reply. nil: it does.
func (t *Table) Check(g *Grant, now clock.Clock) *Refusal {
	if g.gate.ended() || t.retired.Load() {
		return &Refusal{Verdict: NotOwned, Region: g.Region.ID, Epoch: g.Region.Epoch}
	}
	if !t.confirms(g, now) {
		return &Refusal{Verdict: Unconfirmed, Region: g.Region.ID, Epoch: g.Region.Epoch}
	}
	return nil
}

// Leave ends admitted work. True: the region's release waited for it, and the Core
// wants to be told, by Drained.
func (t *Table) Leave(g *Grant) bool { return g.gate.leave() }

// Touch counts a key of admitted work where the region is one of the hottest. It
// never waits.
func (g *Grant) Touch(key []byte) {
	if g.hot != nil {
		g.hot.Touch(key)
	}
}

func (t *Table) confirms(g *Grant, now clock.Clock) bool {
	ttl := g.space.now.Load().TTL
	if ttl == 0 {
		return true
	}
	at := clock.Instant(t.confirmed.Load())
	return at != 0 && now.Now().Sub(at) < ttl
}

// Left is how long what is confirmed now is good for, where the fence is a ttl; false: that
// does not end by time.
func (t *Table) Left(g *Grant, now clock.Clock) (time.Duration, bool) {
	ttl := g.space.now.Load().TTL
	if ttl == 0 {
		return 0, false
	}
	at := clock.Instant(t.confirmed.Load())
	if at == 0 {
		return 0, true
	}
	return max(ttl-now.Now().Sub(at), 0), true
}

func (t *Table) lookup(q *Request) *Grant {
	if t.retired.Load() {
		return nil
	}
	if q.Region != 0 {
		g := t.find(q.Region)
		if g != nil && q.Keyspace != "" && g.Keyspace().Name != q.Keyspace {
			return nil // whether the caller may ask was judged by the keyspace that it names
		}
		return g
	}
	k := (*t.names.Load())[q.Keyspace]
	if k == nil {
		return nil
	}
	terms := k.now.Load()
	if len(q.Key) == 0 && !isRanges(terms.Layout) {
		return nil
	}
	var room [8]byte
	key := routeKey(room[:0], terms.Layout, q.Key)
	k.mu.RLock()
	defer k.mu.RUnlock()
	if isPoints(terms.Layout) {
		return k.exact[key]
	}
	var found *Grant
	k.ranges.Descend(key, func(_ string, g *Grant) bool {
		found = g
		return false
	})
	return found
}

func isPoints(l *rootv1.Layout) bool { return l.GetPoints() != nil }
func isRanges(l *rootv1.Layout) bool { return l.GetPoints() == nil && l.GetSlots() == nil }

// routeKey is the place of a key, in room if it is a slot's; nobody keeps it.
func routeKey(room []byte, layout *rootv1.Layout, key []byte) string {
	if n := layout.GetSlots().GetCount(); n > 0 {
		key = rooted.AppendSlotKey(room, rooted.Slot(n, key))
	}
	return unsafe.String(unsafe.SliceData(key), len(key))
}

// holds says whether a key, if there is one, is in the region's range.
func (g *Grant) holds(key []byte) bool {
	if key == nil {
		return true
	}
	var room [8]byte
	return g.Region.Contains(routeKey(room[:0], g.space.now.Load().Layout, key))
}

// refusal of a region that is known and not open.
func (g *Grant) refusal(q *Request) *Refusal {
	known := g.why.Epoch
	switch {
	case g.why.Verdict == Wait && q.Epoch != (rooted.Epoch{}) && known.Compare(q.Epoch) > 0 && g.why.To == "":
		return &Refusal{Verdict: EpochStale, Region: g.why.Region, Epoch: known}
	case g.why.Verdict == Wait && g.why.To != "" && q.Epoch.Compare(known) <= 0:
		// It is to come, and who asks may still go to who has it.
		return &Refusal{Verdict: Moved, Region: g.why.Region, Epoch: known, To: g.why.To, Address: g.why.Address}
	case !g.shown && q.Epoch.Compare(known) > 0: // it may be on its way back
		return g.otherEpoch(q.Epoch)
	}
	return g.why
}

func (g *Grant) otherEpoch(asked rooted.Epoch) *Refusal {
	if asked.Compare(g.Region.Epoch) > 0 {
		return &Refusal{Verdict: Wait, Region: g.Region.ID, Epoch: g.Region.Epoch, Hold: g.space.now.Load().Hold}
	}
	return &Refusal{Verdict: EpochStale, Region: g.Region.ID, Epoch: g.Region.Epoch}
}

// elsewhere is what is known of a key that is not in the region that is asked for: it may be
// in one here that was split off, or merged, since the asker's route was made.
func (t *Table) elsewhere(g *Grant, q *Request) *Refusal {
	by := Request{Keyspace: q.Keyspace, Key: q.Key}
	if g != nil {
		by.Keyspace = g.Keyspace().Name
	}
	if q.Region != 0 && q.Key != nil {
		if at := t.lookup(&by); at != nil && at.holds(q.Key) && at.Region.Epoch.Version > q.Epoch.Version {
			return &Refusal{Verdict: EpochStale, Region: at.Region.ID, Epoch: at.Region.Epoch}
		}
	}
	if g != nil && q.Region != 0 && q.Epoch.Compare(g.Region.Epoch) > 0 && (g.why == nil || g.why.Verdict == Wait) {
		return g.otherEpoch(q.Epoch) // there it may be wider
	}
	return t.unknown(q)
}

// unknown is what is known of a region that is not here, or of a key that no region here holds. Who knows an epoch
// that was never here may have heard of it earlier than this member.
func (t *Table) unknown(q *Request) *Refusal {
	if t.retired.Load() {
		return &Refusal{Verdict: NotOwned, Region: q.Region}
	}
	k := (*t.names.Load())[q.Keyspace]
	if past := t.departed(q, k); past != nil && q.Epoch.Compare(past.no.Epoch) <= 0 {
		return past.no
	}
	nowhere := q.Region == 0 && (len(q.Key) == 0 || q.Keyspace == "")
	if nowhere || q.Epoch == (rooted.Epoch{}) || q.Region != 0 && t.find(q.Region) != nil {
		return &Refusal{Verdict: NotOwned, Region: q.Region}
	}
	hold := time.Duration(t.hold.Load())
	if k != nil {
		hold = k.now.Load().Hold
	} else if hold == 0 {
		hold = unknownHold
	}
	return &Refusal{Verdict: Wait, Region: q.Region, Hold: hold}
}

// publish makes the table say what was made of a region. What is there is replaced
// before a gate is closed: who finds it closed finds the reason.
func (c *Core) publish(r *region, w want) {
	if held := r.call != 0 || r.gate != nil && r.phase != phaseReleased; held != r.held {
		r.held = held
		if held {
			c.holding++
		} else {
			c.holding--
		}
	}
	if c.regions[r.id] != r {
		c.table.drop(r.id, r.went)
		return
	}
	k := c.keyspaceOf(r)
	if k == nil {
		return
	}
	g := &Grant{space: k, Region: r.at, shown: r.shown != nil}
	if g.Region == nil {
		g.Region = &r.shown.region
	}
	open := r.phase == phaseServing && r.fits() && (w == wantOwn || w == wantGive) && !r.gate.ended()
	if open {
		g.gate = r.gate
		g.hot = r.hot
	} else {
		g.why = c.whyNot(r, w, k)
	}
	c.table.put(g)
	switch {
	case open || r.gate == nil:
	case r.fits() && (w == wantGive || w == wantOwn):
		r.gate.close()
	default:
		r.gate.end()
	}
}

func (r *region) kindNow() CallKind {
	if r.call == 0 {
		return 0
	}
	return r.kind
}

func (c *Core) keyspaceOf(r *region) *keyspace {
	if r.at != nil {
		return c.keyspaces[r.at.Keyspace]
	}
	if r.shown != nil {
		return c.keyspaces[r.shown.region.Keyspace]
	}
	return nil
}

// whyNot is why a region is not open.
func (c *Core) whyNot(r *region, w want, k *keyspace) *Refusal {
	no := &Refusal{Verdict: NotOwned, Region: r.id}
	if r.at != nil {
		no.Epoch = r.at.Epoch
	}
	s := r.shown
	switch {
	case s != nil && s.role == coordinatorv1.MoveRole_MOVE_ROLE_GIVES && s.peer.Member != "" && r.phase != phaseNone && !c.over:
		no.Verdict, no.Epoch, no.To, no.Address = Moved, next(s.region.Epoch), s.peer.Member, s.peer.Address
	case w == wantTake:
		no.Verdict, no.Epoch, no.Hold, no.To, no.Address = Wait, s.region.Epoch, k.now.Load().Hold, s.peer.Member, s.peer.Address
	case w == wantOwn || w == wantGive && (s.role == coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES || r.idle) && !c.stopping:
		no.Verdict, no.Epoch, no.Hold = Wait, s.region.Epoch, k.now.Load().Hold
	case r.went != nil:
		return r.went
	}
	return no
}

func next(e rooted.Epoch) rooted.Epoch {
	e.ConfVersion++
	return e
}

func (t *Table) put(g *Grant) {
	s := t.shard(g.Region.ID)
	s.mu.Lock()
	old := s.at[g.Region.ID]
	s.at[g.Region.ID] = g
	s.mu.Unlock()
	g.space.index(old, g)
	if old == nil {
		t.mu.Lock()
		delete(t.past, g.Region.ID)
		t.mu.Unlock()
	}
	t.wake(g)
}

// drop forgets a region but for where it went.
func (t *Table) drop(id rooted.RegionID, went *Refusal) {
	s := t.shard(id)
	s.mu.Lock()
	old := s.at[id]
	delete(s.at, id)
	s.mu.Unlock()
	if old == nil {
		return
	}
	defer t.wake(old) // behind the index: who waits for a key looks there
	old.space.index(old, nil)
	if went == nil {
		went = old.why
	}
	if went == nil || went.Verdict == Wait {
		return
	}
	t.remember(&departed{region: old.Region, no: went})
}

// index replaces a grant by another one, or by none.
func (k *keyspace) index(old, new *Grant) {
	if new != nil && !new.shown {
		new = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old != nil && (new == nil || old.Region.Start != new.Region.Start) {
		if at, ok := k.get(old.Region.Start); ok && at.Region.ID == old.Region.ID {
			delete(k.exact, old.Region.Start)
			k.ranges.Delete(old.Region.Start)
		}
	}
	switch {
	case new == nil:
	case isPoints(k.now.Load().Layout):
		k.exact[new.Region.Start] = new
	default:
		k.ranges.Set(new.Region.Start, new)
	}
}

func (k *keyspace) get(start string) (*Grant, bool) {
	if g, ok := k.exact[start]; ok {
		return g, true
	}
	return k.ranges.Get(start)
}
