package history

import (
	"cmp"
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// primacy: eras grow by one in the log and each has one holder, in the log and
// in the replies.
func (h *History) primacy() error {
	for i, t := range h.Tenures {
		if others := h.Forgotten + uint64(i); t.GetEra() != others+1 {
			return fmt.Errorf("era %d follows %d others", t.GetEra(), others)
		}
	}
	for _, g := range h.Grants {
		switch last := h.last(); {
		case g.Era == 0 || g.Era > last && !h.Unfinished:
			return fmt.Errorf("%s served %d by era %d, the log has %d", g.Holder, g.First, g.Era, last)
		case g.Era > last || g.Era <= h.Forgotten:
			continue
		}
		t := h.Tenures[g.Era-1-h.Forgotten]
		if g.Holder != "" && t.GetHolderId() != g.Holder || g.Incarnation != 0 && t.GetHolderIncarnation() != g.Incarnation {
			return fmt.Errorf("%s (%x) served %d by era %d, which is %s's (%x)", g.Holder, g.Incarnation, g.First, g.Era, t.GetHolderId(), t.GetHolderIncarnation())
		}
	}
	return nil
}

// inheritance: max served in e <= what e+1 inherits < first served in e+1.
func (h *History) inheritance(m rootv1.Mandate) error {
	inherited := make(map[uint64]uint64)
	for _, t := range h.Tenures {
		if inherited[t.GetEra()] = t.GetInherited().GetAllocId(); m == rootv1.Mandate_MANDATE_TSO {
			inherited[t.GetEra()] = t.GetInherited().GetTso()
		}
	}
	for _, g := range h.of(m) {
		if g.First <= inherited[g.Era] {
			return fmt.Errorf("%v: era %d served %d, inherited %d", m, g.Era, g.First, inherited[g.Era])
		}
		if next, ok := inherited[g.Era+1]; ok && g.Last() > next {
			return fmt.Errorf("%v: era %d served %d, its successor inherited %d", m, g.Era, g.Last(), next)
		}
	}
	return nil
}

// silence: no reply of an era to a call that began after a reply of a higher
// one had returned, to anybody and of any kind.
func (h *History) silence() error {
	return sweep(h.Grants, func(g, seen *Grant) error {
		if seen.Era > g.Era {
			return fmt.Errorf("era %d replied to a call of %v with %d; era %d had returned at %v", g.Era, g.Called, g.First, seen.Era, seen.Returned)
		}
		return nil
	}, func(a, b *Grant) bool { return a.Era > b.Era })
}

// ordered: what returned before a call began is smaller than what the call got.
func (h *History) ordered() error {
	return sweep(h.of(rootv1.Mandate_MANDATE_TSO), func(g, seen *Grant) error {
		if seen.Last() >= g.First {
			return fmt.Errorf("%d of era %d returned at %v; a call of %v got %d of era %d",
				seen.Last(), seen.Era, seen.Returned, g.Called, g.First, g.Era)
		}
		return nil
	}, func(a, b *Grant) bool { return a.Last() > b.Last() })
}

// sweep gives each grant the highest, by above, of those that had returned
// when it was called for.
func sweep(grants []*Grant, check func(g, seen *Grant) error, above func(a, b *Grant) bool) error {
	calls, returns := slices.Clone(grants), slices.Clone(grants)
	slices.SortStableFunc(calls, func(a, b *Grant) int { return cmp.Compare(a.Called, b.Called) })
	slices.SortStableFunc(returns, func(a, b *Grant) int { return cmp.Compare(a.Returned, b.Returned) })
	var seen *Grant
	i := 0
	for _, g := range calls {
		for ; i < len(returns) && returns[i].Returned < g.Called; i++ {
			if seen == nil || above(returns[i], seen) {
				seen = returns[i]
			}
		}
		if seen != nil {
			if err := check(g, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// disjoint: nothing was given out twice; for ids, the root's own included.
func (h *History) disjoint(m rootv1.Mandate) error {
	type run struct{ first, last, era uint64 }
	var runs []run
	for _, g := range h.of(m) {
		runs = append(runs, run{g.First, g.Last(), g.Era})
	}
	if m == rootv1.Mandate_MANDATE_ALLOC_ID {
		for _, id := range h.RootIDs {
			runs = append(runs, run{id, id, 0})
		}
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	for i := 1; i < len(runs); i++ {
		if a, b := runs[i-1], runs[i]; b.first <= a.last {
			return fmt.Errorf("%v: [%d, %d] of era %d and [%d, %d] of era %d overlap", m, a.first, a.last, a.era, b.first, b.last, b.era)
		}
	}
	return nil
}

// tsoCounterBits lie below a timestamp's Unix milliseconds.
const tsoCounterBits = 18

// nearWall: no timestamp is further ahead of true time than the bound.
func (h *History) nearWall() error {
	for _, g := range h.of(rootv1.Mandate_MANDATE_TSO) {
		if h.TsoAhead != 0 && g.Wall != 0 && g.Last()>>tsoCounterBits > g.Wall+h.TsoAhead {
			return fmt.Errorf("%d tells %d ms, %d ms ahead of true time; the bound is %d ms",
				g.Last(), g.Last()>>tsoCounterBits, g.Last()>>tsoCounterBits-g.Wall, h.TsoAhead)
		}
	}
	return nil
}
