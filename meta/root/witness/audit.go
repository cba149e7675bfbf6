package witness

import (
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// openEvidence is how far an era's own timestamps must run on, with its
// handover open, to show that HandoverDeadline passed: a log has no clock. A
// window reaches up to 6 s ahead of its use.
const openEvidence = HandoverDeadline + 6*time.Second

// Audit judges a log entry by entry, by a small model of its own of who may do
// what. Begin it with the records that the log goes on from, tell it every
// entry in order, and ask for the Report.
//
// The model knows commands that the state machine refused to be without
// effect. What took effect it judges itself, and what the records say of it.
type Audit struct {
	findings
	// The model: the era that began last, and what may have been served.
	handover *rootv1.Handover
	era      uint64
	retired  bool
	holder   string
	process  uint64
	mandates []rootv1.Mandate
	serve    Frontiers
	starts   Frontiers
	// rootTop is the highest id that the root itself gave out.
	rootTop uint64
	// First and last end of the era's timestamp windows; 0: none.
	firstTSO, lastTSO uint64

	begun   state.Token
	entries uint64
	last    state.Token
	tenures []*rootv1.Tenure
	rootIDs []uint64
}

// NewAudit begins behind the records of t. They are judged as well.
func NewAudit(t Truth) *Audit {
	a := &Audit{begun: t.Token, last: t.Token, tenures: t.Tenures()}
	a.findings.records(&t)
	a.adopt(&t)
	return a
}

// adopt makes the model of records.
func (a *Audit) adopt(t *Truth) {
	a.era, a.retired = t.Tenure.GetEra(), t.Tenure.GetRetired()
	a.holder, a.process, a.mandates = t.Tenure.GetHolderId(), t.Tenure.GetHolderIncarnation(), t.Tenure.GetMandates()
	a.serve = Frontiers{t.Allocators.GetIdFence(), t.Allocators.GetTsoFence()}
	a.starts = frontiers(t.Tenure.GetInherited())
	a.firstTSO, a.lastTSO = 0, 0
	a.handover = nil
	if n := len(t.Handovers); n > 0 {
		a.handover = t.Handovers[n-1]
	}
}

// Entry tells the audit an entry: what it asked for, and what became of it.
func (a *Audit) Entry(at state.Token, entry *rootv1.Entry, applied *state.Applied) {
	a.entries++
	a.last = at
	for i, c := range entry.GetCommands() {
		r := &applied.Results[i]
		if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			continue
		}
		for j, e := range c.GetEvents() {
			a.Event(at, e, &r.Events[j])
			a.noteRootIDs(e, &r.Events[j], applied)
		}
	}
}

// Event judges one event that took effect, and the record that it made, if r
// has it. Part of a command may have been true already: what repeats the last
// of its kind is passed over.
func (a *Audit) Event(at state.Token, e *rootv1.Event, r *state.EventResult) {
	a.last = at
	switch k := e.GetKind().(type) {
	case *rootv1.Event_TenureClaimed:
		a.claimed(at, k.TenureClaimed, r)
	case *rootv1.Event_FenceExtended:
		a.extended(at, k.FenceExtended, r.Window)
	case *rootv1.Event_TenureRetired:
		a.ended(at, k.TenureRetired)
	case *rootv1.Event_HandoverAdvanced:
		a.advanced(at, k.HandoverAdvanced)
	}
}

func (a *Audit) claimed(at state.Token, e *rootv1.TenureClaimed, r *state.EventResult) {
	era := e.GetExpectedEra() + 1
	if era == a.era && !a.retired && e.GetHolderId() == a.holder && e.GetHolderIncarnation() == a.process {
		return
	}
	switch {
	case era != a.era+1:
		a.add(EraGap, era, at, "%s claimed era %d behind era %d", e.GetHolderId(), era, a.era)
	case a.era != 0 && !a.retired && !e.GetPredecessorExpired():
		a.add(TwoActive, era, at, "%s began era %d while era %d of %s was active: neither retired nor found expired", e.GetHolderId(), era, a.era, a.holder)
	}
	a.settleOpen(at)
	h := r.Handover
	a.record(at, e, h)
	a.handover = h
	a.era, a.retired, a.holder, a.process, a.mandates = era, false, e.GetHolderId(), e.GetHolderIncarnation(), e.GetMandates()
	a.starts = frontiers(h.GetInherited())
	a.serve = Frontiers{max(a.serve.ID, a.starts.ID), max(a.serve.TSO, a.starts.TSO)}
	a.firstTSO, a.lastTSO = 0, 0
	a.tenures = append(a.tenures, tenureOf(h))
}

