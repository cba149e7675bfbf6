// Package witness judges from rooted truth the four guarantees of authority, and that
// of who owns what: whether each holds, and the numbers that show it.
//
// It owns the rules as an operator states them, apart from the state machine
// that keeps them: what it is given may come from a cluster, a backup or a
// damaged workdir. It promises:
//
//  1. No trust in Apply. Records and events are judged by rules of its own; a
//     State that Apply could never have made is judged like any other.
//  2. Unknown is not ok. What was forgotten or not yet seen is "cannot tell",
//     with the reason, never "holds".
//  3. A broken guarantee comes with the numbers that contradict each other, and
//     with the position in the log where they do.
//  4. Pure. It reads what it is given and no clock; equal truth gives equal
//     reports.
//
// Judge judges the records of one position; Invariants follows the changes of a log, as
// every coordinator does; Audit follows every entry, as it was asked for. What clients were told is judged by internal/history. Where
// truth comes from is left to whoever asks.
package witness

import (
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// HandoverDeadline is how long a handover may stay open before Finality is
// broken.
const HandoverDeadline = 5 * time.Second

// Guarantee is one of the five, in the order in which they are shown.
type Guarantee uint8

// The guarantees of authority, and of ownership.
const (
	// Primacy: at most one era is active.
	Primacy Guarantee = iota
	// Inheritance: a successor starts above everything its predecessor may have
	// served.
	Inheritance
	// Silence: a retired era does not serve.
	Silence
	// Finality: no handover stays half done.
	Finality
	// Placement: a region of an assigned keyspace has the owners that the log gave it, or
	// counts as orphaned.
	Placement
	// Guarantees is their number.
	Guarantees
)

// String is the guarantee's name.
func (g Guarantee) String() string {
	return [...]string{"Primacy", "Inheritance", "Silence", "Finality", "Placement", "unknown"}[min(g, Guarantees)]
}

// Verdict says whether a guarantee holds.
type Verdict uint8

// Verdicts; the zero one is not used.
const (
	Holds Verdict = iota + 1
	// Broken: Finding.Numbers say by what.
	Broken
	// CannotTell: Finding.Numbers say why.
	CannotTell
)

// String is the verdict in words: holds, broken, cannot tell. They stay.
func (v Verdict) String() string {
	return [...]string{"unknown", "holds", "broken", "cannot tell"}[min(v, CannotTell)]
}

// Kind names an anomaly. The words stay.
type Kind string

// What can be wrong, by the guarantee that it is about.
const (
	// EraGap (Primacy): an era does not follow the one before it.
	EraGap Kind = "era_gap"
	// TwoActive (Primacy): an era began while its predecessor was active.
	TwoActive Kind = "two_active"
	// TenureMismatch (Primacy): Tenure and Handover of one era disagree.
	TenureMismatch Kind = "tenure_mismatch"
	// SuccessorIncomplete (Inheritance): an era starts below what its
	// predecessor may have served.
	SuccessorIncomplete Kind = "successor_incomplete"
	// LineageMismatch (Inheritance): a Legacy is not of the predecessor, or its
	// digest does not continue the chain.
	LineageMismatch Kind = "lineage_mismatch"
	// OverlappingWindows (Inheritance): values were given out to serve twice.
	OverlappingWindows Kind = "overlapping_windows"
	// ConsumedUnfenced (Inheritance): an era served values it was never given.
	ConsumedUnfenced Kind = "consumed_unfenced"
	// ConsumedBelow (Inheritance): an era retired below what it has used up of
	// its windows.
	ConsumedBelow Kind = "consumed_below"
	// RetirementUnproven (Inheritance): an era that was claimed without a digest
	// retired. Nothing shows that it was its holder who said how far it had got: a
	// note.
	RetirementUnproven Kind = "retirement_unproven"
	// WindowAfterEnd (Silence): an era that had ended was given values.
	WindowAfterEnd Kind = "window_after_end"
	// MissingConfirm (Finality): an era ended, its handover never confirmed.
	MissingConfirm Kind = "missing_confirm"
	// MissingClose (Finality): an era ended, its handover confirmed and never
	// closed.
	MissingClose Kind = "missing_close"
	// CloseWithoutConfirm (Finality): a handover was closed before it was
	// confirmed.
	CloseWithoutConfirm Kind = "close_without_confirm"
	// OpenPastDeadline (Finality): the current handover is open for longer than
	// HandoverDeadline.
	OpenPastDeadline Kind = "open_past_deadline"
	// OrphansMiscounted (Placement): not as many regions are without an owner that may
	// act as the state counts.
	OrphansMiscounted Kind = "orphans_miscounted"
	// GrantedToNobody (Placement): a region was given to who is no member, is another
	// incarnation than the current one, has failed or was removed.
	GrantedToNobody Kind = "granted_to_nobody"
	// GrantedToDraining (Placement): a region was given to a member that lets go of all.
	GrantedToDraining Kind = "granted_to_draining"
	// MemberRevived (Placement): an incarnation that had ended acts.
	MemberRevived Kind = "member_revived"
	// TwoOwners (Placement): a region got more owners than its keyspace allows, or one twice.
	TwoOwners Kind = "two_owners"
	// EpochReused (Placement): a region has other owners, or another range, at an epoch that
	// it had.
	EpochReused Kind = "epoch_reused"
	// EpochBack (Placement): a region went back to an older epoch.
	EpochBack Kind = "epoch_back"
	// TakenWithoutMove (Placement): the planner took a region from an owner that may act
	// and did not let go of it.
	TakenWithoutMove Kind = "taken_without_move"
	// FrontierLost (Placement): the frontier of a region became one that nobody said.
	FrontierLost Kind = "frontier_lost"
	// FrontierBack (Placement): the frontier of a region went back. Only whoever knows
	// their order finds it: see Invariants.OrderFrontiers.
	FrontierBack Kind = "frontier_back"
	// OwnerMismatch (Placement): a region's record is not what the log last made of it.
	OwnerMismatch Kind = "owner_mismatch"
	// LeaderNotOwner (Placement): who is shown as leading a region is none of its
	// owners that may act.
	LeaderNotOwner Kind = "leader_not_owner"
)

// guarantee is what an anomaly of the kind is about.
func (k Kind) guarantee() Guarantee {
	switch k {
	case EraGap, TwoActive, TenureMismatch:
		return Primacy
	case SuccessorIncomplete, LineageMismatch, OverlappingWindows, ConsumedUnfenced, ConsumedBelow, RetirementUnproven:
		return Inheritance
	case WindowAfterEnd:
		return Silence
	case MissingConfirm, MissingClose, CloseWithoutConfirm, OpenPastDeadline:
		return Finality
	default:
		return Placement
	}
}

// Invariants that are counted: see Kind.Invariant.
const (
	// SingleHolder is I1: an era has one holder.
	SingleHolder = 1 + iota
	// RegionsOwned is I2: every region has an owner, or counts as orphaned.
	RegionsOwned
	// OwnersUp is I3: regions are given to members that are up.
	OwnersUp
	// OwnersStable is I4: who has a region keeps it until it lets go, or has ended.
	OwnersStable
	// LeadersOwn is I5: who leads a region is one of its owners, and may act.
	LeadersOwn
	invariants
)

// Violations counts what broke I1 to I5, in this order.
type Violations [invariants - 1]uint64

// Total is the number of all of them.
func (v Violations) Total() (n uint64) {
	for _, more := range v {
		n += more
	}
	return n
}

// Invariant is the number of the invariant, 1 to 5, that an anomaly of the kind breaks;
// 0: none of these.
func (k Kind) Invariant() int {
	switch k {
	case EraGap, TwoActive, TenureMismatch:
		return SingleHolder
	case OrphansMiscounted:
		return RegionsOwned
	case GrantedToNobody, GrantedToDraining, MemberRevived:
		return OwnersUp
	case TwoOwners, EpochReused, EpochBack, TakenWithoutMove, FrontierLost, FrontierBack, OwnerMismatch:
		return OwnersStable
	case LeaderNotOwner:
		return LeadersOwn
	default:
		return 0
	}
}

// Anomaly is something found that should not be.
type Anomaly struct {
	Kind      Kind
	Guarantee Guarantee
	// Era it is about, or Region; 0: none.
	Era    uint64
	Region state.RegionID
	// At is the entry of the log that shows it; Index 0: only records do.
	At state.Token
	// Note: unusual, and no guarantee is broken by it. A holder that was killed
	// between claim and close leaves one.
	Note bool
	// Numbers is a sentence with what contradicts what.
	Numbers string
}

// Finding is the verdict on one guarantee.
type Finding struct {
	Guarantee Guarantee
	Verdict   Verdict
	// Numbers is a sentence with what shows it.
	Numbers string
}

// Frontiers are a position in both number spaces: the highest id and the
// highest timestamp that may have been served.
type Frontiers struct {
	ID, TSO uint64
}

func frontiers(f *rootv1.Frontiers) Frontiers { return Frontiers{f.GetAllocId(), f.GetTso()} }

// End says how an era ended.
type End string

// How eras end.
const (
	// Active: it has not ended.
	Active End = "active"
	// Retired: its holder ended it, with exact frontiers.
	Retired End = "retired"
	// Expired: its holder was gone; what it consumed is the rooted fence, an
	// upper bound.
	Expired End = "expired"
	// GivenUp: its holder claimed the next one; what it consumed is an upper bound too.
	GivenUp End = "given_up"
)

// Era is one era with its handover.
type Era struct {
	Era         uint64
	Holder      string
	Incarnation uint64
	Stage       rootv1.HandoverStage
	// Where the handover reached its stages; Index 0: it did not.
	Opened, Confirmed, Closed state.Token
	// Ended is where the successor's claim ended it; Index 0 until then.
	Ended state.Token
	// Inherited is what it starts above, Consumed how far it may have got.
	Inherited, Consumed Frontiers
	// Exact: Consumed is what was served; otherwise it is an upper bound.
	Exact bool
	End   End
}

// Truth is rooted truth at one position, as far as a guarantee is concerned.
// Whoever made the records owns them; they are only read.
type Truth struct {
	Token   state.Token
	Cluster *rootv1.Cluster
	Tenure  *rootv1.Tenure
	// Handovers are oldest first; the last one is the current one.
	Handovers  []*rootv1.Handover
	Allocators *rootv1.Allocators
	// OpenFor is how long the current handover has been seen open, by the clock
	// of whoever asks. 0: nobody looked.
	OpenFor time.Duration
	// Placed is what is known of who owns regions; nil: nothing, this source has none.
	Placed *Placed
	// State is all of the truth; nil: not to be had. An Audit begins with it and ends
	// with it.
	State *state.State
	// Unknown says why the newest truth cannot be had: then no guarantee holds,
	// and what is broken is still said. "": this is the newest.
	Unknown string
}

// Of is the truth of a State.
func Of(s *state.State) Truth {
	return Truth{
		Token: s.Token(), Cluster: s.Cluster(), Tenure: s.Tenure(), Handovers: s.Handovers(), Allocators: s.Allocators(),
		Placed: counted(s), State: s,
	}
}

// Whole is Of with a look at each region: it takes as long as there are regions.
func Whole(s *state.State) Truth {
	t := Of(s)
	_, found := Walk(s, nil)
	t.Placed.Walked = true
	t.Placed.Found = append(t.Placed.Found, found...)
	return t
}

// Tenures are one Tenure an era, oldest first, of the eras that t knows.
func (t *Truth) Tenures() []*rootv1.Tenure {
	all := make([]*rootv1.Tenure, 0, len(t.Handovers))
	for _, h := range t.Handovers {
		all = append(all, tenureOf(h))
	}
	return all
}

func tenureOf(h *rootv1.Handover) *rootv1.Tenure {
	return &rootv1.Tenure{
		Era: h.GetEra(), HolderId: h.GetSuccessorId(), HolderIncarnation: h.GetSuccessorIncarnation(),
		Inherited: h.GetInherited(), IssuedAt: h.GetOpenedAt(),
	}
}
