package witness_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// try applies one command, whatever becomes of it.
func (l *ledger) try(planner bool, e *rootv1.Event) bool {
	l.t.Helper()
	c := &rootv1.Command{Events: []*rootv1.Event{e}}
	if planner {
		plannersOwn(c)
	}
	entry, out := l.applyAll(c)
	l.turns = append(l.turns, turn{entry, out})
	return out.Results[0].Outcome == rootv1.Outcome_OUTCOME_APPLIED
}

// Whatever the state machine lets through of members, regions and transitions, from
// whoever asks for whatever, the audit and whoever follows the changes find nothing
// broken; and each single change of that log which is doctored is found.
func TestStateMachineNeverBreaksPlacement(t *testing.T) {
	applied, doctored := 0, 0
	var judged witness.Judged
	for seed := range uint64(*logs) {
		r := rand.New(rand.NewPCG(seed, 10))
		l := newLedger(t)
		l.put(false, ranges("x", 1))
		l.put(false, ranges("s", 3))
		for range 150 {
			e, planner := ownedAnything(r, l)
			if l.try(planner, e) {
				applied++
			}
			if _, found := witness.Walk(l.state, nil); len(found) > 0 {
				t.Fatalf("seed %d at %s: %v", seed, l.state.Token(), found)
			}
		}
		for _, a := range l.judged(l.turns, witness.Of(l.state)).Anomalies {
			t.Fatalf("seed %d: %+v", seed, a)
		}
		v := witness.NewInvariants(newLedger(t).state)
		for _, u := range l.turns {
			v.Entry(u.applied.Token, u.applied.Changes)
		}
		p := v.Placed(l.state)
		if p.Violations.Total() > 0 {
			t.Fatalf("seed %d: whoever follows finds %v", seed, p.Found)
		}
		judged.Grants, judged.Moved, judged.Asked = judged.Grants+p.Judged.Grants, judged.Moved+p.Judged.Moved, judged.Asked+p.Judged.Asked
		if what := doctor(r, l.copied(), func(turns []turn, at state.Token) bool {
			doctored++
			rep := l.judged(turns, witness.Of(l.state))
			return rep.Findings[witness.Placement].Verdict == witness.Broken && rep.Anomalies[0].At == at
		}); what != "" {
			t.Fatalf("seed %d: nobody found that %s", seed, what)
		}
	}
	n := uint64(*logs)
	if applied < 10**logs || doctored < *logs/2 || judged.Grants < 3*n || judged.Moved < n/4 || judged.Asked < n/2 {
		t.Errorf("%d applied, %d doctored, %+v: too few to mean anything", applied, doctored, judged)
	}
	testreport.Linef(t, "witness: %d random logs of owners, %d events applied, %+v: nothing broken, and each of %d doctored ones found", *logs, applied, judged, doctored)
}

// The same random logs, of entries with several commands, keyspaces that come and go, and
// slots.
func TestBatchesNeverBreakPlacement(t *testing.T) {
	for seed := range uint64(*logs) {
		r := rand.New(rand.NewPCG(seed, 77))
		l := newLedger(t)
		l.put(false, ranges("x", 1))
		l.put(false, ranges("s", 3))
		l.put(false, slotted("k", 3, rootv1.Placement_PLACEMENT_ASSIGNED))
		l.put(false, slotted("q", 3, rootv1.Placement_PLACEMENT_REPORTED))
		any := func() (*rootv1.Event, bool) {
			if r.IntN(8) > 0 {
				return ownedAnything(r, l)
			}
			name := []string{"x", "s", "k", "q"}[r.IntN(4)]
			switch r.IntN(5) {
			case 0:
				return &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: name, Force: r.IntN(2) == 0}}}, false
			case 1:
				switch name {
				case "x":
					return ranges(name, 1), false
				case "s":
					return ranges(name, 3), false
				}
				return slotted(name, 3, rootv1.Placement(r.IntN(2)+1)), false
			case 2:
				k := l.state.KeyspaceByName(name)
				if k == nil {
					return slotted(name, 3, rootv1.Placement_PLACEMENT_ASSIGNED), false
				}
				st := proto.CloneOf(k.GetSettings())
				st.Placement = rootv1.Placement(r.IntN(2) + 1)
				return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: k.GetId(), Settings: st}}}, false
			case 3:
				var a, b *state.Region
				l.state.RegionsFrom(state.KeyspaceID(l.state.KeyspaceByName("x").GetId()), "", func(x *state.Region) bool {
					a, b = b, x
					return a == nil || a.End != b.Start || r.IntN(2) == 0
				})
				if a == nil {
					return ownedAnything(r, l)
				}
				return &rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{LeftRegionId: uint64(a.ID), LeftExpectedEpoch: a.Epoch.Proto(), RightRegionId: uint64(b.ID), RightExpectedEpoch: b.Epoch.Proto()}}}, false
			default:
				var ids []uint64
				l.state.Keyspaces("", func(k *rootv1.Keyspace) bool {
					l.state.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(x *state.Region) bool { ids = append(ids, uint64(x.ID)); return true })
					return true
				})
				if len(ids) == 0 {
					return ownedAnything(r, l)
				}
				return assigned(ids[r.IntN(len(ids))], fmt.Sprint(r.IntN(3)), []string{"a", "b", "c"}[r.IntN(3)]), false
			}
		}
		for range 120 {
			var cs []*rootv1.Command
			for range r.IntN(3) + 1 {
				e, planner := any()
				c := &rootv1.Command{Events: []*rootv1.Event{e}}
				if len(cs) > 0 { // may take what an earlier command of the entry gave
					planner = planner && e.GetRegionsAssigned() == nil
				}
				if planner {
					plannersOwn(c)
				}
				cs = append(cs, c)
			}
			entry := &rootv1.Entry{Commands: cs}
			data, _ := proto.Marshal(entry)
			var out state.Applied
			if err := l.state.ApplyEntry(1, l.state.Token().Index+1, data, &out); err != nil {
				t.Fatal(err)
			}
			l.turns = append(l.turns, turn{entry, &out})
			if _, found := witness.Walk(l.state, nil); len(found) > 0 {
				t.Fatalf("seed %d at %s: %v", seed, l.state.Token(), found)
			}
		}
		p := l.judged(l.turns, witness.Of(l.state))
		for _, a := range p.Anomalies {
			t.Fatalf("seed %d: %+v", seed, a)
		}
		v := witness.NewInvariants(newLedger(t).state)
		for _, u := range l.turns {
			v.Entry(u.applied.Token, u.applied.Changes)
		}
		if p := v.Placed(l.state); p.Violations.Total() > 0 {
			t.Fatalf("seed %d: whoever follows finds %v", seed, p.Found)
		}
	}
}

