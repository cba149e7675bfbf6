// Package held is what a member holds: which regions it may act for, at which epoch,
// and what its application has to do about them.
//
// It is pure. A Core is told what coordinators showed and answered, what became of
// calls to the application, and the time; it says which calls to make, which frames
// to send, and, through its Table, which requests to admit. One goroutine at a time
// owns a Core; its Table is read by any number.
//
// It promises, by the rules of ownership:
//
//	(2) A request is admitted for exactly the epoch that the newest set shows and the
//	    application has acquired, from then until the set says otherwise, the member
//	    has released it, or (4) stops it. What is refused is told what is known here.
//	(3) Every grant carries its epoch; what lands elsewhere is fenced there.
//	(4) Where the fence is a ttl, nothing is admitted later than ttl after the newest
//	    confirmed frame was sent, and Check says so behind the work.
//	(5) A ttl that gets longer is that of frames sent behind the change.
//	(8) Of a move the next owner is asked to prepare, the old one serves until it is
//	    told to release; then admitted work ends first, and the frontier is exact. A
//	    cancelled move leaves the old owner serving. What is split or merged is released
//	    the same way, and acquired again as what came of it.
//	(9) During a move the old owner says who is next, and the next one says to wait.
//
// A set of an older token than the newest is ignored. Whoever was told that its
// incarnation is over admits nothing any more, for good. Calls of one region never
// overlap; those of different regions may.
package held

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/hotkeys"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// Limits of a Core.
const (
	// MaxStreams is the most streams at a time; they are numbered from 0.
	MaxStreams = 8
	// MaxRegions is the most regions that a set may show.
	MaxRegions = 1 << 20
	// MaxFrameBytes bounds a frame; what does not fit goes into the next one.
	MaxFrameBytes = 256 << 10
	// MaxErrorBytes bounds what a frame says in words: of an error, or of why the process ends.
	MaxErrorBytes = 512
	// MaxHotKeys is the most keys that a region's report names.
	MaxHotKeys = 16
	// MaxFrontierBytes bounds a frontier, as the root does.
	MaxFrontierBytes = 4096
	// maxKeyspaces bounds the terms of a stream, and maxReplies the commands whose
	// outcome is remembered.
	maxKeyspaces = 4096
	maxReplies   = 1024
)

// Config says who the member is.
type Config struct {
	Member      rooted.MemberID
	Incarnation uint64
	// Evicts: the application can be asked to drop what was lost while requests still run.
	// If not, Evict waits for them, as Release does.
	Evicts bool
	// RetryMin and RetryMax bound the pause before a call that failed is made again; it
	// doubles. 0: 100 ms and 10 s.
	RetryMin, RetryMax time.Duration
	// Grace is how long admitted work may go on when its region is to be let go, or was lost,
	// before it loses its right, and Deaf how long it is waited for behind that; 0: for ever.
	Grace, Deaf time.Duration
	// Pinned is how long pins hold their region: the grace is as long, whatever the deadline of a move.
	Pinned time.Duration
	// Workers is how many calls may overlap, see Calls; 0: any number.
	Workers int
	// Chance returns a random number below n, by which keys of hot regions are sampled; any
	// number of goroutines call it. nil: that of math/rand.
	Chance func(n uint32) uint32
}

// Core is what one incarnation of a member holds.
type Core struct {
	cfg   Config
	table *Table

	// The truth: the set of the newest token, from whatever stream.
	obeyed rooted.Token
	sum    uint64
	count  int

	// holding is how many regions are held, see Holding.
	holding   int
	regions   map[rooted.RegionID]*region
	keyspaces map[rooted.KeyspaceID]*keyspace
	streams   [MaxStreams]*stream
	era       uint64
	load      rooted.Load
	goodbye   *goodbye
	stopping  bool
	over      bool
	queue     queue
	cancels   []Call
	lastID    uint64
	calls     map[uint64]callRef
	timers    timers
	looks     timers // when it is looked at whether a region was used since the last time
	// saying is when the frame that is being made is sent.
	saying  clock.Instant
	answers commandLog
	counts  rooted.MemberCounts
}

// Phase is what a member has made of a region.
type Phase = coordinatorv1.RegionPhase

const (
	phaseNone      = coordinatorv1.RegionPhase_REGION_PHASE_UNSPECIFIED
	phaseAcquiring = coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING
	phaseServing   = coordinatorv1.RegionPhase_REGION_PHASE_SERVING
	phasePreparing = coordinatorv1.RegionPhase_REGION_PHASE_PREPARING
	phaseReady     = coordinatorv1.RegionPhase_REGION_PHASE_READY
	phaseReleasing = coordinatorv1.RegionPhase_REGION_PHASE_RELEASING
	phaseReleased  = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
)

