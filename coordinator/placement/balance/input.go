package balance

import (
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Input is what Make looks at. It changes none of it.
type Input struct {
	Keyspace state.KeyspaceID
	Policy   Policy
	// Members and Regions in any order, each once.
	Members []Member
	Regions []Region
	Budget  Budget
	Now     clock.Instant
	// Young: the keyspace is younger than an hour: who joins it gets its part whatever that hour was.
	Young bool
	// Most bounds the steps; 0: any.
	Most int
}

// Member is one that may own regions of the keyspace.
type Member struct {
	ID          state.MemberID
	Incarnation uint64
	// Capacity is its part, by which loads are compared; 0 counts as 1.
	Capacity uint64
	// Most is the most load that it can take; 0: not known.
	Most   load.Amount
	Labels map[string]string
	// Takes says that it may get something new, Stale that its load is not known: then it
	// neither gives nor gets anything to even out.
	Takes, Stale bool
	// Leaves: it may not own regions of the keyspace any more. What it has is moved off it.
	Leaves bool
	// Joined is when it did, if that was lately; 0: long ago. RestsUntil is when something
	// may be moved to it again to even out.
	Joined, RestsUntil clock.Instant
	// There says that the keyspace is newer than the member: it had its part from the
	// beginning, as a strategy gave it.
	There bool
	// Other is the load that is not of this keyspace's regions, Regions how many it has of
	// all keyspaces.
	Other   load.Pair
	Regions int
	// Gives and Gets are how many regions are on their way from it, and to it.
	Gives, Gets int
	// OneAtATime: no more than one region may be on its way to it.
	OneAtATime bool
}

// Region is what there is to know of one.
type Region struct {
	ID    state.RegionID
	Epoch state.Epoch
	// Start and End are its first key, and the one behind its last.
	Start, End string
	Owners     []state.Owner
	// Busy: a change of it is under way, or its owners are gone: it is left alone. From gives
	// and To gets it then; "": nobody does.
	Busy     bool
	From, To state.MemberID
	// Load of all owners together; not Known: nobody has told.
	Load  load.Pair
	Known bool
	// Saturated: an owner says that its share is more than it can serve. CoolSince is since
	// when none does and the region is cold; 0: it is not. CutAt is when it was cut.
	Saturated        bool
	CoolSince, CutAt clock.Instant
	// Quarantined: it is left where it is.
	Quarantined bool
	// Median is the key below which half of the load is, HotKey the one with most of it,
	// and HotPermille how much that is. "": not told.
	Median, HotKey string
	HotPermille    uint64
	// Keys in it; 0: not told.
	Keys uint64
}

// Result is what Make says.
type Result struct {
	Steps    []Step
	Refusals []Refusal
	Budget   Budget
	// Total is all load, Excess what of it is above what members may have, Imbalance how many of 1,000 of its
	// fair part the fullest one has, as they are when all is done that is under way.
	Total     load.Amount
	Excess    load.Amount
	Imbalance uint64
	// Before is what Imbalance would be without these steps.
	Before uint64
	// ByCount: there are no loads, or they do not matter here.
	ByCount bool
}

// Kind is what a Step does.
type Kind uint8

// Kinds of steps.
const (
	// Move takes a region from one member to another.
	Move Kind = iota + 1
	// Add and Remove change how many owners there are.
	Add
	Remove
	// Split cuts a region before a key, Merge joins it with the one behind.
	Split
	Merge
)

// String is the kind's name, as it is shown.
func (k Kind) String() string { return [...]string{"", "move", "add", "remove", "split", "merge"}[k] }

// Round is the part of a plan that a step is of, in their order.
type Round uint8

// Rounds.
const (
	// Constrain puts right what is where it may not be.
	Constrain Round = iota + 1
	// Shape changes how many owners, and how many regions, there are.
	Shape
	// Fill gives their part to members that joined.
	Fill
	// Limit relieves members above the absolute limit, Shed those above the relative one.
	Limit
	Shed
)

// String is the round's name, as it is shown.
func (r Round) String() string {
	return [...]string{"", "constrain", "shape", "fill", "limit", "shed"}[r]
}

// Step is one change of one region.
type Step struct {
	Kind     Kind
	Round    Round
	Region   state.RegionID
	Epoch    state.Epoch
	From, To state.MemberID
	// Key that a region is cut before; Next is the region that Merge joins it with.
	Key       string
	Next      state.RegionID
	NextEpoch state.Epoch
	Reason    rootv1.OperationReason
	Load      load.Amount
}

// Refusal is what would be better, and is not done.
type Refusal struct {
	// Region, or the first of so many.
	Region  state.RegionID
	Regions int
	Member  state.MemberID
	Why     Why
	// Wants are the labels that nobody has, of NoneMatches.
	Wants string
	// At is when it is worth another look; 0: when something changes.
	At clock.Instant
}

// Why is the reason of a Refusal.
type Why uint8

// Reasons of refusals.
const (
	// NoMember: nobody takes anything.
	NoMember Why = iota + 1
	// TooManyMoves: as many are under way as may be.
	TooManyMoves
	// HotRegionAlone: the member has more than others because of one region.
	HotRegionAlone
	// NoGain: no move would make it better by the gap, though there is room for one.
	NoGain
	// LoadUnknown: too much of the load is estimated.
	LoadUnknown
	// BudgetSpent: as much was moved as may be in a round, or in an hour.
	BudgetSpent
	// Resting: the regions moved lately, less than the policy's Spacing ago, or Backoff where
	// that failed.
	Resting
	// PoisonSuspected: owners of the region die.
	PoisonSuspected
	// MembersFull: who may take the region has as many as the keyspace allows.
	MembersFull
	// NoneMatches: nobody has the labels that the region's rule wants.
	NoneMatches
	// NoOther: who may take it has it already, or is in the zone of another owner.
	NoOther
	// CoolingDown: the last round that relieved members began less than the policy's Cooldown ago.
	CoolingDown
	// Joined: the member did less than the policy's Settle ago.
	Joined
	// Recovered: the member came back lately, until its RestsUntil.
	Recovered
	// NoRoom: who may take the region has no room for it below the most load that it can take.
	NoRoom
	// LittleLoad: the member has more than its part, which is less than the policy's Idle of what
	// it can take.
	LittleLoad
)

// String is the reason's name, as it is shown.
func (w Why) String() string {
	return [...]string{
		"", "no_active_members", "too_many_moves", "hot_region_alone", "no_gain", "load_unknown", "budget_spent", "resting", "poison_suspected",
		"capacity_exceeded", "no_eligible_member", "no_other_member", "cooling_down", "joined", "recovered",
		"no_room", "little_load",
	}[w]
}
