package balance

import (
	"cmp"
	"math"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
)

// Field has the members of a keyspace in the order of what they have.
type Field struct {
	k     Policy
	seats []Seat
	index map[state.MemberID]int32
	rules book
	// kinds are members with the same rules, sets those of a kind with the same zone, and setOf
	// says which set that is.
	kinds int32
	sets  []set
	setOf map[set]int32
	// allows is which kinds may take what no rule holds for, and then what each rule holds for;
	// fits says of each kind what it may take, in the same order.
	allows [][]int32
	fits   [][]bool
	// cold ranks those that may get something by what they have, roomy by how much more they
	// can take, or lack: nil where the first of cold is the first there, too.
	cold, roomy *ranking
	// full is how many of 1,000 of the most load that a member can take are as much as it gets now.
	// low is how much one has when it is relieved; nil: it does not matter. below: nobody gets more than that now.
	full  uint64
	low   func(int32) load.Amount
	below bool
	// sum is what those have together that anything may go to, as far as it counts, and whole all of
	// it; capacity is what they can take, counted how many they are, regions how many of the keyspace
	// they have.
	sum, whole load.Amount
	regions    int
	// reached says of each kind that something may go to it.
	reached  []bool
	capacity uint64
	counted  uint64
	// tally is how many members of each set stand how, and tallies how many of each kind, once
	// somebody asks.
	tally, tallies [][standings]int
}

// set is members of one kind in one zone.
type set struct {
	kind int32
	zone string
}

// Seat is a member with what it has, and is about to have.
type Seat struct {
	*Member
	// Low counts where it gives, High where it takes. Count is its regions of the keyspace.
	Low, High load.Amount
	Count     int
	// beyond is what of it does not count in what all have: see Scale.
	beyond   load.Amount
	capacity uint64
	set      int32
	hash     uint64
	// extra is its regions of the keyspace that it has got since the beginning.
	extra int
	// gives and gets are on their way; losing is what gives is, by the lower average.
	gives, gets int
	losing      load.Amount
	// barred: it gets nothing more in this plan. rests says why it gets nothing to even out.
	barred bool
	rests  Why
}

// mostCapacity bounds capacities, so that they can be added.
const mostCapacity = 1 << 32

// NewField orders members. What they have of the keyspace is told by Has, before Open.
func NewField(ks state.KeyspaceID, k Policy, members []Member) *Field {
	k = k.withDefaults()
	f := &Field{k: k, rules: newBook(k.Rules), index: make(map[state.MemberID]int32, len(members)), setOf: map[set]int32{}, full: 1000}
	f.seats = make([]Seat, len(members))
	for i := range members {
		m := &members[i]
		f.seats[i] = Seat{Member: m, capacity: min(max(m.Capacity, 1), mostCapacity), hash: propose.Hash(ks, 0, m.ID), gives: m.Gives, gets: m.Gets}
		if k.By != Count {
			f.seats[i].Low, f.seats[i].High = m.Other.Low, m.Other.High
		}
	}
	slices.SortFunc(f.seats, func(a, b Seat) int { return cmp.Compare(a.ID, b.ID) })
	f.allows = make([][]int32, len(f.rules.rules)+1)
	kinds, alike := map[string]int32{}, true
	for i := range f.seats {
		s := &f.seats[i]
		f.index[s.ID] = int32(i)
		alike = alike && s.capacity == f.seats[0].capacity && (s.Most == 0 || k.By == Count)
		if i > 0 && len(k.Rules) == 0 && k.Spread == "" {
			continue // nothing tells them apart
		}
		at := set{kind: f.kindOf(kinds, s.Labels)}
		if k.Spread != "" {
			at.zone = s.Labels[k.Spread]
		}
		n, known := f.setOf[at]
		if !known {
			n = int32(len(f.sets))
			f.setOf[at], f.sets = n, append(f.sets, at)
		}
		s.set = n
	}
	f.cold = newRanking(f, f.colder)
	if !alike {
		f.roomy = newRanking(f, f.roomier)
	}
	return f
}

// kindOf finds the kind of a member, or makes it.
func (f *Field) kindOf(kinds map[string]int32, labels map[string]string) int32 {
	bits := fits(&f.rules, labels)
	n, known := kinds[bits]
	if known {
		return n
	}
	n = f.kinds
	f.kinds++
	kinds[bits] = n
	may := make([]bool, len(f.allows))
	for i := range may {
		if may[i] = i == 0 || bits[(i-1)/8]&(1<<((i-1)%8)) != 0; may[i] {
			f.allows[i] = append(f.allows[i], n)
		}
	}
	f.fits = append(f.fits, may)
	return n
}

// allowed reports whether a member may take what a rule holds for.
func (f *Field) allowed(rule, i int32) bool { return f.fits[f.sets[f.seats[i].set].kind][rule+1] }

