package tenure_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// script drives one Core by hand.
type script struct {
	t     *testing.T
	core  *tenure.Core
	count tenure.Counters
	now   clock.Instant
}

var errLost = errors.New("no answer")

func newScript(t *testing.T, change func(*tenure.Settings)) *script {
	s := tenure.Settings{
		ID: "c1", Incarnation: 11, Address: "c1:1", TTL: 300 * time.Millisecond,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}
	if change != nil {
		change(&s)
	}
	sc := &script{t: t, now: 1}
	sc.core = tenure.NewCore(s, &sc.count)
	return sc
}

func (s *script) after(d time.Duration) *script {
	s.now = s.now.Add(d)
	s.core.Tick(s.now)
	return s
}

// used is after, with somebody asking for a value before.
func (s *script) used(d time.Duration) *script {
	s.core.Used()
	return s.after(d)
}

// expect takes the actions and compares their kinds.
func (s *script) expect(kinds ...tenure.ActionKind) []tenure.Action {
	s.t.Helper()
	got := s.core.Actions()
	if len(got) != len(kinds) {
		s.t.Fatalf("actions %+v, want kinds %v", got, kinds)
	}
	for i, k := range kinds {
		if got[i].Kind != k {
			s.t.Fatalf("action %d is %+v, want kind %v", i, got[i], k)
		}
	}
	return got
}

func tenureOf(era uint64, id string, incarnation uint64, ttl time.Duration) *rootv1.Tenure {
	return &rootv1.Tenure{
		Era: era, HolderId: id, HolderIncarnation: incarnation, HolderAddress: id + ":1",
		TtlMillis: uint64(ttl.Milliseconds()), Inherited: &rootv1.Frontiers{},
	}
}

func (s *script) view(t *rootv1.Tenure) *script {
	s.core.OnView(tenure.Authority{Tenure: t}, s.now)
	return s
}

func granted(t *rootv1.Tenure) *rootv1.ClaimTenureResponse {
	return &rootv1.ClaimTenureResponse{Result: &rootv1.CommandResult{
		Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{{Tenure: t}},
	}}
}

func refusedClaim(reason rootv1.Reason, era uint64, retry time.Duration) *rootv1.ClaimTenureResponse {
	return &rootv1.ClaimTenureResponse{
		Result: &rootv1.CommandResult{
			Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: reason, Era: era},
		},
		RetryAfterMillis: uint64(retry.Milliseconds()),
	}
}

