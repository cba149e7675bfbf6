package balance

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
)

// Field has the members of a keyspace in the order of what they have: a heap for each
// set of them that no rule tells apart.
type Field struct {
	k     Policy
	seats []Seat
	index map[state.MemberID]int32
	rules book
	sets  []set
	// allows is which sets may take what no rule holds for, and then what each rule holds for.
	allows [][]int32
	// sum is what those have together that anything may go to, capacity what they can
	// take, counted how many they are, regions how many of the keyspace they have.
	sum      load.Amount
	regions  int
	capacity uint64
	counted  uint64
	at       []int32
	// tally is how many members of each set stand how, once somebody asks.
	tally [][standings]int
}

// set is members with the same rules and the same zone.
type set struct {
	zone string
	cold *heap
}

// Seat is a member with what it has, and is about to have.
type Seat struct {
	*Member
	// Low counts where it gives, High where it takes. Count is its regions of the keyspace.
	Low, High load.Amount
	Count     int
	capacity  uint64
	set       int32
	hash      uint64
	// extra is its regions of the keyspace that it has got since the beginning.
	extra int
	// gives and gets are on their way; losing is what gives is, by the lower average.
	gives, gets int
	losing      load.Amount
	// barred: it gets nothing more in this plan.
	barred bool
}

// mostCapacity bounds capacities, so that they can be added.
const mostCapacity = 1 << 32

// NewField orders members. What they have of the keyspace is told by Has, before Open.
func NewField(ks state.KeyspaceID, k Policy, members []Member) *Field {
	k = k.withDefaults()
	f := &Field{k: k, rules: newBook(k.Rules), index: make(map[state.MemberID]int32, len(members)), at: make([]int32, len(members))}
	f.seats = make([]Seat, len(members))
	for i := range members {
		m := &members[i]
		f.seats[i] = Seat{Member: m, capacity: min(max(m.Capacity, 1), mostCapacity), hash: propose.Hash(ks, 0, m.ID), gives: m.Gives, gets: m.Gets}
		if k.By != Count {
			f.seats[i].Low, f.seats[i].High = m.Other.Low, m.Other.High
		}
	}
	slices.SortFunc(f.seats, func(a, b Seat) int { return cmp.Compare(a.ID, b.ID) })
	sets := map[string]int32{}
	for i := range f.seats {
		f.index[f.seats[i].ID], f.at[i] = int32(i), -1
		f.seats[i].set = f.setOf(sets, &f.seats[i])
	}
	f.allow(sets)
	return f
}

// setOf finds the set of a member, or makes it.
func (f *Field) setOf(sets map[string]int32, m *Seat) int32 {
	zone := m.Labels[f.k.Spread]
	if f.k.Spread == "" {
		zone = ""
	}
	key := fits(&f.rules, m.Labels) + zone
	n, ok := sets[key]
	if !ok {
		n = int32(len(f.sets))
		sets[key] = n
		f.sets = append(f.sets, set{zone: zone, cold: newHeap(f.at, f.colder)})
	}
	return n
}

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

