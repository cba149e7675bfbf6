package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/rooted"
)

// named has one keyspace of each name.
type named struct {
	Views
	ids map[string]state.KeyspaceID
}

func (n named) KeyspacesNamed(name string) []state.KeyspaceID {
	return []state.KeyspaceID{n.ids[name]}
}

// watched is a fanout with n keyspaces, each with one watch.
func watched(tb testing.TB, n int) (*fanout, []*watch) {
	v := named{ids: map[string]state.KeyspaceID{}}
	f := newFanout(v)
	var all []*watch
	for i := range n {
		name := fmt.Sprint("k", i)
		v.ids[name] = state.KeyspaceID(i + 1)
		w := &watch{place: -1}
		if !f.enter(w, scopeKey{keyspace: name}) {
			tb.Fatal("a watch did not enter")
		}
		w.place, w.scope.level = 0, []*watch{w}
		all = append(all, w)
	}
	return f, all
}

// change publishes a change of a region of one keyspace.
func (f *fanout) change(index uint64, k state.KeyspaceID) {
	token := state.Token{Incarnation: 1, Term: 1, Index: index}
	f.publish([]rootview.Batch{{Token: token, Changes: []state.Change{{Kind: state.ChangeRegion, Region: &state.Region{Region: rooted.Region{ID: 7, Keyspace: k}}}}}})
}

// drain visits nobody, as often as there is somebody to be visited until one comes; nil:
// all.
func (f *fanout) drain(until *watch) (visits int) {
	for round := true; ; round = !round {
		w, _ := f.next(round)
		if w == nil {
			return visits
		}
		f.pass()
		if visits++; w == until {
			return visits
		}
	}
}

// A watch that something changed for does not wait behind all those that are only looked
// at, and those are looked at all the same, once.
func TestChangesComeBeforeLooks(t *testing.T) {
	const n = 1000
	f, all := watched(t, n)
	for i := range uint64(3) {
		f.visitAll()
		if visits := f.drain(all[4]); visits > n {
			t.Fatalf("looked at %d times", visits)
		}
		f.change(i+1, all[4].scope.ids[0])
		if visits := f.drain(all[4]); visits > 2 {
			t.Errorf("the watch that a change concerns comes behind %d others", visits-1)
		}
		left := f.drain(nil)
		if f.visitAll(); f.drain(nil) != n {
			t.Error("not every watch is looked at")
		}
		if left > n {
			t.Errorf("%d visits of %d watches", left, n)
		}
		f.visitAll()
		f.change(i+100, all[7].scope.ids[0])
		if visits := f.drain(all[7]); visits > 2 {
			t.Errorf("the watch that was to be looked at, too, comes behind %d others", visits-1)
		}
		if left := f.drain(nil); left != n-1 && left != n-2 {
			t.Errorf("%d of %d watches are looked at behind a change", left, n)
		}
	}
}

// The round that follows one under way begins a while behind that one's beginning, the longer
// the more watches there are, and deliver knows when: it is not left to the next look at all.
func TestTheNextRoundOfACrowdIsWaitedFor(t *testing.T) {
	for crowd, want := range map[int]time.Duration{
		256: 256 * crowdRest, 1000: 25 * time.Millisecond, 4000: crowdRound, 10_000: crowdRound,
	} {
		t.Run(fmt.Sprint(crowd), func(t *testing.T) { nextRound(t, crowd, want) })
	}
}

func nextRound(t *testing.T, crowd int, want time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		f, all := watched(t, 1)
		s := all[0].scope
		for len(s.level) < crowd {
			s.level = append(s.level, &watch{place: len(s.level), scope: s})
		}
		time.Sleep(time.Second)
		f.change(1, s.ids[0])
		if w, _ := f.next(true); w == nil { // the round is under way
			t.Fatal("nobody is visited")
		}
		f.pass()
		f.change(2, s.ids[0]) // another is to follow
		if n := f.drain(nil); n < crowd-1 || n > crowd {
			t.Fatalf("%d visits of the first round", n)
		}
		if left := time.Until(f.until); f.until.IsZero() || left != want {
			t.Errorf("a round begins in %v, deliver waits for one in %v", time.Until(f.soonest), left)
		}
	})
}

// BenchmarkScopes is what a change of one keyspace costs while others are watched, and a
// look at all watches for each of them.
func BenchmarkScopes(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		f, all := watched(b, n)
		index := uint64(0)
		change := func() {
			index++
			f.change(index, all[n/2].scope.ids[0])
		}
		for range maxFrames { // as many frames are kept as may be
			change()
			f.drain(nil)
		}
		b.Run(fmt.Sprint("change/", n), func(b *testing.B) {
			for b.Loop() {
				change()
				f.drain(all[n/2])
				f.drain(nil)
			}
		})
		b.Run(fmt.Sprint("behind-a-look/", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				f.drain(nil)
				f.visitAll()
				b.StartTimer()
				change()
				f.drain(all[n/2])
			}
		})
		b.Run(fmt.Sprint("look/", n), func(b *testing.B) {
			f.drain(nil)
			for b.Loop() {
				f.visitAll()
				f.drain(nil)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/watch")
		})
	}
}
