package witness

import (
	"fmt"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// keptOfAKind is how many anomalies of a kind are kept with their numbers; all are
// counted.
const keptOfAKind = 16

// maxBroken is of how many regions it is known that something of a kind is broken, which
// walks do not count again.
const maxBroken = 1 << 16

// Invariants follows the changes of a log by a model of its own of who is a member, how
// a keyspace places its regions and which transitions are pending, and counts what
// breaks I1 to I5. Its work is per change; of regions it keeps nothing, unless it is
// told to, and of what is broken: see Remember and Keep. It is used by one goroutine at a
// time.
type Invariants struct {
	// The model.
	tenure  *rootv1.Tenure
	members map[state.MemberID]*rootv1.Member
	// newest is the highest incarnation that a member was seen with.
	newest  uint64
	spaces  map[state.KeyspaceID]space
	pending map[state.RegionID]*rootv1.Transition
	memory  *memory
	order   func(a, b string) int
	// said are the frontiers that the entry sets; nil: it is not known.
	said map[saying]struct{}

	// The entry: what it took from whom, the transitions that it completed, by region,
	// and the region that changed last.
	at       state.Token
	taken    []taking
	complete map[state.RegionID][]*rootv1.Transition
	last     *state.Region

	since      state.Token
	judged     Judged
	violations Violations
	kept       map[Kind]int
	found      []Anomaly
	broken     map[Kind]map[state.RegionID]struct{}
	// walks: each kind of a region counts once, and is found.
	walks bool
}

// Judged counts what was followed.
type Judged struct {
	// Grants gave a region to a member. Moved were taken from an owner that may act when a
	// move, or another transition, ended what it had, Asked at once because somebody said so.
	Grants, Moved, Asked uint64
}

// space is how a keyspace places its regions.
type space struct {
	assigned bool
	// most owners that a region may have.
	most int
}

// saying is a frontier that was said of a region, or in the step of a transition.
type saying struct {
	region     state.RegionID
	transition string
	frontier   string
}

// taking is a region that an owner had which may act.
type taking struct {
	region  state.RegionID
	from    state.Owner
	epoch   state.Epoch
	planned bool
}

// NewInvariants begins behind a State.
func NewInvariants(s *state.State) *Invariants {
	v := &Invariants{kept: map[Kind]int{}, broken: map[Kind]map[state.RegionID]struct{}{}}
	v.Begin(s)
	return v
}

// Begin goes on behind another State, as a follower does that missed what led there.
// What was counted stays.
func (v *Invariants) Begin(s *state.State) {
	v.since, v.tenure, v.last, v.newest = s.Token(), s.Tenure(), nil, 0
	v.members, v.spaces, v.pending = map[state.MemberID]*rootv1.Member{}, map[state.KeyspaceID]space{}, map[state.RegionID]*rootv1.Transition{}
	s.Members(func(m *rootv1.Member) bool {
		v.members[state.MemberID(m.GetId())] = m
		v.newest = max(v.newest, m.GetIncarnation())
		return true
	})
	s.Keyspaces("", func(k *rootv1.Keyspace) bool {
		v.spaces[state.KeyspaceID(k.GetId())] = spaceOf(k)
		return true
	})
	s.Transitions(func(t *rootv1.Transition) bool {
		v.transition(t)
		return true
	})
	v.complete = nil
	if v.memory != nil {
		v.Remember(s)
	}
}

func spaceOf(k *rootv1.Keyspace) space {
	most := int(k.GetSettings().GetOwnership().GetMaxOwners())
	return space{k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED, max(most, 1)}
}

// OrderFrontiers has frontiers compared, which mean nothing to the root.
func (v *Invariants) OrderFrontiers(compare func(a, b string) int) { v.order = compare }

// Entry judges the changes of one entry.
func (v *Invariants) Entry(at state.Token, changes []state.Change) {
	v.at = at
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeRegion:
			v.region(c)
		case state.ChangeMember:
			v.member(c)
		case state.ChangeKeyspace:
			v.keyspace(c)
		case state.ChangeTransition:
			v.transition(c.Transition)
		case state.ChangeTenure:
			v.holder(c.Tenure)
		}
	}
	for _, t := range v.taken {
		v.letGo(t)
	}
	v.taken, v.last = v.taken[:0], nil
	clear(v.complete)
}

