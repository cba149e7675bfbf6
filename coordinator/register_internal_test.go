package coordinator

import (
	"testing"

	"github.com/nokv/nokv/internal/identity"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A registration says whom its process follows, learns from a refusal whom it
// has to follow, and is another command behind any refusal.
func TestRegistrationFollows(t *testing.T) {
	r := &registration{cfg: &Config{ID: "c1", Advertise: "a:1", Incarnation: 9}, identities: identity.NewSource()}
	r.follow(0, 5)
	first := r.cmd
	r.refused(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_CAPACITY_EXCEEDED})
	if r.cmd.GetEvents()[0].GetCoordinatorJoined().GetFollows() != 0 || r.cmd.GetIdentity().GetKnownIndex() != 5 ||
		r.cmd.GetIdentity().GetSequence() == first.GetIdentity().GetSequence() {
		t.Errorf("%v after a refusal that is about something else: under its identity it stays refused", r.cmd)
	}
	first = r.cmd
	r.refused(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_COORDINATOR_SUPERSEDED, Incarnation: 77})
	second := r.cmd
	if got := second.GetEvents()[0].GetCoordinatorJoined(); got.GetFollows() != 77 || got.GetIncarnation() != 9 ||
		second.GetIdentity().GetSequence() == first.GetIdentity().GetSequence() {
		t.Errorf("%v behind incarnation 77", second)
	}
	r.refused(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OUTCOME_UNKNOWN, CurrentToken: &rootv1.RootToken{Index: 50}})
	if got := r.cmd; got.GetEvents()[0].GetCoordinatorJoined().GetFollows() != 77 || got.GetIdentity().GetKnownIndex() != 50 ||
		got.GetIdentity().GetSequence() == second.GetIdentity().GetSequence() {
		t.Errorf("%v when the root is at 50", got)
	}
}