// hold makes the Core holder of era 1 and answers its first confirmation.
func (s *script) hold(ttl time.Duration) *script {
	s.t.Helper()
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(granted(tenureOf(1, "c1", 11, ttl)), nil, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
	s.confirm(1)
	s.expect(tenure.Advance)
	return s
}

func (s *script) confirm(seq uint64) {
	era := s.core.Era()
	s.core.OnConfirmed(era, seq, &rootv1.ConfirmTenureResponse{Active: true, Tenure: s.core.Tenure()}, nil, s.now)
}

// Rule 1: a claim names the era it was made for, and the era counts only when
// the root gave it to this very process.
func TestRule1Claim(t *testing.T) {
	s := newScript(t, nil)
	s.after(time.Hour).expect()
	retired := tenureOf(4, "c9", 9, time.Second)
	retired.Retired = true
	a := s.view(retired).expect(tenure.Claim)
	if c := a[0].Claim; c.ExpectedEra != 4 || c.HolderId != "c1" || c.HolderIncarnation != 11 || c.TtlMillis != 300 || c.PredecessorExpired {
		t.Fatalf("claim %v", c)
	}
	// One at a time.
	s.after(time.Hour).expect()
	// An era of a process of the same name is not ours.
	s.core.OnClaimed(granted(tenureOf(5, "c1", 10, time.Second)), nil, s.now)
	if s.core.Era() != 0 {
		t.Fatal("took the era of another incarnation")
	}
}

// What the claim's answer brings belongs to the era that begins with it, also
// when the view shows that era before the answer comes.
func TestWindowsComeWithTheAnswer(t *testing.T) {
	for _, viewFirst := range []bool{false, true} {
		s := newScript(t, nil)
		s.view(nil).expect(tenure.Claim)
		era := tenureOf(1, "c1", 11, time.Second)
		if viewFirst {
			s.view(era).expect()
		}
		r := granted(era)
		r.Result.Events = append(r.Result.Events, &rootv1.EventResult{Window: &rootv1.Window{Era: 1, To: 5}}, &rootv1.EventResult{Window: &rootv1.Window{Era: 1, To: 7}})
		s.core.OnClaimed(r, nil, s.now)
		if a := s.expect(tenure.Begin, tenure.Confirm); len(a[0].Windows) != 2 || a[0].Windows[1].To != 7 {
			t.Fatalf("view first %v: began with %v", viewFirst, a[0].Windows)
		}
		// They are of that era alone.
		s.core.OnEraOver(1, s.now)
		s.expect(tenure.End)
		s.after(time.Second).expect(tenure.Claim)
		s.core.OnClaimed(granted(tenureOf(2, "c1", 11, time.Second)), nil, s.now)
		if a := s.expect(tenure.Begin, tenure.Confirm); a[0].Windows != nil {
			t.Fatalf("era 2 began with %v", a[0].Windows)
		}
	}
}

// An era that the view shows begins without the answer when there will be none.
func TestBeginsWithoutAnswer(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.view(tenureOf(1, "c1", 11, time.Second)).expect()
	s.core.OnClaimed(nil, errLost, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
}

func TestRule1UnknownOutcomeIsFoundInTheView(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(nil, errLost, s.now)
	s.expect()
	mine := tenureOf(1, "c1", 11, 300*time.Millisecond)
	s.view(mine).expect(tenure.Begin, tenure.Confirm)
	// The claim was sent again and is answered late: not begun twice.
	s.core.OnClaimed(granted(mine), nil, s.now)
	s.expect()
	if s.core.Era() != 1 {
		t.Fatalf("era %d", s.core.Era())
	}
}

func TestRule1UnknownOutcomeIsRetried(t *testing.T) {
	s := newScript(t, nil)
	first := s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(nil, errLost, s.now)
	again := s.after(time.Second).expect(tenure.Claim)
	if again[0].Claim.ExpectedEra != first[0].Claim.ExpectedEra {
		t.Fatal("the retry is another claim")
	}
}

// Rule 2: a confirmation is good for the ttl from its sending, whenever the
// answer came.
func TestRule2CountedFromTheSending(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(granted(tenureOf(1, "c1", 11, 300*time.Millisecond)), nil, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
	sent := s.now
	s.now = s.now.Add(90 * time.Millisecond)
	s.confirm(1)
	if want := sent.Add(300 * time.Millisecond); s.core.Until() != want {
		t.Fatalf("good until %d, want %d", s.core.Until(), want)
	}
}

// Rule 3, the holder's half: refused claims wait as long as the root says.
func TestRule3ClaimWaitsForTheRoot(t *testing.T) {
	s := newScript(t, nil)
	s.view(tenureOf(1, "c2", 22, 200*time.Millisecond)).expect()
	s.core.OnHolderSuspect(1, s.now)
	s.expect(tenure.Claim)
	s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_PRIMACY, 1, 120*time.Millisecond), nil, s.now)
	s.after(119 * time.Millisecond).expect()
	s.after(10 * time.Millisecond).expect(tenure.Claim)
}

// A confirmation that the root holds back because it decides a claim does not
// end the era.
func TestRule3UndecidedClaimDoesNotEndTheEra(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.used(100 * time.Millisecond).expect(tenure.Confirm)
	s.core.OnConfirmed(1, 2, &rootv1.ConfirmTenureResponse{Tenure: s.core.Tenure()}, nil, s.now)
	s.expect()
	if s.core.Era() != 1 {
		t.Fatal("gave the era up")
	}
	s.after(10 * time.Millisecond).expect(tenure.Confirm)
}

// Rule 4: an orderly end drains first, still confirming, and retires after the
// era has ended here.
func TestA33Rule4Retire(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.core.Shutdown(s.now)
	s.expect()
	s.core.Want(s.now)
	s.expect(tenure.Confirm)
	s.core.OnDrained(s.now)
	s.expect(tenure.End, tenure.Retire)
	if s.core.Until() != 0 || s.core.Era() != 0 {
		t.Fatal("the era is still held")
	}
	s.view(nil).after(time.Hour).expect()
}

func TestRule4ClaimGrantedAfterShutdownIsRetired(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.Shutdown(s.now)
	if !s.core.ClaimOpen() {
		t.Fatal("the claim is forgotten")
	}
	s.core.OnClaimed(granted(tenureOf(1, "c1", 11, 0)), nil, s.now)
	if a := s.expect(tenure.Retire); a[0].Tenure.GetEra() != 1 {
		t.Fatalf("retires %v", a[0])
	}
}

// Rules 5 and 6: with a ttl of 0 a value waits for a confirmation sent after
// it was taken; one serves all that wait, and two may be in flight.
func TestRule5And6EveryBatchIsConfirmed(t *testing.T) {
	s := newScript(t, nil).hold(0)
	if s.core.Until() != 0 {
		t.Fatal("a confirmation is good for later values")
	}
	a := s.core.Want(s.now)
	s.expect(tenure.Confirm)
	b := s.core.Want(s.now)
	s.expect(tenure.Confirm)
	c, d := s.core.Want(s.now), s.core.Want(s.now)
	s.expect()
	if a != 2 || b != 3 || c != 4 || d != 4 {
		t.Fatalf("confirmations %d %d %d %d", a, b, c, d)
	}
	s.confirm(2)
	s.expect(tenure.Confirm)
	if s.core.Confirmed() != 2 {
		t.Fatalf("confirmed %d: a must be served, b must not", s.core.Confirmed())
	}
	// The answer to a later one serves the earlier ones too.
	s.confirm(4)
	if s.core.Confirmed() != 4 {
		t.Fatalf("confirmed %d", s.core.Confirmed())
	}
	s.confirm(3)
	if s.core.Confirmed() != 4 {
		t.Fatal("went back")
	}
	s.after(time.Hour)
	for _, x := range s.core.Actions() {
		if x.Kind == tenure.Confirm {
			t.Fatal("confirms though nobody waits")
		}
	}
}

func TestRule6LostConfirmationIsRepeated(t *testing.T) {
	s := newScript(t, nil).hold(0)
	s.core.Want(s.now)
	s.expect(tenure.Confirm)
	s.core.OnConfirmed(1, 2, nil, errLost, s.now)
	s.expect()
	a := s.after(time.Second).expect(tenure.Confirm)
	s.confirm(a[0].Seq)
	if s.core.Confirmed() < 2 {
		t.Fatal("the one who waits is not served")
	}
}

// Rule 6 with a ttl: renewed each third, lapsed means waiting.
func TestA36Rule6RenewAndLapse(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.used(99 * time.Millisecond).expect()
	s.used(time.Millisecond).expect(tenure.Confirm)
	s.used(100 * time.Millisecond).expect(tenure.Confirm)
	s.used(100 * time.Millisecond).expect()
	s.used(time.Millisecond)
	if s.count.Lapses.Load() != 1 || s.core.Era() != 1 {
		t.Fatalf("lapses %d era %d", s.count.Lapses.Load(), s.core.Era())
	}
	s.confirm(3)
	if s.core.Until() <= s.now {
		t.Fatal("still lapsed")
	}
}

// Rule 6: while nobody asks, confirmations come less often, and before the last one
// ends; whoever asks brings the pace back, from the last one on.
func TestRule6IdlePace(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.after(224 * time.Millisecond).expect()
	a := s.after(time.Millisecond).expect(tenure.Confirm)
	s.confirm(a[0].Seq)
	s.after(99 * time.Millisecond).expect()
	s.used(time.Millisecond).expect(tenure.Confirm)
	s.confirm(3)
	s.after(99 * time.Millisecond).expect()
	s.after(time.Millisecond).expect(tenure.Confirm) // Somebody may have asked since.
	s.confirm(4)
	s.after(224 * time.Millisecond).expect()
	s.used(0).expect(tenure.Confirm)
	if s.count.Lapses.Load() != 0 {
		t.Fatalf("%d lapses", s.count.Lapses.Load())
	}
}

// Rule 7: the ttl is the Tenure's, not this process's setting.
func TestA36Rule7TTLFromTheRecord(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(granted(tenureOf(1, "c1", 11, 90*time.Millisecond)), nil, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
	sent := s.now
	s.confirm(1)
	if s.core.Until() != sent.Add(90*time.Millisecond) {
		t.Fatal("counts with its own ttl")
	}
}

// Rule 8: each way in which a standby finds out.
func TestA23Rule8Takeover(t *testing.T) {
	probed := func(s *tenure.Settings) { s.Probed = true }
	held := tenureOf(1, "c2", 22, 200*time.Millisecond)

	t.Run("refused", func(t *testing.T) {
		s := newScript(t, probed)
		s.view(held).expect()
		s.core.OnProbe("elsewhere:1", tenure.HealthRefused, s.now)
		s.expect()
		s.core.OnProbe("c2:1", tenure.HealthRefused, s.now)
		if s.expect(tenure.Claim)[0].Claim.GetUnlessConfirmed() {
			t.Error("with proof it spares a holder that is confirmed")
		}
	})
	t.Run("unknown for too long", func(t *testing.T) {
		s := newScript(t, probed)
		s.view(tenureOf(1, "c2", 22, 0)).expect()
		s.after(200 * time.Millisecond)
		s.core.OnProbe("c2:1", tenure.HealthServing, s.now)
		s.after(200 * time.Millisecond)
		s.core.OnProbe("c2:1", tenure.HealthUnknown, s.now)
		s.expect()
		if !s.after(100 * time.Millisecond).expect(tenure.Claim)[0].Claim.GetUnlessConfirmed() {
			t.Error("without proof it claims over a holder that is confirmed")
		}
	})
	t.Run("well again", func(t *testing.T) {
		s := newScript(t, probed)
		s.view(held)
		s.core.OnProbe("c2:1", tenure.HealthRefused, s.now)
		s.expect(tenure.Claim)
		s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_PRIMACY, 1, 50*time.Millisecond), nil, s.now)
		s.core.OnProbe("c2:1", tenure.HealthServing, s.now)
		s.after(100 * time.Millisecond).expect()
	})
	t.Run("retired", func(t *testing.T) {
		s := newScript(t, probed)
		s.view(held).expect()
		retired := tenureOf(1, "c2", 22, 200*time.Millisecond)
		retired.Retired = true
		s.view(retired).expect(tenure.Claim)
	})
	t.Run("own earlier process", func(t *testing.T) {
		newScript(t, probed).view(tenureOf(1, "c1", 10, time.Second)).expect(tenure.Claim)
	})
	t.Run("no probe, ttl", func(t *testing.T) {
		s := newScript(t, nil)
		s.view(held).expect()
		s.after(time.Second).expect(tenure.Claim)
		s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_PRIMACY, 1, 150*time.Millisecond), nil, s.now)
		s.after(500 * time.Millisecond).expect()
		s.after(time.Second).expect(tenure.Claim)
	})
	t.Run("no probe, no ttl", func(t *testing.T) {
		s := newScript(t, nil)
		s.view(tenureOf(1, "c2", 22, 0)).after(time.Hour).expect()
	})
	t.Run("lost the race", func(t *testing.T) {
		s := newScript(t, nil)
		s.view(nil).expect(tenure.Claim)
		s.core.OnClaimed(refusedClaim(rootv1.Reason_REASON_ERA_STALE, 1, 0), nil, s.now)
		s.after(time.Millisecond).expect()
		s.view(held).after(30 * time.Millisecond).expect()
	})
}

