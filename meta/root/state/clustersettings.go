package state

import (
	"strings"

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
	case len(c.GetRevokedCertificates()) > MaxRevokedCertificates:
		d := invalid("%d certificates are revoked, at most %d fit: take back those that have ended", len(c.GetRevokedCertificates()), MaxRevokedCertificates)
		d.Limit = MaxRevokedCertificates
		return d
	}
	before := ""
	for _, name := range c.GetRevokedCertificates() {
		if d := checkRevoked(name); d != nil {
			return d
		}
		if name <= before {
			return invalid("the revoked certificates are not in order, each once: %q stands behind %q", name, before)
		}
		before = name
	}
	return nil
}

// maxSerialDigits is what the longest serial number of a certificate has, 20 bytes.
const maxSerialDigits = 40

// checkRevoked checks ROLE/NAME, or the serial number of a certificate. Root peers that do not believe each other cannot
// take it back; one that has a new certificate is believed by that.
func checkRevoked(name string) *rootv1.ErrorDetail {
	switch role, _, named := strings.Cut(name, "/"); {
	case role == roleRoot && named:
		return invalid("certificates of root peers are revoked by their serial numbers, not as %q: renew the one that was stolen first", clip(name))
	case strings.HasSuffix(name, "*"):
		return invalid("%q is no name of a principal: certificates are revoked one principal at a time", clip(name))
	case named:
		return CheckPrincipal(name)
	case name == "" || name[0] == '0' || len(name) > maxSerialDigits || strings.Trim(name, "0123456789abcdef") != "":
		return invalid("%q is no ROLE/NAME, and no serial number of a certificate: 1 to %d lower-case hexadecimal digits without leading zeros", clip(name), maxSerialDigits)
	}
	return nil
}

// RevokedCertificates are those that are believed no more, in order, and the version of the settings that says so. Callers do
// not change the slice.
func (s *State) RevokedCertificates() (version uint64, certificates []string) {
	return s.settings.GetVersion(), s.settings.GetRevokedCertificates()
}
