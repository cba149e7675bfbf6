package simulation

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/member/fence"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// space is an assigned keyspace; one without slots has ranges.
type space struct {
	name      string
	slots     uint32
	ownership *rootv1.Ownership
}

// spaces are one of each kind.
func spaces(fence time.Duration) []space {
	return []space{
		{"timed", 5, &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: uint64(fence / time.Millisecond)}},
		{"fenced", 5, &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}},
		{"shared", 3, &rootv1.Ownership{MaxOwners: 2}},
	}
}

func (s *space) settings(k knobs) *rootv1.KeyspaceSettings {
	l := &rootv1.Liveness{IntervalMillis: 100, SuspectAfterMillis: 200, DeadAfterMillis: 300, Probe: k.probes, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_SUSPECT}
	if k.seed%2 == 0 {
		l.ClosedStream = rootv1.ClosedStream_CLOSED_STREAM_DEAD
	}
	mass := uint64(500)
	if k.fencing {
		mass = 1000 // never held
	}
	var policy *rootv1.Policy
	if k.seed%3 == 0 { // evened out by count, as often as there is something to do
		policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{
			MeanPermille: 1200, IntervalMillis: 250, HourPermille: 1000, RoundPermille: 500, SpacingMillis: 400, BackoffMillis: 400,
		}}
	}
	layout := &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: s.slots}}}
	if s.slots == 0 {
		layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
	}
	if k.loads {
		s.byLoad(policy.Rebalance)
	}
	return &rootv1.KeyspaceSettings{
		Policy: policy, Layout: layout,
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: s.ownership, Liveness: l,
		Moves:  &rootv1.Moves{PrepareMaxMillis: 60, DeadlineMillis: 400, HoldRequestsMillis: 60, InFlight: 4},
		Guards: &rootv1.Guards{MassPermille: mass, MassWindowMillis: 200, FlapFailures: 4, FlapWindowMillis: 800, NoMoveBackMillis: 500},
	}
}

// newMembers makes the members of a run, the last of them one with another's id.
func (r *run) newMembers() {
	r.acts.r, r.acts.may, r.acts.guards = r, map[mayKey]*span{}, map[state.KeyspaceID]*fence.Guard{}
	if r.k.members == 0 {
		return
	}
	if r.spaces = spaces(r.k.fence); r.k.loads {
		r.spaces = append(r.spaces, space{ranged, 0, &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}})
	}
	for i := range r.k.members {
		r.workers = append(r.workers, newWorker(r, i))
	}
	twin := newWorker(r, 0)
	twin.place, twin.twin = "member-twin", true
	r.workers = append(r.workers, twin)
	for i := range 3 {
		r.askers = append(r.askers, &asker{r: r, place: roottest.Place(fmt.Sprintf("asker-%d", i))})
	}
}

// startMembers makes the keyspaces, and starts the members and what disturbs them.
func (r *run) startMembers() {
	if r.k.members == 0 {
		return
	}
	r.operator = r.roots.NewLink("keeper")
	r.operations = identity.SourceOf(r.Rand.Uint64() | 1)
	for _, s := range r.spaces {
		r.operate(func() *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: s.name, Settings: s.settings(r.k)}}}
		}, func(result *rootv1.CommandResult) {
			if s.slots == 0 {
				r.publishRanges(result.GetEvents()[0].GetKeyspace().GetId())
			}
		})
	}
	for _, w := range r.workers {
		if !w.twin {
			r.After(r.Between(0, 50*time.Millisecond), w.start)
		}
	}
	for _, c := range r.askers {
		c.loop()
	}
	r.After(r.Between(300*time.Millisecond, 500*time.Millisecond), r.disturbMembers)
}

// operate proposes an event until its outcome is known. A nil one is nothing to do.
func (r *run) operate(event func() *rootv1.Event, done func(*rootv1.CommandResult)) {
	e := event()
	if e == nil {
		return
	}
	cmd := &rootv1.Command{Events: []*rootv1.Event{e}, Identity: r.operations.Next(r.known())}
	var try func()
	try = func() {
		proposeOver(r.operator, cmd, askLimit, func(result *rootv1.CommandResult) {
			if result == nil || result.GetToken() == nil { // not judged
				r.After(5*time.Millisecond, try)
				return
			}
			done(result)
		})
	}
	try()
}

// known is the newest position that anybody may know.
func (r *run) known() uint64 { return r.roots.Log.Last() }

// rooted is the state of the peer that leads; an empty one for none.
func (r *run) rooted() *state.State {
	if l := r.roots.Leader(); l != nil {
		return l.View().State
	}
	return state.New()
}

func (r *run) anyWorker() *worker { return r.workers[r.Rand.IntN(len(r.workers)-1)] }

