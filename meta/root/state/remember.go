package state

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// chunkCommands is how many commands are forgotten at a time: chunks begin
	// at multiples of it, so that a State and what is restored of it agree.
	chunkCommands = 4096
	// chunkSlots makes a chunk's table half full at most.
	chunkSlots = 2 * chunkCommands
)

// remembered is a command with an identity that was judged.
type remembered struct {
	row
	// about is what became of it, one of the outcomes below, above the digest of
	// what it is about: see subject.
	about uint32
}

// Outcomes of remembered commands, in the two highest bits of about.
const (
	outcomeApplied uint32 = iota << digestBits
	outcomeAlready
	// outcomeRejected: the row's given is the reason.
	outcomeRejected

	digestBits = 30
	digestMask = 1<<digestBits - 1
)

// row is what is remembered of a command. One without origin is a further number
// that the root gave to the command before it, and sequence says which: see
// RememberedCommands.
type row struct {
	origin, sequence uint64
	// index of the entry that holds the command.
	index uint64
	// given is the first number that the root gave it, or 0; the reason of a
	// rejected one.
	given uint64
}

// commands are the remembered commands, in the order of the log. What is full
// is immutable and shared by forks; the newest chunk is appended to by the one
// State that owns it, and every other has a copy made before it looks into it.
type commands struct {
	full []*chunk
	last chunk
	// owned: the room behind last.rows and last.slots are this State's alone.
	owned bool
}

// chunk is a run of commands with a table to find them by.
type chunk struct {
	rows []row
	// about are the digests of the rows, apart: a row has no room for four bytes.
	about []uint32
	// sum of the hashes of rows.
	sum uint64
	// slots are open-addressed, by the hash of origin and sequence: 1 + the
	// number of a row, or 0.
	slots *[chunkSlots]uint16
}

// newest is the index of the last command; 0: there is none.
func (c *chunk) newest() uint64 {
	if len(c.rows) == 0 {
		return 0
	}
	return c.rows[len(c.rows)-1].index
}

// find is the row of a command; -1: it is not there.
func (c *chunk) find(origin, sequence uint64) int {
	if c.slots == nil {
		return -1
	}
	for at := slotOf(origin, sequence); ; at = (at + 1) % chunkSlots {
		row := int(c.slots[at]) - 1
		if row < 0 || c.rows[row].origin == origin && c.rows[row].sequence == sequence {
			return row
		}
	}
}

// enter puts the row into the table.
func (c *chunk) enter(row int) {
	r := c.rows[row]
	if r.origin == 0 {
		return
	}
	if c.slots == nil {
		c.slots = new([chunkSlots]uint16)
	}
	at := slotOf(r.origin, r.sequence)
	for c.slots[at] != 0 {
		at = (at + 1) % chunkSlots
	}
	c.slots[at] = uint16(row + 1)
}

// append adds a row; the chunk is its caller's to write.
func (c *chunk) append(r remembered, sum uint64) {
	if n := len(c.rows); n == cap(c.rows) {
		c.grow(min(max(2*n, 64), chunkCommands))
	}
	c.rows, c.about = append(c.rows, r.row), append(c.about, r.about)
	c.enter(len(c.rows) - 1)
	c.sum += sum
}

// grow makes room for n rows in all.
func (c *chunk) grow(n int) {
	c.rows = append(make([]row, 0, n), c.rows...)
	c.about = append(make([]uint32, 0, n), c.about...)
}

func slotOf(origin, sequence uint64) uint64 {
	return mix(origin^0x9e3779b97f4a7c15, sequence^0xd6e8feb86659fd93) % chunkSlots
}

// mix is a hash of two numbers: both halves of their product.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hashRemembered is what a remembered command adds to the State's hash. It is
// no SHA-256, which would cost as much as judging the command: rows differ in
// their number, and no difference of two cancels out in a product. The
// constants are part of the format.
func hashRemembered(number uint64, r remembered) uint64 {
	h := mix(number^0x9e3779b97f4a7c15, uint64(r.about)^0xd6e8feb86659fd93)
	h = mix(h^r.origin^0xa0761d6478bd642f, r.sequence^0xe7037ed1a0b428db)
	h = mix(h^r.index^0x8ebc6af09c88c6e3, r.given^0x589965cc75374cc3)
	return mix(h, 0x1d8e4e27c47d124f)
}

// fork is the same for another State.
func (c *commands) fork() commands {
	f := *c
	f.owned = false
	return f
}

