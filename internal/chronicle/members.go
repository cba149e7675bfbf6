package chronicle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// ofMember tells what is about members and coordinators; nil: the event is not.
func (s *scene) ofMember(e *rootv1.Event, n int) []piece {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MemberJoined:
		return []piece{s.joined(k.MemberJoined.GetMember(), s.result(n).Member.GetIncarnation())}
	case *rootv1.Event_MemberStateChanged:
		return []piece{s.memberChanged(k.MemberStateChanged)}
	case *rootv1.Event_CoordinatorJoined:
		return []piece{{tell: said("coordinator %s is there, at %s", k.CoordinatorJoined.GetId(), k.CoordinatorJoined.GetAddress())}}
	case *rootv1.Event_CoordinatorLeft:
		return []piece{{tell: said("coordinator %s is gone", k.CoordinatorLeft.GetId())}}
	}
	return nil
}

func memberPiece(m *rootv1.Member, id string) piece {
	return piece{members: []string{id}, pools: m.GetKeyspaces(), everywhere: len(m.GetKeyspaces()) == 0}
}

func (s *scene) joined(m *rootv1.Member, incarnation uint64) piece {
	id := state.MemberID(m.GetId())
	text := m.GetId() + " registers"
	if m.GetAddress() != "" {
		text += ", at " + m.GetAddress()
	}
	if incarnation != 0 {
		text += fmt.Sprintf(", as incarnation %d", incarnation)
	}
	if len(m.GetKeyspaces()) > 0 {
		text += ", to take regions of " + and(m.GetKeyspaces())
	}
	old := s.before.Member(id)
	accepting := old.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE || old.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING
	if s.known && accepting && old.GetIncarnation() != incarnation && incarnation != 0 {
		text += fmt.Sprintf("; incarnation %d is over%s", old.GetIncarnation(), s.left(id))
	}
	p := memberPiece(m, m.GetId())
	p.tell = said("%s", text)
	return p
}

// left says how many regions a member leaves without an owner.
func (s *scene) left(id state.MemberID) string {
	n := s.before.MemberRegionCount(id)
	switch {
	case !s.known || s.outcome == rejected:
		return ""
	case n == 0:
		return ", and owned nothing"
	case n == 1:
		return "; 1 region has no owner"
	}
	return fmt.Sprintf("; %d regions have no owner", n)
}

func (s *scene) memberChanged(e *rootv1.MemberStateChanged) piece {
	id := state.MemberID(e.GetMemberId())
	m := s.before.Member(id)
	p := memberPiece(m, e.GetMemberId())
	who := e.GetMemberId()
	if e.GetIncarnation() != 0 {
		who += fmt.Sprintf(" (incarnation %d)", e.GetIncarnation())
	}
	switch {
	case s.outcome == already:
		is := strings.ToLower(strings.TrimPrefix(e.GetState().String(), "MEMBER_STATE_"))
		p.key = is
		p.tell = func(all []piece) string {
			var ids []string
			for i := range all {
				ids = append(ids, all[i].members...)
			}
			return and(set(ids)) + goes(all, " stays ", " stay ") + is
		}
	case e.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED:
		what, signals := "has failed", ""
		switch {
		case slices.Contains(e.GetSignals(), rooted.DrainedSignal):
			what = "has left"
		case slices.Contains(e.GetSignals(), liveness.Gone.String()):
			what = "has ended"
		}
		if len(e.GetSignals()) > 0 {
			signals = " [" + strings.Join(e.GetSignals(), ", ") + "]"
		}
		p.tell = said("%s %s%s%s%s", who, what, because(e.GetReason()), signals, s.left(id))
	case e.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING:
		text := who + " drains" + because(e.GetReason())
		if n := s.before.MemberRegionCount(id); s.known && n > 0 {
			text += fmt.Sprintf("; %s to be moved", regions(n))
		}
		p.tell = said("%s", text)
	case e.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED:
		p.tell = said("%s is removed%s", who, because(e.GetReason()))
	default:
		p.tell = said("%s takes regions again%s", who, because(e.GetReason()))
	}
	return p
}
