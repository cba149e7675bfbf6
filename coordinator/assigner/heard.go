package assigner

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// heard is what members' streams have brought since Look, of what matters to
// a holder.
type heard struct {
	// wanted: this process holds the Tenure.
	wanted bool
	// turned are regions in another phase than before; many: there was no room for all.
	turned map[state.RegionID]struct{}
	many   bool
	// showed are members that have taken a newer set.
	showed map[state.MemberID]struct{}
	// goodbyes are members that want to leave.
	goodbyes map[state.MemberID]goodbye
	// opened: a stream was; by whom. complete: somebody has said everything.
	opened, complete bool
	came             map[state.MemberID]struct{}
	// made are checkpoints, of so many bytes: what is above is not rooted.
	made      []made
	madeBytes int
	// keys are how many keys regions have, of those of which that was told.
	keys map[state.RegionID]uint64
	// saturated are regions that an owner says so of.
	saturated map[state.RegionID]struct{}
	// weighs: loads count in some keyspace. said is what was said of loads, so many reports;
	// lost: there was no room for all.
	weighs  bool
	said    []server.HeardFrame
	reports int
	lost    bool
}

type goodbye struct {
	incarnation uint64
	reason      string
	// leave is when the process ends; zero: it did not say.
	leave placement.Leave
}

func newHeard() heard {
	return heard{
		turned: map[state.RegionID]struct{}{}, showed: map[state.MemberID]struct{}{}, goodbyes: map[state.MemberID]goodbye{},
		saturated: map[state.RegionID]struct{}{}, came: map[state.MemberID]struct{}{}, keys: map[state.RegionID]uint64{},
	}
}

func (h *heard) any() bool {
	return len(h.turned) > 0 || len(h.showed) > 0 || len(h.goodbyes) > 0 || h.opened || h.many ||
		h.complete || len(h.saturated) > 0 || h.reports > manySaid
}

var _ server.MemberEvents = (*Raw)(nil)

// Opened implements server.MemberEvents. The view that let the stream in may be newer
// than the one that Look has seen.
func (a *Raw) Opened(id state.MemberID, incarnation, stream uint64, _ clock.Instant) {
	record := a.cfg.View().State.Member(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	if record.GetIncarnation() == incarnation && a.core.Standing(id).Incarnation < incarnation {
		a.core.SetMember(record, now)
	}
	a.core.Opened(id, incarnation, liveness.StreamID(stream), now)
	if s := a.speakers[id]; s == nil || s.stream < stream {
		a.speakers[id] = &speaker{incarnation: incarnation, stream: stream, at: now, gap: -time.Millisecond}
	}
	a.heard.opened = true
	if a.heard.wanted {
		a.heard.came[id] = struct{}{}
	}
	a.noticeLocked()
}

// Closed implements server.MemberEvents.
func (a *Raw) Closed(id state.MemberID, incarnation, stream uint64, _ clock.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.Closed(id, incarnation, liveness.StreamID(stream), a.tickLocked())
	if s := a.speakers[id]; s != nil && s.stream == stream {
		delete(a.speakers, id)
	}
	a.noticeLocked()
}

// Frame implements server.MemberEvents.
func (a *Raw) Frame(f server.HeardFrame) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	a.core.Behind(f.Member, f.Incarnation, f.Behind)
	a.core.Frame(f.Member, f.Incarnation, now)
	if len(f.Turned) > 0 && a.lookAt == never {
		a.lookAt = now.Add(placement.UnservedLook)
	}
	if s := a.speakers[f.Member]; s != nil && s.stream == f.Stream {
		s.gap = now.Sub(s.at)
		again := s.lost && !f.Lost // what it says now is known
		s.at, s.complete, s.lost = now, s.complete || f.Complete, f.Lost
		if f.Complete || again {
			a.expectLocked(f.Member, f.Incarnation, now)
		}
		if len(f.Gone) > 0 {
			a.expectLocked(f.Member, f.Incarnation, now, f.Gone...)
		}
		if f.Load != nil {
			s.load = f.Load
		}
	}
	if g := f.Goodbye; g != nil {
		a.core.Goodbye(f.Member, f.Incarnation, g.GetGone(), now)
		if a.heard.wanted && !g.GetGone() {
			a.heard.goodbyes[f.Member] = goodbye{f.Incarnation, g.GetReason(), leaveOf(g, now)}
		}
	}
	if a.heard.wanted {
		for _, id := range f.Turned {
			if a.heard.many = a.heard.many || len(a.heard.turned) >= maxTurned; a.heard.many {
				break
			}
			a.heard.turned[id] = struct{}{}
		}
		if f.Showed {
			a.heard.showed[f.Member] = struct{}{}
		}
		for _, reply := range f.Replies {
			if n := len(reply.GetFrontier()); reply.GetDone() && reply.GetSetFrontier() && len(a.heard.made) < maxFrontiers && a.heard.madeBytes+n <= maxFrontierBytes {
				a.heard.made = append(a.heard.made, made{f.Incarnation, reply})
				a.heard.madeBytes += n
			}
		}
		a.heard.complete = a.heard.complete || f.Complete
		for _, l := range f.Loads {
			if l.Saturated && len(a.heard.saturated) < maxTurned {
				a.heard.saturated[l.Region] = struct{}{}
			}
			if l.Keys > 0 && len(a.heard.keys) < maxTurned {
				a.heard.keys[l.Region] = l.Keys
			}
		}
		a.heard.overheard(&f, now)
	}
	a.noticeLocked()
}

