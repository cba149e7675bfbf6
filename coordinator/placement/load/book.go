package load

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// Book is what is known of loads. It is for one goroutine.
type Book struct {
	regions map[state.RegionID]*region
	// members by incarnation: no two lives have the same.
	members map[uint64]*member
	room    int
	count   Counters
}

// Counters are what a Book has counted.
type Counters struct {
	// BadLoads were no loads. Unbooked regions have found no room.
	BadLoads, Unbooked uint64
}

// region is what is known of one. Its value is the sum of its present parts.
type region struct {
	avg   average
	value Amount
	// at is when avg was so, moved when its owners changed last.
	at, moved clock.Instant
	known     bool
	parts     []part
}

// part is what one owner has of a region.
type part struct {
	incarnation, conf uint64
	value             Amount
	standing          standing
}

type standing uint8

const (
	// unknown: nothing was reported, and nothing is expected.
	unknown standing = iota
	// booked: it is taken for what the owner before had.
	booked
	told
	// past: it is not this member's any more, and still in what that one reports.
	past
)

// member is what is known of one. What it reports in total has two averages of its own,
// and so has the rest of it that is no region's.
type member struct {
	total, told, booked Amount
	capacity            Amount
	totalTold           bool
	all, rest           average
	at, heard           clock.Instant
}

// NewBook makes a Book with room for so many regions.
func NewBook(room int) *Book {
	return &Book{regions: map[state.RegionID]*region{}, members: map[uint64]*member{}, room: room}
}

// Counters returns what was counted.
func (b *Book) Counters() Counters { return b.count }

// Len is how many regions are kept.
func (b *Book) Len() int { return len(b.regions) }

// settledAfter is how long after a change of owners only the slow average counts.
const settledAfter = 20 * time.Second

// Follow tells who owns a region, and since which epoch. What the owners before had is
// booked onto those that are new.
func (b *Book) Follow(id state.RegionID, epoch state.Epoch, owners []state.Owner, now clock.Instant) {
	r := b.regions[id]
	if r == nil {
		if len(b.regions) >= b.room {
			b.count.Unbooked++
			return
		}
		r = &region{at: now}
		b.regions[id] = r
	}
	r.advance(now)
	parts := make([]part, 0, len(owners))
	var left Amount
	changed := false
	for _, p := range r.parts {
		stays := slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Incarnation == p.incarnation })
		switch {
		case p.standing == past:
			b.drop(&p, now) // its member had long enough to say that it is gone
		case stays:
			parts = append(parts, p)
		default:
			changed = true
			left += p.value
			b.leave(&p)
			if p.standing == past {
				parts = append(parts, p)
			}
		}
	}
	var fresh []int
	for _, o := range owners {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.incarnation == o.Incarnation && p.standing != past }) {
			fresh = append(fresh, len(parts))
			parts = append(parts, part{incarnation: o.Incarnation, conf: epoch.ConfVersion})
		}
	}
	for _, i := range fresh {
		if p := &parts[i]; r.known && left > 0 {
			b.book(p, left/Amount(len(fresh)), now)
		}
	}
	if changed && r.known {
		r.moved = now
	}
	r.parts = parts
	r.sum(len(owners) == 0)
}

// leave takes a part off its member: what was booked is not any more, what was told is
// in its reports until it says that it is gone.
func (b *Book) leave(p *part) {
	switch p.standing {
	case booked:
		if m := b.members[p.incarnation]; m != nil {
			m.booked -= p.value
		}
		p.standing = unknown
	case told:
		p.standing = past
	}
}

// drop forgets a part that is in the reports of its member.
func (b *Book) drop(p *part, now clock.Instant) {
	if m := b.members[p.incarnation]; m != nil {
		m.advance(now)
		m.told -= p.value
	}
}

// sum sets the value anew, unless it is orphaned: then it stays what it was.
func (r *region) sum(orphaned bool) {
	if orphaned {
		return
	}
	var v Amount
	for _, p := range r.parts {
		if p.standing != past {
			v = v.Plus(p.value)
		}
	}
	r.value = v
}

