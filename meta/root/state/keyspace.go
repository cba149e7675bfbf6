package state

import (
	"fmt"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// keyspace is a record with what is counted for it. Immutable.
type keyspace struct {
	record *rootv1.Keyspace
	// regions counts its regions; owned those that have an owner; orphans those that
	// nobody owns who may act, if it is assigned.
	regions, owned, orphans int
}

// counters hand out numbers inside Apply.
type counters struct {
	keyspace          uint32
	memberIncarnation uint64
	// commands counts rows of remembered commands, forgotten ones too, up to
	// whose index forgottenTo is.
	commands, forgottenTo uint64
	// epochFloor is below all epochs that the root raises: see raise.
	epochFloor Epoch
}

func (c counters) proto() *rootv1.Counters {
	return &rootv1.Counters{
		KeyspaceId: c.keyspace, MemberIncarnation: c.memberIncarnation, Commands: c.commands, CommandsForgottenTo: c.forgottenTo,
		EpochFloor: epochUnlessZero(c.epochFloor),
	}
}

func countersFromProto(p *rootv1.Counters) counters {
	return counters{
		keyspace: p.GetKeyspaceId(), memberIncarnation: p.GetMemberIncarnation(), commands: p.GetCommands(), forgottenTo: p.GetCommandsForgottenTo(),
		epochFloor: EpochFromProto(p.GetEpochFloor()),
	}
}

func (k *keyspace) id() KeyspaceID { return KeyspaceID(k.record.GetId()) }

func (k *keyspace) layout() *rootv1.Layout { return k.record.GetSettings().GetLayout() }

func (k *keyspace) assigned() bool {
	return k.record.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED
}

// maxOwners is how many owners a region may have.
func (k *keyspace) maxOwners() int {
	switch n := k.record.GetSettings().GetOwnership().GetMaxOwners(); {
	case n > 0:
		return min(int(n), MaxOwners)
	case k.assigned():
		return 1
	default:
		return MaxOwners
	}
}

// maxRegions is how many regions it may have.
func (k *keyspace) maxRegions() uint64 {
	if n := k.record.GetSettings().GetLimits().GetMaxRegions(); n > 0 {
		return min(n, MaxRegions)
	}
	return MaxRegions
}

// clusterBootstrapped makes the cluster and keyspace 1, "default". Already
// applied: the cluster has this id.
func (t *turn) clusterBootstrapped(e *rootv1.ClusterBootstrapped, r *EventResult) verdict {
	c := e.GetCluster()
	if t.cluster != nil {
		if t.cluster.GetClusterId() != c.GetClusterId() {
			return rejected(rootv1.Reason_REASON_CLUSTER_MISMATCH, "this is cluster %016x, not %016x", t.cluster.GetClusterId(), c.GetClusterId())
		}
		r.Keyspace = t.Keyspace(DefaultKeyspace)
		return already
	}
	t.cluster = proto.CloneOf(c)
	t.cluster.Incarnation = max(c.GetIncarnation(), 1)
	t.token.Incarnation = t.cluster.Incarnation
	t.change(Change{Kind: ChangeCluster, Cluster: t.cluster})
	r.Keyspace = t.newKeyspace("default", bootstrapSettings())
	return applied
}

// keyspaceCreated makes a keyspace, and its regions when it has slots. Already
// applied: there is one of that name with these settings.
func (t *turn) keyspaceCreated(e *rootv1.KeyspaceCreated, r *EventResult) verdict {
	if old := t.KeyspaceByName(e.GetName()); old != nil {
		if proto.Equal(old.GetSettings(), e.GetSettings()) {
			r.Keyspace = old
			return already
		}
		d := refuse(rootv1.Reason_REASON_ALREADY_EXISTS, "keyspace %q exists with other settings", e.GetName())
		d.KeyspaceVersion = old.GetVersion()
		return verdict{reject: d}
	}
	slots := uint64(e.GetSettings().GetLayout().GetSlots().GetCount())
	if t.keyspaces.Len() >= MaxKeyspaces || t.counters.keyspace == ^uint32(0) {
		return verdict{reject: capacity(MaxKeyspaces, "the cluster has %d keyspaces, no more fit", MaxKeyspaces)}
	}
	if uint64(t.regions.Len())+slots > MaxRegions {
		return verdict{reject: capacity(MaxRegions, "the cluster has %d regions, %d more do not fit", t.regions.Len(), slots)}
	}
	if d := t.roomForIDs(slots); slots > 0 && d != nil {
		return verdict{reject: d}
	}
	r.Keyspace = t.newKeyspace(e.GetName(), e.GetSettings())
	t.makeSlots(KeyspaceID(r.Keyspace.GetId()), slots)
	return applied
}

func capacity(limit uint64, format string, args ...any) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_CAPACITY_EXCEEDED, format, args...)
	d.Limit = limit
	return d
}

