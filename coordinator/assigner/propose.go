package assigner

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// parcel is a command and what is to be done when it has been judged.
type parcel struct {
	events []*rootv1.Event
	// why is that of the command, actor who asks for it; empty: this coordinator. versions of keyspaces are
	// those that it was decided by.
	why, actor string
	versions   []*rootv1.KeyspaceVersion
	// operations that the events carry out, in order: one each, but for grants.
	operations []placement.Operation
	// judged is told what became of it, unless it is to be taken apart.
	judged func(result *rootv1.CommandResult, now clock.Instant)
}

// outbox is what waits to be sent.
type outbox struct {
	// urgent are verdicts and drains.
	urgent, rest []*parcel
	calls        int
}

func (o *outbox) len() int { return len(o.urgent) + len(o.rest) }

// pass has a verdict rooted, in a command of its own. In front of that on a process that has said its
// last word stands how far it got with what it released: whoever follows begins there, whatever becomes
// of the coordinators that heard it.
func (a *Raw) pass(v liveness.Verdict) {
	change := &rootv1.MemberStateChanged{
		MemberId: string(v.Member), Incarnation: v.Incarnation, State: rootv1.MemberState_MEMBER_STATE_FAILED,
		Reason: v.Reason(), Signals: v.Signals.Names(),
	}
	if m := a.st.Member(v.Member); m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING && a.st.MemberRegionCount(v.Member) == 0 {
		change.Signals = append(change.Signals, rooted.DrainedSignal)
	}
	level, what := hclog.Warn, "member has failed"
	if v.Signals&liveness.Gone != 0 || slices.Contains(change.Signals, rooted.DrainedSignal) {
		level, what = hclog.Info, "member has left"
	}
	a.cfg.Logger.Log(level, what, "member", string(v.Member), "incarnation", v.Incarnation, "why", v.Reason(),
		"signals", v.Signals.String(), "regions", a.st.MemberRegionCount(v.Member))
	a.sendVerdict(v, memberEvent(change), a.lastWords(v))
}

// sendVerdict sends a verdict behind what was released, which may take several commands. If this coordinator
// ends between two of them the process still owns its regions, and the next holder goes on with what it
// has heard itself. If the root refuses what was released, the verdict goes alone: then the grants of the
// regions carry it, for as long as this coordinator knows it.
func (a *Raw) sendVerdict(v liveness.Verdict, verdict *rootv1.Event, released []*rootv1.Event) {
	events := []*rootv1.Event{verdict}
	if len(released) > 0 {
		events = released[:1:1]
	}
	if len(released) == 1 {
		events = append(events, verdict)
	}
	a.outbox.urgent = append(a.outbox.urgent, &parcel{events: events, judged: func(result *rootv1.CommandResult, now clock.Instant) {
		switch d := result.GetError(); {
		case result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED && len(released) > 0 && d.GetReason() != rootv1.Reason_REASON_ERA_STALE:
			a.refused("last words", d)
			a.sendVerdict(v, verdict, nil)
		case result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED:
			a.refused("a verdict", d)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.core.Withdraw(v.Member, v.Incarnation, now)
		case len(released) > 1:
			a.sendVerdict(v, verdict, released[1:])
		default:
			a.count.verdict(v)
		}
	}})
}

// lastWords are how far a process got with what it released before it left, as far as that is not
// rooted, and of what this view does not have as its own yet: many regions in an event, each event small
// enough for a command. The root takes what is about a region as it is.
func (a *Raw) lastWords(v liveness.Verdict) (all []*rootv1.Event) {
	if v.Signals&liveness.Gone == 0 {
		return nil
	}
	var e *rootv1.RegionsAssigned
	bytes := 0
	add := func(id state.RegionID, f frontier) {
		if e == nil || len(e.Assignments) == rootedFrontiers || bytes > state.MaxCommandBytes/2 {
			e, bytes = &rootv1.RegionsAssigned{}, 0
			all = append(all, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}})
		}
		bytes += len(f.bytes) + 128
		e.Assignments = append(e.Assignments, f.acknowledged(id, v.Member))
	}
	a.st.IncarnationRegions(v.Incarnation, func(r *state.Region) bool {
		said, ok := a.cfg.Soft.Own(r.ID, v.Incarnation)
		f := frontier{v.Incarnation, said.Epoch, said.Frontier}
		if ok && said.Phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED && said.FrontierSet && f.of(a.st, r) {
			add(r.ID, f)
		}
		return true
	})
	early := map[state.RegionID]frontier{}
	a.cfg.Soft.Early(v.Incarnation, func(id state.RegionID, said *catalog.OwnReport) {
		early[id] = frontier{v.Incarnation, said.Epoch, said.Frontier}
	})
	for _, id := range sortedKeys(early) {
		add(id, early[id])
	}
	return all
}

