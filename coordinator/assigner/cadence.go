package assigner

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// leastTick and mostTick are between two looks at a keyspace whose regions are asked for
	// checkpoints; an interval has sweepTicks of them in between.
	leastTick, mostTick = 100 * time.Millisecond, time.Second
	sweepTicks          = 16
	// maxSwept bounds the regions that are asked in one look.
	maxSwept = 4096
	// maxFrontiers and maxFrontierBytes bound the frontiers that wait to be rooted, and those
	// of one command are rootedFrontiers at most, rootedEvery so often.
	maxFrontiers, maxFrontierBytes = 1 << 16, 16 << 20
	rootedFrontiers                = 1024
	rootedEvery                    = 250 * time.Millisecond
	// marksEvery and maxMarks are how the newest entries are dated.
	marksEvery = 250 * time.Millisecond
	maxMarks   = 512
)

// cadence asks the members of keyspaces for checkpoints, each region once in an interval,
// in the order of keys, and has the root know how far they got. It awaits nobody. It belongs
// to Look, in an era.
type cadence struct {
	of map[state.KeyspaceID]*sweep
	// began is the entry that the era began behind: what is dated before it was asked
	// for by another holder.
	began uint64
	next  uint64 // command
	// said are frontiers that are not rooted, of so many bytes, and order has these regions as
	// they came; sent: some are on their way.
	said  map[state.RegionID]frontier
	order []state.RegionID
	bytes int
	sent  bool
	again clock.Instant
}

// sweep is where a keyspace is in its interval.
type sweep struct {
	interval time.Duration
	// after is the key that the last region that was asked ends at, at when it was, and
	// owed how much of an interval is not asked for since.
	after string
	at    clock.Instant
	owed  time.Duration
}

// frontier is how far an incarnation said that it got.
type frontier struct {
	incarnation uint64
	epoch       state.Epoch
	bytes       string
}

func newCadence() cadence {
	return cadence{of: map[state.KeyspaceID]*sweep{}, said: map[state.RegionID]frontier{}}
}

func (s *sweep) tick() time.Duration { return min(max(s.interval/sweepTicks, leastTick), mostTick) }

// learnAll begins at a state.
func (c *cadence) learnAll(a *Raw, now clock.Instant) {
	old := c.of
	c.of = map[state.KeyspaceID]*sweep{}
	a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if s := old[state.KeyspaceID(k.GetId())]; s != nil {
			c.of[state.KeyspaceID(k.GetId())] = s
		}
		c.learn(a, state.KeyspaceID(k.GetId()), now)
		return true
	})
}

// learn takes the settings of a keyspace. A new holder goes on where the log says that the
// one before came to.
func (c *cadence) learn(a *Raw, id state.KeyspaceID, now clock.Instant) {
	s := a.st.Keyspace(id).GetSettings()
	interval := time.Duration(s.GetCadence().GetCheckpointIntervalMillis()) * time.Millisecond
	if interval == 0 || s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		delete(c.of, id)
		return
	}
	if c.of[id] == nil {
		c.of[id] = &sweep{at: now, after: a.past.acked[id]}
	}
	c.of[id].interval = max(interval, leastTick)
}

// beat asks whom it is time to ask, and says when that is next.
func (c *cadence) beat(a *Raw, now clock.Instant) clock.Instant {
	due := never
	for _, id := range sortedKeys(c.of) {
		s := c.of[id]
		if a.st.Keyspace(id) == nil {
			delete(c.of, id)
			continue
		}
		if now >= s.at.Add(s.tick()) {
			c.sweep(a, id, s, now)
		}
		due = min(due, s.at.Add(s.tick()))
	}
	if len(c.said) > 0 && !c.sent {
		if now >= c.again {
			c.root(a, now)
		} else {
			due = min(due, c.again)
		}
	}
	return due
}

// sweep asks the next regions of a keyspace: as many as there are in the time that has passed.
func (c *cadence) sweep(a *Raw, id state.KeyspaceID, s *sweep, now clock.Instant) {
	s.owed, s.at = min(s.owed+now.Sub(s.at), s.interval), now
	all := a.st.KeyspaceRegionCount(id)
	n := int(int64(all) * s.owed.Microseconds() / s.interval.Microseconds())
	if n == 0 {
		if all == 0 {
			s.owed = 0
		}
		return
	}
	s.owed -= time.Duration(int64(s.interval) / int64(all) * int64(n))
	n = min(n, maxSwept)
	since := a.past.entryAt(now - clock.Instant(s.interval*3/4))
	for n > 0 {
		before := n
		a.st.RegionsFrom(id, s.after, func(r *state.Region) bool {
			if n--; r.Revision <= since || r.Revision > c.began { // otherwise the holder before asked it
				c.ask(a, r)
			}
			s.after = r.End
			return n > 0 && s.after != ""
		})
		if n == before && s.after == "" {
			return
		}
		if n > 0 {
			s.after = ""
		}
	}
}

