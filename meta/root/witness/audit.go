package witness

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
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
	// The model: the era that began last, its handover (nil: none began), and
	// what may have been served.
	era      uint64
	handover *rootv1.Handover
	retired  bool
	mandates []rootv1.Mandate
	// asked is where the era was asked to end, and digest what its retirement has to
	// show the secret of.
	asked  state.Token
	digest []byte
	serve  Frontiers
	// rootTop is the highest id that the root itself gave out.
	rootTop uint64
	// First and last end of the era's timestamp windows; 0: none.
	firstTSO, lastTSO uint64
	// What the era was given, and how it was retired below that if the state
	// machine refused it.
	ids, stamps given
	refusedEnd  string
	// owned judges Placement; nil: the audit began without a state.
	owned *Invariants

	entries uint64
	last    state.Token
	tenures []*rootv1.Tenure
	rootIDs []uint64
}

// given are the ends of an era's last three windows; 0: there were not so many.
type given struct{ last, before, usedUp uint64 }

func (g *given) add(to uint64) { *g = given{to, g.last, g.before} }

func givenOf(era uint64, w *rootv1.Window, before, usedUp uint64) given {
	if w.GetEra() != era {
		return given{}
	}
	return given{w.GetTo(), before, usedUp}
}

// NewAudit begins behind the records of t. They are judged as well.
func NewAudit(t Truth) *Audit {
	a := &Audit{
		last: t.Token, tenures: t.Tenures(), retired: t.Tenure.GetRetired(), mandates: t.Tenure.GetMandates(),
		asked: askedAt(t.Tenure.GetEnd()), digest: t.Tenure.GetRetireDigest(),
		serve: Frontiers{t.Allocators.GetIdFence(), t.Allocators.GetTsoFence()},
	}
	a.ids = givenOf(t.Tenure.GetEra(), t.Allocators.GetLastIdWindow(), t.Allocators.GetIdBeforeLast(), t.Allocators.GetIdUsedUp())
	a.stamps = givenOf(t.Tenure.GetEra(), t.Allocators.GetLastTsoWindow(), t.Allocators.GetTsoBeforeLast(), t.Allocators.GetTsoUsedUp())
	a.findings.records(&t)
	if t.State != nil {
		a.owned = NewInvariants(t.State)
		a.owned.Remember(t.State)
		a.owned.walk(t.State, nil)
	}
	if n := len(t.Handovers); n > 0 {
		a.handover, a.era = t.Handovers[n-1], t.Handovers[n-1].GetEra()
	}
	return a
}

func (a *Audit) isHeldBy(id string, process uint64) bool {
	return a.handover.GetSuccessorId() == id && a.handover.GetSuccessorIncarnation() == process
}

// Entry tells the audit an entry: what it asked for, and what became of it.
func (a *Audit) Entry(at state.Token, entry *rootv1.Entry, applied *state.Applied) {
	a.entries++
	a.last = at
	for i, c := range entry.GetCommands() {
		r := &applied.Results[i]
		if r.Outcome == rootv1.Outcome_OUTCOME_REJECTED && !r.Repetition {
			a.refused(at, c)
		}
		if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED || r.Repetition {
			continue
		}
		for j, e := range c.GetEvents() {
			a.Event(at, e, &r.Events[j])
			a.noteRootIDs(e, &r.Events[j], applied)
		}
	}
	if a.owned != nil {
		a.owned.say(entry)
		a.owned.Entry(at, applied.Changes)
	}
}

// refused looks for what this build refuses and an older one accepted: an end
// below what the era has used up, and a successor that builds on it.
func (a *Audit) refused(at state.Token, c *rootv1.Command) {
	for _, e := range c.GetEvents() {
		end, next := e.GetTenureRetired(), e.GetTenureClaimed()
		switch {
		case end != nil && end.GetEra() == a.era && !a.retired && a.isHeldBy(end.GetHolderId(), end.GetHolderIncarnation()):
			a.refusedEnd = a.below(a.consumed(end))
		case next != nil && next.GetExpectedEra() == a.era && !next.GetPredecessorExpired() && a.refusedEnd != "":
			a.add(ConsumedBelow, a.era, at, "%s; that is refused, but %s claimed era %d as if it held", a.refusedEnd, next.GetHolderId(), a.era+1)
		}
	}
}

