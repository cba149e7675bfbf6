package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	acquiring = coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING
	releasing = coordinatorv1.RegionPhase_REGION_PHASE_RELEASING
	preparing = coordinatorv1.RegionPhase_REGION_PHASE_PREPARING
	serving   = coordinatorv1.RegionPhase_REGION_PHASE_SERVING
	ready     = coordinatorv1.RegionPhase_REGION_PHASE_READY
	released  = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
)

// passage is a change of a region's owners that is under way.
type passage struct {
	k        *settings
	region   *state.Region
	t        *rootv1.Transition
	from, to state.Owner
	seen     clock.Instant
}

// step continues a transition of a region. It reports whether nothing else is to
// be done about the region.
func (p *planner) step(k *settings, r *state.Region, t *rootv1.Transition) bool {
	seen, known := p.Attempts.seen(t)
	if !known {
		seen = p.Moves.Seen(r.ID, p.Now)
	}
	x := passage{k: k, region: r, t: t, seen: seen, to: rooted.OwnerFromProto(t.GetOwner())}
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		x.from = rooted.OwnerFromProto(t.GetFrom())
		return p.stepMove(&x)
	case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		return p.stepAdd(&x)
	case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		x.from, x.to = x.to, state.Owner{}
		return p.stepRemove(&x)
	case rootv1.TransitionKind_TRANSITION_KIND_SPLIT, rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		if t.GetRegionId() != uint64(r.ID) { // the right one of a merge: the left one's steps are its own
			return len(r.Owners) == 0 || slices.ContainsFunc(r.Owners, p.alive)
		}
		return p.stepReshape(&x)
	default:
		return false
	}
}

// stepReshape has a region split or merged once its owner has let go of it, at the
// frontier that it says. What comes of it is the owner's again.
func (p *planner) stepReshape(x *passage) bool {
	if len(x.region.Owners) == 0 || x.k.shared() {
		if right := p.State.Region(state.RegionID(x.t.GetRightRegionId())); !x.k.shared() && x.t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MERGE && right != nil && right.Frontier != x.region.Frontier {
			p.cancel(x, "the regions have no owner, and different frontiers")
			return true
		}
		p.proceed(x, Operation{Kind: Complete})
		return true
	}
	x.from = x.region.Owners[0]
	if !p.alive(x.from) {
		return false
	}
	switch last, done := p.told(x, x.from, released); {
	case done && last.SetFrontier:
		p.proceed(x, Operation{Kind: Complete, Frontier: last.Frontier, SetFrontier: true})
	case p.over(x, x.deadline()):
		p.cancel(x, "its deadline has passed")
	default:
		p.wait(x, NotReleased, x.deadline())
	}
	return true
}

// told reports whether the incarnation said so of this very transition, at its epoch:
// it has been shown what holds since the transition was planned.
func (p *planner) told(x *passage, o state.Owner, phase coordinatorv1.RegionPhase) (Report, bool) {
	report, ok := p.Observed.Report(x.region.ID, o)
	return report, ok && report.Incarnation == o.Incarnation && report.Phase == phase &&
		report.Transition == x.t.GetId() && report.Epoch == x.region.Epoch &&
		report.Shown.Compare(state.TokenFromProto(x.t.GetPlannedAt())) >= 0
}

func (p *planner) stepMove(x *passage) bool {
	last, done := p.told(x, x.from, released)
	done = done && last.SetFrontier
	switch {
	case !p.mayHave(x.k, x.to) && !p.alive(x.from):
		return false
	case !p.mayHave(x.k, x.to):
		p.cancel(x, "the next owner cannot take it any more")
	case done:
		p.proceed(x, Operation{Kind: Complete, Frontier: last.Frontier, SetFrontier: true})
	case !p.alive(x.from):
		return p.inherit(x)
	case p.over(x, x.deadline()) && !Accepts(p.State, p.State.Member(x.from.Member), x.k.name):
		p.takeOff(x, rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED, "may not own it")
	case p.over(x, x.deadline()) && p.clings(x):
		p.takeOff(x, rootv1.OperationReason_OPERATION_REASON_NOT_SERVED, "does not serve it")
	case p.over(x, x.deadline()):
		p.cancel(x, "its deadline has passed")
	case x.t.GetReadyAt() == nil && p.prepared(x) && p.failsToPrepare(x):
		p.cancel(x, becauseUnprepared)
	case x.t.GetReadyAt() == nil && p.prepared(x) && p.silent(x):
		p.cancel(x, becauseSilent)
	case x.t.GetReadyAt() == nil && p.prepared(x):
		p.proceed(x, Operation{Kind: Ready})
	case x.t.GetReadyAt() == nil:
		p.wait(x, NotReady, p.prepareMax(x), x.deadline())
	default:
		p.wait(x, NotReleased, x.deadline())
	}
	return true
}

