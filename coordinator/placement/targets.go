package placement

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// candidate is a member that may take something.
type candidate struct {
	record *rootv1.Member
	id     state.MemberID
	// total is what it owns and is about to take, of all keyspaces.
	total int
}

func (c *candidate) owner() state.Owner {
	return state.Owner{Member: c.id, Incarnation: c.record.GetIncarnation()}
}

// accepts reports whether the member takes regions of the keyspace.
func accepts(m *rootv1.Member, keyspace string) bool {
	return len(m.GetKeyspaces()) == 0 || slices.Contains(m.GetKeyspaces(), keyspace)
}

// targets order the members that take regions of one keyspace: fewest of its regions
// first, then fewest of all, then by id. A heap.
type targets struct {
	heap []target
	// full: somebody was left out because of the keyspace's limit.
	full bool
}

type target struct {
	count, total int
	*candidate
}

func (a target) before(b target) bool {
	return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.total, b.total), cmp.Compare(a.id, b.id)) < 0
}

// candidates looks members up when the first region needs one.
func (p *planner) candidates() []*candidate {
	if p.looked {
		return p.able
	}
	p.looked = true
	p.State.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		if m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && p.Observed.Takes(id) {
			p.able = append(p.able, &candidate{record: m, id: id, total: p.State.MemberRegionCount(id) + p.Moves.Takes(id)})
		}
		return true
	})
	return p.able
}

func (p *planner) targetsOf(k *settings) *targets {
	t := p.targets[k.id]
	if t != nil {
		return t
	}
	t = &targets{}
	p.targets[k.id] = t
	for _, c := range p.candidates() {
		if !accepts(c.record, k.name) {
			continue
		}
		count := p.State.MemberKeyspaceRegionCount(c.id, k.id) + p.Moves.takesIn(c.id, k.id)
		if k.perMember > 0 && uint64(count) >= k.perMember {
			t.full = true
			continue
		}
		t.heap = append(t.heap, target{count: count, total: c.total, candidate: c})
	}
	for i := len(t.heap)/2 - 1; i >= 0; i-- {
		t.down(i)
	}
	return t
}

func (t *targets) down(i int) {
	for {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(t.heap); k++ {
			if t.heap[k].before(t.heap[least]) {
				least = k
			}
		}
		if least == i {
			return
		}
		t.heap[i], t.heap[least] = t.heap[least], t.heap[i]
		i = least
	}
}

func (t *targets) pop() target {
	top, last := t.heap[0], len(t.heap)-1
	t.heap[0] = t.heap[last]
	t.heap = t.heap[:last]
	t.down(0)
	return top
}

func (t *targets) push(x target) {
	t.heap = append(t.heap, x)
	for i := len(t.heap) - 1; i > 0 && t.heap[i].before(t.heap[(i-1)/2]); i = (i - 1) / 2 {
		t.heap[i], t.heap[(i-1)/2] = t.heap[(i-1)/2], t.heap[i]
	}
}

// target takes the member with fewest regions that does not own this one, and, for a
// move, to which not too many are under way. Without one it says why.
func (p *planner) target(k *settings, r *state.Region, move bool) (*candidate, Why) {
	t, why := p.targetsOf(k), NoEligibleMember
	if t.full {
		why = MembersFull
	}
	var passed []target
	var found *candidate
	for found == nil && len(t.heap) > 0 {
		x := t.pop()
		o, owns := r.Owner(x.id)
		owns = owns && (move || p.alive(o)) // the root moves nothing to another incarnation of an owner
		busy := move && p.Moves.Takes(x.id)+p.takes[x.id] >= k.inFlight
		if busy {
			why = TooManyMoves
		}
		if owns || busy {
			passed = append(passed, x)
			continue
		}
		found = x.candidate
		p.took(t, k, x)
	}
	for _, x := range passed {
		t.push(x)
	}
	if found == nil {
		return nil, why
	}
	return found, 0
}

// took books a region onto a member.
func (p *planner) took(t *targets, k *settings, x target) {
	x.count++
	x.total++
	x.candidate.total++
	if k.perMember > 0 && uint64(x.count) >= k.perMember {
		t.full = true
		return
	}
	t.push(x)
}
