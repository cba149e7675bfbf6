package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a keyspace may say of how it is evened out, and of which level that is.
func TestRebalanceSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rootv1.KeyspaceSettings, *rootv1.Rebalance)
		level  uint32
		bad    bool
	}{
		"nothing":        {func(*rootv1.KeyspaceSettings, *rootv1.Rebalance) {}, 1, false},
		"what there was": {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.MeanPermille, r.IntervalMillis = 1200, 30_000 }, 1, false},
		"load":           {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.By = rootv1.BalanceBy_BALANCE_BY_LOAD }, 4, false},
		"reshape":        {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.Reshape = true }, 4, false},
		"spread":         {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) { s.Policy.Spread = "zone" }, 4, false},
		"owners": {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) {
			s.Ownership.MaxOwners, s.Ownership.MinOwners = 3, 2
		}, 4, false},
		"fewer than owners": {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) { s.Ownership.MinOwners = 2 }, 4, true},
		"all and more":      {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.ReservePermille = 1001 }, 4, true},
		"round above hour":  {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.RoundPermille = 600 }, 4, true},
		"in flight":         {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.InFlight = state.MaxMovesInFlight + 1 }, 4, true},
		"years of rest":     {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.BackoffMillis = state.MaxMillis + 1 }, 4, true},
	} {
		s := state.DefaultSettings()
		s.Policy.Rebalance = &rootv1.Rebalance{}
		c.change(s, s.Policy.Rebalance)
		cmd := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}}}}
		if got := state.RequiredLevel(cmd); got != c.level {
			t.Errorf("%s: it is of level %d, want %d", name, got, c.level)
		}
		if d := state.CheckCommand(cmd); (d != nil) != c.bad {
			t.Errorf("%s: %v", name, d)
		}
	}
}

// Why a change is planned is of level 4, and stays with the transition.
func TestReasonsOfPlansAreOfALevel(t *testing.T) {
	for _, e := range []*rootv1.Event{
		{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{Reason: 1}}},
		{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{Reason: 1}}},
		{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{Reason: 1}}},
	} {
		if got := state.RequiredLevel(&rootv1.Command{Events: []*rootv1.Event{e}}); got != 4 {
			t.Errorf("%v is of level %d", e, got)
		}
	}
}
