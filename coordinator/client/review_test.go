package client_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
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

// Whoever keeps a copy by OnChange has what All has: also when an answer that was
// newer than the watch has taken regions out of the cache before.
func TestOnChangeMissesNothingBesideAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := region(1, "", "", 9) // what a merge makes of both
		f := &fake{lookup: func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			return &coordinatorv1.GetRegionByKeyResponse{Region: whole, Disclosure: says(9)}, nil
		}}
		var k *client.Cache
		copied := map[rooted.RegionID]bool{}
		k, ch, end := cached(t, f, client.CacheConfig{OnChange: func(u client.Update) {
			if u.Whole {
				clear(copied)
				for r := range k.All() {
					copied[r.Region.ID] = true
				}
			}
			for _, r := range u.Regions {
				if r.New != nil {
					copied[r.New.ID] = true
				} else {
					delete(copied, r.Old.ID)
				}
			}
		}})
		defer end()
		ch.snapshot(5, region(1, "", "m", 2), region(2, "m", "", 3))
		_, err := k.Route(t.Context(), []byte("a"), client.Strong())
		must(t, err)
		gone := now(region(2, "m", "", 3))
		gone[0].Removed = true
		ch.send(&coordinatorv1.WatchRegionsResponse{Token: at(9), Changes: append(gone, now(whole)...)})
		var all, told []rooted.RegionID
		for r := range k.All() {
			all = append(all, r.Region.ID)
		}
		for id := range copied {
			told = append(told, id)
		}
		slices.Sort(told)
		if !slices.Equal(all, told) {
			t.Errorf("at 9 the cache has regions %v, who follows OnChange has %v", all, told)
		}
	})
}

// A mirror that is full stays as it was, at the position that it was at: what
// OnChange did not hear of is not in it.
func TestAFullMirrorStaysAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			first := snapshot(5)
			first.Changes = now(region(1, "", "m", 2))
			must(t, s.Send(first))
			_ = s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(6), Changes: now(region(2, "m", "", 6)), Disclosure: says(6)})
			<-s.Context().Done()
			return nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var told uint64
		m := c.NewMirror(client.MirrorConfig{Keyspace: "k", MaxRegions: 1, OnChange: func(u client.Update) { told = u.At.Token.Index }})
		if err := m.Run(t.Context()); !errors.Is(err, client.ErrMirrorFull) {
			t.Fatal(err)
		}
		n := 0
		for range m.All() {
			n++
		}
		if at, _ := m.At(); at.Token.Index != told || n > 1 {
			t.Errorf("OnChange heard of %d; the mirror is at %d with %d regions, MaxRegions is 1", told, at.Token.Index, n)
		}
	})
}
