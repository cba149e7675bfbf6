package state

import (
	"bytes"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// era is the current era, active or retired; 0 before the first.
func (s *State) era() Era { return Era(s.tenure.GetEra()) }

// ActiveEra is the era that may act; 0 when none is, or it has retired.
func (s *State) ActiveEra() Era {
	if s.tenure.GetRetired() {
		return 0
	}
	return s.era()
}

// judgeEra refuses an era that is not the active one: ERA_STALE when it is not
// the current one, SILENCE when it has retired.
func (s *State) judgeEra(era Era) *rootv1.ErrorDetail {
	switch {
	case era != s.era():
		return s.withHolder(refuse(rootv1.Reason_REASON_ERA_STALE, "the era is %d, not %d", s.era(), era))
	case s.tenure.GetRetired():
		return s.withHolder(refuse(rootv1.Reason_REASON_SILENCE, "era %d has retired", era))
	case era == 0:
		return refuse(rootv1.Reason_REASON_ERA_STALE, "no era has begun")
	default:
		return nil
	}
}

// withHolder adds the way out: who holds the Tenure.
func (s *State) withHolder(d *rootv1.ErrorDetail) *rootv1.ErrorDetail {
	d.Era = s.tenure.GetEra()
	if !s.tenure.GetRetired() {
		d.HolderId, d.HolderAddress = s.tenure.GetHolderId(), s.tenure.GetHolderAddress()
	}
	return d
}

// tenureClaimed begins an era (authority.md, rule 1). Already applied: this
// holder, this incarnation, has the era behind the expected one.
func (t *turn) tenureClaimed(e *rootv1.TenureClaimed, r *EventResult) verdict {
	expected := Era(e.GetExpectedEra())
	if t.ActiveEra() == expected+1 && t.heldBy(e.GetHolderId(), e.GetHolderIncarnation()) {
		r.Tenure, r.Handover = t.tenure, t.handovers[len(t.handovers)-1]
		return already
	}
	if expected != t.era() {
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_ERA_STALE, "the era is %d, not %d", t.era(), expected))}
	}
	if t.ActiveEra() != 0 && !e.GetPredecessorExpired() {
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_PRIMACY,
			"era %d is active: wait until the root leader finds it expired", t.era()))}
	}
	if ttl, most := e.GetTtlMillis(), t.maxTenureTTL(); ttl > most {
		d := refuse(rootv1.Reason_REASON_INVALID_TENURE, "the ttl is %d ms, this cluster allows %d ms: claim with less, or raise it, nokv root settings set", ttl, most)
		d.Limit = most
		return verdict{reject: d}
	}
	if expected == ^Era(0) {
		return rejected(rootv1.Reason_REASON_EXHAUSTED, "there is no era behind %d", expected)
	}
	t.begin(e)
	r.Tenure, r.Handover = t.tenure, t.handovers[len(t.handovers)-1]
	t.change(Change{Kind: ChangeTenure, Tenure: r.Tenure})
	t.change(Change{Kind: ChangeHandover, Handover: r.Handover})
	return applied
}

// begin makes the Tenure, the Legacy and the Handover. The successor starts
// above the fences: an orderly predecessor lowered them to what it consumed.
func (t *turn) begin(e *rootv1.TenureClaimed) {
	inherited := &rootv1.Frontiers{AllocId: t.alloc.id.value, Tso: t.alloc.tso.value}
	at := t.token.Proto()
	handover := &rootv1.Handover{
		Era: uint64(t.era() + 1), PredecessorEra: uint64(t.era()), Legacy: t.legacy(),
		SuccessorId: e.GetHolderId(), SuccessorIncarnation: e.GetHolderIncarnation(),
		Inherited: inherited, Stage: rootv1.HandoverStage_HANDOVER_STAGE_OPEN, OpenedAt: at,
	}
	t.tenure = &rootv1.Tenure{
		Era: handover.Era, HolderId: e.GetHolderId(), HolderIncarnation: e.GetHolderIncarnation(),
		HolderAddress: e.GetHolderAddress(), TtlMillis: e.GetTtlMillis(), LeastTtlMillis: e.GetLeastTtlMillis(), Mandates: e.GetMandates(),
		Inherited: inherited, IssuedAt: at, RetireDigest: e.GetRetireDigest(),
	}
	t.pushHandover(handover)
}

