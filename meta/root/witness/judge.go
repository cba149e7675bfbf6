package witness

import (
	"fmt"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	opened    = rootv1.HandoverStage_HANDOVER_STAGE_OPEN
	confirmed = rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED
	closed    = rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
)

// findings collects anomalies, each kind of an era or region once.
type findings struct {
	all []Anomaly
}

func (f *findings) add(kind Kind, era uint64, at state.Token, format string, args ...any) {
	f.put(Anomaly{Kind: kind, Era: era, At: at, Numbers: fmt.Sprintf(format, args...)})
}

// put keeps the first of a kind and era: the log says where, before the
// records say that. What breaks replaces what is only noted.
func (f *findings) put(a Anomaly) {
	a.Guarantee = a.Kind.guarantee()
	for i, old := range f.all {
		if old.Kind == a.Kind && old.Era == a.Era && old.Region == a.Region {
			if old.Note && !a.Note {
				f.all[i] = a
			}
			return
		}
	}
	f.all = append(f.all, a)
}

// records judges all records of one position.
func (f *findings) records(t *Truth) {
	var prev *rootv1.Handover
	for i, h := range t.Handovers {
		f.handover(prev, h)
		f.stages(h, i == len(t.Handovers)-1)
		prev = h
	}
	f.tenure(t.Tenure, prev)
	if n := t.Tenure; n.GetRetired() && !n.GetVoided() && len(n.GetRetireDigest()) == 0 {
		f.unproven(n.GetEra(), state.Token{})
	}
	f.windows(t.Tenure, t.Allocators)
	if prev != nil && prev.GetStage() < closed && t.OpenFor > HandoverDeadline {
		f.add(OpenPastDeadline, prev.GetEra(), state.TokenFromProto(prev.GetOpenedAt()),
			"the handover of era %d has been seen open for %s, the deadline is %s", prev.GetEra(), t.OpenFor, HandoverDeadline)
	}
}

// handover judges h against the one before it, which is nil when it is not
// known.
func (f *findings) handover(prev, h *rootv1.Handover) {
	era, at, legacy := h.GetEra(), state.TokenFromProto(h.GetOpenedAt()), h.GetLegacy()
	switch {
	case prev != nil && era != prev.GetEra()+1 && (!skips(h) || h.GetPredecessorEra() != prev.GetEra()):
		f.add(EraGap, era, at, "era %d follows era %d", era, prev.GetEra())
		return
	case h.GetPredecessorEra()+1 != era && !skips(h):
		f.add(EraGap, era, at, "era %d names era %d as its predecessor", era, h.GetPredecessorEra())
	case prev != nil && at.Compare(state.TokenFromProto(prev.GetOpenedAt())) <= 0:
		f.add(EraGap, era, at, "era %d began at %s, era %d at %s", era, at, prev.GetEra(), state.TokenFromProto(prev.GetOpenedAt()))
	}
	if h.GetPredecessorEra() > 0 || era > 1 && !skips(h) || legacy != nil {
		f.legacy(prev, h)
	}
	f.covers(era, at, "consumed", legacy.GetEra(), frontiers(legacy.GetConsumed()), frontiers(h.GetInherited()))
	if prev != nil {
		f.covers(era, at, "started above", prev.GetEra(), frontiers(prev.GetInherited()), frontiers(h.GetInherited()))
	}
}

// skips says that a restore made the handover: its era is nobody's, and leaves
// out those that the cluster may have begun behind the backup.
func skips(h *rootv1.Handover) bool {
	return h.GetVoided() && h.GetSuccessorId() == "" && h.GetEra() > h.GetPredecessorEra()
}

// covers says where an era starts below a frontier of its predecessor.
func (f *findings) covers(era uint64, at state.Token, what string, of uint64, reached, inherited Frontiers) {
	if inherited.ID < reached.ID {
		f.add(SuccessorIncomplete, era, at, "era %d starts above id %d, era %d %s %d", era, inherited.ID, of, what, reached.ID)
	}
	if inherited.TSO < reached.TSO {
		f.add(SuccessorIncomplete, era, at, "era %d starts above timestamp %d, era %d %s %d", era, inherited.TSO, of, what, reached.TSO)
	}
}

// legacy judges whether h ties its era to the predecessor.
func (f *findings) legacy(prev, h *rootv1.Handover) {
	era, at, l := h.GetEra(), state.TokenFromProto(h.GetOpenedAt()), h.GetLegacy()
	wrong := func(format string, args ...any) { f.add(LineageMismatch, era, at, format, args...) }
	switch {
	case l == nil:
		wrong("era %d has no Legacy of era %d", era, h.GetPredecessorEra())
		return
	case l.GetEra() != h.GetPredecessorEra():
		wrong("the Legacy of era %d's handover is of era %d, the predecessor is era %d", era, l.GetEra(), h.GetPredecessorEra())
	case prev != nil && (l.GetHolderId() != prev.GetSuccessorId() || l.GetHolderIncarnation() != prev.GetSuccessorIncarnation()):
		wrong("the Legacy says that era %d was %s's (%x), its handover says %s's (%x)",
			l.GetEra(), l.GetHolderId(), l.GetHolderIncarnation(), prev.GetSuccessorId(), prev.GetSuccessorIncarnation())
	}
	if prev == nil && l.GetEra() > 1 {
		return // the digest before it was forgotten
	}
	if want := state.Lineage(l, prev.GetLegacy().GetDigest()); l.GetDigest() != want {
		wrong("the Legacy of era %d has digest %016x, the chain gives %016x", l.GetEra(), l.GetDigest(), want)
	}
}

