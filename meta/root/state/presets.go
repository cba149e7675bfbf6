package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	second = 1000
	minute = 60 * second
)

func ranges() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
}

func points() *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}
}

func slots(count uint32) *rootv1.Layout {
	return &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: count}}}
}

// bootstrapSettings are those of keyspace 1. They are part of the state
// machine and frozen: every replica that replays the log makes the same.
func bootstrapSettings() *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{
		Layout:    ranges(),
		Placement: rootv1.Placement_PLACEMENT_REPORTED,
		Liveness:  &rootv1.Liveness{IntervalMillis: 3 * second, DeadAfterMillis: 10 * second},
		Preset:    "kv",
	}
}

// presets are the settings of the five documents. They are read before a
// keyspace is created and never again, so they may change between versions.
var presets = map[string]func() *rootv1.KeyspaceSettings{
	"tenants": func() *rootv1.KeyspaceSettings {
		return &rootv1.KeyspaceSettings{
			Layout:    points(),
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Ownership: &rootv1.Ownership{MaxOwners: MaxOwners},
			Liveness:  &rootv1.Liveness{IntervalMillis: 10 * second, DeadAfterMillis: 30 * second},
			Policy:    &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_ROUND_ROBIN, OnMiss: rootv1.OnMiss_ON_MISS_CLAIM},
		}
	},
	"games": func() *rootv1.KeyspaceSettings {
		return &rootv1.KeyspaceSettings{
			Layout:    points(),
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
			Liveness: &rootv1.Liveness{
				IntervalMillis: 200, SuspectAfterMillis: 1 * second, DeadAfterMillis: 5 * second,
				ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_DEAD, Probe: true,
			},
			Policy: &rootv1.Policy{
				Strategy: rootv1.Strategy_STRATEGY_LEAST_LOADED, OnMiss: rootv1.OnMiss_ON_MISS_CLAIM,
				Rebalance: &rootv1.Rebalance{
					AbsoluteLimit: 500, MeanPermille: 1200, MinGap: 50,
					IntervalMillis: 30 * second, CooldownMillis: 60 * second,
				},
			},
			Cadence: &rootv1.Cadence{IdleEvictMillis: 45 * minute, IdleScanMillis: 10 * minute},
		}
	},
	"actors": func() *rootv1.KeyspaceSettings {
		return &rootv1.KeyspaceSettings{
			Layout:    slots(1024),
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 90 * second},
			Liveness:  &rootv1.Liveness{IntervalMillis: 30 * second, DeadAfterMillis: 90 * second},
			Policy: &rootv1.Policy{
				Strategy: rootv1.Strategy_STRATEGY_RING, RingVnodes: 150, OnMiss: rootv1.OnMiss_ON_MISS_NOT_FOUND,
				Rebalance: &rootv1.Rebalance{IntervalMillis: 5 * minute},
			},
		}
	},
	"kv": func() *rootv1.KeyspaceSettings {
		return &rootv1.KeyspaceSettings{
			Layout:    ranges(),
			Placement: rootv1.Placement_PLACEMENT_REPORTED,
			Liveness:  &rootv1.Liveness{IntervalMillis: 3 * second, DeadAfterMillis: 10 * second},
			Policy:    &rootv1.Policy{OnMiss: rootv1.OnMiss_ON_MISS_NOT_FOUND},
		}
	},
	"partitions": func() *rootv1.KeyspaceSettings {
		return &rootv1.KeyspaceSettings{
			Layout:    slots(128),
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 30 * second},
			Liveness: &rootv1.Liveness{
				IntervalMillis: 5 * second, SuspectAfterMillis: 15 * second, DeadAfterMillis: 30 * second,
			},
			Policy: &rootv1.Policy{
				Strategy: rootv1.Strategy_STRATEGY_RING, RingVnodes: 128, OnMiss: rootv1.OnMiss_ON_MISS_NOT_FOUND,
				Rebalance: &rootv1.Rebalance{IntervalMillis: 30 * second},
			},
			Cadence: &rootv1.Cadence{CheckpointIntervalMillis: 10 * second},
			Limits:  &rootv1.Limits{MaxKeysPerRegion: 2000},
		}
	},
}

// presetHolds are for how long regions are kept, by preset: see StartOf.
var presetHolds = map[string]uint64{"actors": 30 * second, "partitions": 30 * second}

// Preset returns the settings of a named preset, in a message of the caller's
// own: tenants, games, actors, kv or partitions.
func Preset(name string) (*rootv1.KeyspaceSettings, bool) {
	fill, ok := presets[name]
	if !ok {
		return nil, false
	}
	settings := fill()
	settings.Preset = name
	return settings, true
}

// DefaultSettings are the settings of a keyspace that names no preset, in a
// message of the caller's own: ranges, assigned, exclusive with the region
// epoch as fence, balanced, never rebalanced.
func DefaultSettings() *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{
		Layout:    ranges(),
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
		Liveness:  &rootv1.Liveness{Probe: true},
		Policy:    &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_BALANCED, OnMiss: rootv1.OnMiss_ON_MISS_NOT_FOUND},
	}
}

// MergeSettings lays settings over others and returns a new message: a field
// that over sets replaces base's, a message (such as policy) is merged field by
// field, a list or the layout is replaced as a whole, labels are added.
func MergeSettings(base, over *rootv1.KeyspaceSettings) *rootv1.KeyspaceSettings {
	if base == nil {
		base = &rootv1.KeyspaceSettings{}
	}
	merged := proto.CloneOf(base)
	if over == nil {
		return merged
	}
	merge(merged.ProtoReflect(), proto.CloneOf(over).ProtoReflect())
	return merged
}

func merge(dst, src protoreflect.Message) {
	src.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
				dst.Mutable(fd).Map().Set(k, e)
				return true
			})
		case fd.IsList() || fd.Message() == nil || !dst.Has(fd) || fd.Name() == "layout":
			dst.Set(fd, v)
		default:
			merge(dst.Mutable(fd).Message(), v.Message())
		}
		return true
	})
}
