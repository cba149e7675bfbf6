package held

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/shownsum"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/tidwall/btree"
)

// shown is a region as a set shows it. It is never changed.
type shown struct {
	region     rooted.Region
	role       coordinatorv1.MoveRole
	transition string
	peer       Peer
	releaseNow bool
	// deadline is the time that the move has; 0: no bound is told.
	deadline time.Duration
	// left and right are the regions of a merge.
	left, right rooted.RegionID
	hash        uint64
}

func shownFrom(p *coordinatorv1.ShownRegion) *shown {
	s := &shown{region: *rooted.RegionFromProto(p.GetRegion()), hash: shownsum.Of(p)}
	if m := p.GetMove(); m != nil {
		s.role, s.transition, s.releaseNow, s.deadline = m.GetRole(), m.GetTransitionId(), m.GetReleaseNow(), millis(m.GetDeadlineMillis())
		s.left, s.right = rooted.RegionID(m.GetLeftRegionId()), rooted.RegionID(m.GetRightRegionId())
		s.peer = Peer{Member: rooted.MemberID(m.GetPeerId()), Incarnation: m.GetPeerIncarnation(), Address: m.GetPeerAddress()}
	}
	return s
}

// stream is one line to a coordinator.
type stream struct {
	// What is shown on it: hashes of the regions, for number and checksum.
	token  rooted.Token
	hashes map[rooted.RegionID]uint64
	sum    uint64
	// broken: the set does not come out as what other coordinators show for its token,
	// and has to be shown again.
	broken bool
	// parts of a set that is not whole yet; pending is when the frame was sent that was
	// confirmed meanwhile.
	inside  bool
	parts   []*shown
	ended   []rooted.RegionID
	pending clock.Instant
	terms   map[rooted.KeyspaceID]*Keyspace

	// What is said on it: sent are the frames that no answer has come to.
	sequence uint64
	sent     []sentFrame
	lastSent clock.Instant
	interval time.Duration
	urgent   bool
	// whole: a complete report is to be made; when it has begun, todo are the regions
	// that it has still to tell.
	whole   bool
	begun   bool
	todo    []rooted.RegionID
	dirty   []rooted.RegionID
	load    bool
	replies []*coordinatorv1.MemberCommandReply
}

type sentFrame struct {
	sequence uint64
	at       clock.Instant
}

// Open begins a stream: its first frame says who speaks, and reports everything.
func (c *Core) Open(id int) {
	for _, r := range c.regions {
		r.dirty &^= 1 << id
	}
	c.streams[id] = &stream{hashes: map[rooted.RegionID]uint64{}, interval: firstInterval, whole: true, load: true}
}

// Close ends a stream. What the member obeys stays what it is.
func (c *Core) Close(id int) { c.streams[id] = nil }

// UnfitError is an answer that no coordinator that is right sends. The stream has to
// be closed.
type UnfitError struct{ Why string }

// Error implements error.
func (e *UnfitError) Error() string { return "unfit answer: " + e.Why }

func unfit(format string, args ...any) error { return &UnfitError{fmt.Sprintf(format, args...)} }

// Answer takes what a coordinator says. After an error the stream is to be closed.
func (c *Core) Answer(id int, a *coordinatorv1.MemberAnswer, now clock.Instant) error {
	s := c.streams[id]
	if s == nil || c.over {
		return nil
	}
	if a.GetSequence() > s.sequence {
		return unfit("it has taken frame %d, and %d were sent", a.GetSequence(), s.sequence)
	}
	c.era = max(c.era, a.GetEra())
	if a.GetTerms() != nil {
		if err := c.take(s, a.GetTerms(), now); err != nil {
			return err
		}
	}
	if a.GetSet() != nil {
		if err := c.show(s, a.GetSet(), now); err != nil {
			return err
		}
	}
	// Behind the set: what ended a region must not be overtaken by what confirms it.
	c.confirm(s, a, now)
	for _, m := range a.GetCommands() {
		c.carryOut(id, m, now)
	}
	if a.GetReportAgain() {
		s.whole, s.begun = true, false
	}
	for _, at := range a.GetReportAgainRegions() {
		if r := c.regions[rooted.RegionID(at)]; r != nil && r.dirty&(1<<id) == 0 {
			r.dirty |= 1 << id
			s.dirty, s.urgent = append(s.dirty, r.id), true
		}
	}
	return nil
}