// stages judges how far a handover came; one that is not the last has ended.
func (f *findings) stages(h *rootv1.Handover, last bool) {
	era, stage := h.GetEra(), h.GetStage()
	begun, sure, done := state.TokenFromProto(h.GetOpenedAt()), state.TokenFromProto(h.GetConfirmedAt()), state.TokenFromProto(h.GetClosedAt())
	switch {
	case h.GetVoided() && stage >= closed && done.Index != 0:
		// A restore closed it: what it lacked is void with it.
	case (stage >= closed || done.Index != 0) && sure.Index == 0:
		f.add(CloseWithoutConfirm, era, done, "the handover of era %d was closed at %s and never confirmed", era, done)
	case stage >= closed && done.Index == 0, stage == confirmed && sure.Index == 0, stage < closed && done.Index != 0:
		f.add(MissingClose, era, begun, "the handover of era %d says %s; confirmed at %s, closed at %s", era, stageName(stage), sure, done)
	case done.Index != 0 && done.Compare(sure) < 0, sure.Index != 0 && sure.Compare(begun) < 0:
		f.add(CloseWithoutConfirm, era, done, "the handover of era %d was opened at %s, confirmed at %s and closed at %s", era, begun, sure, done)
	case !last && stage < closed:
		f.unfinished(h, state.Token{}, true, "")
	}
}

// unfinished reports the handover of an era that has ended.
func (f *findings) unfinished(h *rootv1.Handover, at state.Token, note bool, evidence string) {
	kind := MissingClose
	if h.GetStage() < confirmed {
		kind = MissingConfirm
	}
	f.put(Anomaly{Kind: kind, Era: h.GetEra(), At: at, Note: note, Numbers: fmt.Sprintf(
		"era %d, begun at %s, ended with its handover %s%s", h.GetEra(), state.TokenFromProto(h.GetOpenedAt()), stageName(h.GetStage()), evidence)})
}

// unproven notes a retirement that cannot be judged.
func (f *findings) unproven(era uint64, at state.Token) {
	f.put(Anomaly{Kind: RetirementUnproven, Era: era, At: at, Note: true, Numbers: fmt.Sprintf(
		"era %d was claimed without a digest: whether it was its holder that said how far it got cannot be told", era)})
}

func stageName(s rootv1.HandoverStage) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "HANDOVER_STAGE_"))
}

// tenure judges the authority record against the current handover.
func (f *findings) tenure(t *rootv1.Tenure, h *rootv1.Handover) {
	at := state.TokenFromProto(t.GetIssuedAt())
	wrong := func(format string, args ...any) { f.add(TenureMismatch, t.GetEra(), at, format, args...) }
	switch {
	case t == nil && h == nil:
	case t == nil:
		wrong("there is no Tenure, and a handover of era %d", h.GetEra())
	case h == nil:
		wrong("there is a Tenure of era %d, and no handover", t.GetEra())
	case t.GetEra() != h.GetEra():
		wrong("the Tenure is of era %d, the last handover of era %d", t.GetEra(), h.GetEra())
	case t.GetHolderId() != h.GetSuccessorId() || t.GetHolderIncarnation() != h.GetSuccessorIncarnation():
		wrong("era %d is %s's (%x) by its Tenure, %s's (%x) by its handover",
			t.GetEra(), t.GetHolderId(), t.GetHolderIncarnation(), h.GetSuccessorId(), h.GetSuccessorIncarnation())
	case t.GetEnd() != nil && askedAt(t.GetEnd()).Compare(at) <= 0:
		wrong("era %d began at %s and was asked to end at %s", t.GetEra(), at, askedAt(t.GetEnd()))
	case frontiers(t.GetInherited()) != frontiers(h.GetInherited()):
		wrong("era %d starts above %v by its Tenure, %v by its handover", t.GetEra(), frontiers(t.GetInherited()), frontiers(h.GetInherited()))
	}
}

// windows judges the fences, and the last window of each allocator.
func (f *findings) windows(t *rootv1.Tenure, a *rootv1.Allocators) {
	in := frontiers(t.GetInherited())
	f.window("id", t, a.GetLastIdWindow(), a.GetIdFence(), in.ID)
	f.window("timestamp", t, a.GetLastTsoWindow(), a.GetTsoFence(), in.TSO)
}

func (f *findings) window(what string, t *rootv1.Tenure, w *rootv1.Window, fence, inherited uint64) {
	era := t.GetEra()
	if fence < inherited {
		f.add(SuccessorIncomplete, era, state.Token{}, "the %s fence is %d, era %d starts above %d", what, fence, era, inherited)
	}
	switch {
	case w == nil:
	case w.GetEra() > era:
		f.add(WindowAfterEnd, era, state.Token{}, "the last %s window is of era %d, the Tenure of era %d", what, w.GetEra(), era)
	case w.GetTo() > fence:
		f.add(OverlappingWindows, w.GetEra(), state.Token{}, "era %d was given %ss up to %d, the next window begins above the fence, %d", w.GetEra(), what, w.GetTo(), fence)
	case w.GetEra() < era && w.GetTo() > inherited:
		f.add(OverlappingWindows, era, state.Token{}, "era %d was given %ss up to %d, era %d starts above %d", w.GetEra(), what, w.GetTo(), era, inherited)
	case w.GetEra() == era && w.GetTo() > w.GetFrom() && w.GetFrom() < inherited:
		f.add(OverlappingWindows, era, state.Token{}, "era %d was given %ss above %d, it starts above %d", era, what, w.GetFrom(), inherited)
	}
}
