package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// secureWorld is a coordinator that believes its callers' names. Its root has members
// m1 and m2, region 1 of m1 and region 2 of m2 in keyspace t, whose regions are assigned.
func secureWorld(t testing.TB) *world {
	t.Helper()
	w := start(t, func(c *server.Config) {
		c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
	})
	w.must(t, join("m1"), join("m2"), create("t", state.DefaultSettings()))
	ks := w.root.state.KeyspaceByName("t").GetId()
	w.must(t, publish(1, ks, "", "m", 1, "m1"))
	w.must(t, publish(2, ks, "m", "", 1, "m2"))
	return w
}

func (w *world) as(t testing.TB, p principal.Principal) *grpc.ClientConn {
	conn := w.dial(t, impersonate.Client(p))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// owner is a caller of a role, by the name that the requests of this file call own.
func owner(role principal.Role) principal.Principal {
	if role == principal.Member {
		return impersonate.Named(role, "m1")
	}
	return impersonate.Named(role, "x")
}

// asked is a request of a method about what is m1's, or m2's. Regions stay: what is
// gone is nobody's own.
func asked(request proto.Message, own bool) proto.Message {
	name, region := "m1", uint64(1)
	if !own {
		name, region = "m2", 2
	}
	later := &rootv1.RegionEpoch{Version: 9, ConfVersion: 9}
	event := &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: region + 10, ExpectedEpoch: later, SplitKey: []byte("c")}}}
	switch r := request.(type) {
	case *coordinatorv1.RegisterMemberRequest:
		r.Member = &rootv1.Member{Id: name, Address: "a:1", Kind: "store", StartNonce: 7}
	case *coordinatorv1.DrainMemberRequest:
		r.MemberId = name
	case *coordinatorv1.StoreHeartbeatRequest:
		r.MemberId, r.Incarnation = name, 1
	case *coordinatorv1.MemberFrame:
		r.Sequence, r.Hello = 1, &coordinatorv1.MemberHello{MemberId: name, Incarnation: 1}
	case *coordinatorv1.RegionHeartbeatRequest:
		r.MemberId, r.Incarnation, r.Region = name, 1, &rootv1.Region{Id: region}
	case *coordinatorv1.RemoveRegionRequest:
		r.RegionId, r.ExpectedEpoch = region, later
	case *coordinatorv1.PublishRootEventRequest:
		r.Event = event
	case *coordinatorv1.PublishRootEventsRequest:
		r.Commands = []*rootv1.Command{{Events: []*rootv1.Event{event}}}
	case *coordinatorv1.AssessRootEventRequest:
		r.Event = event
	case *coordinatorv1.AssignRegionsRequest:
		r.Assignments = []*rootv1.Assignment{{RegionId: region}}
	case *coordinatorv1.CreateKeyspaceRequest:
		r.Name = "t"
	case *coordinatorv1.UpdateKeyspaceRequest:
		r.Name, r.ExpectedVersion, r.Settings = "t", 1, state.DefaultSettings()
	case *coordinatorv1.DeleteKeyspaceRequest:
		r.Name, r.ExpectedVersion = "t", 1
	}
	return request
}

func tombstone(id uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
}

// TestEveryCallByEveryRole makes every call that a coordinator has as every role, of
// what is the caller's own and of what is another's: it is refused where the table
// says so, changes nothing then, and nowhere else.
func TestEveryCallByEveryRole(t *testing.T) {
	for _, role := range principal.Roles {
		w, p := secureWorld(t), owner(role)
		w.must(t, publish(11, 1, "", "m", 1, "m1"), publish(12, 1, "m", "", 1, "m2")) // which they report
		methods := impersonate.Methods(t, within(t), w.as(t, impersonate.Named(principal.Operator, "op")))
		if len(methods) < 40 {
			t.Fatalf("reflection shows %d calls", len(methods))
		}
		conn := w.as(t, p)
		for _, m := range methods {
			for _, own := range []bool{false, true} { // the foreign one first: own ones change things
				rule := access.Of(impersonate.FullMethod(m), role)
				want := rule == access.No || rule == access.Granted || rule == access.Own && !own
				hash, asks := w.rootHash()
				ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
				request := asked(impersonate.Request(t, m), own)
				if f, ok := request.(*coordinatorv1.MemberFrame); ok && role == principal.Coordinator {
					f.Hello.RelayedBy = map[bool]string{true: p.Name, false: "another"}[own]
				}
				err := impersonate.Call(t, ctx, conn, m, request)
				cancel()
				if got := impersonate.Denied(t, err, p); got != want {
					t.Errorf("%v calls %s (%v, own: %t): %v", p, m.FullName(), rule, own, err)
				}
				if after, again := w.rootHash(); want && (after != hash || again != asks) {
					t.Errorf("%v calls %s: refused, and the root was changed or asked", p, m.FullName())
				}
			}
		}
		metrics := w.server.Access()
		if n := metrics.Refused[role.String()]["permission_denied"]; n == 0 || metrics.Principals[p.Actor()].Calls < n {
			t.Errorf("%v was not counted: %+v", p, metrics)
		}
	}
}

