package liveness_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const ms = time.Millisecond

// owned is what incarnations own: keyspace, regions.
type owned map[uint64]map[rooted.KeyspaceID]int

func (o owned) IncarnationKeyspaces(incarnation uint64, fn func(rooted.KeyspaceID, int)) {
	for _, ks := range slices.Sorted(maps.Keys(o[incarnation])) {
		fn(ks, o[incarnation][ks])
	}
}

// holdings are what incarnations own, and by keyspace who may, where grants say so.
type holdings struct {
	owned
	hosts map[string][]rooted.MemberID
	// asked counts calls of Hosts.
	asked *int
}

func (h holdings) HostedBy(keyspace string) string {
	if h.hosts[keyspace] == nil {
		return ""
	}
	return fmt.Sprint("by ", h.hosts[keyspace])
}

func (h holdings) Hosts(id rooted.MemberID, keyspace string) bool {
	*h.asked++
	return h.hosts[keyspace] == nil || slices.Contains(h.hosts[keyspace], id)
}

// ward is a Core with a clock, members, and a world that answers it.
type ward struct {
	testing.TB
	core  *liveness.Core
	now   clock.Instant
	owned owned
	hosts map[string][]rooted.MemberID
	// hosting counts questions who hosts.
	hosting int
	// beating members send a frame every interval.
	beating map[rooted.MemberID]uint64
	// address answers a probe; nil: nothing ever comes of it.
	address func(liveness.Probe) liveness.ProbeResult
	// elsewhere is how long ago another coordinator heard a member.
	elsewhere map[rooted.MemberID]time.Duration
	// word is what another coordinator says of a member, where that changes with time; nil: nothing.
	word func(id rooted.MemberID) (liveness.Word, bool)
	// mute: nobody answers questions. deaf: one coordinator does not.
	mute     bool
	deaf     bool
	streams  liveness.StreamID
	verdicts []liveness.Verdict
	at       []clock.Instant
	ended    []uint64
	probes   int
	asked    int
}

const games, slow, fenced, shared = 10, 11, 12, 13

// newWard has four keyspaces, and holds era 1.
func newWard(t testing.TB) *ward {
	w := &ward{TB: t, core: liveness.New(liveness.Settings{}), now: 1, owned: owned{}, hosts: map[string][]rooted.MemberID{}, beating: map[rooted.MemberID]uint64{}, elsewhere: map[rooted.MemberID]time.Duration{}}
	w.core.SetHoldings(holdings{w.owned, w.hosts, &w.hosting})
	preset, _ := state.Preset("games")
	w.keyspace(games, "games", preset)
	w.keyspace(slow, "slow", &rootv1.KeyspaceSettings{
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
		Liveness: &rootv1.Liveness{IntervalMillis: 1000, SuspectAfterMillis: 3000, DeadAfterMillis: 10_000, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_SUSPECT, Probe: true},
	})
	w.keyspace(fenced, "fenced", &rootv1.KeyspaceSettings{
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 20_000},
		Liveness: &rootv1.Liveness{IntervalMillis: 1000, SuspectAfterMillis: 3000, DeadAfterMillis: 10_000, Probe: true},
	})
	w.core.Begin(1, w.now)
	return w
}

func (w *ward) keyspace(id uint32, name string, s *rootv1.KeyspaceSettings) {
	w.core.SetKeyspace(&rootv1.Keyspace{Id: id, Name: name, Settings: s})
}

// root tells of a member as rooted.
func (w *ward) root(id string, incarnation uint64, st rootv1.MemberState, keyspace string, signals ...string) {
	m := &rootv1.Member{Id: id, Incarnation: incarnation, State: st, ProbeAddress: id + ":1", Signals: signals}
	if keyspace != "" {
		m.Keyspaces = []string{keyspace}
	}
	w.core.SetMember(m, w.now)
}

const active, draining, failed = rootv1.MemberState_MEMBER_STATE_ACTIVE, rootv1.MemberState_MEMBER_STATE_DRAINING, rootv1.MemberState_MEMBER_STATE_FAILED

// join has a member of one keyspace register, connect and send frames.
func (w *ward) join(id string, incarnation uint64, keyspace string) {
	w.root(id, incarnation, active, keyspace)
	w.connect(id, incarnation)
}

