package liveness_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const ttl = 20 * time.Second

func clockOf(d time.Duration) clock.Instant { return clock.Instant(d) }

// fencedWard has a member that owns regions with a fence of 20 s, and was confirmed.
func fencedWard(t *testing.T) *ward {
	w := newWard(t)
	w.join("m1", 1, "fenced")
	w.join("m2", 1, "fenced")
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
	w.run(time.Minute)
	w.confirm("m1", 1)
	return w
}

func (w *ward) confirm(id string, incarnation uint64) {
	w.Helper()
	if !w.core.Answered(rooted.MemberID(id), incarnation, w.now) {
		w.Fatalf("%s cannot be confirmed", id)
	}
}

// Without proof a verdict waits for the ttl since the last confirmation, by clocks
// that may run differently.
func TestRule5VerdictWaitsForTheFence(t *testing.T) {
	w := fencedWard(t)
	at := w.now
	w.cut("m1", 1)
	w.run(time.Minute)
	w.verdict("m1", at, ttl+ttl/100, ttl+ttl/100+50*ms)
	if !w.clear("m1", 1, ttl) {
		t.Error("behind the verdict the fence has not run out")
	}
}

// Confirmed again and again, and then not: the last answer counts.
func TestRule5TheLastAnswerCounts(t *testing.T) {
	w := fencedWard(t)
	w.run(15 * time.Second)
	w.confirm("m1", 1)
	at := w.now
	w.cut("m1", 1)
	w.run(time.Minute)
	w.verdict("m1", at, ttl+ttl/100, ttl+ttl/100+50*ms)
}

// Who owns regions of keyspaces with and without a ttl loses those without one when death is due:
// they do not wait for the ttl of the others, which go on to wait for it.
func TestRule5RegionsWaitForTheFenceOfTheirOwnKeyspace(t *testing.T) {
	w := fencedWard(t)
	for _, id := range []string{"m1", "m2", "m3"} {
		w.core.SetMember(&rootv1.Member{Id: id, Incarnation: 1, State: active, ProbeAddress: id + ":1", Keyspaces: []string{"slow", "fenced"}}, w.now)
	}
	w.connect("m3", 1)
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 1, slow: 1}
	w.run(5 * time.Second)
	w.confirm("m1", 1)
	at := w.now
	w.hang("m1")
	w.run(12 * time.Second)
	w.verdict("m1", at, 9900*ms, 11*time.Second)
	w.root("m1", 1, failed, "slow")
	if !w.clear("m1", 1, 0) || w.clear("m1", 1, ttl) {
		t.Error("behind the verdict regions without a ttl wait, or those with one do not")
	}
	w.now = at.Add(ttl + ttl/100)
	if !w.clear("m1", 1, ttl) {
		t.Error("the ttl does not run out")
	}
}

// A fence that is the epoch waits for nothing.
func TestRule5EraFenceIsClearAtOnce(t *testing.T) {
	w := fencedWard(t)
	w.root("m1", 1, failed, "fenced")
	if !w.clear("m1", 1, 0) || w.clear("m1", 1, ttl) {
		t.Error("a fence of no time is not clear at once, or one of a ttl is")
	}
	w.core.End()
	if w.clear("m1", 1, 0) {
		t.Error("who does not hold the Tenure grants nothing")
	}
}

// The holder before may have confirmed until this era began.
func TestRule5NewHolderWaits(t *testing.T) {
	w := fencedWard(t)
	w.core.End()
	w.now = w.now.Add(time.Hour)
	w.hang("m1")
	w.core.Begin(2, w.now)
	w.root("m1", 1, failed, "fenced")
	if w.clear("m1", 1, ttl) {
		t.Fatal("a new holder grants at once what the old one may have confirmed")
	}
	w.now = w.now.Add(ttl)
	if w.clear("m1", 1, ttl) {
		t.Fatal("a new holder takes no account of clock rates")
	}
	w.now = w.now.Add(ttl / 100)
	if !w.clear("m1", 1, ttl) || !w.clear("stranger", 7, ttl) {
		t.Fatal("the fence does not run out")
	}
}