// legacy is the predecessor as it ended; nil before the first era.
func (t *turn) legacy() *rootv1.Legacy {
	if t.tenure == nil {
		return nil
	}
	l := &rootv1.Legacy{
		Era: t.tenure.GetEra(), HolderId: t.tenure.GetHolderId(), HolderIncarnation: t.tenure.GetHolderIncarnation(),
		Consumed: t.consumed(), Exact: t.tenure.GetRetired() && !t.tenure.GetVoided(), EndedAt: t.token.Proto(),
		End: t.tenure.GetEnd(),
	}
	l.Digest = lineage(l, t.handovers[len(t.handovers)-1].GetLegacy().GetDigest())
	return l
}

// consumed is how far the current era may have got: exactly, where it retired
// and had the mandate; the fence otherwise.
func (s *State) consumed() *rootv1.Frontiers {
	c := &rootv1.Frontiers{AllocId: s.alloc.id.value, Tso: s.alloc.tso.value}
	if !s.tenure.GetRetired() || s.tenure.GetVoided() {
		return c
	}
	if s.covers(rootv1.Mandate_MANDATE_ALLOC_ID) {
		c.AllocId = s.alloc.id.last.to
	}
	if s.covers(rootv1.Mandate_MANDATE_TSO) {
		c.Tso = s.alloc.tso.last.to
	}
	return c
}

// Ended says how the era of before ended, by the Tenure behind it: "retired",
// "expired", "given up" by the process that has the next one, or "void"; empty: it had
// ended before, or has not.
func Ended(before, now *rootv1.Tenure) string {
	switch {
	case before.GetEra() == 0 || before.GetRetired() || before.GetEra() == now.GetEra() && !now.GetRetired():
		return ""
	case before.GetEra() == now.GetEra():
		return "retired"
	case now.GetVoided():
		return "void"
	case before.GetHolderId() == now.GetHolderId() && before.GetHolderIncarnation() == now.GetHolderIncarnation():
		return "given up"
	}
	return "expired"
}

func (s *State) covers(m rootv1.Mandate) bool { return slices.Contains(s.tenure.GetMandates(), m) }

func (s *State) heldBy(id string, incarnation uint64) bool {
	return s.tenure.GetHolderId() == id && s.tenure.GetHolderIncarnation() == incarnation
}

// tenureRetired ends the era with exact frontiers; for mandates that it does
// not have they count for nothing, and a frontier below what the era inherited
// says that nothing was served. A frontier that would give back what the era has
// used up is refused. So is a frontier below what the era
// inherited, and whoever does not show what the claim was made with: where a window
// was not used up, nobody else can tell a forged frontier. Already applied: retired
// with these frontiers.
func (t *turn) tenureRetired(e *rootv1.TenureRetired, r *EventResult) verdict {
	switch era := Era(e.GetEra()); {
	case t.tenure == nil || era != t.era():
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_ERA_STALE, "the era is %d, not %d", t.era(), era))}
	case !t.heldBy(e.GetHolderId(), e.GetHolderIncarnation()):
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_TENURE_NOT_HELD, "era %d belongs to another holder", era))}
	case len(t.tenure.GetRetireDigest()) > 0 && !bytes.Equal(digest(e.GetRetireSecret()), t.tenure.GetRetireDigest()):
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_TENURE_NOT_HELD, "era %d is retired by the process that claimed it, which alone knows the secret", era))}
	}
	id := max(e.GetConsumed().GetAllocId(), t.tenure.GetInherited().GetAllocId())
	tso := max(e.GetConsumed().GetTso(), t.tenure.GetInherited().GetTso())
	hasID, hasTSO := t.covers(rootv1.Mandate_MANDATE_ALLOC_ID), t.covers(rootv1.Mandate_MANDATE_TSO)
	if t.tenure.GetRetired() {
		if hasID && id != t.alloc.id.last.to || hasTSO && tso != t.alloc.tso.last.to {
			return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_SILENCE, "era %d has retired with other frontiers", t.era()))}
		}
		r.Tenure = t.tenure
		return already
	}
	d := t.belowInherited(e.GetConsumed(), hasID, hasTSO)
	if hasID && d == nil {
		d = t.alloc.id.mayEnd("id", id)
	}
	if hasTSO && d == nil {
		d = t.alloc.tso.mayEnd("timestamp", tso)
	}
	if d != nil {
		return verdict{reject: d}
	}
	if hasID {
		t.alloc.id.settle(t.era(), id)
	}
	if hasTSO {
		t.alloc.tso.settle(t.era(), tso)
	}
	t.tenure = proto.CloneOf(t.tenure)
	t.tenure.Retired = true
	r.Tenure = t.tenure
	t.change(Change{Kind: ChangeTenure, Tenure: r.Tenure})
	t.change(Change{Kind: ChangeAllocators})
	return applied
}