// note has the log say which verdicts a guard holds. It asks for what is so, that the
// members be what they are, and changes nothing: why is what it says.
func (a *Raw) note(held []liveness.Withheld) {
	by := map[liveness.Guard][]*rootv1.Event{}
	for _, h := range held {
		m := a.st.Member(h.Member)
		if m.GetIncarnation() != h.Incarnation {
			continue
		}
		a.cfg.Logger.Warn("a verdict is held", "member", string(h.Member), "incarnation", h.Incarnation, "by", h.By.String())
		by[h.By] = append(by[h.By], memberEvent(&rootv1.MemberStateChanged{
			MemberId: m.GetId(), Incarnation: m.GetIncarnation(), State: m.GetState(), Reason: m.GetReason(), Signals: m.GetSignals(),
			ExpectedRevision: m.GetRevision(),
		}))
	}
	for _, g := range slices.Sorted(maps.Keys(by)) { // in an order of their own: what is decided is the same each time
		a.say(by[g], g.String()+": not failed, because "+g.Reason())
	}
}

// say sends a note; event by event if it is refused, as when one of the members has
// changed meanwhile.
func (a *Raw) say(events []*rootv1.Event, why string) {
	a.outbox.rest = append(a.outbox.rest, &parcel{events: events, why: why, judged: func(result *rootv1.CommandResult, _ clock.Instant) {
		switch {
		case result.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED:
		case len(events) > 1 && result.GetError().GetReason() != rootv1.Reason_REASON_ERA_STALE:
			for i := range events {
				a.say(events[i:i+1], why)
			}
		default:
			a.refused("a note", result.GetError())
		}
	}})
}

// leave drains a member that said goodbye, if it is not drained already.
func (a *Raw) leave(id state.MemberID, g goodbye) {
	m := a.st.Member(id)
	if m.GetIncarnation() != g.incarnation || m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || a.leaving[id] == g.incarnation {
		return
	}
	if a.outbox.len() > maxWaiting || a.undrained[id].rests(g.incarnation, a.cfg.Clock.Now()) {
		return // it says so again
	}
	a.leaving[id] = g.incarnation
	why := "it said goodbye"
	if g.reason != "" {
		why += ": " + g.reason
	}
	change := &rootv1.MemberStateChanged{
		MemberId: string(id), Incarnation: g.incarnation, State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: oneline.Within(state.MaxTextBytes, why),
		Signals: []string{state.GoodbyeSignal},
	}
	a.outbox.urgent = append(a.outbox.urgent, &parcel{events: []*rootv1.Event{memberEvent(change)}, judged: func(result *rootv1.CommandResult, now clock.Instant) {
		delete(a.leaving, id)
		if d := result.GetError(); result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			if d.GetReason() == rootv1.Reason_REASON_ERA_STALE { // the next holder hears it too
				a.refused("a drain", d)
				return
			}
			a.count.refusal(d.GetReason())
			a.cfg.Logger.Warn("the root refused a drain", "member", string(id), "incarnation", g.incarnation, "why", why, "err", d.GetMessage())
			a.cfg.RefuseDrain(id, g.incarnation, d)
			a.undrained[id] = undrained{g.incarnation, now.Add(drainAgain)}
			return
		}
		delete(a.undrained, id)
		a.count.add(func() { a.count.drains++ })
		a.cfg.Logger.Info("member drains", "member", string(id), "incarnation", g.incarnation, "why", why)
	}})
}

// drainAgain is how long a member whose drain was refused says goodbye in vain.
const drainAgain = time.Second

// undrained is a member whose drain was refused, and until when it is not tried again.
type undrained struct {
	incarnation uint64
	until       clock.Instant
}

func (u undrained) rests(incarnation uint64, now clock.Instant) bool {
	return u.incarnation == incarnation && now < u.until
}

func memberEvent(m *rootv1.MemberStateChanged) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: m}}
}

// order has operations carried out: steps many in a command, and so grants.
func (a *Raw) order(operations []placement.Operation, now clock.Instant) {
	assigns := func(o placement.Operation) bool { return o.Kind == placement.Assign }
	first := slices.IndexFunc(operations, assigns)
	if first < 0 {
		a.step(operations, now)
		return
	}
	end := first
	for end < len(operations) && assigns(operations[end]) {
		end++
	}
	a.step(operations[:first], now)
	grants := operations[first:end]
	for _, e := range placement.Grants(grants) {
		n := len(e.GetRegionsAssigned().GetAssignments())
		a.queue([]*rootv1.Event{e}, grants[:n])
		grants = grants[n:]
	}
	a.step(operations[end:], now)
}

func (a *Raw) orderSteps(operations []placement.Operation) {
	var events []*rootv1.Event
	from, bytes := 0, 0
	for i := range operations {
		e := operations[i].Event()
		n := proto.Size(e) + 4
		if len(events) == placement.MaxGrants || bytes+n > state.MaxCommandBytes/2 {
			a.queue(events, operations[from:i])
			events, from, bytes = nil, i, 0
		}
		events, bytes = append(events, e), bytes+n
	}
	if len(events) > 0 {
		a.queue(events, operations[from:])
	}
}