func (r *region) advance(now clock.Instant) {
	r.avg = r.avg.after(r.value, now.Sub(r.at))
	r.at = max(r.at, now)
}

func (m *member) advance(now clock.Instant) {
	m.rest = m.rest.after(m.unattributed(), now.Sub(m.at))
	m.all = m.all.after(m.total, now.Sub(m.at))
	m.at = max(m.at, now)
}

// unattributed is what a member reports and has no region for.
func (m *member) unattributed() Amount {
	if !m.totalTold {
		return 0
	}
	return max(m.total-m.told, 0)
}

func (b *Book) of(incarnation uint64) *member {
	m := b.members[incarnation]
	if m == nil {
		m = &member{}
		b.members[incarnation] = m
	}
	return m
}

// Report takes what an owner says of its load by a region, at an epoch. It counts if it
// is about what the owner has, by the last Follow. It reports whether it was a load.
func (b *Book) Report(id state.RegionID, incarnation uint64, epoch state.Epoch, x float64, now clock.Instant) bool {
	v, ok := Read(x)
	if !ok {
		b.count.BadLoads++
		return false
	}
	r := b.regions[id]
	if r == nil {
		return true
	}
	i := slices.IndexFunc(r.parts, func(p part) bool { return p.incarnation == incarnation && p.standing != past })
	if i < 0 || epoch.ConfVersion < r.parts[i].conf {
		return true
	}
	m, p := b.of(incarnation), &r.parts[i]
	m.advance(now)
	r.advance(now)
	switch p.standing {
	case booked:
		m.booked -= p.value
	case told:
		m.told -= p.value
	}
	v = min(v, whole-m.told) // what is taken off again is what was added
	m.told += v
	p.value, p.standing = v, told
	r.sum(false)
	if !r.known {
		r.known, r.avg = true, average{r.value, r.value}
	}
	return true
}

// Gone takes that a member does not report a region any more.
func (b *Book) Gone(id state.RegionID, incarnation uint64, now clock.Instant) {
	r := b.regions[id]
	if r == nil {
		return
	}
	r.parts = slices.DeleteFunc(r.parts, func(p part) bool {
		gone := p.incarnation == incarnation && p.standing == past
		if gone {
			b.drop(&p, now)
		}
		return gone
	})
}

// Total takes what a member says of its load in all, and of the most that it can take;
// 0: not known. It reports whether these were loads.
func (b *Book) Total(incarnation uint64, x, capacity float64, now clock.Instant) bool {
	v, ok := Read(x)
	most, fine := Read(capacity)
	if !ok || !fine {
		b.count.BadLoads++
		return false
	}
	m := b.of(incarnation)
	m.advance(now)
	m.total, m.capacity, m.heard = v, most, max(m.heard, now)
	if !m.totalTold {
		m.totalTold, m.at = true, now
		m.rest, m.all = average{m.unattributed(), m.unattributed()}, average{v, v}
	}
	return true
}

// Heard takes that a frame came: what it does not say is as before.
func (b *Book) Heard(incarnation uint64, now clock.Instant) {
	m := b.of(incarnation)
	m.heard = max(m.heard, now)
}

// Forget drops a region, ForgetMember a life of a member.
func (b *Book) Forget(id state.RegionID, now clock.Instant) {
	r := b.regions[id]
	if r == nil {
		return
	}
	for i := range r.parts {
		if b.leave(&r.parts[i]); r.parts[i].standing == past {
			b.drop(&r.parts[i], now)
		}
	}
	delete(b.regions, id)
}

// ForgetMember drops a life of a member. What it said of regions stays with them.
func (b *Book) ForgetMember(incarnation uint64) { delete(b.members, incarnation) }

// book takes a part for a value that nobody has reported.
func (b *Book) book(p *part, v Amount, now clock.Instant) {
	if b.leave(p); p.standing == past {
		b.drop(p, now)
	}
	m := b.of(p.incarnation)
	v = min(v, whole-m.booked)
	m.booked += v
	p.value, p.standing = v, booked
}

