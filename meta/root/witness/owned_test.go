package witness_test

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// turn is one entry as the state machine took it.
type turn struct {
	entry   *rootv1.Entry
	applied *state.Applied
}

// ledger is a log of who owns what, with all that the audit is told of it.
type ledger struct {
	*book
	turns []turn
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{book: newBook(t)}
	l.must(claim("c1", 11, 0, false))
	return l
}

// put applies one command, which has to apply. A planner's requires era 1.
func (l *ledger) put(planned bool, events ...*rootv1.Event) *state.Applied {
	l.t.Helper()
	c := &rootv1.Command{Events: events}
	if planned {
		plannersOwn(c)
	}
	entry, out := l.applyAll(c)
	if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		l.t.Fatalf("%v: %v", events, out.Results[0].Reject)
	}
	l.turns = append(l.turns, turn{entry, out})
	return out
}

const orphaned = rootv1.OperationReason_OPERATION_REASON_ORPHANED

// plannersOwn makes a command one of the planner of era 1.
func plannersOwn(c *rootv1.Command) {
	c.RequireEra = 1
	for _, e := range c.GetEvents() {
		for _, a := range e.GetRegionsAssigned().GetAssignments() {
			a.Reason = orphaned
		}
	}
}

func (l *ledger) join(id string, nonce uint64) {
	l.put(false, &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: nonce}, Follows: l.state.Member(state.MemberID(id)).GetIncarnation(),
	}}})
}

func becomes(id string, to rootv1.MemberState) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: to}}}
}

const (
	failed   = rootv1.MemberState_MEMBER_STATE_FAILED
	draining = rootv1.MemberState_MEMBER_STATE_DRAINING
)

// ranges makes an assigned keyspace of ranges whose regions have so many owners at most.
func ranges(name string, most uint32) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: name, Settings: &rootv1.KeyspaceSettings{
			Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}},
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Ownership: &rootv1.Ownership{MaxOwners: most},
		},
	}}}
}

func slotted(name string, count uint32, p rootv1.Placement) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: name, Settings: &rootv1.KeyspaceSettings{
			Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: count}}},
			Placement: p,
		},
	}}}
}

func ownersOf(ids ...string) []*rootv1.Owner {
	all := make([]*rootv1.Owner, len(ids))
	for i, id := range ids {
		all[i] = &rootv1.Owner{MemberId: id}
	}
	return all
}

func made(keyspace uint32, id uint64, start, end string, owners ...string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		Id: id, KeyspaceId: keyspace, StartKey: []byte(start), EndKey: []byte(end), Owners: ownersOf(owners...),
	}}}}
}

func assigned(id uint64, frontier string, owners ...string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: id, Owners: ownersOf(owners...), Frontier: []byte(frontier), SetFrontier: frontier != "",
	}}}}}
}

func (l *ledger) epoch(id uint64) *rootv1.RegionEpoch {
	return l.state.Region(state.RegionID(id)).Epoch.Proto()
}

func (l *ledger) done(kind rootv1.TransitionKind, id uint64, epoch *rootv1.RegionEpoch, frontier string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
		TransitionId: rooted.TransitionID(kind, rooted.RegionID(id), rooted.EpochFromProto(epoch)), Frontier: []byte(frontier), SetFrontier: frontier != "",
	}}}
}

func (l *ledger) move(id uint64, from, to, frontier string) {
	at := l.epoch(id)
	l.put(true, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: id, ExpectedEpoch: at, From: ownersOf(from)[0], To: ownersOf(to)[0],
	}}})
	l.put(true, l.done(rootv1.TransitionKind_TRANSITION_KIND_MOVE, id, at, frontier))
}

// Entries of the honest log that are doctored.
const (
	joinA = iota
	joinB
	exclusive
	shared
	grant1  // region 1 of an exclusive keyspace: a
	grant2  // region 2: b
	grant3  // region 3 of a shared one: a, b
	planned // region 1 moves
	moved1  // region 1: b, at frontier 7
	aFails
	repair3 // region 3: b
	aAgain
	grants1 // region 1: taken at once from b, as somebody asked: a
	split2
	cut2 // region 2 is cut at m: 2 and 4, both b's
	joined2
	merged2 // and is one again
	gone3
	bDrains
	moved2 // region 2: a, at frontier 9
	bFails
)

