package client_test

import (
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Another frontier is a change like any: without an epoch it follows the rooted one.
// The root takes no other content at the rooted epoch, and says that somebody else
// changed the region.
func TestPublishRegionFollowsWithAFrontier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var asked *rootv1.RegionPublished
		f := &fake{cluster: newCluster(7), commit: func(cmd *rootv1.Command) *rootv1.CommandResult {
			asked = cmd.GetEvents()[0].GetRegionPublished()
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 9}}
		}}
		was := &rooted.Region{ID: 4, Keyspace: 1, Start: "a", End: "m", Frontier: "1", Epoch: rooted.Epoch{Version: 3, ConfVersion: 5}}
		w.start("a", &known{fake: f, region: was.Proto()})
		c, end := w.client(client.Config{}, "a")
		defer end()
		next := was.Clone()
		next.Epoch, next.Frontier = rooted.Epoch{}, "2"
		_, err := c.PublishRegion(t.Context(), next)
		must(t, err)
		if got := rooted.EpochFromProto(asked.GetRegion().GetEpoch()); !got.NewerThan(was.Epoch) {
			t.Errorf("published frontier %q at epoch %s, the rooted one: state.replace refuses it as stale", asked.GetRegion().GetFrontier(), got)
		}
	})
}
