package server

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// oneView are Views that show a state.
type oneView struct {
	Views
	st *state.State
}

func (v oneView) View() *rootview.View { return &rootview.View{State: v.st, Token: v.st.Token()} }

func (v oneView) Subscribe(state.Token) *rootview.Reader { return nil }

// assignedState has one member and a keyspace with one slot, which is its own.
func assignedState(t *testing.T) *state.State {
	st := state.New()
	for _, e := range []*rootv1.Event{
		{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
			ClusterId: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "r:1"}},
		}}}},
		{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: "m1", Address: "m1:1", StartNonce: 1}}}},
		{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "x", Settings: &rootv1.KeyspaceSettings{
			Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}},
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		}}}},
		{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: 1, Owners: []*rootv1.Owner{{MemberId: "m1"}},
		}}}}},
	} {
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
		if err != nil {
			t.Fatal(err)
		}
		var out state.Applied
		if err := st.ApplyEntry(1, st.Token().Index+1, data, &out); err != nil || out.Results[0].Reject != nil {
			t.Fatal(err, out.Results)
		}
	}
	return st
}

// What broke an invariant once is counted and said, with its position, for as long as the
// process lives: also behind a leap of the view.
func TestViolationsStaySaid(t *testing.T) {
	st := assignedState(t)
	shown := state.MemberID("")
	n := newInvariants(oneView{st: st}, func(*state.State, *state.Region) state.MemberID { return shown })
	at := state.Token{Incarnation: 1, Term: 1, Index: 9}
	took := st.Region(1).Clone()
	took.Owners, took.Epoch.ConfVersion = nil, took.Epoch.ConfVersion+1
	shown = "m2"
	n.take(&rootview.Batch{Token: at, Changes: []state.Change{{Kind: state.ChangeRegion, Region: took, OldRegion: st.Region(1), Planned: true}}})
	n.jump()
	shown = ""
	n.take(&rootview.Batch{Token: at, Changes: nil})
	if v := n.violations(); v != (witness.Violations{3: 1, 4: 1}) {
		t.Errorf("counted %v, want one of I4 and one of I5", v)
	}
	truth := witness.Of(st)
	truth.Placed = n.walk(st, clock.Instant(1))
	f := witness.Judge(truth).Findings[witness.Placement]
	if f.Verdict != witness.Broken {
		t.Errorf("%+v", f)
	}
	for i, kind := range []witness.Kind{witness.TakenWithoutMove, witness.LeaderNotOwner} {
		if a := truth.Placed.Found[i]; a.Kind != kind || a.At != at || a.Region != 1 {
			t.Errorf("%+v", a)
		}
	}
}

// A walk over all regions is not made for every caller, and what it finds is counted once.
func TestWalksAreFew(t *testing.T) {
	st := assignedState(t)
	asked := 0
	n := newInvariants(oneView{st: st}, func(*state.State, *state.Region) state.MemberID {
		asked++
		return "m2"
	})
	for _, at := range []time.Duration{1, 2, walkEvery, walkEvery + 1, walkEvery + 2} {
		if p := n.walk(st, clock.Instant(at)); !p.Walked || p.Led != 1 || p.Violations[witness.LeadersOwn-1] != 1 {
			t.Errorf("%+v", p)
		}
	}
	if asked != 2 {
		t.Errorf("%d walks", asked)
	}
}
