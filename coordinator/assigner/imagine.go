package assigner

import (
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// imagines reports whether a request asks what would be if.
func imagines(req *coordinatorv1.PlanRequest) bool {
	return len(req.GetWithMembers()) > 0 || len(req.GetWithoutMembers()) > 0 || req.GetSettings() != nil
}

// imagine changes the state of a survey to what would be if.
func (s *survey) imagine(req *coordinatorv1.PlanRequest) error {
	if !imagines(req) {
		return nil
	}
	st := s.in.State
	s.with, s.without = map[state.MemberID]bool{}, map[state.MemberID]bool{}
	var events []*rootv1.Event
	for i, m := range req.GetWithMembers() {
		id := state.MemberID(m.GetId())
		if old := st.Member(id); old != nil && old.GetState() != rootv1.MemberState_MEMBER_STATE_FAILED {
			return invalid("with_members[%d]: member %q is there; take another id", i, m.GetId())
		}
		if s.with[id] {
			return invalid("with_members[%d]: %q stands twice", i, m.GetId())
		}
		s.with[id] = true
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member:  &rootv1.Member{Id: m.GetId(), Address: "imagined:1", Capacity: m.GetCapacity(), Labels: m.GetLabels(), StartNonce: uint64(i) + 1},
			Follows: st.Member(id).GetIncarnation(),
		}}})
	}
	for i, id := range req.GetWithoutMembers() {
		m := st.Member(state.MemberID(id))
		if m == nil || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
			return invalid("without_members[%d]: there is no member %q", i, id)
		}
		if s.without[state.MemberID(id)] {
			return invalid("without_members[%d]: %q stands twice", i, id)
		}
		s.without[state.MemberID(id)] = true
		if m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
			continue
		}
		events = append(events, memberEvent(&rootv1.MemberStateChanged{
			MemberId: id, Incarnation: m.GetIncarnation(), State: rootv1.MemberState_MEMBER_STATE_FAILED, Reason: "imagined",
		}))
	}
	if over := req.GetSettings(); over != nil {
		k := st.KeyspaceByName(req.GetKeyspace())
		settings := proto.CloneOf(over)
		if !req.GetWhole() {
			settings = state.MergeSettings(k.GetSettings(), over)
		}
		settings.Layout = k.GetSettings().GetLayout()
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			Name: k.GetName(), ExpectedVersion: k.GetVersion(), Settings: settings,
		}}})
	}
	if len(events) > 0 {
		next, d := st.Imagine(events...)
		if d != nil {
			return &reason.Error{Detail: d}
		}
		s.in.State = next
	}
	for id := range s.with {
		if s.book != nil {
			s.hear(s.in.State.Member(id).GetIncarnation())
		}
	}
	return nil
}

// hear has a member that is imagined count as one that has said that it has nothing.
func (s *survey) hear(incarnation uint64) {
	s.book.Heard(incarnation, s.in.Now)
	s.book.Total(incarnation, 0, 0, s.in.Now)
}

// read takes what members last said of a keyspace's regions, where loads did not count.
func (s *survey) read(id state.KeyspaceID) {
	if s.book == nil {
		s.book = load.NewBook(maxBook)
		s.in.Loads = s.book
		for id := range s.with {
			s.hear(s.in.State.Member(id).GetIncarnation())
		}
	}
	a, now := s.raw, s.in.Now
	s.in.State.RegionsFrom(id, "", func(r *state.Region) bool {
		s.book.Follow(r.ID, r.Epoch, r.Owners, now)
		for _, o := range r.Owners {
			if said, ok := a.cfg.Soft.Own(r.ID, o.Incarnation); ok && said.Phase == coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
				s.book.Report(r.ID, o.Incarnation, said.Epoch, said.Load, now)
			}
		}
		return true
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.speakers {
		if x.load != nil {
			s.book.Total(x.incarnation, x.load.GetLoad(), x.load.GetCapacity(), x.at)
		}
		s.book.Heard(x.incarnation, x.at)
	}
}

// byDefault is how a keyspace is evened out for who asks for it, that never is by itself.
var byDefault = &rootv1.Rebalance{MeanPermille: 1200}

// decide finds the policies of keyspaces as they would be.
func (s *survey) decide(ids []state.KeyspaceID) {
	s.policies = make(map[state.KeyspaceID]balance.Policy, len(ids))
	weighed := map[state.KeyspaceID]bool{}
	for _, id := range s.weighed {
		weighed[id] = true
	}
	for _, id := range ids {
		k := s.in.State.Keyspace(id)
		settings := k.GetSettings()
		if settings.GetPolicy().GetRebalance() == nil {
			settings = state.MergeSettings(settings, &rootv1.KeyspaceSettings{Policy: &rootv1.Policy{Rebalance: byDefault}})
		}
		s.policies[id] = placement.PolicyOf(settings)
		s.settled = max(s.settled, s.policies[id].Settle, placement.DrainSettle)
		if weighs(k) && !weighed[id] {
			s.read(id)
		}
	}
}

func invalid(format string, args ...any) error {
	return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, format, args...)
}