// honest is a log of all that is done with members and regions.
func honest(t *testing.T) *ledger {
	l := newLedger(t)
	l.join("a", 1)
	l.join("b", 2)
	l.put(false, ranges("x", 1))
	l.put(false, ranges("s", 3))
	x, s := l.state.KeyspaceByName("x").GetId(), l.state.KeyspaceByName("s").GetId()
	l.put(false, made(x, 1, "a", "b", "a"))
	l.put(false, made(x, 2, "k", "z", "b"))
	l.put(false, made(s, 3, "a", "b", "a", "b"))
	l.move(1, "a", "b", "7")
	l.put(true, becomes("a", failed))
	l.put(true, assigned(3, "", "b"))
	l.join("a", 3)
	l.put(false, assigned(1, "8", "a"))
	at := l.epoch(2)
	l.put(false, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 2, ExpectedEpoch: at, SplitKey: []byte("m"), RightRegionId: 4}}})
	l.put(true, l.done(rootv1.TransitionKind_TRANSITION_KIND_SPLIT, 2, at, "8"))
	at = l.epoch(2)
	l.put(false, &rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{LeftRegionId: 2, LeftExpectedEpoch: at, RightRegionId: 4, RightExpectedEpoch: l.epoch(4)}}})
	l.put(true, l.done(rootv1.TransitionKind_TRANSITION_KIND_MERGE, 2, at, "9"))
	l.put(false, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 3}}})
	l.put(false, becomes("b", draining))
	at = l.epoch(2)
	l.put(true, &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{RegionId: 2, ExpectedEpoch: at, From: ownersOf("b")[0], To: ownersOf("a")[0]}}},
		l.done(rootv1.TransitionKind_TRANSITION_KIND_MOVE, 2, at, "9"))
	l.put(true, becomes("b", failed))
	return l
}

// copied copies entries as deeply as tests change them.
func (l *ledger) copied() []turn {
	all := make([]turn, len(l.turns))
	for i, u := range l.turns {
		out := *u.applied
		out.Changes = slices.Clone(out.Changes)
		for j := range out.Changes {
			c := &out.Changes[j]
			if c.Region != nil {
				c.Region = c.Region.Clone()
			}
			c.Member, c.Transition, c.Tenure = proto.CloneOf(c.Member), proto.CloneOf(c.Transition), proto.CloneOf(c.Tenure)
		}
		all[i] = turn{proto.CloneOf(u.entry), &out}
	}
	return all
}

// region is the change of a region in an entry.
func (u *turn) region(n int) *state.Change {
	for i := range u.applied.Changes {
		if c := &u.applied.Changes[i]; c.Kind == state.ChangeRegion {
			if n == 0 {
				return c
			}
			n--
		}
	}
	panic(fmt.Sprintf("entry %v changes fewer regions", u.entry))
}

// judged is the audit of entries that end with the state.
func (l *ledger) judged(turns []turn, end witness.Truth) *witness.Report {
	first := newLedger(l.t)
	a := witness.NewAudit(witness.Of(first.state))
	for _, u := range turns {
		a.Entry(u.applied.Token, u.entry, u.applied)
	}
	return a.Report(end)
}

// followed are the changes alone, as a coordinator has them.
func (l *ledger) followed(turns []turn) *witness.Invariants {
	v := witness.NewInvariants(newLedger(l.t).state)
	v.OrderFrontiers(func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	for _, u := range turns {
		v.Entry(u.applied.Token, u.applied.Changes)
	}
	return v
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// doctoring is what is done to one entry of the honest log, and what has to be found.
type doctoring struct {
	name  string
	entry int
	spoil func(*turn)
	want  witness.Kind
	// live: the changes alone show it.
	live bool
}

// finds wants each fault found, by the audit and, where the changes alone show it, by
// whoever follows them: of its kind, at its entry.
func finds(t *testing.T, invariant int, all []doctoring) {
	t.Helper()
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) {
			l := honest(t)
			turns := l.copied()
			d.spoil(&turns[d.entry])
			at := turns[d.entry].applied.Token
			r := l.judged(turns, witness.Of(l.state))
			a := find(r, d.want)
			if a == nil || a.At != at || a.Note || a.Numbers == "" || r.Findings[a.Guarantee].Verdict != witness.Broken {
				t.Fatalf("%s at %s was not found by the audit: %v", d.want, at, r.Anomalies)
			}
			if got := d.want.Invariant(); got != invariant {
				t.Errorf("%s is about I%d", d.want, got)
			}
			v := l.followed(turns).Placed(l.state)
			if n := v.Violations[invariant-1]; d.live != (n > 0) {
				t.Errorf("%d violations of I%d are seen by whoever follows: %v", n, invariant, v.Found)
			}
			if i := slices.IndexFunc(v.Found, func(a witness.Anomaly) bool { return a.Kind == d.want }); d.live && (i < 0 || v.Found[i].At != at) {
				t.Errorf("%s at %s was not found by whoever follows: %v", d.want, at, v.Found)
			}
		})
	}
}

