package liveness_test

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"pgregory.net/rapid"
)

// world is a ward in which anything happens; it keeps what the laws speak of.
type world struct {
	*ward
	t           *rapid.T
	incarnation map[rooted.MemberID]uint64
	streams     map[rooted.MemberID]liveness.StreamID
	// When incarnations were last confirmed, heard here, rooted, and heard elsewhere.
	confirmed, heard, known, words map[string]clock.Instant
	proven, judged                 map[string]bool
	// open: by the last answers another coordinator has a stream of it. unasked: one could not be asked.
	open      map[rooted.MemberID]bool
	unasked   map[rooted.MemberID]bool
	began     clock.Instant
	probes    []liveness.Probe
	questions []liveness.Question
	stream    liveness.StreamID
}

func key(id rooted.MemberID, incarnation uint64) string { return fmt.Sprint(id, "/", incarnation) }

// step does one thing; its name is for the trace.
func (w *world) step() {
	t, c := w.t, w.core
	id := rapid.SampledFrom([]rooted.MemberID{"m1", "m2", "m3"}).Draw(t, "member")
	inc := w.incarnation[id]
	switch rapid.IntRange(0, 13).Draw(t, "step") {
	case 0, 1, 2:
		w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 20, 100, 1000, 3000, 10_000, 21_000}).Draw(t, "ms")) * ms)
	case 3:
		w.incarnation[id]++
		w.root(string(id), inc+1, active, "fenced")
		w.known[key(id, inc+1)] = w.now
	case 4:
		if inc > 0 {
			w.root(string(id), inc, rapid.SampledFrom([]rootv1.MemberState{draining, failed}).Draw(t, "state"), "fenced")
		}
	case 5:
		w.stream++
		w.streams[id] = w.stream
		c.Opened(id, inc, w.stream, w.now)
		w.heard[key(id, inc)] = w.now
	case 6:
		c.Closed(id, inc, w.streams[id], w.now)
	case 7, 8:
		c.Frame(id, inc, w.now)
		w.heard[key(id, inc)] = w.now
	case 9:
		if c.Answered(id, inc, w.now) {
			if w.judged[key(id, inc)] {
				t.Fatalf("%s/%d is confirmed behind its verdict", id, inc)
			}
			w.confirmed[key(id, inc)] = w.now
		}
	case 10:
		for _, p := range w.probes {
			r := rapid.SampledFrom([]liveness.ProbeResult{liveness.NoAnswer, liveness.NoAnswer, liveness.AnsweredSame, liveness.Refused}).Draw(t, "result")
			c.Probed(p, r, w.now)
			w.proven[key(p.Member, p.Incarnation)] = w.proven[key(p.Member, p.Incarnation)] || r == liveness.Refused
		}
		w.probes = nil
	case 11:
		all := rapid.Bool().Draw(t, "by all")
		for _, q := range w.questions {
			var words []liveness.Word
			for _, asked := range q.Members {
				w.open[asked], w.unasked[asked] = false, !all
			}
			if rapid.Bool().Draw(t, "heard") {
				w.open[id] = rapid.Bool().Draw(t, "open")
				words = append(words, liveness.Word{Member: id, Incarnation: inc, Age: 500 * ms, Connected: w.open[id]})
				w.words[key(id, inc)] = max(w.words[key(id, inc)], w.now.Add(-500*ms))
			}
			c.Told(q, words, all, w.now)
		}
		w.questions = nil
	case 12:
		if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
			c.End()
			w.judged = map[string]bool{}
			c.Begin(2, w.now)
			w.began = w.now
		}
	case 13:
		c.DialFailed(id, inc, w.now)
	}
}

// turn has the core do what is due, and checks its verdicts.
func (w *world) turn() {
	for i := 0; w.core.Due() <= w.now; i++ {
		if i > 1000 {
			w.t.Fatal("due for ever")
		}
		b := w.core.Turn(w.now)
		w.probes = append(w.probes, b.Probes...)
		if len(b.Question.Members) > 0 {
			w.questions = append(w.questions, b.Question)
		}
		for _, v := range b.Verdicts {
			k := key(v.Member, v.Incarnation)
			w.judged[k] = true
			if v.Incarnation != w.incarnation[v.Member] {
				w.t.Fatalf("a verdict about %s, at incarnation %d", k, w.incarnation[v.Member])
			}
			if !v.Proven {
				w.silent(k)
			}
			if v.Proven && !w.proven[k] {
				w.t.Fatalf("%s is proven dead by nothing", k)
			}
			if v.Proven && w.open[v.Member] {
				w.t.Fatalf("%s is proven dead, and another coordinator has its stream", k)
			}
			if d := w.now.Sub(max(w.confirmed[k], w.began)); (!v.Proven || w.unasked[v.Member]) && d < ttl+ttl/100 {
				w.t.Fatalf("a verdict about %s, %v since it was confirmed or the era began", k, d)
			}
		}
	}
}

