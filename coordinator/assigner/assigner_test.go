package assigner_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const failed = rootv1.MemberState_MEMBER_STATE_FAILED

// moved is how many owners a region has had when those of dead members moved once.
func moved(before *state.State, dead ...state.MemberID) func(r *state.Region) uint64 {
	return func(r *state.Region) uint64 {
		old := before.Region(r.ID)
		for _, id := range dead {
			if _, ok := old.Owner(id); ok {
				return old.Epoch.ConfVersion + 1
			}
		}
		return old.Epoch.ConfVersion
	}
}

// TestC24R19Rule7OneBatch: a verdict is one command; the regions follow in one, hottest first.
func TestC24R19Rule7OneBatch(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 30)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		hot := w.owned("m1")[7]
		w.report("m1", hot.Proto(), func(p *coordinatorv1.RegionReport) { p.Load = 5 })
		before := w.now()
		w.close("m1")
		w.pass(100*time.Millisecond, "m2", "m3")
		w.wantHomed(moved(before, "m1"))
		w.wantEra(1)
		cmds := w.commands()
		if len(cmds) != 2 {
			t.Fatalf("%d commands, want a verdict and the grants: %v", len(cmds), cmds)
		}
		verdict := cmds[0].GetEvents()[0].GetMemberStateChanged()
		if verdict.GetState() != failed || verdict.GetMemberId() != "m1" || len(verdict.GetSignals()) < 2 || verdict.GetReason() == "" {
			t.Errorf("the verdict is %v", verdict)
		}
		grants := cmds[1].GetEvents()[0].GetRegionsAssigned().GetAssignments()
		if len(grants) != 10 || grants[0].GetRegionId() != uint64(hot.ID) {
			t.Errorf("%d grants, region %d first, want 10 and %d first", len(grants), grants[0].GetRegionId(), hot.ID)
		}
		if a, b := len(w.owned("m2")), len(w.owned("m3")); a != 15 || b != 15 {
			t.Errorf("m2 has %d regions and m3 %d, want 15 each", a, b)
		}
		v := w.a.Vars()
		if v.Era != 1 || v.Verdicts != 1 || v.Proven != 1 || v.VerdictSignals["probe_refused"] != 1 || v.Operations["assign member_failed"] != 10 || v.Orphaned != 0 {
			t.Errorf("the numbers are %+v", v)
		}
	})
}

// TestFaultsOfAnswers: whatever becomes of calls to the root, nothing is done twice, and
// nothing is left.
func TestFaultsOfAnswers(t *testing.T) {
	some := func(f fault) func(int) fault {
		return func(call int) fault {
			if call%3 != 0 {
				return f
			}
			return fine
		}
	}
	for name, spoil := range map[string]func(int) fault{
		"lost before":   some(lostBefore),
		"lost behind":   some(lostAfter),
		"overloaded":    some(refusedForNow),
		"too few words": some(short),
		"all in turn":   func(call int) fault { return []fault{fine, lostBefore, lostAfter, refusedForNow, short}[call%5] },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.hosts(4, 40)
				w.claim(self, life)
				w.pass(time.Second, "m1", "m2", "m3", "m4")
				before := w.now()
				w.root.mu.Lock()
				w.spoil = spoil
				w.root.mu.Unlock()
				w.close("m1")
				w.close("m2")
				w.pass(5*time.Second, "m3", "m4")
				w.wantHomed(moved(before, "m1", "m2"))
				before = w.now()
				w.close("m3") // nothing of what was granted is stuck
				w.pass(5*time.Second, "m4")
				w.wantHomed(moved(before, "m3"))
				w.wantEra(1)
			})
		})
	}
}

// TestSlowRoot: a call that is not answered is given up and sent again, and judged once.
func TestSlowRoot(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 10)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2")
		before := w.now()
		w.root.mu.Lock()
		w.slow = make(chan struct{})
		w.root.mu.Unlock()
		w.close("m1")
		w.pass(7*time.Second, "m2")
		w.root.mu.Lock()
		calls := w.calls
		close(w.slow)
		w.slow = nil
		w.root.mu.Unlock()
		if calls < 3 || calls > 5 {
			t.Errorf("%d calls in 7 s, want one each 2 s", calls)
		}
		w.pass(time.Second, "m2")
		w.wantHomed(moved(before, "m1"))
	})
}

