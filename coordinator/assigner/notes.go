package assigner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxNotes bounds the regions that something is noted of, by kind of note.
	maxNotes = 1 << 16
	// MaxNotes bounds the regions of one answer.
	MaxNotes = 1024
	// maxStuck bounds the keyspaces and reasons that are told.
	maxStuck = 256
)

// notes are what is known of regions and not rooted, for others. Its methods may overlap.
type notes struct {
	mu sync.Mutex
	// Guarded by mu. refused is why nothing was done for a region when it was planned last,
	// stuck how many there are, until when regions are in quarantine, and keys how many
	// those have that have more than limit.
	refused map[state.RegionID]stuckFor
	stuck   map[stuckFor]stuck
	until   map[state.RegionID]clock.Instant
	keys    map[state.RegionID]keyCount
}

type stuckFor struct {
	keyspace state.KeyspaceID
	why      placement.Why
}

type stuck struct {
	count uint64
	one   state.RegionID
}

type keyCount struct {
	keyspace    state.KeyspaceID
	keys, limit uint64
}

func (n *notes) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused, n.stuck = map[state.RegionID]stuckFor{}, map[stuckFor]stuck{}
	n.until, n.keys = map[state.RegionID]clock.Instant{}, map[state.RegionID]keyCount{}
}

// planned notes what a plan refused of the regions that it looked at.
func (n *notes) planned(st *state.State, regions []state.RegionID, plan *placement.Plan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range regions {
		n.clearLocked(id)
	}
	for _, f := range plan.Refusals {
		if f.Even || f.Region == 0 || st.Region(f.Region) == nil || len(n.refused) >= maxNotes {
			continue
		}
		n.clearLocked(f.Region)
		key := stuckFor{f.Keyspace, f.Why}
		x := n.stuck[key]
		n.refused[f.Region], n.stuck[key] = key, stuck{x.count + 1, f.Region}
	}
}

func (n *notes) clearLocked(id state.RegionID) {
	key, ok := n.refused[id]
	if !ok {
		return
	}
	delete(n.refused, id)
	n.fewerLocked(key, id)
}

func (n *notes) fewerLocked(key stuckFor, id state.RegionID) {
	x := n.stuck[key]
	if x.count--; x.one == id {
		x.one = 0
	}
	if n.stuck[key] = x; x.count == 0 {
		delete(n.stuck, key)
	}
}

// count notes how many keys a region has that has more than it may; limit 0: it may. It
// returns how many such regions there are in the keyspace, if this is the first one.
func (n *notes) count(id state.RegionID, k keyCount) (first bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := stuckFor{k.keyspace, placement.KeysOverLimit}
	old, known := n.keys[id]
	switch {
	case k.limit > 0 && (known || len(n.keys) < maxNotes):
		n.keys[id] = k
		if !known {
			x := n.stuck[key]
			n.stuck[key] = stuck{x.count + 1, id}
			return x.count == 0
		}
	case k.limit == 0 && known:
		key.keyspace = old.keyspace
		delete(n.keys, id)
		n.fewerLocked(key, id)
	}
	return false
}

// over reports whether a region has more keys than it may.
func (n *notes) over(id state.RegionID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, over := n.keys[id]
	return over
}

func (n *notes) quarantined(id state.RegionID, until clock.Instant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if until == 0 {
		delete(n.until, id)
	} else if len(n.until) < maxNotes {
		n.until[id] = until
	}
}

// drop forgets a region that is not there any more.
func (n *notes) drop(id state.RegionID) {
	n.quarantined(id, 0)
	n.count(id, keyCount{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clearLocked(id)
}

// countKeys looks at how many keys regions are said to have.
func (a *Raw) countKeys(keys map[state.RegionID]uint64) {
	for id, n := range keys {
		if r := a.st.Region(id); r != nil {
			a.countKeysOf(r, n)
		}
	}
}

func (a *Raw) countKeysOf(r *state.Region, n uint64) {
	k := a.st.Keyspace(r.Keyspace)
	limit := k.GetSettings().GetLimits().GetMaxKeysPerRegion()
	if n <= limit || k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		limit = 0
	}
	if a.shows.notes.count(r.ID, keyCount{r.Keyspace, n, limit}) {
		a.cfg.Logger.Warn("regions have more keys than their keyspace allows", "keyspace", k.GetName(), "region", uint64(r.ID), "keys", n, "limit", limit)
	}
	if limit > 0 && k.GetSettings().GetLimits().GetRefuseKeys() {
		a.rounds.soon(a, r.Keyspace, byMoves, a.tick())
	}
}

// noteAll begins at a state.
func (a *Raw) noteAll() {
	a.past.poison.All(a.shows.notes.quarantined)
	a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if k.GetSettings().GetLimits().GetMaxKeysPerRegion() > 0 {
			a.recount(state.KeyspaceID(k.GetId()))
		}
		return true
	})
}

