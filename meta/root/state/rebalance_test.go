package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a keyspace may say of how it is evened out.
func TestRebalanceSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rootv1.KeyspaceSettings, *rootv1.Rebalance)
		bad    bool
	}{
		"nothing":        {func(*rootv1.KeyspaceSettings, *rootv1.Rebalance) {}, false},
		"what there was": {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.MeanPermille, r.IntervalMillis = 1200, 30_000 }, false},
		"load":           {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.By = rootv1.BalanceBy_BALANCE_BY_LOAD }, false},
		"reshape":        {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.Reshape = true }, false},
		"spread":         {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) { s.Policy.Spread = "zone" }, false},
		"owners": {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) {
			s.Ownership.MaxOwners, s.Ownership.MinOwners = 3, 2
		}, false},
		"fewer than owners": {func(s *rootv1.KeyspaceSettings, _ *rootv1.Rebalance) { s.Ownership.MinOwners = 2 }, true},
		"all and more":      {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.ReservePermille = 1001 }, true},
		"round above hour":  {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.RoundPermille = 600 }, true},
		"in flight":         {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.InFlight = state.MaxMovesInFlight + 1 }, true},
		"years of rest":     {func(_ *rootv1.KeyspaceSettings, r *rootv1.Rebalance) { r.BackoffMillis = state.MaxMillis + 1 }, true},
	} {
		s := state.DefaultSettings()
		s.Policy.Rebalance = &rootv1.Rebalance{}
		c.change(s, s.Policy.Rebalance)
		cmd := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}}}}
		if d := state.CheckCommand(cmd); (d != nil) != c.bad {
			t.Errorf("%s: %v", name, d)
		}
	}
}