// confirm is rule 4. The confirmation of an era that is over is none.
func (c *Core) confirm(s *stream, a *coordinatorv1.MemberAnswer, now clock.Instant) {
	var at clock.Instant
	for len(s.sent) > 0 && s.sent[0].sequence <= a.GetSequence() {
		if s.sent[0].sequence == a.GetSequence() {
			at = s.sent[0].at
		}
		s.sent = s.sent[1:]
	}
	if a.GetConfirmed() && at != 0 && a.GetEra() == c.era {
		s.pending = at
	}
	if s.inside || s.pending == 0 {
		return
	}
	if s.pending > clock.Instant(c.table.confirmed.Load()) {
		c.table.confirmed.Store(int64(s.pending))
		c.counts.Confirmed++
		for _, id := range c.spaces() {
			k := c.keyspaces[id]
			k.lengthen(s.pending)
			c.tell(k, now)
		}
	}
	s.pending = 0
}

// show takes a part of a set, and obeys the set when it is whole and newer than what
// the member has seen.
func (c *Core) show(s *stream, set *coordinatorv1.ShownSet, now clock.Instant) error {
	token := rooted.TokenFromProto(set.GetToken())
	whole := set.GetComplete()
	switch {
	case token.Index == 0:
		return unfit("a set has no token")
	case token.Compare(s.token) < 0:
		return unfit("a set at %s follows one at %s", token, s.token)
	case !whole && s.token == (rooted.Token{}) && !s.inside:
		return unfit("the first set is not complete")
	case len(s.parts)+len(set.GetRegions()) > MaxRegions || len(s.ended)+len(set.GetEnded()) > MaxRegions:
		return unfit("a set has more than %d regions", MaxRegions)
	}
	for _, p := range set.GetRegions() {
		if p.GetRegion().GetId() == 0 {
			return unfit("a region has no id")
		}
		s.parts = append(s.parts, shownFrom(p))
	}
	for _, id := range set.GetEnded() {
		s.ended = append(s.ended, rooted.RegionID(id))
	}
	if s.inside = set.GetPartial(); s.inside {
		return nil
	}
	parts, ended := s.parts, s.ended
	s.parts, s.ended, s.broken = nil, nil, false
	s.count(parts, ended, whole)
	// Where a move is on its way, somebody waits to hear that this set is taken, too.
	s.token, s.urgent = token, s.urgent || whole || slices.ContainsFunc(parts, func(p *shown) bool { return p.role != 0 })
	newer := token.Compare(c.obeyed)
	if newer < 0 || newer == 0 && !whole {
		c.counts.SetsIgnored++
		return nil
	}
	c.counts.SetsObeyed++
	c.obey(token, parts, ended, whole, now)
	if s.sum != c.sum || len(s.hashes) != c.count {
		s.broken, s.urgent = true, true
		c.counts.SetsUnfit++
	}
	return nil
}

// count keeps number and checksum of what the stream shows.
func (s *stream) count(parts []*shown, ended []rooted.RegionID, whole bool) {
	if whole {
		s.hashes, s.sum = make(map[rooted.RegionID]uint64, len(parts)), 0
	}
	for _, p := range parts {
		s.sum ^= s.hashes[p.region.ID] ^ p.hash
		s.hashes[p.region.ID] = p.hash
	}
	for _, id := range ended {
		s.sum ^= s.hashes[id]
		delete(s.hashes, id)
	}
}

// obey makes a set the truth. A change set is what changed since an older one than
// the newest, or that one itself, so that with it the truth is at its token.
func (c *Core) obey(token rooted.Token, parts []*shown, ended []rooted.RegionID, whole bool, now clock.Instant) {
	c.obeyed = token
	if whole {
		in := make(map[rooted.RegionID]struct{}, len(parts))
		for _, p := range parts {
			in[p.region.ID] = struct{}{}
		}
		for _, id := range c.ids() {
			if _, ok := in[id]; !ok {
				ended = append(ended, id)
			}
		}
	}
	// The region that a key has come into is there before that is cut or gone which it was in.
	for i, p := range parts {
		if c.regions[p.region.ID] == nil {
			c.setShown(p.region.ID, p, now)
			parts[i] = nil
		}
	}
	for _, p := range parts {
		if p != nil {
			c.setShown(p.region.ID, p, now)
		}
	}
	for _, id := range ended {
		c.setShown(id, nil, now)
	}
}

