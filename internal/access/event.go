package access

import (
	"context"
	"slices"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// known is what a command is judged by.
type known struct{ *state.State }

// Asked judges a command that a caller asks a coordinator for, by the call it
// made: a published event by its kind, that of a typed call by the call's row. nil: it
// may be proposed. A refusal by a state that may be behind what the caller knows is
// worth nothing: a newer one has to be asked. So it is with Proposed.
func (g *Gate) Asked(ctx context.Context, c *rootv1.Command, st *state.State) error {
	if g == nil {
		return nil
	}
	p := principal.FromContext(ctx)
	method, _ := grpc.Method(ctx)
	for i, e := range c.GetEvents() {
		r := calls[method]
		if publishes(method) {
			r = kinds[number(e)].published
		}
		if err := (known{st}).event(p, r, "publish", e, i > 0); err != nil {
			return unlessRemembered(c, st, err)
		}
	}
	return nil
}

// unlessRemembered is a refusal, but of a command that was judged before: see (5).
func unlessRemembered(c *rootv1.Command, st *state.State, err error) error {
	if st.Remembers(c.GetIdentity()) {
		return nil
	}
	return err
}

// publishes says that the events of a call are its caller's.
func publishes(method string) bool {
	switch method {
	case coordinatorv1.Coordinator_PublishRootEvent_FullMethodName, coordinatorv1.Coordinator_PublishRootEvents_FullMethodName,
		coordinatorv1.Coordinator_PublishStream_FullMethodName, coordinatorv1.Coordinator_AssessRootEvent_FullMethodName:
		return true
	}
	return false
}

// Sign names who asks the root for a command: whoever called, or, if that is a
// coordinator, whom it names, and itself beside it: one that was taken over names anybody.
// Without a Gate nobody can vouch for a name.
func (g *Gate) Sign(ctx context.Context, c *rootv1.Command) {
	c.Via = ""
	if g == nil {
		c.Actor = ""
		return
	}
	p := principal.FromContext(ctx)
	switch by := p.Actor(); {
	case p.Role != principal.Coordinator || c.GetActor() == "":
		c.Actor = by
	case c.GetActor() != by:
		c.Via = by
	}
}

// Proposed judges a signed command that the root is asked for. nil: it may enter
// the log.
func (g *Gate) Proposed(ctx context.Context, c *rootv1.Command, st *state.State) error {
	if g == nil {
		return nil
	}
	p := principal.FromContext(ctx)
	by, err := actor(c.GetActor())
	if err != nil {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%v", err)
	}
	if by.Role == principal.Root || by.Role == principal.Coordinator && by.Name != p.Name {
		return denied("%v may not speak for %v: coordinators speak for members, clients and operators", p, by)
	}
	for i, e := range c.GetEvents() {
		if err := (known{st}).event(by, kinds[number(e)].proposed, "propose", e, i > 0); err != nil {
			return unlessRemembered(c, st, err)
		}
	}
	return nil
}

// number of an event's kind; 0: it has none that is known here.
func number(e *rootv1.Event) (n protoreflect.FieldNumber) {
	if e == nil {
		return 0
	}
	if f := e.ProtoReflect().WhichOneof(kindOf); f != nil {
		n = f.Number()
	}
	return n
}

// event judges one event by a row. What is not there is nobody's, and in no keyspace
// that a grant is for: until the event is applied somebody else may have made it. One
// behind others of its command may be about what they make: the root judges it in its turn.
func (k known) event(p principal.Principal, r rules, what string, e *rootv1.Event, behind bool) error {
	if behind && (r[p.Role] == Own || r[p.Role] == Granted) && state.InTurn(p.Role.String(), e) {
		return nil
	}
	switch r[p.Role] {
	case Allowed:
		return nil
	case Own:
		if k.owns(p.Name, e) && (p.Role != principal.Member || k.HostsAll(p.Name, e)) {
			return nil
		}
		about := "what is its own"
		switch e.GetKind().(type) {
		case *rootv1.Event_RegionPublished:
			about = "a region of its own that members report, nor about a new one with expected_epoch {0, 0}"
		case *rootv1.Event_SplitPlanned, *rootv1.Event_MergePlanned, *rootv1.Event_TransitionCompleted:
			about = "a split or a merge of regions of its own that members report"
		}
		return denied("%v may not %s %s: it is not about %s", p, what, kindName(e), about)
	case Granted:
		hidden := func() error {
			if e.GetKeyspaceCreated() != nil {
				return denied("%v may not %s %s: that needs a grant of %s for its name", p, what, kindName(e), verbWord(state.VerbOf(e)))
			}
			return denied("%v may not %s %s: what it is about is not there, or needs a grant of %s", p, what, kindName(e), verbWord(state.VerbOf(e)))
		}
		keyspaces := k.KeyspacesOf(e)
		if len(keyspaces) == 0 || slices.Contains(keyspaces, "") {
			return hidden()
		}
		for _, keyspace := range keyspaces {
			err := may(p, k.State, state.VerbOf(e), keyspace)
			if err != nil && (k.KeyspaceByName(keyspace) == nil || may(p, k.State, rootv1.Verb_VERB_READ, keyspace) != nil) {
				return hidden() // the name of a keyspace that it may not read would tell that it is there
			}
			if err != nil {
				return err
			}
		}
		return nil
	default:
		instead := ""
		if p.Role == principal.Member && state.InTurn(p.Role.String(), e) {
			instead = "; a member reports on its stream what it has let go of and is ready for, and removes a region by RemoveRegion"
		}
		return denied("%v may not %s %s: %s%s", p, what, kindName(e), whoMay(r), instead)
	}
}

// kindName is the name of an event's kind in rootv1.Event.
func kindName(e *rootv1.Event) string {
	if f := kindFields.ByNumber(number(e)); f != nil {
		return string(f.Name())
	}
	return "an event of no known kind"
}

// owns says whether an event is about the coordinator or member of a name, or
// about what is its own.
func (k known) owns(name string, event *rootv1.Event) bool {
	switch e := event.GetKind().(type) {
	case *rootv1.Event_FenceExtended:
		return k.holds(name, e.FenceExtended.GetEra())
	case *rootv1.Event_HandoverAdvanced:
		by := e.HandoverAdvanced.GetHolderId()
		return (by == "" || by == name) && k.holds(name, e.HandoverAdvanced.GetEra())
	case *rootv1.Event_TenureClaimed:
		return e.TenureClaimed.GetHolderId() == name
	case *rootv1.Event_TenureRetired:
		return e.TenureRetired.GetHolderId() == name
	case *rootv1.Event_CoordinatorJoined:
		return e.CoordinatorJoined.GetId() == name
	case *rootv1.Event_CoordinatorLeft:
		return e.CoordinatorLeft.GetId() == name

	case *rootv1.Event_MemberJoined:
		return e.MemberJoined.GetMember().GetId() == name
	case *rootv1.Event_MemberStateChanged:
		return e.MemberStateChanged.GetMemberId() == name && e.MemberStateChanged.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING

	}
	return k.Owns(name, event)
}

// holds says whether a coordinator holds an era. Of one that is over the root says
// so: its former holder has to hear that.
func (k known) holds(name string, era uint64) bool {
	t := k.Tenure()
	return era < t.GetEra() || era == t.GetEra() && t.GetHolderId() == name
}