func (w *world) rootHash() (hash uint64, asked int) {
	w.root.mu.Lock()
	defer w.root.mu.Unlock()
	return w.root.state.Hash(), len(w.root.asked)
}

// TestRule10AMemberPassesNothingOn: a member speaks for its own name also when it says that
// it passes a stream on.
func TestRule10AMemberPassesNothingOn(t *testing.T) {
	w := secureWorld(t)
	conn := w.as(t, impersonate.Named(principal.Member, "m1"))
	for name, hello := range map[string]*coordinatorv1.MemberHello{
		"for another, by its own name": {MemberId: "m2", Incarnation: 1, RelayedBy: "m1"},
		"for another, to the holder":   {MemberId: "m2", Incarnation: 1, RelayTo: "c2"},
		"for itself, as a coordinator": {MemberId: "m1", Incarnation: 1, RelayedBy: "c2"},
	} {
		stream, err := coordinatorv1.NewCoordinatorClient(conn).MemberStream(within(t))
		if err == nil {
			err = stream.Send(&coordinatorv1.MemberFrame{Sequence: 1, Hello: hello})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if reason.Of(err) != rootv1.Reason_REASON_PERMISSION_DENIED {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryKindByEveryRole publishes every kind of event as every role, about what is
// the caller's own and about what is another's.
func TestEveryKindByEveryRole(t *testing.T) {
	for _, role := range principal.Roles {
		for i := range impersonate.Kinds().Len() {
			kind := impersonate.Kinds().Get(i)
			w := start(t, func(c *server.Config) {
				c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
			})
			own, foreign := impersonate.Rooted(t, func(e *rootv1.Event) *rootv1.EventResult { return w.must(t, e).GetEvents()[0] })
			p := owner(role)
			c := coordinatorv1.NewCoordinatorClient(w.as(t, p))
			for n, about := range []impersonate.Things{foreign, own} {
				e := impersonate.Event(kind, about)
				rule, _ := access.OfEvent(e, role)
				hash, asks := w.rootHash()
				answer, err := c.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
				if err == nil && answer.GetResults()[0].GetError() != nil {
					err = &reason.Error{Detail: answer.GetResults()[0].GetError()}
				}
				want := rule == access.No || rule == access.Granted || rule == access.Own && n == 0
				refused := impersonate.Denied(t, err, p) || state.Publishable(e) != nil && reason.Of(err) == rootv1.Reason_REASON_INVALID_REQUEST
				if refused != want {
					t.Errorf("%v publishes %s (%v, own: %t): %v", p, kind.Name(), rule, n == 1, err)
				}
				if after, again := w.rootHash(); want && (after != hash || again != asks) {
					t.Errorf("%v publishes %s: refused, and the root was changed or asked", p, kind.Name())
				}
			}
			w.end(t)
		}
	}
}

// grant has the root grant a verb.
func (w *world) grant(t testing.TB, who, keyspace string, verbs ...rootv1.Verb) {
	t.Helper()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
		Grant: &rootv1.Grant{Principal: who, Keyspace: keyspace, Verbs: verbs},
	}}})
}

