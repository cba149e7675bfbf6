package state

import (
	"fmt"
	"slices"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// ApplyEntry applies the entry at index, which must be the one behind the last.
// Data is a serialized rootv1.Entry; empty data only moves the token. Each
// command applies atomically and is judged alone. What became of them is
// appended to out, if that is not nil.
//
// An error is a poison entry: undecodable, of an unknown kind, with unknown
// fields or enum numbers, or out of order. The State and out are unchanged and
// the replica must stop: guessing is divergence.
func (s *State) ApplyEntry(term, index uint64, data []byte, out *Applied) error {
	if index != s.token.Index+1 {
		return fmt.Errorf("apply entry %d: the state is at %s, next is %d", index, s.token, s.token.Index+1)
	}
	if term < s.token.Term {
		return fmt.Errorf("apply entry %d: its term %d is below the state's, %s", index, term, s.token)
	}
	var entry rootv1.Entry
	if len(data) > 0 {
		if err := decode(data, &entry); err != nil {
			return fmt.Errorf("apply entry %d of term %d: %w", index, term, err)
		}
	}
	if out == nil {
		out = new(Applied)
	}
	s.token = Token{Incarnation: s.token.Incarnation, Term: term, Index: index}
	n := len(entry.GetCommands())
	out.Results, out.Changes = slices.Grow(out.Results, n), slices.Grow(out.Changes, n)
	t := turn{State: s, out: out, spare: make([]EventResult, n)}
	for _, c := range entry.GetCommands() {
		t.command(c, len(data) <= MaxCommandBytes)
	}
	out.Token = s.token
	return nil
}

// decode reads an entry and refuses what this version does not know.
func decode(data []byte, entry *rootv1.Entry) error {
	if err := proto.Unmarshal(data, entry); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if n := len(entry.ProtoReflect().GetUnknown()); n > 0 {
		return fmt.Errorf("decode: %d bytes of unknown fields in the entry", n)
	}
	for i, c := range entry.GetCommands() {
		if err := known(c); err != nil {
			return fmt.Errorf("command %d: %w", i, err)
		}
	}
	return nil
}

// turn is the application of one entry.
type turn struct {
	*State
	out *Applied
	// spare are results for commands to come, most of which have one event.
	spare []EventResult
	// actor and why are those of the command that is judged; byEra: it requires one, and no
	// coordinator asks in another's name. byPlanner is of the event: see Change.
	actor, why       string
	byEra, byPlanner bool
}

// verdict is what became of an event; one with a reject changed nothing.
type verdict struct {
	applied bool
	reject  *rootv1.ErrorDetail
}

var (
	applied = verdict{applied: true}
	already = verdict{}
)

// command judges one command and applies it, or leaves no trace.
func (t *turn) command(c *rootv1.Command, small bool) {
	detail := checkCommand(c, small)
	if detail != nil { // as it ever will be
		t.answer(verdict{reject: detail}, nil)
		return
	}
	if t.identified(c) {
		return
	}
	t.actor, t.why = c.GetActor(), c.GetWhy()
	role, name, _ := strings.Cut(t.actor, "/")
	t.byEra = c.GetRequireEra() != 0 && c.GetVia() == "" && (role == "" || role == roleCoordinator && name == t.tenure.GetHolderId())
	results := t.results(len(c.GetEvents()))
	v := verdict{reject: t.precondition(c)}
	if v.reject == nil {
		v = t.judge(c, results)
	}
	t.remember(c, v, results)
	t.answer(v, results)
}

// results are n that nobody else has.
func (t *turn) results(n int) []EventResult {
	if n > len(t.spare) {
		return make([]EventResult, n)
	}
	out := t.spare[:n:n]
	t.spare = t.spare[n:]
	return out
}

// judge applies the events of a command, or leaves no trace.
func (t *turn) judge(c *rootv1.Command, results []EventResult) verdict {
	if !composite(c) {
		return t.event(c.GetEvents()[0], &results[0])
	}
	before, mark := t.Fork(), len(t.out.Changes)
	v := t.events(c.GetEvents(), results)
	if v.reject != nil {
		remembered := t.commands // unchanged, and still this State's to append to
		*t.State = *before
		t.commands = remembered
		clear(t.out.Changes[mark:])
		t.out.Changes = t.out.Changes[:mark]
	}
	return v
}

// composite reports whether the command may fail behind its first change.
func composite(c *rootv1.Command) bool {
	return len(c.GetEvents()) > 1 || len(c.GetEvents()[0].GetRegionsAssigned().GetAssignments()) > 1
}

// events applies events in order until one is rejected.
func (t *turn) events(events []*rootv1.Event, results []EventResult) verdict {
	all := already
	for i, e := range events {
		v := verdict{}
		if i > 0 {
			v.reject = t.judgeActor(e)
		}
		if v.reject == nil {
			v = t.event(e, &results[i])
		}
		if v.reject != nil {
			if len(events) > 1 {
				v.reject.Message = fmt.Sprintf("event %d: %s", i, v.reject.GetMessage())
			}
			return v
		}
		all.applied = all.applied || v.applied
	}
	return all
}

// precondition judges what comes before all events of a command.
func (t *turn) precondition(c *rootv1.Command) *rootv1.ErrorDetail {
	if t.cluster == nil && c.GetEvents()[0].GetClusterBootstrapped() == nil {
		return refuse(rootv1.Reason_REASON_CLUSTER_MISMATCH, "the cluster is not bootstrapped yet")
	}
	if d := t.CheckLevel(c); d != nil {
		return d
	}
	if era := Era(c.GetRequireEra()); era != 0 {
		if d := t.judgeEra(era); d != nil {
			return d
		}
	}
	for _, x := range c.GetRequireKeyspaces() {
		k, d := t.keyspaceOf(KeyspaceID(x.GetKeyspaceId()))
		switch {
		case d != nil:
			return d
		case k.record.GetVersion() != x.GetVersion():
			return versionStale(k.record, x.GetVersion())
		}
	}
	return t.judgeActor(c.GetEvents()[0]) // the others each in its turn
}

func (t *turn) answer(v verdict, results []EventResult) {
	r := Result{Outcome: rootv1.Outcome_OUTCOME_ALREADY_APPLIED, Token: t.token, Events: results}
	switch {
	case v.reject != nil:
		r.Outcome, r.Reject, r.Events = rootv1.Outcome_OUTCOME_REJECTED, v.reject, nil
	case v.applied:
		r.Outcome = rootv1.Outcome_OUTCOME_APPLIED
	}
	t.out.Results = append(t.out.Results, r)
}

// event applies one event. With a single event there is no way back: every
// judgement comes before the first change.
func (t *turn) event(e *rootv1.Event, r *EventResult) verdict {
	t.byPlanner = t.byEra && planners(e)
	switch k := e.GetKind().(type) {
	case *rootv1.Event_ClusterBootstrapped:
		return t.clusterBootstrapped(k.ClusterBootstrapped, r)
	case *rootv1.Event_FenceExtended:
		return t.fenceExtended(k.FenceExtended, r)
	case *rootv1.Event_TenureClaimed:
		return t.tenureClaimed(k.TenureClaimed, r)
	case *rootv1.Event_TenureRetired:
		return t.tenureRetired(k.TenureRetired, r)
	case *rootv1.Event_HandoverAdvanced:
		return t.handoverAdvanced(k.HandoverAdvanced, r)
	case *rootv1.Event_CoordinatorJoined:
		return t.coordinatorJoined(k.CoordinatorJoined, r)
	case *rootv1.Event_CoordinatorLeft:
		return t.coordinatorLeft(k.CoordinatorLeft)
	case *rootv1.Event_MemberJoined:
		return t.memberJoined(k.MemberJoined, r)
	case *rootv1.Event_MemberStateChanged:
		return t.memberStateChanged(k.MemberStateChanged, r)
	case *rootv1.Event_KeyspaceCreated:
		return t.keyspaceCreated(k.KeyspaceCreated, r)
	case *rootv1.Event_KeyspaceUpdated:
		return t.keyspaceUpdated(k.KeyspaceUpdated, r)
	case *rootv1.Event_KeyspaceDeleted:
		return t.keyspaceDeleted(k.KeyspaceDeleted)
	case *rootv1.Event_PinKeyRotated:
		return t.keyRotated(forPins, k.PinKeyRotated)
	case *rootv1.Event_RootPeerAdded:
		return t.rootPeerAdded(k.RootPeerAdded)
	case *rootv1.Event_RootPeerPromoted:
		return t.rootPeerPromoted(k.RootPeerPromoted.GetNodeId())
	case *rootv1.Event_RootPeersSettled:
		return t.rootPeersSettled(k.RootPeersSettled.GetNodeId())
	case *rootv1.Event_RootPeerDropped:
		return t.rootPeerDropped(k.RootPeerDropped.GetNodeId())
	case *rootv1.Event_FeatureLevelRaised:
		return t.featureLevelRaised(k.FeatureLevelRaised)
	case *rootv1.Event_TenureEnded:
		return t.tenureEnded(k.TenureEnded, r)
	case *rootv1.Event_ClusterSettingsChanged:
		return t.clusterSettingsChanged(k.ClusterSettingsChanged, r)
	case *rootv1.Event_AccessGranted:
		return t.accessGranted(k.AccessGranted, r)
	case *rootv1.Event_AccessRevoked:
		return t.accessRevoked(k.AccessRevoked, r)
	case *rootv1.Event_TokenKeyRotated:
		return t.tokenKeyRotated(k.TokenKeyRotated, r)
	case *rootv1.Event_TokenRevoked:
		return t.tokenRevoked(k.TokenRevoked)
	default:
		return t.regionEvent(e, r)
	}
}

// regionEvent is event for what changes regions.
func (t *turn) regionEvent(e *rootv1.Event, r *EventResult) verdict {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		return t.regionBootstrapped(k.RegionBootstrapped.GetRegion(), r)
	case *rootv1.Event_RegionPublished:
		return t.regionPublished(k.RegionPublished, r)
	case *rootv1.Event_RegionTombstoned:
		return t.regionTombstoned(k.RegionTombstoned)
	case *rootv1.Event_RegionsAssigned:
		return t.regionsAssigned(k.RegionsAssigned, r)
	case *rootv1.Event_PeerChangePlanned:
		return t.peerChangePlanned(k.PeerChangePlanned, r)
	case *rootv1.Event_SplitPlanned:
		return t.splitPlanned(k.SplitPlanned, r)
	case *rootv1.Event_MergePlanned:
		return t.mergePlanned(k.MergePlanned, r)
	case *rootv1.Event_MovePlanned:
		return t.movePlanned(k.MovePlanned, r)
	case *rootv1.Event_MoveReady:
		return t.moveReady(k.MoveReady, r)
	case *rootv1.Event_TransitionCompleted:
		return t.transitionCompleted(k.TransitionCompleted, r)
	case *rootv1.Event_TransitionCancelled:
		return t.transitionCancelled(k.TransitionCancelled, r)
	default:
		panic(fmt.Sprintf("state: apply: event %T passed the check for unknown kinds", k))
	}
}

// change tells the caller of a change.
func (t *turn) change(c Change) {
	c.Planned = t.byPlanner
	t.out.Changes = append(t.out.Changes, c)
}

// planners says whether the planner asks for events of the kind; if others may as well, it
// is the planner's by the reason that it gives.
func planners(e *rootv1.Event) bool {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionsAssigned:
		return !slices.ContainsFunc(k.RegionsAssigned.GetAssignments(), func(a *rootv1.Assignment) bool {
			return a.GetReason() <= rootv1.OperationReason_OPERATION_REASON_OPERATOR
		})
	case *rootv1.Event_RegionPublished, *rootv1.Event_RegionTombstoned, *rootv1.Event_KeyspaceUpdated, *rootv1.Event_KeyspaceDeleted:
		return false
	default:
		return true
	}
}

// refuse makes the detail of a rejection.
func refuse(r rootv1.Reason, format string, args ...any) *rootv1.ErrorDetail {
	return &rootv1.ErrorDetail{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// rejected makes a verdict of refuse.
func rejected(r rootv1.Reason, format string, args ...any) verdict {
	return verdict{reject: refuse(r, format, args...)}
}