// leaveOf is what a goodbye that came now says of when the process ends.
func leaveOf(g *coordinatorv1.Goodbye, now clock.Instant) placement.Leave {
	left := time.Duration(min(g.GetDeadlineMillis(), state.MaxMillis)) * time.Millisecond
	if left == 0 {
		return placement.Leave{}
	}
	return placement.Leave{Said: now, Ends: now.Add(left)}
}

// Answered implements server.MemberEvents.
func (a *Raw) Answered(id state.MemberID, incarnation uint64, _ clock.Instant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Answered(id, incarnation, a.tickLocked())
}

// noticeLocked has Look called if there is something to do sooner than that.
func (a *Raw) noticeLocked() {
	due := a.core.Due()
	if min(due, a.lookAt) < a.armed || a.heard.wanted && a.heard.any() {
		a.armed = 0
		a.cfg.Wake()
	}
	if due < a.detects {
		a.detects = 0
		a.cfg.WakeDetector()
	}
}

// Standing says what is thought of a member.
func (a *Raw) Standing(id state.MemberID) liveness.Standing {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Standing(id)
}

// attend takes what was heard.
func (a *Raw) attend() {
	a.mu.Lock()
	h := a.heard
	a.heard = newHeard()
	a.heard.wanted, a.heard.weighs = true, h.weighs
	now := a.tickLocked()
	a.mu.Unlock()
	if h.opened {
		a.work.Wake()
	}
	for id := range h.came {
		if e := a.past.ended[id]; e.incarnation != 0 {
			a.work.MarkIncarnation(e.incarnation) // what was kept for it
		}
	}
	if h.opened || h.complete {
		a.rounds.everywhere(byMembers)
	}
	a.listen(&h, now)
	a.cadence.take(a, h.made)
	a.countKeys(h.keys)
	for id := range h.saturated {
		if r := a.st.Region(id); r != nil {
			a.rounds.soon(a, r.Keyspace, bySaturated, now)
		}
	}
	for id := range h.turned {
		if a.st.PendingTransition(id) != nil {
			a.work.Mark(id)
		}
	}
	for id := range h.showed {
		a.work.MarkMember(id)
	}
	if h.many {
		a.st.Transitions(func(t *rootv1.Transition) bool {
			if t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
				a.work.Mark(state.RegionID(t.GetRegionId()))
			}
			return true
		})
	}
	for _, id := range slices.Sorted(maps.Keys(h.goodbyes)) {
		g := h.goodbyes[id]
		if g.leave != (placement.Leave{}) {
			a.work.Leave(id, g.incarnation, g.leave)
		}
		a.leave(id, g)
	}
}

// lookForUnserved takes what members have said that they get ready for, or let go, and of what they say
// nothing, with the Tenure and without, and says when it is due again: there is nothing to look at while
// there is nothing of that kind.
func (a *Raw) lookForUnserved(now clock.Instant) clock.Instant {
	if due, begins := a.beginLook(now); !begins {
		return due
	}
	var all []placement.Getting
	a.cfg.Soft.Unserved(func(id state.RegionID, incarnation uint64, since clock.Instant, said *catalog.OwnReport) {
		all = append(all, placement.Getting{
			Region: id, Incarnation: incarnation, Since: since, Failed: failed(said), Releases: said.Phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASING,
		})
	})
	return a.endLook(append(all, a.lookForUnsaid(now)...), now)
}

