package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/strangers"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a closed keyspace has, and nobody else has anything that is called so.
const (
	canarySpace, canaryKey = "canary-space", "canary-key"
	canaryRegion           = 777001 // m1's, and about to be m3's
	canaryFormer           = 777002 // m2's
	canaryTaken            = 777003 // was taken from its owner, which breaks a guarantee
)

var canary = regexp.MustCompile(`canary|777\d\d\d`)

// target is what a call is about: what a closed keyspace has, or what is not there.
type target struct {
	keyspace, key, transition, member string
	region                            uint64
	id                                uint32
}

// said hides in a text what was asked for.
func (x target) said(text string) string {
	return strings.NewReplacer(x.keyspace, "K", x.key, "k", x.transition, "X", fmt.Sprint(x.region), "R", `\"`+x.member+`\"`, "M").Replace(text)
}

// asking is one caller's call, and what it was told.
type asking struct {
	*coordinatorv1.ReadOptions
	w     *world
	ctx   context.Context
	c     coordinatorv1.CoordinatorClient
	who   principal.Principal
	about target
	told  []string
}

// tell notes an answer, or a refusal.
func tell[M proto.Message](a *asking, m M, err error) {
	if err != nil {
		detail := proto.CloneOf(reason.From(err))
		if detail == nil {
			a.told = append(a.told, err.Error())
			return
		}
		unsure(detail.ProtoReflect())
		a.told = append(a.told, prototext.Format(detail))
		return
	}
	m = proto.CloneOf(m)
	unsure(m.ProtoReflect())
	a.told = append(a.told, prototext.Format(m))
}

// unsure takes out of a message what differs from call to call.
func unsure(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() != nil && (f.Message().Name() == "Disclosure" || f.Message().Name() == "RootToken"), strings.HasSuffix(string(f.Name()), "_millis"), f.Name() == "incarnation", f.Name() == "revision", f.Name() == "frames":
			m.Clear(f)
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				unsure(v.List().Get(i).Message())
			}
		default:
			unsure(v.Message())
		}
		return true
	})
}

// events are changes of what is asked about.
func (a *asking) events() []*rootv1.Event {
	at := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
	me := &rootv1.Owner{MemberId: a.who.Name, PeerId: 9, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}
	mine := publish(90, a.about.id, a.about.key+"2", a.about.key+"3", 1, a.who.Name)
	mine.GetRegionPublished().ExpectedEpoch = &rootv1.RegionEpoch{}
	return []*rootv1.Event{
		mine,
		tombstone(a.about.region),
		publish(a.about.region, a.about.id, a.about.key, "", 9, a.who.Name),
		{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{RegionId: a.about.region, Owners: []*rootv1.Owner{me}, AtOnce: true}}}}},
		{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: a.about.region, ExpectedEpoch: at, SplitKey: []byte(a.about.key + "1"), RightRegionId: 91}}},
		{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{RegionId: a.about.region, ExpectedEpoch: at, From: &rootv1.Owner{MemberId: "m1", PeerId: 1}, To: me}}},
		{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{TransitionId: a.about.transition, Incarnation: 1}}},
		{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: a.about.transition}}},
		{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: a.about.transition}}},
		{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: a.about.keyspace, ExpectedVersion: 1, Settings: state.DefaultSettings()}}},
		{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: a.about.keyspace, ExpectedVersion: 1}}},
	}
}

// commands are those events, a command each.
func (a *asking) commands() *coordinatorv1.PublishRootEventsRequest {
	r := &coordinatorv1.PublishRootEventsRequest{}
	for _, e := range a.events() {
		r.Commands = append(r.Commands, &rootv1.Command{Events: []*rootv1.Event{e}})
	}
	return r
}

// incarnation is the caller's as a member.
func (a *asking) incarnation() uint64 { return max(1, a.w.incarnation(state.MemberID(a.who.Name))) }

