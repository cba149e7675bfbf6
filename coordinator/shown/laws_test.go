package shown_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/shownsum"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// log is a state machine that keeps what it was after every entry.
type log struct {
	t       tester
	st      *state.State
	was     map[state.Token]*state.State
	changes []state.Change
}

func newLog(t tester) *log {
	l := &log{t: t, st: state.New(), was: map[state.Token]*state.State{}}
	l.try(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 7, FeatureLevel: state.FeatureLevel, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11}}},
	}}})
	return l
}

// try applies events as one entry, and reports whether they applied.
func (l *log) try(events ...*rootv1.Event) bool {
	l.t.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	next := l.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, next.Token().Index+1, data, &out); err != nil {
		l.t.Fatalf("%v", err)
	}
	l.st = next
	l.was[next.Token()] = next
	l.changes = append(l.changes, out.Changes...)
	return out.Results[0].Outcome == rootv1.Outcome_OUTCOME_APPLIED
}

func (l *log) must(events ...*rootv1.Event) {
	l.t.Helper()
	if !l.try(events...) {
		l.t.Fatalf("not applied: %v", events)
	}
}

// take is what changed since the last call.
func (l *log) take() []state.Change {
	c := l.changes
	l.changes = nil
	return c
}

func joined(id string, nonce, follows uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: fmt.Sprintf("%s:%d", id, nonce), StartNonce: nonce}, Follows: follows,
	}}}
}

func keyspace(name string, settings *rootv1.KeyspaceSettings) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: settings}}}
}

func points(owners uint32, placement rootv1.Placement) *rootv1.KeyspaceSettings {
	return &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: placement,
		Ownership: &rootv1.Ownership{MaxOwners: owners},
	}
}

func published(keyspace uint32, key string, owners ...string) *rootv1.Event {
	r := &rootv1.Region{KeyspaceId: keyspace, StartKey: []byte(key)}
	for _, o := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: o})
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
}

// member is what a process makes of the sets that it takes.
type member struct {
	has     map[uint64]*coordinatorv1.ShownRegion
	filling map[uint64]*coordinatorv1.ShownRegion
	inside  bool
	at      state.Token
}

// take applies a part, and reports whether it was the last of a set.
func (m *member) take(t tester, p *coordinatorv1.ShownSet) bool {
	t.Helper()
	if n := proto.Size(p); n > shown.MaxPartBytes+64 {
		t.Fatalf("a part has %d bytes", n)
	}
	if !m.inside {
		m.filling = map[uint64]*coordinatorv1.ShownRegion{}
		if !p.GetComplete() {
			for id, r := range m.has {
				m.filling[id] = r
			}
		}
	}
	for _, r := range p.GetRegions() {
		m.filling[r.GetRegion().GetId()] = r
	}
	for _, id := range p.GetEnded() {
		if m.filling[id] == nil {
			t.Fatalf("region %d ends, and it was not shown", id)
		}
		delete(m.filling, id)
	}
	if m.inside = p.GetPartial(); m.inside {
		return false
	}
	m.has, m.at = m.filling, state.TokenFromProto(p.GetToken())
	return true
}

func (m *member) says() *coordinatorv1.ShownState {
	s := &coordinatorv1.ShownState{Token: m.at.Proto(), Count: uint64(len(m.has))}
	for _, r := range m.has {
		s.Checksum ^= shownsum.Of(r)
	}
	return s
}

