package server_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// proposed has c1 propose a command of somebody.
func (s *served) proposed(c *rootv1.Command) *rootv1.CommandResult {
	s.t.Helper()
	ctx, cancel := within(proctest.Patience)
	defer cancel()
	root := rootv1.NewRootClient(s.as(impersonate.Named(principal.Coordinator, "c1")))
	answer, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{c}})
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.GetResults()[0]
}

func tombstoned(id uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
}

func keyspace(name string, placement rootv1.Placement) *rootv1.Event {
	settings := state.DefaultSettings()
	settings.Placement = placement
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: settings}}}
}

// reported makes a keyspace whose members report their regions.
func (r *fakeReplica) reported() uint32 {
	r.apply([]*rootv1.Command{{Events: []*rootv1.Event{keyspace("now", rootv1.Placement_PLACEMENT_REPORTED)}}})
	return r.View().State.KeyspaceByName("now").GetId()
}

// taken is a region as m1 would have it that takes it away from its owner.
func taken(ks uint32, id uint64, expected *rootv1.RegionEpoch) *rootv1.Event {
	e := published(ks, id, "", "m", "m1")
	e.GetRegionPublished().Region.Epoch = &rootv1.RegionEpoch{Version: 9, ConfVersion: 9}
	e.GetRegionPublished().ExpectedEpoch = expected
	return e
}

// TestCommandsSentAheadOfWhatTheyChange: what a caller may not change is not changed
// because it was not there yet when the command was judged. The log is behind the
// judgement, and the numbers that the root gives can be guessed.
func TestCommandsSentAheadOfWhatTheyChange(t *testing.T) {
	for what, c := range map[string]struct {
		actor string
		event func(now, next uint32) *rootv1.Event // of a keyspace that is there, and of the next one
	}{
		"a client's removal":  {"client/eve", func(_, _ uint32) *rootv1.Event { return tombstoned(3) }},
		"a member's removal":  {"member/m1", func(_, _ uint32) *rootv1.Event { return tombstoned(3) }},
		"a client's region":   {"client/eve", func(_, next uint32) *rootv1.Event { return published(next, 9, "m", "", "m1") }},
		"a member's region":   {"member/m1", func(_, next uint32) *rootv1.Event { return taken(next, 9, &rootv1.RegionEpoch{}) }},
		"a region of another": {"member/m1", func(now, _ uint32) *rootv1.Event { return taken(now, 3, nil) }},
		"a region as if new":  {"member/m1", func(now, _ uint32) *rootv1.Event { return taken(now, 3, &rootv1.RegionEpoch{}) }},
		"a client's assignment": {"client/eve", func(_, _ uint32) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{RegionId: 3}}}}}
		}},
	} {
		r, s := secure(t)
		now, before := r.reported(), uint64(0)
		r.refuse = func([]*rootv1.Command) error { // an operator's command is in the log before it
			if before != 0 {
				return nil
			}
			r.apply([]*rootv1.Command{{Actor: "operator/op", Events: []*rootv1.Event{
				keyspace("next", rootv1.Placement_PLACEMENT_REPORTED),
				published(now, 3, "", "m", "m2"),
			}}})
			before = r.View().State.Hash()
			return nil
		}
		got := s.proposed(&rootv1.Command{Events: []*rootv1.Event{c.event(now, now+1)}, Actor: c.actor})
		if before != 0 && r.View().State.Hash() != before {
			t.Errorf("%s of %s, sent ahead of what it changes: %v", what, c.actor, got)
		}
	}
}

// TestMembersReportNewRegions: a member may say that a region is new, and its own.
func TestMembersReportNewRegions(t *testing.T) {
	r, s := secure(t)
	ks := r.reported()
	c := &rootv1.Command{Events: []*rootv1.Event{taken(ks, 3, &rootv1.RegionEpoch{})}, Actor: "member/m1", Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: 1}}
	for range 2 { // the second time it is answered with what it did
		if got := s.proposed(c); got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Errorf("a new region of its own: %v", got)
		}
	}
}

// TestRemovalsAreAnswered: who repeats a change that took away what it is about is
// answered as the first time.
func TestRemovalsAreAnswered(t *testing.T) {
	_, s := secure(t)
	for range 2 {
		c := &rootv1.Command{Events: []*rootv1.Event{tombstoned(1)}, Actor: "member/m1", Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: 1}}
		if got := s.proposed(c); got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Errorf("its own removal: %v", got)
		}
	}
}

// TestCallersWithoutAGrantHaveNothingInTheLog: also of what is not there. Each such
// command would be written by every root peer, and push out what is remembered of
// honest ones.
func TestCallersWithoutAGrantHaveNothingInTheLog(t *testing.T) {
	r, s := secure(t)
	before := r.View().Commit
	sent := uint64(0)
	for _, e := range []*rootv1.Event{
		tombstoned(1 << 40),
		published(99, 9, "", "", "m1"),
		{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{}}},
		{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 1 << 40}}},
		{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: "split-9-1.1"}}},
		{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: 99}}},
	} {
		for _, actor := range []string{"client/eve", "member/m1"} {
			sent++
			got := s.proposed(&rootv1.Command{Events: []*rootv1.Event{e}, Actor: actor, Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: sent}})
			if got.GetError().GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
				t.Errorf("%s: %T: %v", actor, e.GetKind(), got)
			}
		}
	}
	if n := r.View().Commit - before; n > 0 {
		t.Errorf("callers without any grant wrote %d entries", n)
	}
}