func TestA16OneHolderAnEra(t *testing.T) {
	l := honest(t)
	if r := l.judged(l.turns, witness.Of(l.state)); r.Findings[witness.Primacy].Verdict != witness.Holds {
		t.Errorf("%v", r.Findings[witness.Primacy])
	}
	follow := func(change func(*rootv1.Tenure)) *witness.Placed {
		next := proto.CloneOf(l.state.Tenure())
		change(next)
		v := witness.NewInvariants(l.state)
		v.Entry(state.Token{Incarnation: 1, Term: 1, Index: 99}, []state.Change{{Kind: state.ChangeTenure, Tenure: next}})
		return v.Placed(l.state)
	}
	for name, c := range map[string]struct {
		change func(*rootv1.Tenure)
		want   witness.Kind
	}{
		"retired":         {func(n *rootv1.Tenure) { n.Retired = true }, ""},
		"the next era":    {func(n *rootv1.Tenure) { n.Era, n.HolderId = 2, "c2" }, ""},
		"another holder":  {func(n *rootv1.Tenure) { n.HolderId = "c2" }, witness.TwoActive},
		"another start":   {func(n *rootv1.Tenure) { n.HolderIncarnation++ }, witness.TwoActive},
		"an era left out": {func(n *rootv1.Tenure) { n.Era += 2 }, witness.EraGap},
		"an era back":     {func(n *rootv1.Tenure) { n.Era-- }, witness.EraGap},
	} {
		p := follow(c.change)
		if c.want == "" && p.Violations.Total() != 0 || c.want != "" && (p.Violations[witness.SingleHolder-1] != 1 || p.Found[0].Kind != c.want || p.Found[0].At.Index != 99) {
			t.Errorf("%s: %v %v", name, p.Violations, p.Found)
		}
	}
}

func TestA17EveryRegionHasAnOwnerOrCountsAsOrphaned(t *testing.T) {
	l := honest(t)
	v := witness.NewAudit(witness.Of(newLedger(t).state))
	// At every entry, by a state that is replayed beside it.
	replayed := newLedger(t)
	for i, u := range l.turns {
		data, err := proto.Marshal(u.entry)
		if err != nil {
			t.Fatal(err)
		}
		if err := replayed.state.ApplyEntry(1, u.applied.Token.Index, data, nil); err != nil {
			t.Fatal(err)
		}
		v.Entry(u.applied.Token, u.entry, u.applied)
		if _, found := witness.Walk(replayed.state, nil); len(found) > 0 {
			t.Errorf("entry %d: %v", i, found)
		}
	}
	r := v.Report(witness.Of(l.state))
	if f := r.Findings[witness.Placement]; f.Verdict != witness.Holds || f.Numbers != "2 regions have owners that may act, 0 orphaned; behind 1.1.2: 7 grants, none to a member that was not up; 3 let go of, 2 taken at once as somebody asked" {
		t.Errorf("%+v", f)
	}
	// Who failed by the log, and not by the count, leaves orphans that nobody counts.
	turns := l.copied()
	last := turns[len(turns)-1].applied
	last.Changes = append(last.Changes, state.Change{Kind: state.ChangeMember, Member: proto.CloneOf(l.state.Member("a"))})
	last.Changes[len(last.Changes)-1].Member.State = failed
	a := find(l.judged(turns, witness.Of(l.state)), witness.OrphansMiscounted)
	if a == nil || a.Kind.Invariant() != witness.RegionsOwned || a.Numbers != "2 regions have no owner that may act, 0 are counted as orphaned" {
		t.Errorf("%v", a)
	}
	// What has an owner by the log, and none by its record, is not what the log made.
	turns = l.copied()
	c := turns[grants1].region(0)
	c.Region.Frontier = "77"
	if a := find(l.judged(turns, witness.Of(l.state)), witness.OwnerMismatch); a == nil || a.Region != 1 {
		t.Errorf("%v", a)
	}
}

