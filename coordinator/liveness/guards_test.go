package liveness_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func (w *ward) many(n int, keyspace string) (ids []string) {
	for i := range n {
		id := fmt.Sprintf("m%02d", i)
		w.join(id, 1, keyspace)
		ids = append(ids, id)
	}
	w.run(time.Minute)
	return ids
}

// More than half of a keyspace's members vanish: whatever that is, it is not
// their deaths. It is held and shown, until they come back or somebody says more.
func TestA55GuardMassFailureHold(t *testing.T) {
	w := newWard(t)
	ids := w.many(10, "slow")
	w.many(3, "games") // another keyspace's members do not count; m00 to m02 change over
	w.many(10, "slow")
	for _, id := range ids[:6] {
		w.run(500 * ms)
		w.hang(id)
	}
	w.run(9 * time.Minute)
	w.noVerdict()
	s := w.health(ids[0], liveness.Held)
	if holds := w.core.Holds(); s.Guard != liveness.HeldByMassFailure || len(holds) != 1 || len(holds[0].Members) != 6 || s.Guard.String() != "mass_failure_hold" {
		t.Fatalf("it is held by %s, the holds are %v", s.Guard, holds)
	}
	if n := w.core.Counters().Holds; n != 6 {
		t.Errorf("%d verdicts were held, want 6", n)
	}
	w.connect(ids[5], 1) // 5 of 10 are not more than half
	w.run(20 * time.Second)
	if len(w.verdicts) != 5 || len(w.core.Holds()) != 0 {
		t.Fatalf("the verdicts are %s, want five", names(w.verdicts))
	}
}

func TestGuardMassFailureHoldsNoProof(t *testing.T) {
	w := newWard(t)
	ids := w.many(10, "slow")
	w.address = func(p liveness.Probe) liveness.ProbeResult {
		if p.Member == "m00" {
			return liveness.NoAnswer
		}
		return liveness.Refused
	}
	for _, id := range ids[:8] {
		w.cut(id, 1)
	}
	w.run(time.Second)
	if len(w.verdicts) != 7 {
		t.Fatalf("the verdicts are %s, want seven", names(w.verdicts))
	}
	for _, v := range w.verdicts {
		w.root(string(v.Member), 1, failed, "slow")
	}
	w.verdicts = nil
	w.run(time.Minute)
	if len(w.verdicts) != 1 { // of those that live, and are silent, it is one of three
		t.Fatalf("the verdicts are %s, want m00's: deaths that are proven are no reason to doubt it", names(w.verdicts))
	}
}

// One after the other is not together.
func TestGuardMassFailureHasAWindow(t *testing.T) {
	w := newWard(t)
	ids := w.many(10, "slow")
	for i, id := range ids[:9] {
		w.hang(id)
		w.run(11 * time.Second)
		if len(w.verdicts) != i+1 {
			t.Fatalf("after %d the verdicts are %s", i+1, names(w.verdicts))
		}
	}
}

