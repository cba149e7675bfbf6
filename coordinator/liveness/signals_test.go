package liveness_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// The rows of the signal table, each by what it leads to and when.

// The kernel of a killed process's machine says that nobody listens.
func TestC02C12C63SignalStreamBrokenAndAddressRefuses(t *testing.T) {
	for _, ks := range []string{"games", "slow", "fenced"} {
		w := newWard(t)
		w.join("m1", 1, ks)
		w.join("m2", 1, ks)
		w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
		w.address = always(liveness.Refused)
		w.run(30 * time.Second)
		at := w.now
		w.cut("m1", 1)
		w.run(time.Second)
		v := w.verdict("m1", at, 0, 60*ms)
		if !v.Proven || v.Signals&liveness.ProbeRefused == 0 || v.Signals&liveness.StreamClosed == 0 {
			t.Errorf("%s: the verdict says %s, proven %t", ks, v.Signals, v.Proven)
		}
		if w.probes != 2 {
			t.Errorf("%s: %d probes, want 2", ks, w.probes)
		}
	}
}

func TestC10C66SignalStreamBrokenAddressSilent(t *testing.T) {
	for ks, dead := range map[string]time.Duration{"games": 5 * time.Second, "slow": 10 * time.Second} {
		w := newWard(t)
		w.join("m1", 1, ks)
		w.join("m2", 1, ks)
		w.address = always(liveness.NoAnswer)
		w.run(30 * time.Second)
		at := w.now
		w.cut("m1", 1)
		w.health("m1", liveness.Suspected)
		w.run(dead + time.Second)
		if v := w.verdict("m1", at, dead-100*ms, dead+50*ms); v.Proven || v.Signals&liveness.ProbeSilent == 0 {
			t.Errorf("%s: the verdict says %s, proven %t", ks, v.Signals, v.Proven)
		}
	}
}

// A member without an address of its own, where a closed stream means death: nothing
// can be probed, so that suspicion's time is all it has.
func TestSignalStreamBrokenNothingToProbe(t *testing.T) {
	w := newWard(t)
	w.join("m2", 1, "games")
	w.core.SetMember(&rootv1.Member{Id: "m1", Incarnation: 1, State: active, Keyspaces: []string{"games"}}, w.now)
	w.connect("m1", 1)
	w.run(10 * time.Second)
	at := w.now
	w.cut("m1", 1)
	w.run(3 * time.Second)
	w.verdict("m1", at, 900*ms, 1100*ms)
	if w.probes != 0 {
		t.Errorf("%d probes of a member without an address", w.probes)
	}
}

// The stream that a newer one replaced is told of last, and then its end: what is open is the newer one, whose
// end is seen.
func TestAStreamThatWasReplacedIsToldOfLate(t *testing.T) {
	w := newWard(t)
	w.join("m2", 1, "games")
	w.root("m1", 1, active, "games")
	for _, stream := range []liveness.StreamID{12, 11} {
		w.core.Opened("m1", 1, stream, w.now)
	}
	w.core.Closed("m1", 1, 11, w.now)
	w.beating["m1"] = 1
	w.run(10 * time.Second)
	w.address = always(liveness.Refused)
	at := w.now
	w.hang("m1")
	w.core.Closed("m1", 1, 12, w.now)
	w.turn()
	w.run(3 * time.Second)
	w.verdict("m1", at, 0, 200*ms)
}

// A member that begins to own regions before the holder has heard it, and ends: its address is asked when it has been
// suspicious for as long as others are, and not when its death has taken as long as silence takes.
func TestAnOwnerThatTheHolderNeverHeardIsProbed(t *testing.T) {
	w := newWard(t)
	w.join("m2", 1, "games")
	w.root("m1", 7, active, "games")
	w.run(100 * ms)
	w.owned[7] = map[rooted.KeyspaceID]int{games: 3}
	w.address = always(liveness.Refused)
	died := w.now
	w.word = func(id rooted.MemberID) (liveness.Word, bool) {
		return liveness.Word{Member: id, Incarnation: 7, Age: w.now.Sub(died)}, id == "m1"
	}
	w.run(10 * time.Second)
	if v := w.verdict("m1", died, 900*ms, 1300*ms); !v.Proven || v.Signals&liveness.ProbeRefused == 0 {
		t.Errorf("the verdict says %s, proven %t", v.Signals, v.Proven)
	}
}