func TestA18RegionsAreGivenToMembersThatAreUp(t *testing.T) {
	owner := func(at int, change func(*state.Owner)) func(*turn) {
		return func(u *turn) { change(&u.region(0).Region.Owners[at]) }
	}
	// before has a member become something at the beginning of the entry.
	before := func(id string, incarnation uint64, to rootv1.MemberState) func(*turn) {
		return func(u *turn) {
			u.applied.Changes = append([]state.Change{{Kind: state.ChangeMember, Member: &rootv1.Member{Id: id, Incarnation: incarnation, State: to}}}, u.applied.Changes...)
		}
	}
	finds(t, witness.OwnersUp, []doctoring{
		{"to nobody known", grant1, owner(0, func(o *state.Owner) { o.Member = "nobody" }), witness.GrantedToNobody, true},
		{"to an old incarnation", grants1, owner(0, func(o *state.Owner) { o.Incarnation = 1 }), witness.GrantedToNobody, true},
		{"to none", grant2, owner(0, func(o *state.Owner) { o.Incarnation = 0 }), witness.GrantedToNobody, true},
		{"to one who failed", grant1, before("a", 1, failed), witness.GrantedToNobody, true},
		{"by a move, to who drains", moved2, before("a", 3, draining), witness.GrantedToDraining, true},
		{"what had failed acts", bFails, func(u *turn) {
			m := proto.CloneOf(u.applied.Changes[0].Member)
			m.State = rootv1.MemberState_MEMBER_STATE_ACTIVE
			u.applied.Changes = append(u.applied.Changes, state.Change{Kind: state.ChangeMember, Member: m})
		}, witness.MemberRevived, true},
		{"an incarnation back", aAgain, func(u *turn) { u.applied.Changes[0].Member.Incarnation = 0 }, witness.MemberRevived, true},
	})
}

func TestA19WhoHasARegionKeepsIt(t *testing.T) {
	finds(t, witness.OwnersStable, []doctoring{
		{"two owners", grant1, func(u *turn) {
			u.region(0).Region.Owners = append(u.region(0).Region.Owners, state.Owner{Member: "b", Incarnation: 2})
		}, witness.TwoOwners, true},
		{"another owner at the epoch", moved1, func(u *turn) { u.region(0).Region.Epoch = u.region(0).OldRegion.Epoch }, witness.EpochReused, true},
		{"an older epoch", moved1, func(u *turn) { u.region(0).Region.Epoch.ConfVersion = 0 }, witness.EpochBack, true},
		{"the planner takes it", grants1, func(u *turn) { u.region(0).Planned = true }, witness.TakenWithoutMove, true},
		{"the planner removes it", gone3, func(u *turn) { u.region(0).Planned = true }, witness.TakenWithoutMove, true},
		{"a move that was given up", moved1, func(u *turn) {
			for i := range u.applied.Changes {
				if x := u.applied.Changes[i].Transition; x != nil {
					x.Status = rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED
				}
			}
		}, witness.TakenWithoutMove, true},
		{"a move of another", moved1, func(u *turn) {
			for i := range u.applied.Changes {
				if x := u.applied.Changes[i].Transition; x != nil {
					x.From.MemberId = "b"
				}
			}
		}, witness.TakenWithoutMove, true},
		{"a merge that was none", merged2, func(u *turn) {
			for i := range u.applied.Changes {
				if x := u.applied.Changes[i].Transition; x != nil {
					x.Kind = rootv1.TransitionKind_TRANSITION_KIND_SPLIT
				}
			}
		}, witness.TakenWithoutMove, true},
		{"a frontier that nobody said", moved1, func(u *turn) { u.region(0).Region.Frontier = "70" }, witness.FrontierLost, false},
		{"a change of what it never was", grants1, func(u *turn) {
			c := u.region(0)
			c.OldRegion = c.OldRegion.Clone()
			c.OldRegion.Owners = nil
		}, witness.OwnerMismatch, false},
	})
}