// own makes the newest chunk this State's.
func (c *commands) own() {
	if c.owned {
		return
	}
	c.owned = true
	c.last.rows, c.last.about, c.last.slots = slices.Clone(c.last.rows), slices.Clone(c.last.about), nil
	for row := range c.last.rows {
		c.last.enter(row)
	}
}

func (c *commands) count() uint64 {
	return uint64(len(c.full)*chunkCommands + len(c.last.rows))
}

// at is the n-th row of those that are remembered, with its chunk.
func (c *commands) at(n int) (*chunk, int) {
	if i := n / chunkCommands; i < len(c.full) {
		return c.full[i], n % chunkCommands
	}
	return &c.last, n % chunkCommands
}

// find is the place of a command that was applied behind an index; -1: it was
// not, or is forgotten.
func (c *commands) find(id *rootv1.CommandIdentity) int {
	c.own()
	for i := len(c.full); i >= 0; i-- {
		chunk := &c.last
		if i < len(c.full) {
			chunk = c.full[i]
		}
		if len(chunk.rows) > 0 && chunk.newest() <= id.GetKnownIndex() {
			return -1
		}
		if row := chunk.find(id.GetOrigin(), id.GetSequence()); row >= 0 {
			return i*chunkCommands + row
		}
	}
	return -1
}

// nextGiven is the n-th further number of a command whose last one is number, at a
// row, and the row that says so.
func (c *commands) nextGiven(number uint64, at int, n uint64) (uint64, int) {
	if at+1 < int(c.count()) {
		chunk, row := c.at(at + 1)
		if r := chunk.rows[row]; r.origin == 0 && r.sequence == n {
			return r.given, at + 1
		}
	}
	return number + 1, at
}

// add remembers a command, and forgets the oldest chunk when there is no room
// for another. It returns the newest index forgotten, or 0, and what the hash of
// the State gains.
func (c *commands) add(number uint64, r remembered) (forgotten, sum uint64) {
	c.own()
	if len(c.last.rows) == chunkCommands {
		whole := c.last
		c.full = append(slices.Clip(c.full), &whole)
		c.last = chunk{}
		c.last.grow(chunkCommands) // it will be filled as the last one was
		if len(c.full) == MaxRememberedCommands/chunkCommands {
			forgotten, sum = c.full[0].newest(), -c.full[0].sum
			c.full = c.full[1:]
		}
	}
	own := hashRemembered(number, r)
	c.last.append(r, own)
	return forgotten, sum + own
}

// remember keeps the identity of a command that was judged, what became of it, and
// what the root gave it. One that was rejected may not be applied when it comes
// again: its sender was told.
func (t *turn) remember(c *rootv1.Command, v verdict, results []EventResult) {
	id := c.GetIdentity()
	if id == nil {
		return
	}
	first := remembered{row: row{origin: id.GetOrigin(), sequence: id.GetSequence(), index: t.token.Index}, about: subject(c)}
	switch {
	case v.reject != nil:
		first.about |= outcomeRejected
		first.given = uint64(v.reject.GetReason())
		t.rememberRow(first)
		return
	case !v.applied:
		first.about |= outcomeAlready
	}
	var more []row
	n, last := uint64(0), uint64(0)
	for i, e := range c.GetEvents() {
		number, is := given(e, results[i])
		if !is {
			continue
		}
		switch {
		case n == 0:
			first.given = number
		case number != last+1:
			more = append(more, row{sequence: n, index: t.token.Index, given: number})
		}
		n, last = n+1, number
	}
	t.rememberRow(first)
	for _, r := range more {
		t.rememberRow(remembered{row: r})
	}
}

func (s *State) rememberRow(r remembered) {
	forgotten, sum := s.commands.add(s.counters.commands, r)
	s.sum += sum
	s.counters.commands++
	s.counters.forgottenTo = max(s.counters.forgottenTo, forgotten)
}

// given is the number that the root gave to what the event made, or found where
// the event names it otherwise. It reports whether there is one, whatever r is.
func given(e *rootv1.Event, r EventResult) (number uint64, is bool) {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_FenceExtended:
		return r.Window.GetFrom(), true
	case *rootv1.Event_KeyspaceCreated:
		return uint64(r.Keyspace.GetId()), true
	case *rootv1.Event_KeyspaceUpdated:
		return uint64(r.Keyspace.GetId()), k.KeyspaceUpdated.GetKeyspaceId() == 0
	case *rootv1.Event_MemberJoined:
		return r.Member.GetIncarnation(), true
	case *rootv1.Event_RegionBootstrapped:
		return r.Region.number(), k.RegionBootstrapped.GetRegion().GetId() == 0
	case *rootv1.Event_RegionPublished:
		return r.Region.number(), k.RegionPublished.GetRegion().GetId() == 0
	case *rootv1.Event_SplitPlanned:
		return r.Transition.GetRightRegionId(), k.SplitPlanned.GetRightRegionId() == 0
	default:
		return 0, false
	}
}