// Rule 9: every way in which a holder finds its era over stops it at once.
func TestA33Rule9Over(t *testing.T) {
	over := map[string]func(*script){
		"view": func(s *script) { s.view(tenureOf(2, "c2", 22, time.Second)) },
		"view, retired": func(s *script) {
			r := tenureOf(1, "c1", 11, 300*time.Millisecond)
			r.Retired = true
			s.view(r)
		},
		"confirmation": func(s *script) {
			s.used(100 * time.Millisecond).expect(tenure.Confirm)
			s.core.OnConfirmed(1, 2, &rootv1.ConfirmTenureResponse{Tenure: tenureOf(2, "c2", 22, time.Second)}, nil, s.now)
		},
		"refused act": func(s *script) { s.core.OnEraOver(1, s.now) },
	}
	for name, stop := range over {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, nil).hold(300 * time.Millisecond)
			stop(s)
			got := s.core.Actions()
			if len(got) == 0 || got[0].Kind != tenure.End || got[0].Era != 1 {
				t.Fatalf("actions %+v, want End of era 1 first", got)
			}
			if s.core.Era() != 0 || s.core.Until() != 0 || s.core.Phase() != tenure.Standby {
				t.Fatal("still holds")
			}
			// Answers that arrive late change nothing, and the era never returns.
			s.core.OnConfirmed(1, 2, &rootv1.ConfirmTenureResponse{Active: true}, nil, s.now)
			s.view(tenureOf(1, "c1", 11, 300*time.Millisecond))
			if s.core.Era() != 0 {
				t.Fatal("the era came back")
			}
		})
	}
}

