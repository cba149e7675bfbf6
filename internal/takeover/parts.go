package takeover

import (
	"slices"
	"time"
)

// What a gap is made of, in the order in which it happens.
const (
	// partBefore: between the last reply and the kill.
	partBefore = "before"
	// partDrain: the old holder lets requests in flight finish. partRetire: it
	// tells the root its exact frontiers.
	partDrain  = "drain"
	partRetire = "retire"
	// partDeath: until the killed process is gone, or found to be.
	partDeath = "death"
	// partDetection: until the first process that is left knows.
	partDetection = "detection"
	// partElection: until another root peer leads.
	partElection = "election"
	// partReach: until the holder has been answered by the new leader.
	partReach = "reach"
	// partWait: until the claim is sent that is granted: the root holds claims
	// back until the old era's confirmation has run out.
	partWait = "wait"
	// partCommit: that claim, until its answer.
	partCommit = "commit"
	// partConfirm: the first confirmation and the first windows of the new era.
	partConfirm = "confirm"
	// partClient: until the client has its reply.
	partClient = "client"
)

// PartNames are the names of parts in the order in which they happen.
var PartNames = []string{
	partBefore, partDrain, partRetire, partDeath, partDetection, partElection, partReach, partWait, partCommit, partConfirm, partClient,
}

// Part is one part of a gap.
type Part struct {
	Name     string
	From, To time.Duration
}

// Length of the part.
func (p Part) Length() time.Duration { return p.To - p.From }

// milestone ends a part.
type milestone struct {
	part string
	at   time.Duration
	seen bool
}

// Parts cuts a gap at what happened in it. A part that was over before the gap
// began has no length. An event that is missing leaves its part out; the time
// counts to the next one.
func (r *Round) Parts(g Gap) []Part {
	var parts []Part
	at := g.From
	cut := func(name string, to time.Duration) {
		to = min(max(to, at), g.To)
		parts = append(parts, Part{name, at, to})
		at = to
	}
	cut(partBefore, r.At)
	for _, m := range r.milestones() {
		if m.seen {
			cut(m.part, m.at)
		}
	}
	cut(partClient, g.To)
	return parts
}

func (r *Round) milestones() []milestone {
	find := func(part string, match func(e Event) bool) milestone {
		e, ok := r.first(match)
		return milestone{part, e.At, ok}
	}
	isVictim := func(e Event) bool { return slices.Contains(r.Victims, e.Who) }
	kind := func(k Kind, victim bool) func(Event) bool {
		return func(e Event) bool { return e.Kind == k && isVictim(e) == victim }
	}
	leads := find(partElection, kind(Leads, false))
	switch {
	case r.Victim == Leader && r.Action == Restart:
		return []milestone{leads, find(partReach, r.reached(leads))}
	case r.Victim == Leader:
		return append(r.death(find(partDetection, kind(PeerGone, false))), leads, find(partReach, r.reached(leads)))
	}
	all := r.death(find(partDetection, kind(Suspect, false)))
	if r.Action == Restart {
		all = []milestone{find(partDrain, kind(Ends, true)), find(partRetire, kind(Retired, true))}
	}
	if r.Victim == Both {
		all = append(r.death(find(partDetection, kind(PeerGone, false))), leads)
	}
	begins, ok := r.first(func(e Event) bool { return e.Kind == Begins })
	if !ok {
		return all
	}
	claim, claimed := r.lastClaim(begins)
	waiting := partWait
	if r.Action == Restart { // nothing holds a claim back after a retirement: only news of it
		waiting = partDetection
	}
	return append(all, milestone{waiting, claim.At, claimed}, milestone{partCommit, begins.At, true},
		find(partConfirm, func(e Event) bool { return e.Kind == Serves && e.Number == begins.Number }))
}

// death puts the end of the killed processes before its detection.
func (r *Round) death(detection milestone) []milestone {
	gone := milestone{partDeath, r.Gone, r.Gone != 0}
	if detection.seen {
		gone.at = min(gone.at, detection.at)
	}
	return []milestone{gone, detection}
}

// reached matches the first answer that a coordinator had from the new leader.
func (r *Round) reached(leads milestone) func(Event) bool {
	return func(e Event) bool { return e.Kind == LeaderFound && leads.seen && e.At >= leads.at }
}

// first is the earliest event after the kill that matches.
func (r *Round) first(match func(Event) bool) (found Event, ok bool) {
	for _, e := range r.Events {
		if e.At >= r.At && e.At <= r.Until && match(e) && (!ok || e.At < found.At) {
			found, ok = e, true
		}
	}
	return found, ok
}

// lastClaim is the claim that was granted: the last one of the winner.
func (r *Round) lastClaim(begins Event) (found Event, ok bool) {
	for _, e := range r.Events {
		if e.Kind == Claims && e.Who == begins.Who && e.Number == begins.Number && e.At <= begins.At && (!ok || e.At > found.At) {
			found, ok = e, true
		}
	}
	return found, ok
}