// broke counts a violation, and keeps it.
func (v *Invariants) broke(kind Kind, region state.RegionID, format string, args ...any) {
	a := Anomaly{Kind: kind, Region: region}
	if v.kept[kind] < keptOfAKind {
		a.Numbers = fmt.Sprintf(format, args...)
	}
	v.put(a)
}

func (v *Invariants) put(a Anomaly) {
	if !v.first(a) && v.walks {
		return
	}
	v.count(a)
}

// count counts a violation.
func (v *Invariants) count(a Anomaly) {
	v.violations[a.Kind.Invariant()-1]++
	if v.kept[a.Kind]++; v.walks || v.kept[a.Kind] <= keptOfAKind {
		a.Guarantee, a.At = a.Kind.guarantee(), v.at
		v.found = append(v.found, a)
	}
}

// first notes what is broken where, and says whether that is new.
func (v *Invariants) first(a Anomaly) bool {
	all := v.broken[a.Kind]
	if all == nil {
		all = map[state.RegionID]struct{}{}
		v.broken[a.Kind] = all
	}
	if _, again := all[a.Region]; again || len(all) == maxBroken {
		return false
	}
	all[a.Region] = struct{}{}
	return true
}

// holder judges the Tenure: one holder an era, and eras go on one by one.
func (v *Invariants) holder(t *rootv1.Tenure) {
	old := v.tenure
	v.tenure = t
	switch {
	case t.GetEra() == old.GetEra() && (t.GetHolderId() != old.GetHolderId() || t.GetHolderIncarnation() != old.GetHolderIncarnation()):
		v.put(Anomaly{Kind: TwoActive, Era: t.GetEra(), Numbers: fmt.Sprintf("era %d was %s's (%x) and is %s's (%x)",
			t.GetEra(), old.GetHolderId(), old.GetHolderIncarnation(), t.GetHolderId(), t.GetHolderIncarnation())})
	case t.GetEra() < old.GetEra(), t.GetEra() > old.GetEra()+1:
		v.put(Anomaly{Kind: EraGap, Era: t.GetEra(), Numbers: fmt.Sprintf("era %d follows era %d", t.GetEra(), old.GetEra())})
	}
}

// member judges a member: what has ended does not come back.
func (v *Invariants) member(c *state.Change) {
	id := state.MemberID(c.Member.GetId())
	old := v.members[id]
	if c.Removed {
		delete(v.members, id)
		return
	}
	v.members[id] = c.Member
	newest := v.newest
	v.newest = max(newest, c.Member.GetIncarnation())
	switch was, is := old.GetIncarnation(), c.Member.GetIncarnation(); {
	case old != nil && is < was:
		v.broke(MemberRevived, 0, "member %s goes on as incarnation %d, it was %d", id, is, was)
	case is != was && is <= newest: // no number comes twice, whatever was removed in between
		v.broke(MemberRevived, 0, "member %s begins as incarnation %d, and there was incarnation %d", id, is, newest)
	case old != nil && is == was && !accepts(old) && accepts(c.Member):
		v.broke(MemberRevived, 0, "incarnation %d of member %s had ended, and acts", is, id)
	}
}

func (v *Invariants) keyspace(c *state.Change) {
	id := state.KeyspaceID(c.Keyspace.GetId())
	if c.Removed {
		delete(v.spaces, id)
		v.memory.drop(id)
		return
	}
	v.spaces[id] = spaceOf(c.Keyspace)
}

// transition notes which regions a transition binds, and what it completed.
func (v *Invariants) transition(t *rootv1.Transition) {
	for _, id := range []state.RegionID{state.RegionID(t.GetRegionId()), state.RegionID(t.GetRightRegionId())} {
		switch {
		case id == 0:
		case t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING:
			v.pending[id] = t
		case v.pending[id].GetId() == t.GetId():
			delete(v.pending, id)
			if t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
				if v.complete == nil {
					v.complete = map[state.RegionID][]*rootv1.Transition{}
				}
				v.complete[id] = append(v.complete[id], t)
			}
		}
	}
}