func (t *turn) newKeyspace(name string, settings *rootv1.KeyspaceSettings) *rootv1.Keyspace {
	t.counters.keyspace++
	k := &rootv1.Keyspace{Id: t.counters.keyspace, Name: name, Version: 1, Settings: settings, Revision: t.token.Index}
	t.inherit(k)
	t.setKeyspace(&keyspace{record: k})
	t.change(Change{Kind: ChangeKeyspace, Keyspace: k})
	return k
}

// makeSlots makes the unit intervals of a slots keyspace, without owners.
func (t *turn) makeSlots(ks KeyspaceID, count uint64) {
	var room [8]byte
	next := string(rooted.AppendSlotKey(room[:0], 0))
	k, _ := t.keyspaces.Get(ks)
	epoch := Epoch{Version: k.versionFloor() + 1, ConfVersion: 1}
	for i := range count {
		r := newRegion(0)
		r.ID, r.Keyspace, r.Revision = t.giveID(), ks, t.token.Index
		r.Start, next = next, string(rooted.AppendSlotKey(room[:0], i+1))
		r.End = next
		r.Epoch = epoch
		t.putRegion(nil, r)
	}
	if count > 0 {
		t.change(Change{Kind: ChangeAllocators})
	}
}

// keyspaceUpdated replaces the settings. Already applied: they are these.
func (t *turn) keyspaceUpdated(e *rootv1.KeyspaceUpdated, r *EventResult) verdict {
	k, d := t.keyspaceNamed(e.GetKeyspaceId(), e.GetName())
	if d != nil {
		return verdict{reject: d}
	}
	switch {
	case proto.Equal(k.record.GetSettings(), e.GetSettings()):
		r.Keyspace = k.record
		return already
	case k.record.GetVersion() != e.GetExpectedVersion():
		return verdict{reject: versionStale(k.record, e.GetExpectedVersion())}
	case !proto.Equal(k.layout(), e.GetSettings().GetLayout()):
		return rejected(rootv1.Reason_REASON_LAYOUT_MISMATCH, "the layout of keyspace %q, %s, never changes: create another keyspace, and move what is in this one", k.record.GetName(), layoutWords(k.layout()))
	}
	next := &rootv1.Keyspace{
		Id: k.record.GetId(), Name: k.record.GetName(), Version: k.record.GetVersion() + 1,
		Settings: e.GetSettings(), Revision: t.token.Index, FormerTtlMillis: formerTTL(k.record, e.GetSettings()),
		VersionFloor: k.record.GetVersionFloor(), Vacated: k.record.GetVacated(),
	}
	updated := *k
	updated.record = next
	if d := t.placedAnew(k, &updated); d != nil {
		return verdict{reject: d}
	}
	var regions []*Region
	was := k.assigned()
	if was != updated.assigned() {
		regions = t.regionsOf(k.id(), k.regions)
	}
	if was {
		for _, region := range regions {
			raiseFloor(next, region)
		}
	}
	t.inherit(next)
	t.setKeyspace(&updated)
	for _, region := range regions {
		if was {
			t.displace(region)
			continue
		}
		t.place(region)
		if floor := updated.versionFloor(); region.Epoch.Version <= floor { // of owners before it was reported, or of the last one of its name
			above := region.Clone()
			above.Epoch.Version, above.Revision = floor+1, t.token.Index
			t.settle(region, above)
			t.putRegion(region, above)
		}
	}
	r.Keyspace = next
	t.change(Change{Kind: ChangeKeyspace, Keyspace: next})
	return applied
}

func layoutWords(l *rootv1.Layout) string {
	switch k := l.GetKind().(type) {
	case *rootv1.Layout_Slots_:
		return fmt.Sprintf("%d slots", k.Slots.GetCount())
	case *rootv1.Layout_Points_:
		return "points"
	default:
		return "ranges"
	}
}

// formerTTL is the longest ttl that owners may have been told before settings become
// others; 0 if it is no longer than theirs.
func formerTTL(k *rootv1.Keyspace, next *rootv1.KeyspaceSettings) uint64 {
	if longest := max(k.GetFormerTtlMillis(), fenceTTL(k.GetSettings())); longest > fenceTTL(next) {
		return longest
	}
	return 0
}

// fenceTTL is how long, in milliseconds, a confirmed owner may act.
func fenceTTL(s *rootv1.KeyspaceSettings) uint64 {
	o := s.GetOwnership()
	if s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || o.GetMaxOwners() > 1 || o.GetFence() != rootv1.Fence_FENCE_TTL {
		return 0
	}
	return o.GetTtlMillis()
}

