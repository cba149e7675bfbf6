package placement

import (
	"cmp"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// StartTime is how long the first plan of a new keyspace waits for members, at most.
const StartTime = time.Second

// begins reports whether a region that never had an owner waits for more members.
func (p *planner) begins(k *settings, r *state.Region) bool {
	created := p.Created[k.id]
	if k.first == 0 || r.Epoch.ConfVersion > 1 || created == 0 || p.Now >= created.Add(StartTime) {
		return false
	}
	if candidates, _ := p.candidatesOf(k); len(candidates) >= k.first {
		return false
	}
	p.refuse(Refusal{Region: r.ID, Keyspace: k.id, Why: AwaitsMembers, At: created.Add(StartTime)})
	return true
}

// held says what is to become of an exclusive region whose owner ended: the place among the
// keyspace's candidates of its next process, -1 for none; held: that one is waited for.
func (p *planner) held(k *settings, r *state.Region, o state.Owner) (back int, held bool) {
	if k.hold == 0 || k.shared() || p.Insight == nil {
		return -1, false
	}
	in := p.Insight.Member(o.Member)
	if in.Ended != o.Incarnation || p.Now >= in.EndedAt.Add(k.hold) || p.quarantined(r.ID) {
		return -1, false
	}
	m := p.State.Member(o.Member)
	switch {
	case m == nil || !Accepts(p.State, m, k.name):
		return -1, false
	case m.GetIncarnation() != o.Incarnation && m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE: // it came, and went
		return -1, false
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED:
		return -1, false
	}
	t := p.targetsOf(k)
	i, there := slices.BinarySearchFunc(t.candidates, o.Member, func(c *known, id state.MemberID) int { return cmp.Compare(c.ID, id) })
	switch {
	case !there || t.candidates[i].Incarnation <= o.Incarnation:
	case t.field.May(i, r.Start, nil):
		return i, false
	default:
		return -1, false
	}
	p.refuse(Refusal{Region: r.ID, Keyspace: k.id, Member: o.Member, Why: HeldForMember, At: in.EndedAt.Add(k.hold)})
	return -1, true
}
