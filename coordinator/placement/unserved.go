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
	// unfitRest is how long a member that lost a region so is given nothing that anybody else
	// may have; twice as long each time, and longestUnfitRest at most.
	unfitRest, longestUnfitRest = time.Minute, time.Hour
	// failuresKept is how long it is remembered where a region could not be acquired, and
	// maxFailures of how many regions, and of how many members.
	failuresKept = 10 * time.Minute
	maxFailures  = 65_536
)

// Getting is a region of which an incarnation's last word is that it gets ready for it, to serve
// it or to take it over, since a moment. Failed: what it tried last has failed.
type Getting struct {
	Region      state.RegionID
	Incarnation uint64
	Since       clock.Instant
	Failed      bool
}

// Unserved is what is known of regions that their owners do not serve, and of members that fail
// to get ready for what they are given. Every coordinator follows it, with the Tenure or without.
// It is for one goroutine.
//
// A member that fails to get ready for UnservedAfter is given nothing that another one may have.
// When prepare_max has passed, the region goes elsewhere, as one of a member that drains, and the
// member rests. A region that fails with a second member as well is not served because of itself:
// it stays where it is, and counts against no member for as long as that is remembered.
type Unserved struct {
	owned map[state.RegionID]getting
	// failing are members by a region that they fail to get ready for now.
	failing map[state.MemberID]Getting
	failed  map[state.RegionID]failure
	rests   map[state.MemberID]unfit
}

// getting is a region that its owner gets ready to serve.
type getting struct {
	owner  state.Owner
	since  clock.Instant
	failed bool
}

// failure is with whom a region could not be acquired of late.
type failure struct {
	members []state.MemberID
	at      clock.Instant
}

// unfit is a member that rests because of a region.
type unfit struct {
	incarnation uint64
	region      state.RegionID
	until       clock.Instant
	times       int
}

// NewUnserved knows nothing.
func NewUnserved() *Unserved {
	return &Unserved{
		owned: map[state.RegionID]getting{}, failing: map[state.MemberID]Getting{},
		failed: map[state.RegionID]failure{}, rests: map[state.MemberID]unfit{},
	}
}

// Look takes what members say that they get ready for since UnservedAfter or longer: all of it.
// It returns the regions that are, or were, not served because of that.
func (x *Unserved) Look(st *state.State, all []Getting, now clock.Instant) []state.RegionID {
	before := x.owned
	x.owned, x.failing = map[state.RegionID]getting{}, map[state.MemberID]Getting{}
	maps.DeleteFunc(x.failed, func(_ state.RegionID, f failure) bool { return now.Sub(f.at) > failuresKept })
	maps.DeleteFunc(x.rests, func(_ state.MemberID, u unfit) bool { return now.Sub(u.until) > longestUnfitRest })
	for _, g := range all {
		r := st.Region(g.Region)
		if r == nil || now.Sub(g.Since) < UnservedAfter || !assigned(st.Keyspace(r.Keyspace)) {
			continue
		}
		owner, owns := st.PendingTransition(r.ID).GetOwner().GetMemberId(), false
		for _, o := range r.Owners {
			if o.Incarnation == g.Incarnation {
				owner, owns = string(o.Member), true
				x.owned[r.ID] = getting{o, g.Since, g.Failed}
			}
		}
		if !owns && st.PendingTransition(r.ID).GetOwner().GetIncarnation() != g.Incarnation {
			continue
		}
		if id := state.MemberID(owner); g.Failed && !x.failsElsewhere(r.ID, id) {
			x.failing[id] = g
		}
	}
	ids := slices.Collect(maps.Keys(x.owned))
	for id := range before {
		if _, still := x.owned[id]; !still {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Follow goes on by what changed: who lost a region because it failed to acquire it rests.
func (x *Unserved) Follow(changes []state.Change, now clock.Instant) {
	for i := range changes {
		t := changes[i].Transition
		if changes[i].Kind != state.ChangeTransition || changes[i].Removed || t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED ||
			t.GetCause() != rootv1.OperationReason_OPERATION_REASON_NOT_SERVED {
			continue
		}
		switch t.GetKind() {
		case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
			x.lost(state.RegionID(t.GetRegionId()), rooted.OwnerFromProto(t.GetFrom()), now)
		case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
			x.lost(state.RegionID(t.GetRegionId()), rooted.OwnerFromProto(t.GetOwner()), now)
		}
	}
}

func (x *Unserved) lost(region state.RegionID, o state.Owner, now clock.Instant) {
	f := x.failed[region]
	if len(f.members) == 0 && len(x.failed) >= maxFailures {
		return
	}
	if !slices.Contains(f.members, o.Member) && len(f.members) < 2 {
		f.members = append(f.members, o.Member)
	}
	f.at = now
	x.failed[region] = f
	if x.failsElsewhere(region, o.Member) {
		maps.DeleteFunc(x.rests, func(_ state.MemberID, u unfit) bool { return u.region == region })
		return
	}
	u := x.rests[o.Member]
	switch {
	case u.incarnation == o.Incarnation && u.until > now: // of the same time
		return
	case u.incarnation != o.Incarnation && len(x.rests) >= maxFailures:
		return
	case u.incarnation != o.Incarnation:
		u = unfit{incarnation: o.Incarnation}
	}
	u.region, u.until = region, now.Add(min(unfitRest<<min(u.times, 10), longestUnfitRest))
	u.times++
	x.rests[o.Member] = u
}

// failsElsewhere reports whether a region could not be acquired by another member either.
func (x *Unserved) failsElsewhere(region state.RegionID, id state.MemberID) bool {
	return slices.ContainsFunc(x.failed[region].members, func(other state.MemberID) bool { return other != id })
}

// Unfit reports whether an incarnation fails to get ready for what it was given, or did lately.
func (x *Unserved) Unfit(o rooted.Owner, now clock.Instant) bool {
	if g, failing := x.failing[o.Member]; failing && g.Incarnation == o.Incarnation {
		return true
	}
	u, rests := x.rests[o.Member]
	return rests && u.incarnation == o.Incarnation && u.until > now
}

// of is since when an owner gets ready to serve a region, if that is too long.
func (x *Unserved) of(region state.RegionID, o state.Owner) (getting, bool) {
	if x == nil {
		return getting{}, false
	}
	g, ok := x.owned[region]
	return g, ok && g.owner == o
}

// unserved looks at an owner that may act, and does not serve.
func (p *planner) unserved(k *settings, r *state.Region, o state.Owner) {
	g, is := p.Unserved.of(r.ID, o)
	if !is {
		return
	}
	said, known := p.Observed.Report(r.ID, o)
	if !known || said.Incarnation != o.Incarnation || said.Phase != acquiring || said.Epoch != r.Epoch {
		return
	}
	f := Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: o.Member, Why: NotServed, At: p.Now.Add(UnservedLook)}
	goes, rests := g.since.Add(max(k.prepareMax, leastReady)), p.Attempts.RestsUntil(r)
	switch {
	case !said.Failed || k.prepareMax == 0 || p.Unserved.failsElsewhere(r.ID, o.Member):
	case max(goes, rests) > p.Now:
		f.At = max(goes, rests)
	case p.leave(k, r, o, wave{k.inFlight, k.prepareMax, rootv1.OperationReason_OPERATION_REASON_NOT_SERVED}) == 0:
		return
	}
	p.refuse(f)
}