func TestSignalStreamBrokenButHeardElsewhere(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "slow")
	w.join("m2", 1, "slow")
	w.elsewhere["m1"] = 200 * ms
	w.run(10 * time.Second)
	w.cut("m1", 1)
	if s := w.health("m1", liveness.Suspected); s.Signals&liveness.HeardElsewhere == 0 {
		t.Errorf("the signals are %s", s.Signals)
	}
	at := w.now
	w.run(15 * time.Second) // death takes 10 s
	w.noVerdict()
	w.health("m1", liveness.Suspected)
	w.run(15 * time.Second)
	w.verdict("m1", at, 20*time.Second-100*ms, 20*time.Second+1200*ms)
}

// How long each preset waits.
func TestC08C55A22A37A41P17R17R18R26SignalFramesMissing(t *testing.T) {
	for _, c := range []struct {
		preset        string
		suspect, dead time.Duration
	}{
		{"tenants", 30 * time.Second, 30 * time.Second},
		{"games", time.Second, 5 * time.Second},
		{"actors", 90 * time.Second, 90 * time.Second},
		{"partitions", 15 * time.Second, 30 * time.Second},
	} {
		w := newWard(t)
		s, _ := state.Preset(c.preset)
		if c.preset == "actors" { // three frames of 10 s at the most: see MostInterval
			c.suspect = 30 * time.Second
		}
		w.keyspace(20, c.preset, s)
		w.join("m1", 1, c.preset)
		w.join("m2", 1, c.preset)
		w.run(2 * time.Minute)
		at := w.now
		w.hang("m1")
		w.run(c.suspect - 200*ms)
		w.health("m1", liveness.Live)
		w.run(300 * ms)
		if c.suspect < c.dead {
			w.health("m1", liveness.Suspected)
			w.noVerdict()
		}
		w.run(c.dead)
		if v := w.verdict("m1", at, c.dead-100*ms, c.dead+100*ms); v.Proven || v.Signals&liveness.Silent == 0 {
			t.Errorf("%s: the verdict says %s", c.preset, v.Signals)
		}
	}
}

// A frame takes suspicion back.
func TestR16SuspicionIsTakenBackByAFrame(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "slow")
	w.run(time.Second)
	w.cut("m1", 1)
	w.run(9 * time.Second)
	w.health("m1", liveness.Suspected)
	w.connect("m1", 1)
	if s := w.health("m1", liveness.Live); s.Signals != 0 {
		t.Errorf("the signals are %s", s.Signals)
	}
	w.run(time.Minute)
	w.noVerdict()
}

func TestSignalGoodbye(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "fenced")
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 1}
	w.core.Goodbye("m1", 1, false, w.now)
	w.run(time.Minute)
	w.noVerdict()
	if s := w.health("m1", liveness.Live); !s.Leaving || s.Takes(w.now) {
		t.Error("a member that leaves may get something new")
	}
	at := w.now
	w.core.Goodbye("m1", 1, true, w.now)
	w.run(ms)
	if v := w.verdict("m1", at, 0, ms); !v.Proven {
		t.Error("a member that is gone by its own word is not proven to be")
	}
}