// silent judges a verdict without proof: the member was silent here for as long as death takes,
// in whatever era, and twice as long if others have heard it since; or never spoke here since
// the era began.
func (w *world) silent(k string) {
	const dead = 10 * time.Second
	here := max(w.heard[k], w.known[k])
	if w.heard[k] == 0 {
		here = max(here, w.began)
	}
	if d := w.now.Sub(here); d < dead || d < 2*dead && w.now.Sub(w.words[k]) < dead {
		w.t.Fatalf("a verdict without proof about %s, %v since it was heard here, %v elsewhere", k, d, w.now.Sub(w.words[k]))
	}
	if d := w.now.Sub(w.began); d < time.Second {
		w.t.Fatalf("a verdict without proof about %s, %v since the era began", k, d)
	}
}

// check judges what is clear.
func (w *world) check() {
	for id, inc := range w.incarnation {
		for i := uint64(1); i <= inc; i++ {
			k := key(id, i)
			if !w.clear(string(id), i, ttl) || w.proven[k] {
				continue
			}
			if d := w.now.Sub(max(w.confirmed[k], w.began)); d < ttl+ttl/100 {
				w.t.Fatalf("%s is clear %v after it was confirmed or the era began", k, d)
			}
		}
	}
}

// Whatever happens: no verdict and no grant without proof before silence and fence
// have run their time, and nobody is confirmed behind a verdict. A clone goes the same
// way, and what looks the same acts the same.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{
			ward: newWard(t), t: rt, incarnation: map[rooted.MemberID]uint64{}, streams: map[rooted.MemberID]liveness.StreamID{},
			confirmed: map[string]clock.Instant{}, heard: map[string]clock.Instant{}, known: map[string]clock.Instant{}, words: map[string]clock.Instant{}, proven: map[string]bool{}, judged: map[string]bool{}, open: map[rooted.MemberID]bool{}, unasked: map[rooted.MemberID]bool{}, began: 1,
		}
		for i := range uint64(100) {
			w.owned[i] = map[rooted.KeyspaceID]int{fenced: 1}
		}
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			w.step()
			twin := w.core.Clone()
			print, due := w.core.AppendFingerprint(nil, w.now, time.Hour), w.core.Due()
			if !bytes.Equal(print, twin.AppendFingerprint(nil, w.now, time.Hour)) || twin.Due() != due {
				rt.Fatal("a clone is told from its original")
			}
			b := twin.Turn(w.now)
			if due <= w.now && bytes.Equal(print, twin.AppendFingerprint(nil, w.now, time.Hour)) && len(b.Verdicts) > 0 {
				rt.Fatal("a verdict leaves no trace in the fingerprint")
			}
			if !bytes.Equal(print, w.core.AppendFingerprint(nil, w.now, time.Hour)) {
				rt.Fatal("the clone's turn is its original's")
			}
			if own := w.core.Clone().Turn(w.now); !reflect.DeepEqual(own, b) {
				rt.Fatalf("the same turn twice: %v and %v", own, b)
			}
			w.turn()
			w.check()
		}
	})
}

// Two worlds that differ in when they happen have one fingerprint.
func TestFingerprintIsRelative(t *testing.T) {
	var prints [2][]byte
	for i := range prints {
		w := newWard(t)
		w.now = w.now.Add(time.Duration(i) * time.Hour)
		w.core.Begin(1, w.now)
		w.join("m1", 1, "fenced")
		w.run(5 * time.Second)
		w.confirm("m1", 1)
		w.cut("m1", 1)
		w.run(7 * time.Second)
		prints[i] = w.core.AppendFingerprint(nil, w.now, time.Minute)
	}
	if !bytes.Equal(prints[0], prints[1]) {
		t.Errorf("%x\n%x", prints[0], prints[1])
	}
}
