package assigner

import (
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// A report of a region that its owner gets ready for, which comes while lookForUnserved looks
// at what there is, is looked at behind that.
func TestRule11WhatComesWhileItIsLookedAtIsLookedAt(t *testing.T) {
	st := state.New()
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
	m := st.Member("m1")
	var ids []state.RegionID
	st.RegionsFrom(2, "", func(r *state.Region) bool { ids = append(ids, r.ID); return true })
	for _, id := range ids {
		apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: uint64(id), ExpectedEpoch: st.Region(id).Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1", Incarnation: m.GetIncarnation()}},
		}}}}})
	}
	lost := 0
	for _, first := range ids[:8] { // which shard is looked at first is the catalog's business
		last := ids[63]
		tm := &clock.Manual{Elapsed: clock.Instant(time.Second)}
		soft := catalog.NewSoft(catalog.SoftConfig{})
		a := NewRaw(RawConfig{Soft: soft, Clock: tm, Wake: func() {}})
		a.st = st
		report := func(id state.RegionID, phase coordinatorv1.RegionPhase) {
			turned, err := soft.Report(st, m, &coordinatorv1.RegionReport{RegionId: uint64(id), Epoch: st.Region(id).Epoch.Proto(), Phase: phase, Error: "the disk is full"}, tm.Now())
			if err != nil {
				t.Fatal(err)
			}
			if turned {
				a.Frame(server.HeardFrame{Member: "m1", Incarnation: m.GetIncarnation(), Turned: []state.RegionID{id}})
			}
		}
		report(last, coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING)
		tm.Advance(placement.UnservedAfter + time.Second)
		// Look is under way, held up at a shard; meanwhile last is served, and first begins to be acquired.
		holding, goOn := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		var once sync.Once
		all.Go(func() {
			soft.Unserved(func(state.RegionID, uint64, clock.Instant, *catalog.OwnReport) {
				once.Do(func() { close(holding); <-goOn })
			})
		})
		<-holding
		all.Go(func() { report(last, coordinatorv1.RegionPhase_REGION_PHASE_SERVING) })
		time.Sleep(5 * time.Millisecond)
		all.Go(func() { a.lookForUnserved(tm.Now()) })
		time.Sleep(5 * time.Millisecond)
		came := make(chan struct{})
		go func() { report(first, coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING); close(came) }()
		select {
		case <-came:
		case <-time.After(20 * time.Millisecond):
		}
		close(goOn)
		all.Wait()
		<-came
		if a.lookAt == never {
			tm.Advance(time.Hour)
			if a.lookForUnserved(tm.Now()); !a.unserved.Unfit(state.Owner{Member: "m1", Incarnation: m.GetIncarnation()}, 2, tm.Now()) {
				lost++
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of 8 times a region that its owner fails to acquire is not looked at an hour later: lookAt is never", lost)
	}
}