func TestSignalOperator(t *testing.T) {
	w := newWard(t)
	for _, id := range []string{"m1", "m2"} {
		w.join(id, 1, "fenced")
		w.core.Answered(rooted.MemberID(id), 1, w.now)
	}
	w.root("m1", 1, failed, "fenced", "somebody_said_so")
	w.root("m2", 1, failed, "fenced", liveness.ProcessEndedSignal)
	w.run(time.Minute)
	w.noVerdict() // it is passed already
	w.now = 1 + clockOf(10*time.Second)
	if w.clear("m1", 1, 20*time.Second) {
		t.Error("an operator's word is taken for proof of death")
	}
	if !w.clear("m2", 1, 20*time.Second) {
		t.Error("an operator who vouches for the end of the process is not believed")
	}
	for _, id := range []rooted.MemberID{"m1", "m2"} {
		if w.core.Answered(id, 1, w.now) {
			t.Errorf("%s has failed, and is confirmed", id)
		}
	}
}

// An integrator saw the end of the process.
func TestC09C14SignalIntegratorSawTheEnd(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "fenced")
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 1}
	at := w.now
	w.core.ProcessEnded("m1", 1, w.now)
	w.run(ms)
	if v := w.verdict("m1", at, 0, ms); !v.Proven || v.Signals.String() != "process_ended" || v.Reason() != "its process has ended" {
		t.Errorf("the verdict says %s", v.Signals)
	}
}

func TestSignalDialFailuresOnlyRaiseSuspicion(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "slow")
	w.run(time.Second)
	for range 100 {
		w.core.DialFailed("m1", 1, w.now)
		w.run(time.Second)
		w.health("m1", liveness.Suspected)
	}
	w.noVerdict()
	w.run(4 * time.Second)
	w.health("m1", liveness.Live)
}

// A member that hosts nothing, and never spoke to a coordinator, is not judged.
func TestNobodyIsJudgedWhoWasNeverSeenAndOwnsNothing(t *testing.T) {
	w := newWard(t)
	w.join("m2", 1, "")
	w.join("m3", 1, "")
	w.root("m1", 7, active, "")
	w.run(time.Hour)
	w.noVerdict()
	w.health("m1", liveness.Discovered)
	at := w.now
	w.owned[7] = map[rooted.KeyspaceID]int{slow: 5}
	w.run(time.Hour)
	w.verdict("m1", at, 0, 6*time.Second)
}

// A member that was slow to answer now and then, and that dies: what the first probe misses
// the next ones find, as soon as for any other.
func TestC02C63ProbesWithoutProofDelayNoLaterProof(t *testing.T) {
	for name, before := range map[string]func(*ward){
		"never suspected": func(*ward) {},
		"often silent": func(w *ward) {
			for range 6 {
				w.hang("m1")
				w.run(4 * time.Second) // the probe answers: it lives
				w.beating["m1"] = 1
				w.run(time.Second)
			}
		},
		"often cut off": func(w *ward) {
			for range 12 {
				w.cut("m1", 1)
				w.connect("m1", 1)
				w.run(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			w.join("m1", 1, "games")
			w.join("m2", 1, "games")
			w.address = always(liveness.AnsweredSame)
			before(w)
			w.noVerdict()
			// A process that dies on a busy machine may take connections, and say nothing.
			missed := 0
			w.address = func(liveness.Probe) liveness.ProbeResult {
				if missed++; missed <= 2 {
					return liveness.NoAnswer
				}
				return liveness.Refused
			}
			at := w.now
			w.cut("m1", 1)
			w.run(6 * time.Second)
			if v := w.verdict("m1", at, 0, 250*ms); !v.Proven {
				t.Errorf("the verdict says %s, proven %t", v.Signals, v.Proven)
			}
		})
	}
}

// Each signal by itself, and how soon it is one: a stream that breaks is known within
// milliseconds, silence after the keyspace's time, and what an integrator reports at once.
func TestC03C11EachSignalInItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		preset      string
		happens     func(*ward)
		least, most time.Duration
	}{
		"stream drop":        {"games", func(w *ward) { w.cut("m1", 1) }, 0, 200 * ms},
		"silence, games":     {"games", func(w *ward) { w.hang("m1") }, 5*time.Second - 100*ms, 7 * time.Second},
		"silence, tenants":   {"tenants", func(w *ward) { w.hang("m1") }, 30*time.Second - 100*ms, 30*time.Second + 100*ms},
		"integrator's watch": {"games", func(w *ward) { w.core.ProcessEnded("m1", 1, w.now) }, 0, ms},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			s, _ := state.Preset(c.preset)
			w.keyspace(20, c.preset, s)
			w.join("m1", 1, c.preset)
			w.join("m2", 1, c.preset)
			w.address = always(liveness.Refused)
			w.run(time.Minute)
			at := w.now
			c.happens(w)
			w.run(c.most + ms)
			w.verdict("m1", at, c.least, c.most)
		})
	}
}

