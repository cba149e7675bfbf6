package server_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func move() *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1}, From: &rootv1.Owner{MemberId: "a"}, To: &rootv1.Owner{MemberId: "b"},
	}}}}}
}

// Who does not understand more is named, and nothing of the next level enters the
// log before.
func TestFeatureLevelWaitsForEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		before := len(r.log)
		raise := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{To: 2}}}}}
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{Commands: []*rootv1.Command{move(), raise}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []rootv1.Reason{rootv1.Reason_REASON_FEATURE_LEVEL, rootv1.Reason_REASON_INVALID_REQUEST} {
			if got := resp.Results[i].GetError().GetReason(); got != want {
				t.Errorf("command %d: %v, want %v", i, got, want)
			}
		}
		if len(r.log) != before {
			t.Error("what is above the feature level is in the log")
		}
		told, err := s.root().RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{To: 2})
		if err != nil || told.GetFeatureLevel() != 1 || told.GetCommonLevel() != 0 {
			t.Fatalf("%v, %v", told, err)
		}
		if !slices.ContainsFunc(told.Below, func(p *rootv1.FeatureSupport) bool { return p.GetProcess() == "root peer" && p.GetId() == "3" }) {
			t.Errorf("the peer that is not heard from is not named: %v", told.Below)
		}
		if _, err := s.root().RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{To: 9}); reason.Of(err) != rootv1.Reason_REASON_TOO_OLD {
			t.Errorf("above what the leader understands: %v", err)
		}
	})
}
