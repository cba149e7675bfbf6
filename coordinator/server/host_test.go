package server_test

import (
	"slices"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// TestAMemberWithoutGrantsHasNothingOfAClosedKeyspace: what members may see, own, change or be given of
// a keyspace that a grant names is said by grants of host, also of regions that they own from before.
func TestAMemberWithoutGrantsHasNothingOfAClosedKeyspace(t *testing.T) {
	const denied, hidden = rootv1.Reason_REASON_PERMISSION_DENIED, rootv1.Reason_REASON_NOT_FOUND
	w, ctx := secureWorld(t), within(t)
	as := func(role principal.Role, name string) coordinatorv1.CoordinatorClient {
		return coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(role, name)))
	}
	operator, m2, m3 := as(principal.Operator, "o"), as(principal.Member, "m2"), as(principal.Member, "m3")
	named := join("m1")
	named.GetMemberJoined().Member.Keyspaces = []string{"default", "t"}
	w.must(t, named, games())
	if _, err := operator.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	grant := func(who, keyspace string, verb rootv1.Verb) string {
		t.Helper()
		r, err := operator.GrantAccess(ctx, &coordinatorv1.GrantAccessRequest{Grant: &rootv1.Grant{Principal: who, Keyspace: keyspace, Verbs: []rootv1.Verb{verb}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetHint()
	}
	hint := grant("client/tenant", "t", rootv1.Verb_VERB_PUBLISH)
	if want := "2 members that own regions there may not any more: let them by nokv access grant 'member/*' host 't'"; hint != want {
		t.Errorf("the hint is %q, want %q", hint, want)
	}
	grant("client/tenant", "games", rootv1.Verb_VERB_READ)
	ks := w.root.state.KeyspaceByName("t").GetId()
	board := func() *rootv1.Event {
		e := point("k", "m3")
		e.GetRegionPublished().Region.KeyspaceId = w.root.state.KeyspaceByName("games").GetId()
		return e
	}
	strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}

	register := func(keyspaces ...string) error {
		_, err := m3.RegisterMember(ctx, &coordinatorv1.RegisterMemberRequest{Member: &rootv1.Member{Id: "m3", Address: "h:1", StartNonce: 7, Keyspaces: keyspaces}})
		return err
	}
	refused(t, register("t"), denied)
	refused(t, register("default", "games"), denied)
	if err := register(); err != nil {
		t.Fatal(err)
	}
	_, err := m3.PublishRootEvent(ctx, &coordinatorv1.PublishRootEventRequest{Event: publish(3, ks, "x", "z", 1, "m3")})
	refused(t, err, denied)
	_, err = operator.PublishRootEvent(ctx, &coordinatorv1.PublishRootEventRequest{Event: board()})
	refused(t, err, denied)
	_, err = m3.GetRegionByKey(ctx, &coordinatorv1.GetRegionByKeyRequest{Keyspace: "t", Key: []byte("a"), Read: strong})
	refused(t, err, hidden)
	_, err = m3.ClaimRegions(ctx, &coordinatorv1.ClaimRegionsRequest{Keyspace: "games", Keys: [][]byte{[]byte("k")}})
	refused(t, err, hidden)

	// m2 has had a region there.
	remove := func() error {
		_, err := m2.RemoveRegion(ctx, &coordinatorv1.RemoveRegionRequest{RegionId: 2})
		return err
	}
	keys := func() error {
		_, err := m2.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: "t", Read: strong})
		return err
	}
	refused(t, keys(), hidden)
	grant("member/m2", "t", rootv1.Verb_VERB_READ)
	refused(t, keys(), denied)
	refused(t, remove(), denied)

	seen := func(c coordinatorv1.CoordinatorClient, id string) []string {
		t.Helper()
		r, err := c.ListMembers(ctx, &coordinatorv1.ListMembersRequest{MemberId: id, Read: strong})
		if err != nil || len(r.GetMembers()) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		return r.GetMembers()[0].GetMember().GetKeyspaces()
	}
	watch, err := m3.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default", Members: true})
	if err != nil {
		t.Fatal(err)
	}
	watched := func(id string) []string {
		t.Helper()
		for {
			r, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.GetMembers() {
				if c.GetMember().GetId() == id {
					return c.GetMember().GetKeyspaces()
				}
			}
		}
	}
	for what, got := range map[string][]string{"listed": seen(m3, "m1"), "watched": watched("m1")} {
		if !slices.Equal(got, []string{"default", "?"}) {
			t.Errorf("%s: m1 takes regions of %q", what, got)
		}
	}
	if got := seen(as(principal.Member, "m1"), "m1"); !slices.Equal(got, []string{"default", "t"}) {
		t.Errorf("m1 sees of itself %q", got)
	}

	if hint := grant("member/m*", "*", rootv1.Verb_VERB_HOST); hint != "" {
		t.Errorf("the hint is %q", hint)
	}
	if err := register("t"); err != nil {
		t.Error(err)
	}
	if got := watched("m3"); !slices.Equal(got, []string{"?"}) {
		t.Errorf("watched: m3 takes regions of %q", got)
	}
	w.must(t, board())
	if err := keys(); err != nil {
		t.Error(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if got := seen(m3, "m1"); !slices.Equal(got, []string{"default", "t"}) {
		t.Errorf("by a grant: m1 takes regions of %q", got)
	}
	if st := w.root.state; st.Region(state.RegionID(2)) != nil {
		t.Error("region 2 is there")
	}
}

// TestGrantsNeedCertificates: where nobody is known by name a grant is refused.
func TestGrantsNeedCertificates(t *testing.T) {
	w := start(t)
	_, err := w.client.GrantAccess(within(t), &coordinatorv1.GrantAccessRequest{Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "default", Verbs: []rootv1.Verb{rootv1.Verb_VERB_READ}}})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

// What is left of a keyspace that is gone, such as the keys that its regions were cut at, is for who may
// read all keyspaces; a client that may read the default one is no such.
func TestTransitionsOfAKeyspaceThatIsGone(t *testing.T) {
	w, ctx := secureWorld(t), within(t)
	operator, a := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Operator, "o"))), coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, "a")))
	ks := w.root.state.KeyspaceByName("t").GetId()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
		Principal: "client/tenant", Keyspace: "t", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH},
	}}}})
	var ids []uint64
	w.root.state.RegionsFrom(state.KeyspaceID(ks), "", func(r *state.Region) bool {
		ids = append(ids, uint64(r.ID))
		return true
	})
	epoch := w.root.state.Region(state.RegionID(ids[0])).Epoch
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: ids[0], ExpectedEpoch: epoch.Proto(), SplitKey: []byte("a-secret"), RightRegionId: 99}}})
	id := w.root.state.PendingTransition(state.RegionID(ids[0])).GetId()
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: id}}})
	for _, region := range ids {
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: region}}})
	}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "t"}}})
	for name, c := range map[string]struct {
		client coordinatorv1.CoordinatorClient
		want   int
	}{"an operator": {operator, 1}, "a client": {a, 0}} {
		r, err := c.client.ListTransitions(ctx, &coordinatorv1.ListTransitionsRequest{IncludeEnded: true, Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
		if err != nil || len(r.GetTransitions()) != c.want {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestRestingHooksAreShownToWhoMayReadTheirKeyspace.
func TestRestingHooksAreShownToWhoMayReadTheirKeyspace(t *testing.T) {
	w := start(t, func(c *server.Config) {
		c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
		c.RestingHooks = func() []*coordinatorv1.RestingHook {
			return []*coordinatorv1.RestingHook{{Keyspace: "t", Why: "late", Instead: "ring"}, {Keyspace: "everybodys", Why: "status", Instead: "balanced"}}
		}
	})
	w.must(t, create("t", state.DefaultSettings()), create("everybodys", state.DefaultSettings()),
		&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
			Principal: "client/tenant", Keyspace: "t", Verbs: []rootv1.Verb{rootv1.Verb_VERB_READ},
		}}}})
	for name, want := range map[string][]string{"tenant": {"t", "everybodys"}, "other": {"everybodys"}} {
		c := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Client, name)))
		r, err := c.Status(within(t), &coordinatorv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range r.GetRestingHooks() {
			got = append(got, x.GetKeyspace())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is shown the hooks of %q, want %q", name, got, want)
		}
	}
}

// TestCallersRequireNoVersions: what is refused because of a keyspace's version would tell whose it is.
func TestCallersRequireNoVersions(t *testing.T) {
	w := secureWorld(t)
	ks := w.root.state.KeyspaceByName("t").GetId()
	c := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Operator, "o")))
	_, err := c.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{
		Events: []*rootv1.Event{publish(1, ks, "", "m", 1, "m1")}, RequireKeyspaces: []*rootv1.KeyspaceVersion{{KeyspaceId: ks, Version: 99}},
	}}})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}