// record judges the Handover that a claim made.
func (a *Audit) record(at state.Token, e *rootv1.TenureClaimed, h *rootv1.Handover) {
	if a.handover != nil || a.era == 0 {
		a.findings.handover(a.handover, h)
	}
	if h.GetSuccessorId() != e.GetHolderId() || h.GetSuccessorIncarnation() != e.GetHolderIncarnation() {
		a.add(TenureMismatch, h.GetEra(), at, "%s (%x) claimed era %d, its handover says %s (%x)",
			e.GetHolderId(), e.GetHolderIncarnation(), h.GetEra(), h.GetSuccessorId(), h.GetSuccessorIncarnation())
	}
	a.covers(h.GetEra(), at, "may have served", a.era, a.serve, frontiers(h.GetInherited()))
}

// settleOpen judges the handover of an era that ends.
func (a *Audit) settleOpen(at state.Token) {
	if a.handover == nil || a.handover.GetStage() >= closed {
		return
	}
	if ran := a.ran(); ran > openEvidence {
		a.unfinished(a.handover, at, false, fmt.Sprintf(" after its timestamps had run on for %s; the deadline is %s", ran, HandoverDeadline))
		return
	}
	a.unfinished(a.handover, at, true, "")
}

// ran is how far the era's timestamps ran from its first window to its last.
func (a *Audit) ran() time.Duration {
	return time.Duration(a.lastTSO>>state.TSOLogicalBits-a.firstTSO>>state.TSOLogicalBits) * time.Millisecond
}

func (a *Audit) extended(at state.Token, e *rootv1.FenceExtended, w *rootv1.Window) {
	serve, what := &a.serve.ID, "id"
	if e.GetMandate() == rootv1.Mandate_MANDATE_TSO {
		serve, what = &a.serve.TSO, "timestamp"
	}
	from, to, era := w.GetFrom(), w.GetTo(), e.GetEra()
	switch {
	case era > a.era:
		a.add(EraGap, era, at, "era %d was given %ss (%d, %d] and was never claimed; the last claim is era %d", era, what, from, to, a.era)
	case era < a.era:
		a.add(WindowAfterEnd, era, at, "era %d was given %ss (%d, %d] while era %d was active", era, what, from, to, a.era)
	case a.retired:
		a.add(WindowAfterEnd, era, at, "era %d was given %ss (%d, %d] after it had retired", era, what, from, to)
	}
	if from < *serve {
		a.add(OverlappingWindows, era, at, "era %d was given %ss (%d, %d], up to %d may have been served before", era, what, from, to, *serve)
	}
	*serve = max(*serve, to)
	if what == "timestamp" && era == a.era {
		if a.firstTSO == 0 {
			a.firstTSO = to
		}
		a.lastTSO = to
	}
}

// ended judges a retirement. Mandates that the era does not have count for
// nothing; a frontier below what it inherited says that nothing was served.
func (a *Audit) ended(at state.Token, e *rootv1.TenureRetired) {
	c := a.serve
	if slices.Contains(a.mandates, rootv1.Mandate_MANDATE_ALLOC_ID) {
		c.ID = max(e.GetConsumed().GetAllocId(), a.starts.ID)
	}
	if slices.Contains(a.mandates, rootv1.Mandate_MANDATE_TSO) {
		c.TSO = max(e.GetConsumed().GetTso(), a.starts.TSO)
	}
	switch {
	case e.GetEra() != a.era || e.GetHolderId() != a.holder || e.GetHolderIncarnation() != a.process:
		a.add(TwoActive, e.GetEra(), at, "%s (%x) retired era %d; era %d of %s (%x) was active",
			e.GetHolderId(), e.GetHolderIncarnation(), e.GetEra(), a.era, a.holder, a.process)
		return
	case a.retired:
		return // said again
	case c.ID > a.serve.ID:
		a.add(ConsumedUnfenced, a.era, at, "era %d retired at id %d, it was given up to %d", a.era, c.ID, a.serve.ID)
	case c.TSO > a.serve.TSO:
		a.add(ConsumedUnfenced, a.era, at, "era %d retired at timestamp %d, it was given up to %d", a.era, c.TSO, a.serve.TSO)
	}
	a.retired, a.serve = true, Frontiers{max(c.ID, a.rootTop), c.TSO}
}