// Of a keyspace that grants close those count that a grant names, and whoever owns its regions; of any
// keyspace those too that an operator gave regions to and whose records do not name it.
func TestGuardMassFailureCountsWhoMayOwn(t *testing.T) {
	for name, c := range map[string]struct {
		hosts []rooted.MemberID
		owner string // by an operator's word; it is a member of "games"
		hangs []string
		held  bool
	}{
		"open, 3 of 10":                        {nil, "", []string{"m00", "m01", "m02"}, false},
		"closed, 3 of 4":                       {[]rooted.MemberID{"m00", "m01", "m02", "m03"}, "", []string{"m00", "m01", "m02"}, true},
		"closed, 2 of 4":                       {[]rooted.MemberID{"m00", "m01", "m02", "m03"}, "", []string{"m00", "m01"}, false},
		"closed, others than those of it":      {[]rooted.MemberID{"m00", "m01", "m02", "m03"}, "", []string{"m04", "m05", "m06", "m07", "m08", "m09"}, false},
		"closed, 2 of 4, and one that owns":    {[]rooted.MemberID{"m00", "m01", "m02", "m03"}, "g1", []string{"m00", "m01", "g1"}, true},
		"closed, 2 of 4, beside one that owns": {[]rooted.MemberID{"m00", "m01", "m02", "m03"}, "g1", []string{"m00", "m01"}, false},
		"open, 5 of 10 and one that owns":      {nil, "g1", []string{"m00", "m01", "m02", "m03", "m04", "g1"}, true},
		"open, 5 of 10 beside one that owns":   {nil, "g1", []string{"m00", "m01", "m02", "m03", "m04"}, false},
	} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, members of all %t", name, all), func(t *testing.T) {
				w := newWard(t)
				if c.hosts != nil {
					w.hosts["slow"] = c.hosts
				}
				for i := range 4 {
					w.join(fmt.Sprintf("g%d", i), uint64(100+i), "games")
				}
				keyspace := "slow"
				if all {
					keyspace = ""
					w.core.DropKeyspace(fenced) // of which all of them are
				}
				for i := range 10 {
					w.join(fmt.Sprintf("m%02d", i), 2, keyspace)
				}
				if c.owner != "" {
					w.owned[101] = map[rooted.KeyspaceID]int{slow: 1}
				}
				w.run(time.Minute)
				for _, id := range c.hangs {
					w.hang(id)
				}
				w.run(time.Minute)
				if held := len(w.core.Holds()) > 0; held != c.held {
					t.Errorf("held: %t, the verdicts are %s", held, names(w.verdicts))
				}
			})
		}
	}
}

// Who guards the members of many closed keyspaces asks who may own their regions once for those that have the
// same hosts, not for each keyspace and each member.
func TestGuardCostsNoProduct(t *testing.T) {
	w := newWard(t)
	var all []rooted.MemberID
	for i := range 300 {
		all = append(all, rooted.MemberID(fmt.Sprintf("m%03d", i)))
	}
	for i := range 300 {
		name := fmt.Sprintf("tenant%d", i)
		w.keyspace(uint32(100+i), name, &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Liveness: &rootv1.Liveness{DeadAfterMillis: 5000}})
		w.hosts[name] = all[100*(i%3) : 100*(i%3)+100]
	}
	for i, id := range all {
		w.join(string(id), uint64(1+i), "")
	}
	w.run(10 * time.Second)
	w.hosting = 0
	w.hang("m007")
	w.run(10 * time.Second)
	w.verdict("m007", w.now.Add(-10*time.Second), 0, 6*time.Second)
	if w.hosting == 0 || w.hosting > 20*len(all) {
		t.Errorf("it is asked %d times who may own regions, of %d members and 300 keyspaces", w.hosting, len(all))
	}
	for _, id := range all[8:60] { // of the first 100 more than half
		w.hang(string(id))
	}
	w.run(10 * time.Second)
	w.noVerdict()
	if holds := w.core.Holds(); len(holds) != 1 || len(holds[0].Members) != 52 {
		t.Errorf("the holds are %v", holds)
	}
}

// What a keyspace says of the guard counts: a share, a window, or never.
func TestGuardMassFailureIsASetting(t *testing.T) {
	for permille, want := range map[uint64]int{0: 5, 300: 0, 1000: 5} {
		w := newWard(t)
		w.keyspace(20, "ks", &rootv1.KeyspaceSettings{
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Liveness: &rootv1.Liveness{DeadAfterMillis: 5000}, Guards: &rootv1.Guards{MassPermille: permille},
		})
		ids := w.many(10, "ks")
		for _, id := range ids[:5] {
			w.hang(id)
		}
		w.run(time.Minute)
		if len(w.verdicts) != want {
			t.Errorf("at %d permille %d verdicts, want %d", permille, len(w.verdicts), want)
		}
	}
}

