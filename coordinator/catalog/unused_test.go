package catalog_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Of what nobody uses only what is due in its keyspace is found, and whatever was stopped.
func TestC37UnusedByKeyspace(t *testing.T) {
	w := newWorld(t)
	m := w.st.Member(state.MemberID(w.apply(joined("m1", 1))[0].Member.GetId()))
	soft := catalog.NewSoft(catalog.SoftConfig{})
	short, long, stays := w.keyspace("short", points()), w.keyspace("long", points()), w.keyspace("stays", points())
	at := clock.Instant(time.Minute)
	report := func(ks uint32, id uint64, idle time.Duration, phase coordinatorv1.RegionPhase) {
		t.Helper()
		r := w.apply(published(ks, id, string(rune(id)), "", "m1"))[0].Region
		if _, err := soft.Report(w.st, m, &coordinatorv1.RegionReport{
			RegionId: id, Epoch: r.Epoch.Proto(), Phase: phase, IdleMillis: uint64(idle.Milliseconds()),
		}, at); err != nil {
			t.Fatal(err)
		}
	}
	const serving, released = coordinatorv1.RegionPhase_REGION_PHASE_SERVING, coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
	report(short, 101, 2*time.Second, serving)
	report(short, 102, 0, serving)
	report(long, 103, 2*time.Second, serving)
	report(long, 104, time.Minute, serving)
	report(stays, 105, time.Hour, serving)
	report(stays, 106, time.Hour, released)
	of := catalog.IdleTimes{}
	of.Add(state.KeyspaceID(short), 2*time.Second)
	of.Add(state.KeyspaceID(long), 30*time.Second)
	of.Add(state.KeyspaceID(long)+1<<16, time.Hour) // shares its low half
	look := func(at clock.Instant, want ...state.RegionID) {
		t.Helper()
		found := map[state.RegionID]bool{}
		for part := range catalog.UnusedParts {
			for _, u := range soft.Unused(part, of, at, nil) {
				found[u.Region] = true
			}
		}
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
			t.Errorf("found %v, want %v", got, want)
		}
	}
	look(at, 101, 104, 106)
	look(at.Add(29*time.Second), 101, 103, 104, 106) // what was said then has grown since
	of = nil
	look(at, 106)
}
