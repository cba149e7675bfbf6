package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	n := newInvariants(oneView{st: st}, &clock.Manual{Elapsed: 1}, func(*state.State, *state.Region, clock.Instant) state.MemberID { return shown })
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
	if err := n.walk(t.Context(), st, 1, truth.Placed); err != nil {
		t.Fatal(err)
	}
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
	asked, now := 0, &clock.Manual{}
	n := newInvariants(oneView{st: st}, now, func(*state.State, *state.Region, clock.Instant) state.MemberID {
		asked++
		return "m2"
	})
	for _, at := range []time.Duration{1, 2, walkEvery, walkEvery + 1, walkEvery + 2} {
		now.Elapsed = clock.Instant(at)
		p := witness.Of(st).Placed
		if err := n.walk(t.Context(), st, now.Elapsed, p); err != nil || !p.Walked || p.Led != 1 || p.Violations[witness.LeadersOwn-1] != 1 {
			t.Errorf("%v, %+v", err, p)
		}
	}
	if asked != 2 {
		t.Errorf("%d walks", asked)
	}
}

// servedView are Views that serve one state.
type servedView struct{ oneView }

func (v servedView) Serve(context.Context, *coordinatorv1.ReadOptions) (*rootview.View, coordinatorv1.ServingClass, error) {
	return v.View(), coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT, nil
}

// walked is a Server whose walks tell that they begin, go on when ends is closed, and end at
// a time.
func walked(t *testing.T, at time.Duration) (s *Server, begins, ends chan struct{}, walks *atomic.Int64) {
	v, now := servedView{oneView{st: assignedState(t)}}, &clock.Manual{Elapsed: clock.Instant(at)}
	begins, ends, walks = make(chan struct{}, 10), make(chan struct{}), new(atomic.Int64)
	s = &Server{cfg: Config{Views: v, Clock: now}}
	s.invariants = newInvariants(v, now, func(*state.State, *state.Region, clock.Instant) state.MemberID {
		walks.Add(1)
		begins <- struct{}{}
		<-ends
		return ""
	})
	return s, begins, ends, walks
}

// walkAt is a walk of a caller who came at a time.
func walkAt(t *testing.T, s *Server, came time.Duration) {
	p := &witness.Placed{}
	if err := s.invariants.walk(t.Context(), s.view().State, clock.Instant(came), p); err != nil || !p.Walked {
		t.Errorf("%v, %+v", err, p)
	}
}

// Who waits for somebody else's walk waits no longer than its deadline.
func TestAWalkIsWaitedForWithTheCallersDeadline(t *testing.T) {
	s, begins, ends, _ := walked(t, time.Second)
	var all sync.WaitGroup
	all.Go(func() { walkAt(t, s, time.Second) })
	<-begins
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	came := make(chan error, 1)
	all.Go(func() {
		_, err := s.Witness(ctx, &coordinatorv1.WitnessRequest{})
		came <- err
	})
	select {
	case err := <-came:
		if status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	case <-time.After(proctest.Patience):
		t.Error("a call whose context has ended waits for the walk of another one")
	}
	close(ends)
	all.Wait()
}

// The answer of a walk is good for walkEvery from when it is there: who came during the
// walk, however long it took, does not walk again.
func TestWhoWaitedForAWalkHasItsAnswer(t *testing.T) {
	const end = 11 * time.Second
	s, begins, ends, walks := walked(t, end)
	var all sync.WaitGroup
	all.Go(func() { walkAt(t, s, time.Second) })
	<-begins
	for i := range 5 { // 1 s, 2 s ... behind the beginning of a walk of ten
		all.Go(func() { walkAt(t, s, time.Duration(i+2)*time.Second) })
	}
	close(ends)
	all.Wait()
	walkAt(t, s, end+walkEvery-1)
	if k := walks.Load(); k > 1 {
		t.Errorf("%d walks, one behind the other, for callers who all came within the first", k)
	}
	if walkAt(t, s, end+walkEvery); walks.Load() != 2 {
		t.Error("the answer of a walk is good for ever")
	}
}