// queue has a command with operations sent; one by one if it is refused.
func (a *Raw) queue(events []*rootv1.Event, operations []placement.Operation) {
	p := &parcel{events: events, why: because(operations), operations: operations}
	p.judged = func(result *rootv1.CommandResult, now clock.Instant) {
		switch refused := result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED; {
		case !refused:
			for i := range operations {
				a.count.operation(&operations[i])
			}
			a.arrive(operations, result.GetToken().GetIndex(), now)
		case len(operations) > 1 && result.GetError().GetReason() != rootv1.Reason_REASON_ERA_STALE:
			for i := range operations {
				a.queue([]*rootv1.Event{operations[i].Event()}, operations[i:i+1])
			}
		default:
			o, d := &operations[0], result.GetError()
			a.refused(fmt.Sprintf("%s of region %d", o.Kind, o.Region), d)
			if begins(o) {
				a.rounds.gaveUp(o.Keyspace, o.Region, now)
			}
			if o.Transition != "" && o.Kind != placement.Cancel && forGood(d) {
				end := *o
				end.Kind, end.Because = placement.Cancel, oneline.Within(state.MaxWhyBytes, "the root does not let it end: "+d.GetMessage())
				a.queue([]*rootv1.Event{end.Event()}, []placement.Operation{end})
				return
			}
			a.arrive(operations, result.GetToken().GetIndex(), now.Add(refusedPause))
		}
	}
	a.outbox.rest = append(a.outbox.rest, p)
}

// forGood reports whether a change of owners that was refused stays refused: by settings or grants that are
// others than when it was planned, and not by what this view does not know yet.
func forGood(d *rootv1.ErrorDetail) bool {
	switch d.GetReason() {
	case rootv1.Reason_REASON_PERMISSION_DENIED, rootv1.Reason_REASON_CAPACITY_EXCEEDED, rootv1.Reason_REASON_TOO_MANY_REPLICAS:
		return true
	}
	return false
}

// because is why regions are granted otherwise than they would be, of the first that is.
func because(operations []placement.Operation) string {
	for i := range operations {
		if o := &operations[i]; o.Kind == placement.Assign && o.Because != "" {
			return oneline.Within(state.MaxWhyBytes, o.Because)
		}
	}
	return ""
}

func (a *Raw) refused(what string, d *rootv1.ErrorDetail) {
	a.count.refusal(d.GetReason())
	a.cfg.Logger.Debug("the root refused", "what", what, "reason", d.GetReason().String(), "err", d.GetMessage())
}

// landing is what has been judged, and is looked at again when the view has it.
type landing struct {
	operations []placement.Operation
	index      uint64
	at         clock.Instant
}

// due is when it can be looked at; never: a view decides.
func (l *landing) due(index uint64) clock.Instant {
	if index < l.index {
		return never
	}
	return l.at
}

func (a *Raw) arrive(operations []placement.Operation, index uint64, at clock.Instant) {
	a.landed = append(a.landed, landing{operations, index, at})
}

// land lets regions be planned again whose operations have been judged.
func (a *Raw) land(now clock.Instant) {
	a.landed = slices.DeleteFunc(a.landed, func(l landing) bool {
		if l.due(a.at.Index) > now {
			return false
		}
		for i := range l.operations {
			a.work.Judged(l.operations[i].Region)
			a.rounds.landed(&l.operations[i])
		}
		return true
	})
}

// Call are commands for the root, which are to be judged, however long that takes while
// their era lasts.
type Call struct {
	Commands []*rootv1.Command

	era     state.Era
	parcels []*parcel
}

// send makes calls of what waits: verdicts first.
func (a *Raw) send() (calls []*Call) {
	o, most := &a.outbox, maxCalls
	if a.crowded() {
		most = 1 // two would be merged into one entry, and everybody else waits for that
	}
	for len(o.urgent) > 0 && o.calls < maxCalls+urgentCalls || len(o.rest) > 0 && o.calls < most {
		from := &o.rest
		if len(o.urgent) > 0 {
			from = &o.urgent
		}
		var commands []*rootv1.Command
		bytes, regions := 0, 0
		for _, p := range *from {
			cmd := &rootv1.Command{Events: p.events, Why: p.why, Actor: p.actor, RequireEra: uint64(a.era), RequireKeyspaces: p.versions}
			n := proto.Size(cmd) + 64
			if len(commands) > 0 && (bytes+n > maxBytes || len(commands) == maxCommands || regions+len(p.operations) > placement.MaxGrants) {
				break
			}
			cmd.Identity = a.cfg.Identities.Next(a.cfg.View().Known.Index)
			commands, bytes, regions = append(commands, cmd), bytes+n, regions+len(p.operations)
		}
		calls = append(calls, &Call{Commands: commands, era: a.era, parcels: (*from)[:len(commands):len(commands)]})
		*from = (*from)[len(commands):]
		o.calls++
	}
	return calls
}

// Judged tells what became of a Call's commands, in order; nil: nothing, its era is over.
func (a *Raw) Judged(c *Call, results []*rootv1.CommandResult) {
	if a.era != c.era {
		return
	}
	a.outbox.calls--
	now := a.tick()
	for i, result := range results {
		c.parcels[i].judged(result, now)
	}
}