// TestAdminIsNotPublish: also in the command that creates the keyspace, whose number
// can be guessed.
func TestAdminIsNotPublish(t *testing.T) {
	r, s := secure(t)
	r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{
		Grant: &rootv1.Grant{Principal: "client/eve", Keyspace: "mine*", Verbs: []rootv1.Verb{rootv1.Verb_VERB_ADMIN}},
	}}}}}})
	next := r.View().State.KeyspaceByName("t").GetId() + 1
	create := keyspace("mine1", rootv1.Placement_PLACEMENT_ASSIGNED)
	hash := r.View().State.Hash()
	got := s.proposed(&rootv1.Command{Events: []*rootv1.Event{create, published(next, 9, "", "", "m1")}, Actor: "client/eve"})
	if r.View().State.Hash() != hash || got.GetError().GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
		t.Errorf("a client with admin alone published a region: %v", got)
	}
	if got := s.proposed(&rootv1.Command{Events: []*rootv1.Event{create}, Actor: "client/eve"}); got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("a client with admin: %v", got)
	}
}

// TestWhatACommandMakesIsItsOwn: an event behind others is judged by what they make, when
// it applies, and not before by what is not there yet.
func TestWhatACommandMakesIsItsOwn(t *testing.T) {
	at := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
	planned := func(id uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: id, ExpectedEpoch: at, SplitKey: []byte("g"), RightRegionId: 30}}}
	}
	drop := &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "t"}}}
	for actor, c := range map[string]struct {
		want   rootv1.Outcome
		others *rootv1.Event
	}{
		"member/m1":    {rootv1.Outcome_OUTCOME_APPLIED, planned(12)},
		"client/eve":   {rootv1.Outcome_OUTCOME_APPLIED, drop},
		"member/m2":    {rootv1.Outcome_OUTCOME_REJECTED, planned(11)},
		"client/other": {rootv1.Outcome_OUTCOME_REJECTED, drop},
	} {
		split := []*rootv1.Event{planned(11), {Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: "split-11-1.1"}}}}
		if strings.HasPrefix(actor, "client/") { // which completes nothing that an owner gives away
			split = []*rootv1.Event{planned(1), {Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: "split-1-1.1"}}}}
		}
		r, s := secure(t)
		now := r.reported()
		r.apply([]*rootv1.Command{{Events: []*rootv1.Event{published(now, 11, "", "m", "m1"), published(now, 12, "m", "", "m2")}}})
		for who, verb := range map[string]rootv1.Verb{"client/eve": rootv1.Verb_VERB_PUBLISH, "member/*": rootv1.Verb_VERB_HOST} {
			grant := &rootv1.Grant{Principal: who, Keyspace: "*", Verbs: []rootv1.Verb{verb}}
			r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: grant}}}}}})
		}
		if got := s.proposed(&rootv1.Command{Events: split, Actor: actor}); got.GetOutcome() != c.want {
			t.Errorf("%s: %v", actor, got)
		}
		behind := []*rootv1.Event{split[0], split[1], c.others}
		if got := s.proposed(&rootv1.Command{Events: behind, Actor: actor}); got.GetError().GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
			t.Errorf("%s, and what is others': %v", actor, got)
		}
		role := []*rootv1.Event{split[0], {Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: 1}}}}
		if got := s.proposed(&rootv1.Command{Events: role, Actor: actor}); got.GetError().GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
			t.Errorf("%s, and what is nobody's of its role: %v", actor, got)
		}
	}
}

// TestNewLeaderJudgesByAllThatWasAcknowledged: one that has not applied an entry of
// its own may not know yet that a grant was taken back.
func TestNewLeaderJudgesByAllThatWasAcknowledged(t *testing.T) {
	r, s := secure(t)
	grant := &rootv1.Grant{Principal: "client/eve", Keyspace: "t", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH}}
	r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: grant}}}}}})
	c := &rootv1.Command{Events: []*rootv1.Event{tombstoned(1)}, Actor: "client/eve"}
	r.with(func() {
		r.term++ // it has led for a moment
		r.reading = func() {
			r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{
				Principal: "client/eve", Keyspace: "t",
			}}}}}})
			r.reading = nil
		}
	})
	if got := s.proposed(c); got.GetError().GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
		t.Errorf("by a grant that was taken back: %v", got)
	}
	reads := r.reads
	if got := s.proposed(&rootv1.Command{Events: []*rootv1.Event{tombstoned(1)}, Actor: "member/m1"}); got.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED || r.reads != reads {
		t.Errorf("a leader that knows everything asked a quorum %d times: %v", r.reads-reads, got)
	}
}