func (c *Core) setShown(id rooted.RegionID, s *shown, now clock.Instant) {
	r := c.regions[id]
	if r == nil {
		if s == nil {
			return
		}
		r = &region{id: id}
		c.regions[id] = r
	}
	if old := r.shown; old != nil {
		c.sum ^= old.hash
		c.count--
		switch {
		case s != nil:
		case old.role == coordinatorv1.MoveRole_MOVE_ROLE_GIVES && old.peer.Member != "":
			r.went = &Refusal{Verdict: Moved, Region: id, Epoch: next(old.region.Epoch), To: old.peer.Member, Address: old.peer.Address}
		case old.role == coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES: // its neighbour has taken it in
			r.went = &Refusal{Verdict: NotOwned, Region: id, Epoch: old.region.Epoch}
		case r.idle: // it is gone, and its key may have another region
			r.went = &Refusal{Verdict: NotOwned, Region: id, Epoch: old.region.Epoch}
		}
	}
	r.shown = s
	if s != nil {
		c.sum ^= s.hash
		c.count++
		r.went = nil
		if r.fits() && r.phase == phaseServing && r.transition != s.transition {
			r.transition = ""
		}
	}
	c.settle(r, now)
}

// Intervals between frames.
const (
	firstInterval = time.Second
	leastInterval = 50 * time.Millisecond
	mostInterval  = 30 * time.Second
)

// take takes the terms that a coordinator names.
func (c *Core) take(s *stream, t *coordinatorv1.MemberTerms, now clock.Instant) error {
	if ms := t.GetIntervalMillis(); ms > 0 {
		s.interval = min(max(millis(ms), leastInterval), mostInterval)
	}
	if len(t.GetKeyspaces()) > maxKeyspaces {
		return unfit("there are terms of %d keyspaces, %d at most", len(t.GetKeyspaces()), maxKeyspaces)
	}
	s.terms = make(map[rooted.KeyspaceID]*Keyspace, len(t.GetKeyspaces()))
	for _, p := range t.GetKeyspaces() {
		k := &Keyspace{
			ID: rooted.KeyspaceID(p.GetKeyspaceId()), Name: p.GetName(), Layout: p.GetLayout(), Shared: p.GetShared(),
			Hold: millis(p.GetHoldRequestsMillis()), Idle: time.Duration(min(p.GetIdleEvictMillis(), mostIdle)) * time.Millisecond,
		}
		if p.GetFence() == rootv1.Fence_FENCE_TTL && !k.Shared {
			if k.TTL = millis(p.GetTtlMillis()); k.TTL == 0 {
				return unfit("keyspace %s has a fence of no time", k.Name)
			}
		}
		s.terms[k.ID] = k
	}
	c.mergeTerms(now)
	return nil
}

// mergeTerms makes the terms of all streams one. Coordinators may know of a change
// at different times: the shortest ttl is kept to.
func (c *Core) mergeTerms(now clock.Instant) {
	merged := map[rooted.KeyspaceID]*Keyspace{}
	for _, s := range c.streams {
		if s == nil {
			continue
		}
		for id, k := range s.terms {
			m := merged[id]
			if m == nil {
				one := *k
				merged[id] = &one
				continue
			}
			if m.TTL == 0 || k.TTL != 0 && k.TTL < m.TTL {
				m.TTL = k.TTL
			}
			m.Hold, m.Idle = max(m.Hold, k.Hold), max(m.Idle, k.Idle)
		}
	}
	changed, watch := c.dropKeyspaces(merged), false
	for id, m := range merged {
		k := c.keyspaces[id]
		if k == nil {
			k = &keyspace{stopped: true, exact: map[string]*Grant{}, ranges: btree.NewMap[string, *Grant](0)}
			c.keyspaces[id] = k
			changed = true
		}
		if old := k.now.Load(); old != nil && m.Idle > 0 && m.Idle != old.Idle {
			watch = true
		}
		k.become(m, now)
		c.table.hold.Store(max(c.table.hold.Load(), int64(m.Hold)))
	}
	for _, id := range c.spaces() {
		c.tell(c.keyspaces[id], now)
	}
	if changed {
		c.name()
		c.settleAll(now)
	}
	if watch {
		c.watchAll(now)
	}
}

