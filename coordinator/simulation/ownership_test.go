package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ownership judges what members did against the log, and the log itself, by the promises
// of the design: one owner an epoch, one owner a moment, the frontier, orphans, and
// Placement.
type ownership struct {
	r    *run
	errs []error
	// deeds are what the log says of a region at an epoch.
	deeds map[deedKey]*deed
	// rules judge what the log says of owners; before is the state before an entry.
	rules  *witness.Invariants
	before *state.State
	// acts and gives by region and epoch.
	acts  map[deedKey][]*act
	gives map[deedKey][]taking
	// gone are the eras whose holders found that an incarnation had ended, because it said so.
	gone   map[state.Owner]state.Era
	counts ownershipCounts
}

type deedKey struct {
	region state.RegionID
	epoch  state.Epoch
}

// deed is a region as it was granted.
type deed struct {
	owners   []state.Owner
	frontier uint64
	index    uint64
	timed    bool
	shared   bool
}

// ownershipCounts say what the log has of members.
type ownershipCounts struct {
	grants, verdicts, moved, cancelled, shares, cut, joined, orphaned, followed int
}

func (c *ownershipCounts) add(o ownershipCounts) {
	c.grants += o.grants
	c.verdicts += o.verdicts
	c.moved += o.moved
	c.cancelled += o.cancelled
	c.shares += o.shares
	c.cut += o.cut
	c.joined += o.joined
	c.followed += o.followed
	c.orphaned = max(c.orphaned, o.orphaned)
}

func newOwnership(r *run) *ownership {
	o := &ownership{
		r: r, deeds: map[deedKey]*deed{}, acts: map[deedKey][]*act{}, gives: map[deedKey][]taking{}, gone: map[state.Owner]state.Era{},
		rules: witness.NewInvariants(state.New()), before: state.New(),
	}
	o.rules.Remember(o.before)
	o.rules.OrderFrontiers(func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	for _, a := range r.acts.all {
		o.acts[deedKey{a.region, a.epoch}] = append(o.acts[deedKey{a.region, a.epoch}], a)
	}
	for _, g := range r.acts.gives {
		o.gives[deedKey{g.region, g.epoch}] = append(o.gives[deedKey{g.region, g.epoch}], g)
	}
	return o
}

func (o *ownership) fail(promise, format string, args ...any) {
	if len(o.errs) < 5 {
		o.errs = append(o.errs, fmt.Errorf("%s: %w", promise, fmt.Errorf(format, args...)))
	}
}

// entry looks at the log replayed up to one entry.
func (o *ownership) entry(st *state.State, out *state.Applied) {
	for i := range out.Changes {
		switch c := &out.Changes[i]; c.Kind {
		case state.ChangeRegion:
			o.region(st, c)
		case state.ChangeTransition:
			o.transition(st, c.Transition)
		case state.ChangeMember:
			if was := o.before.Member(state.MemberID(c.Member.GetId())); c.Member.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && was.GetState() != c.Member.GetState() {
				o.counts.verdicts++
				if slices.Contains(c.Member.GetSignals(), "gone") && st.ActiveEra() == o.before.ActiveEra() { // else it may be of the holder before
					o.gone[state.Owner{Member: state.MemberID(c.Member.GetId()), Incarnation: c.Member.GetIncarnation()}] = st.ActiveEra()
				}
			}
		}
	}
	o.rules.Entry(st.Token(), out.Changes)
	o.orphans(st)
	o.before = st.Fork()
}

func frontierOf(r *state.Region) uint64 { return number(r.Frontier) }

func number(frontier string) uint64 {
	n, _ := strconv.ParseUint(frontier, 10, 64)
	return n
}

// region looks at a region that changed.
func (o *ownership) region(st *state.State, c *state.Change) {
	settings := st.Keyspace(c.Region.Keyspace).GetSettings()
	if settings.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || c.Removed {
		return
	}
	d := &deed{
		owners: slices.Clone(c.Region.Owners), frontier: frontierOf(c.Region), index: st.Token().Index,
		timed:  settings.GetOwnership().GetFence() == rootv1.Fence_FENCE_TTL,
		shared: settings.GetOwnership().GetMaxOwners() > 1,
	}
	if granted := o.deeds[deedKey{c.Region.ID, c.Region.Epoch}]; granted != nil {
		d.frontier = granted.frontier // how far its owner got since is rooted too
	}
	o.deeds[deedKey{c.Region.ID, c.Region.Epoch}] = d
	if c.OldRegion != nil && c.OldRegion.Epoch != c.Region.Epoch {
		o.counts.grants++
		o.followed(st, c.OldRegion, c.Region)
	}
}

// followed: a goodbye is a release. Whoever follows an owner of which a holder has heard that it had
// released everything, and ended, begins exactly where that owner let go of the region, in whichever era.
func (o *ownership) followed(st *state.State, was, is *state.Region) {
	if len(was.Owners) != 1 || len(is.Owners) != 1 || was.Owners[0] == is.Owners[0] {
		return
	}
	old := was.Owners[0]
	shared := st.Keyspace(is.Keyspace).GetSettings().GetOwnership().GetMaxOwners() > 1 // of those the holder's memory is all there is
	if era := o.gone[old]; era == 0 || shared && era != st.ActiveEra() {
		return
	}
	key := deedKey{was.ID, was.Epoch}
	gives := o.gives[key]
	if len(gives) == 0 {
		return // it had not come to have it
	}
	last := gives[len(gives)-1]
	for _, t := range o.r.acts.takes {
		if t.region == was.ID && t.epoch == was.Epoch && t.when > last.when {
			return // and was taken up again
		}
	}
	o.counts.followed++
	if got := frontierOf(is); got != last.frontier {
		o.fail("Frontier", "region %d went at %s from %s, which had ended, to %s from %d on; it was released at %d", was.ID, st.Token(), old.Member, is.Owners[0].Member, got, last.frontier)
	}
}

// transition looks at a change of owners that ended.
func (o *ownership) transition(st *state.State, t *rootv1.Transition) {
	r := st.Region(state.RegionID(t.GetRegionId()))
	switch t.GetStatus() {
	case rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED, rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED:
		o.counts.cancelled++
		return
	case rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
	default:
		return
	}
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
	case rootv1.TransitionKind_TRANSITION_KIND_SPLIT, rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		o.reshape(st, t)
		return
	default:
		o.counts.shares++
		return
	}
	o.counts.moved++
	if r == nil {
		return
	}
	was := o.before.Region(r.ID)
	if was == nil || len(was.Owners) != 1 || !o.before.Acts(was.Owners[0]) {
		return // whoever dies leaves what was acknowledged last
	}
	// Exactly where the old owner let go of it; where it was granted if it was never taken.
	key, want := deedKey{r.ID, was.Epoch}, frontierOf(was)
	if gives := o.gives[key]; len(gives) > 0 {
		want = gives[len(gives)-1].frontier
	}
	if got := frontierOf(r); got != want {
		o.fail("Frontier", "region %d moved at %s from %d to %d, it was released at %d", r.ID, st.Token(), frontierOf(was), got, want)
	}
	for _, a := range o.acts[key] {
		if a.number > frontierOf(r) {
			o.fail("Frontier", "region %d was at %d under %s at %s, its next owner began above %d", r.ID, a.number, a.member, a.epoch, frontierOf(r))
		}
	}
}

