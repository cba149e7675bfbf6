package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Settings are those of the cluster as they are in force, in a message of the
// caller's own: what nobody set has its default.
func (s *State) Settings() *rootv1.ClusterSettings {
	c := &rootv1.ClusterSettings{}
	if s.settings != nil {
		c = proto.CloneOf(s.settings)
	}
	c.MaxTenureTtlMillis = s.maxTenureTTL()
	return c
}

// maxTenureTTL is the longest ttl of a claim, in milliseconds. Where nobody set it,
// the ttl of the last era is allowed: it was, and its holder must not lose the right to
// claim because a longer bound is taken back.
func (s *State) maxTenureTTL() uint64 {
	if ttl := s.settings.GetMaxTenureTtlMillis(); ttl != 0 {
		return ttl
	}
	return max(DefaultMaxTenureTTLMillis, s.tenure.GetTtlMillis())
}

// clusterSettingsChanged replaces the settings, unless the holder of the Tenure could
// not claim again by them. Already applied: those behind the expected version are these.
func (t *turn) clusterSettingsChanged(e *rootv1.ClusterSettingsChanged, r *EventResult) verdict {
	old, next := t.settings, proto.CloneOf(e.GetSettings())
	next.Version, next.Revision = e.GetExpectedVersion()+1, old.GetRevision()
	if old.GetVersion() == next.GetVersion() && proto.Equal(old, next) {
		r.Settings = old
		return already
	}
	if old.GetVersion() != e.GetExpectedVersion() {
		return rejected(rootv1.Reason_REASON_VERSION_STALE, "the settings of the cluster are at version %d, not %d", old.GetVersion(), e.GetExpectedVersion())
	}
	if bound, ttl := next.GetMaxTenureTtlMillis(), t.tenure.GetTtlMillis(); bound != 0 && bound < ttl && t.ActiveEra() != 0 && t.tenure.GetEnd() == nil {
		d := t.withHolder(refuse(rootv1.Reason_REASON_INVALID_TENURE,
			"era %d has a ttl of %d ms, and its holder could not claim again with at most %d: restart it with a shorter --tenure-ttl, or end the era, first", t.era(), ttl, bound))
		d.Limit = ttl
		return verdict{reject: d}
	}
	next.Revision = t.token.Index
	t.setSettings(next)
	r.Settings = next
	t.change(Change{Kind: ChangeSettings, Settings: next})
	return applied
}

func (s *State) setSettings(next *rootv1.ClusterSettings) {
	if s.settings != nil {
		s.sum -= hashRecord(tagClusterSettings, s.settings)
	}
	s.sum += hashRecord(tagClusterSettings, next)
	s.settings = next
}

func checkClusterSettings(e *rootv1.ClusterSettingsChanged) *rootv1.ErrorDetail {
	c := e.GetSettings()
	switch ttl := c.GetMaxTenureTtlMillis(); {
	case c == nil:
		return invalid("the settings are missing")
	case e.GetExpectedVersion() == ^uint64(0):
		return invalid("there is no version behind %d", e.GetExpectedVersion())
	case ttl != 0 && (ttl < LeastMaxTenureTTLMillis || ttl > MostMaxTenureTTLMillis):
		d := invalid("the longest ttl of a Tenure is %d ms: set %d to %d, or 0 for %d", ttl, LeastMaxTenureTTLMillis, MostMaxTenureTTLMillis, DefaultMaxTenureTTLMillis)
		d.Limit = MostMaxTenureTTLMillis
		return d
	}
	return nil
}
