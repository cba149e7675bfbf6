package assigner

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// owner is a state in which m1 owns all regions of a keyspace.
func owner(t *testing.T) (st *state.State, m *rootv1.Member, ids []state.RegionID) {
	t.Helper()
	st = state.New()
	apply := func(e *rootv1.Event) {
		t.Helper()
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		if err != nil {
			t.Fatal(err)
		}
		var out state.Applied
		if err := st.ApplyEntry(1, st.Token().Index+1, data, &out); err != nil {
			t.Fatal(err)
		}
		if out.Results[0].Reject != nil {
			t.Fatal(out.Results[0].Reject)
		}
	}
	apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "h:1"}},
	}}}})
	settings := state.DefaultSettings()
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 64}}}
	apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: settings}}})
	apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: "m1", Address: "m1:1", StartNonce: 9}}}})
	m = st.Member("m1")
	st.RegionsFrom(2, "", func(r *state.Region) bool { ids = append(ids, r.ID); return true })
	for _, id := range ids {
		apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: uint64(id), ExpectedEpoch: st.Region(id).Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1", Incarnation: m.GetIncarnation()}},
		}}}}})
	}
	return st, m, ids
}

// A report of a region that its owner gets ready for, which comes while lookForUnserved looks
// at what there is, is looked at behind that.
func TestRule11WhatComesWhileItIsLookedAtIsLookedAt(t *testing.T) {
	st, m, ids := owner(t)
	tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
	soft := catalog.NewSoft(catalog.SoftConfig{})
	a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}})
	a.st, a.lookAt = st, tm.Now()
	if _, begins := a.beginLook(tm.Now()); !begins {
		t.Fatal("it is not looked")
	}
	id := ids[0] // of which nothing was said when it was looked
	turned, err := soft.Report(st, m, &coordinatorv1.RegionReport{
		RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING, Error: "the disk is full",
	}, tm.Now())
	if err != nil || !turned {
		t.Fatal(turned, err)
	}
	a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Turned: []state.RegionID{id}})
	if due := a.endLook(nil, tm.Now()); due == never {
		t.Fatal("what came meanwhile is never looked at")
	}
	tm.Advance(placement.UnservedAfter + time.Second)
	if a.lookForUnserved(tm.Now()); !a.unserved.Unfit(state.Owner{Member: "m1", Incarnation: m.GetIncarnation()}, 2, tm.Now()) {
		t.Error("what came meanwhile is not known")
	}
}

// A region of which its owner says nothing counts as not served a few seconds behind the moment when
// the owner said everything that it has, or was given the region; until it says something.
func TestRule11OwnedAndNeverSaid(t *testing.T) {
	st, m, ids := owner(t)
	tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
	soft := catalog.NewSoft(catalog.SoftConfig{})
	view := &rootview.View{State: st, Token: st.Token()}
	a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}, View: func() *rootview.View { return view }})
	a.Jump(view)
	at := state.Owner{Member: "m1", Incarnation: m.GetIncarnation()}
	serves := func(id state.RegionID) {
		t.Helper()
		if _, err := soft.Report(st, m, &coordinatorv1.RegionReport{
			RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING,
		}, tm.Now()); err != nil {
			t.Fatal(err)
		}
	}
	pass := func(d time.Duration) []state.RegionID {
		for end := tm.Now().Add(d); tm.Now() < end; tm.Advance(100 * time.Millisecond) {
			a.lookForUnserved(tm.Now())
		}
		return a.unserved.Regions(st, 2)
	}
	frame := func(complete bool) {
		a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Stream: 1, Complete: complete})
	}
	if got := pass(time.Minute); len(got) > 0 {
		t.Errorf("it has no stream here, and %d of its regions count", len(got))
	}
	a.Opened("m1", m.GetIncarnation(), 1, 0)
	frame(false)
	if got := pass(time.Minute); len(got) > 0 {
		t.Errorf("it has not said everything, and %d of its regions count", len(got))
	}
	for _, id := range ids[2:] {
		serves(id)
	}
	frame(true)
	if got := pass(4 * time.Second); len(got) > 0 || a.unserved.Unfit(at, 2, tm.Now()) {
		t.Errorf("behind 4 s %d regions count", len(got))
	}
	if got := pass(6 * time.Second); !slices.Equal(got, ids[:2]) || !a.unserved.Unfit(at, 2, tm.Now()) {
		t.Errorf("behind 10 s regions %v count, want %v", got, ids[:2])
	}
	serves(ids[0])
	if got := pass(3 * time.Second); !slices.Equal(got, ids[1:2]) {
		t.Errorf("it serves region %d: %v count", ids[0], got)
	}
	serves(ids[1])
	if got := pass(3 * time.Second); len(got) > 0 || a.unserved.Unfit(at, 2, tm.Now()) || a.lookAt != never {
		t.Errorf("it serves all: %v count", got)
	}
	r := st.Region(ids[5])
	before := *r
	before.Owners = nil
	soft.Gone(ids[5], m.GetIncarnation())
	a.Follow(st, st.Token(), []state.Change{{Kind: state.ChangeRegion, Region: r, OldRegion: &before}})
	if got := pass(10 * time.Second); !slices.Equal(got, ids[5:6]) {
		t.Errorf("it was given region %d, and says nothing of it: %v count", ids[5], got)
	}
	a.Closed("m1", m.GetIncarnation(), 1, 0)
	if got := pass(3 * time.Second); len(got) > 0 {
		t.Errorf("its stream has ended: %v count", got)
	}
}

