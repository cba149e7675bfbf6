package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/identity"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
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

// Whoever is registered under an id and answers lives; one that does not answer has ended
// after a bounded time, and at once when its machine refuses or somebody else is there.
func TestRivals(t *testing.T) {
	known := &rootv1.Coordinator{Id: "c1", Address: "a:1", Incarnation: 7}
	mute := errors.New("no answer")
	answer := func(id string, incarnation uint64) func() (*coordinatorv1.StatusResponse, error) {
		return func() (*coordinatorv1.StatusResponse, error) {
			return &coordinatorv1.StatusResponse{CoordinatorId: id, Incarnation: incarnation}, nil
		}
	}
	for name, c := range map[string]struct {
		address string
		ask     func() (*coordinatorv1.StatusResponse, error)
		refuses bool
		lives   bool
		took    time.Duration
	}{
		"it answers":                  {"b:1", answer("c1", 7), false, true, 0},
		"this process is there":       {"b:1", answer("c1", 9), false, false, 0},
		"another coordinator":         {"b:1", answer("c2", 7), false, false, 0},
		"it listens no more":          {"b:1", func() (*coordinatorv1.StatusResponse, error) { return nil, mute }, true, false, 0},
		"its machine is gone":         {"b:1", func() (*coordinatorv1.StatusResponse, error) { return nil, mute }, false, false, rivalWithin},
		"started again where it was":  {"a:1", answer("c1", 9), false, false, 0},
		"both are behind one address": {"a:1", answer("c1", 7), false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rival{
					ask:     func(context.Context, string) (*coordinatorv1.StatusResponse, error) { return c.ask() },
					refuses: func(context.Context, string) bool { return c.refuses },
				}
				begun := time.Now()
				if lives := r.lives(t.Context(), &Config{ID: "c1", Advertise: c.address, Incarnation: 9}, known); lives != c.lives {
					t.Errorf("it lives: %v", lives)
				}
				if took := time.Since(begun); took != c.took {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