// Members of every keyspace count in each.
func TestGuardMassFailureCountsMembersOfAll(t *testing.T) {
	w := newWard(t)
	for i := range 4 {
		w.join(fmt.Sprintf("all%d", i), 1, "")
		w.join(fmt.Sprintf("some%d", i), 1, "slow")
	}
	w.run(time.Minute)
	for i := range 2 {
		w.hang(fmt.Sprintf("all%d", i))
		w.hang(fmt.Sprintf("some%d", i))
	}
	w.hang("some2")
	w.run(9 * time.Minute)
	w.noVerdict() // 5 of 8 of slow
	w.health("all0", liveness.Held)
	w.connect("some2", 1)
	w.run(time.Minute)
	if len(w.verdicts) != 4 {
		t.Fatalf("the verdicts are %s, want four", names(w.verdicts))
	}
}

func TestGuardFlappingIsDamped(t *testing.T) {
	w := newWard(t)
	var last clock.Instant
	for i := uint64(1); i <= 4; i++ {
		w.join("m1", i, "slow")
		w.run(time.Minute)
		if s := w.health("m1", liveness.Live); s.Takes(w.now) != (i < 4) {
			t.Fatalf("incarnation %d may get something new: %t", i, s.Takes(w.now))
		}
		if i < 4 {
			w.root("m1", i, failed, "slow")
			last = w.now
		}
	}
	w.run(last.Add(299 * time.Second).Sub(w.now))
	if w.core.Standing("m1").Takes(w.now) {
		t.Fatal("damped for less than the window")
	}
	w.run(time.Second)
	if !w.core.Standing("m1").Takes(w.now) {
		t.Fatal("damped for longer than the window")
	}
}

// Failures that are far apart are no flapping.
func TestGuardFlappingHasAWindow(t *testing.T) {
	w := newWard(t)
	for i := uint64(1); i <= 5; i++ {
		w.join("m1", i, "slow")
		w.run(200 * time.Second)
		if !w.core.Standing("m1").Takes(w.now) {
			t.Fatalf("incarnation %d is damped", i)
		}
		w.root("m1", i, failed, "slow")
	}
}

// A process that is started again and again is flapping too, unless it says goodbye.
func TestGuardFlappingByRestarts(t *testing.T) {
	for _, polite := range []bool{false, true} {
		w := newWard(t)
		for i := uint64(1); i <= 4; i++ {
			w.join("m1", i, "slow")
			w.run(time.Second)
			if polite {
				w.core.Goodbye("m1", i, false, w.now)
			}
		}
		w.join("m1", 5, "slow")
		if w.core.Standing("m1").Takes(w.now) != polite {
			t.Errorf("after four restarts, polite %t, it may get something new: %t", polite, !polite)
		}
	}
}

func TestGuardNoMoveBack(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "slow")
	w.run(time.Minute)
	if s := w.core.Standing("m1"); s.SettlingUntil != 0 {
		t.Fatal("a member that never failed is settling")
	}
	w.root("m1", 1, failed, "slow")
	w.run(time.Minute)
	w.join("m1", 2, "slow")
	s := w.core.Standing("m1")
	if d := s.SettlingUntil.Sub(w.now); d != 120*time.Second || !s.Takes(w.now) {
		t.Fatalf("settles for %v, and may get something new: %t", d, s.Takes(w.now))
	}
}

// Verdicts without proof are passed a few at a time.
func TestGuardVerdictBudget(t *testing.T) {
	w := newWard(t)
	w.core = liveness.New(liveness.Settings{VerdictsPerRound: 3})
	w.keyspace(slow, "slow", &rootv1.KeyspaceSettings{
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Liveness: &rootv1.Liveness{DeadAfterMillis: 5000},
	})
	w.core.Begin(1, w.now)
	ids := w.many(30, "slow")
	for _, id := range ids[:10] {
		w.hang(id)
	}
	w.run(4900 * ms)
	w.noVerdict()
	w.run(300 * ms)
	if n := len(w.verdicts); n != 3 {
		t.Fatalf("%d verdicts in the first round, want 3", n)
	}
	if h := w.core.Holds(); len(h) != 1 || h[0].Guard.String() != "verdict_budget" {
		t.Fatalf("the holds are %v", h)
	}
	w.run(2 * time.Second)
	if n := len(w.verdicts); n < 6 || n > 9 {
		t.Fatalf("%d verdicts after two more rounds", n)
	}
	w.run(10 * time.Second)
	if n := len(w.verdicts); n != 10 {
		t.Fatalf("%d verdicts in the end, want 10", n)
	}
}