// placedAnew refuses another placement while owners act for regions: they would lose them,
// as those of an assigned keyspace are incarnations, and those of a reported one are not.
func (t *turn) placedAnew(k, next *keyspace) *rootv1.ErrorDetail {
	switch {
	case k.assigned() == next.assigned():
		return nil
	case k.assigned() && k.regions > k.orphans:
		return refuse(rootv1.Reason_REASON_NOT_EMPTY,
			"members act for %d regions of keyspace %q, and would lose them with what they have not saved: stop these members first, see nokv region list", k.regions-k.orphans, k.record.GetName())
	case !k.assigned() && k.owned > 0:
		return refuse(rootv1.Reason_REASON_NOT_EMPTY,
			"%d regions of keyspace %q have owners, who would lose them: publish them without owners first", k.owned, k.record.GetName())
	default:
		return nil
	}
}

// keyspaceDeleted removes an empty keyspace; slots without owners count as
// empty, and with force all slots do, and what is under way in them ends. Already applied: there was one of
// that id, and it is gone. Of a name nobody can tell.
func (t *turn) keyspaceDeleted(e *rootv1.KeyspaceDeleted) verdict {
	k, d := t.keyspaceNamed(e.GetKeyspaceId(), e.GetName())
	if d != nil && e.GetName() == "" && e.GetKeyspaceId() <= t.counters.keyspace {
		return already
	}
	if d != nil {
		return verdict{reject: d}
	}
	if x := e.GetExpectedVersion(); x != 0 && x != k.record.GetVersion() {
		return verdict{reject: versionStale(k.record, x)}
	}
	id, slots := k.id(), k.layout().GetSlots() != nil
	if slots && k.owned > 0 && !e.GetForce() {
		return rejected(rootv1.Reason_REASON_NOT_EMPTY, "keyspace %q has %d slots, %d of them owned: --force takes them from their owners, who lose what they have not saved", k.record.GetName(), k.regions, k.owned)
	}
	if k.regions > 0 && k.layout().GetPoints() != nil {
		return rejected(rootv1.Reason_REASON_NOT_EMPTY, "keyspace %q has %d points, %d of them owned: nokv keyspace delete --force removes them first, and takes them from their owners, who lose what they have not saved", k.record.GetName(), k.regions, k.owned)
	}
	if k.regions > 0 && !slots {
		return rejected(rootv1.Reason_REASON_NOT_EMPTY, "keyspace %q has %d regions, %d of them owned: remove these first, see nokv region list and nokv region remove", k.record.GetName(), k.regions, k.owned)
	}
	regions := t.regionsOf(id, k.regions)
	heritage, d := heritageOf(k, regions, t.token.Index)
	if d != nil {
		return verdict{reject: d}
	}
	for _, r := range regions {
		p := t.PendingTransition(r.ID)
		switch {
		case p == nil:
		case e.GetForce():
			t.end(p, rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED, "the keyspace was deleted")
		default:
			d := changePending(p)
			d.Message += ", or --force ends it with the keyspace"
			return verdict{reject: d}
		}
	}
	for _, r := range regions {
		t.dropRegion(r) // not remembered: slots have ids that the root gave, and it gives none twice
	}
	t.dropKeyspace(id)
	t.leave(heritage)
	t.change(Change{Kind: ChangeKeyspace, Removed: true, Keyspace: k.record})
	return applied
}

func (t *turn) regionsOf(id KeyspaceID, count int) []*Region {
	regions := make([]*Region, 0, count)
	t.RegionsFrom(id, "", func(r *Region) bool {
		regions = append(regions, r)
		return true
	})
	return regions
}

func (s *State) keyspaceOf(id KeyspaceID) (*keyspace, *rootv1.ErrorDetail) {
	if k, ok := s.keyspaces.Get(id); ok {
		return k, nil
	}
	return nil, refuse(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %d", id)
}

// keyspaceNamed finds a keyspace by its name, or by its id when it has none.
func (s *State) keyspaceNamed(id uint32, name string) (*keyspace, *rootv1.ErrorDetail) {
	if name == "" {
		return s.keyspaceOf(KeyspaceID(id))
	}
	if found, ok := s.keyspaceNames.Get(name); ok {
		return s.keyspaceOf(found)
	}
	return nil, refuse(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %q", name)
}

func versionStale(k *rootv1.Keyspace, expected uint64) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_VERSION_STALE, "keyspace %q is at version %d, not %d", k.GetName(), k.GetVersion(), expected)
	d.KeyspaceVersion = k.GetVersion()
	return d
}

// setKeyspace adds or replaces a keyspace.
func (s *State) setKeyspace(k *keyspace) {
	if old, ok := s.keyspaces.Get(k.id()); !ok || old.record != k.record {
		if ok {
			s.sum -= hashRecord(tagKeyspace, old.record)
		}
		s.sum += hashRecord(tagKeyspace, k.record)
		s.keyspaceNames.Set(k.record.GetName(), k.id())
	}
	s.keyspaces.Set(k.id(), k)
}

func (s *State) dropKeyspace(id KeyspaceID) {
	k, _ := s.keyspaces.Get(id)
	s.sum -= hashRecord(tagKeyspace, k.record)
	s.keyspaces.Delete(id)
	s.keyspaceNames.Delete(k.record.GetName())
}
