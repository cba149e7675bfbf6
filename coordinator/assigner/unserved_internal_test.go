package assigner

import (
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
