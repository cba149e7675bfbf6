package shown

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/shownsum"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// MaxPartBytes bounds a part of a set, in bytes.
	MaxPartBytes = 256 << 10
	// maxPartRegions bounds it in regions, ended ones included.
	maxPartRegions = 16384
	// regionCost is what one is counted with beside its encoding, or as ended.
	regionCost = 8
)

// Set is a set in the making: what there is to show as of one State, made part by
// part so that nobody holds more of it than one.
type Set struct {
	st       *state.State
	complete bool
	ids      []state.RegionID
	// was has the hashes of what was shown before, where the set is not complete.
	was map[state.RegionID]uint64
}

// Pending reports whether there is something to show.
func (s *Stream) Pending() bool { return s.making != nil || s.whole || len(s.dirty) > 0 }

// Member is whose stream it is, and Incarnation of which life.
func (s *Stream) Member() state.MemberID { return s.member }

// Incarnation is the one that the stream is for.
func (s *Stream) Incarnation() uint64 { return s.incarnation }

// Next makes the next part of what there is to show; nil: nothing. All parts of a set
// hold at its token; what changes meanwhile is in the next set.
func (c *Core) Next(s *Stream) *coordinatorv1.ShownSet {
	if s.making == nil {
		if !s.Pending() {
			return nil
		}
		c.begin(s)
	}
	set := s.making
	part := &coordinatorv1.ShownSet{Token: set.st.Token().Proto(), Complete: set.complete}
	n, bytes := 0, 0
	for ; n < len(set.ids) && n < maxPartRegions; n++ {
		id := set.ids[n]
		v := s.look(set.st, id)
		if !v.shown {
			if set.was[id] != 0 {
				part.Ended = append(part.Ended, uint64(id))
			}
			if bytes += regionCost; bytes > MaxPartBytes-regionCost {
				n++
				break
			}
		} else {
			r := v.proto(set.st)
			if bytes += proto.Size(r) + regionCost; bytes > MaxPartBytes && len(part.Regions)+len(part.Ended) > 0 {
				break
			}
			part.Regions = append(part.Regions, r)
		}
		s.put(set.was[id], v)
	}
	if set.ids = set.ids[n:]; len(set.ids) > 0 {
		part.Partial = true
		return part
	}
	s.making, s.at = nil, set.st.Token()
	if s.Pending() {
		c.note(s)
	}
	return part
}

// put counts one region that is shown otherwise than before.
func (s *Stream) put(was uint64, v view) {
	if was != 0 {
		s.count--
		s.sum ^= was
	}
	if v.shown {
		s.count++
		s.sum ^= v.hash()
	}
}

// begin takes what there is to show.
func (c *Core) begin(s *Stream) {
	set := &Set{st: c.st, complete: s.whole, was: s.dirty}
	if s.whole {
		set.was, s.count, s.sum = nil, 0, 0
		c.st.IncarnationRegions(s.incarnation, func(r *state.Region) bool {
			set.ids = append(set.ids, r.ID)
			return true
		})
		for id := range c.pending[s.member].all() {
			set.ids = append(set.ids, id)
		}
		slices.Sort(set.ids)
		set.ids = slices.Compact(set.ids)
	} else {
		set.ids = slices.Sorted(maps.Keys(s.dirty))
	}
	s.whole, s.dirty, s.making = false, nil, set
}

// view is what a member is shown of a region.
type view struct {
	shown    bool
	r        *state.Region
	settings *rootv1.KeyspaceSettings
	// move is its part in what is planned; nil: none.
	move *rootv1.Transition
	role coordinatorv1.MoveRole
	peer *rootv1.Owner // nil: none
}

// look finds what an incarnation of a member is shown of a region.
func (s *Stream) look(st *state.State, id state.RegionID) (v view) {
	r := st.Region(id)
	if r == nil || !st.Acts(state.Owner{Member: s.member, Incarnation: s.incarnation}) {
		return view{}
	}
	settings := st.Keyspace(r.Keyspace).GetSettings()
	if settings.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		return view{}
	}
	o, owns := r.Owner(s.member)
	v = view{shown: owns && o.Incarnation == s.incarnation, r: r, settings: settings}
	p := st.PendingTransition(id)
	if reshapes(p) && v.shown && !shared(settings) {
		v.move, v.role = p, coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES
	}
	if p == nil || p.GetRegionId() != uint64(id) {
		return v
	}
	switch self := func(o *rootv1.Owner) bool {
		return o.GetMemberId() == string(s.member) && o.GetIncarnation() == s.incarnation
	}; p.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		if self(p.GetOwner()) {
			v.shown, v.move, v.role, v.peer = true, p, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, p.GetFrom()
		} else if v.shown && self(p.GetFrom()) {
			v.move, v.role, v.peer = p, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, p.GetOwner()
		}
	case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		if self(p.GetOwner()) {
			v.shown, v.move, v.role, v.peer = true, p, coordinatorv1.MoveRole_MOVE_ROLE_TAKES, source(st, r)
		}
	case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		if v.shown && p.GetOwner().GetMemberId() == string(s.member) {
			v.move, v.role = p, coordinatorv1.MoveRole_MOVE_ROLE_GIVES
		}
	}
	return v
}

// source is the owner of a shared region that one more fetches it from: the first that stays, or else the
// first that may act; nil: there is none.
func source(st *state.State, r *state.Region) (from *rootv1.Owner) {
	for _, o := range r.Owners {
		switch {
		case !st.Acts(o):
		case st.Member(o.Member).GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE:
			return o.Proto()
		case from == nil:
			from = o.Proto()
		}
	}
	return from
}

// releaseNow: nobody is waited for any more. An owner of a shared region serves until it is none any
// more: whether the others do is not rooted.
func (v *view) releaseNow() bool {
	return v.role == coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES ||
		v.role == coordinatorv1.MoveRole_MOVE_ROLE_GIVES && (v.move.GetReadyAt() != nil || v.peer == nil && !shared(v.settings))
}

func (v *view) hash() uint64 {
	return shownsum.Shown{
		ID: uint64(v.r.ID), Version: v.r.Epoch.Version, ConfVersion: v.r.Epoch.ConfVersion,
		Role: v.role, PeerIncarnation: v.peer.GetIncarnation(), ReleaseNow: v.releaseNow(),
	}.Hash()
}

func (v *view) proto(st *state.State) *coordinatorv1.ShownRegion {
	r := v.r.Proto()
	if !shared(v.settings) {
		r.Owners = nil
	}
	p := &coordinatorv1.ShownRegion{Region: r}
	if v.move != nil {
		times := state.MovesOf(v.settings)
		p.Move = &coordinatorv1.ShownMove{
			TransitionId: v.move.GetId(), Role: v.role, ReleaseNow: v.releaseNow(),
			PeerId: v.peer.GetMemberId(), PeerIncarnation: v.peer.GetIncarnation(),
			PeerAddress:      st.Member(state.MemberID(v.peer.GetMemberId())).GetAddress(),
			PrepareMaxMillis: cmp.Or(v.move.GetPrepareMaxMillis(), times.GetPrepareMaxMillis()),
			DeadlineMillis:   cmp.Or(v.move.GetDeadlineMillis(), times.GetDeadlineMillis()),
		}
		if v.move.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MERGE {
			p.Move.LeftRegionId, p.Move.RightRegionId = v.move.GetRegionId(), v.move.GetRightRegionId()
		}
	}
	return p
}
