package balance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
)

// nobody is the seat of who gives what nobody has too much of.
const nobody int32 = -1

// lacking is a region, or the first of so many, that is not put right: of from, or nobody.
type lacking struct {
	region, from int32
	why          Why
	regions      int
}

func (r *rounds) lack(region, from int32, why Why, regions int) {
	r.lacks = append(r.lacks, lacking{region, from, why, regions})
}

// standing is what a member is for what may go to it.
type standing uint8

const (
	away standing = iota
	open
	unheard
	crowded
	full
	settling
	recovering
	standings
)

func (f *Field) standing(at int32) standing {
	switch s := &f.seats[at]; {
	case !s.Takes:
		return away
	case f.k.PerMember > 0 && s.Count >= f.k.PerMember:
		return full
	case s.gets >= f.most(s):
		return crowded
	case s.Stale:
		return unheard
	case s.rests == Joined:
		return settling
	case s.rests == Recovered:
		return recovering
	case s.barred: // it has had what it may have
		return full
	}
	return open
}

// explain refuses what is not put right: each member, reason and rule once.
func (r *rounds) explain() {
	if len(r.lacks) == 0 {
		return
	}
	type kind struct {
		from, rule int32
		why        Why
	}
	refusals := map[kind]int{}
	for _, l := range r.lacks {
		if l.why == NoMember {
			l.why = r.untaken(l.region, l.from)
		}
		k := kind{l.from, free, l.why}
		if l.why == NoneMatches {
			k.rule = r.rule[l.region]
		}
		if i, known := refusals[k]; known {
			r.out.Refusals[i].Regions += l.regions
			continue
		}
		f := Refusal{Region: r.regions[l.region].ID, Regions: l.regions, Why: l.why}
		if l.from != nobody {
			f.Member = r.f.seats[l.from].ID
		}
		if k.rule != free {
			f.Wants = r.f.rules.rules[k.rule].wants()
		}
		if len(r.out.Refusals) < mostRefusals {
			refusals[k] = len(r.out.Refusals)
			r.refuse(f)
		}
	}
}

// untaken is why nobody gets a region that from gives.
func (r *rounds) untaken(region, from int32) Why {
	own := r.owners(region)
	var zones []string
	for _, at := range own {
		if at != from { // who gives it makes room in its zone
			zones = append(zones, r.f.zone(at))
		}
	}
	return r.f.untaken(r.rule[region], own, zones)
}

// Untaken is why Coldest finds nobody.
func (f *Field) Untaken(start string, owners []state.Owner) Why {
	own, zones := f.seatsOf(owners)
	return f.untaken(f.rules.of(start), own, zones)
}

func (f *Field) untaken(rule int32, own []int32, zones []string) Why {
	if f.tally == nil {
		f.tally, f.tallies = make([][standings]int, len(f.sets)), make([][standings]int, f.kinds)
		for at := range f.seats {
			f.count(int32(at), f.standing(int32(at)), 1)
		}
	}
	var anybody, match [standings]int
	for i := range f.tallies {
		add(&anybody, &f.tallies[i], 1)
	}
	for _, kind := range f.allows[rule+1] {
		add(&match, &f.tallies[kind], 1)
	}
	other := match
	for i, zone := range zones { // nobody else in these
		if zone == "" || slices.Contains(zones[:i], zone) {
			continue
		}
		for _, kind := range f.allows[rule+1] {
			if n, there := f.setOf[set{kind, zone}]; there {
				add(&other, &f.tally[n], -1)
			}
		}
	}
	for _, at := range own {
		if zone := f.zone(at); f.allowed(rule, at) && (zone == "" || !slices.Contains(zones, zone)) {
			other[f.standing(at)]--
		}
	}
	switch {
	case taking(&anybody) == 0:
		return NoMember
	case taking(&match) == 0:
		return NoneMatches
	case taking(&other) == 0:
		return NoOther
	case other[crowded] > 0:
		return TooManyMoves
	case other[open] > 0:
		return NoRoom
	case other[unheard] > 0:
		return LoadUnknown
	case other[recovering] > 0:
		return Recovered
	case other[settling] > 0:
		return Joined
	}
	return MembersFull
}

// count counts a member as standing so, or not any more.
func (f *Field) count(at int32, how standing, by int) {
	n := f.seats[at].set
	f.tally[n][how] += by
	f.tallies[f.sets[n].kind][how] += by
}

// stood goes on from how a member stood.
func (f *Field) stood(at int32, was standing) {
	if now := f.standing(at); f.tally != nil && now != was {
		f.count(at, was, -1)
		f.count(at, now, 1)
	}
}

// add adds up, by times.
func add(sum, more *[standings]int, by int) {
	for i, n := range more {
		sum[i] += by * n
	}
}

// taking is how many there are but for those that take nothing at all.
func taking(n *[standings]int) (sum int) {
	for _, more := range n[away+1:] {
		sum += more
	}
	return sum
}

// wants is the rule as text.
func (r *ruled) wants() string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		all = append(all, k+"="+r.Labels[k])
	}
	if r.Prefix == "" {
		return strings.Join(all, ",")
	}
	return fmt.Sprintf("%s for keys that begin with %q", strings.Join(all, ","), r.Prefix)
}

// busy reports whether a member gives nothing to even out because of what is on its way.
func (r *rounds) busy(at int32) bool {
	s := &r.f.seats[at]
	return s.Takes && !s.Stale && !r.split[at] && (s.gets > 0 || s.gives >= r.k.InFlight)
}

// heldBack is the hottest member that has too much and is busy; -1: there is none.
func (r *rounds) heldBack(over func(int32) bool) int32 {
	hottest := nobody
	for i := range r.f.seats {
		if at := int32(i); r.busy(at) && over(at) && (hottest == nobody || r.hotter(at, hottest)) {
			hottest = at
		}
	}
	return hottest
}

// crowded are the kinds of members that have less than their part, and get nothing because as
// much as may be is on its way to them.
func (r *rounds) crowded() (kinds map[int32]bool) {
	kinds = map[int32]bool{}
	for i := range r.f.seats {
		if s := &r.f.seats[i]; r.f.standing(int32(i)) == crowded && !s.Stale && s.High < r.f.fair(int32(i)) {
			kinds[r.f.sets[s.set].kind] = true
		}
	}
	return kinds
}

// awaits reports whether one of these could take a region of a member.
func (r *rounds) awaits(at int32, kinds map[int32]bool) bool {
	return slices.ContainsFunc(r.rulesOf(at), func(rule int32) bool {
		for kind := range kinds {
			if r.f.fits[kind][rule+1] {
				return true
			}
		}
		return false
	})
}

// telling are reasons why nothing leaves a member, the most telling last: what time or other
// moves may change, or room that is lacking.
var telling = []Why{NoGain, NoMember, NoneMatches, NoOther, Joined, Recovered, LoadUnknown, MembersFull, NoRoom, TooManyMoves}

// blame notes why a region does not leave a member.
func (r *rounds) blame(why Why) {
	if slices.Index(telling, why) > slices.Index(telling, r.cause) {
		r.cause = why
	}
}