// recount looks at what is known of the keys of a keyspace's regions: its limit is another
// one, or nobody looked before.
func (a *Raw) recount(id state.KeyspaceID) {
	s := a.st.Keyspace(id).GetSettings()
	if s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		return
	}
	a.st.RegionsFrom(id, "", func(r *state.Region) bool {
		for _, o := range r.Owners {
			if said, ok := a.cfg.Soft.Own(r.ID, o.Incarnation); ok && (s.GetLimits().GetMaxKeysPerRegion() > 0 || a.shows.notes.over(r.ID)) {
				a.countKeysOf(r, said.Keys)
			}
		}
		return true
	})
}

// maxTold bounds the quarantines that are told in the log of one step.
const maxTold = 64

// quarantine follows which regions are left alone, and has the log say so.
func (a *Raw) quarantine(now clock.Instant) {
	a.past.poison.Expire(now)
	for i, id := range a.past.poison.Fresh() {
		r := a.st.Region(id)
		if a.work == nil || r == nil {
			continue
		}
		until := a.past.poison.Until(id)
		a.shows.notes.quarantined(id, until)
		if until == 0 {
			a.cfg.Logger.Info("region has left quarantine", "region", uint64(id))
			a.work.Mark(id)
			continue
		}
		a.cfg.Logger.Warn("region is in quarantine", "region", uint64(id), "why", poisonWhy)
		if i < maxTold {
			a.remark(r, "", fmt.Sprintf("%s, for %s, or until nokv region release %d", poisonWhy, until.Sub(now), id))
		}
	}
}

// poisonWhy is why a region is in quarantine.
const poisonWhy = "poison_suspected: owner after owner died soon after it got the region, more than chance explains; only a member that has nothing else gets it"

// remark has the log say something of a region: the command asks for what is so.
func (a *Raw) remark(r *state.Region, actor, why string) {
	as := &rootv1.Assignment{RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR}
	for _, o := range r.Owners {
		as.Owners = append(as.Owners, o.Proto())
	}
	event := &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{as}}}}
	a.outbox.rest = append(a.outbox.rest, &parcel{events: []*rootv1.Event{event}, actor: actor, why: oneline.Within(state.MaxWhyBytes, why), judged: func(result *rootv1.CommandResult, _ clock.Instant) {
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			a.refused("a note", result.GetError())
		}
	}})
}

// releaseRegion gives a region another chance.
func (a *Raw) releaseRegion(id state.RegionID, actor, why string) (released bool, at state.Token, err error) {
	r := a.st.Region(id)
	switch {
	case a.era == 0:
		return false, a.at, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "this coordinator assigns nothing: it does not hold the Tenure")
	case r == nil:
		return false, a.at, reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d", id)
	case !a.past.poison.Quarantined(id):
		return false, a.at, nil
	case a.outbox.len() > maxWaiting:
		return false, a.at, reason.New(rootv1.Reason_REASON_OVERLOADED, "%d commands wait for the root", a.outbox.len())
	}
	a.past.poison.Release(id)
	a.quarantine(a.tick())
	a.rounds.soon(a, r.Keyspace, bySettings, a.tick())
	if why == "" {
		why = "it is released from quarantine"
	} else {
		why = "released from quarantine: " + why
	}
	a.remark(r, actor, why)
	return true, a.at, nil
}

