package assigner

import (
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
)

// gathering are steps that wait for others of their kind, while more moves are under way
// than a call has room for. Those get ready and are let go of a few at a time; an entry
// for each few would be one that everybody else waits for.
type gathering [3]struct {
	operations []placement.Operation
	// since is when the first of them came.
	since clock.Instant
}

// kindOf is where an operation gathers: grants, with which moves end, fill entries of
// their own.
func kindOf(o *placement.Operation) int {
	switch o.Kind {
	case placement.Complete:
		return 0
	case placement.Ready:
		return 1
	default:
		return 2
	}
}

// step has steps of moves carried out, soon.
func (a *Raw) step(operations []placement.Operation, now clock.Instant) {
	if !a.crowded() {
		a.orderSteps(operations)
		return
	}
	for i := range operations {
		g := &a.gathered[kindOf(&operations[i])]
		if len(g.operations) == 0 {
			g.since = now
		}
		if g.operations = append(g.operations, operations[i]); len(g.operations) == placement.MaxGrants {
			a.orderSteps(g.operations)
			g.operations = nil
		}
	}
}

func (a *Raw) crowded() bool { return a.work.Moves().Len() > placement.MaxGrants }

// release has steps carried out that have waited long enough, and says when it is due
// again.
func (a *Raw) release(now clock.Instant) clock.Instant {
	due := never
	for i := range a.gathered {
		g := &a.gathered[i]
		switch {
		case len(g.operations) == 0:
		case !a.crowded() || g.since.Add(gatherTime) <= now:
			a.orderSteps(g.operations)
			g.operations = nil
		default:
			due = min(due, g.since.Add(gatherTime))
		}
	}
	return due
}
