package chaos

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// way is a directed link.
type way [2]string

// both are the links between two places.
func both(a, b string) []way { return []way{{a, b}, {b, a}} }

// clientPlaces are where callers of a run are; with the Go client's.
func (r *run) clientPlaces() []string { return append([]string{callersGo}, loadPlaces...) }

var loadPlaces = []string{"ids-1", "ids-2", "tso-1", "tso-2", "tso-3", "writer-1", "writer-2", "writer-3", "reader-1", "reader-2", "reader-3", "comer-1", "comer-2", "keyspaces", "members"}

// neighbours are the places that a member talks to.
func (r *run) neighbours(m int) []string {
	var all []string
	for other := range members {
		if other != m && (other < roots || m < roots) {
			all = append(all, place(other))
		}
	}
	if m >= roots {
		all = append(all, r.clientPlaces()...)
	}
	return all
}

func into(m int, from []string) (ways []way) {
	for _, o := range from {
		ways = append(ways, way{o, place(m)})
	}
	return ways
}

func outOf(m int, to []string) (ways []way) {
	for _, o := range to {
		ways = append(ways, way{place(m), o})
	}
	return ways
}

// on puts links into a condition. It fired when something went over one of them
// meanwhile and the condition did it harm.
func (r *run) on(c proctest.Condition, victim int, ways []way) *active {
	before := r.harm(ways)
	for _, w := range ways {
		r.c.net.Set(w[0], w[1], c)
	}
	fired := func() error {
		if r.harm(ways) == before {
			return fmt.Errorf("nothing went over %d links", len(ways))
		}
		return nil
	}
	return &active{victims: []int{victim}, seen: fired, end: func() {
		for _, w := range ways {
			r.c.net.Set(w[0], w[1], proctest.Condition{})
		}
	}, fired: fired}
}

func (r *run) harm(ways []way) (n uint64) {
	for _, w := range ways {
		n += r.c.net.Counts(w[0], w[1]).Faults()
	}
	return n
}

func (r *run) cut(victim int, ways ...way) *active {
	return r.on(proctest.Condition{Cut: true}, victim, ways)
}

// otherRoots are the places of the root peers but one.
func otherRoots(m int) (all []string) {
	for i := range roots {
		if i != m {
			all = append(all, rootPlace(i))
		}
	}
	return all
}

// beginLeaderAlone cuts the leader from the other peers, not from coordinators.
func beginLeaderAlone(r *run, _ fault) *active {
	m := r.c.find("leader")
	return r.cut(m, append(into(m, otherRoots(m)), outOf(m, otherRoots(m))...)...)
}

func beginMinority(r *run, _ fault) *active {
	m := r.c.find("follower")
	return r.cut(m, append(into(m, otherRoots(m)), outOf(m, otherRoots(m))...)...)
}

// beginRing lets each peer hear one and be heard by the other.
func beginRing(r *run, _ fault) *active {
	var ways []way
	for i := range roots {
		ways = append(ways, way{rootPlace((i + 1) % roots), rootPlace(i)})
	}
	return r.cut(r.c.find("leader"), ways...)
}

// beginBridge lets two peers reach each other over none but the third.
func beginBridge(r *run, _ fault) *active {
	m := r.c.find("leader")
	return r.cut(m, both(place(m), rootPlace((m+1)%roots))...)
}

// beginIsolate cuts a member from everybody.
func beginIsolate(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.cut(m, append(into(m, r.neighbours(m)), outOf(m, r.neighbours(m))...)...)
}

// beginDeafen lets a member send and hear nothing; beginMute the reverse.
func beginDeafen(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.cut(m, into(m, r.neighbours(m))...)
}

func beginMute(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.cut(m, outOf(m, r.neighbours(m))...)
}

func beginCutFromRoot(r *run, f fault) *active {
	m := r.c.find(f.target)
	all := otherRoots(-1)
	return r.cut(m, append(into(m, all), outOf(m, all)...)...)
}

func beginCutFromClients(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.cut(m, append(into(m, r.clientPlaces()), outOf(m, r.clientPlaces())...)...)
}

// lateness is how late a slow link makes things, by how long it is slow.
func lateness(lasts time.Duration) time.Duration { return min(lasts/4, maxLate) }

// maxLate is beyond a heartbeat and a ttl.
const maxLate = 400 * ms

// beginSlow makes everything late that goes to and from a member.
func beginSlow(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.on(proctest.Condition{Delay: lateness(f.lasts)}, m, append(into(m, r.neighbours(m)), outOf(m, r.neighbours(m))...))
}

// beginUnanswered breaks a member's connections, and has new ones to and from it
// accepted and never answered.
func beginUnanswered(r *run, f fault) *active {
	m := r.c.find(f.target)
	ways := append(into(m, r.neighbours(m)), outOf(m, r.neighbours(m))...)
	broken := r.on(proctest.Condition{Broken: true}, m, ways)
	deaf := r.on(proctest.Condition{Deaf: true}, m, ways)
	return &active{victims: []int{m}, seen: deaf.seen, end: deaf.end, fired: func() error {
		if err := deaf.fired(); err != nil {
			return err
		}
		return broken.fired()
	}}
}

// beginReset breaks a member's connections, old and new ones.
func beginReset(r *run, f fault) *active {
	m := r.c.find(f.target)
	return r.on(proctest.Condition{Broken: true}, m, append(into(m, r.neighbours(m)), outOf(m, r.neighbours(m))...))
}
