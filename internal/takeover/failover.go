package takeover

import (
	"fmt"
	"time"
)

// Failover is a Round in which a member that hosts regions was a victim: others get
// them. Members of the Round are processes, the victim one of them.
type Failover struct {
	Round
	Regions int
	// Rooted is when the verdict was, Granted when the last region was given to another
	// member, Told when the last of those served what it was given, and Learned when the
	// last caller knew. Each as whoever watches was told.
	Rooted, Granted, Told, Learned time.Duration
	// Lanes are drawn above those of the processes.
	Lanes []Ticks
}

// Ticks are moments of one kind. Those of one colour are of one kind of lane.
type Ticks struct {
	Name   string
	Colour int
	At     []time.Duration
}

// Done is when everybody had what there was to be had.
func (f *Failover) Done() time.Duration { return max(f.Granted, f.Told, f.Learned) }

// What a failover is made of beside partDeath, in the order in which it happens.
const (
	// partVerdict: until a coordinator is sure. partRooted: until the root has it.
	partVerdict = "verdict"
	partRooted  = "rooted"
	// partGrants: until the last region is another member's. partTold: until the last
	// of them serves. partLearned: until the last caller knows.
	partGrants  = "grants"
	partTold    = "told"
	partLearned = "learned"
)

// FailoverParts are the names of the parts of a Failover in order.
var FailoverParts = []string{partDeath, partVerdict, partRooted, partGrants, partTold, partLearned}

// Parts cuts the time from the action until Done at what happened in it. The parts add up
// to it; what was over before the part before it was has no length.
func (f *Failover) Parts() []Part {
	judged, seen := f.first(func(e Event) bool { return e.Kind == Judges })
	gone := f.Gone
	if seen { // whoever waits for the process may be told of its end later
		gone = min(gone, judged.At)
	}
	var parts []Part
	at := f.At
	for i, to := range []time.Duration{gone, judged.At, f.Rooted, f.Granted, f.Told, f.Learned} {
		to = min(max(to, at), f.Done())
		parts = append(parts, Part{FailoverParts[i], at, to})
		at = to
	}
	return parts
}

// Draw draws the failover on a time line: an SVG file.
func (f *Failover) Draw() []byte {
	c := newCanvas(&f.Round, Gap{From: f.At, To: f.Done()})
	c.begin(len(f.Lanes), "a failover of a member", fmt.Sprintf("%s: %d regions served elsewhere, and callers know, after %s ms", f.what(), f.Regions, millis(f.Done()-f.At)))
	c.bar("until all is done", f.Parts())
	for i, lane := range f.Lanes {
		c.text(20, laneY(i)+20, "", lane.Name)
		last := -1.0
		for _, at := range lane.At {
			if x := c.x(at); at >= c.from && at <= c.to && x-last >= 0.8 {
				c.tick(x, laneY(i), lane.Colour)
				last = x
			}
		}
	}
	return c.end(len(f.Lanes), "Each tick of the root is an entry, of a member a region that it serves, of a caller a region that it learns of.")
}
