package shown_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestPartsAreBounded: a set that does not fit in one message comes in parts, all of one
// State, and what changes meanwhile comes behind it.
func TestPartsAreBounded(t *testing.T) {
	l := newLog(t)
	l.must(keyspace("k", points(1, rootv1.Placement_PLACEMENT_ASSIGNED)))
	l.must(joined("m1", 1, 0), joined("m2", 2, 0))
	for i := range 500 {
		l.must(published(2, fmt.Sprintf("%04d%s", i, strings.Repeat("x", 1500)), "m1"))
	}
	c := shown.New(l.st)
	l.take()
	s := c.Open("m1", 1)
	var m member
	parts := 0
	for s.Pending() {
		if parts == 1 {
			l.must(assigned(400, "m2"), assigned(3, "m2"))
			c.Apply(l.st, l.take())
		}
		parts++
		if m.take(t, c.Next(s)) {
			same(t, fmt.Sprint("behind part ", parts), m.has, expected(l.was[m.at], "m1", 1))
			if !c.Told(s, m.says()) {
				t.Errorf("another sum behind part %d", parts)
			}
		}
	}
	if want := 500*3000/shown.MaxPartBytes + 1; parts < want {
		t.Errorf("%d parts, want %d at least", parts, want)
	}
	if len(m.has) != 498 {
		t.Errorf("%d regions, want 498", len(m.has))
	}
}

// TestManyChangesAreASetOfTheirOwn: no more is kept of what changed than there is.
func TestManyChangesAreASetOfTheirOwn(t *testing.T) {
	l := newLog(t)
	l.must(keyspace("k", points(1, rootv1.Placement_PLACEMENT_ASSIGNED)))
	l.must(joined("m1", 1, 0), joined("m2", 2, 0))
	for i := range 200 {
		l.must(published(2, fmt.Sprintf("%04d", i), "m1"))
	}
	c := shown.New(l.st)
	s := c.Open("m2", 2)
	if p := c.Next(s); !p.GetComplete() || len(p.GetRegions()) > 0 {
		t.Fatalf("the first set is %v", p)
	}
	l.take()
	for i := range 200 {
		l.must(assigned(uint64(i+1), "m2"))
		c.Apply(l.st, l.take())
		switch p := i + 1; {
		case p == 64:
			if set := c.Next(c.Open("m1", 1)); !set.GetComplete() || len(set.GetRegions()) != 200-64 {
				t.Fatalf("a new stream shows %v", set)
			}
		case p == 200:
			if set := c.Next(s); !set.GetComplete() || len(set.GetRegions()) != 200 {
				t.Fatalf("complete %v with %d regions", set.GetComplete(), len(set.GetRegions()))
			}
		}
	}
	l.must(assigned(7, "m1"))
	c.Apply(l.st, l.take())
	if set := c.Next(s); set.GetComplete() || len(set.GetEnded()) != 1 || len(set.GetRegions()) > 0 {
		t.Fatalf("one that left is shown as %v", set)
	}
	if c.Next(s) != nil {
		t.Error("there is more to show")
	}
}

// TestAnEndedIncarnationIsShownNothing: not what it owned, nor what its successor does.
func TestAnEndedIncarnationIsShownNothing(t *testing.T) {
	l := newLog(t)
	l.must(keyspace("k", points(1, rootv1.Placement_PLACEMENT_ASSIGNED)))
	l.must(joined("m1", 1, 0))
	l.must(published(2, "a", "m1"))
	c := shown.New(l.st)
	s := c.Open("m1", 1)
	if set := c.Next(s); len(set.GetRegions()) != 1 {
		t.Fatalf("it is shown %v", set)
	}
	l.take()
	l.must(joined("m1", 2, 1))
	l.must(published(2, "b", "m1"))
	c.Apply(l.st, l.take())
	if set := c.Next(s); !set.GetComplete() || len(set.GetRegions()) > 0 {
		t.Errorf("the ended incarnation is shown %v", set)
	}
	if set := c.Next(c.Open("m1", 2)); len(set.GetRegions()) != 1 || set.GetRegions()[0].GetRegion().GetId() != 2 {
		t.Errorf("its successor is shown %v", set)
	}
}

// TestAnEndedPlanHidesNoOther: a plan that ended is remembered, by an id that may come
// behind that of the one that is pending for the same member now.
func TestAnEndedPlanHidesNoOther(t *testing.T) {
	l := newLog(t)
	l.must(keyspace("k", points(2, rootv1.Placement_PLACEMENT_ASSIGNED)))
	l.must(joined("m1", 1, 0))
	l.must(joined("m2", 1, 0))
	l.must(published(2, "a", "m1"))
	epoch := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
	l.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: 1, ExpectedEpoch: epoch, From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: "m2"},
	}}})
	l.must(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: "move-1-1.1"}}})
	l.must(&rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
		RegionId: 1, ExpectedEpoch: epoch, Kind: rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, Owner: &rootv1.Owner{MemberId: "m2"},
	}}})
	c := shown.New(l.st)
	if set := c.Next(c.Open("m2", l.st.Member("m2").GetIncarnation())); len(set.GetRegions()) != 1 {
		t.Errorf("who is to take a region is shown %v", set)
	}
}

func assigned(region uint64, owner string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
		Assignments: []*rootv1.Assignment{{RegionId: region, Owners: []*rootv1.Owner{{MemberId: owner}}}},
	}}}
}

const (
	benchMembers = 10_000
	benchRegions = 1_000_000
)

func memberName(i int) string { return fmt.Sprintf("m%05d", i) }

// crowd is a state with many members and regions.
func crowd(b *testing.B) *log {
	l := newLog(b)
	l.must(keyspace("k", points(1, rootv1.Placement_PLACEMENT_ASSIGNED)))
	batch := func(n int, event func(int) *rootv1.Event) {
		var events []*rootv1.Event
		for i := range n {
			if events = append(events, event(i)); len(events) == 4000 || i == n-1 {
				l.must(events...)
				l.take()
				clear(l.was)
				events = nil
			}
		}
	}
	batch(benchMembers, func(i int) *rootv1.Event { return joined(memberName(i), 1, 0) })
	batch(benchRegions, func(i int) *rootv1.Event { return published(2, fmt.Sprintf("%07d", i), memberName(i%benchMembers)) })
	return l
}

// BenchmarkApply is the cost of a region that goes from one of 10,000 connected members to
// another, of 1,000,000, and of showing it to both.
func BenchmarkApply(b *testing.B) {
	l := crowd(b)
	before := heap()
	c := shown.New(l.st)
	for i := range benchMembers {
		s := c.Open(state.MemberID(memberName(i)), uint64(i+1))
		for s.Pending() {
			c.Next(s)
		}
	}
	c.Dirty()
	testreport.Linef(b, "%d members with %d regions: %.1f bytes a region", benchMembers, benchRegions, float64(heap()-before)/benchRegions)
	next := 0
	var changes []state.Change
	for range 4000 {
		changes = append(changes, func() []state.Change {
			next++
			region := uint64(next*7919%benchRegions + 1)
			l.must(assigned(region, memberName(next%benchMembers)))
			return l.take()
		}()...)
	}
	clear(l.was)
	c.Apply(l.st, nil)
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(l.st, changes)
		for _, s := range c.Dirty() {
			for s.Pending() {
				c.Next(s)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(changes)), "ns/change")
	runtime.KeepAlive(l)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