// ask asks the owners of a region. Who does not listen is asked again in an interval.
func (c *cadence) ask(a *Raw, r *state.Region) {
	for _, o := range r.Owners {
		if !a.st.Acts(o) {
			continue
		}
		c.next += 2 // even ids are these
		err := a.cfg.Command(o.Member, o.Incarnation, &coordinatorv1.MemberCommand{
			Era: uint64(a.era), Id: c.next, Kind: coordinatorv1.MemberCommandKind_MEMBER_COMMAND_KIND_CHECKPOINT,
			RegionId: uint64(r.ID), Epoch: r.Epoch.Proto(),
		})
		a.count.add(func() {
			if a.count.asked++; err != nil {
				a.count.unheard++
			}
		})
	}
}

// made is a checkpoint that a member says it made.
type made struct {
	incarnation uint64
	reply       *coordinatorv1.MemberCommandReply
}

// take keeps what members made, of each region the newest.
func (c *cadence) take(a *Raw, all []made) {
	for _, m := range all {
		r := a.st.Region(state.RegionID(m.reply.GetRegionId()))
		if m.reply.GetEra() != uint64(a.era) || r == nil || len(c.of) == 0 {
			continue
		}
		f := frontier{m.incarnation, rooted.EpochFromProto(m.reply.GetEpoch()), string(m.reply.GetFrontier())}
		if !f.of(a.st, r) {
			continue
		}
		old, known := c.said[r.ID]
		grown := len(f.bytes) - len(old.bytes)
		if !known && len(c.said) == maxFrontiers || c.bytes+grown > maxFrontierBytes {
			continue
		}
		if !known {
			c.order = append(c.order, r.ID)
		}
		c.said[r.ID] = f
		c.bytes += grown
	}
}

// of reports whether a frontier would be news of a region.
func (f *frontier) of(st *state.State, r *state.Region) bool {
	return len(r.Owners) == 1 && r.Owners[0].Incarnation == f.incarnation && r.Epoch == f.epoch && r.Frontier != f.bytes &&
		len(f.bytes) <= state.MaxFrontierBytes && max(st.Keyspace(r.Keyspace).GetSettings().GetOwnership().GetMaxOwners(), 1) == 1
}

// acknowledged has the root take it, if the region is as it was then.
func (f *frontier) acknowledged(id state.RegionID, by state.MemberID) *rootv1.Assignment {
	return &rootv1.Assignment{
		RegionId: uint64(id), ExpectedEpoch: f.epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: string(by), Incarnation: f.incarnation}},
		Frontier: []byte(f.bytes), SetFrontier: true, Acknowledged: true,
	}
}

// root has frontiers rooted, many in one entry, those that waited longest first. Nothing of a region is sent before what was sent of it is judged:
// what is sent again cannot come behind what is newer.
func (c *cadence) root(a *Raw, now clock.Instant) {
	e := &rootv1.RegionsAssigned{}
	bytes := 0
	for len(c.order) > 0 && len(e.Assignments) < rootedFrontiers && bytes <= state.MaxCommandBytes/2 {
		id := c.order[0]
		c.order = c.order[1:]
		f := c.said[id]
		c.bytes -= len(f.bytes)
		delete(c.said, id)
		r := a.st.Region(id)
		if r == nil || !f.of(a.st, r) {
			continue
		}
		bytes += len(f.bytes) + 128
		e.Assignments = append(e.Assignments, f.acknowledged(id, r.Owners[0].Member))
	}
	c.again = now.Add(rootedEvery)
	if len(e.Assignments) == 0 {
		return
	}
	c.sent = true
	a.outbox.rest = append(a.outbox.rest, &parcel{
		events: []*rootv1.Event{{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: e}}},
		judged: func(result *rootv1.CommandResult, _ clock.Instant) {
			a.cadence.sent = false
			if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
				a.refused("frontiers", result.GetError())
				return
			}
			a.count.add(func() { a.count.acknowledged += uint64(len(e.Assignments)) })
		},
	})
}

// mark dates an entry.
type mark struct {
	at    clock.Instant
	index uint64
}

// date notes which entry is the newest now.
func (p *past) date(index uint64, now clock.Instant) {
	if n := len(p.marks); n > 0 && now < p.marks[n-1].at.Add(marksEvery) {
		return
	}
	if len(p.marks) == maxMarks {
		p.marks = slices.Delete(p.marks, 0, maxMarks/4)
	}
	p.marks = append(p.marks, mark{now, index})
}

// entryAt is the newest entry that was certainly there at a moment; of a moment that is too
// long ago, the oldest that is known: nobody knows when what came before it was.
func (p *past) entryAt(at clock.Instant) (index uint64) {
	if len(p.marks) == 0 {
		return math.MaxUint64
	}
	for i, m := range p.marks {
		if i == 0 || m.at <= at {
			index = m.index
		}
	}
	return index
}

// sortedKeys has an order of its own: what is decided is the same each time.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
