package assigner_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// TestMovesOfAKeyspaceThatIsGone: what counts against the moves that a member may have under
// way ends with its keyspace, also where both are learnt of at once.
func TestMovesOfAKeyspaceThatIsGone(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 1)
		w.claim(self, life)
		w.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: 1, ExpectedEpoch: w.now().Region(1).Epoch.Proto(), From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
			PrepareMaxMillis: 60_000, DeadlineMillis: 60_000,
		}}})
		synctest.Wait()
		if n := w.a.Vars().Moves; n != 1 {
			t.Fatalf("%d moves are under way, want 1", n)
		}
		id := w.now().PendingTransition(1).GetId()
		w.root.mu.Lock()
		w.root.appendLocked(
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: id}}}}},
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}}}},
			&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "games"}}}}},
		)
		gone := w.root.state.Keyspace(2) == nil
		w.root.mu.Unlock()
		if !gone {
			t.Fatal("the keyspace is there")
		}
		synctest.Wait()
		if n := w.a.Vars().Moves; n != 0 {
			t.Errorf("%d moves are counted of a keyspace that is gone", n)
		}
	})
}

// drains has m1 drain, which lets nothing go.
func (w *world) drains() {
	w.hosts(2, 1)
	w.claim(self, life)
	w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: "m1", Incarnation: w.lives("m1"), State: rootv1.MemberState_MEMBER_STATE_DRAINING, Reason: "test",
	}}})
	w.pass(time.Second, "m1", "m2")
	if w.now().PendingTransition(1) == nil {
		w.t.Fatal("nothing is on its way")
	}
}

// A region that its owner does not let go is served most of the time that a drain lasts: it
// is not asked for again as soon as the move is given up.
func TestADrainDoesNotDarkenARegionThatIsNotLetGo(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.drains()
		dark, looks := 0, 0
		for range 600 {
			w.pass(time.Second, "m1", "m2")
			if looks++; w.now().PendingTransition(1) != nil {
				dark++
			}
		}
		if dark > looks/2 || dark < looks/10 {
			t.Errorf("it is on its way in %d of %d looks", dark, looks)
		}
	})
}

// A deadline goes on while the Tenure changes hands.
func TestADeadlineGoesOnWithAnotherHolder(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.drains()
		began := time.Now()
		w.pass(25*time.Second, "m1", "m2")
		w.claim(other, 1)
		w.pass(25*time.Second, "m1", "m2")
		w.claim(self, life)
		var region state.RegionID = 1
		for w.now().PendingTransition(region) != nil && time.Since(began) < 3*time.Minute {
			w.pass(time.Second, "m1", "m2")
		}
		if d := time.Since(began); d < 55*time.Second || d > 65*time.Second {
			t.Errorf("the move was given up after %v, want its deadline of a minute", d)
		}
	})
}

// allow lets members own regions of a keyspace, and nobody else.
func (w *world) allow(principal, keyspace string) {
	w.must(&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
		Principal: principal, Keyspace: keyspace, Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST},
	}}}})
}

func (w *world) forbid(principal, keyspace string) {
	w.must(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: principal, Keyspace: keyspace}}})
}

// obeys has members do at once what the root asks of region 1: who gives it away has let it go, who is to
// take it is ready.
func (w *world) obeys(frontier string) {
	st := w.now()
	r, t := st.Region(1), st.PendingTransition(1)
	if t == nil {
		return
	}
	say := func(o state.Owner, phase coordinatorv1.RegionPhase) {
		w.report(o.Member, r.Proto(), func(p *coordinatorv1.RegionReport) {
			p.Phase, p.TransitionId = phase, t.GetId()
			if phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
				p.Frontier, p.SetFrontier = []byte(frontier), true
			}
		})
		w.mu.Lock()
		w.shown = st.Token()
		w.mu.Unlock()
		w.frame(o.Member, func(f *server.HeardFrame) { f.Turned = []state.RegionID{1} })
	}
	if t.GetReadyAt() == nil {
		say(rooted.OwnerFromProto(t.GetOwner()), coordinatorv1.RegionPhase_REGION_PHASE_READY)
	}
	for _, o := range r.Owners {
		say(o, coordinatorv1.RegionPhase_REGION_PHASE_RELEASED)
	}
}

// plain makes a keyspace that is never evened out, with a region that m1 owns beside m2.
func (w *world) plain() {
	settings, _ := state.Preset("games")
	settings.Policy.Rebalance, settings.Ownership.Fence = nil, rootv1.Fence_FENCE_UNSPECIFIED
	w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "plain", Settings: settings}}})
	w.join("m1")
	w.join("m2")
	w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		KeyspaceId: 2, StartKey: []byte("p"), Owners: []*rootv1.Owner{{MemberId: "m1"}},
	}}}})
	w.open("m1")
	w.open("m2")
	w.claim(self, life)
}

// Whoever may not own regions of a keyspace any more gives them away, whatever the keyspace's settings: also
// where nothing is ever evened out.
func TestWhoMayNotHostGivesAwayInEveryKeyspace(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.plain()
		w.pass(time.Minute, "m1", "m2")
		if len(w.owned("m1")) != 1 {
			t.Fatal("the region left for no reason")
		}
		w.allow("member/m2", "plain")
		for range 600 {
			w.pass(100*time.Millisecond, "m1", "m2")
			if w.obeys("f"); len(w.owned("m2")) == 1 {
				return
			}
		}
		t.Errorf("m1 has %d regions, m2 %d; %v", len(w.owned("m1")), len(w.owned("m2")), w.now().PendingTransition(1))
	})
}

