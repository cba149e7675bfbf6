package placement

import (
	"cmp"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Make says what to do about the regions and draining members of an Input.
func Make(in Input) Plan {
	p := newPlanner(in)
	for _, id := range sorted(in.Regions) {
		p.look(id)
	}
	p.house()
	for _, id := range sorted(in.Draining) {
		p.drain(id)
	}
	p.rebalance()
	slices.SortFunc(p.plan.Operations, inOrder)
	slices.SortFunc(p.plan.Refusals, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Member, b.Member), cmp.Compare(a.Keyspace, b.Keyspace))
	})
	return p.plan
}

func newPlanner(in Input) *planner {
	return &planner{
		Input: in, keyspaces: map[state.KeyspaceID]*settings{}, targets: map[state.KeyspaceID]*targets{}, scales: map[state.KeyspaceID]*weighed{},
		homeless: map[state.KeyspaceID][]homeless{}, gives: map[state.MemberID]int{}, takes: map[state.MemberID]int{}, begun: map[state.RegionID]int{}, trials: map[state.MemberID]bool{},
		tried: map[uint64]state.KeyspaceID{},
	}
}

// planner makes one Plan.
type planner struct {
	Input
	plan      Plan
	keyspaces map[state.KeyspaceID]*settings
	// active are the members as everyone has them, once looked up, acting the incarnations that may act, and hot
	// those that have more load than they can take.
	active  []known
	looked  bool
	acting  map[state.MemberID]uint64
	hot     map[uint64]bool
	targets map[state.KeyspaceID]*targets
	// scales are those of keyspaces by load, once asked for.
	scales map[state.KeyspaceID]*weighed
	// homeless are regions with owners to be replaced, by keyspace.
	homeless map[state.KeyspaceID][]homeless
	// room is for the regions of one keyspace after the other.
	room []balance.Region
	// gives and takes are moves that this plan begins.
	gives, takes map[state.MemberID]int
	// trials are members to which this plan gives a region in quarantine.
	trials map[state.MemberID]bool
	// tried are incarnations of which this plan takes a region that they fail to acquire.
	tried map[uint64]state.KeyspaceID
	// begun are the regions that this plan is done with, with the number of the operation
	// that it has for them, from 1 on; 0: none.
	begun map[state.RegionID]int
	// claims is set where no regions are looked at, but some are made.
	claims *Claims
}

// homeless is a region with owners that are gone.
type homeless struct {
	region *state.Region
	// keep are the owners that stay; without one the region needs another.
	keep   []state.Owner
	reason rootv1.OperationReason
	load   uint64
	// back is the place among those who may take it of the member that had it; -1: it has
	// not come back.
	back int
	// left is what the one owner let go of the region at before it left; nil: it did not.
	left *Report
}

// sorted returns ids in order, each once, in a slice of its own.
func sorted[T cmp.Ordered](ids []T) []T {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

func inOrder(a, b Operation) int {
	first := func(k Kind) int { return min(int(k), int(PlanMove)) } // what begins is of one kind
	return cmp.Or(cmp.Compare(first(a.Kind), first(b.Kind)), cmp.Compare(b.Load, a.Load), cmp.Compare(a.Region, b.Region))
}

// do plans an operation; nothing else is planned for its region.
func (p *planner) do(r *state.Region, o Operation) {
	o.Region, o.Keyspace, o.Epoch = r.ID, r.Keyspace, r.Epoch
	if o.Load == 0 {
		o.Load = p.load(r)
	}
	p.plan.Operations = append(p.plan.Operations, o)
	p.begun[r.ID] = len(p.plan.Operations)
}

func (p *planner) refuse(f Refusal) { p.plan.Refusals = append(p.plan.Refusals, f) }

// look finds out what a region needs.
func (p *planner) look(id state.RegionID) {
	r := p.State.Region(id)
	if p.Busy.Has(id) || r == nil {
		return
	}
	k := p.keyspace(r.Keyspace)
	if k == nil {
		return
	}
	t := p.State.PendingTransition(id)
	if t != nil && p.step(k, r, t) || t == nil && p.goes(k, r) {
		return
	}
	p.repair(k, r)
}

// repair finds out whether owners of a region are gone, and may be replaced, or do not serve it.
func (p *planner) repair(k *settings, r *state.Region) {
	h := homeless{region: r, reason: rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH, load: p.load(r), back: -1}
	for _, o := range r.Owners {
		if p.alive(o) {
			h.keep = append(h.keep, o)
			continue
		}
		h.reason = p.lost(o)
		h.left = p.leftAt(r, o)
		back, held := p.held(k, r, o)
		if !p.clear(k, r, o) || held {
			return
		}
		h.back = back
	}
	if f := r.Former; f != nil {
		h.reason = rootv1.OperationReason_OPERATION_REASON_ORPHANED
		if !p.letGo(f) && !p.clear(k, r, state.Owner{Member: f.Member, Incarnation: f.Incarnation}) {
			return
		}
	}
	if len(r.Owners) == 0 && !p.vacated(k, r) {
		return
	}
	if len(h.keep) < len(r.Owners) || len(r.Owners) == 0 {
		p.homeless[r.Keyspace] = append(p.homeless[r.Keyspace], h)
		return
	}
	for _, o := range h.keep {
		if p.State.PendingTransition(r.ID) == nil && p.begun[r.ID] == 0 {
			p.unserved(k, r, o)
		}
	}
}

// leftAt is what the owner of an exclusive region reported when it had released it, if it has
// left since: a goodbye is a release of all that was reported as released, with a finished
// drain or without. Nil: it was not. What a process reported that was killed may be from
// before it went on, behind a move that was given up: of that nothing is taken.
func (p *planner) leftAt(r *state.Region, o state.Owner) *Report {
	report, ok := p.Observed.Report(r.ID, o)
	if !ok || len(r.Owners) != 1 || !report.Last || report.Incarnation != o.Incarnation || report.Phase != released || !report.SetFrontier || report.Epoch != r.Epoch {
		return nil
	}
	return &report
}

// startAt has the next owner start where the one before it left; nil: at what is rooted.
func (o *Operation) startAt(left *Report) {
	if left != nil {
		o.Frontier, o.SetFrontier = left.Frontier, true
	}
}

// letGo reports whether whom a region was taken from has been shown that, and obeys it.
func (p *planner) letGo(f *rooted.FormerOwner) bool {
	shown := p.Observed.Shown(f.Member, f.Incarnation)
	return shown.Incarnation == p.State.Token().Incarnation && shown.Index >= f.Revision
}

// vacated reports whether those who had keys of a region that was removed have let go of them, or
// their time is over; it refuses otherwise.
func (p *planner) vacated(k *settings, r *state.Region) bool {
	over := true
	p.State.Vacated(r.Keyspace, r.Start, r.End, func(f *rooted.FormerOwner) bool {
		over = p.letGo(f) || p.clear(k, r, state.Owner{Member: f.Member, Incarnation: f.Incarnation})
		return over
	})
	return over
}

// clear reports whether the fence of an owner that is not alive has run out; it refuses
// otherwise.
func (p *planner) clear(k *settings, r *state.Region, o state.Owner) bool {
	at := p.Observed.ClearAt(o.Member, o.Incarnation, k.fence)
	if at <= p.Now {
		return true
	}
	p.refuse(Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: o.Member, Why: FenceRuns, At: min(at, p.Now.Add(fenceLook))})
	return false
}