// TestEraLost: what a deposed holder sends is refused, and it sends nothing more; it
// begins anew with the next era.
func TestEraLost(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 10)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2")
		before := w.now()
		w.root.mu.Lock()
		w.slow, w.muted = make(chan struct{}), true // it does not hear of its end
		w.root.mu.Unlock()
		w.close("m1")
		w.pass(500*time.Millisecond, "m2")
		w.claim(other, 1)
		w.root.mu.Lock()
		close(w.slow)
		w.slow = nil
		w.root.mu.Unlock()
		w.pass(time.Second, "m2")
		if got := w.now().Member("m1").GetState(); got == failed {
			t.Fatal("a deposed holder's verdict was applied")
		}
		if w.a.Vars().Refusals["era_stale"] == 0 {
			t.Error("the refusal was not counted")
		}
		w.root.mu.Lock()
		w.muted = false
		close(w.changed)
		w.changed = make(chan struct{})
		w.root.mu.Unlock()
		w.pass(time.Second, "m2")
		sent := len(w.commands())
		w.pass(10*time.Second, "m2")
		if n := len(w.commands()); n != sent {
			t.Errorf("%d commands of one that holds nothing", n-sent)
		}
		w.claim(self, life)
		w.pass(time.Second, "m2") // it knows that the stream broke, and proves the rest
		w.wantHomed(moved(before, "m1"))
	})
}

// TestRefusedAsAWhole: a region that somebody else changed meanwhile does not hold up
// those that were granted with it.
func TestRefusedAsAWhole(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 30)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		before, theirs := w.now(), w.owned("m1")[2]
		// The Assigner plans by what it has seen; the operator is faster.
		w.root.mu.Lock()
		w.slow = make(chan struct{})
		w.root.mu.Unlock()
		w.must(memberFailed("m1"))
		synctest.Wait()
		w.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{
			{RegionId: uint64(theirs.ID), Owners: []*rootv1.Owner{{MemberId: "m2"}}},
		}}}})
		w.root.mu.Lock()
		close(w.slow)
		w.slow = nil
		w.root.mu.Unlock()
		w.pass(100*time.Millisecond, "m2", "m3")
		w.wantHomed(moved(before, "m1"))
		if v := w.a.Vars(); v.Refusals["epoch_stale"] != 1 || v.Operations["assign member_failed"] != 9 {
			t.Errorf("refusals %v, operations %v: want one refused and 9 granted", v.Refusals, v.Operations)
		}
	})
}

func memberFailed(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: failed, Reason: "a test"}}}
}

// TestRule7LastWordsAreRootedWithTheVerdict: what a process released before it left is rooted in front
// of its verdict, in as many commands as it takes; if the root takes none of that, the verdict is not
// held up.
func TestRule7LastWordsAreRootedWithTheVerdict(t *testing.T) {
	for points, refuses := range map[int]bool{6: false, 1100: false, 4: true} {
		play(t, func(t *testing.T, w *world) {
			w.hosts(1, points)
			w.claim(self, life)
			w.pass(time.Second, "m1")
			said := map[state.RegionID]string{}
			for _, r := range w.owned("m1") {
				said[r.ID] = fmt.Sprintf("exactly-%d", r.ID)
				w.report("m1", r.Proto(), func(p *coordinatorv1.RegionReport) {
					p.Phase, p.Frontier, p.SetFrontier = coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, []byte(said[r.ID]), true
				})
			}
			if refuses {
				w.root.mu.Lock()
				w.root.refuses = func(cmd *rootv1.Command) bool { return cmd.GetEvents()[0].GetRegionsAssigned() != nil }
				w.root.mu.Unlock()
			}
			w.frame("m1", func(f *server.HeardFrame) { f.Goodbye = &coordinatorv1.Goodbye{Gone: true} })
			synctest.Wait()
			if m := w.now().Member("m1"); m.GetState() != failed {
				t.Fatalf("%d regions: it is %v", points, m)
			}
			for id, at := range said {
				if r := w.now().Region(id); (r.Frontier == at) == refuses {
					t.Fatalf("%d regions, refused: %v: region %d begins at %q", points, refuses, id, r.Frontier)
				}
			}
		})
	}
}