// region is what was made of one region.
type region struct {
	id rooted.RegionID
	// shown is what the newest set says; nil: it is the member's own no more.
	shown *shown
	// at is what phase is about: the epoch that it was acquired or prepared at.
	at    *rooted.Region
	phase Phase
	// gate counts the work that was admitted; one for each time it is acquired.
	gate *gate
	// left counts the work that has outlasted its right, and waitsUntil is how long work is
	// waited for; 0: it is not known yet.
	left       *gate
	waitsUntil clock.Instant
	// evicted: it was lost, and the application has dropped it.
	evicted bool
	// frontier is what the application said last; exact when it has released.
	frontier string
	fronted  bool
	// transition that READY and RELEASED are about.
	transition string
	// joined: both regions of the merge under way were released, at whole as one.
	joined bool
	whole  string
	// idle: released because nobody uses it; at this epoch it is not acquired again.
	idle bool
	// lookAt is when it is looked at next, in Core.looks; 0: it is not. quiet is since when
	// nobody used it, as far as that tells; unused: that is long.
	lookAt, quiet clock.Instant
	unused        bool

	// hung: it was let go although its Acquire has not returned.
	hung bool

	// held: it is counted in Core.holding.
	held bool

	// The call under way; 0: none.
	call      uint64
	kind      CallKind
	cancelled bool
	command   *commandRef
	// err is why the last call failed, or that it has not returned.
	err     string
	tries   int
	retryAt clock.Instant

	// went is whom it went to, when that is known.
	went  *Refusal
	stats *rooted.Stats
	hot   *hotkeys.Sketch
	// dirty has a bit for each stream that has to be told.
	dirty uint8
}

// want is what a set asks of a region.
type want uint8

const (
	wantNothing want = iota
	wantTake
	wantOwn
	wantGive
	// wantLater: its keyspace's terms have not come.
	wantLater
)

// New makes a Core that holds nothing.
func New(cfg Config) *Core {
	if cfg.Chance == nil {
		cfg.Chance = rand.Uint32N
	}
	cfg.RetryMin = cmp.Or(cfg.RetryMin, 100*time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, 10*time.Second), cfg.RetryMin)
	return &Core{
		cfg: cfg, table: newTable(),
		regions: map[rooted.RegionID]*region{}, keyspaces: map[rooted.KeyspaceID]*keyspace{},
		calls: map[uint64]callRef{}, queue: newQueue(), answers: commandLog{replies: map[uint64]*coordinatorv1.MemberCommandReply{}},
	}
}

// Table is what requests are admitted by. It stays the same one.
func (c *Core) Table() *Table { return c.table }

// Obeyed is the token of the newest set.
func (c *Core) Obeyed() rooted.Token { return c.obeyed }

// Counts returns the counts so far.
func (c *Core) Counts() rooted.MemberCounts { return c.counts }

// Regions is how many regions the member has anything to do with.
func (c *Core) Regions() int { return len(c.regions) }

// Holding is how many regions the application holds, or is being asked about.
func (c *Core) Holding() int { return c.holding }

// Phase is what was made of a region, and at which epoch.
func (c *Core) Phase(id rooted.RegionID) (Phase, rooted.Epoch) {
	r := c.regions[id]
	if r == nil || r.at == nil {
		return phaseNone, rooted.Epoch{}
	}
	return r.phase, r.at.Epoch
}

// Stop begins an orderly end: everything is released, and nothing new acquired.
func (c *Core) Stop(now clock.Instant) {
	c.stopping = true
	c.settleAll(now)
}

// Retire ends the incarnation: the root gave what it had to others, or may at any
// time. Nothing is admitted any more, and what was admitted fails its Check. The
// application is told to drop everything.
func (c *Core) Retire(now clock.Instant) {
	if c.over {
		return
	}
	c.end()
	c.settleAll(now)
}

// end lets nothing be admitted any more, and no work be good.
func (c *Core) end() {
	c.over = true
	c.table.retired.Store(true)
	c.table.wakeAll()
}

// Over says that the incarnation has ended.
func (c *Core) Over() bool { return c.over }

func (c *Core) settleAll(now clock.Instant) {
	for _, id := range c.ids() {
		if r := c.regions[id]; r != nil {
			c.settle(r, now)
		}
	}
}