// identified judges a command by its identity, before anything else: a
// repetition is answered and not judged again, another command under an identity
// that was used is refused, one that is older than what is
// remembered may have been applied, so nobody can tell. It reports whether the
// command is done with.
func (t *turn) identified(c *rootv1.Command) bool {
	id := c.GetIdentity()
	if id == nil {
		return false
	}
	if id.GetKnownIndex() >= t.token.Index {
		t.answer(verdict{reject: invalid("the command was made at index %d of another history: this is %d", id.GetKnownIndex(), t.token.Index)}, nil)
		return true
	}
	if n := t.commands.find(id); n >= 0 {
		if chunk, row := t.commands.at(n); chunk.about[row]&digestMask != subject(c) {
			t.answer(verdict{reject: invalid("this identity was used for another command, at index %d", chunk.rows[row].index)}, nil)
			return true
		}
		t.repeat(c, n)
		return true
	}
	if forgotten := t.counters.forgottenTo; id.GetKnownIndex() < forgotten {
		d := refuse(rootv1.Reason_REASON_OUTCOME_UNKNOWN,
			"the command was first sent at %d, what was applied up to %d is forgotten: read what became of it", id.GetKnownIndex(), forgotten)
		d.CurrentToken = t.token.Proto()
		t.answer(verdict{reject: d}, nil)
		return true
	}
	return false
}

// repeat answers a command that is remembered as it was answered first: with its
// outcome, the numbers it was given, and the records as they are now. What is gone
// carries its number alone. The token is of now too: none of the records is newer.
func (t *turn) repeat(c *rootv1.Command, at int) {
	chunk, row := t.commands.at(at)
	v := verdict{applied: chunk.about[row]&^digestMask == outcomeApplied}
	if chunk.about[row]&^digestMask == outcomeRejected {
		v.reject = refuse(rootv1.Reason(chunk.rows[row].given),
			"the command was refused so when it first came, at index %d: to try again, send it under a new identity", chunk.rows[row].index)
		t.answer(v, nil)
		t.repetition()
		return
	}
	results := make([]EventResult, len(c.GetEvents()))
	number, n := chunk.rows[row].given, uint64(0)
	for i, e := range c.GetEvents() {
		if _, is := given(e, EventResult{}); is {
			if n > 0 {
				number, at = t.commands.nextGiven(number, at, n)
			}
			n++
		}
		t.found(e, number, &results[i])
		// A plan knows more than its forgotten transition.
		if i > 0 && results[i].Region == nil && results[i].Transition != nil && results[i].Transition.GetId() == results[i-1].Transition.GetId() {
			results[i] = results[i-1]
		}
	}
	t.answer(v, results)
	t.repetition()
}

// repetition marks the last answer.
func (t *turn) repetition() { t.out.Results[len(t.out.Results)-1].Repetition = true }

