package placement

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// UnservedAfter is how long an owner may get ready before its region counts as not served.
	UnservedAfter = 5 * time.Second
	// UnservedLook is how often regions are looked at that are not served.
	UnservedLook = 2 * time.Second
	// leastReady is the least time that an owner has until a region that it fails to acquire
	// goes elsewhere, whatever prepare_max is.
	leastReady = 10 * time.Second
	// unfitRest is how long a member of which it is proven that it cannot acquire what others can
	// is given nothing that anybody else may have; twice as long each time, and longestUnfitRest at
	// most. unfitProven is how long that proof has its other regions go without another trial.
	unfitRest, longestUnfitRest = time.Minute, time.Hour
	unfitProven                 = 10 * time.Minute
	// prepareRest is how long a member gets nothing more that fails to prepare something.
	prepareRest = 10 * time.Second
	// regionRest is how long a region stays that a second member could not acquire either, and how
	// long no other one of the first member's is tried elsewhere; of the region twice as long each
	// time, and longestRegionRest at most.
	regionRest, longestRegionRest = 10 * time.Minute, time.Hour
	// maxFailures is of how many regions, and of how many members, it is remembered.
	maxFailures = 65_536
)

// Getting is a region of which an incarnation's last word is that it gets ready for it, to serve
// it or to take it over, or that it lets it go, since a moment. Failed: what it tried last has failed,
// and it tries nothing now. Unsaid: it owns it, and says nothing of it at all, which counts as failed.
type Getting struct {
	Region      state.RegionID
	Incarnation uint64
	Since       clock.Instant
	Failed      bool
	Releases    bool
	Unsaid      bool
}

// Unserved is what is known of regions that their owners do not serve, and of members that fail
// to get ready for what they are given. Every coordinator follows it, with the Tenure or without.
// It is for one goroutine.
//
// Whether a region cannot be acquired because of itself, of its owner, or of something that all
// owners need, nobody says. So it is tried: a member that fails to get ready for UnservedAfter is
// given nothing of that keyspace that another one may have, and when prepare_max has passed one of
// its regions goes elsewhere, as one of a member that drains. If that one is served there, the
// member is at fault: the others follow, and it rests, and gets one region behind that, and no other
// before it serves that one. If it fails there as well, it stays where it
// is for a while, counts against nobody, and for as long nothing else of the first one is tried.
type Unserved struct {
	owned map[state.RegionID][]getting
	// failing are incarnations in keyspaces that fail to get ready for something now, or that something was
	// taken from that nobody has yet.
	failing map[seat]struct{}
	// trials are regions that go, or went, elsewhere because their owner fails to acquire them.
	trials map[state.RegionID]trial
	// stays are regions that more than one member failed to acquire.
	stays  map[state.RegionID]stay
	faults map[seat]fault
}

// Copy is what is known now; what follows is not in it.
func (x *Unserved) Copy() *Unserved {
	return &Unserved{maps.Clone(x.owned), maps.Clone(x.failing), maps.Clone(x.trials), maps.Clone(x.stays), maps.Clone(x.faults)}
}

