package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// claimedFor is the claim of the era behind expected by c1, over one that expired.
func claimedFor(expected, ttl uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 1, ExpectedEra: expected, TtlMillis: ttl, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO},
	}}}
}

// longest sets the longest ttl of a claim.
func longest(version, ttl uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
		ExpectedVersion: version, Settings: &rootv1.ClusterSettings{MaxTenureTtlMillis: ttl},
	}}}
}

// A coordinator with a ttl that was allowed does not lose the right to claim when the
// longer bound is taken back. Who asks for more is refused.
func TestABoundTakenBackKeepsWhoMayClaim(t *testing.T) {
	m := newMachine(t)
	m.must(clusterEvent())
	m.must(longest(0, 60_000))
	m.must(claimedFor(0, 60_000))
	m.must(longest(1, 0))
	if got := m.s.Settings().GetMaxTenureTtlMillis(); got != 60_000 {
		t.Errorf("the longest ttl is told to be %d ms", got)
	}
	m.refused(claimedFor(1, 60_001), rootv1.Reason_REASON_INVALID_TENURE)
	m.must(claimedFor(1, 60_000))
	m.must(claimedFor(2, 1_000))
	m.refused(claimedFor(3, 60_000), rootv1.Reason_REASON_INVALID_TENURE)
}

// Settings that the active era's ttl does not fit would leave nobody who may claim.
func TestSettingsKeepWhoMayClaim(t *testing.T) {
	m := restricted(t)
	m.refused(claimedFor(0, 30_001), rootv1.Reason_REASON_INVALID_TENURE)
	m.must(claimedFor(0, 3_000))
	m.refused(longest(0, 2_999), rootv1.Reason_REASON_INVALID_TENURE)
	m.must(longest(0, 3_000))
	m.must(claimedFor(1, 3_000))
	// Whose end was asked for need not claim again: the way to a lower bound.
	m.must(&rootv1.Event{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: 2}}})
	m.must(longest(1, 1_000))
	m.refused(claimedFor(2, 3_000), rootv1.Reason_REASON_INVALID_TENURE)
	m.must(claimedFor(2, 1_000))
}

func (m *machine) refused(e *rootv1.Event, want rootv1.Reason) {
	m.t.Helper()
	if r := m.apply(&rootv1.Command{Events: []*rootv1.Event{e}})[0]; r.Reject.GetReason() != want {
		m.t.Errorf("%v: %v %v, want %v", e, r.Outcome, r.Reject, want)
	}
}

// Certificates that are revoked are kept as they are named: in order, each once, as many as fit. What could not be taken back,
// because root peers do not believe each other, is refused.
func TestRevokedCertificatesAreNamesOrSerials(t *testing.T) {
	m := newMachine(t)
	m.must(clusterEvent())
	set := func(version uint64, revoked ...string) *rootv1.Event {
		e := longest(version, 0)
		e.GetClusterSettingsChanged().Settings.RevokedCertificates = revoked
		return e
	}
	have := func(version uint64, want ...string) {
		t.Helper()
		if v, got := m.s.RevokedCertificates(); v != version || !slices.Equal(got, want) {
			t.Errorf("version %d has %q, want %d with %q", v, got, version, want)
		}
	}
	have(0)
	m.must(set(0, "ab12", "member/m1"))
	have(1, "ab12", "member/m1")
	for _, no := range [][]string{
		{""},
		{"m1"},
		{"member/"},
		{"member/m*"},
		{"nobody/x"},
		{"member/a b"},
		{"root/1"},
		{"AB12"},
		{"0a"},
		{"ab:12"},
		{strings.Repeat("f", 41)},
		{"member/m1", "ab12"},
		{"ab12", "ab12"},
	} {
		m.refused(set(1, no...), rootv1.Reason_REASON_INVALID_REQUEST)
	}
	var many []string
	for i := range state.MaxRevokedCertificates + 1 {
		many = append(many, fmt.Sprintf("member/m%04d", i))
	}
	m.refused(set(1, many...), rootv1.Reason_REASON_INVALID_REQUEST)
	have(1, "ab12", "member/m1")
	m.must(set(1, many[1:]...))
	m.must(set(2))
	have(3)
}