// zone is that of a member; "": it is in none.
func (f *Field) zone(i int32) string { return f.sets[f.seats[i].set].zone }

// fits is which rules labels fit, as a key.
func fits(b *book, labels map[string]string) string {
	bits := make([]byte, (len(b.rules)+7)/8)
	for i := range b.rules {
		if b.rules[i].fits(labels) {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return string(bits)
}

// colder orders members that may take: those whose load is known first, then by load, by
// all of their regions, and by a hash.
func (f *Field) colder(a, b int32) bool {
	x, y := &f.seats[a], &f.seats[b]
	if x.Stale != y.Stale {
		return y.Stale
	}
	c := load.Compare(x.High, x.capacity, y.High, y.capacity)
	return cmp.Or(c, cmp.Compare(x.Regions+x.extra, y.Regions+y.extra), cmp.Compare(x.hash, y.hash), cmp.Compare(a, b)) < 0
}

// roomier orders members by how much more they can take, or lack.
func (f *Field) roomier(a, b int32) bool {
	x, y := f.spare(a, 1000, f.low != nil), f.spare(b, 1000, f.low != nil)
	return x > y || x == y && f.colder(a, b)
}

// roomBy has what members can take now matter alone, or what they have when they are relieved as well.
func (f *Field) roomBy(low func(int32) load.Amount) {
	f.low = low
	if f.roomy != nil {
		f.roomy = newRanking(f, f.roomier)
		for i := range f.seats {
			if n := f.seats[i].set; f.gettable(int32(i)) {
				f.roomy.put(int32(i), n, f.sets[n].kind, true)
			}
		}
	}
}

// room is how much more a member can take now.
func (f *Field) room(i int32) load.Amount { return f.spare(i, f.full, f.below) }

func (f *Field) spare(i int32, permille uint64, below bool) load.Amount {
	room := f.left(i, permille)
	if below {
		room = min(room, f.low(i)-f.seats[i].High)
	}
	return room
}

// left is what is left of so many of 1,000 of what a member can take. Of one whose load is not
// known nobody knows.
func (f *Field) left(i int32, permille uint64) load.Amount {
	switch s := &f.seats[i]; {
	case s.Stale:
		return math.MinInt64
	case s.Most == 0, f.k.By == Count:
		return math.MaxInt64
	default:
		return s.Most.Share(permille, 1000) - s.High
	}
}

// Has tells, before Open, what a member has, or is about to have, of the keyspace, and how much of
// all that it has does not count in what all have together.
func (f *Field) Has(id state.MemberID, w load.Pair, beyond load.Amount, count int) {
	if i, ok := f.index[id]; ok {
		s := &f.seats[i]
		s.Low, s.High, s.Count = s.Low.Plus(w.Low), s.High.Plus(w.High), s.Count+count
		s.beyond = s.beyond.Plus(beyond)
	}
}

// Open counts together, and lets regions go to members. Rules that hold for no region
// are none; nil: any may hold.
func (f *Field) Open(held []bool) {
	f.reached = make([]bool, f.kinds)
	for rule, kinds := range f.allows {
		for _, n := range kinds {
			f.reached[n] = f.reached[n] || held == nil || held[rule]
		}
	}
	for i := range f.seats {
		s := &f.seats[i]
		if !s.Takes {
			continue
		}
		if !s.Stale && f.reached[f.sets[s.set].kind] {
			all := (s.Low + s.High) / 2
			f.sum, f.whole = f.sum.Plus(max(all-s.beyond, 0)), f.whole.Plus(all)
			f.capacity, f.counted = f.capacity+s.capacity, f.counted+1
			f.regions += s.Count
		}
	}
	for i := range f.seats {
		if f.open(int32(i)) {
			f.put(int32(i), true)
		}
	}
}

// put has a member where it belongs among those that may get something, or out of them.
func (f *Field) put(i int32, in bool) {
	n := f.seats[i].set
	f.cold.put(i, n, f.sets[n].kind, in)
	if f.roomy != nil {
		f.roomy.put(i, n, f.sets[n].kind, in)
	}
}

// gettable reports whether a member may get something.
func (f *Field) gettable(i int32) bool { return f.cold.in[i] >= 0 }

// open reports whether a member may get another region.
func (f *Field) open(i int32) bool {
	s := &f.seats[i]
	return s.Takes && !s.barred && (f.k.PerMember == 0 || s.Count < f.k.PerMember)
}

// Bar has a member get nothing more in this plan.
func (f *Field) Bar(i int) { f.bar(int32(i)) }

func (f *Field) bar(i int32) {
	was := f.standing(i)
	f.seats[i].barred = true
	f.stood(i, was)
	f.put(i, false)
}

// most is how many regions may be on their way to a member.
func (f *Field) most(s *Seat) int {
	if s.OneAtATime {
		return 1
	}
	return f.k.InFlight
}

// gets notes that one more region is on its way to a member.
func (f *Field) gets(i int32) {
	f.onWay(i, 1)
	if s := &f.seats[i]; s.gets >= f.most(s) {
		f.bar(i)
	}
}

// onWay notes that so many regions more are on their way to a member.
func (f *Field) onWay(i int32, by int) {
	was := f.standing(i)
	f.seats[i].gets += by
	f.stood(i, was)
}

// rest has a member get nothing to even out in this plan.
func (f *Field) rest(i int32, why Why) {
	was := f.standing(i)
	f.seats[i].rests = why
	f.stood(i, was)
	f.bar(i)
}

// Len is how many members there are, Seat one of them, by id.
func (f *Field) Len() int { return len(f.seats) }

// Seat is a member.
func (f *Field) Seat(i int) *Seat { return &f.seats[i] }

// Fair is what a member would have if all had the same for what they can take, times
// permille/1000.
func (f *Field) Fair(i int, permille uint64) load.Amount {
	return f.fair(int32(i)).Share(permille, 1000)
}

// FairWith is Fair when more has been given to them together.
func (f *Field) FairWith(more load.Amount, i int, permille uint64) load.Amount {
	if f.capacity == 0 {
		return 0
	}
	return f.sum.Plus(more).Share(f.seats[i].capacity, f.capacity).Share(permille, 1000)
}

func (f *Field) fair(i int32) load.Amount {
	if f.capacity == 0 {
		return 0
	}
	return f.sum.Share(f.seats[i].capacity, f.capacity)
}

// Coldest is the member with least of those that can take so much more, or of all, that may
// take a region that begins with a key and has such owners; -1: nobody may. Who is passed is
// passed.
func (f *Field) Coldest(start string, owners []state.Owner, more load.Amount, pass func(*Seat) bool) int {
	own, zones := f.seatsOf(owners)
	rule, skip := f.rules.of(start), func(i int32) bool { return slices.Contains(own, i) || pass != nil && pass(&f.seats[i]) }
	to := f.roomFor(rule, zones, more, skip)
	if to < 0 {
		to = f.coldest(rule, zones, skip)
	}
	return int(to)
}

func (f *Field) seatsOf(owners []state.Owner) (own []int32, zones []string) {
	for _, o := range owners {
		if i, ok := f.index[o.Member]; ok {
			own = append(own, i)
			zones = append(zones, f.zone(i))
		}
	}
	return own, zones
}

func (f *Field) coldest(rule int32, zones []string, skip func(int32) bool) int32 {
	return f.cold.first(f.sets, f.allows[rule+1], zones, skip)
}

// mostFull is how many members without room are passed for the coldest that has some, before
// the one with most room is asked.
const mostFull = 16

// roomFor is the coldest of those that can take so much more; -1: nobody can.
func (f *Field) roomFor(rule int32, zones []string, more load.Amount, skip func(int32) bool) int32 {
	if f.roomy == nil {
		return f.coldest(rule, zones, skip)
	}
	full := 0
	to := f.coldest(rule, zones, func(i int32) bool {
		if skip(i) {
			return true
		}
		if f.room(i) < more {
			full++
			return full <= mostFull
		}
		return false
	})
	if to >= 0 && f.room(to) < more {
		to = f.roomiest(rule, zones, skip)
	}
	if to >= 0 && f.room(to) < more {
		return -1
	}
	return to
}

// roomiest is the one that can take most.
func (f *Field) roomiest(rule int32, zones []string, skip func(int32) bool) int32 {
	return f.roomy.first(f.sets, f.allows[rule+1], zones, skip)
}

// May reports whether a member may take a region that begins with a key and has such
// owners.
func (f *Field) May(i int, start string, owners []state.Owner) bool {
	at := int32(i)
	if !f.gettable(at) || !f.allowed(f.rules.of(start), at) {
		return false
	}
	zone := f.zone(at)
	return !slices.ContainsFunc(owners, func(o state.Owner) bool {
		k, ok := f.index[o.Member]
		return ok && (k == at || zone != "" && f.zone(k) == zone)
	})
}

// Book gives a member something, or takes something away.
func (f *Field) Book(i int, w load.Pair, count int) { f.book(int32(i), w, count) }

func (f *Field) book(i int32, w load.Pair, count int) {
	s, was := &f.seats[i], f.standing(i)
	s.Low, s.High, s.Count = s.Low.Plus(w.Low), s.High.Plus(w.High), s.Count+count
	s.extra += count
	f.stood(i, was)
	f.put(i, f.open(i))
}