// probes make each call of the table about a target. by has what a stranger lacks: what it gets
// shows that there was something to be had.
var probes = map[protoreflect.Name]struct {
	by  principal.Principal
	ask func(*asking)
}{
	"GetRegionByKey": {friend, func(a *asking) {
		r, err := a.c.GetRegionByKey(a.ctx, &coordinatorv1.GetRegionByKeyRequest{Keyspace: a.about.keyspace, Key: []byte(a.about.key), Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"GetRegionsByKeys": {friend, func(a *asking) {
		r, err := a.c.GetRegionsByKeys(a.ctx, &coordinatorv1.GetRegionsByKeysRequest{Keyspace: a.about.keyspace, Keys: [][]byte{[]byte(a.about.key)}, Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"RouteStream": {friend, func(a *asking) {
		s, err := a.c.RouteStream(a.ctx)
		if err == nil {
			err = s.Send(&coordinatorv1.GetRegionsByKeysRequest{RequestId: 1, Keyspace: a.about.keyspace, Keys: [][]byte{[]byte(a.about.key)}, Read: a.ReadOptions})
		}
		first(a, s, err)
	}},
	"GetRegion": {friend, func(a *asking) {
		r, err := a.c.GetRegion(a.ctx, &coordinatorv1.GetRegionRequest{RegionId: a.about.region, Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"ScanRegions": {friend, func(a *asking) {
		r, err := a.c.ScanRegions(a.ctx, &coordinatorv1.ScanRegionsRequest{Keyspace: a.about.keyspace, Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"WatchRegions": {friend, func(a *asking) {
		for _, after := range []*rootv1.RootToken{nil, a.w.root.token().Proto()} {
			s, err := a.c.WatchRegions(a.ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: a.about.keyspace, Read: a.ReadOptions, After: after, Members: true})
			if after == nil || a.who != friend { // who may watch waits for what is new
				first(a, s, err)
			}
		}
		for _, open := range []string{"", "default"} {
			s, err := a.c.WatchRegions(a.ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: open, Read: a.ReadOptions, Members: true})
			first(a, s, err)
		}
	}},
	"ListTransitions": {friend, func(a *asking) {
		for _, region := range []uint64{0, a.about.region} {
			r, err := a.c.ListTransitions(a.ctx, &coordinatorv1.ListTransitionsRequest{RegionId: region, IncludeEnded: true, Read: a.ReadOptions})
			tell(a, r, err)
		}
	}},
	"GetKeyspace": {friend, func(a *asking) {
		r, err := a.c.GetKeyspace(a.ctx, &coordinatorv1.GetKeyspaceRequest{Name: a.about.keyspace, Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"ListKeyspaces": {friend, func(a *asking) {
		r, err := a.c.ListKeyspaces(a.ctx, &coordinatorv1.ListKeyspacesRequest{Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"ResolvePin": {friend, func(a *asking) {
		r, err := a.c.ResolvePin(a.ctx, &coordinatorv1.ResolvePinRequest{Keyspace: a.about.keyspace, Pin: "a.pin", Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"PinKeys": {friend, func(a *asking) {
		r, err := a.c.PinKeys(a.ctx, &coordinatorv1.PinKeysRequest{Keyspace: a.about.keyspace, Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"RegionNotes": {friend, func(a *asking) {
		for _, r := range []*coordinatorv1.RegionNotesRequest{{RegionId: a.about.region}, {Keyspace: a.about.keyspace}} {
			r, err := a.c.RegionNotes(a.ctx, r)
			tell(a, r, err)
		}
	}},
	"Plan": {friend, func(a *asking) {
		for _, name := range []string{"", a.about.keyspace} {
			r, err := a.c.Plan(a.ctx, &coordinatorv1.PlanRequest{Keyspace: name})
			tell(a, r, err)
		}
	}},
	"ListMembers": {friend, func(a *asking) {
		for _, id := range []string{"", "m1"} {
			r, err := a.c.ListMembers(a.ctx, &coordinatorv1.ListMembersRequest{MemberId: id, Read: a.ReadOptions})
			tell(a, r, err)
		}
	}},
	"Status": {friend, func(a *asking) {
		r, err := a.c.Status(a.ctx, &coordinatorv1.StatusRequest{})
		tell(a, r, err)
	}},
	"Witness": {friend, func(a *asking) {
		r, err := a.c.Witness(a.ctx, &coordinatorv1.WitnessRequest{Read: a.ReadOptions})
		tell(a, r, err)
	}},

	"PublishRootEvent": {friend, func(a *asking) {
		for _, e := range a.events() {
			r, err := a.c.PublishRootEvent(a.ctx, &coordinatorv1.PublishRootEventRequest{Event: e})
			tell(a, r, err)
		}
	}},
	"PublishRootEvents": {friend, func(a *asking) {
		r, err := a.c.PublishRootEvents(a.ctx, a.commands())
		tell(a, r, err)
	}},
	"PublishStream": {friend, func(a *asking) {
		s, err := a.c.PublishStream(a.ctx)
		if err == nil {
			err = s.Send(a.commands())
		}
		first(a, s, err)
	}},
	"AssessRootEvent": {friend, func(a *asking) {
		for _, e := range a.events() {
			r, err := a.c.AssessRootEvent(a.ctx, &coordinatorv1.AssessRootEventRequest{Event: e, Read: a.ReadOptions})
			tell(a, r, err)
		}
	}},
	"RemoveRegion": {friend, func(a *asking) {
		r, err := a.c.RemoveRegion(a.ctx, &coordinatorv1.RemoveRegionRequest{RegionId: a.about.region})
		tell(a, r, err)
	}},
	"CreateKeyspace": {friend, func(a *asking) {
		r, err := a.c.CreateKeyspace(a.ctx, &coordinatorv1.CreateKeyspaceRequest{Name: a.about.keyspace})
		tell(a, r, err)
	}},
	"UpdateKeyspace": {friend, func(a *asking) {
		r, err := a.c.UpdateKeyspace(a.ctx, &coordinatorv1.UpdateKeyspaceRequest{Name: a.about.keyspace, ExpectedVersion: 1, Settings: state.DefaultSettings()})
		tell(a, r, err)
	}},
	"DeleteKeyspace": {friend, func(a *asking) {
		r, err := a.c.DeleteKeyspace(a.ctx, &coordinatorv1.DeleteKeyspaceRequest{Name: a.about.keyspace, ExpectedVersion: 1})
		tell(a, r, err)
	}},
	"AssignRegions": {friend, func(a *asking) {
		r, err := a.c.AssignRegions(a.ctx, &coordinatorv1.AssignRegionsRequest{Assignments: []*rootv1.Assignment{{RegionId: a.about.region, AtOnce: true}}})
		tell(a, r, err)
	}},
	"ClaimRegions": {friend, func(a *asking) {
		r, err := a.c.ClaimRegions(a.ctx, &coordinatorv1.ClaimRegionsRequest{Keyspace: a.about.keyspace, Keys: [][]byte{[]byte(a.about.key)}, Read: a.ReadOptions})
		tell(a, r, err)
	}},

	"RegisterMember": {host, func(a *asking) {
		r, err := a.c.RegisterMember(a.ctx, &coordinatorv1.RegisterMemberRequest{Member: &rootv1.Member{Id: a.who.Name, Address: "h:1", StartNonce: 7, Keyspaces: []string{a.about.keyspace}}, Follows: a.incarnation()})
		tell(a, r, err)
	}},
	"DrainMember": {host, func(a *asking) {
		r, err := a.c.DrainMember(a.ctx, &coordinatorv1.DrainMemberRequest{MemberId: a.about.member})
		tell(a, r, err)
	}},
	"StoreHeartbeat": {host, func(a *asking) {
		r, err := a.c.StoreHeartbeat(a.ctx, &coordinatorv1.StoreHeartbeatRequest{MemberId: a.about.member, Incarnation: a.incarnation()})
		tell(a, r, err)
	}},
	"RegionHeartbeat": {host, func(a *asking) {
		for _, version := range []uint64{1, 9} {
			region := publish(a.about.region, a.about.id, a.about.key, "", version, a.who.Name).GetRegionPublished().GetRegion()
			r, err := a.c.RegionHeartbeat(a.ctx, &coordinatorv1.RegionHeartbeatRequest{MemberId: a.who.Name, Incarnation: a.incarnation(), Region: region})
			tell(a, r, err)
		}
	}},
	"MemberStream": {host, func(a *asking) {
		all := &coordinatorv1.MemberAnswer{} // that the frame was taken may be told behind what is the caller's
		s, err := a.c.MemberStream(a.ctx)
		if err == nil {
			err = s.Send(&coordinatorv1.MemberFrame{
				Sequence: 1, Complete: true, Hello: &coordinatorv1.MemberHello{MemberId: a.who.Name, Incarnation: a.incarnation()},
				Regions: []*coordinatorv1.RegionReport{{RegionId: a.about.region, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING}},
			})
		}
		for err == nil || errors.Is(err, io.EOF) {
			var answer *coordinatorv1.MemberAnswer
			if answer, err = s.Recv(); err != nil {
				break
			}
			if proto.Merge(all, answer); all.GetSequence() == 1 {
				_ = s.CloseSend()
				break
			}
		}
		if all.GetTerms() != nil { // who holds the Tenure is told to everybody, when this coordinator knows it
			all.Terms.HolderId, all.Terms.Coordinators = "", nil
		}
		tell(a, all, err)
	}},

	"FailMember": {operator, func(a *asking) {
		r, err := a.c.FailMember(a.ctx, &coordinatorv1.FailMemberRequest{MemberId: a.about.member, Incarnation: a.w.incarnation("m1")})
		tell(a, r, err)
	}},
	"RemoveMember": {operator, func(a *asking) {
		r, err := a.c.RemoveMember(a.ctx, &coordinatorv1.RemoveMemberRequest{MemberId: a.about.member})
		tell(a, r, err)
	}},
	"ReleaseRegion": {operator, func(a *asking) {
		r, err := a.c.ReleaseRegion(a.ctx, &coordinatorv1.ReleaseRegionRequest{RegionId: a.about.region})
		tell(a, r, err)
	}},
	"ApplyPlan": {operator, func(a *asking) {
		r, err := a.c.ApplyPlan(a.ctx, &coordinatorv1.ApplyPlanRequest{PlanId: a.about.keyspace})
		tell(a, r, err)
	}},
	"GrantAccess": {operator, func(a *asking) {
		r, err := a.c.GrantAccess(a.ctx, &coordinatorv1.GrantAccessRequest{Grant: &rootv1.Grant{Principal: "client/x", Keyspace: a.about.keyspace, Verbs: []rootv1.Verb{rootv1.Verb_VERB_READ}}})
		tell(a, r, err)
	}},
	"RevokeAccess": {operator, func(a *asking) {
		r, err := a.c.RevokeAccess(a.ctx, &coordinatorv1.RevokeAccessRequest{Principal: friend.Actor(), Keyspace: a.about.keyspace})
		tell(a, r, err)
	}},
	"ListGrants": {operator, func(a *asking) {
		r, err := a.c.ListGrants(a.ctx, &coordinatorv1.ListGrantsRequest{Read: a.ReadOptions})
		tell(a, r, err)
	}},
	"CheckAccess": {operator, func(a *asking) {
		r, err := a.c.CheckAccess(a.ctx, &coordinatorv1.CheckAccessRequest{Principal: friend.Actor(), Verb: rootv1.Verb_VERB_ADMIN, Keyspace: a.about.keyspace, Read: a.ReadOptions})
		tell(a, r, err)
	}},
}

// first notes the first answer of a stream.
func first[M any](a *asking, s interface{ Recv() (*M, error) }, err error) {
	var m *M
	if err == nil || errors.Is(err, io.EOF) {
		m, err = s.Recv()
	}
	tell(a, any(m).(proto.Message), err)
}

var (
	friend   = impersonate.Named(principal.Client, "friend")
	host     = impersonate.Named(principal.Member, "m1")
	operator = impersonate.Named(principal.Operator, "o")
)

// closedWorld is a coordinator that knows of a closed keyspace, and of one that was closed and is
// gone, whatever there is to be known.
func closedWorld(t *testing.T, options ...grpc.ServerOption) (w *world, hidden, missing target) {
	t.Helper()
	w = start(t, func(c *server.Config) {
		c.Access, c.ServerOptions = access.New(), options
		c.Notes, c.Planner = canaries{}, canaries{}
		c.Rounds = func() []*coordinatorv1.BalanceRound { return []*coordinatorv1.BalanceRound{{Keyspace: canarySpace}} }
		c.Scaling = func() []*coordinatorv1.ScalingSignal { return []*coordinatorv1.ScalingSignal{{Keyspace: canarySpace}} }
	})
	settings := state.DefaultSettings()
	settings.Placement = rootv1.Placement_PLACEMENT_ASSIGNED
	settings.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: "http://canary.example/place"}
	m1 := join("m1")
	m1.GetMemberJoined().Member.Keyspaces = []string{canarySpace}
	w.must(t, create(canarySpace, settings), create("canary-gone", state.DefaultSettings()), m1, join("m2"), join("m3"), join("m9"))
	id, gone := w.root.state.KeyspaceByName(canarySpace).GetId(), w.root.state.KeyspaceByName("canary-gone").GetId()
	w.must(t, publish(canaryFormer, id, "", "canary-a", 1, "m2"), publish(canaryTaken, id, "canary-a", canaryKey, 1, "m1"), publish(canaryRegion, id, canaryKey, "", 1, "m1"))
	w.must(t, publish(777009, gone, "", "", 1, "m2"))
	at := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 777009, ExpectedEpoch: at, SplitKey: []byte("canary-cut"), RightRegionId: 777010}}})
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: w.root.state.PendingTransition(777009).GetId()}}})
	w.must(t, tombstone(777009))
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "canary-gone"}}})
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: canaryRegion, ExpectedEpoch: at, From: &rootv1.Owner{MemberId: "m1", PeerId: 1}, To: &rootv1.Owner{MemberId: "m3", PeerId: 9},
	}}})
	all := []rootv1.Verb{rootv1.Verb_VERB_READ, rootv1.Verb_VERB_CLAIM, rootv1.Verb_VERB_PUBLISH, rootv1.Verb_VERB_ADMIN}
	w.grant(t, friend.Actor(), canarySpace, all...)
	w.grant(t, friend.Actor(), "canary-gone", all...)
	w.grant(t, "member/m1", canarySpace, rootv1.Verb_VERB_HOST)
	w.grant(t, "member/m3", canarySpace, rootv1.Verb_VERB_HOST)
	w.must(t, tenureClaim("c9", 0))
	w.must(t, handoverAdvance("c9", 1, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED))
	w.must(t, handoverAdvance("c9", 1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED))
	conn := grpc.ClientConnInterface(w.as(t, operator))
	if len(options) == 0 { // nobody is known by a certificate: over HTTP alone
		inside, done, err := w.server.As(operator, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		conn = inside
	}
	o := coordinatorv1.NewCoordinatorClient(conn)
	ctx := metadata.AppendToOutgoingContext(within(t), clusterid.Key, clusterid.String(clusterID))
	if _, err := o.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	w.catchUp(t)
	for i := 0; ; i++ { // until one is judged: the log is followed from some entry on
		taken, err := w.root.Propose(ctx, &rootv1.Command{RequireEra: 1, Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{
			{RegionId: canaryTaken, Owners: []*rootv1.Owner{{MemberId: []string{"m3", "m1"}[i%2]}}, AtOnce: true, Reason: rootv1.OperationReason_OPERATION_REASON_ORPHANED},
		}}}}}})
		if err != nil || taken[0].GetError() != nil {
			t.Fatal(taken, err)
		}
		w.catchUp(t)
		r, err := o.Witness(ctx, &coordinatorv1.WitnessRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(r.GetAnomalies(), func(a *coordinatorv1.WitnessAnomaly) bool { return a.GetRegionId() == canaryTaken }) {
			break
		}
	}
	hidden = target{canarySpace, canaryKey, w.root.state.PendingTransition(canaryRegion).GetId(), "m1", canaryRegion, id}
	return w, hidden, target{"nothing-here", "no-such-key", "no-such-transition", "nobody", 888001, 99}
}

// canaries are Notes and a Planner that know of one keyspace.
type canaries struct{}

func (canaries) RegionNote(id state.RegionID) *coordinatorv1.RegionNote {
	return &coordinatorv1.RegionNote{RegionId: uint64(id), Failing: "canary"}
}

func (canaries) RegionNotes(state.KeyspaceID) ([]*coordinatorv1.RegionNote, bool) {
	return []*coordinatorv1.RegionNote{{RegionId: canaryRegion}}, false
}

func (canaries) Stuck() []*coordinatorv1.Stuck {
	return []*coordinatorv1.Stuck{{Keyspace: canarySpace, RegionId: canaryRegion}}
}

func (canaries) ReleaseRegion(_ context.Context, id state.RegionID, _, _ string) (bool, state.Token, error) {
	return id == canaryRegion, state.Token{}, nil
}

func (canaries) Plan(_ context.Context, req *coordinatorv1.PlanRequest, may func(string) bool) (*coordinatorv1.PlanResponse, error) {
	if name := req.GetKeyspace(); name != "" && (name != canarySpace || !may(name)) {
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %q", name)
	}
	if !may(canarySpace) {
		return &coordinatorv1.PlanResponse{}, nil
	}
	return &coordinatorv1.PlanResponse{Keyspaces: []*coordinatorv1.PlannedKeyspace{{Keyspace: canarySpace}}}, nil
}

func (canaries) ApplyPlan(_ context.Context, id, _, _ string) (*coordinatorv1.ApplyPlanResponse, error) {
	if id != canarySpace {
		return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no plan")
	}
	return &coordinatorv1.ApplyPlanResponse{}, nil
}

// TestAStrangerHasNothingOfAClosedKeyspace makes each call that bears a keyspace as who has no
// grant there: about what is hidden it is told what it is told about what is not there, sees nothing
// of any closed keyspace, and changes nothing. Who has a grant is told something else by the same call.
func TestAStrangerHasNothingOfAClosedKeyspace(t *testing.T) {
	for name := range strangers.Coordinator {
		if probes[name].ask == nil {
			t.Errorf("%s has a row and is not tried", name)
		}
	}
	// By the row: a name is told by the refusal, and a proxy finds out whom it has to refuse.
	tells := map[protoreflect.Name]bool{"RegisterMember": strangers.Coordinator["RegisterMember"].Sees != "", "CheckAccess": strangers.Coordinator["CheckAccess"].Sees != ""}
	for name, p := range probes {
		t.Run(string(name), func(t *testing.T) {
			w, hidden, missing := closedWorld(t, impersonate.Server())
			ask := func(who principal.Principal, about target, freshness coordinatorv1.Freshness) string {
				a := &asking{ReadOptions: &coordinatorv1.ReadOptions{Freshness: freshness}, w: w, ctx: within(t), c: coordinatorv1.NewCoordinatorClient(w.as(t, who)), who: who, about: about}
				p.ask(a)
				w.catchUp(t)
				return about.said(strings.Join(a.told, "\n"))
			}
			callers := []principal.Principal{impersonate.Named(principal.Client, "x"), impersonate.Named(principal.Member, "m9"), impersonate.Named(principal.Proxy, "x"), impersonate.Named(principal.Member, "m2")}
			if name == "MemberStream" {
				callers = callers[:3] // m2 is shown the region that it owns from before
			}
			for _, freshness := range []coordinatorv1.Freshness{coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT, coordinatorv1.Freshness_FRESHNESS_STRONG} {
				for _, who := range callers {
					before := w.root.changes()
					got := ask(who, hidden, freshness)
					if w.root.changes() != before {
						t.Errorf("%v has changed something: %s", who, got)
					}
					want := ask(who, missing, freshness)
					if got != want && !tells[name] {
						t.Errorf("%v tells what is hidden from what is not there:\n%s\nand\n%s", who, got, want)
					}
					if seen := canary.FindString(got + want); seen != "" {
						t.Errorf("%v sees %q:\n%s", who, seen, got+want)
					}
				}
			}
			// The control: what was hidden is there, and this call shows or changes it.
			strong := coordinatorv1.Freshness_FRESHNESS_STRONG
			none := ask(p.by, missing, strong)
			before := w.root.changes()
			all := ask(p.by, hidden, strong)
			if w.root.changes() == before && all == none && !canary.MatchString(all) {
				t.Errorf("%v, who has a grant, is told the same about what is there and what is not: %s", p.by, all)
			}
		})
	}
}

// What REST puts together itself of several calls shows a stranger nothing either.
func TestAStrangerReadsNothingOverREST(t *testing.T) {
	w, _, _ := closedWorld(t)
	stranger, sees := w.rest(t, by(impersonate.Named(principal.Client, "x"))), w.rest(t, by(operator))
	seen := 0
	for _, path := range []string{
		"/health", "/api/coordinator/instances", "/api/coordinator/metrics", "/v1/status", "/v1/witness?read.freshness=strong", "/v1/keyspaces", "/v1/members", "/v1/transitions?include_ended=true",
	} {
		if canary.MatchString(over(t, sees, jsonRequest("GET", path, "")).Body.String()) {
			seen++
		}
		if a := over(t, stranger, jsonRequest("GET", path, "")); a.Code != http.StatusOK || canary.MatchString(a.Body.String()) {
			t.Errorf("GET %s: %d %s", path, a.Code, a.Body)
		}
	}
	if seen < 6 {
		t.Errorf("an operator sees something of the closed keyspace by %d of them", seen)
	}
}

// A command that is sent again is answered with what there is now: who has lost its grant since is
// told that it was done, and nothing of the keyspace.
func TestARepetitionShowsNothingOfAClosedKeyspace(t *testing.T) {
	w, ks, m1 := closedToMembers(t)
	a := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a")))
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_ADMIN)
	w.grant(t, "client/b", "t", rootv1.Verb_VERB_READ)
	w.grant(t, "member/m1", "r", rootv1.Verb_VERB_HOST)
	w.catchUp(t)
	settings := state.DefaultSettings()
	settings.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: "http://secret.example/place"}
	update := func() (proto.Message, error) {
		return a.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{
			Name: "t", ExpectedVersion: 1, Settings: settings, Identity: &rootv1.CommandIdentity{Origin: 71, Sequence: 1},
		})
	}
	split := func() (proto.Message, error) {
		return m1.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{
			Event:    &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 21, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, SplitKey: []byte("a-secret"), RightRegionId: 31}}},
			Identity: &rootv1.CommandIdentity{Origin: 72, Sequence: 1},
		})
	}
	shown := regexp.MustCompile(`secret|owners`)
	for name, send := range map[string]func() (proto.Message, error){"UpdateKeyspace": update, "PublishRootEvent": split} {
		for _, again := range []bool{false, true} {
			r, err := send()
			if err != nil || !shown.MatchString(prototext.Format(r)) {
				t.Fatalf("%s, again: %t: %v, %v", name, again, r, err)
			}
		}
	}
	for who, keyspace := range map[string]string{"client/a": "t", "member/m1": "r"} {
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: who, Keyspace: keyspace}}})
	}
	w.grant(t, "member/m2", "r", rootv1.Verb_VERB_HOST)
	moved := publish(21, ks, "", "m", 1, "m2")
	moved.GetRegionPublished().Region.Epoch.ConfVersion = 2
	w.must(t, moved)
	for name, send := range map[string]func() (proto.Message, error){"UpdateKeyspace": update, "PublishRootEvent": split} {
		r, err := send()
		if err != nil || shown.MatchString(prototext.Format(r)) {
			t.Errorf("%s, without the grant: %v, %v", name, r, err)
		}
	}
}