func (a *Audit) advanced(at state.Token, e *rootv1.HandoverAdvanced) {
	if a.handover == nil || e.GetEra() != a.era {
		a.add(EraGap, e.GetEra(), at, "the handover of era %d became %s, the current one is era %d's", e.GetEra(), stageName(e.GetStage()), a.era)
		return
	}
	stage := a.handover.GetStage()
	if e.GetStage() <= stage {
		return // said again
	}
	if e.GetStage() >= closed && stage < confirmed {
		a.add(CloseWithoutConfirm, a.era, at, "the handover of era %d was closed while it was %s", a.era, stageName(stage))
	}
	h := copyOf(a.handover)
	h.Stage = e.GetStage()
	if h.Stage == confirmed {
		h.ConfirmedAt = at.Proto()
	} else {
		h.ClosedAt = at.Proto()
	}
	a.handover = h
}

// copyOf copies what advanced changes; the rest is shared and only read.
func copyOf(h *rootv1.Handover) *rootv1.Handover {
	return &rootv1.Handover{
		Era: h.GetEra(), PredecessorEra: h.GetPredecessorEra(), Legacy: h.GetLegacy(), SuccessorId: h.GetSuccessorId(),
		SuccessorIncarnation: h.GetSuccessorIncarnation(), Inherited: h.GetInherited(), Stage: h.GetStage(),
		OpenedAt: h.GetOpenedAt(), ConfirmedAt: h.GetConfirmedAt(), ClosedAt: h.GetClosedAt(),
	}
}

// Report judges the records at the end of the log as well, and the model
// against them.
func (a *Audit) Report(t Truth) *Report {
	a.findings.records(&t)
	if a.era != t.Tenure.GetEra() || a.retired != t.Tenure.GetRetired() {
		a.add(TenureMismatch, a.era, a.last, "by the log era %d is %s, by the Tenure era %d is %s",
			a.era, activeWord(a.retired), t.Tenure.GetEra(), activeWord(t.Tenure.GetRetired()))
	}
	if h := a.handover; h != nil && a.era == t.Tenure.GetEra() && h.GetStage() < closed && !a.retired {
		if ran := a.ran(); ran > openEvidence {
			a.add(OpenPastDeadline, a.era, a.last, "the handover of era %d is %s, and its timestamps ran on for %s; the deadline is %s",
				a.era, stageName(h.GetStage()), ran, HandoverDeadline)
		}
	}
	return report(&t, a.all)
}

func activeWord(retired bool) string {
	if retired {
		return "retired"
	}
	return "active"
}

// Entries is how many entries were judged.
func (a *Audit) Entries() uint64 { return a.entries }

// Tenures are one Tenure an era, oldest first: those of the records that the
// audit began with, and those of the log behind them.
func (a *Audit) Tenures() []*rootv1.Tenure { return a.tenures }

// RootIDs are the ids that the root itself gave out in the entries judged.
func (a *Audit) RootIDs() []uint64 { return a.rootIDs }

// noteRootIDs finds the ids that the root chose for an event.
func (a *Audit) noteRootIDs(e *rootv1.Event, r *state.EventResult, applied *state.Applied) {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionPublished:
		a.noteRegion(k.RegionPublished.GetRegion(), r, applied)
	case *rootv1.Event_RegionBootstrapped:
		a.noteRegion(k.RegionBootstrapped.GetRegion(), r, applied)
	case *rootv1.Event_SplitPlanned:
		if t := r.Transition; k.SplitPlanned.GetRightRegionId() == 0 && t.GetPlannedAt().GetIndex() == applied.Token.Index {
			a.rootGave(t.GetRightRegionId())
		}
	case *rootv1.Event_KeyspaceCreated:
		for _, c := range applied.Changes {
			if made(&c) && uint32(c.Region.Keyspace) == r.Keyspace.GetId() && k.KeyspaceCreated.GetSettings().GetLayout().GetSlots() != nil {
				a.rootGave(uint64(c.Region.ID))
			}
		}
	}
}

// rootGave: below this id nothing may be served any more but what was before.
func (a *Audit) rootGave(id uint64) {
	a.rootIDs = append(a.rootIDs, id)
	a.rootTop = max(a.rootTop, id)
	a.serve.ID = max(a.serve.ID, id)
}

func (a *Audit) noteRegion(asked *rootv1.Region, r *state.EventResult, applied *state.Applied) {
	if asked.GetId() != 0 || r.Region == nil {
		return
	}
	for _, c := range applied.Changes {
		if made(&c) && c.Region.ID == r.Region.ID {
			a.rootGave(uint64(r.Region.ID))
			return
		}
	}
}

// made: the change made a region.
func made(c *state.Change) bool {
	return c.Kind == state.ChangeRegion && !c.Removed && c.OldRegion == nil
}