// found is what there is of what the event made, given the number that it got.
func (t *turn) found(e *rootv1.Event, given uint64, r *EventResult) {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_ClusterBootstrapped:
		r.Keyspace = t.Keyspace(DefaultKeyspace)
	case *rootv1.Event_FenceExtended:
		r.Window = window{Era(k.FenceExtended.GetEra()), given, given + k.FenceExtended.GetSize()}.proto()
	case *rootv1.Event_TenureClaimed:
		t.foundEra(k.TenureClaimed.GetExpectedEra()+1, r)
	case *rootv1.Event_TenureRetired:
		t.foundEra(k.TenureRetired.GetEra(), r)
		r.Handover = nil
	case *rootv1.Event_HandoverAdvanced:
		t.foundEra(k.HandoverAdvanced.GetEra(), r)
		r.Tenure = nil
	case *rootv1.Event_CoordinatorJoined:
		r.Coordinator = t.Coordinator(CoordinatorID(k.CoordinatorJoined.GetId()))
		if i := k.CoordinatorJoined.GetIncarnation(); r.Coordinator.GetIncarnation() != i {
			r.Coordinator = &rootv1.Coordinator{Id: k.CoordinatorJoined.GetId(), Incarnation: i}
		}
	case *rootv1.Event_MemberJoined:
		r.Member = t.Member(MemberID(k.MemberJoined.GetMember().GetId()))
		if r.Member.GetIncarnation() != given {
			r.Member = &rootv1.Member{Id: k.MemberJoined.GetMember().GetId(), Incarnation: given}
		}
	case *rootv1.Event_MemberStateChanged:
		r.Member = t.Member(MemberID(k.MemberStateChanged.GetMemberId()))
	case *rootv1.Event_KeyspaceCreated:
		t.foundKeyspace(given, r)
	case *rootv1.Event_KeyspaceUpdated:
		if id := k.KeyspaceUpdated.GetKeyspaceId(); id != 0 {
			given = uint64(id)
		}
		t.foundKeyspace(given, r)
	case *rootv1.Event_TenureEnded:
		t.foundEra(k.TenureEnded.GetEra(), r)
		r.Handover = nil
	case *rootv1.Event_ClusterSettingsChanged:
		r.Settings = t.settings
	case *rootv1.Event_AccessGranted:
		r.Grant = t.grantOr(k.AccessGranted.GetGrant().GetPrincipal(), k.AccessGranted.GetGrant().GetKeyspace())
	case *rootv1.Event_AccessRevoked:
		r.Grant = t.grantOr(k.AccessRevoked.GetPrincipal(), k.AccessRevoked.GetKeyspace())
	case *rootv1.Event_TokenKeyRotated:
		r.TokenKeyID = t.tokenKeys.newest().GetId()
	default:
		t.foundRegion(e, given, r)
	}
}

// foundRegion is found for what changes regions.
func (t *turn) foundRegion(e *rootv1.Event, given uint64, r *EventResult) {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		r.Region = t.regionOrID(k.RegionBootstrapped.GetRegion().GetId(), given)
	case *rootv1.Event_RegionPublished:
		r.Region = t.regionOrID(k.RegionPublished.GetRegion().GetId(), given)
	case *rootv1.Event_RegionsAssigned:
		if a := k.RegionsAssigned.GetAssignments(); len(a) == 1 {
			r.Region = t.regionOrID(a[0].GetRegionId(), 0)
		}
	case *rootv1.Event_PeerChangePlanned:
		t.foundPlan(k.PeerChangePlanned.GetKind(), k.PeerChangePlanned.GetRegionId(), k.PeerChangePlanned.GetExpectedEpoch(), 0, r)
	case *rootv1.Event_SplitPlanned:
		right := k.SplitPlanned.GetRightRegionId()
		if right == 0 {
			right = given
		}
		t.foundPlan(kindSplit, k.SplitPlanned.GetRegionId(), k.SplitPlanned.GetExpectedEpoch(), right, r)
	case *rootv1.Event_MergePlanned:
		t.foundPlan(kindMerge, k.MergePlanned.GetLeftRegionId(), k.MergePlanned.GetLeftExpectedEpoch(), k.MergePlanned.GetRightRegionId(), r)
	case *rootv1.Event_MovePlanned:
		t.foundPlan(kindMove, k.MovePlanned.GetRegionId(), k.MovePlanned.GetExpectedEpoch(), 0, r)
	case *rootv1.Event_MoveReady:
		t.foundTransition(k.MoveReady.GetTransitionId(), r)
	case *rootv1.Event_TransitionCompleted:
		t.foundTransition(k.TransitionCompleted.GetTransitionId(), r)
	case *rootv1.Event_TransitionCancelled:
		t.foundTransition(k.TransitionCancelled.GetTransitionId(), r)
	}
}

func (t *turn) foundEra(era uint64, r *EventResult) {
	if r.Tenure = t.tenure; t.tenure.GetEra() != era {
		r.Tenure = &rootv1.Tenure{Era: era}
	}
	r.Handover = &rootv1.Handover{Era: era}
	for _, h := range t.handovers {
		if h.GetEra() == era {
			r.Handover = h
		}
	}
}

func (t *turn) foundKeyspace(id uint64, r *EventResult) {
	if r.Keyspace = t.Keyspace(KeyspaceID(id)); r.Keyspace == nil {
		r.Keyspace = &rootv1.Keyspace{Id: uint32(id)}
	}
}