// below says where a frontier lies below what the era has used up.
func (a *Audit) below(c Frontiers) string {
	switch {
	case c.ID < a.ids.usedUp:
		return fmt.Sprintf("era %d retired at id %d and had used up %d: two windows were given behind that", a.era, c.ID, a.ids.usedUp)
	case c.TSO < a.stamps.usedUp:
		return fmt.Sprintf("era %d retired at timestamp %d and had used up %d: two windows were given behind that", a.era, c.TSO, a.stamps.usedUp)
	default:
		return ""
	}
}

// Event judges one event that took effect, and the record that it made, if r
// has it. Part of a command may have been true already: what repeats the last
// of its kind is passed over.
func (a *Audit) Event(at state.Token, e *rootv1.Event, r *state.EventResult) {
	a.last = at
	switch k := e.GetKind().(type) {
	case *rootv1.Event_TenureClaimed:
		a.claimed(at, k.TenureClaimed, r.Handover)
	case *rootv1.Event_FenceExtended:
		a.extended(at, k.FenceExtended, r.Window)
	case *rootv1.Event_TenureRetired:
		a.ended(at, k.TenureRetired)
	case *rootv1.Event_TenureEnded:
		a.askedToEnd(at, k.TenureEnded)
	case *rootv1.Event_HandoverAdvanced:
		a.advanced(at, k.HandoverAdvanced)
	}
}

// claimed judges a claim, and the handover that it made.
func (a *Audit) claimed(at state.Token, e *rootv1.TenureClaimed, h *rootv1.Handover) {
	era, before := e.GetExpectedEra()+1, a.era
	if era == before && !a.retired && a.isHeldBy(e.GetHolderId(), e.GetHolderIncarnation()) {
		return // said again
	}
	switch {
	case era != before+1:
		a.add(EraGap, era, at, "%s claimed era %d behind era %d", e.GetHolderId(), era, before)
	case before != 0 && !a.retired && !e.GetPredecessorExpired():
		a.add(TwoActive, era, at, "%s began era %d while era %d of %s was active: neither retired nor found expired", e.GetHolderId(), era, before, a.handover.GetSuccessorId())
	}
	a.settleOpen(at)
	a.findings.handover(a.handover, h)
	if said := askedAt(h.GetLegacy().GetEnd()); said != a.asked {
		a.add(LineageMismatch, era, at, "the Legacy of era %d says that it was asked to end at %s, by the log that was at %s", before, said, a.asked)
	}
	starts := frontiers(h.GetInherited())
	a.covers(h.GetEra(), at, "may have served", before, a.serve, starts)
	a.handover, a.era, a.retired, a.mandates = h, h.GetEra(), false, e.GetMandates()
	if !a.isHeldBy(e.GetHolderId(), e.GetHolderIncarnation()) {
		a.add(TenureMismatch, h.GetEra(), at, "%s (%x) claimed era %d, its handover says %s (%x)",
			e.GetHolderId(), e.GetHolderIncarnation(), h.GetEra(), h.GetSuccessorId(), h.GetSuccessorIncarnation())
	}
	a.serve = Frontiers{max(a.serve.ID, starts.ID), max(a.serve.TSO, starts.TSO)}
	a.firstTSO, a.lastTSO = 0, 0
	a.ids, a.stamps, a.refusedEnd = given{}, given{}, ""
	a.asked, a.digest = state.Token{}, e.GetRetireDigest()
	a.tenures = append(a.tenures, tenureOf(h))
}