// TestRule8Goodbye: a member that says goodbye is drained: its regions are prepared
// elsewhere, released, and granted at their exact frontiers.
func TestRule8Goodbye(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 6)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2", "m3")
		before := w.now()
		goodbye := func(f *server.HeardFrame) {
			f.Goodbye = &coordinatorv1.Goodbye{DeadlineMillis: 10_000, Reason: "upgrade"}
		}
		w.root.mu.Lock()
		w.slow = make(chan struct{})
		w.root.mu.Unlock()
		for range 3 {
			w.frame("m1", goodbye) // it says so until it is over
			synctest.Wait()
		}
		w.root.mu.Lock()
		close(w.slow)
		w.slow = nil
		w.root.mu.Unlock()
		synctest.Wait()
		if m := w.now().Member("m1"); m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING || !slices.Equal(m.GetSignals(), []string{state.GoodbyeSignal}) {
			t.Fatalf("it is %v", m)
		}
		pending := func() (all []*rootv1.Transition) {
			w.now().Transitions(func(x *rootv1.Transition) bool {
				if x.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
					all = append(all, x)
				}
				return true
			})
			return all
		}
		moves := pending()
		if len(moves) != 2 {
			t.Fatalf("%d moves begin, want 2: %v", len(moves), moves)
		}
		say := func(id string, x *rootv1.Transition, phase coordinatorv1.RegionPhase, change func(*coordinatorv1.RegionReport)) {
			r := w.now().Region(state.RegionID(x.GetRegionId()))
			w.report(state.MemberID(id), r.Proto(), func(p *coordinatorv1.RegionReport) {
				p.Phase, p.TransitionId = phase, x.GetId()
				change(p)
			})
			w.frame(state.MemberID(id), func(f *server.HeardFrame) { f.Turned = []state.RegionID{r.ID} })
			synctest.Wait()
		}
		for _, x := range moves {
			say(x.GetOwner().GetMemberId(), x, coordinatorv1.RegionPhase_REGION_PHASE_READY, func(*coordinatorv1.RegionReport) {})
		}
		for _, x := range pending() {
			if x.GetReadyAt() != nil {
				t.Error("ready was believed of one that had not been shown the move")
			}
		}
		w.mu.Lock()
		w.shown = w.now().Token()
		w.mu.Unlock()
		for _, id := range []state.MemberID{"m2", "m3"} {
			w.frame(id, func(f *server.HeardFrame) { f.Showed = true })
		}
		synctest.Wait()
		for _, x := range pending() {
			if x.GetReadyAt() == nil {
				t.Errorf("nobody rooted that the next owner is ready: %v", x)
			}
			say("m1", x, coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, func(p *coordinatorv1.RegionReport) {
				p.Frontier, p.SetFrontier = []byte("at "+x.GetId()), true
			})
		}
		if left := pending(); len(left) != 0 || len(w.owned("m1")) != 0 {
			t.Errorf("%d moves go on, %d regions are left", len(left), len(w.owned("m1")))
		}
		for _, x := range moves {
			if r := w.now().Region(state.RegionID(x.GetRegionId())); r.Frontier != "at "+x.GetId() {
				t.Errorf("region %d is granted at frontier %q", r.ID, r.Frontier)
			}
		}
		w.wantHomed(moved(before, "m1"))
		drains := 0
		for _, cmd := range w.commands() {
			if cmd.GetEvents()[0].GetMemberStateChanged() != nil {
				drains++
			}
		}
		if drains != 1 {
			t.Errorf("%d drains were rooted, want one", drains)
		}
		if v := w.a.Vars(); v.Drains != 1 || v.Operations["complete member_draining"] != 2 || v.Moves != 0 {
			t.Errorf("the numbers are %+v", v)
		}
	})
}

// TestC10Warm: a standby hears streams end and does nothing; when it holds, it proves at
// once, and counts the silence from before when it has heard members for a second.
func TestC10Warm(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(5, 10)
		w.claim(other, 1)
		w.close("m1")
		w.pass(20*time.Second, "m2", "m4", "m5") // m3 is silent
		if cmds, n := w.commands(), w.probed; len(cmds) != 0 || n != 0 {
			t.Fatalf("a standby sent %v and probed %d times", cmds, n)
		}
		w.mu.Lock()
		w.probe = func(_ context.Context, p liveness.Probe) liveness.ProbeResult {
			if p.Member == "m1" {
				return liveness.Refused
			}
			return liveness.AnsweredSame
		}
		w.mu.Unlock()
		w.claim(self, life)
		w.pass(500*time.Millisecond, "m2", "m4", "m5")
		if w.now().Member("m1").GetState() != failed {
			t.Error("a death that could be proven was not")
		}
		if w.now().Member("m3").GetState() == failed {
			t.Error("no member had time to find the new holder")
		}
		w.pass(1500*time.Millisecond, "m2", "m4", "m5")
		if w.now().Member("m3").GetState() != failed {
			t.Error("silence from before the era did not count")
		}
	})
}

