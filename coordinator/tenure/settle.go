package tenure

import (
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settleLocked does what the Core says, and brings guard, rounds and refusal
// up to date with it.
func (h *Holder) settleLocked(now clock.Instant) {
	h.tellSuspicionLocked()
	for actions := h.core.Actions(); len(actions) > 0; actions = h.core.Actions() {
		for _, a := range actions {
			h.actLocked(a, now)
		}
	}
	if tenure := h.core.Tenure(); tenure != h.shown {
		h.shown = tenure
		h.refreshLocked()
	}
	t := h.term
	if t == nil {
		return
	}
	if !t.serves && h.core.Serves() {
		t.serves = true
		h.cfg.Logger.Info("era serves", "era", t.grant.era)
	}
	until := h.core.Until()
	t.grant.until.Store(int64(until))
	t.releaseLocked(h.core.Confirmed(), nil)
	if now < until {
		// Whoever waits was here before now, and the era is confirmed now.
		t.releaseLocked(h.core.holding.sent+1, nil)
	}
}

// tellSuspicionLocked logs when a holder becomes suspect.
func (h *Holder) tellSuspicionLocked() {
	era, suspect := h.core.Suspect()
	if suspect && era != h.suspected {
		h.cfg.Logger.Info("holder is suspect", "era", era, "holder", h.core.Tenure().GetHolderId())
	}
	if h.suspected = 0; suspect {
		h.suspected = era
	}
}

func (h *Holder) actLocked(a Action, now clock.Instant) {
	switch a.Kind {
	case Claim:
		h.cfg.Logger.Debug("claiming", "era", a.Claim.ExpectedEra+1)
		h.claims <- a.Claim
	case Confirm:
		if h.term != nil && h.term.grant.era == a.Era {
			h.term.confirms <- a.Seq
		}
	case Advance:
		if h.term != nil && h.term.grant.era == a.Era {
			h.term.advances <- a
		}
	case Begin:
		h.beginLocked(a, now)
	case End:
		h.endLocked(now)
	case Retire:
		h.retireLocked(a)
	}
}

// beginLocked makes the era's windows (2). What came with the claim's answer can
// be served as soon as the era is confirmed.
func (h *Holder) beginLocked(a Action, now clock.Instant) {
	tenure := a.Tenure
	in := tenure.GetInherited()
	if in.GetAllocId() < h.served.AllocId || in.GetTso() < h.served.Tso {
		h.counters.Violations.Inheritance.Add(1)
		h.cfg.Logger.Error("era does not cover what was served here; not serving it",
			"era", tenure.Era, "inherited", in, "served", &h.served)
		h.core.StepDown(tenure.Era, now)
		return
	}
	t := h.newTerm(tenure)
	if err := t.takeFirst(a.Windows); err != nil {
		h.counters.Violations.Inheritance.Add(1)
		h.cfg.Logger.Error("era came with windows that are not its own; not serving it", "era", tenure.Era, "err", err)
		h.core.StepDown(tenure.Era, now)
		return
	}
	h.term = t
	h.counters.Eras.Add(1)
	h.guard.grant.Store(&t.grant)
	h.current.Store(t)
	h.tellLocked()
	h.cfg.Logger.Info("era begins", "era", tenure.Era)
	if t.fences.Load() == mandatesFenced {
		h.core.OnFenced(tenure.Era, now)
	}
	h.notify()
}

// endLocked stops serving at once (rule 9). The order matters to whoever is in
// the middle of a request: first the guard closes, then the windows, and only
// then are the frontiers final and may be told to anybody (5).
func (h *Holder) endLocked(clock.Instant) {
	t := h.term
	if t == nil {
		return
	}
	h.term = nil
	h.refreshLocked()
	h.current.Store(nil)
	h.guard.grant.Store(nil)
	t.grant.until.Store(0)
	over := eraStale(t.grant.era, h.core.Tenure().GetEra())
	t.ids.close(over)
	t.tso.close(over)
	t.releaseLocked(never64, over)
	close(t.over)
	h.served.AllocId = max(h.served.AllocId, t.ids.consumed())
	h.served.Tso = max(h.served.Tso, t.tso.consumed())
	h.ended = t
	h.cfg.Logger.Info("era ends", "era", t.grant.era)
	h.notify()
}

const never64 = ^uint64(0)

func (h *Holder) retireLocked(a Action) {
	consumed := a.Tenure.GetInherited()
	if h.ended != nil && h.ended.grant.era == a.Era {
		consumed = h.ended.frontiers()
	}
	if consumed == nil {
		consumed = &rootv1.Frontiers{}
	}
	h.retire = &rootv1.TenureRetired{
		Era: a.Era, HolderId: h.cfg.ID, HolderIncarnation: h.cfg.Incarnation, Consumed: consumed,
	}
	h.notify()
}

// refreshLocked renews the answer that callers get while no era is held.
func (h *Holder) refreshLocked() {
	h.tellLocked()
	h.refusal.Store(refusalFor(h.core.Tenure(), h.cfg.ID, h.core.Superseded()))
}

// tellLocked wakes the requests that wait for an era.
func (h *Holder) tellLocked() {
	close(h.news)
	h.news = make(chan struct{})
}
