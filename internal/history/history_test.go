package history_test

import (
	"slices"
	"testing"

	"github.com/nokv/nokv/internal/history"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	ids = rootv1.Mandate_MANDATE_ALLOC_ID
	tso = rootv1.Mandate_MANDATE_TSO
)

// good is a history of two eras, of c1 and c2, that keeps every promise.
func good() *history.History {
	h := &history.History{RootIDs: []uint64{5}, TsoAhead: 10}
	h.Note(&rootv1.Tenure{Era: 1, HolderId: "c1", HolderIncarnation: 11, Inherited: &rootv1.Frontiers{}})
	h.Note(&rootv1.Tenure{Era: 1, HolderId: "c1", HolderIncarnation: 11, Retired: true})
	h.Note(&rootv1.Tenure{Era: 2, HolderId: "c2", HolderIncarnation: 22, Inherited: &rootv1.Frontiers{AllocId: 9, Tso: 100 << 18}})
	h.Grants = []*history.Grant{
		{Mandate: ids, First: 1, Count: 4, Era: 1, Holder: "c1", Incarnation: 11, Called: 1, Returned: 3},
		{Mandate: tso, First: 100 << 18, Count: 1, Era: 1, Holder: "c1", Incarnation: 11, Called: 2, Returned: 4, Wall: 95},
		{Mandate: ids, First: 6, Count: 1, Era: 1, Holder: "c1", Incarnation: 11, Called: 5, Returned: history.Never},
		{Mandate: ids, First: 10, Count: 2, Era: 2, Holder: "c2", Incarnation: 22, Called: 8, Returned: 9},
		{Mandate: tso, First: 101 << 18, Count: 3, Era: 2, Holder: "c2", Incarnation: 22, Called: 8, Returned: 9, Wall: 101},
	}
	return h
}

func TestGoodHistoryPasses(t *testing.T) {
	if v := good().Check(); len(v) != 0 {
		t.Fatal(v)
	}
}

// Each checker finds what it is named for.
func TestBrokenPromisesAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		promise string
		spoil   func(h *history.History)
	}{
		"era skipped":           {"Primacy", func(h *history.History) { h.Tenures[1].Era = 3 }},
		"other holder":          {"Primacy", func(h *history.History) { h.Grants[3].Holder = "c1" }},
		"other incarnation":     {"Primacy", func(h *history.History) { h.Grants[3].Incarnation = 23 }},
		"era not in the log":    {"Primacy", func(h *history.History) { h.Grants[4].Era = 3 }},
		"at the frontier":       {"Inheritance", func(h *history.History) { h.Grants[3].First = 9 }},
		"above the successor":   {"Inheritance", func(h *history.History) { h.Grants[2].Count = 5 }},
		"timestamp inherited":   {"Inheritance", func(h *history.History) { h.Grants[4].First = 100 << 18 }},
		"late reply":            {"Silence", func(h *history.History) { h.Grants[2].Called = 10 }},
		"id twice":              {"AllocID", func(h *history.History) { h.Grants[2].First = 4 }},
		"id of a region":        {"AllocID", func(h *history.History) { h.Grants[2].First = 5 }},
		"time went back":        {"Tso order", func(h *history.History) { h.Grants[1].Called, h.Grants[1].Returned = 10, 11 }},
		"timestamp twice":       {"Tso order", func(h *history.History) { h.Grants[1].Count = 1<<18 + 1 }},
		"too far in the future": {"Tso order", func(h *history.History) { h.Grants[4].Wall = 90 }},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			c.spoil(h)
			found := h.Check()
			if !slices.ContainsFunc(found, func(v *history.Violation) bool { return v.Promise == c.promise }) {
				t.Errorf("found %v, want %s", found, c.promise)
			}
		})
	}
}

func TestHashTellsHistoriesApart(t *testing.T) {
	a, b := good(), good()
	if a.Hash() != b.Hash() {
		t.Error("equal histories differ")
	}
	b.Grants[0].Returned++
	if a.Hash() == b.Hash() {
		t.Error("different histories are equal")
	}
}

// Eras that nobody knows any more, or yet, are counted and contradict nothing.
func TestPartialLogs(t *testing.T) {
	h := good()
	h.Tenures, h.Forgotten = h.Tenures[1:], 1
	if v, n := h.Check(), h.Unjudged(); len(v) != 0 || n != 3 {
		t.Errorf("the first era forgotten: %v, %d unjudged", v, n)
	}
	h.Grants[2].Count = 5
	if v := h.Check(); len(v) == 0 || v[0].Promise != "Inheritance" {
		t.Errorf("a forgotten era served above what the next one inherited: %v", v)
	}
	h = good()
	h.Tenures = h.Tenures[:1]
	if v := h.Check(); len(v) != 1 || v[0].Promise != "Primacy" {
		t.Errorf("an era that is not in the log: %v", v)
	}
	h.Unfinished = true
	if v, n := h.Check(), h.Unjudged(); len(v) != 0 || n != 2 {
		t.Errorf("the log may go on: %v, %d unjudged", v, n)
	}
	h.Grants[4].Era = 0
	if v := h.Check(); len(v) == 0 || v[0].Promise != "Primacy" {
		t.Errorf("there is no era 0: %v", v)
	}
}