func accepts(m *rootv1.Member) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING
}

// acts says whether an owner may act, by the model.
func (v *Invariants) acts(o state.Owner) bool {
	m := v.members[o.Member]
	return m != nil && o.Incarnation != 0 && m.GetIncarnation() == o.Incarnation && accepts(m)
}

// region judges a region that changed.
func (v *Invariants) region(c *state.Change) {
	r, old := c.Region, c.OldRegion
	sp := v.spaces[r.Keyspace]
	if v.memory != nil {
		old = v.recall(c, sp)
	}
	if !sp.assigned {
		return
	}
	had := v.had(r, old)
	if c.Removed {
		for _, o := range had {
			v.take(c, o)
		}
		return
	}
	if old != nil {
		v.epochs(r, old)
		v.frontiers(r, old)
	}
	v.owners(c, had, sp)
	v.last = r
}

// had are the owners that a region goes on from: those that it had, or, of a right part,
// those of the whole.
func (v *Invariants) had(r, old *state.Region) []state.Owner {
	if old != nil {
		return old.Owners
	}
	t := v.pending[r.ID]
	if v.last != nil && t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT && state.RegionID(t.GetRegionId()) == v.last.ID {
		return v.last.Owners
	}
	return nil
}

func (v *Invariants) owners(c *state.Change, had []state.Owner, sp space) {
	r := c.Region
	if twice, already := double(r.Owners), double(had); twice != "" && twice != already {
		v.broke(TwoOwners, r.ID, "region %d has member %s as an owner twice at epoch %s", r.ID, twice, r.Epoch)
	}
	if len(r.Owners) > sp.most && len(r.Owners) > len(had) {
		v.broke(TwoOwners, r.ID, "region %d has %d owners at epoch %s, its keyspace allows %d", r.ID, len(r.Owners), r.Epoch, sp.most)
	}
	for _, o := range r.Owners {
		if !has(had, o) {
			v.granted(r, o)
		}
	}
	for _, o := range had {
		if !slices.ContainsFunc(r.Owners, func(is state.Owner) bool { return is.Member == o.Member }) {
			v.take(c, o)
		}
	}
}

// double is a member that is an owner more than once; empty: none is.
func double(owners []state.Owner) state.MemberID {
	for i, o := range owners {
		if slices.ContainsFunc(owners[:i], func(a state.Owner) bool { return a.Member == o.Member }) {
			return o.Member
		}
	}
	return ""
}

// has says whether an owner, as this incarnation, is among others.
func has(all []state.Owner, o state.Owner) bool {
	return slices.ContainsFunc(all, func(a state.Owner) bool { return a.Member == o.Member && a.Incarnation == o.Incarnation })
}

// sameOwners says whether both sets are the same incarnations.
func sameOwners(a, b []state.Owner) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(o state.Owner) bool { return !has(b, o) })
}

func (v *Invariants) granted(r *state.Region, o state.Owner) {
	v.judged.Grants++
	m := v.members[o.Member]
	switch {
	case !v.acts(o):
		v.broke(GrantedToNobody, r.ID, "region %d was given at epoch %s to incarnation %d of member %s, %s", r.ID, r.Epoch, o.Incarnation, o.Member, whoIs(m))
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING:
		v.broke(GrantedToDraining, r.ID, "region %d was given at epoch %s to member %s, which lets go of all that it has", r.ID, r.Epoch, o.Member)
	}
}

func whoIs(m *rootv1.Member) string {
	switch {
	case m == nil:
		return "which was never registered"
	case !accepts(m):
		return fmt.Sprintf("whose incarnation %d has ended", m.GetIncarnation())
	default:
		return fmt.Sprintf("which is incarnation %d", m.GetIncarnation())
	}
}

