package tenure_test

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const never = time.Duration(1<<63 - 1)

// operation is a reply that was sent off; returned is never when the caller did
// not get it.
type operation struct {
	request
	era      uint64
	node     string
	returned time.Duration
}

func (o *operation) last() uint64 { return o.first + o.count - 1 }

// history is what a run leaves behind for the checkers.
type history struct {
	ops     []*operation
	rootIDs []uint64
	tenures []*rootv1.Tenure
}

func (h *history) note(t *rootv1.Tenure) {
	if n := len(h.tenures); n == 0 || h.tenures[n-1].Era != t.Era {
		h.tenures = append(h.tenures, t)
	}
}

func (h *history) hash() uint64 {
	f := fnv.New64a()
	for _, o := range h.ops {
		fmt.Fprint(f, o.kind, o.first, o.count, o.era, o.node, o.called, o.returned)
	}
	return f.Sum64()
}

func (h *history) of(kind rootv1.Mandate) []*operation {
	var out []*operation
	for _, o := range h.ops {
		if o.kind == kind {
			out = append(out, o)
		}
	}
	return out
}

// check returns what is wrong with the history, by the name of the promise.
func (h *history) check() map[string]error {
	bad := map[string]error{}
	add := func(name string, err error) {
		if err != nil && bad[name] == nil {
			bad[name] = err
		}
	}
	add("Primacy", h.primacy())
	for _, kind := range []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO} {
		add("Inheritance", h.inheritance(kind))
		add("Silence", h.silence(kind))
	}
	add("AllocID", h.disjoint(rootv1.Mandate_MANDATE_ALLOC_ID))
	add("Tso order", h.disjoint(rootv1.Mandate_MANDATE_TSO))
	add("Tso order", h.ordered())
	return bad
}

// primacy: eras grow by one in the log and each has one holder, in the log and
// in the replies.
func (h *history) primacy() error {
	holder := map[uint64]string{}
	for i, t := range h.tenures {
		if t.Era != uint64(i+1) {
			return fmt.Errorf("era %d follows %d others", t.Era, i)
		}
		holder[t.Era] = t.HolderId
	}
	for _, o := range h.ops {
		if holder[o.era] != o.node {
			return fmt.Errorf("%s served by era %d, which is %s's", o.node, o.era, holder[o.era])
		}
	}
	return nil
}

// inheritance: max served in e <= what e+1 inherits < first served in e+1.
func (h *history) inheritance(kind rootv1.Mandate) error {
	inherited := map[uint64]uint64{}
	for _, t := range h.tenures {
		inherited[t.Era] = t.Inherited.AllocId
		if kind == rootv1.Mandate_MANDATE_TSO {
			inherited[t.Era] = t.Inherited.Tso
		}
	}
	for _, o := range h.of(kind) {
		if o.first <= inherited[o.era] {
			return fmt.Errorf("era %d served %d, inherited %d", o.era, o.first, inherited[o.era])
		}
		if next, ok := inherited[o.era+1]; ok && o.last() > next {
			return fmt.Errorf("era %d served %d, its successor inherited %d", o.era, o.last(), next)
		}
	}
	return nil
}

// silence: no reply of an era whose call began after a reply of a higher one
// had returned.
func (h *history) silence(kind rootv1.Mandate) error {
	return sweep(h.of(kind), func(o, seen *operation) error {
		if seen.era > o.era {
			return fmt.Errorf("era %d replied to a call of %v, era %d had returned at %v", o.era, o.called, seen.era, seen.returned)
		}
		return nil
	}, func(a, b *operation) bool { return a.era > b.era })
}

// ordered: what returned before a call began is smaller than what the call got.
func (h *history) ordered() error {
	return sweep(h.of(rootv1.Mandate_MANDATE_TSO), func(o, seen *operation) error {
		if seen.last() >= o.first {
			return fmt.Errorf("%d of era %d returned at %v; a call of %v got %d of era %d",
				seen.last(), seen.era, seen.returned, o.called, o.first, o.era)
		}
		return nil
	}, func(a, b *operation) bool { return a.last() > b.last() })
}

// sweep gives each operation the highest, by above, of those that had
// returned when it was called.
func sweep(ops []*operation, look func(o, seen *operation) error, above func(a, b *operation) bool) error {
	calls, returns := slices.Clone(ops), slices.Clone(ops)
	slices.SortFunc(calls, func(a, b *operation) int { return int(min(max(a.called-b.called, -1), 1)) })
	slices.SortFunc(returns, func(a, b *operation) int {
		switch {
		case a.returned < b.returned:
			return -1
		case a.returned > b.returned:
			return 1
		}
		return 0
	})
	var seen *operation
	i := 0
	for _, o := range calls {
		for ; i < len(returns) && returns[i].returned < o.called; i++ {
			if seen == nil || above(returns[i], seen) {
				seen = returns[i]
			}
		}
		if seen != nil {
			if err := look(o, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// disjoint: nothing was given out twice; for ids, the root's own included.
func (h *history) disjoint(kind rootv1.Mandate) error {
	type run struct{ first, last, era uint64 }
	var runs []run
	for _, o := range h.of(kind) {
		runs = append(runs, run{o.first, o.last(), o.era})
	}
	if kind == rootv1.Mandate_MANDATE_ALLOC_ID {
		for _, id := range h.rootIDs {
			runs = append(runs, run{id, id, 0})
		}
	}
	slices.SortFunc(runs, func(a, b run) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		}
		return 0
	})
	for i := 1; i < len(runs); i++ {
		if runs[i].first <= runs[i-1].last {
			return fmt.Errorf("[%d, %d] of era %d and [%d, %d] of era %d overlap", runs[i-1].first, runs[i-1].last,
				runs[i-1].era, runs[i].first, runs[i].last, runs[i].era)
		}
	}
	return nil
}
