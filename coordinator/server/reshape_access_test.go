package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// A client with publish splits an assigned region that has an owner: planned, then completed by whoever holds the Tenure.
func TestAClientPlansASplitThatItsOwnerLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(c *server.Config) {
			c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
		})
		defer w.end(t)
		w.must(t, created("k"), join("m1"))
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "k", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH}}}}})
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{Principal: "member/*", Keyspace: "k", Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST}}}}})
		c, ctx := w.caller(t, impersonate.Client(impersonate.Named(principal.Client, "a"))), within(t)
		k, err := c.GetKeyspace(ctx, "k", client.Strong())
		if err != nil {
			t.Fatal(err)
		}
		whole, err := c.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.KeyspaceID(k.Keyspace.GetId()), Start: "a", End: "m", Owners: []rooted.Owner{{Member: "m1"}}})
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := c.SplitRegion(short, whole.Region.ID, []byte("g"), 90); err == nil {
			t.Error("it is split though its owner has not let go")
		}
		w.root.mu.Lock()
		defer w.root.mu.Unlock()
		if w.root.state.PendingTransition(whole.Region.ID) == nil {
			t.Errorf("nothing is planned")
		}
	})
}

// Who is assigned regions publishes nothing about them, also of what it owns alone: it reports on its stream. It
// removes one by the call for that.
func TestWhoIsAssignedRegionsPublishesNone(t *testing.T) {
	w := secureWorld(t)
	r := w.root.state.Region(1)
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 1, ExpectedEpoch: r.Epoch.Proto(), SplitKey: []byte("g"), RightRegionId: 90}}})
	own := impersonate.Things{ID: "m1", Region: 1, Change: w.root.state.PendingTransition(1).GetId(), Keyspace: uint32(r.Keyspace)}
	m1 := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Member, "m1")))
	hash, asks := w.rootHash()
	for i := range impersonate.Kinds().Len() {
		e := impersonate.Event(impersonate.Kinds().Get(i), own)
		if state.Publishable(e) != nil {
			continue // nobody's
		}
		_, err := m1.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: e})
		refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
		_, err = m1.AssessRootEvent(within(t), &coordinatorv1.AssessRootEventRequest{Event: e})
		refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
	}
	if after, again := w.rootHash(); after != hash || again != asks {
		t.Error("the root was changed or asked")
	}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: own.Change}}})
	if got, err := m1.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1}); err != nil || !got.GetRemoved() {
		t.Errorf("%v, %v", got, err)
	}
}
