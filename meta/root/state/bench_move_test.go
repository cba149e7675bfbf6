package state_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// moving is 10,000 points of two members, as entries of 512 events change them.
type moving struct {
	*machine
	owner, next string
	sequence    uint64
}

const (
	movingRegions = 10_000
	movingEntry   = 512
)

func newMoving(b *testing.B) *moving {
	m := &moving{machine: &machine{t: b, s: state.New()}, owner: "a", next: "b"}
	m.must(clusterEvent())
	m.must(memberEvent("a", 1), memberEvent("b", 1))
	settings, _ := state.Preset("games")
	k := m.must(settingsEvent("games", settings)).Events[0].Keyspace.GetId()
	for i := range movingRegions {
		m.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: k, StartKey: fmt.Appendf(nil, "p%05d", i), Owners: []*rootv1.Owner{{MemberId: m.owner}},
		}}}})
	}
	return m
}

// entries apply one event for each region, and say how long that took. A Fork is taken
// of each, as peers and views do.
func (m *moving) entries(b *testing.B, event func(r *state.Region) *rootv1.Event) (took time.Duration) {
	for from := 1; from <= movingRegions; from += movingEntry {
		m.sequence++
		c := &rootv1.Command{Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: m.sequence, KnownIndex: m.s.Token().Index}}
		for id := from; id < min(from+movingEntry, movingRegions+1); id++ {
			c.Events = append(c.Events, event(m.s.Region(state.RegionID(id))))
		}
		data := encode(b, c)
		m.out = state.Applied{}
		begun := time.Now()
		if err := m.s.ApplyEntry(1, m.s.Token().Index+1, data, &m.out); err != nil {
			b.Fatal(err)
		}
		m.s.Fork()
		took += time.Since(begun)
		if r := m.out.Results[0]; r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			b.Fatal(r.Outcome, r.Reject)
		}
	}
	return took
}

func (m *moving) id(r *state.Region) string { return m.s.PendingTransition(r.ID).GetId() }

// BenchmarkMove moves 10,000 regions to another member and gives them back: what an
// event of each kind costs a peer.
func BenchmarkMove(b *testing.B) {
	m := newMoving(b)
	var plans, readies, completions, grants time.Duration
	rounds := 0
	b.ReportAllocs()
	for b.Loop() {
		rounds++
		to := m.s.Member(state.MemberID(m.next)).GetIncarnation()
		plans += m.entries(b, func(r *state.Region) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
				RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), From: &rootv1.Owner{MemberId: m.owner}, To: &rootv1.Owner{MemberId: m.next},
				PrepareMaxMillis: 10_000, DeadlineMillis: 20_000, Reason: rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING,
			}}}
		})
		readies += m.entries(b, func(r *state.Region) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{
				TransitionId: m.id(r), Incarnation: to, PlannedAt: m.s.PendingTransition(r.ID).GetPlannedAt().GetIndex(),
			}}}
		})
		completions += m.entries(b, func(r *state.Region) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
				TransitionId: m.id(r), SetFrontier: true, Frontier: []byte("12345678"), PlannedAt: m.s.PendingTransition(r.ID).GetPlannedAt().GetIndex(),
			}}}
		})
		grants += m.entries(b, func(r *state.Region) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
				RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{rooted.Owner{Member: state.MemberID(m.owner)}.Proto()},
			}}}}}
		})
	}
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(rounds*movingRegions) }
	b.ReportMetric(each(plans), "ns/plan")
	b.ReportMetric(each(readies), "ns/ready")
	b.ReportMetric(each(completions), "ns/completion")
	b.ReportMetric(each(grants), "ns/grant")
}