func TestSupersededStopsForGood(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.core.OnSuperseded(s.now)
	s.expect(tenure.End, tenure.Retire)
	retired := tenureOf(1, "c1", 11, 300*time.Millisecond)
	retired.Retired = true
	s.view(retired).after(time.Hour).expect()
	if !s.core.Superseded() {
		t.Fatal("does not say so")
	}
}

// Finality: both stages are proposed until they are rooted, in one command
// when both are due, and an open handover is counted.
func TestHandoverIsClosed(t *testing.T) {
	s := newScript(t, nil)
	s.view(nil).expect(tenure.Claim)
	s.core.OnClaimed(granted(tenureOf(1, "c1", 11, 0)), nil, s.now)
	s.expect(tenure.Begin, tenure.Confirm)
	s.core.OnFenced(1, s.now)
	s.expect()
	s.confirm(1)
	a := s.expect(tenure.Advance)
	if a[0].To != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
		t.Fatalf("advances to %v", a[0].To)
	}
	s.core.OnAdvanced(1, 0, errLost, s.now)
	s.after(time.Second).expect(tenure.Advance)
	s.after(time.Hour).expect() // The machine slept.
	s.after(tenure.DefaultHandoverDeadline - time.Nanosecond).expect()
	if s.count.Violations.Finality.Load() != 0 {
		t.Fatal("a standstill is counted")
	}
	s.after(time.Nanosecond).expect()
	if s.count.Violations.Finality.Load() != 1 {
		t.Fatal("an open handover is not counted")
	}
	s.core.OnAdvanced(1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, nil, s.now)
	s.after(time.Hour).expect()
	if s.count.Violations.Finality.Load() != 1 || s.count.HandoverSteps.Load() != 2 {
		t.Fatal("miscounted")
	}
}

