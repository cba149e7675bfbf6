// Package history judges what a cluster gave out: ids, timestamps and eras, as
// its callers saw them, against what the root committed.
//
// It owns the checkers of the promises about authority, each by the promise's
// name, and the format of a recorded history. It promises: (1) a history that
// keeps every promise passes, whatever was lost on the way; (2) what an error
// says (values, eras, times) is enough to find the two replies that contradict
// each other; (3) checking costs the time of a few sorts; (4) what a Writer
// flushed Read returns, and a file with anything else in it is refused by its
// line. It is used by simulations, by tests of real processes and by the audit
// of recorded histories, on histories whose times come from one clock.
package history

import (
	"fmt"
	"hash/fnv"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Never is when a reply was received that nobody received.
const Never = time.Duration(1<<63 - 1)

// Grant is a reply that gave out the values [First, First+Count).
type Grant struct {
	Mandate      rootv1.Mandate
	First, Count uint64
	Era          uint64
	// Holder and Incarnation are the process that replied. "" and 0: not known.
	Holder      string
	Incarnation uint64
	// Called is when the caller sent its request, Returned when it had the
	// reply: Never when it did not. Both by one clock for all callers.
	Called, Returned time.Duration
	// Wall is true Unix milliseconds when the reply was sent. 0: not known.
	Wall uint64
}

// Last is the highest value given out.
func (g *Grant) Last() uint64 { return g.First + g.Count - 1 }

// History is what a run left behind.
type History struct {
	Grants []*Grant
	// RootIDs are the ids that the root itself gave out, to regions.
	RootIDs []uint64
	// Tenures are the Tenures of the log, one an era, in order.
	Tenures []*rootv1.Tenure
	// Forgotten is how many eras came before the first of Tenures: what they gave
	// out is judged only against each other and against what came after.
	Forgotten uint64
	// Unfinished says that the log may go on behind the last of Tenures: values of
	// higher eras are no contradiction.
	Unfinished bool
	// TsoAhead is how far timestamps may be ahead of Grant.Wall, in
	// milliseconds. 0: not checked.
	TsoAhead uint64
}

// Note adds a Tenure unless it is a newer record of the last era.
func (h *History) Note(t *rootv1.Tenure) {
	if n := len(h.Tenures); n == 0 || h.Tenures[n-1].GetEra() != t.GetEra() {
		h.Tenures = append(h.Tenures, t)
	}
}

// Unjudged counts the Grants of eras that are not among Tenures, and are not
// known to be wrong: whose they were, and what they inherited, nobody knows.
func (h *History) Unjudged() int {
	n := 0
	for _, g := range h.Grants {
		if g.Era != 0 && (g.Era <= h.Forgotten || h.Unfinished && g.Era > h.last()) {
			n++
		}
	}
	return n
}

// last is the highest era that is known.
func (h *History) last() uint64 { return h.Forgotten + uint64(len(h.Tenures)) }

// Hash tells two histories apart.
func (h *History) Hash() uint64 {
	f := fnv.New64a()
	for _, g := range h.Grants {
		fmt.Fprintln(f, g.Mandate, g.First, g.Count, g.Era, g.Holder, g.Incarnation, g.Called, g.Returned)
	}
	fmt.Fprintln(f, h.RootIDs, len(h.Tenures))
	return f.Sum64()
}

// Violation is a broken promise.
type Violation struct {
	// Promise is its name: Primacy, Inheritance, Silence, AllocID, Tso order.
	Promise string
	Err     error
}

// Error implements error.
func (v *Violation) Error() string { return v.Promise + ": " + v.Err.Error() }

// Unwrap returns what is wrong.
func (v *Violation) Unwrap() error { return v.Err }

// Check returns the first violation of each promise, in a fixed order.
func (h *History) Check() []*Violation {
	const ids, tso = rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO
	var found []*Violation
	check := func(promise string, errs ...error) {
		for _, err := range errs {
			if err != nil {
				found = append(found, &Violation{promise, err})
				return
			}
		}
	}
	check("Primacy", h.primacy())
	check("Inheritance", h.inheritance(ids), h.inheritance(tso))
	check("Silence", h.silence())
	check("AllocID", h.disjoint(ids))
	check("Tso order", h.disjoint(tso), h.ordered(), h.nearWall())
	return found
}

func (h *History) of(m rootv1.Mandate) []*Grant {
	var out []*Grant
	for _, g := range h.Grants {
		if g.Mandate == m {
			out = append(out, g)
		}
	}
	return out
}