// beginLook reports whether it is time to look. What is said from here on is looked at later.
func (a *Raw) beginLook(now clock.Instant) (due clock.Instant, begins bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lookAt > now || a.st == nil {
		return a.lookAt, false
	}
	a.lookAt = never
	return never, true
}

// endLook takes all that members got ready for, as it was at some moment behind beginLook.
func (a *Raw) endLook(all []placement.Getting, now clock.Instant) clock.Instant {
	serves := func(r *state.Region, o state.Owner) bool {
		said, ok := a.cfg.Soft.Own(r.ID, o.Incarnation)
		return ok && said.Phase == coordinatorv1.RegionPhase_REGION_PHASE_SERVING && said.Epoch == r.Epoch
	}
	a.seen.Lock()
	marked := a.unserved.Look(a.st, all, serves, now)
	a.seen.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(all) > 0 || a.unserved.Open() {
		a.lookAt = min(a.lookAt, now.Add(placement.UnservedLook))
	}
	for _, due := range a.unsaid.due {
		a.lookAt = min(a.lookAt, due.at)
	}
	if a.work != nil {
		for _, id := range marked {
			a.work.Mark(id)
		}
	}
	return a.lookAt
}

// failed reports whether what a member tried last for a region has failed, and it tries nothing now.
func failed(said *catalog.OwnReport) bool {
	return said.More != nil && said.More.Error != "" && !said.Calling
}

// observed is what a plan is told beside the root.
type observed struct{ *Raw }

var _ placement.Observed = observed{}

// newest is the newest moment that was told.
func (o observed) newest() clock.Instant {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

// Takes implements placement.Observed.
func (o observed) Takes(id state.MemberID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.core.Standing(id).Takes(o.now)
}

// Damped implements placement.Observed.
func (o observed) Damped(id state.MemberID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.core.Standing(id).Damped(o.now)
}

// Unfit implements placement.Observed.
func (o observed) Unfit(owner state.Owner, ks state.KeyspaceID) bool {
	now := o.newest()
	o.seen.Lock()
	defer o.seen.Unlock()
	return o.unserved.Unfit(owner, ks, now)
}

// Probation implements placement.Observed.
func (o observed) Probation(owner state.Owner, ks state.KeyspaceID) bool {
	o.seen.Lock()
	defer o.seen.Unlock()
	return o.unserved.Probation(owner, ks)
}

// ClearAt implements placement.Observed.
func (o observed) ClearAt(id state.MemberID, incarnation uint64, f liveness.Fence) clock.Instant {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.core.ClearAt(id, incarnation, f)
}

// Shown implements placement.Observed.
func (o observed) Shown(id state.MemberID, incarnation uint64) state.Token {
	token, _ := o.cfg.Streams.Shown(id, incarnation)
	return token
}

// Report implements placement.Observed. A stream carries what changed: what was said on
// it stands for every set that the member has taken there since.
func (o observed) Report(region state.RegionID, owner state.Owner) (placement.Report, bool) {
	report, ok := o.reportOf(region, owner)
	if ok {
		o.mu.Lock()
		defer o.mu.Unlock()
		report.Last = o.core.Left(owner.Member, owner.Incarnation)
	}
	return report, ok
}

func (a *Raw) reportOf(region state.RegionID, owner state.Owner) (placement.Report, bool) {
	r, ok := a.cfg.Soft.Own(region, owner.Incarnation)
	if !ok {
		return placement.Report{}, false
	}
	p := placement.Report{
		Incarnation: owner.Incarnation, Epoch: r.Epoch, Phase: r.Phase, Frontier: r.Frontier, SetFrontier: r.FrontierSet,
		Load: uint64(min(r.Load, maxLoad) * 1000), Failed: failed(&r),
	}
	if r.More == nil || r.More.TransitionID == "" {
		return p, true
	}
	p.Transition = r.More.TransitionID
	if token, since := a.cfg.Streams.Shown(owner.Member, owner.Incarnation); since != 0 && r.At >= since {
		p.Shown = token
	}
	return p, true
}

// maxLoad is where loads are cut: their thousandths are compared as whole numbers.
const maxLoad = 1e15