// TestGrantsCloseAKeyspace: reads are anybody's until the first grant, then those'
// whom one names; a change needs a grant always.
func TestGrantsCloseAKeyspace(t *testing.T) {
	w := secureWorld(t)
	a, b := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a"))), coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "b")))
	reads := map[string]func(c coordinatorv1.CoordinatorClient) error{
		"GetRegionByKey": func(c coordinatorv1.CoordinatorClient) error {
			_, err := c.GetRegionByKey(within(t), &coordinatorv1.GetRegionByKeyRequest{Keyspace: "t", Key: []byte("a")})
			return err
		},
		"GetRegionsByKeys": func(c coordinatorv1.CoordinatorClient) error {
			_, err := c.GetRegionsByKeys(within(t), &coordinatorv1.GetRegionsByKeysRequest{Keyspace: "t", Keys: [][]byte{[]byte("a")}})
			return err
		},
		"RouteStream": func(c coordinatorv1.CoordinatorClient) error {
			stream, err := c.RouteStream(within(t))
			if err != nil {
				return err
			}
			_ = stream.Send(&coordinatorv1.GetRegionsByKeysRequest{Keyspace: "t", Keys: [][]byte{[]byte("a")}})
			_ = stream.Send(&coordinatorv1.GetRegionsByKeysRequest{Keyspace: "t", Keys: [][]byte{[]byte("a")}})
			var refusal error
			for range 2 { // the refusal of a message does not end the stream
				answer, err := stream.Recv()
				if err != nil {
					t.Fatalf("the stream ended: %v", err)
				}
				if answer.GetError() != nil {
					refusal = &reason.Error{Detail: answer.GetError()}
				}
			}
			return refusal
		},
		"GetRegion": func(c coordinatorv1.CoordinatorClient) error {
			_, err := c.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 1})
			return err
		},
		"ScanRegions": func(c coordinatorv1.CoordinatorClient) error {
			_, err := c.ScanRegions(within(t), &coordinatorv1.ScanRegionsRequest{Keyspace: "t"})
			return err
		},
		"GetKeyspace": func(c coordinatorv1.CoordinatorClient) error {
			_, err := c.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "t"})
			return err
		},
		"WatchRegions": func(c coordinatorv1.CoordinatorClient) error { return firstOfWatch(t, c, "t") },
		"WatchRegions of all": func(c coordinatorv1.CoordinatorClient) error {
			return firstOfWatch(t, c, "")
		},
	}
	listed := func(c coordinatorv1.CoordinatorClient) string {
		all, err := c.ListKeyspaces(within(t), &coordinatorv1.ListKeyspacesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, k := range all.GetKeyspaces() {
			names = append(names, k.GetName())
		}
		return strings.Join(names, " ")
	}
	remove := func(c coordinatorv1.CoordinatorClient, id uint64) error {
		_, err := c.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: id})
		return err
	}

	for name, read := range reads {
		if err := read(b); err != nil {
			t.Errorf("%s of an open keyspace: %v", name, err)
		}
	}
	refused(t, remove(a, 1), rootv1.Reason_REASON_PERMISSION_DENIED)

	open := listed(b)
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_READ, rootv1.Verb_VERB_PUBLISH)
	for name, read := range reads {
		if err := read(a); err != nil && name != "WatchRegions of all" {
			t.Errorf("%s by who has a grant: %v", name, err)
		}
		if name == "WatchRegions of all" {
			refused(t, read(b), rootv1.Reason_REASON_PERMISSION_DENIED)
			continue
		}
		refused(t, read(b), rootv1.Reason_REASON_NOT_FOUND) // what it may not see is not there
	}
	position := w.root.token().Proto()
	byName := map[string]func(keyspace string) error{
		"GetRegionByKey": func(k string) error {
			return errorOf(b.GetRegionByKey(within(t), &coordinatorv1.GetRegionByKeyRequest{Keyspace: k, Key: []byte("a")}))
		},
		"GetRegionsByKeys": func(k string) error {
			return errorOf(b.GetRegionsByKeys(within(t), &coordinatorv1.GetRegionsByKeysRequest{Keyspace: k, Keys: [][]byte{[]byte("a")}}))
		},
		"ScanRegions": func(k string) error {
			return errorOf(b.ScanRegions(within(t), &coordinatorv1.ScanRegionsRequest{Keyspace: k}))
		},
		"WatchRegions": func(k string) error { return firstOfWatch(t, b, k) },
		"WatchRegions behind a position": func(k string) error {
			stream, err := b.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: k, After: position})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"DeleteKeyspace": func(k string) error {
			return errorOf(b.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{Name: k, ExpectedVersion: 1}))
		},
		"CreateKeyspace": func(k string) error {
			return errorOf(b.CreateKeyspace(within(t), &coordinatorv1.CreateKeyspaceRequest{Name: k}))
		},
		"UpdateKeyspace": func(k string) error {
			return errorOf(b.UpdateKeyspace(within(t), &coordinatorv1.UpdateKeyspaceRequest{Name: k, ExpectedVersion: 1, Settings: state.DefaultSettings()}))
		},
	}
	for name, read := range byName {
		hidden, missing := read("t"), read("99")
		if reason.Of(missing) == 0 || strings.ReplaceAll(fmt.Sprint(hidden), `"t"`, `"99"`) != fmt.Sprint(missing) {
			t.Errorf("%s tells a keyspace that is hidden from one that is not there: %v, %v", name, hidden, missing)
		}
	}
	if hidden, missing := remove(b, 1), remove(b, 99); hidden.Error() != missing.Error() {
		t.Errorf("a region that is hidden is told from one that is not there: %v, %v", hidden, missing)
	}
	for hidden, missing := range map[error]error{
		errorOf(b.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 1})):   errorOf(b.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 99})),
		errorOf(b.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "t"})): errorOf(b.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "99"})),
	} {
		said := strings.NewReplacer("region 1", "region 99", `"t"`, `"99"`).Replace(hidden.Error())
		if said != missing.Error() {
			t.Errorf("what is hidden is told from what is not there: %v, %v", hidden, missing)
		}
	}
	if got := listed(b); got == open || strings.Contains(" "+got+" ", " t ") || listed(a) != open {
		t.Errorf("b sees keyspaces %q, a %q", got, listed(a))
	}
	refused(t, remove(b, 1), rootv1.Reason_REASON_PERMISSION_DENIED)
	if err := remove(a, 1); err != nil {
		t.Error(err)
	}
	_, err := a.DeleteKeyspace(within(t), &coordinatorv1.DeleteKeyspaceRequest{Name: "t", ExpectedVersion: 1})
	refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
	w.grant(t, "client/a", "*", rootv1.Verb_VERB_READ)
	if err := reads["WatchRegions of all"](a); err != nil {
		t.Error(err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// firstOfWatch is the refusal of a watch, if it is refused.
func firstOfWatch(t testing.TB, c coordinatorv1.CoordinatorClient, keyspace string) error {
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	stream, err := c.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: keyspace})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// TestRevokedWatchEnds: a watch whose grant is taken back ends with the refusal, and
// shows nothing that was changed from then on.
func TestRevokedWatchEnds(t *testing.T) {
	w := secureWorld(t)
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_READ)
	c := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a")))
	stream, err := c.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{Keyspace: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	w.grant(t, "client/b", "t", rootv1.Verb_VERB_READ)
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "client/a", Keyspace: "t"}}})
	at := w.root.token().Index
	w.must(t, tombstone(1))
	for {
		m, err := stream.Recv()
		if err != nil {
			refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
			return
		}
		if m.GetToken().GetIndex() > at {
			t.Fatalf("it was shown %v", m)
		}
	}
}