// expected is what an incarnation is to be shown by a state, found by looking at
// everything.
func expected(st *state.State, id string, incarnation uint64) map[uint64]*coordinatorv1.ShownRegion {
	all := map[uint64]*coordinatorv1.ShownRegion{}
	m := st.Member(state.MemberID(id))
	if m.GetIncarnation() != incarnation ||
		m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE && m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
		return all
	}
	self := func(o *rootv1.Owner) bool { return o.GetMemberId() == id && o.GetIncarnation() == incarnation }
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
			return true
		}
		st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
			p := &coordinatorv1.ShownRegion{Region: r.Proto()}
			owns := slices.ContainsFunc(p.Region.GetOwners(), self)
			if k.GetSettings().GetOwnership().GetMaxOwners() < 2 {
				p.Region.Owners = nil
			}
			st.Transitions(func(tr *rootv1.Transition) bool {
				if tr.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
					return true
				}
				merge := tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MERGE
				if tr.GetRegionId() != uint64(r.ID) && !(merge && tr.GetRightRegionId() == uint64(r.ID)) {
					return true
				}
				var peer *rootv1.Owner
				move := &coordinatorv1.ShownMove{TransitionId: tr.GetId(), PrepareMaxMillis: 10_000, DeadlineMillis: 60_000}
				switch {
				case tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE && self(tr.GetOwner()):
					move.Role, peer = coordinatorv1.MoveRole_MOVE_ROLE_TAKES, tr.GetFrom()
				case tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE && owns && self(tr.GetFrom()):
					move.Role, peer, move.ReleaseNow = coordinatorv1.MoveRole_MOVE_ROLE_GIVES, tr.GetOwner(), tr.GetReadyAt() != nil
				case tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER && self(tr.GetOwner()):
					move.Role = coordinatorv1.MoveRole_MOVE_ROLE_TAKES
					for _, stays := range []bool{true, false} {
						for _, o := range r.Proto().GetOwners() {
							of := st.Member(state.MemberID(o.GetMemberId()))
							acts := of.GetIncarnation() == o.GetIncarnation() && of.GetState() != rootv1.MemberState_MEMBER_STATE_FAILED
							if peer == nil && acts && (!stays || of.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE) {
								peer = o
							}
						}
					}
				case tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER && owns && tr.GetOwner().GetMemberId() == id:
					move.Role, move.ReleaseNow = coordinatorv1.MoveRole_MOVE_ROLE_GIVES, k.GetSettings().GetOwnership().GetMaxOwners() < 2
				case (merge || tr.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT) && owns && k.GetSettings().GetOwnership().GetMaxOwners() < 2:
					move.Role, move.ReleaseNow = coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES, true
					if merge {
						move.LeftRegionId, move.RightRegionId = tr.GetRegionId(), tr.GetRightRegionId()
					}
				default:
					return true
				}
				if peer != nil {
					move.PeerId, move.PeerIncarnation = peer.GetMemberId(), peer.GetIncarnation()
					move.PeerAddress = st.Member(state.MemberID(peer.GetMemberId())).GetAddress()
				}
				owns = owns || move.Role == coordinatorv1.MoveRole_MOVE_ROLE_TAKES
				p.Move = move
				return true
			})
			if owns {
				all[uint64(r.ID)] = p
			}
			return true
		})
		return true
	})
	return all
}

func same(t tester, what string, got, want map[uint64]*coordinatorv1.ShownRegion) {
	t.Helper()
	for id, w := range want {
		if !proto.Equal(got[id], w) {
			t.Fatalf("%s: region %d is\n%v, want\n%v", what, id, got[id], w)
		}
	}
	for id := range got {
		if want[id] == nil {
			t.Fatalf("%s: region %d is shown: %v", what, id, got[id])
		}
	}
}

var names = []string{"m1", "m2", "m3"}

func drawChange(t *rapid.T, l *log) *rootv1.Event {
	id := rapid.SampledFrom(names).Draw(t, "member")
	m := l.st.Member(state.MemberID(id))
	other := rapid.SampledFrom(names).Draw(t, "other")
	region := l.st.Region(state.RegionID(rapid.Uint64Range(1, 14).Draw(t, "region")))
	if region == nil {
		region = &state.Region{}
	}
	var plans []string
	l.st.Transitions(func(p *rootv1.Transition) bool {
		plans = append(plans, p.GetId())
		return true
	})
	plan := rapid.SampledFrom(append(plans, "none")).Draw(t, "plan")
	switch rapid.IntRange(0, 13).Draw(t, "change") {
	case 0:
		return joined(id, rapid.Uint64Range(1, 4).Draw(t, "nonce"), m.GetIncarnation())
	case 1:
		return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
			MemberId: id, State: rootv1.MemberState(rapid.IntRange(1, 3).Draw(t, "state")),
		}}}
	case 2:
		return published(rapid.Uint32Range(2, 4).Draw(t, "keyspace"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), id)
	case 3:
		a := &rootv1.Assignment{RegionId: uint64(region.ID), Owners: []*rootv1.Owner{{MemberId: id}}}
		if other != id && rapid.Bool().Draw(t, "both") {
			a.Owners = append(a.Owners, &rootv1.Owner{MemberId: other})
		}
		if rapid.IntRange(0, 4).Draw(t, "nobody") == 0 {
			a.Owners = nil
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{a}}}}
	case 4, 5:
		from := id
		if len(region.Owners) > 0 {
			from = string(region.Owners[0].Member)
		}
		return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: uint64(region.ID), ExpectedEpoch: region.Epoch.Proto(), From: &rootv1.Owner{MemberId: from}, To: &rootv1.Owner{MemberId: other},
		}}}
	case 6:
		return &rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
			RegionId: uint64(region.ID), ExpectedEpoch: region.Epoch.Proto(), Kind: rootv1.TransitionKind(rapid.IntRange(1, 2).Draw(t, "kind")),
			Owner: &rootv1.Owner{MemberId: id},
		}}}
	case 7:
		return &rootv1.Event{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{
			TransitionId: plan, Incarnation: max(l.st.Transition(plan).GetOwner().GetIncarnation(), 1),
		}}}
	case 8:
		return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
			TransitionId: plan, SetFrontier: rapid.Bool().Draw(t, "frontier"),
		}}}
	case 9:
		return &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: plan}}}
	case 10:
		return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: uint64(region.ID), ExpectedEpoch: region.Epoch.Proto(), SplitKey: []byte(rapid.SampledFrom([]string{"d", "g", "k"}).Draw(t, "at")),
		}}}
	case 11:
		right := l.st.RegionAt(5, region.End)
		if right == nil {
			right = region
		}
		return &rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
			LeftRegionId: uint64(region.ID), LeftExpectedEpoch: region.Epoch.Proto(), RightRegionId: uint64(right.ID), RightExpectedEpoch: right.Epoch.Proto(),
		}}}
	case 12:
		return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: max(uint64(region.ID), 1)}}}
	default:
		k := l.st.Keyspace(state.KeyspaceID(rapid.Uint32Range(2, 4).Draw(t, "keyspace")))
		return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			KeyspaceId: k.GetId(), ExpectedVersion: k.GetVersion(),
			Settings: points(rapid.Uint32Range(1, 2).Draw(t, "owners"), rootv1.Placement(rapid.IntRange(1, 2).Draw(t, "placement"))),
		}}}
	}
}

