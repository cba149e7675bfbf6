package server_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// secure is a root that believes its callers' names. Coordinator c1 holds era 1;
// members m1 and m2 own regions 1 and 2 of keyspace t.
func secure(t *testing.T) (*fakeReplica, *served) {
	t.Helper()
	r := newFakeReplica(t)
	must := func(e *rootv1.Event) {
		t.Helper()
		if got := r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}})[0]; got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatalf("%v: %v", e, got)
		}
	}
	must(joined("m1", 1).GetEvents()[0])
	must(joined("m2", 1).GetEvents()[0])
	must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "t", Settings: state.DefaultSettings()}}})
	ks := r.st.KeyspaceByName("t").GetId()
	must(published(ks, 1, "", "m", "m1"))
	must(published(ks, 2, "m", "", "m2"))
	must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 9, HolderAddress: "c:1", Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}, RetireDigest: make([]byte, 32),
	}}})
	return r, serve(t, r, func(c *server.Config) {
		c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
		c.RaiseAfter = -1
	})
}

func published(ks uint32, id uint64, start, end, owner string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		Id: id, KeyspaceId: ks, StartKey: []byte(start), EndKey: []byte(end), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
		Owners: []*rootv1.Owner{{MemberId: owner, PeerId: id, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}},
	}}}}
}

func (s *served) as(p principal.Principal) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///a:1", impersonate.Client(p),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// askedRoot is a request of a method in the name of c1, or of c2.
func askedRoot(request proto.Message, own bool) proto.Message {
	name := "c1"
	if !own {
		name = "c2"
	}
	fields := request.ProtoReflect().Descriptor().Fields()
	if f := fields.ByName("cluster_id"); f != nil {
		request.ProtoReflect().Set(f, protoreflect.ValueOfUint64(cluster))
	}
	switch r := request.(type) {
	case *rootv1.TailRequest:
		r.ReaderId, r.FeatureLevel = name, state.SupportedLevel()
	case *rootv1.SnapshotRequest:
		r.ReaderId, r.FeatureLevel = name, state.SupportedLevel()
	case *rootv1.ClaimTenureRequest:
		r.Claim = &rootv1.TenureClaimed{HolderId: name}
	case *rootv1.ConfirmTenureRequest:
		r.Era, r.HolderId = 1, name
	case *rootv1.ProposeRequest:
		r.Commands = []*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
			Id: name, Address: "c:1", Incarnation: 9,
		}}}}}}
	}
	return request
}

// TestEveryCallByEveryRole makes every call that a root peer has as every role, in
// the caller's own name and in another's.
func TestEveryCallByEveryRole(t *testing.T) {
	for _, role := range principal.Roles {
		r, s := secure(t)
		p := impersonate.Named(role, "c1")
		ctx, cancel := within(proctest.Patience)
		defer cancel()
		methods := impersonate.Methods(t, ctx, s.as(impersonate.Named(principal.Operator, "op")))
		if len(methods) < 12 {
			t.Fatalf("reflection shows %d calls", len(methods))
		}
		conn := s.as(p)
		for _, m := range methods {
			for _, own := range []bool{false, true} {
				rule := access.Of(impersonate.FullMethod(m), role)
				hash, claims := r.View().State.Hash(), len(r.claims)
				err := impersonate.Call(t, ctx, conn, m, askedRoot(impersonate.Request(t, m), own))
				want := rule == access.No || rule == access.Own && !own
				if role == principal.Operator && m.Input().Name() == "ProposeRequest" {
					want = true // judged by its event, which is a coordinator's own
				}
				if got := impersonate.Denied(t, err, p); got != want {
					t.Errorf("%v calls %s (%v, own: %t): %v", p, m.FullName(), rule, own, err)
				}
				if want && (r.View().State.Hash() != hash || len(r.claims) != claims) {
					t.Errorf("%v calls %s: refused, and something was done", p, m.FullName())
				}
			}
		}
		if n := s.Metrics().Access.Refused[role.String()]["permission_denied"]; n == 0 || s.Metrics().Access.Principals[p.Actor()].Calls < n {
			t.Errorf("%v was not counted: %+v", p, s.Metrics().Access)
		}
	}
}