// orphans: regions without an owner that may act are what is counted, at every token.
func (o *ownership) orphans(st *state.State) {
	_, found := witness.Walk(st, nil)
	for _, a := range found {
		o.fail("Placement", "at %s: %s: %s", st.Token(), a.Kind, a.Numbers)
	}
	o.counts.orphaned = max(o.counts.orphaned, st.Orphaned())
}

// check judges what members did.
func (o *ownership) check() []error {
	for _, a := range o.rules.Placed(o.before).Found {
		o.fail(a.Guarantee.String(), "at %s: %s: %s", a.At, a.Kind, a.Numbers)
	}
	moments := map[state.RegionID][]mayKey{}
	for key, may := range o.r.acts.may {
		d := o.deeds[key.deedKey]
		switch {
		case d == nil:
			o.fail("One owner an epoch", "%s acted for region %d at %s, which the log does not have", may.member, key.region, key.epoch)
		case !slices.ContainsFunc(d.owners, func(w state.Owner) bool { return w.Member == may.member && w.Incarnation == key.incarnation }):
			o.fail("One owner an epoch", "%s/%d acted for region %d at %s, which is %v's", may.member, key.incarnation, key.region, key.epoch, d.owners)
		case d.timed:
			moments[key.region] = append(moments[key.region], key)
		}
	}
	for _, all := range moments {
		o.moments(all)
	}
	for _, t := range o.r.acts.takes {
		o.taken(t)
	}
	return append(o.errs, o.landed()...)
}

// moments: where the fence is a ttl, whoever had a region before has let in and finished
// its last work when the next one lets in its first.
func (o *ownership) moments(all []mayKey) {
	slices.SortFunc(all, func(a, b mayKey) int {
		if b.epoch.NewerThan(a.epoch) {
			return -1
		}
		return 1
	})
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		was, is := o.r.acts.may[a], o.r.acts.may[b]
		if a.incarnation != b.incarnation && was.to >= is.from {
			o.fail("One owner a moment", "region %d: %s/%d at %s acted until %v, %s/%d at %s from %v on", a.region,
				was.member, a.incarnation, a.epoch, was.to, is.member, b.incarnation, b.epoch, is.from)
		}
	}
}

// taken: what was granted is taken at the frontier that it was granted with, or where the
// same incarnation had released it.
func (o *ownership) taken(t taking) {
	d := o.deeds[deedKey{t.region, t.epoch}]
	if d == nil || d.frontier == t.frontier {
		return
	}
	for _, g := range o.gives[deedKey{t.region, t.epoch}] {
		if g.incarnation == t.incarnation && g.frontier == t.frontier {
			return
		}
	}
	o.fail("Frontier", "%s took region %d at %s from %d on, it was granted at %d", t.member, t.region, t.epoch, t.frontier, d.frontier)
}

// landed: a resource that sees the epoch takes nothing of an owner behind what it has
// taken of a later one of the same keys, in whichever regions they were.
func (o *ownership) landed() []error {
	acts := slices.DeleteFunc(slices.Clone(o.r.acts.all), func(a *act) bool { return a.landed == 0 })
	slices.SortFunc(acts, func(a, b *act) int { return a.landed - b.landed })
	newest := map[state.RegionID]*act{}
	for _, a := range acts {
		for _, n := range newest {
			if n.keyspace == a.keyspace && n.keys.Overlap(a.keys) && n.epoch.Compare(a.epoch) > 0 {
				return []error{fmt.Errorf("Fence: work for region %d at %s landed behind work for region %d at %s", a.region, a.epoch, n.region, n.epoch)}
			}
		}
		newest[a.region] = a
	}
	return nil
}