// poisonLook is how often a region in quarantine is looked at.
const poisonLook = 30 * time.Second

// fenceLook is how often a fence is looked at, of which it may not be known when it ends.
const fenceLook = time.Second

// alive reports whether an owner may act, by the root.
func (p *planner) alive(o state.Owner) bool { return p.State.Acts(o) }

// stays reports whether an owner may act, and does not drain.
func (p *planner) stays(o state.Owner) bool {
	return p.alive(o) && p.State.Member(o.Member).GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE
}

// mayHave reports whether the next owner of a change that is under way may still get the region.
func (p *planner) mayHave(k *settings, o state.Owner) bool {
	return p.stays(o) && Accepts(p.State, p.State.Member(o.Member), k.name)
}

// lost is why the region of an owner that is not alive needs another one.
func (p *planner) lost(o state.Owner) rootv1.OperationReason {
	m := p.State.Member(o.Member)
	if m.GetIncarnation() == o.Incarnation && m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		return rootv1.OperationReason_OPERATION_REASON_MEMBER_FAILED
	}
	return rootv1.OperationReason_OPERATION_REASON_ORPHANED
}

// load is that of a region in thousandths of a unit: by two averages, or the highest that
// an owner last reported.
func (p *planner) load(r *state.Region) (most uint64) {
	if p.Loads != nil {
		if w, known := p.Loads.Region(r.ID, p.Now); known {
			return uint64(w.High / (load.One / 1000))
		}
	}
	for _, o := range r.Owners {
		if report, ok := p.Observed.Report(r.ID, o); ok {
			most = max(most, report.Load)
		}
	}
	return most
}

// house gives the homeless regions to members: keyspace by keyspace, those first that take a
// member of their own, then the hottest.
func (p *planner) house() {
	ids := make([]state.KeyspaceID, 0, len(p.homeless))
	for id := range p.homeless {
		ids = append(ids, id)
	}
	for _, id := range sorted(ids) {
		regions := p.homeless[id]
		slices.SortFunc(regions, func(a, b homeless) int {
			if alone := p.quarantined(a.region.ID); alone != p.quarantined(b.region.ID) {
				if alone {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(b.load, a.load), cmp.Compare(a.region.ID, b.region.ID))
		})
		p.expect(p.keyspaces[id], regions)
		for _, h := range regions {
			p.houseOne(p.keyspaces[id], h)
		}
	}
}

func (p *planner) houseOne(k *settings, h homeless) {
	owners := h.keep
	if len(owners) == 0 && h.reason == rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH && p.begins(k, h.region) {
		return
	}
	if len(owners) == 0 {
		if h.back < 0 && p.awaits(k, h) {
			return
		}
		c, why := p.target(k, h.region, h.back, false, 0)
		if c == nil {
			f := Refusal{Region: h.region.ID, Keyspace: h.region.Keyspace, Why: why}
			if why == PoisonSuspected {
				f.At = p.Now.Add(poisonLook)
			}
			p.refuse(f)
			return
		}
		owners = []state.Owner{c.owner()}
	}
	o := Operation{Kind: Assign, Owners: owners, Reason: h.reason, Load: h.load}
	o.startAt(h.left)
	p.do(h.region, o)
}
