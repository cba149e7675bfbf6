package assigner

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// maxToldBytes bounds an answer: below what a client takes by default.
	maxToldBytes = 3 << 20
	// toldLimit is how many operations, refusals and members of a keyspace are told if nothing
	// else is asked for.
	toldLimit = 256
)

// telling puts a plan into words.
type telling struct {
	*survey
	// before is the state that nothing was imagined in.
	before *state.State
	plan   *placement.Plan
	ids    []state.KeyspaceID
	// outlooks are what comes behind the plan.
	outlooks map[state.KeyspaceID]outlook
	req      *coordinatorv1.PlanRequest

	resp *coordinatorv1.PlanResponse
	// room is how many bytes are left.
	room int
}

// takes reports whether there is room for a message, above a part of all.
func (t *telling) takes(m proto.Message, above int) bool {
	if n := proto.Size(m) + 8; t.room-n >= above {
		t.room -= n
		return true
	}
	return false
}

// answer is bounded in number and bytes: what is most important comes first.
func (t *telling) answer() *coordinatorv1.PlanResponse {
	t.room = maxToldBytes
	t.resp = &coordinatorv1.PlanResponse{Era: uint64(t.era), Token: t.at.Proto()}
	if t.blindUntil != 0 {
		t.resp.BlindMillis = uint64(max(t.blindUntil.Sub(t.in.Now).Milliseconds(), 1))
	}
	changed := map[state.KeyspaceID][]*placement.Operation{}
	for i := range t.plan.Operations {
		o := &t.plan.Operations[i]
		changed[o.Keyspace] = append(changed[o.Keyspace], o)
	}
	shown := newShown(&placement.Plan{Balanced: t.plan.Balanced}, t.ids)
	for i := range t.plan.Operations {
		o := &t.plan.Operations[i]
		shown[o.Keyspace].begun[begunKey{o.Kind, o.Reason}]++
	}
	for _, f := range t.plan.Refusals {
		f.Even = true
		one := newShown(&placement.Plan{Refusals: []placement.Refusal{f}}, []state.KeyspaceID{f.Keyspace})[f.Keyspace]
		for why, said := range one.refused {
			if old := shown[f.Keyspace].refused[why]; old != nil {
				old.Count += said.GetCount()
			} else {
				shown[f.Keyspace].refused[why] = said
			}
		}
	}
	for _, id := range t.ids {
		if k := t.keyspace(id, shown[id], changed[id]); t.takes(k, maxToldBytes/4) {
			t.resp.Keyspaces = append(t.resp.Keyspaces, k)
		} else {
			t.resp.MoreKeyspaces++
		}
	}
	limit := int(cmp.Or(t.req.GetLimit(), toldLimit))
	for i := range t.plan.Operations {
		p := t.operation(&t.plan.Operations[i])
		if len(t.resp.Operations) == limit || !t.takes(p, maxToldBytes/8) {
			t.resp.MoreOperations = uint64(len(t.plan.Operations) - i)
			break
		}
		t.resp.Operations = append(t.resp.Operations, p)
	}
	for i, f := range t.plan.Refusals {
		p := t.refusal(&f)
		if len(t.resp.Refusals) == limit || !t.takes(p, 0) {
			t.resp.MoreRefusals = uint64(len(t.plan.Refusals) - i)
			break
		}
		t.resp.Refusals = append(t.resp.Refusals, p)
	}
	return t.resp
}

func (t *telling) name(id state.KeyspaceID) string { return t.in.State.Keyspace(id).GetName() }

