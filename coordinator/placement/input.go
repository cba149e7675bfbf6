package placement

import (
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Input is what a plan is made of. Make changes none of it.
type Input struct {
	State    *state.State
	Observed Observed
	Moves    *Moves
	Now      clock.Instant
	// Regions to look at, and members that drain, in any order.
	Regions  []state.RegionID
	Draining []state.MemberID
	// Attempts are since when changes are under way, and which regions rest; nil: it is as
	// Moves say, and none does.
	Attempts *Attempts
	// Unserved are regions that their owners do not serve; nil: there are none.
	Unserved *Unserved
	// Busy are regions of which an operation is on its way to the root: nothing else is
	// planned for them, and they count where that brings them. Nil: there are none.
	Busy *Sent

	// Rebalance are keyspaces to even out, in any order: all of their regions are looked at.
	Rebalance []state.KeyspaceID
	// Most bounds the steps that even out, of all of them together; 0: any.
	Most int
	// Budgets of these; the next ones are in the Plan.
	Budgets map[state.KeyspaceID]balance.Budget
	// Policies replace what the settings of keyspaces say.
	Policies map[state.KeyspaceID]balance.Policy
	// Loads, and what else is known; nil: nothing is, and regions are counted.
	Loads   *load.Book
	Insight Insight
	// Sums of Loads that are kept from plan to plan, which Make brings up to date; nil: they are
	// added up anew.
	Sums *Sums
	// Strategies that are brought for keyspaces: what they name is proposed for regions
	// without owners, and what the settings say where that cannot be taken. For an Asker
	// regions wait.
	Strategies map[state.KeyspaceID]propose.Strategy
	// Leaves are members whose processes end. Drained is when a member drained last.
	Leaves  map[state.MemberID]Leave
	Drained clock.Instant
	// Created is when keyspaces were, of those for which that is not long ago.
	Created map[state.KeyspaceID]clock.Instant
}

// Observed is what is known of members and regions beside the root.
type Observed interface {
	// Takes reports whether the member may get something new: it is heard, and neither
	// suspected nor damped nor leaving.
	Takes(id state.MemberID) bool
	// Damped reports whether the member would be one that Takes, had it not failed too
	// often: it gets what nobody else may have.
	Damped(id state.MemberID) bool
	// Unfit reports whether an incarnation fails to get ready for what it was given of a keyspace,
	// or did lately: it gets what nobody else may have.
	Unfit(o state.Owner, ks state.KeyspaceID) bool
	// Probation reports whether an incarnation that was unfit is to get one region of a keyspace
	// at a time.
	Probation(o state.Owner, ks state.KeyspaceID) bool
	// ClearAt is when regions of the incarnation, whose keyspace has that fence, may
	// be granted elsewhere: see liveness.Core.
	ClearAt(id state.MemberID, incarnation uint64, f liveness.Fence) clock.Instant
	// Shown is the token of the newest set of regions that the incarnation has taken, and
	// obeys; zero: not known.
	Shown(id state.MemberID, incarnation uint64) state.Token
	// Report is what an owner, or one to be, last reported of the region in its incarnation;
	// it may have ended since.
	Report(region state.RegionID, owner state.Owner) (Report, bool)
}

// Report is what a member said of a region.
type Report struct {
	// Incarnation that said it, and the epoch that it was about.
	Incarnation uint64
	Epoch       state.Epoch
	Phase       coordinatorv1.RegionPhase
	// Transition that the phase is about, and the token of the newest set that the member
	// has taken on the stream where it said so: a transition that was given up and planned
	// anew has the same id, and what was said of the first says nothing of the second.
	Transition string
	Shown      state.Token
	// Frontier: exact once it is released. It counts if SetFrontier.
	Frontier    string
	SetFrontier bool
	// Last: the incarnation has said since that it serves nothing any more, so that it has
	// done nothing behind what it reported.
	Last bool
	// Failed: what it tried last has failed.
	Failed bool
	// Load in thousandths of the member's unit.
	Load uint64
}

// Plan is what to do, and what not.
type Plan struct {
	// Operations in the order in which to propose them: first what ends or continues
	// something, then grants, hottest first, then what begins.
	Operations []Operation
	// Refusals by region, then by member.
	Refusals []Refusal
	// Balanced is how keyspaces were evened out, with their next budgets.
	Balanced map[state.KeyspaceID]balance.Result
	// Asked are regions without owners that wait until an Asker is Answered.
	Asked map[state.KeyspaceID]*Asked
}

// Asker is a strategy that says what somebody was asked beforehand.
type Asker interface {
	propose.Strategy
	// Answered reports whether nothing is waited for about a region at an epoch.
	Answered(id state.RegionID, epoch state.Epoch) bool
}

// Asked are regions of a keyspace that somebody is to be asked about.
type Asked struct {
	Regions []Awaiting
	// Candidates by id, with what this plan gave them.
	Candidates []propose.Candidate
}

// Awaiting is a region that waits, and why it needs an owner.
type Awaiting struct {
	Region *state.Region
	Load   load.Amount
	Reason rootv1.OperationReason
}

// Kind is what an Operation does.
type Kind uint8

// Kinds of operations, in their order in a Plan.
const (
	// Complete ends a transition as planned; of a move, at the frontier.
	Complete Kind = iota + 1
	// Ready roots that the next owner of a move can take, or had time enough.
	Ready
	// Cancel gives a transition up.
	Cancel
	// Assign sets the owners of a region.
	Assign
	// PlanMove begins a move, AddOwner and RemoveOwner a change of a shared region's owners.
	PlanMove
	AddOwner
	RemoveOwner
	// PlanSplit and PlanMerge begin to cut a region, and to join it with the next.
	PlanSplit
	PlanMerge
)

// String is the kind's name, as it is shown.
func (k Kind) String() string {
	return [...]string{"", "complete", "ready", "cancel", "assign", "plan_move", "add_owner", "remove_owner", "plan_split", "plan_merge"}[k]
}

// Operation is one change of one region.
type Operation struct {
	Kind     Kind
	Region   state.RegionID
	Keyspace state.KeyspaceID
	// Epoch of the region that it was planned at.
	Epoch state.Epoch
	// Owners that it shall have, of Assign.
	Owners []state.Owner
	// From gives and To takes, where that is planned or continued.
	From, To state.Owner
	// Transition that is continued or ended, also by an Assign, and which plan it is of: see
	// state.PlannedAt.
	Transition string
	PlannedAt  uint64
	// Frontier is exact if SetFrontier.
	Frontier    string
	SetFrontier bool
	// Key that a region is cut before; Next is the one that it is joined with.
	Key       string
	Next      state.RegionID
	NextEpoch state.Epoch
	// PrepareMax and Deadline of a move that begins.
	PrepareMax, Deadline time.Duration
	Reason               rootv1.OperationReason
	// Because says more, for people: of Cancel, and of Assign to another one than named.
	Because string
	// Load in thousandths of the member's unit, as the owner last reported it.
	Load uint64
	// Even says that it evens out: nobody waits for it.
	Even bool
}

// Refusal is what is not done, or not yet.
type Refusal struct {
	Region   state.RegionID
	Keyspace state.KeyspaceID
	// Member that gives, or would.
	Member state.MemberID
	// Regions is how many regions of the member it is about, if not one.
	Regions int
	Why     Why
	// Wants are the labels that nobody has, of NoneMatches, if Even.
	Wants string
	// At is when it is worth another look; 0: when something changes.
	At clock.Instant
	// Even says that it is about evening out: nobody waits for it.
	Even bool
}

// Why is the reason of a Refusal.
type Why uint8

// Reasons of refusals.
const (
	// NoEligibleMember: nobody is active, heard and takes regions of this keyspace.
	NoEligibleMember Why = iota + 1
	// MembersFull: those that are have as many as the keyspace allows.
	MembersFull
	// FenceRuns: its owner may still act for it.
	FenceRuns
	// NotReady: the next owner prepares.
	NotReady
	// NotReleased: the old owner finishes what it began.
	NotReleased
	// TooManyMoves: as many are under way as the keyspace allows.
	TooManyMoves
	// HotRegionAlone: the member has more than others because of one region. NoGain: no
	// move would make it better.
	HotRegionAlone
	NoGain
	// LoadUnknown: too much of the load is estimated.
	LoadUnknown
	// BudgetSpent: as much was moved as may be. Resting: it was moved lately, or its last change
	// was given up.
	BudgetSpent
	Resting
	// PoisonSuspected: owners of the region die soon after they got it.
	PoisonSuspected
	// MassFailureHold: most members of the keyspace are not heard.
	MassFailureHold
	// NamedNobody: a strategy that was brought names a member that is none, or takes nothing
	// now; NamedUnfit: one that may not have the region; NamedFull: one that would have much
	// more than its part. The region goes to somebody else.
	NamedNobody
	NamedUnfit
	NamedFull
	// HeldForMember: its owner's next process is waited for. AwaitsMembers: the keyspace is
	// new, and more members may come.
	HeldForMember
	AwaitsMembers
	// KeysOverLimit: it has more keys than the keyspace allows.
	KeysOverLimit
	// NoneMatches: of those that take regions of this keyspace nobody has the labels that
	// the region's rule wants.
	NoneMatches
	// NoOther: who may take it has it already, or is in the zone of another owner.
	NoOther
	// CoolingDown: members of the keyspace were relieved lately. Joined, Recovered: the member
	// did so lately.
	CoolingDown
	Joined
	Recovered
	// NotServed: its owner gets ready to serve it, for longer than that should take, or fails to, or says
	// nothing of it; or its Release has not returned, though nothing asks for it any more.
	NotServed
	// NoRoom: who may take it can take no more load. LittleLoad: the member has more than its part,
	// which is next to nothing for it.
	NoRoom
	LittleLoad
)

// Whys are all reasons there are.
func Whys() (all []Why) {
	for w := range whyNames[1:] {
		all = append(all, Why(w+1))
	}
	return all
}

var whyNames = [...]string{
	"", "no_active_members", "capacity_exceeded", "fence_runs", "not_ready", "not_released", "too_many_moves",
	"hot_region_alone", "no_gain", "load_unknown", "budget_spent", "resting", "poison_suspected", "mass_failure_hold",
	"named_nobody", "named_unfit", "named_full",
	"held_for_member", "awaits_members", "keys_over_limit", "no_eligible_member",
	"no_other_member", "cooling_down", "joined", "recovered", "not_served",
	"no_room", "little_load",
}

// String is the reason's name, as it is shown.
func (w Why) String() string { return whyNames[w] }