// Frontiers mean nothing to the root. Whoever knows their order is told when one goes back.
func TestA19FrontiersDoNotGoBack(t *testing.T) {
	l := honest(t)
	if p := l.followed(l.turns).Placed(l.state); p.Violations.Total() != 0 {
		t.Errorf("%v", p.Found)
	}
	turns := l.copied()
	turns[merged2].region(1).Region.Frontier = "1"
	p := l.followed(turns).Placed(l.state)
	if p.Violations[witness.OwnersStable-1] != 1 || p.Found[0].Kind != witness.FrontierBack || p.Found[0].Region != 2 || p.Found[0].At != turns[merged2].applied.Token {
		t.Errorf("%v", p.Found)
	}
}

// An id that was removed does not get an epoch again that it had.
func TestA19ARemovedRegionsEpochIsNotUsedAgain(t *testing.T) {
	for _, version := range []uint64{1, 2} {
		l := honest(t)
		s := l.state.KeyspaceByName("s").GetId()
		l.put(false, made(s, 3, "a", "b", "a"))
		turns := l.copied()
		c := turns[len(turns)-1].region(0)
		c.Region.Epoch.Version = version
		a := find(l.judged(turns, witness.Of(l.state)), witness.EpochReused)
		if (a != nil) != (version == 1) || a != nil && a.Region != 3 {
			t.Errorf("version %d: %v", version, a)
		}
	}
}

func TestA20WhoLeadsARegionIsAnOwnerThatMayAct(t *testing.T) {
	for name, c := range map[string]struct {
		shown state.MemberID
		then  func(*ledger)
		want  uint64
	}{
		"an owner":       {"a", func(*ledger) {}, 0},
		"another owner":  {"b", func(*ledger) {}, 0},
		"no owner":       {"c", func(*ledger) {}, 1},
		"who has failed": {"b", func(l *ledger) { l.put(true, becomes("b", failed)) }, 1},
		"who began anew": {"b", func(l *ledger) { l.join("b", 5) }, 1},
	} {
		l := honest(t)
		l.join("b", 4)
		l.put(false, made(l.state.KeyspaceByName("s").GetId(), 5, "c", "d", "a", "b"))
		at := l.state.Token()
		c.then(l)
		v := witness.NewInvariants(l.state)
		v.Leads(at, l.state, l.state.Region(5), c.shown)
		led, found := witness.Walk(l.state, func(r *state.Region) state.MemberID {
			if r.ID == 5 {
				return c.shown
			}
			return ""
		})
		p := v.Placed(l.state)
		if p.Violations[witness.LeadersOwn-1] != c.want || led != 1 || uint64(len(found)) != c.want {
			t.Errorf("%s: %v, by a walk %v", name, p.Found, found)
		}
		if c.want > 0 && (p.Found[0].Kind != witness.LeaderNotOwner || p.Found[0].At != at || p.Found[0].Region != 5) {
			t.Errorf("%s: %v", name, p.Found)
		}
	}
}