// mostIdle bounds the time that a region is unused, in milliseconds: as settings do.
const mostIdle = 366 * 24 * 60 * 60 * 1000

// become takes new terms. A longer ttl is kept to from the next confirmation on: who gave
// those before reckoned with the shorter one, and may have given regions to others that
// this member has not heard of yet. That holds as well when there was no ttl in between.
func (k *keyspace) become(m *Keyspace, now clock.Instant) {
	switch {
	case k.shorter == 0 || m.TTL <= k.shorter:
		k.longer = 0
	default:
		if k.longer != m.TTL {
			k.longer, k.longerFrom = m.TTL, now
		}
		m.TTL = k.shorter
	}
	if m.TTL > 0 {
		k.shorter = m.TTL
	}
	k.now.Store(m)
}

// lengthen has the longer ttl count, if a frame that was sent at sent is behind it.
func (k *keyspace) lengthen(sent clock.Instant) {
	if k.longer == 0 || sent < k.longerFrom {
		return
	}
	m := *k.now.Load()
	m.TTL, k.shorter, k.longer = k.longer, k.longer, 0
	k.now.Store(&m)
}

// dropKeyspaces forgets keyspaces that no terms name and no region is in. True: there were
// such.
func (c *Core) dropKeyspaces(named map[rooted.KeyspaceID]*Keyspace) bool {
	gone := map[rooted.KeyspaceID]struct{}{}
	for id, k := range c.keyspaces {
		if named[id] == nil && k.call == 0 {
			gone[id] = struct{}{}
		}
	}
	if len(gone) == 0 {
		return false
	}
	for _, r := range c.regions {
		if r.at != nil {
			delete(gone, r.at.Keyspace)
		}
		if r.shown != nil {
			delete(gone, r.shown.region.Keyspace)
		}
	}
	for id := range gone {
		delete(c.keyspaces, id)
	}
	return len(gone) > 0
}

// name lets names lead to keyspaces: to the one that was created last, where others had
// the name before it.
func (c *Core) name() {
	names := make(map[string]*keyspace, len(c.keyspaces))
	for _, id := range c.spaces() {
		names[c.keyspaces[id].now.Load().Name] = c.keyspaces[id]
	}
	c.table.names.Store(&names)
	c.table.wakeKeys()
}

// spaces are all keyspaces, ascending.
func (c *Core) spaces() []rooted.KeyspaceID {
	ids := make([]rooted.KeyspaceID, 0, len(c.keyspaces))
	for id := range c.keyspaces {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// tell says to the application that a keyspace is stopped because nobody confirms the
// member, and when that is over.
func (c *Core) tell(k *keyspace, now clock.Instant) {
	terms, at := k.now.Load(), clock.Instant(c.table.confirmed.Load())
	stopped := terms.TTL > 0 && (at == 0 || now.Sub(at) >= terms.TTL)
	if stopped && !k.stopped {
		c.counts.Unconfirmed++
	}
	k.stopped = stopped
	if k.call != 0 || at == 0 || k.told == stopped {
		return
	}
	k.told = stopped
	kind := Resume
	if stopped {
		kind = Stop
	}
	c.lastID++
	k.call = c.lastID
	c.enqueue(callRef{keyspace: terms.ID}, Call{ID: k.call, Kind: kind, Keyspace: terms})
}

// Stopped says whether a keyspace is not served because nobody confirms the member.
func (c *Core) Stopped(id rooted.KeyspaceID) bool {
	k := c.keyspaces[id]
	return k != nil && k.stopped
}

// millis is a duration from the wire, an hour at most.
func millis(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt32, 3_600_000)) * time.Millisecond
}