// regionOrID is the region of an id, or of the one that it was given.
func (t *turn) regionOrID(id, given uint64) *Region {
	if id == 0 {
		id = given
	}
	if r := t.Region(RegionID(id)); r != nil {
		return r
	}
	return &Region{Region: rooted.Region{ID: RegionID(id)}}
}

// foundPlan is foundTransition for a plan that named the right region, or 0. A
// plan that was made anew since may have another.
func (t *turn) foundPlan(kind rootv1.TransitionKind, region uint64, base *rootv1.RegionEpoch, right uint64, r *EventResult) {
	id := rooted.TransitionID(kind, RegionID(region), EpochFromProto(base))
	t.foundTransition(id, r)
	if r.Transition.GetRightRegionId() != right {
		p := &rootv1.Transition{Id: id, Kind: kind, RegionId: region, RightRegionId: right}
		*r = EventResult{Transition: p}
		t.foundParts(p, r)
	}
}

func (t *turn) foundTransition(id string, r *EventResult) {
	if p := t.Transition(id); p != nil {
		t.planned(p, r)
		t.foundParts(p, r)
		return
	}
	r.Transition = &rootv1.Transition{Id: id}
}

// foundParts names the regions that a transition made or changed.
func (t *turn) foundParts(p *rootv1.Transition, r *EventResult) {
	r.Region = t.regionOrID(p.GetRegionId(), 0)
	if p.GetKind() == kindSplit {
		r.Right = t.regionOrID(p.GetRightRegionId(), 0)
	}
}

// checkIdentity wants numbers that can be told from none.
func checkIdentity(id *rootv1.CommandIdentity) *rootv1.ErrorDetail {
	if id == nil {
		return nil
	}
	return first(checkNumber("origin of the command", id.GetOrigin()), checkNumber("sequence number of the command", id.GetSequence()))
}

// rememberedRecords calls fn with a record for each chunk.
func (s *State) rememberedRecords(fn func(*rootv1.RememberedCommands) bool) {
	number := s.counters.commands - s.commands.count()
	for i := 0; i <= len(s.commands.full); i++ {
		c := &s.commands.last
		if i < len(s.commands.full) {
			c = s.commands.full[i]
		}
		n := len(c.rows)
		if n == 0 {
			return
		}
		p := &rootv1.RememberedCommands{
			First: number, Origin: make([]uint64, n), Sequence: make([]uint64, n),
			Index: make([]uint64, n), Given: make([]uint64, n), About: slices.Clone(c.about),
		}
		for row, r := range c.rows {
			p.Origin[row], p.Sequence[row], p.Index[row], p.Given[row] = r.origin, r.sequence, r.index, r.given
		}
		if !fn(p) {
			return
		}
		number += uint64(n)
	}
}

// rememberedCommands takes a chunk: they come in order, and are whole but for the last.
func (b *builder) rememberedCommands(p *rootv1.RememberedCommands) error {
	n := len(p.GetOrigin())
	if b.commands.count() == 0 {
		b.remembering = p.GetFirst()
	}
	switch {
	case n == 0 || n > chunkCommands, len(p.GetSequence()) != n, len(p.GetIndex()) != n, len(p.GetGiven()) != n, len(p.GetAbout()) != n:
		return fmt.Errorf("%d remembered commands have lists of other lengths, or are too many", n)
	case p.GetFirst() != b.remembering || b.remembering%chunkCommands != 0 || b.commands.count()+uint64(n) > MaxRememberedCommands:
		return fmt.Errorf("remembered commands from number %d are not in place", p.GetFirst())
	}
	for i := range n {
		r := remembered{row: row{origin: p.Origin[i], sequence: p.Sequence[i], index: p.Index[i], given: p.Given[i]}, about: p.About[i]}
		if r.sequence == 0 || i > 0 && r.index < p.Index[i-1] {
			return fmt.Errorf("remembered command %d is none, or out of order", b.remembering)
		}
		if !r.whole() {
			return fmt.Errorf("remembered command %d has outcome %d and given %d: there is no such", b.remembering, r.about>>digestBits, r.given)
		}
		_, sum := b.commands.add(b.remembering, r)
		b.sum += sum
		b.remembering++
	}
	return nil
}

// whole reports whether the outcome is one that a row of its kind may have.
func (r remembered) whole() bool {
	switch outcome := r.about &^ digestMask; {
	case r.origin == 0:
		return r.about == 0
	case outcome == outcomeRejected:
		return r.given > 0 && r.given <= math.MaxInt32
	default:
		return outcome <= outcomeAlready
	}
}
