// Package shown makes what a coordinator shows its members: the regions that the root
// says are their own, and what they are to take or to give.
//
// It owns, for each member that is connected, what has changed since it was last shown
// something, and no more: what a member is shown is a function of the State. It promises:
//
//  1. A member that takes the sets of a stream in order has exactly what the State at the
//     token of the last one says: its incarnation's regions of assigned keyspaces, and
//     its part in what is pending for them or will bring it others.
//  2. A set is complete at the start of a stream, when the member's count or checksum is
//     another, when changes are not known, and when more changed than there is.
//  3. The work for a change is that for its owners. Nothing is kept of a region that
//     has not changed since its owner was shown it.
//  4. What is kept of a member is bounded by what it has, and a part of a set by MaxPartBytes.
//
// A Core is for one goroutine at a time; it has no clock, and nobody waits in it.
package shown

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// fewDirty is up to how many changes are kept of a member that has less.
const fewDirty = 64

// Core is what is shown to all members that are connected.
type Core struct {
	st      *state.State
	streams map[state.MemberID]*Stream
	// pending are the regions with a planned change of owners that a member has a part
	// in, whether it is connected or not.
	pending map[state.MemberID]*part
	// adds are the regions that are to have one more owner, and which: it is shown whom it fetches from.
	adds map[state.RegionID]state.MemberID
	// keyspaces says which are assigned, and of those which are shared.
	keyspaces map[state.KeyspaceID]kind
	// news are the streams that something is to be shown on, since Dirty was asked.
	news []*Stream
}

type kind struct{ assigned, shared bool }

// part is a member's in what is planned: the regions, and how many of them each keyspace has.
type part struct {
	regions map[state.RegionID]struct{}
	counts  map[state.KeyspaceID]int
}

// Stream is one member's, in one incarnation.
type Stream struct {
	member      state.MemberID
	incarnation uint64
	// dirty are the regions that changed since the last set, with the hash of what was
	// shown of them; 0: nothing.
	dirty map[state.RegionID]uint64
	// whole: the next set is complete, and dirty is empty.
	whole bool
	noted bool // in news
	// at is the token of the last set that was made whole; count and sum are what the
	// member has then.
	at         state.Token
	count, sum uint64
	making     *Set // the parts of it are not all made
}

// New makes a Core that shows what st says.
func New(st *state.State) *Core {
	c := &Core{streams: map[state.MemberID]*Stream{}}
	c.Jump(st)
	return c
}

// State is what is shown.
func (c *Core) State() *state.State { return c.st }

// Open begins to show something to an incarnation of a member, instead of what was shown to
// that member before. It is one for Dirty at once.
func (c *Core) Open(member state.MemberID, incarnation uint64) *Stream {
	s := &Stream{member: member, incarnation: incarnation}
	c.streams[member] = s
	c.showAll(s)
	return s
}

// Close ends a stream.
func (c *Core) Close(s *Stream) {
	if c.streams[s.member] == s {
		delete(c.streams, s.member)
	}
}

// Dirty returns the streams that something has come up for since it was last called.
// They are dirty until Next has made all of it.
func (c *Core) Dirty() []*Stream {
	news := c.news
	c.news = nil
	for _, s := range news {
		s.noted = false
	}
	return news
}

func (c *Core) note(s *Stream) {
	if !s.noted {
		s.noted = true
		c.news = append(c.news, s)
	}
}

// showAll has the next set be complete.
func (c *Core) showAll(s *Stream) {
	s.whole, s.dirty = true, nil
	c.note(s)
}

// Told compares what a member says it was shown with what it was; another count or
// checksum of the newest set has the next one be complete. It reports whether they are
// the same, or not of the same set.
func (c *Core) Told(s *Stream, has *coordinatorv1.ShownState) bool {
	at := state.TokenFromProto(has.GetToken())
	if s.making != nil || at.Compare(s.at) < 0 || at == s.at && has.GetCount() == s.count && has.GetChecksum() == s.sum {
		return true
	}
	c.showAll(s)
	return false
}

// Jump goes on from a State behind changes that are not known.
func (c *Core) Jump(st *state.State) {
	c.st = st
	c.pending, c.adds = map[state.MemberID]*part{}, map[state.RegionID]state.MemberID{}
	st.Transitions(func(p *rootv1.Transition) bool {
		if p.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			c.notePending(p) // those that ended come in no order
		}
		return true
	})
	c.keyspaces = map[state.KeyspaceID]kind{}
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		c.keyspaces[state.KeyspaceID(k.GetId())] = kindOf(k)
		return true
	})
	for _, s := range c.streams {
		c.showAll(s)
	}
}

func kindOf(k *rootv1.Keyspace) kind {
	return kind{
		assigned: k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED,
		shared:   shared(k.GetSettings()),
	}
}

// shared reports whether more than one may own a region.
func shared(s *rootv1.KeyspaceSettings) bool { return s.GetOwnership().GetMaxOwners() > 1 }