// disturbMembers injects one fault into members, then the next.
func (r *run) disturbMembers() {
	if r.calm {
		return
	}
	kinds := 19
	if r.k.detours {
		kinds = 20
	}
	w, kind := r.anyWorker(), r.Rand.IntN(kinds)
	lasting := r.Between(20*time.Millisecond, 600*time.Millisecond)
	if r.k.fencing {
		kind = [...]int{6, 9, 9, 17}[r.Rand.IntN(4)]
		lasting = r.Between(r.k.fence, 3*r.k.fence)
	}
	if r.k.variant == passerConfirms {
		kind = 19
	}
	switch kind {
	case 0, 1:
		w.kill(true, "member killed")
	case 2:
		w.kill(false, "member's machine lost")
	case 3:
		w.kill(true, "member killed")
		w.taken = !w.up
	case 4:
		w.end()
	case 5:
		r.Fault("member paused")
		w.pause(r.Between(5*time.Millisecond, r.k.fence))
	case 6:
		r.Fault("member stopped beyond its ttl")
		w.pause(r.Between(r.k.fence, 3*r.k.fence))
	case 7, 8:
		w.leave()
	case 9:
		r.cut("member cut from coordinators", w.place, r.nodePlaces(), lasting)
	case 10:
		if r.k.detours { // long enough to be found out, and for what is done about it
			lasting *= 3
		}
		r.cut("member cut from the holder", w.place, []roottest.Place{r.holding().place}, lasting)
	case 11:
		r.massFailure()
	case 12, 13:
		r.moveOne()
	case 14:
		r.drainOne(w)
	case 15:
		r.twinBegins()
	case 16:
		r.failOne(w)
	case 17:
		r.partWith(w)
	case 18:
		r.removeOne(w)
	case 19:
		r.cutOff(w)
	}
	if r.moving() && r.Chance(0.3) {
		if n := r.holding(); n.up {
			r.Fault("holder killed during moves")
			n.kill()
		}
	}
	next := r.Between(20*time.Millisecond, 150*time.Millisecond)
	if r.k.fencing {
		next *= 5
	}
	r.After(next, r.disturbMembers)
}

// moving reports whether a change of owners is under way.
func (r *run) moving() (yes bool) {
	r.rooted().Transitions(func(t *rootv1.Transition) bool {
		yes = yes || t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING
		return !yes
	})
	return yes
}

func (r *run) nodePlaces() []roottest.Place {
	var places []roottest.Place
	for _, n := range r.nodes {
		places = append(places, n.place)
	}
	return places
}

// massFailure takes most members from everybody at once, and none of them is dead.
func (r *run) massFailure() {
	r.Fault("most members cut from coordinators")
	lasting := r.Between(300*time.Millisecond, 700*time.Millisecond)
	for _, w := range r.workers[:len(r.workers)-2] {
		for _, p := range r.nodePlaces() {
			r.roots.Net.Cut(w.place, p)
			r.roots.Net.Cut(p, w.place)
			r.After(lasting, func() {
				r.roots.Net.Mend(w.place, p)
				r.roots.Net.Mend(p, w.place)
			})
		}
	}
}

// moveOne has an operator move a region to any member.
func (r *run) moveOne() {
	region := r.anyRegion(r.nodes[r.Rand.IntN(len(r.nodes))])
	to := r.anyWorker().id
	if region == nil || len(region.Owners) != 1 || region.Owners[0].Member == to {
		return
	}
	r.operate(func() *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: uint64(region.ID), ExpectedEpoch: region.Epoch.Proto(), From: &rootv1.Owner{MemberId: string(region.Owners[0].Member)},
			To: &rootv1.Owner{MemberId: string(to)}, PrepareMaxMillis: 60, DeadlineMillis: 300,
		}}}
	}, func(result *rootv1.CommandResult) {
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED {
			r.Fault("region moved by an operator")
		}
	})
}

// drainOne has an operator drain a member, and take that back later.
func (r *run) drainOne(w *worker) {
	set := func(to rootv1.MemberState) func() *rootv1.Event {
		return func() *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: string(w.id), State: to}}}
		}
	}
	r.operate(set(rootv1.MemberState_MEMBER_STATE_DRAINING), func(result *rootv1.CommandResult) {
		if result.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			return
		}
		r.Fault("member drained by an operator")
		r.After(r.Between(20*time.Millisecond, 300*time.Millisecond), func() {
			r.operate(set(rootv1.MemberState_MEMBER_STATE_ACTIVE), func(*rootv1.CommandResult) {})
		})
	})
}

// failOne has an operator say that a member has failed, which knows nothing of it for a
// while.
func (r *run) failOne(w *worker) {
	r.cutSome(w)
	incarnation := r.rooted().Member(w.id).GetIncarnation()
	r.operate(func() *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
			MemberId: string(w.id), Incarnation: incarnation, State: rootv1.MemberState_MEMBER_STATE_FAILED,
		}}}
	}, func(result *rootv1.CommandResult) {
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED {
			r.Fault("member failed by an operator")
		}
	})
}

// cutSome cuts a member from some coordinators.
func (r *run) cutSome(w *worker) {
	for _, p := range r.nodePlaces() {
		if r.Chance(0.7) {
			r.cut("member cut from coordinators", w.place, []roottest.Place{p}, r.Between(20*time.Millisecond, 2*r.k.fence))
		}
	}
}