// TestChangesNameTheirCaller: the root is told who asked by whoever took the call,
// whatever the caller says, and why in the caller's words; nobody is named where
// nobody can vouch for a name.
func TestChangesNameTheirCaller(t *testing.T) {
	because := why.With(within(t), "it burns")
	last := func(w *world) *rootv1.Command {
		w.root.mu.Lock()
		defer w.root.mu.Unlock()
		return w.root.asked[len(w.root.asked)-1]
	}
	secure, plain := secureWorld(t), start(t)
	plain.must(t, join("m1"))
	op := impersonate.Named(principal.Operator, "op")
	for actor, w := range map[string]*world{op.Actor(): secure, "": plain} {
		conn := w.conn
		if actor != "" {
			conn = w.as(t, op)
		}
		c := coordinatorv1.NewCoordinatorClient(conn)
		if _, err := c.DrainMember(because, &coordinatorv1.DrainMemberRequest{MemberId: "m1"}); err != nil {
			t.Fatal(err)
		}
		if got := last(w); got.GetActor() != actor || got.GetWhy() != "it burns" {
			t.Errorf("a typed change came as %q, because %q", got.GetActor(), got.GetWhy())
		}
		forged := &rootv1.Command{Events: []*rootv1.Event{create("k", state.DefaultSettings())}, Actor: "operator/other", Why: "words"}
		if _, err := c.PublishRootEvents(because, &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{forged}}); err != nil {
			t.Fatal(err)
		}
		if got := last(w); got.GetActor() != actor || got.GetWhy() != "words" {
			t.Errorf("a published change came as %q, because %q", got.GetActor(), got.GetWhy())
		}
		lines := &coordinatorv1.DrainMemberRequest{MemberId: "m1", Undo: true, Reason: "back\r\n\tagain"}
		if _, err := c.DrainMember(why.With(within(t), "two\nlines\x00"), lines); err != nil {
			t.Fatal(err)
		}
		if got := last(w); got.GetWhy() != "two lines" || got.GetEvents()[0].GetMemberStateChanged().GetReason() != "back again" {
			t.Errorf("words of several lines came as %v", got)
		}
		forged = proto.CloneOf(forged)
		forged.Events[0].GetKeyspaceCreated().Name, forged.Why = "k2", "words\nof two lines"
		if _, err := c.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{forged}}); err != nil {
			t.Fatal(err)
		}
		if got := last(w); got.GetWhy() != "words of two lines" {
			t.Errorf("a published change came because %q", got.GetWhy())
		}
		for _, words := range []string{strings.Repeat("x", state.MaxWhyBytes+1), "x\xff"} {
			_, err := c.DrainMember(why.With(within(t), words), &coordinatorv1.DrainMemberRequest{MemberId: "m1", Undo: true})
			refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
		}
	}
}

