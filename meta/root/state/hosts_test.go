package state_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestKeyspacesWithTheSameHosts: of keyspaces that are hosted by the same the same members may own regions,
// also where different grants close them, and one that no grant names is hosted by nobody in particular.
func TestKeyspacesWithTheSameHosts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := restricted(t)
		for range rapid.IntRange(0, 6).Draw(r, "grants") {
			who, verb := rapid.SampledFrom([]string{"member/a", "member/ab", "member/*", "client/a"}).Draw(r, "principal"), rootv1.Verb_VERB_READ
			if who != "client/a" && rapid.Bool().Draw(r, "host") {
				verb = rootv1.Verb_VERB_HOST
			}
			m.apply(&rootv1.Command{Events: []*rootv1.Event{granted(who, rapid.SampledFrom([]string{"k", "k1", "k*", "k1*", "j", "*"}).Draw(r, "keyspace"), verb)}}) // maybe once more
		}
		keyspaces := []string{"k", "k1", "k12", "j", "i"}
		for _, one := range keyspaces {
			if closed := m.s.Access("client", "nobody", rootv1.Verb_VERB_READ, one).Closed; closed != (m.s.HostedBy(one) != "") {
				r.Fatalf("%s is closed: %v, and hosted by %q", one, closed, m.s.HostedBy(one))
			}
			for _, other := range keyspaces {
				for _, id := range []state.MemberID{"a", "ab", "b"} {
					if m.s.HostedBy(one) == m.s.HostedBy(other) && m.s.Hosts(id, one) != m.s.Hosts(id, other) {
						r.Fatalf("%s and %s are hosted by %q, and %s hosts one of them", one, other, m.s.HostedBy(one), id)
					}
				}
			}
		}
	})
	m := restricted(t)
	m.must(granted("client/one", "tenant1", rootv1.Verb_VERB_READ))
	m.must(granted("client/two", "tenant2", rootv1.Verb_VERB_READ))
	m.must(granted("member/*", "tenant*", rootv1.Verb_VERB_HOST))
	if one, two := m.s.HostedBy("tenant1"), m.s.HostedBy("tenant2"); one != two {
		t.Errorf("hosted by %q and by %q, want the same", one, two)
	}
}