func (t *telling) operation(o *placement.Operation) *coordinatorv1.PlannedOperation {
	p := &coordinatorv1.PlannedOperation{
		Operation: o.Kind.String(), Reason: o.Reason, Keyspace: t.name(o.Keyspace), RegionId: uint64(o.Region), Epoch: o.Epoch.Proto(),
		From: string(o.From.Member), LoadMilli: o.Load, NextRegionId: uint64(o.Next), Evens: o.Even,
	}
	if r := t.in.State.Region(o.Region); r != nil {
		p.StartKey, p.EndKey, p.LoadMilli = []byte(r.Start), []byte(r.End), t.milli(r)
		if o.Kind == placement.Assign && len(r.Owners) > 0 {
			p.From = string(r.Owners[0].Member)
		}
	}
	if o.Key != "" {
		p.SplitKey = []byte(o.Key)
	}
	if o.To.Member != "" {
		p.To = []string{string(o.To.Member)}
	}
	for _, owner := range o.Owners {
		p.To = append(p.To, string(owner.Member))
	}
	return p
}

func (t *telling) refusal(f *placement.Refusal) *coordinatorv1.PlannedRefusal {
	p := &coordinatorv1.PlannedRefusal{
		Why: f.Why.String(), Keyspace: t.name(f.Keyspace), RegionId: uint64(f.Region), MemberId: string(f.Member), Regions: uint64(max(f.Regions, 1)),
		Wants: f.Wants,
	}
	if f.At > t.in.Now && f.At < never {
		p.AfterMillis = uint64(f.At.Sub(t.in.Now).Milliseconds())
	}
	return p
}

// side is what members have of a keyspace, before a plan or behind it.
type side struct {
	regions, load map[state.MemberID]uint64
}

func newSide() side { return side{map[state.MemberID]uint64{}, map[state.MemberID]uint64{}} }

func (s side) add(owners []state.MemberID, milli uint64) {
	for _, id := range owners {
		s.regions[id]++
		s.load[id] += milli / uint64(len(owners))
	}
}

// keyspace is a keyspace before the plan and behind it, where all is done that is under
// way or planned.
func (t *telling) keyspace(id state.KeyspaceID, x *lastRound, operations []*placement.Operation) *coordinatorv1.PlannedKeyspace {
	k := t.in.State.Keyspace(id)
	p := x.proto(k.GetName(), t.in.Now)
	out := &coordinatorv1.PlannedKeyspace{
		Keyspace: k.GetName(), Evens: k.GetSettings().GetPolicy().GetRebalance() != nil, ByCount: p.GetByCount() || !weighs(k),
		Regions: uint64(t.before.KeyspaceRegionCount(id)), Begun: p.GetBegun(), Refused: p.GetRefused(),
	}
	behind := t.outlooks[id]
	out.Waves, out.AllChanges, out.ImbalanceSettledPermille = behind.waves, behind.changes, behind.imbalance
	if len(t.ids) == 1 {
		out.History = t.raw.shows.rounds.historyOf(id, k.GetName(), t.in.Now)
	}
	of := make(map[state.RegionID]*placement.Operation, len(operations))
	for _, o := range operations {
		of[o.Region] = o
		if r := t.in.State.Region(o.Region); r != nil && (o.Kind == placement.PlanMove || o.Kind == placement.AddOwner && o.From.Member != "") {
			out.LoadMovedMilli += t.milli(r)
		}
	}
	before, after := newSide(), newSide()
	t.before.RegionsFrom(id, "", func(r *state.Region) bool {
		milli := t.milli(r)
		before.add(t.owners(t.before, r, nil), milli)
		if own := t.in.State.Region(r.ID); own != nil {
			after.add(t.owners(t.in.State, own, of[r.ID]), milli)
		}
		return true
	})
	for _, o := range operations { // what is cut stays where it is, and is two
		if r := t.in.State.Region(o.Region); r != nil && len(r.Owners) > 0 {
			switch o.Kind {
			case placement.PlanSplit:
				after.regions[r.Owners[0].Member]++
			case placement.PlanMerge:
				after.regions[r.Owners[0].Member]--
			}
		}
	}
	t.members(out, before, after)
	return out
}

// milli is the load of a region in thousandths of a unit.
func (t *telling) milli(r *state.Region) (sum uint64) {
	if t.book != nil {
		if w, known := t.book.Region(r.ID, t.in.Now); known {
			return uint64(w.High / (load.One / 1000))
		}
	}
	for _, o := range r.Owners {
		if report, ok := t.raw.reportOf(r.ID, o); ok {
			sum += report.Load
		}
	}
	return sum
}