// removeOne has an operator take from a member what it owns, and then remove it, which knows nothing
// of either for a while.
func (r *run) removeOne(w *worker) {
	r.cutSome(w)
	st := r.rooted()
	incarnation := st.Member(w.id).GetIncarnation()
	taken := new(rootv1.RegionsAssigned)
	st.MemberRegionsAfter(w.id, 0, func(region *state.Region) bool {
		a := &rootv1.Assignment{RegionId: uint64(region.ID), ExpectedEpoch: region.Epoch.Proto()}
		for _, o := range region.Owners {
			if o.Member != w.id {
				a.Owners = append(a.Owners, o.Proto())
			}
		}
		taken.Assignments = append(taken.Assignments, a)
		return true
	})
	r.operate(func() *rootv1.Event {
		if len(taken.Assignments) == 0 {
			return nil
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: taken}}
	}, func(result *rootv1.CommandResult) {
		if result.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			return
		}
		r.operate(func() *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
				MemberId: string(w.id), Incarnation: incarnation, State: rootv1.MemberState_MEMBER_STATE_REMOVED,
			}}}
		}, func(result *rootv1.CommandResult) {
			if result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED {
				r.Fault("member removed by an operator")
			}
		})
	})
}

// part cuts two from one another for a while, in both directions.
func (r *run) part(one, other roottest.Place, lasting time.Duration) {
	for _, link := range [][2]roottest.Place{{one, other}, {other, one}} {
		r.roots.Net.Cut(link[0], link[1])
		r.After(lasting, func() { r.roots.Net.Mend(link[0], link[1]) })
	}
}

// cutOff cuts a member and the other coordinators from the holder: by no road does it hear the member. These may
// be cut from the roots too, and show the member what was long before.
func (r *run) cutOff(w *worker) {
	r.Fault("member cut from the holder by every road")
	n := r.holding()
	lasting := r.Between(r.k.fence, 4*r.k.fence)
	from := []roottest.Place{n.place}
	if r.k.variant == passerConfirms || r.Chance(0.5) {
		from = append(from, r.rootPlaces()...)
	}
	r.part(w.place, n.place, lasting)
	for _, o := range r.nodes {
		for _, p := range from {
			if o != n {
				r.part(o.place, p, lasting)
			}
		}
	}
}

// partWith cuts a member and the holder off from everybody else, together.
func (r *run) partWith(w *worker) {
	r.Fault("member and holder cut off together")
	n := r.holding()
	lasting := r.Between(r.k.fence, 4*r.k.fence)
	part := func(one, other roottest.Place) { r.part(one, other, lasting) }
	for _, o := range r.nodes {
		if o != n {
			part(n.place, o.place)
			part(w.place, o.place)
		}
	}
	for _, p := range r.rootPlaces() {
		part(n.place, p)
	}
}

// twinBegins starts another process with a member's id, for a while.
func (r *run) twinBegins() {
	twin := r.workers[len(r.workers)-1]
	if twin.up {
		return
	}
	r.Fault("two processes with one id")
	twin.start()
	r.After(r.Between(20*time.Millisecond, 300*time.Millisecond), func() { twin.stop(true) })
}

// healMembers ends what disturbs members.
func (r *run) healMembers() {
	for _, w := range r.workers {
		if w.twin {
			if w.up {
				w.stop(true)
			}
			continue
		}
		w.resume()
		w.start()
	}
}

// whyMembers is what is wrong with members, and nothing when nobody is forgotten.
func (r *run) whyMembers() string {
	if r.k.members == 0 {
		return ""
	}
	st := r.rooted()
	if n := st.Orphaned(); n != 0 {
		return fmt.Sprintf("%d regions are orphaned", n)
	}
	if r.moving() {
		return "a move is open"
	}
	for _, w := range r.workers {
		m := st.Member(w.id)
		if !w.twin && (!w.up || w.core == nil || w.leaving || m.GetIncarnation() != w.member || m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE) {
			return fmt.Sprintf("%s, up %v, leaving %v, incarnation %d, is rooted as %v", w.id, w.up, w.leaving, w.member, m)
		}
	}
	for _, s := range r.spaces {
		if why := r.whySpace(st, s); why != "" {
			return why
		}
	}
	return ""
}

func (r *run) whySpace(st *state.State, s space) (why string) {
	k := st.KeyspaceByName(s.name)
	if k == nil {
		return "keyspace " + s.name + " is not there"
	}
	st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(region *state.Region) bool {
		for _, o := range region.Owners {
			for _, w := range r.workers {
				if w.id != o.Member || w.twin {
					continue
				}
				phase, epoch := w.core.Phase(region.ID)
				if phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING || epoch != region.Epoch || w.core.Stopped(region.Keyspace) {
					why = fmt.Sprintf("region %d of %s at %s is %s's, which has it as %v at %s", region.ID, s.name, region.Epoch, o.Member, phase, epoch)
				}
			}
		}
		return why == ""
	})
	return why
}