// Whoever may not own a region any more, and never says that it has let it go, keeps it until the deadline of
// the move, and no longer.
func TestWhoMayNotHostAndNeverLetsGo(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.plain()
		w.pass(20*time.Second, "m1", "m2")
		w.allow("member/m2", "plain")
		for begun := time.Now(); len(w.owned("m2")) == 0; w.pass(time.Second, "m1", "m2") {
			if time.Since(begun) > 2*time.Minute {
				t.Fatalf("behind 2 minutes m1 has %d regions, m2 %d; %v", len(w.owned("m1")), len(w.owned("m2")), w.now().PendingTransition(1))
			}
			shown := w.now().Token()
			w.mu.Lock()
			w.shown = shown
			w.mu.Unlock()
		}
	})
}

// A region that nobody may own is given to the first who may, as soon as there is a grant.
func TestAGrantWakesWhatNobodyCouldTake(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(1, 0)
		w.allow("member/m9", "games")
		w.claim(self, life)
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 2, StartKey: []byte("p")}}}})
		w.pass(5*time.Second, "m1")
		if n := w.now().Orphaned(); n != 1 {
			t.Fatalf("%d regions have no owner, want 1", n)
		}
		w.allow("member/m1", "games")
		if w.pass(time.Second, "m1"); len(w.owned("m1")) != 1 {
			t.Errorf("m1 owns %v behind a grant", w.owned("m1"))
		}
	})
}

// A move to a member that may not have the region any more is given up, so that its owner serves it
// again: by the grants, which the plan looks at before anybody has done anything, or by a limit, which the
// root says.
func TestAMoveToWhoMayNotHaveItIsGivenUp(t *testing.T) {
	const byLimit = "a limit is lowered"
	for name, tighten := range map[string]func(*world){
		"a grant is taken back": func(w *world) { w.forbid("member/m2", "games") },
		byLimit: func(w *world) {
			settings := w.now().Keyspace(2).GetSettings()
			limited := state.MergeSettings(settings, &rootv1.KeyspaceSettings{Limits: &rootv1.Limits{MaxRegionsPerMember: 1}})
			w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: "games", ExpectedVersion: w.now().Keyspace(2).GetVersion(), Settings: limited}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.hosts(2, 2)
				w.allow("member/m1", "games")
				w.allow("member/m2", "games")
				w.claim(self, life)
				w.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
					RegionId: 1, ExpectedEpoch: w.now().Region(1).Epoch.Proto(), From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
					PrepareMaxMillis: 60_000, DeadlineMillis: 60_000,
				}}})
				w.pass(time.Second, "m1", "m2")
				tighten(w)
				begun := time.Now()
				for w.now().PendingTransition(1) != nil && time.Since(begun) < 10*time.Second {
					if w.pass(100*time.Millisecond, "m1", "m2"); name == byLimit {
						w.obeys("f")
					}
				}
				if owners := w.now().Region(1).Owners; w.now().PendingTransition(1) != nil || !slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Member == "m1" }) {
					t.Errorf("behind %v the region has owners %v and %v", time.Since(begun), owners, w.now().PendingTransition(1))
				}
			})
		})
	}
}

// A goodbye whose words have line breaks drains the member, and one that the root refuses is told to the
// member, with why.
func TestGoodbyesInAnyWords(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 1)
		w.claim(self, life)
		w.goodbye("m1", "a roll:\n\tmachine 7 \x00of 9\u202e")
		w.pass(time.Second, "m1", "m2")
		if m := w.now().Member("m1"); m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING || m.GetReason() != "it said goodbye: a roll: machine 7  of 9" {
			t.Errorf("the member is %v", m)
		}
		w.refuses = func(cmd *rootv1.Command) bool {
			return cmd.GetEvents()[0].GetMemberStateChanged().GetMemberId() == "m2"
		}
		for range 25 {
			w.goodbye("m2", "so long")
			w.pass(100*time.Millisecond, "m1", "m2")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.undrained); n < 2 || n > 4 || w.undrained[0].GetReason() != rootv1.Reason_REASON_MEMBER_NOT_FOUND {
			t.Errorf("m2 was told %d times in 2.5 s: %v", n, w.undrained)
		}
	})
}

func (w *world) goodbye(id state.MemberID, reason string) {
	w.frame(id, func(f *server.HeardFrame) { f.Goodbye = &coordinatorv1.Goodbye{Reason: reason} })
}

// RefuseDrain implements what UseStreams looks for.
func (w *world) RefuseDrain(_ state.MemberID, _ uint64, because *rootv1.ErrorDetail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.undrained = append(w.undrained, because)
}

// A member that says that it takes other keyspaces alone, while a region is on its way to it, gives that
// region away again, also where nothing is evened out.
func TestWhatComesToWhoTakesItNoMoreLeaves(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.plain()
		w.pass(20*time.Second, "m1", "m2")
		m := w.now().Member("m2")
		w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{
			Id: "m2", Address: m.GetAddress(), ProbeAddress: m.GetProbeAddress(), StartNonce: m.GetStartNonce(), Keyspaces: []string{"default"},
		}}}})
		w.pass(time.Second, "m1", "m2")
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: 1, ExpectedEpoch: w.now().Region(1).Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m2"}},
		}}}}})
		for begun := time.Now(); w.now().PendingTransition(1) == nil; w.pass(100*time.Millisecond, "m1", "m2") {
			if time.Since(begun) > time.Minute {
				t.Fatalf("m2, which takes %q alone, keeps the region", w.now().Member("m2").GetKeyspaces())
			}
		}
	})
}
