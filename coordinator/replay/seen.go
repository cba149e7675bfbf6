package replay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// keyspace makes a keyspace, or gives it other settings.
func (w *world) keyspace(recorded uint32, name string, s *rootv1.KeyspaceSettings) error {
	if id, there := w.keyspaces[recorded]; there {
		k := w.st.Keyspace(id)
		if proto.Equal(k.GetSettings(), s) {
			return nil
		}
		return w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			Name: k.GetName(), ExpectedVersion: k.GetVersion(), Settings: s,
		}}})
	}
	if old := w.st.KeyspaceByName(name); old != nil {
		id := state.KeyspaceID(old.GetId())
		if _, taken := w.recorded[id]; !taken && proto.Equal(old.GetSettings().GetLayout(), s.GetLayout()) { // the default one
			w.keyspaces[recorded], w.recorded[id], w.changes[recorded] = id, recorded, map[Change]uint64{}
			return w.keyspace(recorded, name, s)
		}
		name = fmt.Sprintf("%s-%d", name, recorded) // of that name there was another one
	}
	if err := w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: name, Settings: s}}}); err != nil {
		return fmt.Errorf("keyspace %s: %w", name, err)
	}
	id := state.KeyspaceID(w.st.KeyspaceByName(name).GetId())
	w.keyspaces[recorded], w.recorded[id] = id, recorded
	w.changes[recorded] = map[Change]uint64{}
	return nil
}

// others are members and regions that a whole frame does not have.
func (w *world) others(f *coordinatorv1.RecordedFrame) (members []string, regions []uint64) {
	has := map[string]bool{}
	for _, m := range f.GetMembers() {
		has[m.GetId()] = true
	}
	for id := range w.members {
		if !has[id] {
			members = append(members, id)
		}
	}
	there := map[uint64]bool{}
	for _, r := range f.GetRegions() {
		there[r.GetId()] = true
	}
	for id := range w.regions {
		if !there[id] {
			regions = append(regions, id)
		}
	}
	slices.Sort(members)
	slices.Sort(regions)
	return members, regions
}

// member has a member come, come again, drain or stay.
func (w *world) member(m *coordinatorv1.RecordedMember) error {
	id, old := state.MemberID(m.GetId()), w.members[m.GetId()]
	if old == nil || old.GetIncarnation() != m.GetIncarnation() {
		follows := w.st.Member(id).GetIncarnation()
		if old != nil {
			w.raw.Closed(id, follows, follows, 0)
		}
		if err := w.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Follows: follows, Member: &rootv1.Member{
			Id: m.GetId(), Address: "replay:1", Capacity: m.GetCapacity(), Labels: m.GetLabels(), Keyspaces: m.GetKeyspaces(), StartNonce: m.GetIncarnation() + 1,
		}}}}); err != nil {
			return fmt.Errorf("member %s: %w", id, err)
		}
		delete(w.totals, id)
		now := w.st.Member(id).GetIncarnation()
		w.raw.Opened(id, now, now, 0)
	}
	w.members[m.GetId()] = m
	want := rootv1.MemberState_MEMBER_STATE_ACTIVE
	if m.GetDraining() {
		want = rootv1.MemberState_MEMBER_STATE_DRAINING
	}
	if w.st.Member(id).GetState() == want {
		return nil
	}
	return w.set(id, want)
}

func (w *world) set(id state.MemberID, s rootv1.MemberState) error {
	return w.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: string(id), Incarnation: w.st.Member(id).GetIncarnation(), State: s, Reason: "recorded",
	}}})
}

// fails has a member be gone.
func (w *world) fails(id string) error {
	if w.members[id] == nil {
		return nil
	}
	delete(w.members, id)
	delete(w.totals, state.MemberID(id))
	incarnation := w.st.Member(state.MemberID(id)).GetIncarnation()
	w.raw.Closed(state.MemberID(id), incarnation, incarnation, 0)
	return w.set(state.MemberID(id), rootv1.MemberState_MEMBER_STATE_FAILED)
}

