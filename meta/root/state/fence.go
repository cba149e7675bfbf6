package state

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// allocators are the fences of both allocators.
type allocators struct {
	id, tso fence
}

// fence is one allocator's bound.
type fence struct {
	// value is the highest number that may have been served.
	value uint64
	// last is what the last era to extend was given without interruption up
	// to its newest extension, or, once it has retired, what it consumed of
	// that. Numbers above last.from and up to last.to are that era's alone.
	last window
	// beforeLast and usedUp are the ends of the two windows that the same era
	// was given before its newest one; 0: there were not so many. A holder that
	// asks for a window gives up what lies below the newest one it knows, and
	// asks for one at a time: everything up to usedUp is served or given up.
	beforeLast, usedUp uint64
}

// window is a run of numbers (from, to] of one era; era 0: none.
type window struct {
	era      Era
	from, to uint64
}

func (w window) proto() *rootv1.Window {
	if w.era == 0 {
		return nil
	}
	return &rootv1.Window{Era: uint64(w.era), From: w.from, To: w.to}
}

func windowFromProto(w *rootv1.Window) window {
	return window{era: Era(w.GetEra()), from: w.GetFrom(), to: w.GetTo()}
}

func (a *allocators) proto() *rootv1.Allocators {
	return &rootv1.Allocators{
		IdFence: a.id.value, TsoFence: a.tso.value,
		LastIdWindow: a.id.last.proto(), LastTsoWindow: a.tso.last.proto(),
		IdBeforeLast: a.id.beforeLast, IdUsedUp: a.id.usedUp, TsoBeforeLast: a.tso.beforeLast, TsoUsedUp: a.tso.usedUp,
	}
}

func allocatorsFromProto(p *rootv1.Allocators) allocators {
	return allocators{
		id:  fence{value: p.GetIdFence(), last: windowFromProto(p.GetLastIdWindow()), beforeLast: p.GetIdBeforeLast(), usedUp: p.GetIdUsedUp()},
		tso: fence{value: p.GetTsoFence(), last: windowFromProto(p.GetLastTsoWindow()), beforeLast: p.GetTsoBeforeLast(), usedUp: p.GetTsoUsedUp()},
	}
}

func (a *allocators) of(m rootv1.Mandate) *fence {
	if m == rootv1.Mandate_MANDATE_TSO {
		return &a.tso
	}
	return &a.id
}

// fenceExtended gives a window above the fence to the active era. It is never
// found applied by its content: who must know whether a window was given names
// its command.
func (t *turn) fenceExtended(e *rootv1.FenceExtended, r *EventResult) verdict {
	era := Era(e.GetEra())
	if d := t.judgeEra(era); d != nil {
		return verdict{reject: d}
	}
	if !slices.Contains(t.tenure.GetMandates(), e.GetMandate()) {
		return verdict{reject: t.withHolder(refuse(rootv1.Reason_REASON_MANDATE, "era %d has no mandate %s", era, e.GetMandate()))}
	}
	f, limit := t.alloc.of(e.GetMandate()), uint64(MaxID)
	if e.GetMandate() == rootv1.Mandate_MANDATE_TSO {
		limit = MaxTSO
	}
	if e.GetMandate() == rootv1.Mandate_MANDATE_ALLOC_ID {
		if d := t.CheckIDWindow(e.GetFloor(), e.GetSize()); d != nil {
			return verdict{reject: d}
		}
	}
	given := window{era: era, from: max(f.value, e.GetFloor())}
	if given.from > limit || e.GetSize() > limit-given.from {
		d := refuse(rootv1.Reason_REASON_EXHAUSTED, "%d values above %d would pass %d", e.GetSize(), given.from, limit)
		d.Limit, d.Fence = limit, f.value
		return verdict{reject: d}
	}
	given.to = given.from + e.GetSize()
	run := given
	if f.last.era == era && f.last.to == given.from {
		run.from = f.last.from
	}
	if f.last.era == era {
		f.beforeLast, f.usedUp = f.last.to, f.beforeLast
	} else {
		f.beforeLast, f.usedUp = 0, 0
	}
	f.value, f.last = given.to, run
	r.Window = given.proto()
	t.change(Change{Kind: ChangeAllocators})
	return applied
}

// CheckIDWindow refuses a window of ids that would use up
// what never comes back, whoever asks: one of more than MaxIDWindow, or, where some
// were given before, more than MaxIDSkip ahead of the fence.
func (s *State) CheckIDWindow(floor, size uint64) *rootv1.ErrorDetail {
	f := &s.alloc.id
	var d *rootv1.ErrorDetail
	switch {
	case size > MaxIDWindow:
		d = refuse(rootv1.Reason_REASON_EXHAUSTED, "a window of %d ids: ask for at most %d", size, uint64(MaxIDWindow))
		d.Limit = MaxIDWindow
	case f.last.to > 0 && floor > f.value && floor-f.value > MaxIDSkip:
		d = refuse(rootv1.Reason_REASON_EXHAUSTED, "ids above %d are more than %d ahead of the fence %d, and what is skipped never comes back: go there in steps", floor, uint64(MaxIDSkip), f.value)
		d.Limit = f.value + MaxIDSkip
	default:
		return nil
	}
	d.Fence = f.value
	return d
}

// mayEnd refuses an exact frontier that the era cannot have ended at.
func (f *fence) mayEnd(what string, consumed uint64) *rootv1.ErrorDetail {
	var d *rootv1.ErrorDetail
	switch {
	case consumed > f.value:
		d = refuse(rootv1.Reason_REASON_INHERITANCE, "%s frontier %d is above the fence %d", what, consumed, f.value)
	case consumed < f.usedUp:
		d = refuse(rootv1.Reason_REASON_INHERITANCE, "%s frontier %d is below %d: two windows were given behind that, so the era has used it up", what, consumed, f.usedUp)
	default:
		return nil
	}
	d.Fence = f.value
	return d
}

// settle ends the era's use of the allocator at an exact frontier, which must
// not be above the fence. What the era was given last and did not serve goes
// back: the fence falls to the frontier, but not below the start of the era's
// last run, since below it lie ids that the root gave itself, and not at all
// when the root has given ids since.
func (f *fence) settle(era Era, consumed uint64) {
	start := consumed
	if f.last.era == era {
		start = min(start, f.last.from)
		if f.value == f.last.to {
			f.value = min(f.value, max(consumed, f.last.from))
		}
	}
	f.last, f.beforeLast, f.usedUp = window{era: era, from: start, to: consumed}, 0, 0
}

// roomForIDs refuses when n ids, and those to skip, do not fit any more.
func (t *turn) roomForIDs(n uint64) *rootv1.ErrorDetail {
	skips := uint64(t.regionIDs.Len() + t.pending.Len() + t.removedRegions.Len())
	if MaxID-t.alloc.id.value >= n+skips {
		return nil
	}
	d := refuse(rootv1.Reason_REASON_EXHAUSTED, "no room for %d ids below %d", n, uint64(MaxID))
	d.Limit, d.Fence = MaxID, t.alloc.id.value
	return d
}

// giveID takes an id for a region from the fence itself. Ids that members
// chose for themselves, and those of removed regions, are skipped. roomForIDs
// comes first.
func (t *turn) giveID() RegionID {
	for {
		t.alloc.id.value++
		id := RegionID(t.alloc.id.value)
		if _, taken := t.regionIDs.Get(idKey(id)); taken {
			continue
		}
		if _, removed := t.removedRegions.Get(idKey(id)); removed {
			continue
		}
		if _, reserved := t.pending.Get(id); !reserved {
			return id
		}
	}
}
