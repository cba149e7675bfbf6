package placement

import (
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// maxScan bounds the regions of a draining member that one plan looks at.
const maxScan = 16_384

// drain begins moves away from a draining member: as many as may be under way.
func (p *planner) drain(id state.MemberID) {
	m := p.State.Member(id)
	if m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
		return
	}
	from := state.Owner{Member: id, Incarnation: m.GetIncarnation()}
	refused := map[state.KeyspaceID]bool{}
	scanned := 0
	p.State.MemberRegionsAfter(id, 0, func(r *state.Region) bool {
		scanned++
		if k := p.keyspace(r.Keyspace); k != nil && !refused[r.Keyspace] && !p.begun[r.ID] {
			why := p.leave(k, r, from)
			if refused[r.Keyspace] = why != 0; why != 0 {
				p.refuse(Refusal{Keyspace: r.Keyspace, Member: id, Why: why})
			}
		}
		return scanned < maxScan && p.under(id) < maxInFlight
	})
}

// under is how many moves from a member are under way, or begin with this plan.
func (p *planner) under(id state.MemberID) int { return p.Moves.Gives(id) + p.gives[id] }

// leave begins to take a region off a draining owner. A reason says that no other
// region of the keyspace can be.
func (p *planner) leave(k *settings, r *state.Region, from state.Owner) Why {
	at := slices.IndexFunc(r.Owners, func(o state.Owner) bool { return o.Member == from.Member })
	if _, busy := p.Busy[r.ID]; busy || r.Owners[at].Incarnation != from.Incarnation || p.State.PendingTransition(r.ID) != nil {
		return 0 // it is not this incarnation's, or on its way
	}
	from = r.Owners[at]
	if p.under(from.Member) >= k.inFlight {
		return TooManyMoves
	}
	o := Operation{
		Kind: PlanMove, From: from, PrepareMax: k.prepareMax, Deadline: k.deadline,
		Reason: rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING,
	}
	if k.shared() && slices.ContainsFunc(r.Owners, p.stays) {
		o.Kind = RemoveOwner
	} else {
		to, why := p.target(k, r, true)
		if to == nil {
			return why
		}
		o.To = to.owner()
		if k.shared() && len(r.Owners) < min(k.maxOwners, state.MaxOwners) {
			o.Kind = AddOwner
		}
		p.takes[to.id]++
	}
	p.gives[from.Member]++
	p.do(r, o)
	return 0
}