// One grant has one region of a member looked up, and not all that it has; so has one of which it says that it
// has it no more.
func TestOneGrantLooksAtOneRegion(t *testing.T) {
	st, m, ids := owner(t)
	tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
	soft := catalog.NewSoft(catalog.SoftConfig{})
	view := &rootview.View{State: st, Token: st.Token()}
	a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}, View: func() *rootview.View { return view }})
	a.Jump(view)
	for _, id := range ids {
		if _, err := soft.Report(st, m, &coordinatorv1.RegionReport{
			RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING,
		}, tm.Now()); err != nil {
			t.Fatal(err)
		}
	}
	pass := func() []state.RegionID {
		for end := tm.Now().Add(10 * time.Second); tm.Now() < end; tm.Advance(100 * time.Millisecond) {
			a.lookForUnserved(tm.Now())
		}
		return a.unserved.Regions(st, 2)
	}
	a.Opened("m1", m.GetIncarnation(), 1, 0)
	a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Stream: 1, Complete: true})
	if got := pass(); len(got) > 0 {
		t.Fatalf("%v are not served", got)
	}
	for _, id := range ids[:3] { // nobody says so of the second and the third
		soft.Gone(id, m.GetIncarnation())
	}
	before := *st.Region(ids[0])
	before.Owners = nil
	a.Follow(st, st.Token(), []state.Change{{Kind: state.ChangeRegion, Region: st.Region(ids[0]), OldRegion: &before}})
	if got := pass(); !slices.Equal(got, ids[:1]) {
		t.Errorf("behind a grant of region %d regions %v are looked at", ids[0], got)
	}
	a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Stream: 1, Gone: ids[2:3]})
	if got := pass(); !slices.Equal(got, []state.RegionID{ids[0], ids[2]}) {
		t.Errorf("it says that it has region %d no more, and regions %v are looked at", ids[2], got)
	}
	before = *st.Region(ids[3])
	before.Owners = nil
	var many []state.Change
	for range maxExpected + 1 {
		many = append(many, state.Change{Kind: state.ChangeRegion, Region: st.Region(ids[3]), OldRegion: &before})
	}
	a.Follow(st, st.Token(), many)
	if got := pass(); !slices.Equal(got, ids[:3]) {
		t.Errorf("behind %d grants regions %v are not served, want %v", len(many), got, ids[:3])
	}
}