// notePending keeps who has a part in what is planned.
func (c *Core) notePending(p *rootv1.Transition) {
	if p.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER {
		delete(c.adds, state.RegionID(p.GetRegionId()))
		if p.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			c.adds[state.RegionID(p.GetRegionId())] = state.MemberID(p.GetOwner().GetMemberId())
		}
	}
	for _, o := range sides(p) {
		id, region, keyspace := state.MemberID(o.GetMemberId()), state.RegionID(p.GetRegionId()), state.KeyspaceID(p.GetKeyspaceId())
		all := c.pending[id]
		if all == nil {
			all = &part{map[state.RegionID]struct{}{}, map[state.KeyspaceID]int{}}
			c.pending[id] = all
		}
		_, known := all.regions[region]
		switch pending := p.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING; {
		case pending && !known:
			all.regions[region] = struct{}{}
			all.counts[keyspace]++
		case !pending && known:
			delete(all.regions, region)
			if all.counts[keyspace]--; all.counts[keyspace] == 0 {
				delete(all.counts, keyspace)
			}
		}
		if len(all.regions) == 0 {
			delete(c.pending, id)
		}
	}
}

// all are the regions; nil has none.
func (p *part) all() map[state.RegionID]struct{} {
	if p == nil {
		return nil
	}
	return p.regions
}

// reshapes reports whether a transition changes ranges.
func reshapes(p *rootv1.Transition) bool {
	return p.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT || p.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MERGE
}

// sides are the owners whose part in a transition is shown to them.
func sides(p *rootv1.Transition) []*rootv1.Owner {
	switch p.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		return []*rootv1.Owner{p.GetFrom(), p.GetOwner()}
	case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		return []*rootv1.Owner{p.GetOwner()}
	default:
		return nil
	}
}

// Apply goes on to the State that changes lead to, all that there were on the way.
func (c *Core) Apply(next *state.State, changes []state.Change) {
	for i := range changes {
		switch ch := &changes[i]; ch.Kind {
		case state.ChangeRegion:
			if ch.Acknowledges() {
				continue // it said so itself
			}
			c.regionChanged(ch.Region)
			if ch.OldRegion != nil {
				c.regionChanged(ch.OldRegion)
			}
		case state.ChangeTransition:
			if !ch.Removed { // what is forgotten had ended before
				c.notePending(ch.Transition)
				c.markSides(ch.Transition)
			}
		case state.ChangeMember:
			c.memberChanged(state.MemberID(ch.Member.GetId()))
		case state.ChangeKeyspace:
			c.keyspaceChanged(ch)
		}
	}
	c.st = next
}

func (c *Core) regionChanged(r *state.Region) {
	if !c.keyspaces[r.Keyspace].assigned {
		return
	}
	for i := range r.Owners {
		c.mark(r.Owners[i].Member, r.ID)
	}
	if taker, adds := c.adds[r.ID]; adds {
		c.mark(taker, r.ID)
	}
}

func (c *Core) markSides(p *rootv1.Transition) {
	for _, o := range sides(p) {
		c.mark(state.MemberID(o.GetMemberId()), state.RegionID(p.GetRegionId()))
	}
	if !reshapes(p) {
		return
	}
	for _, id := range []uint64{p.GetRegionId(), p.GetRightRegionId()} {
		if r := c.st.Region(state.RegionID(id)); r != nil { // one that comes now is marked by itself
			c.regionChanged(r)
		}
	}
}

// memberChanged: what it is itself, and where the other side of a move finds it.
func (c *Core) memberChanged(id state.MemberID) {
	if s := c.streams[id]; s != nil {
		c.showAll(s)
	}
	for region := range c.pending[id].all() {
		if p := c.st.PendingTransition(region); p != nil { // as it was; one that comes now is marked by itself
			c.markSides(p)
		}
	}
	for region, taker := range c.adds {
		if r := c.st.Region(region); r != nil {
			if _, owns := r.Owner(id); owns {
				c.mark(taker, region)
			}
		}
	}
}

func (c *Core) keyspaceChanged(ch *state.Change) {
	id := state.KeyspaceID(ch.Keyspace.GetId())
	was, is := c.keyspaces[id], kindOf(ch.Keyspace)
	if ch.Removed {
		delete(c.keyspaces, id)
		return
	}
	if c.keyspaces[id] = is; was == is {
		return
	}
	for _, s := range c.streams { // seldom
		c.showAll(s)
	}
}

// mark notes that what a member is shown of a region may change, if it is connected.
func (c *Core) mark(id state.MemberID, region state.RegionID) {
	s := c.streams[id]
	if s == nil || s.whole {
		return
	}
	if _, known := s.dirty[region]; known {
		return
	}
	if len(s.dirty) >= max(fewDirty, int(s.count)) {
		c.showAll(s)
		return
	}
	if s.dirty == nil {
		s.dirty = map[state.RegionID]uint64{}
	}
	var was uint64
	if w := s.look(c.st, region); w.shown {
		was = w.hash()
	}
	s.dirty[region] = was
	c.note(s)
}

// Keyspaces are those of what a member is shown, by id, most of them at most.
func (c *Core) Keyspaces(s *Stream, most int) []state.KeyspaceID {
	all := map[state.KeyspaceID]struct{}{}
	c.st.IncarnationKeyspaces(s.incarnation, func(ks state.KeyspaceID, _ int) { all[ks] = struct{}{} })
	if p := c.pending[s.member]; p != nil {
		for id := range p.counts {
			if c.keyspaces[id].assigned {
				all[id] = struct{}{}
			}
		}
	}
	ids := slices.Sorted(maps.Keys(all))
	return ids[:min(len(ids), most)]
}