// doctor spoils one change of an owner; "": found, or there was none.
func doctor(r *rand.Rand, turns []turn, found func([]turn, state.Token) bool) string {
	for range 50 {
		u := &turns[r.IntN(len(turns))]
		if len(u.applied.Changes) == 0 {
			continue
		}
		c := &u.applied.Changes[r.IntN(len(u.applied.Changes))]
		if c.Kind != state.ChangeRegion || c.Removed || c.OldRegion == nil || len(c.Region.Owners) == 0 {
			continue
		}
		at := u.applied.Token
		what := ""
		switch o := &c.Region.Owners[r.IntN(len(c.Region.Owners))]; r.IntN(4) {
		case 0:
			o.Member, what = "nobody", "it was given to nobody"
		case 1:
			o.Incarnation, what = o.Incarnation+100, "it was given to another incarnation"
		case 2:
			c.Region.Epoch.Version, what = 0, "its epoch went back"
		default:
			c.Region.Frontier, what = "lost", "its frontier was lost"
		}
		if !found(turns, at) {
			return fmt.Sprintf("at %s, of region %d, %s", at, c.Region.ID, what)
		}
		return ""
	}
	return ""
}

// ownedAnything is an event about members and regions that is about right, most of the time;
// planner: in the name of the era's holder.
func ownedAnything(r *rand.Rand, l *ledger) (e *rootv1.Event, planner bool) {
	members := []string{"a", "b", "c"}
	one := func() string { return members[r.IntN(len(members))] }
	id := uint64(r.IntN(6)) + 1
	region := l.state.Region(state.RegionID(id))
	if region == nil {
		region = &state.Region{}
	}
	acting := func() bool { return slices.ContainsFunc(region.Owners, l.state.Acts) }
	switch r.IntN(12) {
	case 0, 1:
		m := one()
		return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: m, Address: m + ":1", StartNonce: r.Uint64N(3) + 1}, Follows: l.state.Member(state.MemberID(m)).GetIncarnation(),
		}}}, false
	case 2:
		if r.IntN(2) == 0 {
			return becomes(one(), rootv1.MemberState_MEMBER_STATE_ACTIVE), false
		}
		return becomes(one(), rootv1.MemberState(r.IntN(4)+1)), r.IntN(2) == 0
	case 3, 4:
		keyspace := uint32(r.IntN(2)) + 2
		at := 'a' + rune(id)
		e := made(keyspace, id, string(at), string(at+1), one())
		if r.IntN(4) == 0 {
			e.GetRegionPublished().Region.Owners = nil
		}
		return e, false
	case 5, 6:
		e := assigned(id, fmt.Sprint(r.IntN(3)), one())
		if r.IntN(4) == 0 {
			e = assigned(id, "", members[:r.IntN(3)+1]...)
		}
		return e, !acting() && r.IntN(2) == 0 // the planner repairs, and does not take
	case 7:
		if len(region.Owners) == 0 {
			return becomes(one(), draining), true
		}
		return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: id, ExpectedEpoch: region.Epoch.Proto(), From: ownersOf(string(region.Owners[0].Member))[0], To: ownersOf(one())[0],
		}}}, true
	case 8:
		kind := rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER
		if r.IntN(2) == 0 {
			kind = rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER
		}
		return &rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
			RegionId: id, Kind: kind, ExpectedEpoch: region.Epoch.Proto(), Owner: ownersOf(one())[0],
		}}}, true
	case 9:
		if r.IntN(2) == 0 {
			return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
				RegionId: id, ExpectedEpoch: region.Epoch.Proto(), SplitKey: []byte(region.Start + "m"), RightRegionId: r.Uint64N(6) + 1,
			}}}, false
		}
		return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}, false
	default:
		var pending *rootv1.Transition
		l.state.Transitions(func(x *rootv1.Transition) bool {
			if x.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
				pending = x
			}
			return pending == nil || r.IntN(2) == 0
		})
		if pending == nil {
			return assigned(id, "", one()), !acting()
		}
		if r.IntN(5) == 0 {
			return &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: pending.GetId()}}}, true
		}
		frontier := ""
		if k := pending.GetKind(); k == rootv1.TransitionKind_TRANSITION_KIND_MOVE || k == rootv1.TransitionKind_TRANSITION_KIND_SPLIT {
			frontier = fmt.Sprint(r.IntN(3))
		}
		return l.done(pending.GetKind(), pending.GetRegionId(), pending.GetBaseEpoch(), frontier), true
	}
}
