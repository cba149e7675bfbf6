package placement

import (
	"cmp"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// maxScan bounds the regions of a draining member that one plan looks at.
const maxScan = 16_384

// Leave is when a member said that its process ends, and when it does.
type Leave struct{ Said, Ends clock.Instant }

// enough is when it is to have given everything away: when four fifths of its time are over.
func (l Leave) enough() clock.Instant { return l.Said.Add(l.Ends.Sub(l.Said) / 5 * 4) }

// wave is how many moves from a draining member may be under way, and how long the next
// owners may prepare.
type wave struct {
	most    int
	prepare time.Duration
	reason  rootv1.OperationReason
}

// drain begins moves away from a draining member, heaviest region first: as many as may
// be under way.
func (p *planner) drain(id state.MemberID) {
	m := p.State.Member(id)
	if m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
		return
	}
	from := state.Owner{Member: id, Incarnation: m.GetIncarnation()}
	refused, open := map[state.KeyspaceID]bool{}, false
	p.State.IncarnationKeyspaces(from.Incarnation, func(ks state.KeyspaceID, _ int) {
		switch k := p.keyspace(ks); {
		case k == nil || refused[ks]:
		case p.under(id) < p.wave(k, id).most:
			open = true
		default:
			refused[ks] = true
			p.refuse(Refusal{Keyspace: ks, Member: id, Why: TooManyMoves})
		}
	})
	if !open {
		return // without a look at all that it has
	}
	said := map[passed]bool{}
	for _, r := range p.leaving(from) {
		if k := p.keyspace(r.Keyspace); k != nil && !refused[r.Keyspace] && p.under(id) < maxInFlight {
			w := p.wave(k, id)
			why := p.leave(k, r, from, w)
			switch {
			case why == PoisonSuspected: // it waits for a member of its own
				p.refuse(Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: id, Why: why, At: p.Now.Add(poisonLook)})
			case why != 0:
				refused[r.Keyspace] = why == NoEligibleMember || why == TooManyMoves && (p.under(id) >= w.most || p.allBusy(k, w.most))
				if f := (passed{r.Keyspace, why}); !said[f] {
					said[f] = true
					p.refuse(Refusal{Keyspace: r.Keyspace, Member: id, Why: why})
				}
			}
		}
	}
}

// passed is why a drain passes regions of a keyspace: those that nobody can take now stay, and others go.
type passed struct {
	keyspace state.KeyspaceID
	why      Why
}

// allBusy reports whether too many moves are under way to each member that takes regions of a keyspace.
func (p *planner) allBusy(k *settings, inFlight int) bool {
	return !slices.ContainsFunc(p.targetsOf(k).candidates, func(c *known) bool { return p.taking(c.ID) < inFlight })
}

// leaving are the regions that an owner has and that are not on their way, heaviest first. One
// whose last change was given up rests: its owner serves it meanwhile.
func (p *planner) leaving(from state.Owner) (regions []*state.Region) {
	loads := map[state.RegionID]uint64{}
	scanned := 0
	p.State.MemberRegionsAfter(from.Member, 0, func(r *state.Region) bool {
		scanned++
		o, _ := r.Owner(from.Member)
		if _, begun := p.begun[r.ID]; !begun && !p.Busy.Has(r.ID) && o.Incarnation == from.Incarnation && p.State.PendingTransition(r.ID) == nil {
			if until := p.Attempts.RestsUntil(r); until > p.Now {
				p.refuse(Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: from.Member, Why: Resting, At: until})
				return scanned < maxScan
			}
			regions = append(regions, r)
			loads[r.ID] = p.load(r)
		}
		return scanned < maxScan
	})
	slices.SortStableFunc(regions, func(a, b *state.Region) int { return cmp.Compare(loads[b.ID], loads[a.ID]) })
	return regions
}

// wave is what a member may give away at a time. One whose process ends is to have given
// everything away in time, also if nobody gets ready: in
// as many waves as there is time for.
func (p *planner) wave(k *settings, id state.MemberID) wave {
	l, ends := p.Leaves[id]
	if !ends {
		return wave{k.inFlight, k.prepareMax, rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING}
	}
	left := max(l.enough().Sub(p.Now), 0)
	prepare := max(min(k.prepareMax, left/2), time.Millisecond)
	waves := max(int(left/(prepare+releaseTime)), 1)
	rest := p.State.MemberRegionCount(id) - p.Moves.Gives(id) // what begins in this plan is of the same wave
	return wave{max(k.inFlight, (rest+waves-1)/waves), prepare, rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING}
}

// releaseTime is how long an owner takes to let go, as far as waves are reckoned.
const releaseTime = time.Second

// under is how many moves from a member are under way, are on their way to the root, or
// begin with this plan; taking is how many to it.
func (p *planner) under(id state.MemberID) int {
	return p.Moves.Gives(id) + p.Busy.gives(id) + p.gives[id]
}

func (p *planner) taking(id state.MemberID) int {
	return p.Moves.Takes(id) + p.Busy.takes(id) + p.takes[id]
}

// leave begins to take a region off an owner that drains, or does not serve it. A shared one gets another
// owner first where too few would be left; if nobody can be one, those that stay are enough. A reason says
// why it cannot be: others of the keyspace may be, where the reason is of this region.
func (p *planner) leave(k *settings, r *state.Region, from state.Owner, w wave) Why {
	from, _ = r.Owner(from.Member)
	if p.under(from.Member) >= w.most {
		return TooManyMoves
	}
	o := Operation{
		Kind: PlanMove, From: from, PrepareMax: w.prepare, Deadline: k.deadline,
		Reason: w.reason,
	}
	others := p.stays
	if w.reason == rootv1.OperationReason_OPERATION_REASON_NOT_SERVED {
		others = func(o state.Owner) bool { return p.serves(r, o) }
	}
	stay := 0
	if k.shared() {
		stay = besides(r, from, others)
	}
	var to *known
	if stay < k.needed(w.reason) {
		var why Why
		if to, why = p.target(k, r, -1, true, w.most); to == nil && (stay == 0 || why == TooManyMoves) {
			return why
		}
	}
	switch {
	case to == nil:
		o.Kind = RemoveOwner
	case k.oneMore(r):
		o.Kind = AddOwner
	}
	if to != nil {
		o.To = to.owner()
		p.takes[to.ID]++
	}
	p.gives[from.Member]++
	p.do(r, o)
	return 0
}

// besides is how many owners of a region, but for one, are so.
func besides(r *state.Region, but state.Owner, so func(state.Owner) bool) (n int) {
	for _, o := range r.Owners {
		if o.Member != but.Member && so(o) {
			n++
		}
	}
	return n
}

// needed is how many owners are to be left when one goes because of a reason: from one that does not serve
// nobody expects anything, so that one that does is enough.
func (k *settings) needed(reason rootv1.OperationReason) int {
	if reason == rootv1.OperationReason_OPERATION_REASON_NOT_SERVED {
		return 1
	}
	return max(k.policy.OwnersMin, 1)
}

// oneMore reports whether a shared region has room for one more owner, so that another one goes when that one serves.
func (k *settings) oneMore(r *state.Region) bool {
	return len(r.Owners) < min(k.maxOwners, state.MaxOwners) && k.shared()
}
