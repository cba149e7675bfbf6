package state

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// regionBootstrapped publishes the first region of a keyspace. Already
// applied: the region is there with this content.
func (t *turn) regionBootstrapped(p *rootv1.Region, r *EventResult) verdict {
	k, d := t.keyspaceOf(KeyspaceID(p.GetKeyspaceId()))
	if d != nil {
		return verdict{reject: d}
	}
	if k.regions == 0 || k.layout().GetSlots() != nil {
		return t.regionPublished(&rootv1.RegionPublished{Region: p}, r)
	}
	want := t.wanted(p)
	if d := k.fit(want); d != nil {
		return verdict{reject: d}
	}
	var first *Region
	t.RegionsFrom(k.id(), "", func(r *Region) bool {
		first = r
		return false
	})
	found := t.same(want, p.GetEpoch())
	if found == nil && want.ID != 0 {
		if old := t.Region(want.ID); old != nil && sameContent(old, want) {
			found = old
		}
	}
	if found == nil {
		return verdict{reject: withRegion(first, rootv1.Reason_REASON_ALREADY_EXISTS, "keyspace %q has %d regions", k.record.GetName(), k.regions)}
	}
	r.Region = found
	return already
}

// regionPublished makes a region or replaces it by a newer descriptor; an
// empty frontier keeps the rooted one. Already applied: the region has this
// epoch, range, owners and frontier; or no id was given and a region with
// exactly this range and these owners is there, at the epoch if one was given.
func (t *turn) regionPublished(e *rootv1.RegionPublished, r *EventResult) verdict {
	k, d := t.keyspaceOf(KeyspaceID(e.GetRegion().GetKeyspaceId()))
	if d != nil {
		return verdict{reject: d}
	}
	want := t.wanted(e.GetRegion())
	if d := k.fit(want); d != nil {
		return verdict{reject: d}
	}
	if old := t.Region(want.ID); old != nil {
		return t.replace(k, old, want, e.GetExpectedEpoch(), r)
	}
	if found := t.same(want, e.GetRegion().GetEpoch()); found != nil {
		r.Region = found
		return already
	}
	if x := EpochFromProto(e.GetExpectedEpoch()); x != (Epoch{}) {
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d at epoch %s", want.ID, x)
	}
	return t.create(k, want, e.GetRegion().GetEpoch(), r)
}

// wanted is the region that a request describes.
func (t *turn) wanted(p *rootv1.Region) *Region {
	want := RegionFromProto(p)
	want.Revision, want.Former = t.token.Index, nil
	if want.Epoch == (Epoch{}) {
		want.Epoch = Epoch{Version: 1, ConfVersion: 1}
	}
	return want
}

// same finds the region that a request without an id made before.
func (s *State) same(want *Region, epoch *rootv1.RegionEpoch) *Region {
	if want.ID != 0 {
		return nil
	}
	r := s.RegionAt(want.Keyspace, want.Start)
	if r == nil || r.Start != want.Start || r.End != want.End || !sameOwners(r.Owners, want.Owners) {
		return nil
	}
	if x := EpochFromProto(epoch); x != (Epoch{}) && x != r.Epoch || want.Frontier != "" && want.Frontier != r.Frontier {
		return nil
	}
	return r
}

// create makes a region that is not there yet, at the epoch asked for.
func (t *turn) create(k *keyspace, want *Region, asked *rootv1.RegionEpoch, r *EventResult) verdict {
	at := t.locate(want)
	if at.inTheWay != nil {
		return verdict{reject: overlap(at.inTheWay, want)}
	}
	if d := t.roomForRegion(k); d != nil {
		return verdict{reject: d}
	}
	if id, ok := t.pending.Get(want.ID); ok {
		return verdict{reject: changePending(t.Transition(id))}
	}
	if d := t.owners(k, nil, want.Owners, true); d != nil {
		return verdict{reject: d}
	}
	want.Start, want.End = at.start, at.end
	if d := t.mayGive(k, nil, nil, want); d != nil {
		return verdict{reject: d}
	}
	last := t.raise(k, Epoch{Version: max(t.lastVersion(want.ID), k.versionFloor())}).Version
	if want.Epoch.Version <= last {
		if EpochFromProto(asked) != (Epoch{}) && last > 0 {
			return verdict{reject: t.epochUsed(want.ID, last)}
		}
		want.Epoch.Version = last + 1
	}
	if want.ID == 0 {
		if d := t.roomForIDs(1); d != nil {
			return verdict{reject: d}
		}
		want.ID = t.giveID()
		t.change(Change{Kind: ChangeAllocators})
	}
	t.putRegion(nil, want)
	r.Region = want
	return applied
}

func (t *turn) roomForRegion(k *keyspace) *rootv1.ErrorDetail {
	if limit := k.maxRegions(); uint64(k.regions) >= limit {
		return capacity(limit, "keyspace %q has %d regions, no more fit", k.record.GetName(), k.regions)
	}
	if t.regions.Len() >= MaxRegions {
		return capacity(MaxRegions, "the cluster has %d regions, no more fit", MaxRegions)
	}
	return nil
}