func (w *ward) connect(id string, incarnation uint64) liveness.StreamID {
	w.streams++
	w.core.Opened(rooted.MemberID(id), incarnation, w.streams, w.now)
	w.beating[rooted.MemberID(id)] = incarnation
	w.turn()
	return w.streams
}

// hang has a member send no more; its stream stays.
func (w *ward) hang(id string) { delete(w.beating, rooted.MemberID(id)) }

// cut ends a member's newest stream too.
func (w *ward) cut(id string, incarnation uint64) {
	w.hang(id)
	for s := range w.streams {
		w.core.Closed(rooted.MemberID(id), incarnation, s+1, w.now)
	}
	w.turn()
}

// run lets time pass: frames come, timers fire, probes and questions are answered
// after a millisecond.
func (w *ward) run(d time.Duration) {
	until := w.now.Add(d)
	frame := w.now.Add(100 * ms)
	for {
		next := min(w.core.Due(), frame, until)
		w.now = max(w.now, next)
		if w.now >= frame {
			for id, incarnation := range w.beating {
				w.core.Frame(id, incarnation, w.now)
			}
			frame = w.now.Add(100 * ms)
		}
		w.turn()
		if w.now >= until {
			return
		}
	}
}

func (w *ward) turn() {
	for range 10_000 {
		if w.core.Due() > w.now {
			return
		}
		b := w.core.Turn(w.now)
		for _, v := range b.Verdicts {
			w.verdicts, w.at = append(w.verdicts, v), append(w.at, w.now)
		}
		w.ended = append(w.ended, b.Ended...)
		w.probes += len(b.Probes)
		w.asked += len(b.Question.Members)
		if len(b.Probes)+len(b.Question.Members) > 0 {
			w.now = w.now.Add(ms)
		}
		for _, p := range b.Probes {
			if w.address != nil {
				w.core.Probed(p, w.address(p), w.now)
			}
		}
		if len(b.Question.Members) > 0 && !w.mute {
			var words []liveness.Word
			for _, id := range b.Question.Members {
				if age, ok := w.elsewhere[id]; ok {
					words = append(words, liveness.Word{Member: id, Incarnation: 1, Age: age})
				}
				if w.word != nil {
					if said, ok := w.word(id); ok {
						words = append(words, said)
					}
				}
			}
			w.core.Told(b.Question, words, !w.deaf, w.now)
		}
	}
	w.Fatalf("at %v the core is due for ever", w.now)
}

// health wants a member to stand so.
func (w *ward) health(id string, want liveness.Health) liveness.Standing {
	w.Helper()
	s := w.core.Standing(rooted.MemberID(id))
	if s.Health != want {
		w.Fatalf("at %v %s is %d (%s), want %d", time.Duration(w.now), id, s.Health, s.Signals, want)
	}
	return s
}

// verdict wants one verdict, of the member, between two times from a moment on.
func (w *ward) verdict(id string, since clock.Instant, least, most time.Duration) liveness.Verdict {
	w.Helper()
	if len(w.verdicts) != 1 || w.verdicts[0].Member != rooted.MemberID(id) {
		w.Fatalf("at %v the verdicts are %s, want one of %s", time.Duration(w.now), names(w.verdicts), id)
	}
	if d := w.at[0].Sub(since); d < least || d > most {
		w.Fatalf("the verdict came after %v, want %v to %v", d, least, most)
	}
	v := w.verdicts[0]
	w.verdicts, w.at = nil, nil
	return v
}

func (w *ward) noVerdict() {
	w.Helper()
	if len(w.verdicts) > 0 {
		w.Fatalf("at %v the verdicts are %s, want none", time.Duration(w.now), names(w.verdicts))
	}
}

func names(vs []liveness.Verdict) string {
	var s string
	for _, v := range vs {
		s += fmt.Sprintf("%s/%d(%s) ", v.Member, v.Incarnation, v.Signals)
	}
	return s
}

func always(r liveness.ProbeResult) func(liveness.Probe) liveness.ProbeResult {
	return func(liveness.Probe) liveness.ProbeResult { return r }
}

func (w *ward) clear(id string, incarnation uint64, ttl time.Duration) bool {
	return w.core.Clear(rooted.MemberID(id), incarnation, liveness.Fence{TTL: ttl}, w.now)
}