// TestAsked: before a verdict without proof the others are asked. One that hears the
// member puts it off; one that does not answer holds up nobody.
func TestAsked(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(3, 9)
		w.must(&rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
			Id: other, Address: "c2:1", Incarnation: 1, FeatureLevel: state.FeatureLevel,
		}}})
		w.claim(self, life)
		w.mu.Lock()
		w.probe = func(ctx context.Context, _ liveness.Probe) liveness.ProbeResult {
			<-ctx.Done() // bounded by its caller
			return liveness.NoAnswer
		}
		w.words = func(_ context.Context, ids []state.MemberID) (words []liveness.Word, err error) {
			for _, id := range ids {
				words = append(words, liveness.Word{Member: id, Incarnation: w.lives(id), Age: 10 * time.Millisecond})
			}
			return words, nil
		}
		w.mu.Unlock()
		w.pass(time.Second, "m1", "m2", "m3")
		w.pass(8*time.Second, "m2", "m3") // death takes 5 s
		if w.now().Member("m1").GetState() == failed {
			t.Fatal("one that another coordinator hears was failed")
		}
		if s := w.a.Standing("m1"); s.Health != liveness.Suspected || s.Signals&liveness.HeardElsewhere == 0 {
			t.Errorf("it is thought of as %+v", s)
		}
		w.mu.Lock()
		w.words = nil
		w.mu.Unlock()
		w.pass(8*time.Second, "m2", "m3")
		if w.now().Member("m1").GetState() != failed {
			t.Fatal("one that nobody hears was not failed")
		}
		w.mu.Lock()
		w.words = func(context.Context, []state.MemberID) ([]liveness.Word, error) { return nil, errors.New("refused") }
		w.mu.Unlock()
		w.pass(8*time.Second, "m3")
		if w.now().Member("m2").GetState() != failed {
			t.Fatal("one that nobody hears was not failed")
		}
	})
}

// TestMassFailureIsHeld: when most members vanish without proof, nobody is failed, and it
// is shown, and said in the log once, where it changes nothing.
func TestMassFailureIsHeld(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(4, 8)
		w.claim(self, life)
		w.mu.Lock()
		w.probe = func(context.Context, liveness.Probe) liveness.ProbeResult { return liveness.NoAnswer }
		w.mu.Unlock()
		w.pass(time.Second, "m1", "m2", "m3", "m4")
		before := w.now().Member("m1").GetRevision()
		w.pass(30*time.Second, "m4")
		if v := w.a.Vars(); v.Held["mass_failure_hold"] != 3 || v.Holds == 0 || v.Verdicts != 0 {
			t.Errorf("the numbers are %+v", v)
		}
		noted := map[string]int{}
		for _, cmd := range w.commands() {
			for _, e := range cmd.GetEvents() {
				if strings.HasPrefix(cmd.GetWhy(), "mass_failure_hold: ") && e.GetMemberStateChanged().GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE {
					noted[e.GetMemberStateChanged().GetMemberId()]++
				}
			}
		}
		if want := map[string]int{"m1": 1, "m2": 1, "m3": 1}; !maps.Equal(noted, want) || w.now().Member("m1").GetRevision() != before {
			t.Errorf("the log says of %v that a verdict is held, and m1 changed at %d, want %v, %d", noted, w.now().Member("m1").GetRevision(), want, before)
		}
		w.pass(5*time.Second, "m1", "m2", "m3", "m4")
		if v := w.a.Vars(); len(v.Held) != 0 {
			t.Errorf("held although they speak: %v", v.Held)
		}
	})
}

// TestNobodyIsForgotten: regions that nobody can take are counted, and taken by the
// first who can.
func TestNobodyIsForgotten(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(1, 5)
		w.claim(self, life)
		w.pass(time.Second, "m1")
		w.close("m1")
		w.pass(time.Second)
		if v := w.a.Vars(); v.Orphaned != 5 || v.Starving != 5 {
			t.Errorf("%d orphaned, %d starving, want 5", v.Orphaned, v.Starving)
		}
		w.join("m2")
		w.pass(5 * time.Second)
		if len(w.owned("m2")) != 0 {
			t.Fatal("a member got regions that nobody has heard")
		}
		w.open("m2")
		synctest.Wait()
		if n := len(w.owned("m2")); n != 5 {
			t.Errorf("%d regions are taken by the first who can, want 5", n)
		}
	})
}

// TestStreamsBeforeTheView: a member's stream may be let in by a view that Run has not
// looked at.
func TestStreamsBeforeTheView(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 4)
		a, err := assigner.New(w.cfg) // it does not run
		if err != nil {
			t.Fatal(err)
		}
		a.Opened("m1", w.lives("m1"), 9, 0)
		if s := a.Standing("m1"); !s.Connected || s.Incarnation != w.lives("m1") {
			t.Errorf("the stream is not known: %+v", s)
		}
	})
}

// TestVerdictRefused: one that the root refused is passed again, if it is still due.
func TestVerdictRefused(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.hosts(2, 4)
		w.claim(self, life)
		w.pass(time.Second, "m1", "m2")
		w.root.mu.Lock()
		w.spoil = func(call int) fault {
			if call == 1 {
				return denied
			}
			return fine
		}
		w.root.mu.Unlock()
		w.close("m1")
		w.pass(500*time.Millisecond, "m2")
		if w.now().Member("m1").GetState() == failed {
			t.Fatal("it was passed again without a pause")
		}
		w.pass(2*time.Second, "m2")
		if w.now().Member("m1").GetState() != failed || len(w.owned("m2")) != 4 {
			t.Error("it was not passed again")
		}
	})
}
