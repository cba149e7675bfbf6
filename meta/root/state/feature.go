package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Feature levels: what processes of different builds agree to understand. What
// is new in a level is refused until every process understands it.
//
// A level says what each entry of the log means, for ever: the logs, states and hashes
// below testdata/levels are replayed by the tests of this package. Whatever changes an outcome, or what
// a state holds, is of the next level: add one to FeatureLevel, name the kinds of events that are new
// in eventLevel, have the rest depend on State.FeatureLevel, and write a corpus for it.
const (
	// BaseFeatureLevel is what every build understands, and where a cluster begins
	// whose founders do not say what they understand.
	BaseFeatureLevel = 1
	// FeatureLevel is what this build understands.
	FeatureLevel = 1
)

// trial is the name of a kind of event, in rootv1.Event, that is new in the level behind
// FeatureLevel, which this process understands then, for tests of upgrades:
// -ldflags "-X github.com/nokv/nokv/meta/root/state.trial=move_planned".
var trial string

// Trial makes this process one that understands the level behind FeatureLevel, in
// which a kind of event is new, until end is called: for tests of upgrades, before they start anything.
func Trial(kind string) (end func()) {
	before := trial
	trial = kind
	return func() { trial = before }
}

// SupportedLevel is the highest feature level that this process understands.
func SupportedLevel() uint32 {
	if trial != "" {
		return FeatureLevel + 1
	}
	return FeatureLevel
}

// FeatureLevel is the rooted feature level: events above it are refused.
func (s *State) FeatureLevel() uint32 { return LevelOf(s.cluster.GetFeatureLevel()) }

// LevelOf is a feature level as it is told: 0 counts as BaseFeatureLevel.
func LevelOf(told uint32) uint32 { return max(told, BaseFeatureLevel) }

// RequiredLevel is the feature level that a command is of.
func RequiredLevel(c *rootv1.Command) uint32 {
	level := uint32(BaseFeatureLevel)
	for _, e := range c.GetEvents() {
		level = max(level, eventLevel(e))
	}
	return level
}

// eventLevel is the table of what is new in which level.
func eventLevel(e *rootv1.Event) uint32 {
	if trial != "" && isKind(e, trial) {
		return FeatureLevel + 1
	}
	return BaseFeatureLevel
}

// isKind reports whether an event is of the kind of that name.
func isKind(e *rootv1.Event, name string) bool {
	m := e.ProtoReflect()
	kind := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
	return kind != nil && string(kind.Name()) == name
}

// CheckLevel refuses what is above the rooted level: some process would have to
// stop at it.
func (s *State) CheckLevel(c *rootv1.Command) *rootv1.ErrorDetail {
	return s.CheckRequired(RequiredLevel(c))
}

// CheckRequired is CheckLevel for what requires a level.
func (s *State) CheckRequired(need uint32) *rootv1.ErrorDetail {
	rooted := s.FeatureLevel()
	if need <= rooted {
		return nil
	}
	d := refuse(rootv1.Reason_REASON_FEATURE_LEVEL, "this is of feature level %d, the cluster is at %d: upgrade every process, then raise it", need, rooted)
	d.FeatureLevel = rooted
	return d
}

// featureLevelRaised raises the level. Already applied: it is there, or above.
func (t *turn) featureLevelRaised(e *rootv1.FeatureLevelRaised) verdict {
	rooted := t.FeatureLevel()
	switch {
	case e.GetTo() <= rooted:
		return already
	case LevelOf(e.GetFrom()) != rooted:
		d := refuse(rootv1.Reason_REASON_FEATURE_LEVEL, "the feature level is %d, not %d", rooted, e.GetFrom())
		d.FeatureLevel = rooted
		return verdict{reject: d}
	}
	t.setCluster(func(c *rootv1.Cluster) { c.FeatureLevel = e.GetTo() })
	return applied
}
