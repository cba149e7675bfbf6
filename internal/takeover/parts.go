package takeover

import (
	"slices"
	"time"
)

// What a gap is made of, in the order in which it happens.
const (
	// PartBefore: between the last reply and the kill.
	PartBefore = "before"
	// PartDrain: the old holder lets requests in flight finish. PartRetire: it
	// tells the root its exact frontiers.
	PartDrain  = "drain"
	PartRetire = "retire"
	// PartDeath: until the killed process is gone, or found to be.
	PartDeath = "death"
	// PartDetection: until the first process that is left knows.
	PartDetection = "detection"
	// PartElection: until another root peer leads.
	PartElection = "election"
	// PartReach: until the holder has been answered by the new leader.
	PartReach = "reach"
	// PartWait: until the claim is sent that is granted: the root holds claims
	// back until the old era's confirmation has run out.
	PartWait = "wait"
	// PartCommit: that claim, until its answer.
	PartCommit = "commit"
	// PartConfirm: the first confirmation and the first windows of the new era.
	PartConfirm = "confirm"
	// PartClient: until the client has its reply.
	PartClient = "client"
)

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
	cut(PartBefore, r.At)
	for _, m := range r.milestones() {
		if m.seen {
			cut(m.part, m.at)
		}
	}
	cut(PartClient, g.To)
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
	leads := find(PartElection, kind(Leads, false))
	switch {
	case r.Victim == Leader && r.Action == Restart:
		return []milestone{leads, find(PartReach, r.reached(leads))}
	case r.Victim == Leader:
		return append(r.death(find(PartDetection, kind(PeerGone, false))), leads, find(PartReach, r.reached(leads)))
	}
	all := r.death(find(PartDetection, kind(Suspect, false)))
	if r.Action == Restart {
		all = []milestone{find(PartDrain, kind(Ends, true)), find(PartRetire, kind(Retired, true))}
	}
	if r.Victim == Both {
		all = append(r.death(find(PartDetection, kind(PeerGone, false))), leads)
	}
	begins, ok := r.first(func(e Event) bool { return e.Kind == Begins })
	if !ok {
		return all
	}
	claim, claimed := r.lastClaim(begins)
	waiting := PartWait
	if r.Action == Restart { // nothing holds a claim back after a retirement: only news of it
		waiting = PartDetection
	}
	return append(all, milestone{waiting, claim.At, claimed}, milestone{PartCommit, begins.At, true},
		find(PartConfirm, func(e Event) bool { return e.Kind == Serves && e.Number == begins.Number }))
}

// death puts the end of the killed processes before its detection.
func (r *Round) death(detection milestone) []milestone {
	gone := milestone{PartDeath, r.Gone, r.Gone != 0}
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