// TestEveryKindByEveryRole proposes every kind of event in the name of every role, as
// a coordinator does, and directly as those do that may propose, about what is the
// caller's own and about what is another's.
func TestEveryKindByEveryRole(t *testing.T) {
	for _, role := range principal.Roles[1:] {
		for i := range impersonate.Kinds().Len() {
			kind := impersonate.Kinds().Get(i)
			r := newFakeReplica(t)
			own, foreign := impersonate.Rooted(t, func(e *rootv1.Event) *rootv1.EventResult {
				got := r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}})[0]
				if got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
					t.Fatalf("%v: %v", e, got)
				}
				return got.GetEvents()[0]
			})
			s := serve(t, r, func(c *server.Config) {
				c.Access, c.ServerOptions, c.RaiseAfter = access.New(), []grpc.ServerOption{impersonate.Server()}, -1
			})
			p, sender := impersonate.Named(role, "m1"), impersonate.Named(principal.Coordinator, "m1")
			if role == principal.Operator && i%2 == 0 {
				sender = p
			}
			root := rootv1.NewRootClient(s.as(sender))
			for n, about := range []impersonate.Things{foreign, own} {
				e := impersonate.Event(kind, about)
				_, rule := access.OfEvent(e, role)
				hash := r.View().State.Hash()
				ctx, cancel := within(proctest.Patience)
				answer, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}, Actor: p.Actor()}}})
				cancel()
				if err != nil {
					t.Fatalf("%s: %v", kind.Name(), err)
				}
				refusal := answer.GetResults()[0].GetError()
				want := rule == access.No || rule == access.Granted || rule == access.Own && n == 0
				if kind.Name() == "fence_extended" || kind.Name() == "handover_advanced" {
					want = true // nobody holds an era here
				}
				want = want || role == principal.Coordinator && kind.Name() == "transition_completed" // in its era alone
				denied := refusal.GetReason() == rootv1.Reason_REASON_PERMISSION_DENIED || e.GetFeatureLevelRaised() != nil && refusal.GetReason() == rootv1.Reason_REASON_INVALID_REQUEST
				if denied != want {
					t.Errorf("%v proposes %s (%v, own: %t): %v", p, kind.Name(), rule, n == 1, refusal)
				}
				if want && r.View().State.Hash() != hash {
					t.Errorf("%v proposes %s: refused, and something was changed", p, kind.Name())
				}
			}
			s.stop()
		}
	}
}

// TestEventsByWhoAsks: the root judges a command by whom its sender names, if a
// coordinator sends it, and by the sender otherwise; it names who asked in the log.
func TestEventsByWhoAsks(t *testing.T) {
	operator, c1 := impersonate.Named(principal.Operator, "op"), impersonate.Named(principal.Coordinator, "c1")
	fence := func(era uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Mandate: rootv1.Mandate_MANDATE_TSO, Era: era, Floor: 1 << 30, Size: 1}}}
	}
	remove := func(id uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
	}
	granted := &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
		Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "t", Verbs: []rootv1.Verb{rootv1.Verb_VERB_READ}},
	}}}
	for _, c := range []struct {
		what   string
		sender principal.Principal
		names  string
		event  *rootv1.Event
		denied bool
		actor  string
	}{
		{"a holder extends its fence", c1, "", fence(1), false, "coordinator/c1"},
		{"another one extends it", impersonate.Named(principal.Coordinator, "c2"), "", fence(1), true, ""},
		{"a fence of an era that is not", c1, "", fence(2), true, ""},
		{"a fence for an operator", c1, "operator/op", fence(1), true, ""},
		{"an operator's own fence", operator, "", fence(1), true, ""},
		{"one speaks for another coordinator", c1, "coordinator/c2", remove(1), true, ""},
		{"one speaks for a root peer", c1, "root/1", remove(1), true, ""},
		{"a member's own region", c1, "member/m1", remove(1), false, "member/m1 through coordinator/c1"},
		{"another member's region", c1, "member/m1", remove(2), true, ""},
		{"a region that is not there", c1, "member/m1", remove(3), true, ""},
		{"a client without a grant", c1, "client/a", remove(1), true, ""},
		{"an operator's region", c1, "operator/op", remove(1), false, "operator/op through coordinator/c1"},
		{"an operator who names another", operator, "operator/other", remove(1), false, "operator/op"},
		{"a planner's", c1, "", remove(1), false, "coordinator/c1"},
		{"a coordinator grants by itself", c1, "", granted, true, ""},
		{"a client grants", c1, "client/a", granted, true, ""},
		{"an operator grants", c1, "operator/op", granted, false, "operator/op through coordinator/c1"},
		{"root peers' events", operator, "", &rootv1.Event{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: 3}}}, true, ""},
		{"a bootstrap", c1, "operator/op", &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{}}}, true, ""},
		{"an event without a kind", operator, "", &rootv1.Event{}, true, ""},
	} {
		r, s := secure(t)
		hash := r.View().State.Hash()
		ctx, cancel := within(proctest.Patience)
		root := rootv1.NewRootClient(s.as(c.sender))
		neighbour := &rootv1.Command{Events: joined("m3", 1).GetEvents(), Actor: "operator/op"}
		resp, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{{Events: []*rootv1.Event{c.event}, Actor: c.names, Via: "coordinator/c9"}}})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		detail := resp.GetResults()[0].GetError()
		if denied := detail.GetReason() == rootv1.Reason_REASON_PERMISSION_DENIED; denied != c.denied {
			t.Errorf("%s: %v", c.what, resp)
		}
		if c.denied {
			if r.View().State.Hash() != hash {
				t.Errorf("%s: refused, and something was changed", c.what)
			}
			stream, err := root.ProposeStream(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a refusal is an answer, and costs neighbours nothing
				refused := &rootv1.Command{Events: []*rootv1.Event{c.event}, Actor: c.names}
				if err := stream.Send(&rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{refused, neighbour}}); err != nil {
					t.Fatal(err)
				}
				got, err := stream.Recv()
				if err != nil || got.GetError() != nil || got.GetResults()[0].GetError() == nil || got.GetResults()[1].GetError() != nil {
					t.Fatalf("%s: %v, %v", c.what, got, err)
				}
			}
		} else if actor := r.lastActor(t); actor != c.actor {
			t.Errorf("%s: the log names %q", c.what, actor)
		}
		cancel()
	}
}

