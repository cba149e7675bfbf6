package server_test

import (
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestWhatIsNotThereIsNobodys: a change of it is refused before the root is asked.
func TestWhatIsNotThereIsNobodys(t *testing.T) {
	w := secureWorld(t)
	w.must(t, publish(11, 1, "", "m", 1, "m1")) // in the default keyspace, whose members report
	given := func(conf uint64, to string) *rootv1.Event {
		e := publish(11, 1, "", "m", 1, to)
		e.GetRegionPublished().Region.Epoch.ConfVersion = conf
		return e
	}
	const behind = "what an event before it makes" // that is for the root to judge, in its turn
	for _, p := range []principal.Principal{impersonate.Named(principal.Client, "eve"), impersonate.Named(principal.Member, "m1")} {
		c := coordinatorv1.NewCoordinatorClient(w.as(t, p))
		for what, call := range map[string]func() error{
			"a region": func() error {
				_, err := c.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1 << 40})
				return err
			},
			"a keyspace": func() error {
				_, err := c.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: publish(9, 99, "", "", 1, "m1")})
				return err
			},
			behind: func() error {
				answer, err := c.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Events: []*rootv1.Event{
					given(2, "m2"), given(3, "m1"),
				}}}})
				if err == nil && answer.GetResults()[0].GetError() != nil {
					err = &reason.Error{Detail: answer.GetResults()[0].GetError()}
				}
				return err
			},
		} {
			hash, asks := w.rootHash()
			err := call()
			after, again := w.rootHash()
			if reason.Of(err) != rootv1.Reason_REASON_PERMISSION_DENIED || what != behind && (after != hash || again != asks) || w.root.state.Region(11).Owners[0].Member != "m1" {
				t.Errorf("%v changes %s that is not there; the root was asked %d times: %v", p, what, again-asks, err)
			}
		}
	}
}

// TestMembersPublishNewRegions: with an id of their own choice, by the Go client.
func TestMembersPublishNewRegions(t *testing.T) {
	w, ks, _ := closedToMembers(t)
	w.grant(t, "member/m1", "r", rootv1.Verb_VERB_HOST)
	w.must(t, tombstone(22))
	c := w.caller(t, impersonate.Client(impersonate.Named(principal.Member, "m1")))
	for _, id := range []rooted.RegionID{31, 0} {
		start, end := "m", "p"
		if id == 0 {
			start, end = "p", ""
		}
		made, err := c.PublishRegion(within(t), &rooted.Region{
			ID: id, Keyspace: rooted.KeyspaceID(ks), Start: start, End: end, Owners: []rooted.Owner{{Member: "m1", Peer: 1, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}},
		})
		if err != nil || !made.Changed {
			t.Errorf("region %d: %v, %v", id, made, err)
		}
	}
}
