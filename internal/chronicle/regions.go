package chronicle

import (
	"fmt"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ofRegions tells what is about regions; nil: the event is not.
func (s *scene) ofRegions(e *rootv1.Event, n int) []piece {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		return []piece{s.published(k.RegionBootstrapped.GetRegion(), s.result(n).Region)}
	case *rootv1.Event_RegionPublished:
		return []piece{s.published(k.RegionPublished.GetRegion(), s.result(n).Region)}
	case *rootv1.Event_RegionTombstoned:
		return []piece{s.of(piece{key: "gone", tell: func(all []piece) string {
			return places(all) + goes(all, " is", " are") + " removed"
		}}, k.RegionTombstoned.GetRegionId())}
	case *rootv1.Event_RegionsAssigned:
		var pieces []piece
		for _, a := range k.RegionsAssigned.GetAssignments() {
			pieces = append(pieces, s.assigned(a))
		}
		return pieces
	}
	return s.ofTransition(e, n)
}

func (s *scene) published(r *rootv1.Region, made *state.Region) piece {
	owners := ownersOf(r.GetOwners())
	id, known := r.GetId(), false
	if made != nil {
		id = uint64(made.ID)
	}
	if s.known && id != 0 {
		known = s.before.Region(state.RegionID(id)) != nil
	}
	p := piece{key: fmt.Sprint(known, len(owners) > 0), members: owners, to: owners}
	if p = s.of(p, id); p.keyspace == "" {
		p.keyspace = s.keyspace(r.GetKeyspaceId())
		p.key += " " + p.keyspace
		p.place = fmt.Sprintf("a region (%q) of %s", r.GetStartKey(), p.keyspace)
	}
	what := "published"
	if known {
		what = "published anew"
	}
	p.tell = func(all []piece) string {
		text := places(all) + goes(all, " is ", " are ") + what
		if len(all[0].to) > 0 {
			text += ", owned by " + shares(all)
		}
		return text
	}
	return p
}

// assigned tells a change of owners of one region; those with one reason and one owner
// before go into a sentence.
func (s *scene) assigned(a *rootv1.Assignment) piece {
	next := ownersOf(a.GetOwners())
	var before []string
	if r := s.before.Region(state.RegionID(a.GetRegionId())); s.known && r != nil {
		for _, o := range r.Owners {
			before = append(before, string(o.Member))
		}
	}
	from := ""
	if len(before) > 0 {
		from = " from " + strings.Join(before, "+")
	}
	if a.GetAcknowledged() {
		return s.of(piece{routine: true, key: "acknowledged " + strings.Join(next, "+"), members: next, tell: func(all []piece) string {
			return strings.Join(next, "+") + " made checkpoints of " + places(all)
		}}, a.GetRegionId())
	}
	so, same := s.outcome == already, len(next) > 0 && strings.Join(before, "+") == strings.Join(next, "+")
	p := piece{key: fmt.Sprint(a.GetReason(), from, len(next) == 0, so, same), members: append(before, next...), to: next}
	p.tell = func(all []piece) string {
		cause := because(Cause(a.GetReason()))
		switch {
		case so && len(next) == 0:
			return places(all) + goes(all, " is", " are") + " nobody's"
		case so || same:
			return places(all) + goes(all, " stays", " stay") + " with " + strings.Join(next, "+")
		}
		if len(next) == 0 {
			return places(all) + goes(all, " is", " are") + " taken" + from + ", and nobody's" + cause
		}
		return places(all) + goes(all, " goes", " go") + from + " to " + shares(all) + cause
	}
	return s.of(p, a.GetRegionId())
}

