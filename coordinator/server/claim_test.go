package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/claims"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// everybody is heard.
type everybody struct{}

func (everybody) Takes(state.MemberID) bool { return true }

func (everybody) Damped(state.MemberID) bool                                       { return false }
func (everybody) Unfit(state.Owner, state.KeyspaceID) bool                         { return false }
func (everybody) Probation(state.Owner, state.KeyspaceID) bool                     { return false }
func (everybody) ClearAt(state.MemberID, uint64, liveness.Fence) clock.Instant     { return 0 }
func (everybody) Shown(state.MemberID, uint64) state.Token                         { return state.Token{} }
func (everybody) Report(state.RegionID, state.Owner) (_ placement.Report, ok bool) { return }

// claiming is a world of a coordinator that holds the Tenure and makes regions in keyspace
// games, and one that does not.
func claiming(t *testing.T) (w, standby *world) {
	root := newMemoryRoot(t)
	root.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: coordinatorID, HolderIncarnation: 99, HolderAddress: "c1:2379", TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO, rootv1.Mandate_MANDATE_SCHEDULE},
	}}})
	root.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}, Policy: &rootv1.Policy{OnMiss: rootv1.OnMiss_ON_MISS_CLAIM},
	}}}})
	for i := range 2 {
		root.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{
			Id: fmt.Sprint("m", i), Address: fmt.Sprintf("10.0.0.%d:1", i), StartNonce: 5,
		}}}})
	}
	var desks sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	of := func(id string, incarnation uint64) *world {
		return startOn(t, root, func(c *server.Config) {
			c.ID, c.Incarnation = state.CoordinatorID(id), incarnation
			desk, err := claims.New(claims.Config{ID: c.ID, Incarnation: incarnation, Views: c.Views.(*rootview.Follower), Root: root, Observed: everybody{}, Clock: c.Clock})
			if err != nil {
				t.Fatal(err)
			}
			c.Claims = desk
			desks.Go(func() { _ = desk.Run(ctx) })
		})
	}
	t.Cleanup(desks.Wait)
	t.Cleanup(cancel)
	return of(coordinatorID, 99), of("c2", 2)
}

func claimOf(keyspace string, keys ...string) *coordinatorv1.ClaimRegionsRequest {
	req := &coordinatorv1.ClaimRegionsRequest{Keyspace: keyspace}
	for _, k := range keys {
		req.Keys = append(req.Keys, []byte(k))
	}
	return req
}

// The holder of the Tenure makes regions and says who has them and at which address; others
// say who holds it.
func TestP42P43ClaimAtTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, standby := claiming(t)
		made, err := w.client.ClaimRegions(within(t), claimOf("games", "alice", "bob", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		r := made.GetRegions()
		if len(r) != 3 || !r[0].GetMade() || r[0].GetRegion().GetId() != r[2].GetRegion().GetId() || string(r[1].GetRegion().GetStartKey()) != "bob" ||
			r[0].GetOrphaned() || r[0].GetToken().GetIndex() == 0 || made.GetDisclosure().GetClusterId() != clusterID {
			t.Errorf("%v", made)
		}
		if o := made.GetOwners(); len(o) != 2 || !strings.HasPrefix(o[0].GetAddress(), "10.0.0.") || o[0].GetIncarnation() == 0 {
			t.Errorf("owners %v", o)
		}
		w.catchUp(t)
		again, err := w.client.ClaimRegions(within(t), claimOf("games", "alice"))
		if err != nil || again.GetRegions()[0].GetMade() || again.GetRegions()[0].GetRegion().GetId() != r[0].GetRegion().GetId() {
			t.Errorf("again: %v, %v", again, err)
		}
		_, err = standby.client.ClaimRegions(within(t), claimOf("games", "carol"))
		if d := refused(t, err, rootv1.Reason_REASON_TENURE_NOT_HELD); d.GetHolderAddress() != "c1:2379" {
			t.Errorf("no way to the holder: %v", d)
		}
		// Without a live owner it is answered as it is.
		owner := r[0].GetRegion().GetOwners()[0].GetMemberId()
		w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
			MemberId: owner, State: rootv1.MemberState_MEMBER_STATE_FAILED, Reason: "a test",
		}}})
		w.catchUp(t)
		orphan, err := w.client.ClaimRegions(within(t), claimOf("games", "alice"))
		if err != nil || !orphan.GetRegions()[0].GetOrphaned() || orphan.GetRegions()[0].GetMade() {
			t.Errorf("orphaned: %v, %v", orphan, err)
		}
	})
}

// What is wrong with a claim is said before anybody is asked; what is wrong with one key is
// that key's alone.
func TestA27ClaimsThatAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := claiming(t)
		many := make([]string, 1025)
		long := make([]string, 300)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		for i := range long {
			long[i] = strings.Repeat("x", 4000) + fmt.Sprint(i)
		}
		for name, req := range map[string]*coordinatorv1.ClaimRegionsRequest{
			"none": claimOf("games"), "empty": claimOf("games", "a", ""), "many": claimOf("games", many...), "long": claimOf("games", strings.Repeat("x", 4097)),
			"bytes": claimOf("games", long...), "name": claimOf(strings.Repeat("x", 300), "a"),
		} {
			before := w.root.token()
			if _, err := w.client.ClaimRegions(within(t), req); err == nil {
				t.Errorf("%s: no refusal", name)
			} else {
				refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
			}
			if w.root.token() != before {
				t.Errorf("%s: the root was asked", name)
			}
		}
		_, err := w.client.ClaimRegions(within(t), claimOf("nothing", "a"))
		refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
		_, err = w.client.ClaimRegions(within(t), claimOf("default", "a"))
		refused(t, err, rootv1.Reason_REASON_LAYOUT_MISMATCH)
		// Behind a region with a long frontier the answer ends.
		var keys []string
		for i := range 1000 {
			key := fmt.Sprintf("%s%04d", strings.Repeat("k", 900), i)
			keys = append(keys, key)
			w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: 2, StartKey: []byte(key), Frontier: []byte(strings.Repeat("f", 4000)),
			}}}})
		}
		w.catchUp(t)
		got, err := w.client.ClaimRegions(within(t), claimOf("games", keys...))
		if err != nil {
			t.Fatal(err)
		}
		answered := 0
		for _, r := range got.GetRegions() {
			if r.GetError() == nil {
				answered++
			} else if r.GetError().GetReason() != rootv1.Reason_REASON_OVERLOADED {
				t.Fatal(r.GetError())
			}
		}
		if answered < 100 || answered > 600 {
			t.Errorf("%d of 1,000 are answered", answered)
		}
	})
}