// reshape makes the regions what a frame says: what is gone, and what is new or has another
// load. New regions in the place of one that is gone have its owners.
func (w *world) reshape(gone []uint64, regions []*coordinatorv1.RecordedRegion) error {
	type place struct {
		start, end string
		owners     []state.Owner
	}
	freed := map[state.KeyspaceID][]place{}
	var events []*rootv1.Event
	for _, recorded := range gone {
		id, known := w.regions[recorded]
		if !known {
			continue
		}
		delete(w.regions, recorded)
		delete(w.loads, id)
		r := w.st.Region(id)
		if r == nil || w.st.Keyspace(r.Keyspace).GetSettings().GetLayout().GetSlots() != nil {
			continue
		}
		freed[r.Keyspace] = append(freed[r.Keyspace], place{r.Start, r.End, r.Owners})
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(id)}}})
	}
	if err := w.must(events...); err != nil {
		return err
	}
	events = nil
	var fresh []*coordinatorv1.RecordedRegion
	var given []*rootv1.Assignment
	for _, r := range regions {
		if _, known := w.regions[r.GetId()]; known {
			continue
		}
		id, there := w.keyspaces[r.GetKeyspaceId()]
		if !there {
			return fmt.Errorf("region %d is of keyspace %d, which is not there", r.GetId(), r.GetKeyspaceId())
		}
		fresh = append(fresh, r)
		var owners []*rootv1.Owner
		for _, name := range r.GetOwners() {
			owners = append(owners, &rootv1.Owner{MemberId: name})
		}
		for _, p := range freed[id] {
			if start := string(r.GetStartKey()); start >= p.start && (p.end == "" || start < p.end) {
				owners = nil
				for _, o := range p.owners {
					owners = append(owners, &rootv1.Owner{MemberId: string(o.Member)})
				}
			}
		}
		owners = slices.DeleteFunc(owners, func(o *rootv1.Owner) bool { return w.members[o.GetMemberId()] == nil })
		if w.st.Keyspace(id).GetSettings().GetLayout().GetSlots() != nil {
			if x := w.st.RegionAt(id, string(r.GetStartKey())); x != nil && len(x.Owners) == 0 && len(owners) > 0 {
				given = append(given, &rootv1.Assignment{RegionId: uint64(x.ID), ExpectedEpoch: x.Epoch.Proto(), Owners: owners, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR, AtOnce: true})
			}
			continue
		}
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: uint32(id), StartKey: r.GetStartKey(), EndKey: r.GetEndKey(), Owners: owners,
		}}}})
	}
	for part := range slices.Chunk(given, 768) {
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: part}}})
	}
	if err := w.must(events...); err != nil {
		return err
	}
	for _, r := range fresh {
		x := w.st.RegionAt(w.keyspaces[r.GetKeyspaceId()], string(r.GetStartKey()))
		if x == nil {
			return fmt.Errorf("region %d is not there", r.GetId())
		}
		w.regions[r.GetId()] = x.ID
	}
	for _, r := range regions {
		id := w.regions[r.GetId()]
		milli := r.GetLoadMilli()
		if milli == 0 {
			continue // nobody has told since the region, or the holder, changed: it is as it was
		}
		w.loads[id] = float64(milli-1) / 1000
		w.stirred[id] = struct{}{}
	}
	return nil
}

// count notes what was done.
func (w *world) count(cmds []*rootv1.Command, results []*rootv1.CommandResult) {
	for i, c := range cmds {
		if results[i].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			continue
		}
		for _, e := range c.GetEvents() {
			switch k := e.GetKind().(type) {
			case *rootv1.Event_MovePlanned:
				if n := w.one(k.MovePlanned.GetRegionId(), move, k.MovePlanned.GetReason()); n != nil {
					w.moved[*n] += w.loads[state.RegionID(k.MovePlanned.GetRegionId())]
				}
			case *rootv1.Event_PeerChangePlanned:
				w.one(k.PeerChangePlanned.GetRegionId(), "change of owners", k.PeerChangePlanned.GetReason())
			case *rootv1.Event_RegionsAssigned:
				for _, a := range k.RegionsAssigned.GetAssignments() {
					w.one(a.GetRegionId(), "grant", a.GetReason())
				}
			}
		}
	}
}

// one notes a change of a region, and returns its keyspace as recorded.
func (w *world) one(id uint64, what string, why rootv1.OperationReason) *uint32 {
	r := w.st.Region(state.RegionID(id))
	if r == nil {
		return nil
	}
	recorded, known := w.recorded[r.Keyspace]
	if !known {
		return nil
	}
	w.changes[recorded][Change{what, why}]++
	return &recorded
}

// refused is what rounds did not do.
func (w *world) refused() map[string]uint64 { return w.raw.Vars().Withheld }

// level is how even the members of a keyspace are.
type level struct {
	regions         int
	load            float64
	byLoad, byCount float64
}

func (w *world) level(recorded uint32) (x level) {
	id, there := w.keyspaces[recorded]
	if !there {
		return x
	}
	type has struct{ load, regions, capacity float64 }
	members := map[state.MemberID]*has{}
	capacity := 0.0
	name := w.st.Keyspace(id).GetName()
	for who, m := range w.members {
		if m.GetDraining() || len(m.GetKeyspaces()) > 0 && !slices.Contains(m.GetKeyspaces(), name) {
			continue
		}
		h := &has{capacity: float64(cmp.Or(m.GetCapacity(), 1))}
		members[state.MemberID(who)] = h
		capacity += h.capacity
	}
	regions := 0.0
	w.st.RegionsFrom(id, "", func(r *state.Region) bool {
		x.regions++
		for _, o := range r.Owners {
			if h := members[o.Member]; h != nil && w.st.Acts(o) {
				share := w.loads[r.ID] / float64(len(r.Owners))
				h.load, h.regions = h.load+share, h.regions+1
				x.load, regions = x.load+share, regions+1
			}
		}
		return true
	})
	for _, h := range members {
		if x.load > 0 {
			x.byLoad = max(x.byLoad, h.load/h.capacity*capacity/x.load*1000)
		}
		if regions > 0 {
			x.byCount = max(x.byCount, h.regions/h.capacity*capacity/regions*1000)
		}
	}
	return x
}