// inherit gives the region of an old owner that died to the next one, who is
// prepared; the frontier stays what was acknowledged last, unless the owner left.
func (p *planner) inherit(x *passage) bool {
	if !p.Observed.Takes(x.to.Member) {
		return false
	}
	if !p.clear(x.k, x.region, x.from) {
		return true
	}
	owners := slices.Clone(x.region.Owners)
	for i := range owners {
		if owners[i].Member == x.from.Member {
			owners[i] = x.to
		}
	}
	owners = slices.DeleteFunc(owners, func(o state.Owner) bool { return !p.alive(o) })
	o := Operation{
		Kind: Assign, Owners: owners, From: x.from, To: x.to, Reason: p.lost(x.from), Transition: x.t.GetId(), PlannedAt: x.t.GetPlannedAt().GetIndex(),
	}
	o.startAt(p.leftAt(x.region, x.from))
	p.do(x.region, o)
	return true
}

// clings reports whether a region leaves because its owner does not serve it, and that one still says nothing
// of it, or that it fails to acquire it.
func (p *planner) clings(x *passage) bool {
	_, known := p.Unserved.of(x.region.ID, x.from)
	last, said := p.Observed.Report(x.region.ID, x.from)
	return known && x.t.GetCause() == rootv1.OperationReason_OPERATION_REASON_NOT_SERVED && (!said || last.Phase == acquiring && last.Failed)
}

// takeOff ends the share of an owner that may not have the region, or does not serve it, and has not let it
// go in time: it is not asked any more. How far it got is what was acknowledged last; without another owner
// the region waits until that one has taken it in, or its fence is over.
func (p *planner) takeOff(x *passage, reason rootv1.OperationReason, because string) {
	p.do(x.region, Operation{
		Kind: Assign, Owners: slices.DeleteFunc(slices.Clone(x.region.Owners), func(o state.Owner) bool { return o == x.from }), From: x.from,
		Reason: reason, Transition: x.t.GetId(), PlannedAt: x.t.GetPlannedAt().GetIndex(),
		Because: fmt.Sprintf("member %s %s, and has not let it go by the deadline", x.from.Member, because),
	})
}

// stepAdd has a new owner of a shared region prepare, and then be one.
func (p *planner) stepAdd(x *passage) bool {
	switch {
	case !slices.ContainsFunc(x.region.Owners, p.alive):
		return false // nobody is left to be added to
	case !p.mayHave(x.k, x.to):
		p.cancel(x, "the new owner cannot take it any more")
	case p.prepared(x) && p.failsToPrepare(x):
		p.cancel(x, becauseUnprepared)
	case p.prepared(x) && p.silent(x):
		p.cancel(x, becauseSilent)
	case p.prepared(x):
		p.proceed(x, Operation{Kind: Complete})
	case p.over(x, x.deadline()):
		p.cancel(x, "its deadline has passed")
	default:
		p.wait(x, NotReady, p.prepareMax(x), x.deadline())
	}
	return true
}

// goes has an owner of a shared region go for which another one was added, where all may act. If it was in
// vain the last time, it is looked at as any other before it is tried again.
func (p *planner) goes(k *settings, r *state.Region) bool {
	l, goes := p.Moves.leavers[r.ID]
	if !goes || p.needs(k, r, l) != "" || slices.ContainsFunc(r.Owners, func(o state.Owner) bool { return !p.alive(o) }) {
		return false
	}
	if until := p.Attempts.RestsUntil(r); until > p.Now {
		p.refuse(Refusal{Region: r.ID, Keyspace: k.id, Member: l.from.Member, Why: Resting, At: until})
		return false
	}
	if p.under(l.from.Member) >= k.inFlight {
		p.refuse(Refusal{Region: r.ID, Keyspace: k.id, Member: l.from.Member, Why: TooManyMoves, At: p.Now.Add(UnservedLook)})
		return false
	}
	p.gives[l.from.Member]++
	p.do(r, Operation{Kind: RemoveOwner, From: l.from, Reason: l.reason, Even: true})
	return true
}

// needs says why an owner is needed for which another one was added; empty: it is not.
func (p *planner) needs(k *settings, r *state.Region, l leaver) string {
	switch _, fails := p.Unserved.of(r.ID, l.to); {
	case !p.stays(l.to):
		return "the owner that was added for it goes"
	case fails:
		return "the owner that was added for it does not serve"
	case besides(r, l.from, p.stays) < min(k.needed(l.reason), len(r.Owners)-1): // as many as there were before
		return "too few owners would be left"
	}
	return ""
}

