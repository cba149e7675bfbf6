// Package witness judges the four guarantees of authority from rooted truth:
// whether each holds, and the numbers that show it.
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
// Report judges the records of one position; Audit follows every entry of a
// log as well. What clients were told is judged by internal/history. Where
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

// Guarantee is one of the four, in the order in which they are shown.
type Guarantee uint8

// The guarantees of authority.
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
	// Guarantees is their number.
	Guarantees
)

// String is the guarantee's name.
func (g Guarantee) String() string {
	return [...]string{"Primacy", "Inheritance", "Silence", "Finality", "unknown"}[min(g, Guarantees)]
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
	// note, as there is none below feature level 3.
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
	default:
		return Finality
	}
}

// Anomaly is something found that should not be.
type Anomaly struct {
	Kind      Kind
	Guarantee Guarantee
	// Era it is about.
	Era uint64
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

// Truth is rooted truth at one position, as far as authority is concerned.
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
	// Unknown says why the newest truth cannot be had: then no guarantee holds,
	// and what is broken is still said. "": this is the newest.
	Unknown string
}

// Of is the truth of a State.
func Of(s *state.State) Truth {
	return Truth{
		Token: s.Token(), Cluster: s.Cluster(), Tenure: s.Tenure(), Handovers: s.Handovers(), Allocators: s.Allocators(),
	}
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