func TestTwoHoldersOfOneEraAreCounted(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	s.view(tenureOf(1, "c2", 22, time.Second))
	if s.count.Violations.Primacy.Load() != 1 {
		t.Fatal("not counted")
	}
}

// Every era that is seen to begin is counted once, whoever tells of it and how often. A root that
// confirms an era and shows another one breaks Silence: the era is over here, and that is counted.
func TestN99ErasAndABrokenSilenceAreCounted(t *testing.T) {
	s := newScript(t, nil).hold(300 * time.Millisecond)
	own := s.core.Tenure()
	s.view(own).view(own)
	if n := s.count.EraTransitions.Load(); n != 1 {
		t.Fatalf("%d eras are counted, want 1", n)
	}
	s.used(200 * time.Millisecond).expect(tenure.Confirm)
	if s.count.Violations.Silence.Load() != 0 {
		t.Fatal("counted before anything was said")
	}
	next := tenureOf(2, "c2", 22, time.Second)
	s.core.OnConfirmed(1, 2, &rootv1.ConfirmTenureResponse{Active: true, Tenure: next}, nil, s.now)
	if s.count.Violations.Silence.Load() != 1 || s.core.Era() != 0 {
		t.Fatalf("counted %d times, and era %d goes on", s.count.Violations.Silence.Load(), s.core.Era())
	}
	s.view(next)
	if n := s.count.EraTransitions.Load(); n != 2 {
		t.Fatalf("%d eras are counted, want 2", n)
	}
}