// TestRefusedCommandCostsItsNeighboursNothing: of the commands of one message those
// that may are judged, the others rejected, each by itself.
func TestRefusedCommandCostsItsNeighboursNothing(t *testing.T) {
	w := secureWorld(t)
	w.must(t, publish(11, 1, "", "m", 1, "m1"), publish(12, 1, "m", "", 1, "m2"))
	given := publish(11, 1, "", "m", 1, "m2")
	given.GetRegionPublished().Region.Epoch.ConfVersion = 2
	c := coordinatorv1.NewCoordinatorClient(w.as(t, owner(principal.Member)))
	stream, err := c.PublishStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := stream.Send(&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{
			{Events: []*rootv1.Event{publish(12, 1, "m", "", 9, "m1")}},
			{Events: []*rootv1.Event{given}, Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: 1}}, // the second time it is m2's
			{Events: []*rootv1.Event{create("k", state.DefaultSettings())}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var got []rootv1.Reason
		for _, r := range answer.GetResults() {
			got = append(got, r.GetError().GetReason())
		}
		denied := rootv1.Reason_REASON_PERMISSION_DENIED
		if len(got) != 3 || got[0] != denied || got[1] == denied || got[2] != denied {
			t.Fatalf("got %v (%v)", got, answer)
		}
	}
	if w.root.state.Region(11).Owners[0].Member != "m2" || w.root.state.Region(12).Epoch.Version != 1 {
		t.Error("the wrong region was given away")
	}
}

// TestRepetitionOfWhatIsNoLongerAllowed: a change that was made is answered as it was
// when it is sent again, also by who could not make it any more.
func TestRepetitionOfWhatIsNoLongerAllowed(t *testing.T) {
	w := secureWorld(t)
	c := coordinatorv1.NewCoordinatorClient(w.as(t, owner(principal.Member)))
	request := &coordinatorv1.RemoveRegionRequest{RegionId: 1, Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: w.root.token().Index}}
	for range 2 {
		if _, err := c.RemoveRegion(within(t), request); err != nil {
			t.Fatal(err)
		}
		w.catchUp(t)
	}
	again := proto.CloneOf(request)
	again.Identity.Sequence = 2
	_, err := c.RemoveRegion(within(t), again)
	refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
	// A number that claims to be new is judged as new.
	again.Identity.Sequence, again.Identity.KnownIndex = 1, w.root.token().Index
	_, err = c.RemoveRegion(within(t), again)
	refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
}

// TestReportsOfOthersRegionsCountNothing: a member that reports a region which it
// does not own is told what is rooted, and moves no leader.
func TestReportsOfOthersRegionsCountNothing(t *testing.T) {
	w := secureWorld(t)
	report := func(member string) {
		t.Helper()
		c := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Member, member)))
		_, err := c.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{
			MemberId: member, Incarnation: w.root.state.Member(state.MemberID(member)).GetIncarnation(), Leader: true, Region: w.root.state.Region(2).Proto(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	report("m2")
	report("m1")
	got, err := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a"))).GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 2})
	if err != nil || got.GetLeaderMemberId() != "m2" {
		t.Errorf("leader %q, %v", got.GetLeaderMemberId(), err)
	}
}