// One that is silent while its stream stays open is probed as soon as it is suspected, by
// its probe address. Nothing that is heard there, and no refusal beside an open stream, is
// taken for its life or its death: the time of its silence decides.
func TestC13SilentOnAnOpenStreamIsProbed(t *testing.T) {
	for r, signal := range map[liveness.ProbeResult]liveness.Signals{
		liveness.NoAnswer: liveness.ProbeSilent, liveness.Refused: liveness.ProbeSilent, liveness.AnsweredSame: liveness.ProbeAnswered,
	} {
		w := newWard(t)
		w.join("m1", 1, "games")
		w.join("m2", 1, "games")
		w.address = always(r)
		w.run(30 * time.Second)
		at := w.now
		w.hang("m1")
		w.run(900 * ms)
		if w.probes != 0 {
			t.Errorf("%d: probed before it is suspected", r)
		}
		w.run(200 * ms)
		if s := w.health("m1", liveness.Suspected); w.probes == 0 || s.Signals&signal == 0 {
			t.Errorf("%d: %d probes when it is suspected, the signals are %s", r, w.probes, s.Signals)
		}
		w.run(4 * time.Second)
		if v := w.verdict("m1", at, 5*time.Second-100*ms, 5*time.Second+50*ms); v.Proven || v.Signals&liveness.Silent == 0 {
			t.Errorf("%d: the verdict says %s, proven %t", r, v.Signals, v.Proven)
		}
	}
}

// Rule 6: an address that is not the member's own refuses, or has somebody else answer, while
// the member lives and another coordinator hears it. That is no proof, whenever it is heard
// there: before the first probe, between the two, or in frames that are far apart.
func TestRule6HeardElsewhereIsNoProof(t *testing.T) {
	for name, result := range map[string]liveness.ProbeResult{"refused": liveness.Refused, "another answers": liveness.AnsweredOther} {
		for when, word := range map[string]func(w *ward, broke clock.Instant) (liveness.Word, bool){
			"connected": func(w *ward, broke clock.Instant) (liveness.Word, bool) {
				return liveness.Word{Age: w.now.Sub(broke) + 900*ms, Connected: true}, true
			},
			"again after 10 ms": func(w *ward, broke clock.Instant) (liveness.Word, bool) {
				return liveness.Word{Age: max(w.now.Sub(broke)-10*ms, 0), Connected: w.now.Sub(broke) >= 10*ms}, w.now.Sub(broke) >= 10*ms
			},
			"frames without a stream": func(w *ward, broke clock.Instant) (liveness.Word, bool) {
				return liveness.Word{Age: w.now.Sub(broke) % (15 * ms)}, true
			},
		} {
			if result == liveness.AnsweredOther && when != "connected" {
				continue // that is not asked twice
			}
			t.Run(name+", "+when, func(t *testing.T) {
				w := newWard(t)
				w.join("m1", 1, "fenced")
				w.join("m2", 1, "fenced")
				w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
				w.address = always(result)
				w.run(30 * time.Second)
				broke := w.now
				w.word = func(id rooted.MemberID) (liveness.Word, bool) {
					said, ok := word(w, broke)
					said.Member, said.Incarnation = id, 1
					return said, ok && id == "m1"
				}
				w.cut("m1", 1)
				w.run(9 * time.Second)
				w.noVerdict()
				w.health("m1", liveness.Suspected)
				if w.probes > 40 {
					t.Errorf("%d probes of an address that proves nothing", w.probes)
				}
			})
		}
	}
}