// Records alone show who could never have been an owner, and a count that is wrong; what
// nobody looked at is not said to hold.
func TestRecordsOfOwners(t *testing.T) {
	l := honest(t)
	truth := witness.Whole(l.state)
	if r := witness.Judge(truth); r.Findings[witness.Placement].Verdict != witness.Holds {
		t.Errorf("%+v", r.Findings[witness.Placement])
	}
	truth.Placed = nil
	if f := witness.Judge(truth).Findings[witness.Placement]; f.Verdict != witness.CannotTell {
		t.Errorf("a source without regions: %+v", f)
	}
	// A record that the log made, and that is gone.
	fewer := l.state.Fork()
	l.put(false, made(l.state.KeyspaceByName("s").GetId(), 6, "q", "r"))
	if a := find(l.judged(l.turns, witness.Of(fewer)), witness.OwnerMismatch); a == nil || a.Numbers != "by the log there are 3 regions, by the records 2" {
		t.Errorf("%v", a)
	}
	// An owner that was never registered as the incarnation that it is.
	var records []*rootv1.Record
	_ = l.state.Records(func(r *rootv1.Record) error {
		if r = proto.CloneOf(r); r.GetMember().GetId() == "a" {
			r.GetMember().Incarnation = 1
		}
		records = append(records, r)
		return nil
	})
	doctored, err := state.Restore(l.state.Token(), func() (*rootv1.Record, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		next := records[0]
		records = records[1:]
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := find(witness.Judge(witness.Whole(doctored)), witness.GrantedToNobody); a == nil || a.Region != 1 || a.At.Index != 0 {
		t.Errorf("%v", a)
	}
	// A log that a process began to follow behind a region's grant judges what comes then.
	v := witness.NewInvariants(l.state)
	_, found := witness.Walk(l.state, nil)
	v.Keep(found)
	v.Keep([]witness.Anomaly{{Kind: witness.OrphansMiscounted}, {Kind: witness.OrphansMiscounted}})
	if n := v.Violations(); n[witness.RegionsOwned-1] != 1 {
		t.Errorf("%v: what a walk finds is kept once", n)
	}
	truth.Placed = v.Placed(l.state)
	if r := witness.Judge(truth); r.Findings[witness.Placement].Verdict != witness.Broken {
		t.Errorf("%+v", r.Findings[witness.Placement])
	}
}

// Of each kind the first are kept with their numbers, and all are counted.
func TestWhatIsKeptIsBounded(t *testing.T) {
	v := witness.NewInvariants(state.New())
	for i := range 1000 {
		v.Leads(state.Token{}, state.New(), &state.Region{Region: rooted.Region{ID: state.RegionID(i)}}, "a")
	}
	if p := v.Placed(state.New()); len(p.Found) != 16 || p.Violations[witness.LeadersOwn-1] != 1000 {
		t.Errorf("%d kept, %v counted", len(p.Found), p.Violations)
	}
}

// An incarnation that was removed does not act again: also when the record of the member was
// dropped in between.
func TestARemovedIncarnationThatComesBackIsFound(t *testing.T) {
	l := newLedger(t)
	l.join("a", 1)
	m := l.state.Member("a")
	gone := proto.CloneOf(m)
	gone.State = rootv1.MemberState_MEMBER_STATE_REMOVED
	v := witness.NewInvariants(l.state)
	at := func(i uint64) state.Token { return state.Token{Incarnation: 1, Term: 1, Index: i} }
	v.Entry(at(90), []state.Change{{Kind: state.ChangeMember, Member: gone}})
	v.Entry(at(91), []state.Change{{Kind: state.ChangeMember, Member: gone, Removed: true}})
	v.Entry(at(92), []state.Change{{Kind: state.ChangeMember, Member: m}})
	if n := v.Violations()[witness.OwnersUp-1]; n == 0 {
		t.Error("incarnation 1 of member a was removed and acts, and nobody says so")
	}
}

// One member is one owner: a region that names it twice has two peers of it.
func TestAnOwnerThatIsThereTwiceIsFound(t *testing.T) {
	l := newLedger(t)
	l.join("a", 1)
	l.put(false, ranges("s", 3))
	l.put(false, made(l.state.KeyspaceByName("s").GetId(), 1, "a", "b", "a"))
	v := witness.NewInvariants(l.state)
	old := l.state.Region(1)
	r := old.Clone()
	r.Epoch.ConfVersion++
	r.Owners = append(r.Owners, state.Owner{Member: "a", Incarnation: old.Owners[0].Incarnation, Peer: 9})
	v.Entry(state.Token{Incarnation: 1, Term: 1, Index: 90}, []state.Change{{Kind: state.ChangeRegion, Region: r, OldRegion: old}})
	if v.Violations().Total() == 0 {
		t.Error("nothing is said of it")
	}
}

// The range of a region at an epoch is one: another one at the same epoch is two regions
// that both sides think they own.
func TestAnotherRangeAtTheSameEpochIsFound(t *testing.T) {
	l := newLedger(t)
	l.join("a", 1)
	l.put(false, ranges("x", 1))
	l.put(false, made(l.state.KeyspaceByName("x").GetId(), 1, "a", "c", "a"))
	v := witness.NewInvariants(l.state)
	old := l.state.Region(1)
	r := old.Clone()
	r.End = "z"
	v.Entry(state.Token{Incarnation: 1, Term: 1, Index: 90}, []state.Change{{Kind: state.ChangeRegion, Region: r, OldRegion: old}})
	if v.Violations().Total() == 0 {
		t.Error("nothing is said of it")
	}
}
