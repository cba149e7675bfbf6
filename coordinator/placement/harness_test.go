package placement_test

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	active   = rootv1.MemberState_MEMBER_STATE_ACTIVE
	draining = rootv1.MemberState_MEMBER_STATE_DRAINING
	failed   = rootv1.MemberState_MEMBER_STATE_FAILED

	serving   = coordinatorv1.RegionPhase_REGION_PHASE_SERVING
	preparing = coordinatorv1.RegionPhase_REGION_PHASE_PREPARING
	ready     = coordinatorv1.RegionPhase_REGION_PHASE_READY
	released  = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED

	memberFailed   = rootv1.OperationReason_OPERATION_REASON_MEMBER_FAILED
	memberDraining = rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING
	orphaned       = rootv1.OperationReason_OPERATION_REASON_ORPHANED
	firstTouch     = rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH

	never = clock.Instant(1<<63 - 1)
)

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

type spot struct {
	region state.RegionID
	member state.MemberID
}

// cluster is rooted truth, what follows it, and what is observed.
type cluster struct {
	failer
	st   *state.State
	work *placement.Work
	// attempts are those of a coordinator that was there from the beginning.
	attempts *placement.Attempts
	now      clock.Instant
	unserved *placement.Unserved

	// labels of members that join.
	labels map[string]map[string]string
	// shy takes nothing; damped are those of them that failed too often.
	shy     map[state.MemberID]bool
	damped  map[state.MemberID]bool
	fences  map[string]clock.Instant
	reports map[spot]placement.Report
	// taken is the newest set that an incarnation took.
	taken map[string]state.Token
	// follows is told what changed, too.
	follows func([]state.Change)
}

func (c *cluster) Takes(id state.MemberID) bool {
	return !c.shy[id]
}
func (c *cluster) Damped(id state.MemberID) bool { return c.damped[id] }

func (c *cluster) Unfit(o state.Owner, ks state.KeyspaceID) bool {
	return c.unserved != nil && c.unserved.Unfit(o, ks, c.now)
}

func (c *cluster) Probation(o state.Owner, ks state.KeyspaceID) bool {
	return c.unserved != nil && c.unserved.Probation(o, ks)
}

// serves reports whether an owner says that it serves a region as it is.
func (c *cluster) serves(r *state.Region, o state.Owner) bool {
	said, ok := c.Report(r.ID, o)
	return ok && said.Phase == serving && said.Epoch == r.Epoch
}

func (c *cluster) ClearAt(id state.MemberID, incarnation uint64, f liveness.Fence) clock.Instant {
	if f == (liveness.Fence{}) {
		return 0
	}
	if at, ok := c.fences[fmt.Sprint(id, "/", incarnation)]; ok {
		return at
	}
	return never
}

func (c *cluster) Shown(id state.MemberID, incarnation uint64) state.Token {
	return c.taken[fmt.Sprint(id, "/", incarnation)]
}

func (c *cluster) Report(region state.RegionID, owner state.Owner) (placement.Report, bool) {
	r, ok := c.reports[spot{region, owner.Member}]
	return r, ok && r.Incarnation == owner.Incarnation
}

func newCluster(t failer) *cluster {
	c := &cluster{failer: t, st: state.New(), now: 1, shy: map[state.MemberID]bool{}, fences: map[string]clock.Instant{}, reports: map[spot]placement.Report{}, taken: map[string]state.Token{}}
	c.work, c.attempts = placement.NewWork(c.st, c.now), placement.NewAttempts(c.st, c.now)
	c.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "h:1"}},
	}}}})
	c.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 1, HolderAddress: "h:2", Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_SCHEDULE},
	}}})
	return c
}

// propose judges a command, and has the work follow.
func (c *cluster) propose(events ...*rootv1.Event) state.Result {
	c.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events, RequireEra: c.st.Tenure().GetEra()}}})
	if err != nil {
		c.Fatalf("marshal: %v", err)
	}
	next := c.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, next.Token().Index+1, data, &out); err != nil {
		c.Fatalf("apply: %v", err)
	}
	c.st = next
	c.work.Follow(c.st, out.Changes, c.now)
	c.attempts.Follow(c.st, out.Changes, c.now)
	if c.unserved != nil {
		c.unserved.Follow(out.Changes)
	}
	if c.follows != nil {
		c.follows(out.Changes)
	}
	return out.Results[0]
}

// apply proposes what must apply.
func (c *cluster) apply(events ...*rootv1.Event) []state.EventResult {
	c.Helper()
	r := c.propose(events...)
	if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		c.Fatalf("%v: outcome %v: %v", events[0], r.Outcome, r.Reject)
	}
	return r.Events
}

func (c *cluster) keyspace(name string, layout *rootv1.Layout, s *rootv1.KeyspaceSettings) state.KeyspaceID {
	s.Layout, s.Placement = layout, rootv1.Placement_PLACEMENT_ASSIGNED
	k := c.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: s}}})[0].Keyspace
	return state.KeyspaceID(k.GetId())
}