// What others heard before the stream broke contradicts nothing, nor does what was on its way
// when the process died: the address is asked again then, and that is all that it costs.
func TestRule6FrameUnderWayDelaysTheProof(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // the last frame elsewhere, since the stream broke here
		most  time.Duration
	}{"before": {-100 * ms, 60 * ms}, "under way": {2 * ms, 200 * ms}} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			w.join("m1", 1, "fenced")
			w.join("m2", 1, "fenced")
			w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
			w.address = always(liveness.Refused)
			w.run(30 * time.Second)
			broke := w.now
			w.word = func(id rooted.MemberID) (liveness.Word, bool) {
				age := w.now.Sub(broke) - c.after
				return liveness.Word{Member: id, Incarnation: 1, Age: age}, age >= 0 && id == "m1"
			}
			w.cut("m1", 1)
			w.run(time.Second)
			v := w.verdict("m1", broke, 0, c.most)
			if !v.Proven || v.Signals&liveness.ProbeRefused == 0 || v.Signals&liveness.HeardElsewhere != 0 {
				t.Errorf("the verdict says %s, proven %t", v.Signals, v.Proven)
			}
		})
	}
}

// Rule 6: a coordinator that cannot be asked may hear the member. A refusal is a proof when that one
// answers, or has ended, or when no ttl is left to wait for: a dead coordinator holds no proof up for ever.
func TestRule6WhoCannotBeAskedMayHear(t *testing.T) {
	const stretched = 20*time.Second + 200*ms
	for name, c := range map[string]struct {
		keyspace    string
		silence     func(w *ward, yes bool)
		answers     time.Duration // when it can be asked again; 0: never
		hears       bool
		least, most time.Duration
	}{
		"it never answers":        {"fenced", func(w *ward, yes bool) { w.deaf = yes }, 0, false, stretched, stretched + 300*ms},
		"nobody does in time":     {"fenced", func(w *ward, yes bool) { w.mute = yes }, 0, false, stretched, stretched + 300*ms},
		"it answers later":        {"fenced", func(w *ward, yes bool) { w.deaf = yes }, 3 * time.Second, false, 3 * time.Second, 3*time.Second + 500*ms},
		"it hears the member":     {"fenced", func(w *ward, yes bool) { w.deaf = yes }, 3 * time.Second, true, stretched, stretched + time.Second},
		"no ttl has to be waited": {"games", func(w *ward, yes bool) { w.deaf = yes }, 0, false, 0, 60 * ms},
		"all answer":              {"fenced", func(*ward, bool) {}, 0, false, 0, 60 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			w.join("m1", 1, c.keyspace)
			w.join("m2", 1, c.keyspace)
			w.owned[1] = map[rooted.KeyspaceID]int{map[string]rooted.KeyspaceID{"fenced": fenced, "games": games}[c.keyspace]: 3}
			w.address = always(liveness.Refused)
			w.run(30 * time.Second)
			if !w.core.Answered("m1", 1, w.now) {
				t.Fatal("it is not confirmed")
			}
			broke := w.now
			c.silence(w, true)
			w.cut("m1", 1)
			if c.answers != 0 {
				w.run(c.answers)
				w.noVerdict()
				c.silence(w, false)
				if c.hears {
					w.word = func(id rooted.MemberID) (liveness.Word, bool) {
						return liveness.Word{Member: id, Incarnation: 1, Connected: true}, id == "m1"
					}
				}
			}
			w.run(22 * time.Second)
			if v := w.verdict("m1", broke, c.least, c.most); v.Proven == c.hears {
				t.Errorf("the verdict says %s, proven %t", v.Signals, v.Proven)
			}
			if w.asked > 300 {
				t.Errorf("%d questions", w.asked)
			}
		})
	}
}