// owners are who acts for a region, or will when what is under way is done and o.
func (t *telling) owners(st *state.State, r *state.Region, o *placement.Operation) (ids []state.MemberID) {
	if o != nil && o.Kind == placement.Assign {
		for _, owner := range o.Owners {
			ids = append(ids, owner.Member)
		}
		return ids
	}
	for _, owner := range r.Owners {
		if st.Acts(owner) {
			ids = append(ids, owner.Member)
		}
	}
	if o == nil || o.Kind == placement.Cancel || o.Kind == placement.PlanSplit || o.Kind == placement.PlanMerge {
		return ids
	}
	if o.From.Member != "" {
		ids = slices.DeleteFunc(ids, func(id state.MemberID) bool { return id == o.From.Member })
	}
	if o.To.Member != "" && !slices.Contains(ids, o.To.Member) {
		ids = append(ids, o.To.Member)
	}
	return ids
}

// members tells what members have, those first that it changes most for.
func (t *telling) members(out *coordinatorv1.PlannedKeyspace, before, after side) {
	var all []*coordinatorv1.MemberLoadPlanned
	was, is := level{byCount: out.ByCount}, level{byCount: out.ByCount}
	t.in.State.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		active := m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && placement.Accepts(t.in.State, m, out.GetKeyspace())
		takes := active && t.in.Observed.Takes(id)
		x := &coordinatorv1.MemberLoadPlanned{
			MemberId: m.GetId(), Capacity: max(m.GetCapacity(), 1), RegionsBefore: before.regions[id], RegionsAfter: after.regions[id],
			LoadBeforeMilli: before.load[id], LoadAfterMilli: after.load[id], Imagined: t.with[id] || t.without[id], Without: t.without[id], Barred: !takes,
		}
		if !active && x.RegionsBefore+x.RegionsAfter == 0 {
			return true
		}
		was.add(x.GetCapacity(), x.GetRegionsBefore(), x.GetLoadBeforeMilli(), (takes || t.without[id]) && !t.with[id])
		is.add(x.GetCapacity(), x.GetRegionsAfter(), x.GetLoadAfterMilli(), takes)
		all = append(all, x)
		return true
	})
	out.ImbalanceBeforePermille, out.ImbalanceAfterPermille = was.permille(), is.permille()
	change := func(x *coordinatorv1.MemberLoadPlanned) uint64 {
		if out.GetByCount() {
			return max(x.GetRegionsBefore(), x.GetRegionsAfter()) - min(x.GetRegionsBefore(), x.GetRegionsAfter())
		}
		return max(x.GetLoadBeforeMilli(), x.GetLoadAfterMilli()) - min(x.GetLoadBeforeMilli(), x.GetLoadAfterMilli())
	}
	slices.SortStableFunc(all, func(a, b *coordinatorv1.MemberLoadPlanned) int { return cmp.Compare(change(b), change(a)) })
	limit := int(cmp.Or(t.req.GetMemberLimit(), toldLimit))
	for i, x := range all {
		if i == limit || !t.takes(x, maxToldBytes/2) {
			out.MoreMembers = uint64(len(all) - i)
			break
		}
		out.Members = append(out.Members, x)
	}
	for _, x := range out.GetMembers() { // the keyspace is accounted for as a whole
		t.room += proto.Size(x) + 8
	}
}

// level is how even members are: the highest of what they have for their capacity, against
// the mean of those that may take something.
type level struct {
	byCount       bool
	sum, capacity float64
	most          float64
}

func (l *level) add(capacity, regions, milli uint64, counts bool) {
	has := float64(milli)
	if l.byCount {
		has = float64(regions)
	}
	if l.sum += has; counts {
		l.capacity += float64(capacity)
		l.most = max(l.most, has/float64(capacity))
	}
}

func (l *level) permille() uint64 {
	if l.capacity == 0 || l.sum == 0 {
		return 0
	}
	return uint64(l.most*1000*l.capacity/l.sum + 0.5)
}
