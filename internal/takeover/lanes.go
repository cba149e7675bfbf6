package takeover

import (
	"cmp"
	"slices"
	"time"
)

// lane is what a process is at one moment; its value names its colour.
type lane string

const (
	down     lane = "down"
	standby  lane = "standby"
	claiming lane = "claiming"
	begun    lane = "begun"
	serving  lane = "serving"
	leads    lane = "leader"
)

var legends = map[lane]string{
	down: "down or hanging", standby: "standby or follower", claiming: "claim sent or held back",
	begun: "era begun", serving: "serving", leads: "root leader",
}

// span is a time in which a process was the same.
type span struct {
	is       lane
	from, to time.Duration
}

// spans are what a member was, until the picture ends.
func (c *canvas) spans(member string) []span {
	events := slices.Clone(c.r.Events)
	events = slices.DeleteFunc(events, func(e Event) bool { return e.Who != member })
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	out := []span{{is: standby}}
	become := func(is lane, at time.Duration) {
		last := &out[len(out)-1]
		if last.is != is {
			last.to = at
			out = append(out, span{is: is, from: at})
		}
	}
	suspicious := false
	dead := slices.Contains(c.r.Victims, member) && c.r.Action != Restart
	for _, e := range events {
		if dead && e.At > c.r.At {
			become(down, c.r.At)
			dead = false
		}
		switch e.Kind {
		case Suspect:
			suspicious = true
		case Starts, Resumes, Begins:
			suspicious = false
		}
		if is, ok := after(e, out[len(out)-1].is, suspicious); ok {
			become(is, e.At)
		}
	}
	if dead {
		become(down, c.r.At)
	}
	out[len(out)-1].to = max(c.to, out[len(out)-1].from)
	return out
}

// after is what a process becomes by an event; false: what it was. A standby
// that is not suspicious tries the root now and then, and is refused.
func after(e Event, was lane, suspicious bool) (lane, bool) {
	switch e.Kind {
	case Starts, Resumes, Ends:
		return standby, true
	case Stops:
		return down, true
	case Claims:
		return claiming, was == standby
	case Refused:
		return standby, was == claiming && !suspicious
	case Begins:
		return begun, true
	case Serves:
		return serving, true
	case Leads:
		return leads, true
	case LeaderChanged:
		return standby, true
	}
	return "", false
}

// marks are events that are written beside their moment.
var marks = map[Kind]string{
	Suspect: "suspects", Claims: "claims", Refused: "must wait", Begins: "era begins", Serves: "serves", Ends: "ends", Retired: "retired",
	PeerGone: "sees it gone", Leads: "leads", LeaderFound: "", LeaderChanged: "", Starts: "starts", Resumes: "goes on", Stops: "stopped",
	Judges: "verdict",
}

// member is a lane of coloured spans with a mark for each event.
func (c *canvas) member(row int, name string) {
	y := laneY(row)
	label := name
	if slices.Contains(c.r.Victims, name) {
		label += " (victim)"
	}
	c.text(20, y+20, "", label)
	for _, s := range c.spans(name) {
		if s.to <= c.from || s.from >= c.to {
			continue
		}
		c.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="8" class="c-%s"/>`+"\n", c.x(s.from), y+16, max(c.x(s.to)-c.x(s.from), 1), s.is)
	}
	free := 0.0
	for _, e := range c.moments(name) {
		x, words := c.x(e.At), marks[e.Kind]
		if words == "" {
			continue
		}
		c.printf(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="l-fg"/>`+"\n", x, x, y+12, y+26)
		if x >= free { // what has no room has its mark alone
			c.text(x+2, y+11, "small", words)
			free = x + 10 + 6*float64(len(words))
		}
	}
}

// moments are a member's events inside the picture, in order of time.
func (c *canvas) moments(member string) []Event {
	var out []Event
	for _, e := range c.r.Events {
		if e.Who == member && e.At >= c.from && e.At <= c.to {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return out
}