// Silence counts across eras, from what was heard here; a new holder waits for the members to
// find it, and longer for one that it never heard.
func TestSilenceCountsAcrossEras(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "games")
	w.join("m2", 1, "games")
	w.owned[1] = map[rooted.KeyspaceID]int{games: 1}
	w.core.End()
	w.hang("m1")
	w.run(time.Hour)
	w.noVerdict()
	at := w.now
	w.core.Begin(2, w.now)
	w.run(time.Minute)
	w.verdict("m1", at, time.Second, time.Second+50*ms)
}

// Never heard here, a member is waited for from when the era began.
func TestSilenceOfAStrangerCountsFromTheEra(t *testing.T) {
	w := newWard(t)
	w.join("m2", 1, "games")
	w.core.End()
	w.root("m1", 1, active, "games")
	w.owned[1] = map[rooted.KeyspaceID]int{games: 1}
	w.run(time.Hour)
	at := w.now
	w.core.Begin(2, w.now)
	w.run(time.Minute)
	w.verdict("m1", at, 5*time.Second, 5*time.Second+50*ms)
}

// Authority that changes hands every 15 s starts no clock anew: a member that hangs is
// replaced when it has been silent for as long as death takes.
func TestHandoversStartNoClockAnew(t *testing.T) {
	w := newWard(t)
	w.keyspace(slow, "slow", &rootv1.KeyspaceSettings{
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
		Liveness: &rootv1.Liveness{IntervalMillis: 1000, SuspectAfterMillis: 3000, DeadAfterMillis: 30_000},
	})
	w.join("m1", 1, "slow")
	w.join("m2", 1, "slow")
	w.owned[1] = map[rooted.KeyspaceID]int{slow: 1}
	w.run(time.Minute)
	w.hang("m1")
	at := w.now
	for era := rooted.Era(2); len(w.verdicts) == 0 && era < 12; era += 2 {
		w.core.End()
		w.run(15 * time.Second)
		w.core.Begin(era, w.now)
		w.run(15 * time.Second)
	}
	w.verdict("m1", at, 30*time.Second, 32*time.Second)
}

// Whom only others hear is waited for twice as long: it cannot be confirmed by the holder.
func TestRule10WhoReachesOnlyOthersIsReplaced(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "games")
	w.join("m2", 1, "games")
	w.run(time.Minute)
	at := w.now
	w.elsewhere["m1"] = 0
	w.hang("m1")
	w.run(time.Minute)
	w.verdict("m1", at, 10*time.Second, 10*time.Second+300*ms)
}

// What is proven counts whoever holds the Tenure, and is not counted from anything.
func TestNewHolderPassesWhatIsProven(t *testing.T) {
	w := fencedWard(t)
	w.core.End()
	w.address = always(liveness.Refused)
	w.cut("m1", 1)
	w.run(10 * ms)
	w.noVerdict()
	if w.probes != 0 {
		t.Error("who does not hold the Tenure probes")
	}
	at := w.now
	w.core.Begin(2, w.now)
	w.run(time.Second)
	w.verdict("m1", at, 0, 60*ms)
}

func TestRule6NoProof(t *testing.T) {
	for name, r := range map[string]liveness.ProbeResult{"reset, timeout or unreachable": liveness.NoAnswer, "the incarnation answers": liveness.AnsweredSame} {
		w := fencedWard(t)
		w.address = always(r)
		at := w.now
		w.cut("m1", 1)
		w.run(19 * time.Second)
		if w.noVerdict(); w.clear("m1", 1, ttl) {
			t.Errorf("%s: taken for proof of death", name)
		}
		if w.probes < 3 || w.probes > 12 {
			t.Errorf("%s: %d probes in 19 s", name, w.probes)
		}
		w.run(2 * time.Second)
		w.verdict("m1", at, ttl+ttl/100, ttl+ttl/100+50*ms)
	}
}

// One refusal may be chance: a listener that is overrun, an address that moves.
func TestRule6OneRefusalIsNoProof(t *testing.T) {
	w := fencedWard(t)
	first := true
	w.address = func(liveness.Probe) liveness.ProbeResult {
		first = !first
		if !first {
			return liveness.Refused
		}
		return liveness.NoAnswer
	}
	w.cut("m1", 1)
	w.run(15 * time.Second)
	w.noVerdict()
}

// While the stream is there, who refuses is not the member.
func TestRule6RefusalBesideAnOpenStreamIsNoProof(t *testing.T) {
	w := fencedWard(t)
	w.address = always(liveness.Refused)
	w.hang("m1") // suspected, and probed
	w.run(15 * time.Second)
	w.noVerdict()
	if w.probes == 0 {
		t.Error("nobody probed")
	}
}