// ofTransition tells planned changes and their ends.
func (s *scene) ofTransition(e *rootv1.Event, n int) []piece {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MovePlanned:
		m := k.MovePlanned
		from, to := m.GetFrom().GetMemberId(), m.GetTo().GetMemberId()
		p := piece{key: from + " " + m.GetReason().String(), members: []string{from, to}, to: []string{to}}
		p.tell = func(all []piece) string {
			return places(all) + goes(all, " is", " are") + " to move from " + from + " to " + shares(all) + because(Cause(m.GetReason()))
		}
		return []piece{s.of(p, m.GetRegionId())}
	case *rootv1.Event_PeerChangePlanned:
		c := k.PeerChangePlanned
		verb := " to get the owner "
		if c.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER {
			verb = " to lose the owner "
		}
		who := c.GetOwner().GetMemberId()
		return []piece{s.of(piece{key: verb, members: []string{who}, to: []string{who}, tell: func(all []piece) string {
			return places(all) + goes(all, " is", " are") + verb + shares(all)
		}}, c.GetRegionId())}
	case *rootv1.Event_SplitPlanned:
		p := s.of(piece{}, k.SplitPlanned.GetRegionId())
		p.tell = said("%s is to be split at %q", p.place, k.SplitPlanned.GetSplitKey())
		return []piece{p}
	case *rootv1.Event_MergePlanned:
		p := s.of(piece{}, k.MergePlanned.GetLeftRegionId())
		p.tell = said("%s is to be joined with region %d", p.place, k.MergePlanned.GetRightRegionId())
		return []piece{p}
	case *rootv1.Event_MoveReady:
		return []piece{s.step(k.MoveReady.GetTransitionId(), n, "ready", "", true)}
	case *rootv1.Event_TransitionCompleted:
		return []piece{s.step(k.TransitionCompleted.GetTransitionId(), n, "completed", "", false)}
	case *rootv1.Event_TransitionCancelled:
		return []piece{s.step(k.TransitionCancelled.GetTransitionId(), n, "cancelled", because(k.TransitionCancelled.GetReason()), false)}
	}
	return nil
}

// step tells a step of a transition, or its end.
func (s *scene) step(id string, n int, what, why string, routine bool) piece {
	t := s.before.Transition(id)
	if t == nil {
		t = s.result(n).Transition
	}
	if t == nil {
		t = s.after.Transition(id)
	}
	if t == nil {
		return piece{routine: routine, tell: said("%s: %s%s", id, what, why)}
	}
	from, to := t.GetFrom().GetMemberId(), t.GetOwner().GetMemberId()
	p := piece{routine: routine, key: fmt.Sprint(what, why, t.GetKind(), from, t.GetCause()), members: set(names(from, to)), to: names(to)}
	plain := func(text string) func([]piece) string {
		return func(all []piece) string { return places(all) + " " + text + why }
	}
	switch kind := t.GetKind(); {
	case kind == rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		p.tell = func(all []piece) string {
			switch what {
			case "ready":
				return shares(all) + " can take " + places(all) + " from " + from
			case "completed":
				return places(all) + goes(all, " has", " have") + " moved from " + from + " to " + shares(all) + because(Cause(t.GetCause()))
			}
			return "the move of " + places(all) + " from " + from + " to " + shares(all) + " is given up" + why
		}
	case what == "cancelled":
		p.tell = func(all []piece) string { return "what was planned for " + places(all) + " is given up" + why }
	case kind == rootv1.TransitionKind_TRANSITION_KIND_SPLIT:
		p.key, p.tell = "", plain(fmt.Sprintf("is split at %q: what is behind it is region %d", t.GetSplitKey(), t.GetRightRegionId()))
	case kind == rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		p.key, p.tell = "", plain(fmt.Sprintf("is joined with region %d, which is no more", t.GetRightRegionId()))
	case kind == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		p.tell = func(all []piece) string {
			return places(all) + goes(all, " has", " have") + " the owner " + shares(all) + " too"
		}
	default:
		p.tell = func(all []piece) string {
			return places(all) + goes(all, " has", " have") + " the owner " + shares(all) + " no more"
		}
	}
	return s.of(p, t.GetRegionId())
}

// names are those that are not empty.
func names(ids ...string) (some []string) {
	for _, id := range ids {
		if id != "" {
			some = append(some, id)
		}
	}
	return some
}
