package state_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestA39N85R06R25R28Presets compares the presets with the table of the design: layout,
// slots, placement, owners, fence, liveness in ms, strategy, vnodes.
func TestA39N85R06R25R28Presets(t *testing.T) {
	type row struct {
		slots                   uint32
		points                  bool
		placement               rootv1.Placement
		maxOwners               uint32
		fence                   rootv1.Fence
		interval, suspect, dead uint64
		strategy                rootv1.Strategy
		vnodes                  uint32
	}
	assigned, reported := rootv1.Placement_PLACEMENT_ASSIGNED, rootv1.Placement_PLACEMENT_REPORTED
	for name, want := range map[string]row{
		"tenants":    {0, true, assigned, state.MaxOwners, 0, 10_000, 0, 30_000, rootv1.Strategy_STRATEGY_ROUND_ROBIN, 0},
		"games":      {0, true, assigned, 1, rootv1.Fence_FENCE_EPOCH, 200, 1000, 5000, rootv1.Strategy_STRATEGY_LEAST_LOADED, 0},
		"actors":     {1024, false, assigned, 1, rootv1.Fence_FENCE_TTL, 30_000, 0, 90_000, rootv1.Strategy_STRATEGY_RING, 150},
		"kv":         {0, false, reported, 0, 0, 3000, 0, 10_000, 0, 0},
		"partitions": {128, false, assigned, 1, rootv1.Fence_FENCE_TTL, 5000, 15_000, 30_000, rootv1.Strategy_STRATEGY_RING, 128},
	} {
		s, ok := state.Preset(name)
		if !ok {
			t.Fatalf("no preset %s", name)
		}
		l, o := s.GetLiveness(), s.GetOwnership()
		got := row{
			s.GetLayout().GetSlots().GetCount(), s.GetLayout().GetPoints() != nil, s.GetPlacement(), o.GetMaxOwners(), o.GetFence(),
			l.GetIntervalMillis(), l.GetSuspectAfterMillis(), l.GetDeadAfterMillis(), s.GetPolicy().GetStrategy(), s.GetPolicy().GetRingVnodes(),
		}
		if got != want || s.GetPreset() != name {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
		if d := state.CheckCommand(settingsCommand(s)); d != nil {
			t.Errorf("%s: %s", name, d.GetMessage())
		}
	}
	if d := state.CheckCommand(settingsCommand(state.DefaultSettings())); d != nil {
		t.Errorf("default: %s", d.GetMessage())
	}
	if _, ok := state.Preset("nope"); ok {
		t.Errorf("there is a preset nope")
	}
}

// The numbers that the five kinds of systems come with are settings; tenants are never
// moved to even out.
func TestC32C51C52C53C54C55C56C57C58C59C60P17P22P52A37A38R15R27R29NumbersOfPresets(t *testing.T) {
	const second, minute = 1000, 60_000
	for name, want := range map[string]*rootv1.KeyspaceSettings{
		"tenants": {Liveness: &rootv1.Liveness{IntervalMillis: 10 * second, DeadAfterMillis: 30 * second}},
		"games": {
			Liveness: &rootv1.Liveness{
				IntervalMillis: 200, SuspectAfterMillis: second, DeadAfterMillis: 5 * second, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_DEAD, Probe: true,
			},
			Policy:  &rootv1.Policy{Rebalance: &rootv1.Rebalance{AbsoluteLimit: 500, MeanPermille: 1200, MinGap: 50, IntervalMillis: 30 * second, CooldownMillis: 60 * second}},
			Cadence: &rootv1.Cadence{IdleScanMillis: 10 * minute, IdleEvictMillis: 45 * minute},
		},
		"actors": {
			Liveness: &rootv1.Liveness{IntervalMillis: 30 * second, DeadAfterMillis: 90 * second},
			Policy:   &rootv1.Policy{Rebalance: &rootv1.Rebalance{IntervalMillis: 5 * minute}},
		},
		"kv": {Liveness: &rootv1.Liveness{IntervalMillis: 3 * second, DeadAfterMillis: 10 * second}},
		"partitions": {
			Liveness: &rootv1.Liveness{IntervalMillis: 5 * second, SuspectAfterMillis: 15 * second, DeadAfterMillis: 30 * second},
			Cadence:  &rootv1.Cadence{CheckpointIntervalMillis: 10 * second},
			Limits:   &rootv1.Limits{MaxKeysPerRegion: 2000},
		},
	} {
		if s, _ := state.Preset(name); !proto.Equal(state.MergeSettings(s, want), s) {
			t.Errorf("%s has %v, want %v", name, s, want)
		}
	}
	// Of scaling the numbers of games count where nothing is set, so that the preset is of no
	// level that an older cluster has not.
	games, _ := state.Preset("games")
	want := &rootv1.Scaling{UpPermille: 800, DownPermille: 300, SpacingMillis: 2 * minute, MinMembers: 2, MaxMembers: 10, HookTimeoutMillis: second}
	if got := state.ScalingOf(games); !proto.Equal(got, want) {
		t.Errorf("games are scaled by %v, want %v, and not enabled", got, want)
	}
	for name, want := range map[string]uint64{"tenants": 0, "games": 0, "actors": 30 * second, "kv": 0, "partitions": 30 * second} {
		s, _ := state.Preset(name)
		if got := state.StartOf(s).GetHoldMillis(); got != want {
			t.Errorf("%s are kept for %d ms, want %d", name, got, want)
		}
		s.Start = &rootv1.Start{Members: 3, HoldMillis: 7}
		if got := state.StartOf(s); !proto.Equal(got, s.Start) {
			t.Errorf("%s: %v counts, %v is set", name, got, s.Start)
		}
	}
	if s, _ := state.Preset("tenants"); s.GetPolicy().GetRebalance() != nil {
		t.Errorf("tenants are moved by themselves: %v", s.GetPolicy())
	}
}

// Without a preset no time of liveness is fixed: those that are not said follow from the interval that is.
func TestDefaultSettingsFollowTheInterval(t *testing.T) {
	got := state.LivenessOf(state.MergeSettings(state.DefaultSettings(), &rootv1.KeyspaceSettings{Liveness: &rootv1.Liveness{IntervalMillis: 200}}))
	want := &rootv1.Liveness{IntervalMillis: 200, SuspectAfterMillis: 600, DeadAfterMillis: 2000, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_SUSPECT, Probe: true}
	if !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestMergeSettings lays settings over a preset.
func TestMergeSettings(t *testing.T) {
	base, _ := state.Preset("actors")
	over := &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 64}}},
		Policy: &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_BALANCED},
		Labels: map[string]string{"team": "a"},
	}
	merged := state.MergeSettings(base, over)
	want := proto.CloneOf(base)
	want.Layout = over.Layout
	want.Policy.Strategy = rootv1.Strategy_STRATEGY_BALANCED
	want.Labels = over.Labels
	if !proto.Equal(merged, want) {
		t.Errorf("merged %v, want %v", merged, want)
	}
	if again, _ := state.Preset("actors"); !proto.Equal(again, base) || !proto.Equal(state.MergeSettings(nil, base), base) || !proto.Equal(state.MergeSettings(base, nil), base) {
		t.Errorf("merging changed the base")
	}
	if points := state.MergeSettings(base, &rootv1.KeyspaceSettings{Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}}); points.GetLayout().GetPoints() == nil {
		t.Errorf("the layout is %v, want points", points.GetLayout())
	}
}