// settleOpen judges the handover of an era that ends.
func (a *Audit) settleOpen(at state.Token) {
	if a.handover == nil || a.handover.GetStage() >= closed {
		return
	}
	evidence, ran := "", a.ran()
	if ran > openEvidence {
		evidence = fmt.Sprintf(" after its timestamps had run on for %s; the deadline is %s", ran, HandoverDeadline)
	}
	a.unfinished(a.handover, at, evidence == "", evidence)
}

// ran is how far the era's timestamps ran from its first window to its last.
func (a *Audit) ran() time.Duration {
	return time.Duration(a.lastTSO>>state.TSOLogicalBits-a.firstTSO>>state.TSOLogicalBits) * time.Millisecond
}

func (a *Audit) extended(at state.Token, e *rootv1.FenceExtended, w *rootv1.Window) {
	serve, what, windows := &a.serve.ID, "id", &a.ids
	if e.GetMandate() == rootv1.Mandate_MANDATE_TSO {
		serve, what, windows = &a.serve.TSO, "timestamp", &a.stamps
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
	windows.add(to)
	if what == "timestamp" && era == a.era {
		if a.firstTSO == 0 {
			a.firstTSO = to
		}
		a.lastTSO = to
	}
}

// consumed is what a retirement says. Mandates that the era does not have count
// for nothing; a frontier below what it inherited says that nothing was served.
func (a *Audit) consumed(e *rootv1.TenureRetired) Frontiers {
	c, starts := a.serve, frontiers(a.handover.GetInherited())
	if slices.Contains(a.mandates, rootv1.Mandate_MANDATE_ALLOC_ID) {
		c.ID = max(e.GetConsumed().GetAllocId(), starts.ID)
	}
	if slices.Contains(a.mandates, rootv1.Mandate_MANDATE_TSO) {
		c.TSO = max(e.GetConsumed().GetTso(), starts.TSO)
	}
	return c
}

// ended judges a retirement.
func (a *Audit) ended(at state.Token, e *rootv1.TenureRetired) {
	c := a.consumed(e)
	below := a.below(c)
	switch {
	case e.GetEra() != a.era || !a.isHeldBy(e.GetHolderId(), e.GetHolderIncarnation()):
		a.add(TwoActive, e.GetEra(), at, "%s (%x) retired era %d; era %d of %s (%x) was active", e.GetHolderId(), e.GetHolderIncarnation(), e.GetEra(),
			a.era, a.handover.GetSuccessorId(), a.handover.GetSuccessorIncarnation())
		return
	case a.retired:
		return // said again
	case len(a.digest) > 0 && !showsSecret(e.GetRetireSecret(), a.digest):
		a.add(TwoActive, e.GetEra(), at, "era %d was retired in the name of %s (%x) by who does not know the secret that it was claimed with", e.GetEra(), e.GetHolderId(), e.GetHolderIncarnation())
	case c.ID > a.serve.ID:
		a.add(ConsumedUnfenced, e.GetEra(), at, "era %d retired at id %d, it was given up to %d", e.GetEra(), c.ID, a.serve.ID)
	case c.TSO > a.serve.TSO:
		a.add(ConsumedUnfenced, e.GetEra(), at, "era %d retired at timestamp %d, it was given up to %d", e.GetEra(), c.TSO, a.serve.TSO)
	case below != "":
		a.add(ConsumedBelow, e.GetEra(), at, "%s", below)
	}
	if len(a.digest) == 0 {
		a.unproven(e.GetEra(), at)
	}
	a.retired, a.serve = true, Frontiers{max(c.ID, a.rootTop, a.ids.usedUp), max(c.TSO, a.stamps.usedUp)}
}

// showsSecret says whether a retirement is by whoever made the claim.
func showsSecret(secret, digest []byte) bool {
	sum := sha256.Sum256(secret)
	return bytes.Equal(sum[:], digest)
}

// askedAt is where an era was asked to end; the zero Token: it was not.
func askedAt(end *rootv1.TenureEnd) state.Token { return state.TokenFromProto(end.GetAskedAt()) }

// askedToEnd judges that an era was asked to end: it goes on, and its holder alone
// retires it.
func (a *Audit) askedToEnd(at state.Token, e *rootv1.TenureEnded) {
	switch {
	case e.GetEra() != a.era:
		a.add(EraGap, e.GetEra(), at, "era %d was asked to end, the current one is era %d", e.GetEra(), a.era)
	case a.retired:
		a.add(TenureMismatch, e.GetEra(), at, "era %d was asked to end after it had retired", e.GetEra())
	case a.asked == state.Token{}: // Otherwise it is said again.
		a.asked = at
	}
}

// advanced judges a stage, by the rules for records.
func (a *Audit) advanced(at state.Token, e *rootv1.HandoverAdvanced) {
	if a.handover == nil || e.GetEra() != a.era {
		a.add(EraGap, e.GetEra(), at, "the handover of era %d became %s, the current one is era %d's", e.GetEra(), stageName(e.GetStage()), a.era)
		return
	}
	if e.GetStage() <= a.handover.GetStage() {
		return // said again
	}
	h := proto.CloneOf(a.handover) // the record before it is only read
	if h.Stage = e.GetStage(); h.Stage == confirmed {
		h.ConfirmedAt = at.Proto()
	} else {
		h.ClosedAt = at.Proto()
	}
	a.stages(h, true)
	a.handover = h
}

// Report judges the records at the end of the log as well, and the model
// against them.
func (a *Audit) Report(t Truth) *Report {
	a.findings.records(&t)
	if a.era != t.Tenure.GetEra() || a.retired != t.Tenure.GetRetired() {
		word := map[bool]string{true: "retired", false: "active"}
		a.add(TenureMismatch, a.era, a.last, "by the log era %d is %s, by the Tenure era %d is %s",
			a.era, word[a.retired], t.Tenure.GetEra(), word[t.Tenure.GetRetired()])
	}
	if said := askedAt(t.Tenure.GetEnd()); a.era == t.Tenure.GetEra() && said != a.asked {
		a.add(TenureMismatch, a.era, a.last, "by the log era %d was asked to end at %s, by the Tenure at %s", a.era, a.asked, said)
	}
	if ran := a.ran(); ran > openEvidence && a.era == t.Tenure.GetEra() && a.handover.GetStage() < closed && !a.retired {
		a.add(OpenPastDeadline, a.era, a.last, "the handover of era %d is %s, and its timestamps ran on for %s; the deadline is %s",
			a.era, stageName(a.handover.GetStage()), ran, HandoverDeadline)
	}
	if a.owned != nil && t.State != nil {
		a.owned.walk(t.State, nil)
		t.Placed = a.owned.Placed(t.State)
		t.Placed.Walked = true
	}
	return report(&t, a.all)
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
		if k.KeyspaceCreated.GetSettings().GetLayout().GetSlots() != nil {
			a.noteMade(applied, func(region *state.Region) bool { return uint32(region.Keyspace) == r.Keyspace.GetId() })
		}
	}
}

func (a *Audit) noteRegion(asked *rootv1.Region, r *state.EventResult, applied *state.Applied) {
	if asked.GetId() == 0 && r.Region != nil {
		a.noteMade(applied, func(region *state.Region) bool { return region.ID == r.Region.ID })
	}
}

// noteMade notes the regions that an entry made.
func (a *Audit) noteMade(applied *state.Applied, meant func(*state.Region) bool) {
	for _, c := range applied.Changes {
		if c.Kind == state.ChangeRegion && !c.Removed && c.OldRegion == nil && meant(c.Region) {
			a.rootGave(uint64(c.Region.ID))
		}
	}
}

// rootGave: below this id nothing may be served any more but what was before.
func (a *Audit) rootGave(id uint64) {
	a.rootIDs = append(a.rootIDs, id)
	a.rootTop = max(a.rootTop, id)
	a.serve.ID = max(a.serve.ID, id)
}