// Split gives a new region its part, of 1,000, of what one had that is cut. The owners
// are the same.
func (b *Book) Split(id, right state.RegionID, permille uint64, now clock.Instant) {
	from := b.regions[id]
	if from == nil || !from.known || len(b.regions) >= b.room {
		return
	}
	from.advance(now)
	permille = min(permille, 1000)
	to := &region{avg: average{from.avg.fast.Share(permille, 1000), from.avg.slow.Share(permille, 1000)}, at: now, moved: now, known: true}
	for i := range from.parts {
		p := &from.parts[i]
		if p.standing == past {
			continue
		}
		q := part{incarnation: p.incarnation, conf: p.conf}
		b.book(&q, p.value.Share(permille, 1000), now)
		b.book(p, p.value-q.value, now)
		to.parts = append(to.parts, q)
	}
	from.avg.fast, from.avg.slow, from.moved = from.avg.fast-to.avg.fast, from.avg.slow-to.avg.slow, now
	from.sum(false)
	to.sum(false)
	b.regions[right] = to
}

// Merge adds what a region had to the one that takes it in, and forgets it.
func (b *Book) Merge(into, gone state.RegionID, now clock.Instant) {
	defer b.Forget(gone, now)
	x, y := b.regions[into], b.regions[gone]
	if x == nil || y == nil || !y.known {
		return
	}
	x.advance(now)
	y.advance(now)
	x.avg.fast, x.avg.slow = x.avg.fast.Plus(y.avg.fast), x.avg.slow.Plus(y.avg.slow)
	if i := slices.IndexFunc(x.parts, func(p part) bool { return p.standing != past }); i >= 0 {
		b.book(&x.parts[i], x.parts[i].value.Plus(y.value), now)
	}
	x.known, x.moved = true, now
	x.sum(false)
}

// Region is the load of a region, all of its owners together; false: it is not known.
func (b *Book) Region(id state.RegionID, now clock.Instant) (Pair, bool) {
	r := b.regions[id]
	if r == nil || !r.known {
		return Pair{}, false
	}
	avg := r.avg.after(r.value, now.Sub(r.at))
	most := b.most(r, now)
	if r.moved != 0 && now.Sub(r.moved) < settledAfter {
		return Same(min(avg.slow, most)), true
	}
	return Pair{min(avg.fast, avg.slow, most), min(max(avg.fast, avg.slow), most)}, true
}

// most is what the members of a region have in all, if all of them have said so.
func (b *Book) most(r *region, now clock.Instant) (most Amount) {
	owned := false
	for _, p := range r.parts {
		m := b.members[p.incarnation]
		if p.standing == past {
			continue
		}
		if p.standing != told || m == nil || !m.totalTold {
			return whole
		}
		all := m.all.after(m.total, now.Sub(m.at))
		most, owned = most.Plus(max(all.fast, all.slow, m.total)), true
	}
	if !owned {
		return whole
	}
	return most
}

// Fast is the load of a region by the fast average alone.
func (b *Book) Fast(id state.RegionID, now clock.Instant) Amount {
	r := b.regions[id]
	if r == nil {
		return 0
	}
	return r.avg.after(r.value, now.Sub(r.at)).fast
}

// Member is what is known of a life of a member.
type Member struct {
	// Rest is what it reports and has no region for. Now is all that it has, as it was
	// last told or booked.
	Rest Pair
	Now  Amount
	// Capacity is the most that it can take; 0: not known.
	Capacity Amount
	// Heard is when its last frame came; 0: never.
	Heard clock.Instant
}

// Member returns what is known of a life of a member.
func (b *Book) Member(incarnation uint64, now clock.Instant) Member {
	m := b.members[incarnation]
	if m == nil {
		return Member{}
	}
	rest := m.rest.after(m.unattributed(), now.Sub(m.at))
	return Member{
		Rest:     Pair{min(rest.fast, rest.slow), max(rest.fast, rest.slow)},
		Now:      m.unattributed().Plus(m.told).Plus(m.booked),
		Capacity: m.capacity, Heard: m.heard,
	}
}