func slots(n uint32) *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: n}}}
}

func points() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
}

func epochFence() *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}}
}

func ttlFence() *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 20_000}}
}

func sharedBy(n uint32) *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{Ownership: &rootv1.Ownership{MaxOwners: n}}
}

// join registers a process under an id and returns its incarnation.
func (c *cluster) join(id string, keyspaces ...string) uint64 {
	c.Helper()
	old := c.st.Member(state.MemberID(id)).GetIncarnation()
	return c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Follows: old, Member: &rootv1.Member{
		Id: id, Address: id + ":1", StartNonce: old + 1000, Keyspaces: keyspaces, Labels: c.labels[id],
	}}}})[0].Member.GetIncarnation()
}

func (c *cluster) set(id string, st rootv1.MemberState) {
	c.Helper()
	change := &rootv1.MemberStateChanged{MemberId: id, State: st, Reason: "test"}
	if st == failed {
		change.Signals = []string{"stream_closed", "probe_refused"}
	}
	c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: change}})
}

// plan makes a plan of what is to be looked at now.
func (c *cluster) plan() placement.Plan {
	in := c.work.Take(c, c.now)
	in.Attempts, in.Unserved = c.attempts, c.unserved
	plan := placement.Make(in)
	c.work.Planned(&plan)
	return plan
}

// round makes a plan and has the root take all of it.
func (c *cluster) round() placement.Plan {
	c.Helper()
	plan := c.plan()
	c.root(plan)
	return plan
}

func (c *cluster) root(plan placement.Plan) {
	c.Helper()
	for _, e := range placement.Grants(plan.Operations) {
		c.apply(e)
	}
	for i := range plan.Operations {
		if o := &plan.Operations[i]; o.Kind != placement.Assign {
			c.apply(o.Event())
		}
	}
	for i := range plan.Operations {
		c.work.Judged(plan.Operations[i].Region)
	}
}

// settle makes rounds until there is nothing to do.
func (c *cluster) settle() {
	c.Helper()
	for range 1000 {
		if c.work.Due(c.now) > c.now {
			return
		}
		c.round()
	}
	c.Fatalf("there is always something to do")
}

// counts is how many regions members own.
func (c *cluster) counts(ids ...string) []int {
	var counts []int
	for _, id := range ids {
		counts = append(counts, c.st.MemberRegionCount(state.MemberID(id)))
	}
	return counts
}

func (c *cluster) wantCounts(want []int, ids ...string) {
	c.Helper()
	got := c.counts(ids...)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.Fatalf("the members own %v, want %v", got, want)
	}
}

// one wants a plan of one operation.
func (c *cluster) one(plan placement.Plan, kind placement.Kind) placement.Operation {
	c.Helper()
	if len(plan.Operations) != 1 || plan.Operations[0].Kind != kind {
		c.Fatalf("the plan is %+v, want one operation of kind %d", plan, kind)
	}
	return plan.Operations[0]
}

// refusal wants a plan of one refusal and nothing else.
func (c *cluster) refusal(plan placement.Plan, why placement.Why) placement.Refusal {
	c.Helper()
	if len(plan.Operations) != 0 || len(plan.Refusals) != 1 || plan.Refusals[0].Why != why {
		c.Fatalf("the plan is %+v, want one refusal, %s", plan, why)
	}
	return plan.Refusals[0]
}

// first is the first region of a keyspace.
func (c *cluster) first(ks state.KeyspaceID) (r *state.Region) {
	c.st.RegionsFrom(ks, "", func(x *state.Region) bool {
		r = x
		return false
	})
	return r
}

// owner is the only owner of a region.
func (c *cluster) owner(id state.RegionID) string {
	c.Helper()
	r := c.st.Region(id)
	if len(r.Owners) != 1 {
		c.Fatalf("region %d has the owners %v", id, r.Owners)
	}
	return string(r.Owners[0].Member)
}

// tell has a member report of a region what it may: its current incarnation, at the
// region's epoch, of the transition under way.
func (c *cluster) tell(id state.RegionID, member string, phase coordinatorv1.RegionPhase, change ...func(*placement.Report)) {
	r := placement.Report{
		Incarnation: c.st.Member(state.MemberID(member)).GetIncarnation(), Epoch: c.st.Region(id).Epoch, Phase: phase,
		Transition: c.st.PendingTransition(id).GetId(), Shown: c.st.Token(),
	}
	for _, f := range change {
		f(&r)
	}
	c.reports[spot{id, state.MemberID(member)}] = r
	c.work.Mark(id)
}

func frontier(f string) func(*placement.Report) {
	return func(r *placement.Report) { r.Frontier, r.SetFrontier = f, true }
}