// replace judges a newer descriptor of a known region.
func (t *turn) replace(k *keyspace, old, want *Region, expected *rootv1.RegionEpoch, r *EventResult) verdict {
	if old.Keyspace != want.Keyspace {
		return verdict{reject: withRegion(old, rootv1.Reason_REASON_ALREADY_EXISTS, "region %d belongs to keyspace %d", old.ID, old.Keyspace)}
	}
	if sameContent(old, want) {
		r.Region = old
		return already
	}
	taken := t.takenIn(old, want)
	if d := t.newer(k, old, taken, want, expected); d != nil {
		return verdict{reject: d}
	}
	if k.rangesOnly() != nil && (old.Start != want.Start || old.End != want.End) {
		return verdict{reject: withRegion(old, rootv1.Reason_REASON_LAYOUT_MISMATCH, "the range of region %d never changes", old.ID)}
	}
	at := t.locate(want, old, taken)
	if at.inTheWay != nil {
		return verdict{reject: overlap(at.inTheWay, want)}
	}
	if d := t.owners(k, old.Owners, want.Owners, false); d != nil {
		return verdict{reject: d}
	}
	if taken != nil {
		if d := t.takersHost(k, want.Owners, taken); d != nil {
			return verdict{reject: d}
		}
	}
	if d := t.mayLose(k, old, want); d != nil {
		return verdict{reject: d}
	}
	if want.Frontier == "" {
		if d := oneFrontier(k, old, taken); d != nil {
			return verdict{reject: d}
		}
		want.Frontier = old.Frontier
	}
	want.Start, want.End, want.Former = at.start, at.end, t.takenFrom(k, old, want)
	if d := t.mayGive(k, old, taken, want); d != nil {
		return verdict{reject: d}
	}
	if taken != nil || old.Start != want.Start || old.End != want.End {
		if d := t.vacate(k, old, taken, want); d != nil {
			return verdict{reject: d}
		}
	}
	r.Transition = t.settle(old, want)
	if taken != nil {
		t.removeRegion(taken)
	}
	t.putRegion(old, want)
	r.Region = want
	return applied
}

// oneFrontier refuses to make one region of two of which nobody says how far both got.
func oneFrontier(k *keyspace, left, right *Region) *rootv1.ErrorDetail {
	if right == nil || !k.carried() || left.Frontier == right.Frontier {
		return nil
	}
	return withRegion(right, rootv1.Reason_REASON_INVALID_RANGE, "regions %d and %d have different frontiers, and nobody says how far both got: merge them once they have an owner, which does", left.ID, right.ID)
}

// mayLose refuses a descriptor that takes an exclusive region from an owner who acts for it:
// regions are assigned by those who ask it to let go, or say that they do not.
func (t *turn) mayLose(k *keyspace, old, want *Region) *rootv1.ErrorDetail {
	if !k.carried() {
		return nil
	}
	loses := func(o Owner) bool { return t.Acts(o) && !slices.Contains(want.Owners, o) }
	acts := slices.IndexFunc(old.Owners, loses)
	if acts < 0 {
		return nil
	}
	return withRegion(old, rootv1.Reason_REASON_LAYOUT_MISMATCH,
		"member %q acts for region %d of keyspace %q: use region assign, or region assign --now, which does not wait for it", old.Owners[acts].Member, old.ID, k.record.GetName())
}

// newer refuses a descriptor that does not follow the rooted one, and those of the keys that
// it takes: of a region that is merged into it, nil if none is, or of ones that are no more.
func (t *turn) newer(k *keyspace, old, taken, want *Region, expected *rootv1.RegionEpoch) *rootv1.ErrorDetail {
	floor, above := t.raise(k, Epoch{}), max(old.Epoch.Version, k.versionFloor())
	if taken != nil {
		above = max(above, taken.Epoch.Version)
	}
	switch {
	case expected != nil && EpochFromProto(expected) != old.Epoch:
		return epochStale(old, EpochFromProto(expected))
	case !want.Epoch.NewerThan(old.Epoch):
		return epochStale(old, want.Epoch)
	case want.Epoch.Compare(floor) <= 0:
		return withRegion(old, rootv1.Reason_REASON_EPOCH_STALE, "region %d: since the restore of the cluster epochs rise above %s", old.ID, floor)
	case (old.Start != want.Start || old.End != want.End) && want.Epoch.Version <= above:
		return withRegion(old, rootv1.Reason_REASON_EPOCH_STALE, "region %d: another range needs a version above %d", old.ID, above)
	case !sameOwners(old.Owners, want.Owners) && want.Epoch.ConfVersion <= old.Epoch.ConfVersion:
		return withRegion(old, rootv1.Reason_REASON_EPOCH_STALE, "region %d: other owners need a conf version above %d", old.ID, old.Epoch.ConfVersion)
	default:
		return nil
	}
}

// sameContent reports whether the rooted region is what is wanted.
func sameContent(old, want *Region) bool {
	return old.Keyspace == want.Keyspace && old.Epoch == want.Epoch && old.Start == want.Start && old.End == want.End &&
		(want.Frontier == "" || want.Frontier == old.Frontier) && sameOwners(old.Owners, want.Owners)
}