// A probe that was begun before the member came back says nothing of it.
func TestRule6ProbeFromBeforeTheStreamIsNoProof(t *testing.T) {
	w := fencedWard(t)
	var late []liveness.Probe
	w.address = nil
	w.hang("m1")
	for s := range w.streams {
		w.core.Closed("m1", 1, s+1, w.now)
	}
	late = append(late, w.core.Turn(w.now).Probes...)
	if len(late) != 1 {
		t.Fatalf("%d probes, want one", len(late))
	}
	w.core.Probed(late[0], liveness.Refused, w.now)
	w.now = w.now.Add(20 * ms)
	late = append(late, w.core.Turn(w.now).Probes...)
	s := w.connect("m1", 1)
	w.core.Closed("m1", 1, s, w.now)
	w.core.Probed(late[1], liveness.Refused, w.now)
	w.turn()
	w.noVerdict()
}

// Another process has the address: the kernel gave it away, so that the first one is gone.
func TestRule6AnotherAtTheAddressIsProof(t *testing.T) {
	w := fencedWard(t)
	w.address = always(liveness.AnsweredOther)
	at := w.now
	w.cut("m1", 1)
	w.run(time.Second)
	if v := w.verdict("m1", at, 0, 10*ms); !v.Proven || v.Signals&liveness.ProbeOther == 0 || w.probes != 1 {
		t.Errorf("the verdict says %s after %d probes", v.Signals, w.probes)
	}
}

// From the verdict on, and also before it is rooted, nobody is confirmed by it.
func TestRule4NobodyIsConfirmedBehindAVerdict(t *testing.T) {
	w := fencedWard(t)
	w.cut("m1", 1)
	w.run(time.Minute)
	w.connect("m1", 1) // it is back, and the verdict is on its way
	if w.core.Answered("m1", 1, w.now) {
		t.Fatal("confirmed behind its verdict")
	}
	if !w.clear("m1", 1, ttl) {
		t.Fatal("a verdict is on its way, and nothing may be granted")
	}
	w.core.Withdraw("m1", 1, w.now) // the root refused it
	w.confirm("m1", 1)
	if w.clear("m1", 1, ttl) {
		t.Fatal("granted elsewhere while it is confirmed")
	}
	w.root("m1", 2, active, "fenced")
	if w.core.Answered("m1", 1, w.now) || w.core.Answered("m1", 3, w.now) {
		t.Fatal("an incarnation is confirmed that is not the current one")
	}
	w.confirm("m1", 2)
	w.core.End()
	if w.core.Answered("m1", 2, w.now) {
		t.Fatal("a standby confirms")
	}
}

// A newer registration ends the old incarnation, and says nothing of its process.
func TestRule5OldIncarnationKeepsItsFence(t *testing.T) {
	w := fencedWard(t)
	w.address = always(liveness.NoAnswer)
	w.run(5 * time.Second)
	w.root("m1", 2, active, "fenced")
	w.connect("m1", 2)
	if w.clear("m1", 1, ttl) {
		t.Fatal("the old incarnation's regions are granted while it may act for them")
	}
	w.run(14 * time.Second)
	if w.clear("m1", 1, ttl) {
		t.Fatal("granted before the fence ran out")
	}
	w.run(ttl/100 + time.Second)
	if !w.clear("m1", 1, ttl) {
		t.Fatal("the old incarnation's fence does not run out")
	}
	if w.clear("m1", 2, ttl) {
		t.Fatal("a current incarnation's regions are granted elsewhere")
	}
}

// It restarted in its place: at its address the new incarnation answers.
func TestRule6RestartInPlaceSparesTheFence(t *testing.T) {
	w := fencedWard(t)
	w.address = func(p liveness.Probe) liveness.ProbeResult {
		if p.Incarnation == 1 {
			return liveness.AnsweredOther
		}
		return liveness.AnsweredSame
	}
	w.root("m1", 2, active, "fenced")
	w.connect("m1", 2)
	w.run(10 * ms)
	if !w.clear("m1", 1, ttl) || len(w.ended) != 1 || w.ended[0] != 1 {
		t.Fatalf("the old incarnation is proven dead, and its fence is waited for; told of %d", w.ended)
	}
	if w.noVerdict(); w.clear("m1", 2, ttl) {
		t.Fatal("the proof counts for the new incarnation")
	}
}

