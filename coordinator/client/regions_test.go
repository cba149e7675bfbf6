package client_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// known is a coordinator with one region.
type known struct {
	*fake
	region *rootv1.Region
}

func (k *known) GetRegion(context.Context, *coordinatorv1.GetRegionRequest) (*coordinatorv1.GetRegionResponse, error) {
	return &coordinatorv1.GetRegionResponse{Region: k.region, Disclosure: k.disclosure()}, nil
}

// A descriptor without an epoch follows the rooted one, by what it changes.
func TestPublishRegionFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var asked *rootv1.RegionPublished
		f := &fake{cluster: newCluster(7), commit: func(cmd *rootv1.Command) *rootv1.CommandResult {
			asked = cmd.GetEvents()[0].GetRegionPublished()
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 9}}
		}}
		was := &rooted.Region{ID: 4, Keyspace: 1, Start: "a", End: "m", Frontier: "1", Epoch: rooted.Epoch{Version: 3, ConfVersion: 5}, Owners: []rooted.Owner{{Member: "m1", Incarnation: 2}, {Member: "m3"}}}
		w.start("a", &known{fake: f, region: was.Proto()})
		c, end := w.client(client.Config{}, "a")
		defer end()
		for _, x := range []struct {
			change func(*rooted.Region)
			want   rooted.Epoch
		}{
			{func(r *rooted.Region) { r.End = "z" }, rooted.Epoch{Version: 4, ConfVersion: 5}},
			{func(r *rooted.Region) { r.Owners[0].Member = "m2" }, rooted.Epoch{Version: 3, ConfVersion: 6}},
			{func(r *rooted.Region) { r.End, r.Owners = "z", nil }, rooted.Epoch{Version: 4, ConfVersion: 6}},
			{func(r *rooted.Region) { r.Frontier = "2" }, rooted.Epoch{Version: 4, ConfVersion: 5}},
			{func(r *rooted.Region) { r.Owners[0].Incarnation = 3 }, rooted.Epoch{Version: 3, ConfVersion: 6}},
			// Nothing that the root would call a change.
			{func(r *rooted.Region) { r.Frontier, r.Owners[0].Incarnation = "", 0 }, was.Epoch},
			{func(r *rooted.Region) { slices.Reverse(r.Owners) }, was.Epoch},
		} {
			next := was.Clone()
			next.Epoch = rooted.Epoch{}
			x.change(next)
			done, err := c.PublishRegion(t.Context(), next)
			must(t, err)
			if got := rooted.EpochFromProto(asked.GetRegion().GetEpoch()); got != x.want || rooted.EpochFromProto(asked.GetExpectedEpoch()) != was.Epoch || done.Token.Index != 9 || !done.Changed {
				t.Errorf("published at epoch %s behind %v, want %s; at %s", got, asked.GetExpectedEpoch(), x.want, done.Token)
			}
		}
	})
}