// ReleaseRegion gives a region another chance that is in quarantine here, on behalf of
// somebody. It refuses with REASON_TENURE_NOT_HELD unless this coordinator assigns.
func (a *Assigner) ReleaseRegion(ctx context.Context, id state.RegionID, actor, why string) (released bool, at state.Token, err error) {
	type outcome struct {
		released bool
		at       state.Token
		err      error
	}
	done := make(chan outcome, 1)
	a.deliver(func() {
		if ctx.Err() != nil {
			return
		}
		if a.raw.st == nil {
			done <- outcome{err: reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "there is no view of the root yet")}
			return
		}
		released, at, err := a.raw.releaseRegion(id, actor, why)
		done <- outcome{released, at, err}
	})
	select {
	case x := <-done:
		return x.released, x.at, x.err
	case <-ctx.Done():
		return false, state.Token{}, ctx.Err()
	}
}

// RegionNote is what is known of a region; nil: nothing is, or this coordinator does not
// assign.
func (a *Raw) RegionNote(id state.RegionID) *coordinatorv1.RegionNote {
	now := a.tick()
	n := &a.shows.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.noteLocked(id, now)
}

func (n *notes) noteLocked(id state.RegionID, now clock.Instant) *coordinatorv1.RegionNote {
	why, refused := n.refused[id]
	keys, over := n.keys[id]
	until := n.until[id]
	alone := until > now
	if !refused && !over && !alone {
		return nil
	}
	note := &coordinatorv1.RegionNote{RegionId: uint64(id), KeyCount: keys.keys, MaxKeys: keys.limit}
	if refused {
		note.Refused = why.why.String()
	}
	if alone {
		note.Quarantined, note.QuarantineMillis = poisonWhy, uint64(max(until.Sub(now), 0).Milliseconds())
	}
	return note
}

// RegionNotes are those of a keyspace, by region, MaxNotes at most; more: there are others.
func (a *Raw) RegionNotes(id state.KeyspaceID) (all []*coordinatorv1.RegionNote, more bool) {
	now, st := a.tick(), a.cfg.View().State
	n := &a.shows.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := map[state.RegionID]struct{}{}
	for region, f := range n.refused {
		if f.keyspace == id {
			ids[region] = struct{}{}
		}
	}
	for region, k := range n.keys {
		if k.keyspace == id {
			ids[region] = struct{}{}
		}
	}
	for region := range n.until {
		if r := st.Region(region); r != nil && r.Keyspace == id {
			ids[region] = struct{}{}
		}
	}
	sorted := slices.Sorted(maps.Keys(ids))
	more = len(sorted) > MaxNotes
	for _, region := range sorted[:min(len(sorted), MaxNotes)] {
		all = append(all, n.noteLocked(region, now))
	}
	return all, more
}

// Stuck is what keyspaces wait for, most regions first, of those that are there.
func (a *Raw) Stuck() []*coordinatorv1.Stuck {
	now, st := a.tick(), a.cfg.View().State
	n := &a.shows.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*coordinatorv1.Stuck
	add := func(id state.KeyspaceID, why placement.Why, x stuck) {
		if k := st.Keyspace(id); k != nil {
			all = append(all, &coordinatorv1.Stuck{Keyspace: k.GetName(), Why: why.String(), Count: x.count, RegionId: uint64(x.one)})
		}
	}
	for key, x := range n.stuck {
		add(key.keyspace, key.why, x)
	}
	alone := map[state.KeyspaceID]stuck{}
	for id, until := range n.until {
		if r := st.Region(id); r != nil && until > now && n.refused[id].why != placement.PoisonSuspected {
			alone[r.Keyspace] = stuck{alone[r.Keyspace].count + 1, id}
		}
	}
	for id, x := range alone {
		add(id, placement.PoisonSuspected, x)
	}
	slices.SortFunc(all, func(a, b *coordinatorv1.Stuck) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetKeyspace(), b.GetKeyspace()), cmp.Compare(a.GetWhy(), b.GetWhy()))
	})
	return all[:min(len(all), maxStuck)]
}

// RegionNote is what is known of a region; nil: nothing is.
func (a *Assigner) RegionNote(id state.RegionID) *coordinatorv1.RegionNote {
	return a.raw.RegionNote(id)
}

// RegionNotes are those of a keyspace, MaxNotes at most; more: there are others.
func (a *Assigner) RegionNotes(id state.KeyspaceID) (all []*coordinatorv1.RegionNote, more bool) {
	return a.raw.RegionNotes(id)
}

// Stuck is what keyspaces wait for.
func (a *Assigner) Stuck() []*coordinatorv1.Stuck { return a.raw.Stuck() }