// take notes what an owner has no more.
func (v *Invariants) take(c *state.Change, from state.Owner) {
	if v.acts(from) {
		v.taken = append(v.taken, taking{c.Region.ID, from, c.Region.Epoch, c.Planned})
	}
}

// letGo judges what was taken from an owner that may act, when all that the entry did is
// known.
func (v *Invariants) letGo(t taking) {
	switch {
	case slices.ContainsFunc(v.complete[t.region], func(x *rootv1.Transition) bool { return ends(x, t) }):
		v.judged.Moved++
	case !t.planned:
		v.judged.Asked++
	default:
		v.broke(TakenWithoutMove, t.region, "region %d was taken at epoch %s from incarnation %d of member %s, which may act, without a move", t.region, t.epoch, t.from.Incarnation, t.from.Member)
	}
}

// ends says whether a transition ends what an owner had.
func ends(x *rootv1.Transition, t taking) bool {
	switch x.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		return x.GetFrom().GetMemberId() == string(t.from.Member)
	case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		return x.GetOwner().GetMemberId() == string(t.from.Member)
	case rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		return x.GetRightRegionId() == uint64(t.region)
	default:
		return false
	}
}

// epochs judges that a region and an epoch name one range and one set of owners.
func (v *Invariants) epochs(r, old *state.Region) {
	switch {
	case r.Epoch == old.Epoch && !sameOwners(r.Owners, old.Owners):
		v.broke(EpochReused, r.ID, "region %d at epoch %s was %s, and is %s", r.ID, r.Epoch, namesOf(old.Owners), namesOf(r.Owners))
	case r.Epoch == old.Epoch && (r.Start != old.Start || r.End != old.End):
		v.broke(EpochReused, r.ID, "region %d at epoch %s was [%q, %q), and is [%q, %q)", r.ID, r.Epoch, old.Start, old.End, r.Start, r.End)
	case r.Epoch != old.Epoch && !r.Epoch.NewerThan(old.Epoch):
		v.broke(EpochBack, r.ID, "region %d went from epoch %s to %s", r.ID, old.Epoch, r.Epoch)
	}
}

func (v *Invariants) frontiers(r, old *state.Region) {
	if r.Frontier == old.Frontier {
		return
	}
	if v.order != nil && v.order(r.Frontier, old.Frontier) < 0 {
		v.broke(FrontierBack, r.ID, "region %d went from frontier %q at epoch %s back to %q at %s", r.ID, old.Frontier, old.Epoch, r.Frontier, r.Epoch)
	}
	if v.said == nil {
		return
	}
	_, ofRegion := v.said[saying{region: r.ID, frontier: r.Frontier}]
	_, ofStep := v.said[saying{transition: v.pending[r.ID].GetId(), frontier: r.Frontier}]
	if !ofRegion && !ofStep {
		v.broke(FrontierLost, r.ID, "region %d had frontier %q, and has %q at epoch %s, which nobody said", r.ID, old.Frontier, r.Frontier, r.Epoch)
	}
}

// say notes the frontiers that an entry sets.
func (v *Invariants) say(entry *rootv1.Entry) {
	v.said = map[saying]struct{}{}
	for _, c := range entry.GetCommands() {
		for _, e := range c.GetEvents() {
			if p := e.GetRegionPublished().GetRegion(); len(p.GetFrontier()) > 0 {
				v.said[saying{region: state.RegionID(p.GetId()), frontier: string(p.GetFrontier())}] = struct{}{}
			}
			for _, a := range e.GetRegionsAssigned().GetAssignments() {
				if a.GetSetFrontier() {
					v.said[saying{region: state.RegionID(a.GetRegionId()), frontier: string(a.GetFrontier())}] = struct{}{}
				}
			}
			if t := e.GetTransitionCompleted(); t.GetSetFrontier() {
				v.said[saying{transition: t.GetTransitionId(), frontier: string(t.GetFrontier())}] = struct{}{}
			}
		}
	}
}

func namesOf(owners []state.Owner) string {
	if len(owners) == 0 {
		return "nobody's"
	}
	s := ""
	for i, o := range owners {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%s/%d", o.Member, o.Incarnation)
	}
	return s + "'s"
}