// sameOwners reports whether the sets are equal. A wanted incarnation of 0 is
// any, and a rooted one of 0 is not kept, as in reported keyspaces.
func sameOwners(rooted, wanted []Owner) bool {
	if len(rooted) != len(wanted) {
		return false
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(rooted, func(r Owner) bool {
			return r.Member == w.Member && r.Peer == w.Peer && r.Role == w.Role &&
				(w.Incarnation == 0 || r.Incarnation == 0 || r.Incarnation == w.Incarnation)
		}) {
			return false
		}
	}
	return true
}

// owners judges the wanted owners of a region that has the old ones, and
// completes them: ids shared with the member records, incarnations filled in.
// With grant, an owner without an incarnation gets the member's current one;
// without, one that is an owner already keeps its own.
func (t *turn) owners(k *keyspace, old, want []Owner, grant bool) *rootv1.ErrorDetail {
	if n := k.maxOwners(); len(want) > n {
		d := refuse(rootv1.Reason_REASON_TOO_MANY_REPLICAS, "%d owners, keyspace %q allows %d", len(want), k.record.GetName(), n)
		d.Limit = uint64(n)
		return d
	}
	for i := range want {
		m := t.Member(want[i].Member)
		if d := k.joined(m, want[i]); d != nil {
			return d
		}
		want[i].Member = MemberID(m.GetId())
		j := slices.IndexFunc(old, func(o Owner) bool { return o.Member == want[i].Member })
		switch {
		case !k.assigned():
			want[i].Incarnation = 0
		case want[i].Incarnation == 0 && j >= 0 && !grant:
			want[i].Incarnation = old[j].Incarnation
		case want[i].Incarnation == 0:
			want[i].Incarnation = m.GetIncarnation()
		}
		switch {
		case j >= 0 && (!k.assigned() || old[j].Incarnation == want[i].Incarnation):
			continue
		case !t.Hosts(want[i].Member, k.record.GetName()):
			return mayNotHost(m.GetId(), k.record.GetName())
		case !k.assigned():
			continue
		}
		if d := t.mayTake(k, m, want[i], j < 0); d != nil {
			return d
		}
	}
	return nil
}

// mayNotHost refuses an owner that no grant names.
func mayNotHost(member, keyspace string) *rootv1.ErrorDetail {
	return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "member %q may not own regions of keyspace %q: it is closed, and no grant of host there names member/%s", member, keyspace, member)
}

// joined refuses an owner that is no member, or speaks for another incarnation.
func (k *keyspace) joined(m *rootv1.Member, o Owner) *rootv1.ErrorDetail {
	switch {
	case m == nil && k.assigned():
		return refuse(rootv1.Reason_REASON_MEMBER_NOT_FOUND, "no member %q was ever registered", o.Member)
	case m == nil:
		return refuse(rootv1.Reason_REASON_REGISTER_FIRST, "member %q must register before it owns a region", o.Member)
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED:
		return memberRetired(m, "it is removed")
	case !k.assigned() && o.Incarnation != 0 && o.Incarnation != m.GetIncarnation():
		return memberRetired(m, "its incarnation is %d, not %d", m.GetIncarnation(), o.Incarnation)
	default:
		return nil
	}
}

// mayTake refuses to grant a region of an assigned keyspace to a member that
// takes nothing new.
func (t *turn) mayTake(k *keyspace, m *rootv1.Member, o Owner, more bool) *rootv1.ErrorDetail {
	limit := k.record.GetSettings().GetLimits().GetMaxRegionsPerMember()
	switch {
	case o.Incarnation != m.GetIncarnation():
		return memberRetired(m, "its incarnation is %d, not %d", m.GetIncarnation(), o.Incarnation)
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED:
		return refuse(rootv1.Reason_REASON_UNHEALTHY_MEMBER, "member %q has failed: %s", o.Member, m.GetReason())
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING:
		return refuse(rootv1.Reason_REASON_MEMBER_DRAINING, "member %q is draining", o.Member)
	case more && limit > 0 && uint64(t.MemberKeyspaceRegionCount(o.Member, k.id())) >= limit:
		return capacity(limit, "member %q owns %d regions of keyspace %q, no more fit", o.Member, limit, k.record.GetName())
	default:
		return nil
	}
}

// withRegion is refuse with the rooted region that is in the way.
func withRegion(r *Region, reason rootv1.Reason, format string, args ...any) *rootv1.ErrorDetail {
	d := refuse(reason, format, args...)
	d.Region = r.Proto()
	return d
}

func epochStale(r *Region, asked Epoch) *rootv1.ErrorDetail {
	return withRegion(r, rootv1.Reason_REASON_EPOCH_STALE, "region %d is at epoch %s; %s does not follow", r.ID, r.Epoch, asked)
}

func overlap(other, want *Region) *rootv1.ErrorDetail {
	return withRegion(other, rootv1.Reason_REASON_RANGE_OVERLAP, "the range [%q, %q) overlaps region %d", want.Start, want.End, other.ID)
}
