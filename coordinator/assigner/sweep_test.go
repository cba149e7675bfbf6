package assigner_test

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ticking is a clock that a benchmark moves.
type ticking struct{ now clock.Instant }

func (c *ticking) Now() clock.Instant { return c.now }

func (c *ticking) Wall() uint64 { return 0 }

// BenchmarkR22Sweep asks for checkpoints of 10,000 regions of 100 members, whose interval is
// 10 s: an op is a second of it, of 1,000,000,000 ns.
func BenchmarkR22Sweep(b *testing.B) {
	s := newSweep(b, 10_000, 100)
	for b.Loop() {
		s.second()
	}
	b.ReportMetric(float64(s.asked)/float64(b.N), "asked/op")
}

// A coordinator that read no log, as nothing happens, asks all the same.
func TestR21FirstHolderAsks(t *testing.T) {
	s := newSweep(t, 100, 4)
	for range 20 {
		s.second()
	}
	if s.asked < 180 || s.asked > 200 {
		t.Errorf("in 20 s 100 regions were asked %d times, want twice each", s.asked)
	}
}

// sweep is a Raw that holds the Tenure over slots that members own.
type sweep struct {
	raw   *assigner.Raw
	clock *ticking
	asked int
}

func (s *sweep) second() {
	for range 10 {
		s.clock.now = s.clock.now.Add(100 * time.Millisecond)
		s.raw.Look()
	}
}

func newSweep(b testing.TB, slots uint32, members int) *sweep {
	r := newRoot(b)
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: slots}}}
	s.Cadence = &rootv1.Cadence{CheckpointIntervalMillis: 10_000}
	k := r.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}})
	for i := range members {
		r.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: string(name(i)), Address: "a:1", StartNonce: uint64(i) + 1}}}})
	}
	var grants []*rootv1.Assignment
	n := 0
	r.state.RegionsFrom(state.KeyspaceID(k.GetEvents()[0].GetKeyspace().GetId()), "", func(x *state.Region) bool {
		grants = append(grants, &rootv1.Assignment{RegionId: uint64(x.ID), Owners: []*rootv1.Owner{{MemberId: string(name(n % members))}}})
		n++
		return true
	})
	for len(grants) > 0 {
		some := grants[:min(len(grants), 1000)]
		grants = grants[len(some):]
		r.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: some}}})
	}
	r.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: self, HolderIncarnation: life, HolderAddress: "c:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	view := &rootview.View{State: r.state, Token: r.state.Token()}
	x := &sweep{clock: &ticking{now: clock.Instant(time.Hour)}}
	x.raw = assigner.NewRaw(assigner.RawConfig{
		ID: self, Incarnation: life, View: func() *rootview.View { return view }, Streams: streamless{}, Soft: catalog.NewSoft(catalog.SoftConfig{}),
		Command:    func(state.MemberID, uint64, *coordinatorv1.MemberCommand) error { x.asked++; return nil },
		Identities: identity.NewSource(), Clock: x.clock, Logger: hclog.NewNullLogger(), Wake: func() {},
	})
	x.raw.Jump(view)
	x.raw.Look()
	return x
}