// ids are all regions, ascending: what is done to all is done in one order.
func (c *Core) ids() []rooted.RegionID {
	ids := make([]rooted.RegionID, 0, len(c.regions))
	for id := range c.regions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (c *Core) want(r *region) want {
	s := r.shown
	switch {
	case c.over || s == nil:
		return wantNothing
	case c.keyspaces[s.region.Keyspace] == nil:
		if r.phase == phaseNone {
			return wantLater
		}
		return wantNothing
	case s.role == coordinatorv1.MoveRole_MOVE_ROLE_TAKES:
		if c.stopping {
			return wantNothing
		}
		return wantTake
	case c.stopping || s.releaseNow && s.role != coordinatorv1.MoveRole_MOVE_ROLE_UNSPECIFIED || r.idle && r.fits():
		return wantGive
	default:
		return wantOwn
	}
}

// fits says that what was made of a region is about the epoch shown.
func (r *region) fits() bool {
	return r.at != nil && r.shown != nil && r.at.Epoch == r.shown.region.Epoch
}

// settle takes a region one step towards what is wanted. It is called whenever
// something about it has changed, and decides by levels alone.
func (c *Core) settle(r *region, now clock.Instant) {
	w := c.want(r)
	c.adopt(r, w)
	if r.call != 0 {
		if c.needless(r, w) && !r.cancelled {
			c.callOff(r)
		}
		if r.kind == Acquire && c.calls[r.call].late {
			c.hang(r, w, now)
		}
	} else {
		for c.step(r, w, now) {
			w = c.want(r)
		}
	}
	c.publish(r, w)
}

// hang goes on although an Acquire does not return: nothing was served since, so that the region can
// be let go as it was granted. What it gets ready after all is evicted then; before that nothing
// else is made for the region, and what it is shown as its own again fails at once.
func (c *Core) hang(r *region, w want, now clock.Instant) {
	switch {
	case r.phase == phaseAcquiring && w == wantGive && r.fits():
		r.hung = true
		c.released(r, r.kept().Frontier, now)
	case r.hung && r.phase != phaseAcquiring && w == wantOwn:
		r.at, r.phase, r.transition = r.kept(), phaseAcquiring, ""
		r.err = "acquire at an earlier epoch has not returned"
		c.changed(r)
	}
}

// step does one thing; true: look again.
func (c *Core) step(r *region, w want, now clock.Instant) bool {
	switch r.phase {
	case phaseNone:
		return c.fromNone(r, w, now)
	case phasePreparing, phaseReady:
		same := r.fits() && r.transition == r.shown.transition
		switch {
		case w == wantTake && same:
			return r.phase == phasePreparing && c.retry(r, Prepare, now)
		case w == wantOwn || w == wantGive:
			return c.leave(r)
		}
		return c.begin(r, Abandon)
	case phaseAcquiring: // it failed
		switch {
		case w == wantOwn && r.fits():
			return c.retry(r, Acquire, now)
		case w == wantGive && r.fits():
			return c.released(r, r.at.Frontier, now)
		}
		return c.leave(r)
	case phaseServing, phaseReleasing:
		switch {
		case r.gate.ended(): // it was lost, whatever is shown meanwhile
		case w == wantOwn && r.fits():
			return r.phase == phaseReleasing && c.reopen(r, now)
		case w == wantGive && r.fits():
			return c.giving(r, now)
		}
		return c.lose(r, w, now)
	default: // phaseReleased
		if w == wantGive && r.fits() {
			if r.transition != r.shown.transition {
				c.releasedFor(r, now)
			}
			return c.joins(r) && c.retry(r, Merge, now)
		}
		return c.leave(r)
	}
}

func (c *Core) fromNone(r *region, w want, now clock.Instant) bool {
	switch w {
	case wantTake:
		r.at, r.transition = &r.shown.region, r.shown.transition
		r.phase = phasePreparing
		return c.retry(r, Prepare, now)
	case wantOwn:
		r.at, r.phase, r.transition = r.kept(), phaseAcquiring, ""
		return c.retry(r, Acquire, now)
	case wantGive: // not acquired since: it is as it was granted, or released
		r.at, r.transition = r.kept(), r.shown.transition
		return c.released(r, r.at.Frontier, now)
	case wantNothing:
		c.forget(r)
	}
	return false
}

// kept is a region as it is shown, at the frontier that it was released at if that was at this
// very epoch. Only what the application says next replaces that frontier: an Acquire that was
// called off, or failed, or was followed by the end of the region, leaves it as it is.
func (r *region) kept() *rooted.Region {
	at := &r.shown.region
	if r.fronted && r.fits() {
		at = at.Clone()
		at.Frontier = r.frontier
	}
	return at
}

// giving lets go of a region: first admitted work ends, then the application gives
// its frontier.
func (c *Core) giving(r *region, now clock.Instant) bool {
	if r.phase == phaseServing {
		r.phase = phaseReleasing
		r.transition = r.shown.transition
		c.changed(r)
	}
	c.publish(r, wantGive) // closes the gate: from here on the count only falls
	if r.busy() && !c.outlast(r, now) {
		return false
	}
	return c.retry(r, Release, now)
}

// lose drops a region that is not the member's at this epoch any more. It is left behind
// the last admitted work, so that nothing of it overlaps what comes next of the region.
func (c *Core) lose(r *region, w want, now clock.Instant) bool {
	if r.phase == phaseServing || !r.gate.ended() {
		r.phase = phaseReleasing
		c.publish(r, w) // ends the gate: from here on the count only falls
		c.changed(r)
	}
	switch {
	case r.busy() && (r.evicted || !c.cfg.Evicts) && !c.outlast(r, now):
		return false
	case r.evicted:
		return c.leave(r)
	}
	return c.retry(r, Evict, now)
}

// reopen takes back what was to be given: the move was cancelled.
func (c *Core) reopen(r *region, now clock.Instant) bool {
	r.phase, r.transition, r.err, r.tries, r.waitsUntil = phaseServing, "", "", 0, 0
	r.gate.reopen()
	c.watchUse(r, now)
	c.changed(r)
	return true
}

func (c *Core) released(r *region, frontier string, now clock.Instant) bool {
	r.phase, r.frontier, r.fronted, r.err, r.tries = phaseReleased, frontier, true, "", 0
	c.changed(r)
	if r.shown != nil {
		c.releasedFor(r, now)
	}
	return true
}

// releasedFor notes which transition a region was released for; the left one of a merge
// waits for the right one.
func (c *Core) releasedFor(r *region, now clock.Instant) {
	r.transition, r.joined = r.shown.transition, false
	c.changed(r)
	if left := c.regions[r.shown.left]; left != nil && left != r {
		c.settle(left, now)
	}
}

// joins reports whether a region is the left one of a merge, both are released for it,
// and it is not known yet how far they got as one.
func (c *Core) joins(r *region) bool {
	right := c.regions[r.shown.right]
	return r.shown.left == r.id && !r.joined && right != nil && right.phase == phaseReleased && right.fits() && right.transition == r.transition
}

// leave forgets what was made of a region, and looks at what is wanted now. What it
// was released at is known until it is acquired again.
func (c *Core) leave(r *region) bool {
	r.phase, r.gate, r.evicted, r.transition, r.joined, r.idle, r.unused, r.err, r.tries, r.retryAt = phaseNone, nil, false, "", false, false, false, "", 0, 0
	r.left, r.waitsUntil = nil, 0
	if !r.fits() {
		r.at, r.fronted, r.frontier = nil, false, ""
	}
	c.changed(r)
	return true
}

func (c *Core) forget(r *region) {
	c.changed(r)
	delete(c.regions, r.id)
}

// adopt goes on at another epoch where the member stays an owner beside others and
// the range is the same: nothing was taken from it.
func (c *Core) adopt(r *region, w want) {
	if r.phase != phaseServing && r.phase != phaseReleasing || w != wantOwn && w != wantGive || r.fits() || r.gate.ended() {
		return
	}
	next := &r.shown.region
	if k := c.keyspaces[next.Keyspace]; k == nil || !k.now.Load().Shared || next.Start != r.at.Start || next.End != r.at.End {
		return
	}
	r.at = next
	c.changed(r)
}

// needless says that the outcome of the call under way is not wanted any more.
func (c *Core) needless(r *region, w want) bool {
	switch r.kind {
	case Acquire, Checkpoint, Idle, TransferLeader:
		return w != wantOwn || !r.fits()
	case Prepare:
		return w != wantTake || !r.fits() || r.transition != r.shown.transition
	case Merge:
		return w != wantGive || !r.fits() || r.transition != r.shown.transition
	case Release: // the move was given up; behind an error the region is held as before
		return w == wantOwn && r.fits()
	}
	return false
}

// changed says that a region has to be reported, to all, at once.
func (c *Core) changed(r *region) { c.mark(r, true) }

func (c *Core) mark(r *region, urgent bool) {
	for i, s := range c.streams {
		if s == nil {
			continue
		}
		if r.dirty&(1<<i) == 0 {
			r.dirty |= 1 << i
			s.dirty = append(s.dirty, r.id)
		}
		s.urgent = s.urgent || urgent
	}
}

func (r *region) set(c *Core, field *string, value string) {
	if *field != value {
		*field = value
		c.changed(r)
	}
}
