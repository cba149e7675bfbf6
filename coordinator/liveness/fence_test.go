package liveness_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// shortened are what a keyspace with a fence of 20 s is made.
var shortened = map[string]*rootv1.Ownership{
	"shorter": {MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 1000},
	"epoch":   {MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
}

// shorten has the root say so, and returns the fence.
func (w *ward) shorten(o *rootv1.Ownership) liveness.Fence {
	k := &rootv1.Keyspace{
		Id: fenced, Name: "fenced", FormerTtlMillis: uint64(ttl.Milliseconds()),
		Settings: &rootv1.KeyspaceSettings{
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: o,
			Liveness: &rootv1.Liveness{IntervalMillis: 1000, SuspectAfterMillis: 3000, DeadAfterMillis: 10_000},
		},
	}
	w.core.SetKeyspace(k)
	return liveness.FenceOf(k)
}

// crowd is a ward of members that own something, so that the loss of one is no mass failure.
func crowd(t *testing.T) *ward {
	w := newWard(t)
	w.owned[1] = map[rooted.KeyspaceID]int{fenced: 1}
	for _, id := range []string{"m1", "m2", "m3", "m4", "m5"} {
		w.join(id, 1, "fenced")
	}
	w.run(30 * time.Second)
	return w
}

// Rule 5: an incarnation acts for as long as it was told that a confirmation is good for,
// also when the keyspace says another ttl meanwhile.
func TestRule5TheTTLIsTheOneThatWasTold(t *testing.T) {
	for name, o := range shortened {
		t.Run(name, func(t *testing.T) {
			w := crowd(t)
			w.confirm("m1", 1)
			confirmed := w.now
			w.hang("m1") // its machine is cut off: it is told nothing more
			w.cut("m1", 1)
			f := w.shorten(o)
			w.run(15 * time.Second)
			w.noVerdict()
			w.run(10 * time.Second)
			w.verdict("m1", confirmed, ttl+ttl/100, ttl+ttl/100+time.Second)
			if !w.core.Clear("m1", 1, f, w.now) {
				t.Error("it is waited for behind its verdict")
			}
		})
	}
}

// An answer that is on its way when the ttl gets shorter may still be by the longer one;
// those behind it are not, and nobody waits for the longer ttl for ever.
func TestRule5AnswersBehindAShorterTTL(t *testing.T) {
	for name, o := range shortened {
		t.Run(name, func(t *testing.T) {
			w := crowd(t)
			w.confirm("m1", 1)
			w.run(5 * time.Second)
			f := w.shorten(o)
			w.confirm("m1", 1)
			last := w.now
			w.run(time.Second)
			w.confirm("m1", 1)
			w.root("m1", 1, failed, "fenced")
			if at, want := w.core.ClearAt("m1", 1, f), last.Add(ttl+ttl/100); at != want {
				t.Errorf("clear at %v, want %v", time.Duration(at), time.Duration(want))
			}
			w.root("m1", 2, active, "fenced") // it was told the new one from the first
			w.run(30 * time.Second)
			w.confirm("m1", 2)
			own := w.now
			w.root("m1", 2, failed, "fenced")
			if at, want := w.core.ClearAt("m1", 2, f), own.Add(f.TTL+f.TTL/100); at != want {
				t.Errorf("one that began behind the change is clear at %v, want %v", time.Duration(at), time.Duration(want))
			}
		})
	}
}

// A new holder has not seen the ttl get shorter: what the root remembers counts for what
// earlier holders confirmed, of everybody.
func TestRule5ANewHolderKnowsTheLongerTTL(t *testing.T) {
	w := newWard(t)
	f := w.shorten(shortened["shorter"])
	w.root("m1", 1, failed, "fenced")
	w.root("m2", 2, active, "fenced")
	w.core.Begin(2, w.now)
	began := w.now
	w.run(5 * time.Second)
	w.confirm("m2", 2)
	w.root("m2", 2, failed, "fenced")
	for id, incarnation := range map[string]uint64{"m1": 1, "m2": 2, "m3": 3} {
		if at, want := w.core.ClearAt(rooted.MemberID(id), incarnation, f), began.Add(ttl+ttl/100); at != want {
			t.Errorf("%s is clear at %v, want %v", id, time.Duration(at), time.Duration(want))
		}
	}
}

// Who was removed may act as long as before for what was taken from it, also when it comes again.
func TestRule5WhoWasRemovedIsWaitedFor(t *testing.T) {
	for _, failsFirst := range []bool{false, true} {
		w := crowd(t)
		w.run(ttl)
		f := liveness.Fence{TTL: ttl}
		w.confirm("m1", 1)
		if failsFirst {
			w.root("m1", 2, active, "fenced")
			w.root("m1", 2, failed, "fenced")
		}
		want := w.now.Add(ttl + ttl/100)
		w.run(time.Second)
		w.root("m1", 2, rootv1.MemberState_MEMBER_STATE_REMOVED, "fenced")
		if at := w.core.ClearAt("m1", 1, f); at != want {
			t.Errorf("removed, it is clear at %v, want %v", time.Duration(at), time.Duration(want))
		}
		w.root("m1", 3, active, "fenced")
		if at := w.core.ClearAt("m1", 1, f); at != want {
			t.Errorf("come again, it was clear at %v, want %v", time.Duration(at), time.Duration(want))
		}
	}
}