// lastActor is who asked for the last command of the log, and through whom.
func (r *fakeReplica) lastActor(t *testing.T) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var entry rootv1.Entry
	if err := proto.Unmarshal(r.log[len(r.log)-1].GetData(), &entry); err != nil {
		t.Fatal(err)
	}
	last := entry.GetCommands()[len(entry.GetCommands())-1]
	if last.GetVia() != "" {
		return last.GetActor() + " through " + last.GetVia()
	}
	return last.GetActor()
}

// TestRefusalIsOfThePresent: a peer that does not lead refuses nobody for what it has
// not heard of, but sends it to the leader.
func TestRefusalIsOfThePresent(t *testing.T) {
	r, s := secure(t)
	r.lead(2)
	ctx, cancel := within(proctest.Patience)
	defer cancel()
	_, err := rootv1.NewRootClient(s.as(impersonate.Named(principal.Coordinator, "c1"))).Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{
		{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2}}}}, Actor: "member/m1"},
	}})
	if got := reason.Of(err); got != rootv1.Reason_REASON_NOT_LEADER {
		t.Errorf("got %v", err)
	}
}

// A refusal of a request in a stream counts for its caller as that of a call does.
func TestRefusalsInStreamsAreTheCallers(t *testing.T) {
	r, s := secure(t)
	r.lead(2)
	ctx, cancel := within(proctest.Patience)
	defer cancel()
	p := impersonate.Named(principal.Coordinator, "c1")
	root, req := rootv1.NewRootClient(s.as(p)), &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{joined("m3", 1)}}
	if _, err := root.Propose(ctx, req); reason.Of(err) != rootv1.Reason_REASON_NOT_LEADER {
		t.Errorf("by a call: %v", err)
	}
	stream, err := root.ProposeStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.GetError().GetReason() != rootv1.Reason_REASON_NOT_LEADER {
		t.Errorf("in a stream: %v, %v", got, err)
	}
	if m := s.Metrics().Access; m.Refused["coordinator"]["not_leader"] != 2 || m.Principals[p.Actor()].Refused != 2 {
		t.Errorf("counted %+v, want 2 refusals", m)
	}
}

// TestNobodyIsNamedWithoutCertificates: where anybody may say anything no name goes
// into the log.
func TestNobodyIsNamedWithoutCertificates(t *testing.T) {
	r := newFakeReplica(t)
	ctx, cancel := within(proctest.Patience)
	defer cancel()
	_, err := serve(t, r, nil).root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{
		{Events: joined("m", 1).GetEvents(), Actor: "operator/op", Via: "coordinator/c9"},
	}})
	if actor := r.lastActor(t); err != nil || actor != "" {
		t.Errorf("%q, %v", actor, err)
	}
}

// TestSecretsGoToCoordinators: where readers have names a tail has a secret for
// coordinators alone, whatever id others give; a snapshot has it for an operator's
// backup too.
func TestSecretsGoToCoordinators(t *testing.T) {
	r, s := secure(t)
	secret := bytes.Repeat([]byte("sEcReT!?"), state.KeySecretBytes/8)
	r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{Secret: secret}}}}}})
	want := r.View().State
	for _, c := range []struct {
		p                   principal.Principal
		id                  string
		inTail, inSnapshots bool
	}{
		{impersonate.Named(principal.Coordinator, "c1"), "c1", true, true},
		{impersonate.Named(principal.Operator, "op"), "", false, false},
		{impersonate.Named(principal.Operator, "op"), "c1", false, true},
	} {
		ctx, cancel := within(proctest.Patience)
		root := rootv1.NewRootClient(s.as(c.p))
		_, tail, err := tailed(ctx, root, c.id, secret, want.Token().Index)
		if err != nil || tail != c.inTail {
			t.Errorf("tail of %v as %q: secret %t, %v", c.p, c.id, tail, err)
		}
		_, snapshot, err := copied(ctx, root, c.id, secret, want.Token().Index)
		if err != nil || snapshot != c.inSnapshots {
			t.Errorf("snapshot of %v as %q: secret %t, %v", c.p, c.id, snapshot, err)
		}
		cancel()
	}
}

// TestPrincipalsAreBounded: callers with ever new names take no memory beyond a bound.
func TestPrincipalsAreBounded(t *testing.T) {
	_, s := secure(t)
	ctx, cancel := within(proctest.Patience)
	defer cancel()
	for n := range access.MaxPrincipals + 10 {
		conn := s.as(impersonate.Named(principal.Operator, fmt.Sprintf("op%d", n)))
		if _, err := rootv1.NewRootClient(conn).Status(ctx, &rootv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if m := s.Metrics().Access; len(m.Principals) != access.MaxPrincipals || m.Others.Calls != 10 {
		t.Errorf("%d principals, %d calls of others", len(m.Principals), m.Others.Calls)
	}
}