// belowInherited refuses frontiers below those that the era began above.
func (t *turn) belowInherited(consumed *rootv1.Frontiers, hasID, hasTSO bool) *rootv1.ErrorDetail {
	in := t.tenure.GetInherited()
	switch {
	case hasID && consumed.GetAllocId() < in.GetAllocId():
		return refuse(rootv1.Reason_REASON_INHERITANCE, "id frontier %d is below %d, which era %d inherited", consumed.GetAllocId(), in.GetAllocId(), t.era())
	case hasTSO && consumed.GetTso() < in.GetTso():
		return refuse(rootv1.Reason_REASON_INHERITANCE, "timestamp frontier %d is below %d, which era %d inherited", consumed.GetTso(), in.GetTso(), t.era())
	}
	return nil
}

// tenureEnded notes that the active era was asked to end, and by whom. It stays
// active: its holder retires it, or the root leader, which confirms it no more,
// finds it expired. Already applied: it was asked before.
func (t *turn) tenureEnded(e *rootv1.TenureEnded, r *EventResult) verdict {
	if d := t.judgeEra(Era(e.GetEra())); d != nil {
		return verdict{reject: d}
	}
	if r.Tenure = t.tenure; t.tenure.GetEnd() != nil {
		return already
	}
	t.tenure = proto.CloneOf(t.tenure)
	t.tenure.End = &rootv1.TenureEnd{AskedAt: t.token.Proto(), Actor: t.actor, Why: t.why, CutOff: e.GetCutOff()}
	r.Tenure = t.tenure
	t.change(Change{Kind: ChangeTenure, Tenure: r.Tenure})
	return applied
}

// handoverAdvanced moves the current handover one stage on; only its
// holder does. Already applied: it is at that stage or behind it.
func (t *turn) handoverAdvanced(e *rootv1.HandoverAdvanced, r *EventResult) verdict {
	if t.tenure == nil || Era(e.GetEra()) != t.era() {
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_FINALITY,
			"the current handover is era %d's, not %d's", t.era(), e.GetEra()))}
	}
	last := len(t.handovers) - 1
	h := t.handovers[last]
	switch {
	case !t.heldBy(e.GetHolderId(), e.GetHolderIncarnation()):
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_FINALITY, "the handover to era %d is advanced by its holder alone", t.era()))}
	case e.GetStage() <= h.GetStage():
		r.Handover = h
		return already
	case e.GetStage() != h.GetStage()+1:
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_FINALITY, "the handover is at %s: %s is not next", h.GetStage(), e.GetStage()))}
	}
	h = proto.CloneOf(h)
	h.Stage = e.GetStage()
	if h.Stage == rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED {
		h.ConfirmedAt = t.token.Proto()
	} else {
		h.ClosedAt = t.token.Proto()
	}
	t.sum += hashRecord(tagHandover, h) - hashRecord(tagHandover, t.handovers[last])
	t.handovers = append(slices.Clip(t.handovers[:last:last]), h)
	r.Handover = h
	t.change(Change{Kind: ChangeHandover, Handover: h})
	return applied
}

// pushHandover adds a handover and forgets the oldest above MaxHandovers.
func (s *State) pushHandover(h *rootv1.Handover) {
	s.sum += hashRecord(tagHandover, h)
	s.handovers = append(slices.Clip(s.handovers), h)
	if len(s.handovers) > MaxHandovers {
		s.sum -= hashRecord(tagHandover, s.handovers[0])
		s.handovers = s.handovers[1:]
	}
}