// Rule 5, rule 6: that one process of an id is proven dead says nothing of an earlier one on
// another machine, which this holder has never known.
func TestRule6AProofIsOfOneIncarnation(t *testing.T) {
	for _, c := range []struct {
		name  string
		prove func(w *ward)
	}{
		{"gone", func(w *ward) { w.core.Goodbye("m1", 3, true, w.now) }},
		{"its address is another's", func(w *ward) { w.address = always(liveness.AnsweredOther) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWard(t)
			w.owned[2] = map[rooted.KeyspaceID]int{fenced: 1}
			w.owned[3] = map[rooted.KeyspaceID]int{fenced: 1}
			w.root("m1", 3, active, "fenced") // 2 is over since before this era, and was confirmed until then
			w.connect("m1", 3)
			began := w.now
			if w.clear("m1", 2, 20*time.Second) {
				t.Fatal("2 is clear at once")
			}
			c.prove(w)
			w.cut("m1", 3)
			w.root("m1", 4, active, "fenced")
			w.run(time.Second)
			if !w.clear("m1", 3, 20*time.Second) {
				t.Fatal("3 is not proven dead")
			}
			if w.clear("m1", 2, 20*time.Second) {
				t.Errorf("2 is clear %v behind the begin of the era: it may act for 20s", w.now.Sub(began))
			}
		})
	}
}

// TestRule7ALastWordBehindTheNextRegistration: a goodbye that is heard of when the next process of the
// member has registered is a proof about the process that said it, and of no other.
func TestRule7ALastWordBehindTheNextRegistration(t *testing.T) {
	w := fencedWard(t)
	w.confirm("m1", 1)
	w.root("m1", 2, active, "fenced")
	w.core.Goodbye("m1", 1, true, w.now)
	w.run(ms)
	if !w.core.Left("m1", 1) || !w.clear("m1", 1, ttl) {
		t.Error("the process that said that it has left is waited for")
	}
	if w.core.Left("m1", 2) || w.clear("m1", 2, ttl) {
		t.Error("its successor counts as left")
	}
}

// What is forgotten of many incarnations makes nothing clear too early.
func TestManyIncarnationsAreForgottenSafely(t *testing.T) {
	w := fencedWard(t)
	w.run(time.Minute)
	for i := uint64(1); i < 20; i++ {
		w.confirm("m1", i)
		if i%2 == 0 {
			w.core.ProcessEnded("m1", i, w.now)
		}
		w.root("m1", i+1, active, "fenced")
		for old := uint64(1); old <= i; old++ {
			if w.clear("m1", old, ttl) && old%2 != 0 {
				t.Fatalf("at incarnation %d, incarnation %d is clear", i+1, old)
			}
		}
	}
	w.now = w.now.Add(ttl + ttl/100)
	for old := uint64(1); old < 20; old++ {
		if !w.clear("m1", old, ttl) {
			t.Fatalf("incarnation %d is never clear", old)
		}
	}
}

// Those that came later and were never confirmed make nothing clear of the first one.
func TestIncarnationsThatWereNeverConfirmedSpareNoFence(t *testing.T) {
	w := fencedWard(t)
	for i := uint64(2); i < 20; i++ {
		w.root("m1", i, active, "fenced")
	}
	w.now = w.now.Add(ttl)
	if w.clear("m1", 1, ttl) {
		t.Fatal("the first incarnation is clear before its fence ran out")
	}
}

// However long it was silent before: once its stream ends it is probed at once.
func TestProbedAtOnceWhenTheStreamEnds(t *testing.T) {
	w := fencedWard(t)
	w.address = always(liveness.NoAnswer)
	w.hang("m1")
	w.run(13 * time.Second)
	w.address = always(liveness.Refused)
	at := w.now
	w.cut("m1", 1)
	w.run(time.Second)
	w.verdict("m1", at, 0, 60*ms)
}

// Whoever does not answer a question in time hears nobody: a verdict does not wait for ever.
func TestQuestionsEnd(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "games")
	w.join("m2", 1, "games")
	w.mute = true
	w.run(10 * time.Second)
	at := w.now
	w.hang("m1")
	w.run(10 * time.Second)
	w.verdict("m1", at, 5*time.Second, 5300*ms)
}