// stepRemove ends an owner's share when it has let go, or is gone; of a shared region
// also when enough of those that stay serve, or time enough has passed for that: or when that one
// serves that was added for it.
func (p *planner) stepRemove(x *passage) bool {
	_, done := p.told(x, x.from, released)
	if !done && !p.alive(x.from) {
		if done = p.clear(x.k, x.region, x.from); !done {
			return true
		}
	}
	l := p.Moves.leavers[x.region.ID]
	added := l.from == x.from
	if x.k.shared() {
		serve := besides(x.region, x.from, func(o state.Owner) bool { return p.serves(x.region, o) })
		enough := min(x.k.needed(x.t.GetCause()), besides(x.region, x.from, p.stays))
		may := p.over(x, x.prepareMax()) || serve > 0 && serve >= enough
		if added {
			may = p.serves(x.region, l.to)
		}
		done = done || may
	}
	switch {
	case done:
		p.proceed(x, Operation{Kind: Complete})
	case added && p.needs(x.k, x.region, l) != "":
		p.cancel(x, p.needs(x.k, x.region, l))
	case p.over(x, x.deadline()):
		p.cancel(x, "its deadline has passed")
	default:
		p.wait(x, NotReleased, x.prepareMax(), x.deadline())
	}
	return true
}

// serves reports whether an owner says that it serves the region as it is.
func (p *planner) serves(r *state.Region, o state.Owner) bool {
	report, ok := p.Observed.Report(r.ID, o)
	return ok && p.stays(o) && report.Incarnation == o.Incarnation && report.Phase == serving && report.Epoch.ConfVersion >= r.Epoch.ConfVersion
}

// prepared reports whether the next owner is ready, or had time enough.
func (p *planner) prepared(x *passage) bool {
	_, said := p.told(x, x.to, ready)
	return said || p.over(x, p.prepareMax(x))
}

const (
	becauseUnprepared = "the next owner fails to prepare it"
	becauseSilent     = "the next owner is not heard"
)

// silent reports whether the next owner has not said that it is ready, and is not heard: nobody would
// serve what it is given.
func (p *planner) silent(x *passage) bool {
	_, said := p.told(x, x.to, ready)
	return !said && !p.Observed.Takes(x.to.Member) && !p.Observed.Damped(x.to.Member)
}

// failsToPrepare reports whether the next owner says that what it tried last has failed: it would
// not serve what it is given. From an owner that does not serve nobody fetches anything.
func (p *planner) failsToPrepare(x *passage) bool {
	last, said := p.told(x, x.to, preparing)
	return said && last.Failed && x.t.GetCause() != rootv1.OperationReason_OPERATION_REASON_NOT_SERVED
}

// prepareMax is the passage's own, but where an owner that gives the region away, or is to, said that its
// process ends: half of the time that it had for that then, or when the change was planned.
func (p *planner) prepareMax(x *passage) time.Duration {
	most, gives := x.prepareMax(), []state.Owner{x.from}
	if x.t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER {
		gives = x.region.Owners
	}
	for _, o := range gives {
		if l, ends := p.Leaves[o.Member]; ends {
			begins := max(x.seen, l.Said)
			half := max(begins.Add(l.enough().Sub(begins)/2).Sub(x.seen), time.Millisecond)
			if most == 0 || half < most {
				most = half
			}
		}
	}
	return most
}

// prepareMax is the transition's own, or that of the keyspace where it has no room for one;
// 0: no bound.
func (x *passage) prepareMax() time.Duration {
	if x.t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE {
		return time.Duration(x.t.GetPrepareMaxMillis()) * time.Millisecond
	}
	return x.k.prepareMax
}

func (x *passage) deadline() time.Duration { return deadlineOf(x.k, x.t) }

// over reports whether a bound of a transition has passed.
func (p *planner) over(x *passage, bound time.Duration) bool {
	return bound > 0 && p.Now >= x.seen.Add(bound)
}

func (p *planner) proceed(x *passage, o Operation) {
	o.Transition, o.PlannedAt = x.t.GetId(), x.t.GetPlannedAt().GetIndex()
	o.From, o.To, o.Reason = x.from, x.to, x.t.GetCause()
	p.do(x.region, o)
}

func (p *planner) cancel(x *passage, because string) {
	p.proceed(x, Operation{Kind: Cancel, Because: because})
}

// wait refuses to go on before something is reported, or the first of its bounds that
// is to come passes.
func (p *planner) wait(x *passage, why Why, bounds ...time.Duration) {
	f := Refusal{Region: x.region.ID, Keyspace: x.k.id, Member: x.from.Member, Why: why}
	for _, b := range bounds {
		if at := x.seen.Add(b); b > 0 && at > p.Now && (f.At == 0 || at < f.At) {
			f.At = at
		}
	}
	p.begun[x.region.ID] = 0
	p.refuse(f)
}