func (f *Field) allow(sets map[string]int32) {
	f.allows = make([][]int32, len(f.rules.rules)+1)
	for key, n := range sets {
		f.allows[0] = append(f.allows[0], n)
		for i := range f.rules.rules {
			if key[i/8]&(1<<(i%8)) != 0 {
				f.allows[i+1] = append(f.allows[i+1], n)
			}
		}
	}
	for i := range f.allows {
		slices.Sort(f.allows[i])
	}
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

// Has tells, before Open, what a member has, or is about to have, of the keyspace.
func (f *Field) Has(id state.MemberID, w load.Pair, count int) {
	if i, ok := f.index[id]; ok {
		s := &f.seats[i]
		s.Low, s.High, s.Count = s.Low.Plus(w.Low), s.High.Plus(w.High), s.Count+count
	}
}

// Open counts together, and lets regions go to members. Rules that hold for no region
// are none; nil: any may hold.
func (f *Field) Open(held []bool) {
	reached := make([]bool, len(f.sets))
	for rule, sets := range f.allows {
		for _, n := range sets {
			reached[n] = reached[n] || held == nil || held[rule]
		}
	}
	for i := range f.seats {
		s := &f.seats[i]
		if !s.Takes {
			continue
		}
		if !s.Stale && reached[s.set] {
			f.sum, f.capacity, f.counted = f.sum.Plus((s.Low+s.High)/2), f.capacity+s.capacity, f.counted+1
			f.regions += s.Count
		}
		if f.open(int32(i)) {
			f.sets[s.set].cold.push(int32(i))
		}
	}
}

// open reports whether a member may get another region.
func (f *Field) open(i int32) bool {
	s := &f.seats[i]
	return s.Takes && !s.barred && (f.k.PerMember == 0 || s.Count < f.k.PerMember)
}

// Bar has a member get nothing more in this plan.
func (f *Field) Bar(i int) { f.bar(int32(i)) }

func (f *Field) bar(i int32) {
	f.seats[i].barred = true
	f.sets[f.seats[i].set].cold.remove(i)
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
	s := &f.seats[i]
	if s.gets++; s.gets >= f.most(s) {
		f.bar(i)
	}
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

// Coldest is the member with least that may take a region that begins with a key and has
// such owners; -1: nobody may. Who is passed is passed.
func (f *Field) Coldest(start string, owners []state.Owner, pass func(*Seat) bool) int {
	own, zones := f.seatsOf(owners)
	return int(f.coldest(f.rules.of(start), zones, func(i int32) bool { return slices.Contains(own, i) || pass != nil && pass(&f.seats[i]) }))
}

func (f *Field) seatsOf(owners []state.Owner) (own []int32, zones []string) {
	for _, o := range owners {
		if i, ok := f.index[o.Member]; ok {
			own = append(own, i)
			zones = append(zones, f.sets[f.seats[i].set].zone)
		}
	}
	return own, zones
}

func (f *Field) coldest(rule int32, zones []string, skip func(int32) bool) int32 {
	best := int32(-1)
	var buffer [8]int32
	for _, n := range f.allows[rule+1] {
		s := &f.sets[n]
		if s.zone != "" && slices.Contains(zones, s.zone) {
			continue
		}
		passed := buffer[:0]
		for {
			x := s.cold.top()
			if x < 0 || best >= 0 && f.colder(best, x) {
				break
			}
			if !skip(x) {
				best = x
				break
			}
			passed = append(passed, x)
			s.cold.remove(x)
		}
		for _, x := range passed {
			s.cold.push(x)
		}
	}
	return best
}

// May reports whether a member may take a region that begins with a key and has such
// owners.
func (f *Field) May(i int, start string, owners []state.Owner) bool {
	s := &f.seats[i]
	if f.at[i] < 0 || !slices.Contains(f.allows[f.rules.of(start)+1], s.set) {
		return false
	}
	return !slices.ContainsFunc(owners, func(o state.Owner) bool {
		k, ok := f.index[o.Member]
		return ok && (int(k) == i || f.sets[s.set].zone != "" && f.sets[f.seats[k].set].zone == f.sets[s.set].zone)
	})
}

// Book gives a member something, or takes something away.
func (f *Field) Book(i int, w load.Pair, count int) { f.book(int32(i), w, count) }

func (f *Field) book(i int32, w load.Pair, count int) {
	s, was := &f.seats[i], f.standing(i)
	s.Low, s.High, s.Count = s.Low.Plus(w.Low), s.High.Plus(w.High), s.Count+count
	s.extra += count
	if f.tally != nil {
		f.tally[s.set][was]--
		f.tally[s.set][f.standing(i)]++
	}
	switch cold := f.sets[s.set].cold; {
	case !f.open(i):
		cold.remove(i)
	case f.at[i] < 0:
		cold.push(i)
	default:
		cold.fix(i)
	}
}