// Rule 6 holds too of an incarnation that the root has ended: its fence is waited for while
// another coordinator has its stream, whatever its address says.
func TestRule6FenceOfOneHeardElsewhereIsWaitedFor(t *testing.T) {
	w := newWard(t)
	w.join("m1", 1, "fenced")
	w.join("m2", 1, "fenced")
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
	w.address = always(liveness.Refused)
	w.run(30 * time.Second)
	if !w.core.Answered("m1", 1, w.now) {
		t.Fatal("it is not confirmed")
	}
	w.word = func(id rooted.MemberID) (liveness.Word, bool) {
		return liveness.Word{Member: id, Incarnation: 1, Connected: true}, id == "m1"
	}
	w.root("m1", 1, failed, "fenced")
	w.cut("m1", 1)
	w.run(10 * time.Second)
	if w.clear("m1", 1, 20*time.Second) || len(w.ended) > 0 {
		t.Error("an address that refuses has ended the fence of who is heard elsewhere")
	}
	w.word = nil
	w.run(10 * time.Second)
	if !w.clear("m1", 1, 20*time.Second) || len(w.ended) != 1 {
		t.Error("nobody hears it any more, and its address is no proof")
	}
}

// A proof that one coordinator could not be asked about spares no fence: neither that of what was taken
// from the incarnation, nor of what it owns in another keyspace. When all have answered it spares those
// of what it owns.
func TestRule6AProofWithoutAllSparesNoFence(t *testing.T) {
	const stretched = 20*time.Second + 200*ms
	for name, c := range map[string]struct {
		owns    map[rooted.KeyspaceID]int // when its stream breaks
		answers bool                      // the one that cannot be asked, a second later
		verdict bool                      // by the proof, at once; else it had failed before
		spared  bool
	}{
		"what was taken from it":                     {nil, false, true, false},
		"what it owns beside a keyspace without ttl": {map[rooted.KeyspaceID]int{fenced: 3, games: 1}, false, true, false},
		"all answer later":                           {map[rooted.KeyspaceID]int{fenced: 3, games: 1}, true, true, true},
		"it had failed":                              {map[rooted.KeyspaceID]int{fenced: 3}, false, false, false},
		"it had failed, all answer later":            {map[rooted.KeyspaceID]int{fenced: 3}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			w.join("m1", 1, "fenced")
			w.join("m2", 1, "fenced")
			w.owned[1] = map[rooted.KeyspaceID]int{fenced: 3}
			w.address = always(liveness.Refused)
			w.run(30 * time.Second)
			if !w.core.Answered("m1", 1, w.now) {
				t.Fatal("it is not confirmed")
			}
			confirmed := w.now
			w.owned[1], w.deaf = c.owns, true
			w.cut("m1", 1)
			if !c.verdict {
				w.root("m1", 1, failed, "fenced")
			}
			w.run(time.Second)
			if c.verdict {
				w.verdict("m1", confirmed, 0, 100*ms)
				w.root("m1", 1, failed, "fenced")
			}
			if w.clear("m1", 1, 20*time.Second) || len(w.ended) > 0 {
				t.Error("its fence is spared")
			}
			w.deaf = !c.answers
			w.run(3 * time.Second)
			if w.clear("m1", 1, 20*time.Second) != c.spared || len(w.ended) == 1 != c.spared {
				t.Errorf("its fence is spared: want %t; told of %d", c.spared, w.ended)
			}
			w.run(confirmed.Add(stretched - ms).Sub(w.now))
			if w.clear("m1", 1, 20*time.Second) != c.spared {
				t.Errorf("its fence is spared before it ends: want %t", c.spared)
			}
			asked := w.asked
			w.run(time.Minute)
			if !w.clear("m1", 1, 20*time.Second) {
				t.Error("its fence has run out, and is waited for")
			}
			if asked > 200 || w.asked > asked+2 {
				t.Errorf("%d questions, and %d when there was no fence", asked, w.asked-asked)
			}
		})
	}
}