// A member that serves, and says so in reports that are refused for a number, keeps what it has.
func TestRule11ARefusedReportIsNoSilence(t *testing.T) {
	st, m, ids := owner(t)
	tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
	soft := catalog.NewSoft(catalog.SoftConfig{})
	view := &rootview.View{State: st, Token: st.Token()}
	a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}, View: func() *rootview.View { return view }})
	a.Jump(view)
	for _, id := range ids {
		if _, err := soft.Report(st, m, &coordinatorv1.RegionReport{
			RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING, Load: -1,
		}, tm.Now()); err == nil {
			t.Fatal("a load of -1 is none")
		}
	}
	a.Opened("m1", m.GetIncarnation(), 1, 0)
	a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Stream: 1, Complete: true})
	for range 20 {
		tm.Advance(time.Second)
		a.lookForUnserved(tm.Now())
	}
	if got := a.unserved.Regions(st, 2); len(got) > 0 {
		t.Errorf("%d regions count as not served", len(got))
	}
}

// Where there was no room for what a member said of its regions nobody knows what it has not said, and nothing
// is looked at again and again because of that. Of others it is known, and of that one behind its next words.
func TestRule11WhatWasNotKeptIsNotUnsaid(t *testing.T) {
	st, m, ids := owner(t)
	tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
	soft := catalog.NewSoft(catalog.SoftConfig{MaxRegions: 64})
	view := &rootview.View{State: st, Token: st.Token()}
	a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}, View: func() *rootview.View { return view }})
	a.Jump(view)
	lost := 0
	for _, id := range ids {
		if _, err := soft.Report(st, m, &coordinatorv1.RegionReport{
			RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: coordinatorv1.RegionPhase_REGION_PHASE_SERVING,
		}, tm.Now()); err != nil {
			lost++
		}
	}
	if lost == 0 {
		t.Fatal("there was room for all")
	}
	frame := func(stream uint64, f server.HeardFrame) {
		f.Member, f.Incarnation, f.Stream = "m1", m.GetIncarnation(), stream
		a.Frame(f)
	}
	pass := func() []state.RegionID {
		t.Helper()
		for end := tm.Now().Add(10 * time.Second); tm.Now() < end; tm.Advance(100 * time.Millisecond) {
			if due := a.lookForUnserved(tm.Now()); due <= tm.Now() {
				t.Fatalf("it is to be looked %v ago", tm.Now().Sub(due))
			}
		}
		return a.unserved.Regions(st, 2)
	}
	a.Opened("m1", m.GetIncarnation(), 1, 0)
	frame(1, server.HeardFrame{Complete: true, Lost: true})
	if got := pass(); len(got) > 0 {
		t.Errorf("it said all, of which %d regions were not kept: %d count", lost, len(got))
	}
	frame(1, server.HeardFrame{})
	if got := pass(); len(got) != lost {
		t.Errorf("all that it says is kept now, without %d regions: %d count", lost, len(got))
	}
	frame(1, server.HeardFrame{Lost: true})
	if got := pass(); len(got) > 0 {
		t.Errorf("something was not kept again: %d count", len(got))
	}
	a.Opened("m1", m.GetIncarnation(), 2, 0)
	frame(2, server.HeardFrame{Complete: true})
	if got := pass(); len(got) != lost {
		t.Errorf("another stream says all but %d regions: %d count", lost, len(got))
	}
}

// What members send is taken, and confirmed, while it is looked at what is not served.
func TestFramesWaitForNoLook(t *testing.T) {
	st, m, _ := owner(t)
	view := &rootview.View{State: st}
	a := NewRaw(RawConfig{Soft: catalog.NewSoft(catalog.SoftConfig{}), Clock: &clock.Manual{Elapsed: 1}, Wake: func() {}, View: func() *rootview.View { return view }})
	done := make(chan struct{})
	a.seen.Lock()
	go func() {
		defer close(done)
		a.Opened("m1", m.GetIncarnation(), 1, 0)
		a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Stream: 1})
		a.Answered("m1", m.GetIncarnation(), 0)
		a.Detect()
	}()
	select {
	case <-done:
		a.seen.Unlock()
	case <-time.After(proctest.Patience):
		t.Fatal("a frame waits for who looks at what is not served")
	}
}