// However much happens at once, a batch is bounded, and nothing is left out.
func TestBatchesAreBounded(t *testing.T) {
	w := newWard(t)
	const n = 5000
	for i := range n {
		id := fmt.Sprintf("m%04d", i)
		w.root(id, 1, active, "slow")
		w.core.Opened(rooted.MemberID(id), 1, liveness.StreamID(i)+1, w.now)
	}
	w.turn()
	for i := range n {
		w.core.Closed(rooted.MemberID(fmt.Sprintf("m%04d", i)), 1, liveness.StreamID(i)+1, w.now)
	}
	verdicts, due := 0, w.now.Add(time.Second)
	for w.core.Due() < due {
		w.now = max(w.now, w.core.Due())
		b := w.core.Turn(w.now)
		if len(b.Probes) > liveness.MaxBatch || len(b.Question.Members) > liveness.MaxBatch || len(b.Verdicts) > liveness.MaxBatch {
			t.Fatalf("%d probes, %d questions, %d verdicts", len(b.Probes), len(b.Question.Members), len(b.Verdicts))
		}
		for _, p := range b.Probes {
			w.core.Probed(p, liveness.Refused, w.now)
		}
		w.core.Told(b.Question, nil, true, w.now)
		verdicts += len(b.Verdicts)
	}
	if verdicts != n {
		t.Fatalf("%d verdicts, want %d", verdicts, n)
	}
}

// Members that are dead for long, by proof or by an operator's word are none of those that are to
// be lost: they hold nothing, and excuse nothing.
func TestGuardMassFailureCountsTheLivingAndTheSilent(t *testing.T) {
	for name, fail := range map[string]func(w *ward, id string){
		"by proof":        func(w *ward, id string) { w.root(id, 1, failed, "slow", "stream_closed", "probe_refused") },
		"by an operator":  func(w *ward, id string) { w.root(id, 1, failed, "slow") },
		"by silence once": func(w *ward, id string) { w.root(id, 1, failed, "slow", "silent") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			ids := w.many(10, "slow")
			for _, id := range ids[:6] { // one after the other, long ago
				w.hang(id)
				w.run(4 * time.Second)
				fail(w, id)
				w.run(time.Minute)
			}
			w.verdicts = nil
			for _, id := range ids[6:9] { // three of the four that are left
				w.hang(id)
			}
			w.run(time.Minute)
			w.noVerdict()
			w.health(ids[6], liveness.Held)
		})
	}
	w := newWard(t)
	ids := w.many(10, "slow")
	for _, id := range ids[:6] {
		w.hang(id)
	}
	w.run(20 * time.Second)
	w.noVerdict()
	for _, id := range ids[:2] { // an operator's word: what is left is 4 of 8
		w.root(id, 1, failed, "slow")
	}
	w.run(10 * time.Second)
	if len(w.verdicts) != 4 || len(w.core.Holds()) != 0 {
		t.Fatalf("the verdicts are %s, want four", names(w.verdicts))
	}
}

// A hold ends by time, which a keyspace may set.
func TestGuardMassFailureHoldEnds(t *testing.T) {
	for hold, want := range map[uint64]time.Duration{0: 10 * time.Minute, 60_000: time.Minute} {
		w := newWard(t)
		w.keyspace(20, "ks", &rootv1.KeyspaceSettings{
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Liveness: &rootv1.Liveness{DeadAfterMillis: 5000}, Guards: &rootv1.Guards{MassHoldMillis: hold},
		})
		ids := w.many(10, "ks")
		for _, id := range ids[:8] {
			w.hang(id)
		}
		w.run(want - time.Second)
		w.noVerdict()
		w.health(ids[0], liveness.Held)
		w.run(3 * time.Second)
		if len(w.verdicts) != 8 || len(w.core.Holds()) != 0 {
			t.Errorf("after %v the verdicts are %s, want eight", want, names(w.verdicts))
		}
	}
}