// Regions are those of a keyspace that their owners do not serve, in order.
func (x *Unserved) Regions(st *state.State, ks state.KeyspaceID) (ids []state.RegionID) {
	for id := range x.owned {
		if r := st.Region(id); r != nil && r.Keyspace == ks {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// seat is an incarnation's part in a keyspace.
type seat struct {
	incarnation uint64
	keyspace    state.KeyspaceID
}

// getting is a region that its owner gets ready to serve.
type getting struct {
	owner  state.Owner
	since  clock.Instant
	failed bool
	unsaid bool
}

// trial is a region that leaves its owner; moved: it has left, or was taken from it.
type trial struct {
	from  seat
	moved bool
}

// stay is until when a region stays that also failed with who has it; times is how often.
type stay struct {
	until clock.Instant
	times int
}

// fault is what is known of an incarnation that failed to acquire something in a keyspace.
type fault struct {
	// provenUntil is until when its regions go without a trial, restsUntil when it is given
	// something again, nextTrial when one of its regions may be tried elsewhere.
	provenUntil, restsUntil, nextTrial clock.Instant
	times                              int
	// probation: behind its rest it gets one region, probe, and no other before it serves that
	// one; 0: it has not got it yet.
	probation bool
	probe     state.RegionID
}

// NewUnserved knows nothing.
func NewUnserved() *Unserved {
	return &Unserved{
		owned: map[state.RegionID][]getting{}, failing: map[seat]struct{}{},
		trials: map[state.RegionID]trial{}, stays: map[state.RegionID]stay{}, faults: map[seat]fault{},
	}
}

// Look takes what members say that they get ready for, all of it; serves reports whether an owner
// says that it serves a region. It returns the regions that are, or were, not served because of that.
func (x *Unserved) Look(st *state.State, all []Getting, serves func(*state.Region, state.Owner) bool, now clock.Instant) []state.RegionID {
	before := x.owned
	x.owned, x.failing = map[state.RegionID][]getting{}, map[seat]struct{}{}
	for _, g := range all {
		if r := st.Region(g.Region); r != nil && assigned(st.Keyspace(r.Keyspace)) {
			x.get(st, r, g, now)
		}
	}
	x.judge(st, serves, now)
	for id, t := range x.trials {
		if len(st.Region(id).Owners) == 0 {
			x.failing[t.from] = struct{}{}
		}
	}
	ids := slices.Collect(maps.Keys(x.owned))
	for id, all := range x.owned {
		for _, g := range all {
			if _, stays := x.stays[id]; g.failed && !stays {
				x.failing[seat{g.owner.Incarnation, st.Region(id).Keyspace}] = struct{}{}
			}
		}
	}
	for id := range before {
		if _, still := x.owned[id]; !still {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// get notes what is got ready for. Who is to take a region over may fail to because its owner does
// not serve it, from whom it would have to fetch it: that says nothing. While a move is under way its
// deadline bounds what is let go; behind it the region is served by nobody until the call returns.
func (x *Unserved) get(st *state.State, r *state.Region, g Getting, now clock.Instant) {
	t := st.PendingTransition(r.ID)
	for _, o := range r.Owners {
		if o.Incarnation == g.Incarnation {
			if now.Sub(g.Since) >= UnservedAfter && (!g.Releases || t == nil) {
				x.owned[r.ID] = append(x.owned[r.ID], getting{o, g.Since, g.Failed && !g.Releases, g.Unsaid})
			}
			return
		}
	}
	at := seat{g.Incarnation, r.Keyspace}
	if g.Failed && t.GetOwner().GetIncarnation() == g.Incarnation && t.GetCause() != rootv1.OperationReason_OPERATION_REASON_NOT_SERVED {
		f := x.faults[at]
		f.restsUntil = max(f.restsUntil, now.Add(prepareRest))
		x.setFault(at, f)
	}
}

// judge looks at what became of trials, and forgets what is over.
func (x *Unserved) judge(st *state.State, serves func(*state.Region, state.Owner) bool, now clock.Instant) {
	served := func(r *state.Region) bool {
		return slices.ContainsFunc(r.Owners, func(o state.Owner) bool { return serves(r, o) })
	}
	for id, t := range x.trials {
		r := st.Region(id)
		switch {
		case r == nil, t.moved && slices.ContainsFunc(r.Owners, func(o state.Owner) bool { return o.Incarnation == t.from.incarnation }),
			!t.moved && st.PendingTransition(id).GetCause() != rootv1.OperationReason_OPERATION_REASON_NOT_SERVED: // it ended in a jump
			delete(x.trials, id)
		case !t.moved:
		case served(r):
			delete(x.trials, id)
			x.atFault(t.from, now)
		case slices.ContainsFunc(x.owned[id], func(g getting) bool { return g.failed }):
			delete(x.trials, id)
			s := x.stays[id]
			s.until = now.Add(min(regionRest<<min(s.times, 10), longestRegionRest))
			s.times++
			x.stays[id] = s
			f := x.faults[t.from]
			f.nextTrial = now.Add(regionRest)
			x.setFault(t.from, f)
		}
	}
	for id := range x.stays {
		if r := st.Region(id); r == nil || served(r) {
			delete(x.stays, id)
		}
	}
	for at, f := range x.faults {
		if f.probe == 0 {
			continue
		}
		r := st.Region(f.probe)
		i := -1
		if r != nil {
			i = slices.IndexFunc(r.Owners, func(o state.Owner) bool { return o.Incarnation == at.incarnation })
		}
		switch {
		case i < 0:
			f.probe = 0 // it went elsewhere
		case serves(r, r.Owners[i]):
			f.probe, f.probation = 0, false
		default:
			continue
		}
		x.faults[at] = f
	}
	maps.DeleteFunc(x.faults, func(_ seat, f fault) bool {
		return now.Sub(max(f.restsUntil, f.nextTrial)) > longestUnfitRest
	})
}

// atFault has a member rest of which it is proven that it could not acquire what another one can.
func (x *Unserved) atFault(s seat, now clock.Instant) {
	f := x.faults[s]
	f.provenUntil, f.probation = now.Add(unfitProven), true
	if f.restsUntil <= now { // else it is of the same time
		f.restsUntil = now.Add(min(unfitRest<<min(f.times, 10), longestUnfitRest))
		f.times++
	}
	x.setFault(s, f)
}

func (x *Unserved) setFault(s seat, f fault) {
	if _, known := x.faults[s]; known || len(x.faults) < maxFailures {
		x.faults[s] = f
	}
}

// Open reports whether it is not known yet what became of a trial: Look is to look again.
func (x *Unserved) Open() bool {
	if len(x.trials) > 0 || len(x.stays) > 0 {
		return true
	}
	for _, f := range x.faults {
		if f.probe != 0 {
			return true
		}
	}
	return false
}

// Follow goes on by what changed: which regions go elsewhere because they are not served, and
// what members got that are on probation.
func (x *Unserved) Follow(changes []state.Change) {
	for i := range changes {
		x.probe(&changes[i])
		t := changes[i].Transition
		if changes[i].Kind != state.ChangeTransition || t.GetCause() != rootv1.OperationReason_OPERATION_REASON_NOT_SERVED {
			continue
		}
		from := t.GetFrom()
		if t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER {
			from = t.GetOwner()
		}
		id, at := state.RegionID(t.GetRegionId()), seat{from.GetIncarnation(), state.KeyspaceID(t.GetKeyspaceId())}
		switch {
		case changes[i].Removed || gaveUp(t) && t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED:
			if x.trials[id] == (trial{at, false}) {
				delete(x.trials, id)
			}
		case len(x.trials) < maxFailures && from.GetIncarnation() != 0:
			x.trials[id] = trial{at, t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING}
		}
	}
}

// probe notes what a member on probation got.
func (x *Unserved) probe(c *state.Change) {
	if c.Kind != state.ChangeRegion || c.Removed || len(x.faults) == 0 {
		return
	}
	for _, o := range c.Region.Owners {
		at := seat{o.Incarnation, c.Region.Keyspace}
		if f, known := x.faults[at]; known && f.probation && (c.OldRegion == nil || !slices.Contains(c.OldRegion.Owners, o)) {
			f.probe = c.Region.ID
			x.faults[at] = f
		}
	}
}

// gaveUp reports whether a transition ended without a change.
func gaveUp(t *rootv1.Transition) bool {
	s := t.GetStatus()
	return s == rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED || s == rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED || s == rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED
}

// Unfit reports whether an incarnation fails to get ready for what it was given of a keyspace, or
// did lately, or does not serve yet what it got behind that.
func (x *Unserved) Unfit(o rooted.Owner, ks state.KeyspaceID, now clock.Instant) bool {
	s := seat{o.Incarnation, ks}
	_, failing := x.failing[s]
	f := x.faults[s]
	return failing || f.restsUntil > now || f.probe != 0
}

// Probation reports whether an incarnation that failed to acquire something is to get one region
// of a keyspace, and no other before it serves that one.
func (x *Unserved) Probation(o rooted.Owner, ks state.KeyspaceID) bool {
	return x.faults[seat{o.Incarnation, ks}].probation
}

// RestsUntil is until when an incarnation is given nothing, in any keyspace, that anybody else may
// have; 0: it does not rest.
func (x *Unserved) RestsUntil(incarnation uint64) (until clock.Instant) {
	for s, f := range x.faults {
		if s.incarnation == incarnation {
			until = max(until, f.restsUntil)
		}
	}
	return until
}

// of is since when an owner gets ready to serve a region, if that is too long.
func (x *Unserved) of(region state.RegionID, o state.Owner) (getting, bool) {
	if x == nil {
		return getting{}, false
	}
	i := slices.IndexFunc(x.owned[region], func(g getting) bool { return g.owner == o })
	if i < 0 {
		return getting{}, false
	}
	return x.owned[region][i], true
}

// leavesAt is when a region that its owner fails to acquire may go elsewhere.
func (x *Unserved) leavesAt(r *state.Region, o state.Owner, now clock.Instant) clock.Instant {
	at := seat{o.Incarnation, r.Keyspace}
	f := x.faults[at]
	if f.provenUntil > now {
		return now
	}
	for _, t := range x.trials {
		if t.from == at {
			return now.Add(UnservedLook)
		}
	}
	return max(f.nextTrial, x.stays[r.ID].until)
}

// unserved looks at an owner that may act, and does not serve.
func (p *planner) unserved(k *settings, r *state.Region, o state.Owner) {
	g, is := p.Unserved.of(r.ID, o)
	if !is {
		return
	}
	said, known := p.Observed.Report(r.ID, o)
	unsaid := g.unsaid && !known
	if !unsaid && (!known || said.Incarnation != o.Incarnation || said.Phase != acquiring && said.Phase != releasing || said.Epoch != r.Epoch) {
		return
	}
	f := Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: o.Member, Why: NotServed, At: p.Now.Add(UnservedLook)}
	if said.Phase == releasing { // no other may act for it while the call has not returned
		p.refuse(f)
		return
	}
	goes := max(g.since.Add(max(k.prepareMax, leastReady)), p.Attempts.RestsUntil(r))
	if (unsaid || said.Failed) && k.prepareMax > 0 && p.targetsOf(k).fit {
		if goes = max(goes, p.Unserved.leavesAt(r, o, p.Now)); goes > p.Now {
			f.At = goes
		} else if p.tried[o.Incarnation] != k.id && p.leave(k, r, o, wave{k.inFlight, k.prepareMax, rootv1.OperationReason_OPERATION_REASON_NOT_SERVED}) == 0 {
			if p.Unserved.faults[seat{o.Incarnation, k.id}].provenUntil <= p.Now {
				p.tried[o.Incarnation] = k.id // one at a time
			}
			return
		}
	}
	p.refuse(f)
}
