package catalog_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A member that releases a region and ends may say so to a coordinator whose view does not have the
// region as its own yet. Its last word counts when the view does, and is forgotten with the epoch.
func TestLastWordsAheadOfTheViewAreKept(t *testing.T) {
	w := newWorld(t)
	m := w.apply(joined("m1", 1))[0].Member
	older := w.st.Fork()
	r := w.apply(published(1, 1000, "a", "b", "m1"))[0].Region
	s := catalog.NewSoft(catalog.SoftConfig{})
	say := func(phase coordinatorv1.RegionPhase, epoch state.Epoch, region state.RegionID) error {
		_, err := s.Report(older, m, &coordinatorv1.RegionReport{
			RegionId: uint64(region), Epoch: epoch.Proto(), Phase: phase, Frontier: []byte("exactly-42"), SetFrontier: true,
		}, 1)
		return err
	}
	kept := func(region state.RegionID) string {
		own, _ := s.Own(region, m.GetIncarnation())
		return own.Frontier
	}
	refused(t, say(coordinatorv1.RegionPhase_REGION_PHASE_SERVING, r.Epoch, r.ID), rootv1.Reason_REASON_NOT_FOUND)
	if got := kept(r.ID); got != "" {
		t.Errorf("of a region that is not known, and serves, is kept %q", got)
	}
	refused(t, say(coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, r.Epoch, r.ID), rootv1.Reason_REASON_NOT_FOUND)
	s.Sweep(older)
	s.Sweep(w.st)
	if own, ok := s.Own(r.ID, m.GetIncarnation()); !ok || own.Frontier != "exactly-42" || own.Epoch != r.Epoch || own.Phase != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED {
		t.Errorf("kept is %+v", own)
	}

	// It is known by now, and another's: of an epoch that this view has passed nothing is kept.
	older = w.st.Fork()
	other := m
	m = w.apply(joined("m2", 1))[0].Member
	refused(t, say(coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, r.Epoch, r.ID), rootv1.Reason_REASON_EPOCH_STALE)
	if got := kept(r.ID); got != "" {
		t.Errorf("of an epoch that is another's is kept %q", got)
	}
	next := state.Epoch{Version: r.Epoch.Version, ConfVersion: r.Epoch.ConfVersion + 1}
	refused(t, say(coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, next, r.ID), rootv1.Reason_REASON_EPOCH_STALE)
	if got := kept(r.ID); got != "exactly-42" {
		t.Errorf("of the next epoch is kept %q", got)
	}
	// It has taken it up again at that epoch: what it released is no last word any more.
	refused(t, say(coordinatorv1.RegionPhase_REGION_PHASE_SERVING, next, r.ID), rootv1.Reason_REASON_EPOCH_STALE)
	if got := kept(r.ID); got != "" {
		t.Errorf("of a region that was taken up again is kept %q", got)
	}
	m = other
	was, given := *r, *r
	was.Owners = []state.Owner{{Member: "m1", Incarnation: m.GetIncarnation()}} // as in an assigned keyspace
	given.Epoch, given.Owners = next, nil
	s.Forget([]state.Change{{Kind: state.ChangeRegion, OldRegion: &was, Region: &given}})
	if got := kept(r.ID); got != "" {
		t.Errorf("when the region is no longer its own, is kept %q", got)
	}

	// Views pass epochs that it had the region at, and moves to it that were given up, before they come to
	// the one that it released it at: neither takes its word back.
	if _, err := s.Report(w.st, w.st.Member("m1"), &coordinatorv1.RegionReport{
		RegionId: uint64(r.ID), Epoch: next.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, Frontier: []byte("exactly-42"), SetFrontier: true,
	}, 1); err != nil {
		t.Fatal(err)
	}
	before := given
	before.Epoch = r.Epoch
	s.Forget([]state.Change{
		{Kind: state.ChangeRegion, OldRegion: &was, Region: &before},
		{Kind: state.ChangeTransition, Transition: &rootv1.Transition{
			RegionId: uint64(r.ID), Owner: &rootv1.Owner{MemberId: "m1", Incarnation: m.GetIncarnation()}, BaseEpoch: r.Epoch.Proto(),
			Status: rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED,
		}},
	})
	s.Sweep(w.st)
	if got := kept(r.ID); got != "exactly-42" {
		t.Errorf("of an epoch that the view has not come to is kept %q", got)
	}

	for i := range state.RegionID(100_000) {
		_ = say(coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, next, 5000+i)
	}
	n := 0
	for i := range state.RegionID(100_000) {
		if kept(5000+i) != "" {
			n++
		}
	}
	if n < 1<<15 || n > 1<<16 {
		t.Errorf("%d last words of regions that nobody knows are kept", n)
	}
}

// TestEarlyLastWordsOutliveTheNextProcess: a last word that came ahead of the view counts as long as
// the region is as it was then, also when the next process of the member has registered, as one that came
// behind the view does.
func TestEarlyLastWordsOutliveTheNextProcess(t *testing.T) {
	for _, early := range []bool{false, true} {
		w := newWorld(t)
		settings, _ := state.Preset("partitions")
		settings.Layout = ranges()
		ks := w.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "p", Settings: settings}}})[0].Keyspace.GetId()
		m := w.apply(joined("m1", 1))[0].Member
		older := w.st.Fork()
		r := w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: 1000, KeyspaceId: ks, StartKey: []byte("a"), EndKey: []byte("b"), Owners: []*rootv1.Owner{{MemberId: "m1"}},
		}}}})[0].Region
		s := catalog.NewSoft(catalog.SoftConfig{})
		at := w.st
		if early {
			at = older
		}
		_, _ = s.Report(at, m, &coordinatorv1.RegionReport{
			RegionId: uint64(r.ID), Epoch: r.Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_RELEASED, Frontier: []byte("exactly-42"), SetFrontier: true,
		}, 1)
		s.Sweep(w.st)
		if own, _ := s.Own(r.ID, m.GetIncarnation()); own.Frontier != "exactly-42" {
			t.Fatalf("early %v: kept is %+v", early, own)
		}
		w.apply(joinedAfter(m.GetIncarnation(), "m1", 2)) // nothing is granted yet
		if o := w.st.Region(r.ID).Owners[0]; o.Incarnation != m.GetIncarnation() || w.st.Region(r.ID).Epoch != r.Epoch {
			t.Fatalf("the region is %+v", w.st.Region(r.ID))
		}
		s.Sweep(w.st)
		if own, _ := s.Own(r.ID, m.GetIncarnation()); own.Frontier != "exactly-42" {
			t.Errorf("early %v: behind the registration of the next process, with the region as it was, is kept %+v", early, own)
		}
	}
}