// A command that is sent again by who may only read by now is answered without the secrets, also those of later.
func TestARepetitionShowsAReaderNoSecrets(t *testing.T) {
	w := secureWorld(t)
	a := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a")))
	settings := state.DefaultSettings()
	settings.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: "https://user:secret1@place.example/a"}
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_ADMIN)
	w.catchUp(t)
	shows := func(want int) {
		t.Helper()
		r, err := a.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{
			Name: "t", ExpectedVersion: 1, Settings: settings, Identity: &rootv1.CommandIdentity{Origin: 73, Sequence: 1},
		})
		text := prototext.Format(r)
		if err != nil || len(regexp.MustCompile(`secret\d`).FindAllString(text, -1)) != want || !strings.Contains(text, "place.example/a") {
			t.Errorf("%v, %s, want %d secrets", err, text, want)
		}
	}
	shows(1)
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "client/a", Keyspace: "t"}}})
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_READ)
	next := proto.CloneOf(settings)
	next.Policy.HookUrl = "https://user:secret2@place.example/a?secret3"
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
		Name: "t", ExpectedVersion: w.root.state.KeyspaceByName("t").GetVersion(), Settings: next,
	}}})
	w.catchUp(t)
	shows(0)
}

// A user, a password and a query in the address of a hook are shown to who may change the keyspace, and
// to no reader, whatever it reads by.
func TestReadersSeeNoSecretsOfHooks(t *testing.T) {
	w := secureWorld(t)
	settings := state.DefaultSettings()
	settings.Policy = &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_HOOK, HookUrl: "https://user:secret1@place.example/a?secret2"}
	settings.Scaling = &rootv1.Scaling{Enabled: true, UpPermille: 800, DownPermille: 100, HookUrl: "https://scale.example/b?secret3"}
	w.must(t, create("hooked", settings))
	w.grant(t, "client/admin", "hooked", rootv1.Verb_VERB_ADMIN)
	w.grant(t, "client/reader", "hooked", rootv1.Verb_VERB_READ)
	w.catchUp(t)
	secrets := regexp.MustCompile(`secret\d`)
	for who, want := range map[principal.Principal]int{
		impersonate.Named(principal.Client, "admin"): 3, operator: 3, impersonate.Named(principal.Client, "reader"): 0,
	} {
		c := coordinatorv1.NewCoordinatorClient(w.as(t, who))
		got, err := c.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "hooked"})
		if text := prototext.Format(got); err != nil || len(secrets.FindAllString(text, -1)) != want || !strings.Contains(text, "place.example/a") || !strings.Contains(text, "scale.example/b") {
			t.Errorf("GetKeyspace of %v: %v, %s", who, err, text)
		}
		all, err := c.ListKeyspaces(within(t), &coordinatorv1.ListKeyspacesRequest{})
		if text := prototext.Format(all); err != nil || len(secrets.FindAllString(text, -1)) != want || !strings.Contains(text, "place.example/a") {
			t.Errorf("ListKeyspaces of %v: %v, %s", who, err, text)
		}
		for _, after := range []*rootv1.RootToken{nil, w.root.token().Proto()} { // what there is, and what changes
			stream, err := c.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "hooked", After: after})
			if err == nil && after != nil {
				settings = proto.CloneOf(settings)
				settings.Policy.HookTimeoutMillis++
				w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
					Name: "hooked", ExpectedVersion: w.root.state.KeyspaceByName("hooked").GetVersion(), Settings: settings,
				}}})
			}
			var text string
			for err == nil && !strings.Contains(text, "place.example/a") {
				var m *coordinatorv1.WatchRegionsResponse
				m, err = stream.Recv()
				text += prototext.Format(m)
			}
			if err != nil || secrets.MatchString(text) {
				t.Errorf("WatchRegions of %v: %v, %s", who, err, text)
			}
		}
	}
}