// connection is a member's stream, and what it took from it.
type connection struct {
	stream *shown.Stream
	member member
}

// TestLaws: whatever changes in whatever order, with streams that end and begin, sets
// that are made while more changes, and changes that are not known: what a member has
// behind a set is what the state at its token says, and both sides have the same sum.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t)
		l.must(keyspace("one", points(1, rootv1.Placement_PLACEMENT_ASSIGNED)))
		l.must(keyspace("shared", points(2, rootv1.Placement_PLACEMENT_ASSIGNED)))
		l.must(keyspace("reported", points(2, rootv1.Placement_PLACEMENT_REPORTED)))
		ranges := points(1, rootv1.Placement_PLACEMENT_ASSIGNED)
		ranges.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
		l.must(keyspace("ranges", ranges))
		for _, id := range names {
			l.must(joined(id, 9, 0))
		}
		for i, id := range names {
			l.must(published(2, fmt.Sprint(i), id))
			l.must(published(3, fmt.Sprint(i), id, names[(i+1)%3]))
			part := published(5, []string{"", "f", "h"}[i], names[i/2]) // two neighbours of one owner
			part.GetRegionPublished().Region.EndKey = []byte([]string{"f", "h", ""}[i])
			l.must(part)
		}
		c := shown.New(l.st)
		l.take()
		open := map[string]*connection{}
		next := func(id string) {
			conn := open[id]
			if part := c.Next(conn.stream); part != nil && conn.member.take(t, part) {
				want := expected(l.was[conn.member.at], id, conn.stream.Incarnation())
				same(t, fmt.Sprintf("%s at %v", id, conn.member.at), conn.member.has, want)
				if !c.Told(conn.stream, conn.member.says()) {
					t.Fatalf("%s at %v has another sum", id, conn.member.at)
				}
			}
		}
		reads := func() {
			if rapid.IntRange(0, 9).Draw(t, "jump") == 0 {
				l.take()
				c.Jump(l.st)
			} else {
				c.Apply(l.st, l.take())
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := rapid.SampledFrom(names).Draw(t, "whose")
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < 5:
				l.try(drawChange(t, l))
			case step < 7:
				reads()
			case step == 7 || open[id] == nil:
				if old := open[id]; old != nil && rapid.Bool().Draw(t, "closed") {
					c.Close(old.stream)
				}
				open[id] = &connection{stream: c.Open(state.MemberID(id), l.st.Member(state.MemberID(id)).GetIncarnation())}
			case step == 8:
				wrong := open[id].member.says()
				wrong.Checksum ^= 1
				c.Told(open[id].stream, wrong)
			default:
				next(id)
			}
		}
		reads()
		dirty := map[*shown.Stream]bool{}
		for _, s := range c.Dirty() {
			dirty[s] = true
		}
		for id, conn := range open {
			if conn.stream.Pending() && !dirty[conn.stream] {
				t.Fatalf("there is something for %s, and nobody is told", id)
			}
			for conn.stream.Pending() {
				next(id)
			}
			same(t, id, conn.member.has, expected(l.st, id, conn.stream.Incarnation()))
			if got, want := c.Keyspaces(conn.stream, 10), expectedKeyspaces(l.st, id, conn.stream.Incarnation()); !slices.Equal(got, want) {
				t.Fatalf("%s is shown regions of keyspaces %v, want %v", id, got, want)
			}
		}
	})
}

// expectedKeyspaces are those of what an incarnation owns, and of what is planned with its
// member, found by looking at everything.
func expectedKeyspaces(st *state.State, id string, incarnation uint64) []state.KeyspaceID {
	var all []state.KeyspaceID
	st.IncarnationRegions(incarnation, func(r *state.Region) bool {
		all = append(all, r.Keyspace)
		return true
	})
	st.Transitions(func(p *rootv1.Transition) bool {
		r := st.Region(state.RegionID(p.GetRegionId()))
		ours := p.GetOwner().GetMemberId() == id || p.GetFrom().GetMemberId() == id
		if ours && p.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING &&
			st.Keyspace(r.Keyspace).GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED {
			all = append(all, r.Keyspace)
		}
		return true
	})
	slices.Sort(all)
	return slices.Compact(all)
}
