// Package scaling says how many members an assigned keyspace wants.
//
// It owns the judgement: from members, what they have and the settings, and from what was
// wished for before, whether there should be one more, or one fewer and which. It promises:
//
//  1. There is one wish at a time, and a spacing between two. A wish for more stands until it
//     is met, or members are clearly less full; one for fewer is made of a member that has
//     drained for that, which is rooted: whoever judges next goes on from there.
//  2. Nobody drains who has regions of another keyspace, nor if the others would then be too
//     full.
//  3. Nothing is wished for that members' health explains: while some are not well, verdicts
//     are held, or a drain is under way.
//
// It leaves to others: draining the victim, and who hears of the wish (the assigner).
package scaling

import (
	"cmp"
	"math"
	"time"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Settings are a keyspace's.
type Settings struct {
	// Up and Down are how full members are on average, of 1,000, when there should be more, or
	// fewer.
	Up, Down uint64
	Spacing  time.Duration
	Min, Max int
	// PerMember is how many regions fill a member, 0: not known. ByLoad: it is the load that
	// counts, and what members say that they can take.
	PerMember uint64
	ByLoad    bool
}

// SettingsOf are those of a keyspace with what counts where nothing is set; false: it wishes
// for nothing.
func SettingsOf(s *rootv1.KeyspaceSettings) (Settings, bool) {
	x := state.ScalingOf(s)
	by := s.GetPolicy().GetRebalance().GetBy()
	return Settings{
		Up: x.GetUpPermille(), Down: x.GetDownPermille(), Spacing: time.Duration(min(x.GetSpacingMillis(), state.MaxMillis)) * time.Millisecond,
		Min: int(min(x.GetMinMembers(), state.MaxMembers)), Max: int(min(x.GetMaxMembers(), state.MaxMembers)),
		PerMember: min(cmp.Or(s.GetLimits().GetMaxRegionsPerMember(), s.GetPolicy().GetRebalance().GetAbsoluteLimit()), math.MaxInt32),
		ByLoad:    by == rootv1.BalanceBy_BALANCE_BY_LOAD || by == rootv1.BalanceBy_BALANCE_BY_BOTH,
	}, x.GetEnabled() && s.GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED
}

// Member is one that takes regions of the keyspace, active or draining.
type Member struct {
	ID          state.MemberID
	Incarnation uint64
	// Active by the root; else it drains, for a wish of this keyspace if Victim. Well: it is
	// heard, and not suspected.
	Active, Victim, Well bool
	// Regions of the keyspace that it has, and All of all keyspaces.
	Regions, All int
	// Load and Capacity as it says; Capacity 0: not known.
	Load, Capacity load.Amount
}

// Input is what is judged.
type Input struct {
	Settings Settings
	Members  []Member
	// Orphaned regions of the keyspace. Held: a guard holds verdicts.
	Orphaned int
	Held     bool
	Now      clock.Instant
}

// Memory is what a judgement goes on from: that of the one before, with Changed when it
// began for the first. It belongs to one keyspace.
type Memory struct {
	// Changed is when the number of active members changed, or a wish began, last. Beyond is
	// since when members are too full, or not full enough by Side.
	Changed, Beyond clock.Instant
	Side            int8
	active          int
	known           bool
	// Wish is for so many members, since when; 0: there is none. Wishes counts them.
	Wish   int
	Since  clock.Instant
	Wishes uint64
}

// Verdict is what is wished for, and why.
type Verdict struct {
	Reason Reason
	// Active members there are, Desired there should be. More: that is a wish for more.
	Active, Desired int
	More            bool
	// Full is how full members are on average, of 1,000.
	Full uint64
	// Drain is who is to be drained. Victim is who was: Drained, nothing is its own any more,
	// and it is to end.
	Drain   state.MemberID
	Victim  state.MemberID
	Drained bool
}

// Reason is why something is wished for, or not.
type Reason uint8

// Reasons.
const (
	Steady Reason = iota
	Load
	BelowMin
	AtMin
	AtMax
	MembersUnwell
	Draining
	Orphaned
	Spacing
	LoadUnknown
	NoLimit
	NoVictim
	TooFullThen
)

// String is the reason's name, as it is shown.
func (r Reason) String() string {
	return [...]string{
		"steady", "load", "below_min", "at_min", "at_max", "members_unwell", "draining", "orphaned", "spacing", "load_unknown", "no_limit",
		"no_victim", "too_full_then",
	}[r]
}

const (
	// mostSustained is how long members are too full before one more is wished for; a quarter of the
	// spacing, if that is less.
	mostSustained = 30 * time.Second
	// quiet is for how many spacings they are not full enough, all the time, before one fewer is: what
	// comes and goes sooner needs those that it has at its height.
	quiet = 5
)

// Judge says what a keyspace wishes for, and what to remember.
func Judge(in Input, m Memory) (Verdict, Memory) {
	j := judge{Input: in, v: Verdict{Reason: Steady}}
	j.count()
	if !m.known || m.active != j.v.Active {
		if m.known {
			m.Changed = in.Now
		}
		m.active, m.known = j.v.Active, true
	}
	j.v.Desired = j.v.Active
	if m.Wish <= j.v.Active {
		m.Wish = 0 // it is met
	}
	j.weigh()
	m = j.side(m)
	j.decide(&m)
	if j.v.More = m.Wish > 0; j.v.More {
		j.v.Desired = m.Wish
	}
	return j.v, m
}

type judge struct {
	Input
	v Verdict
	// total and room are what they have and can take; known: that is so of all of them.
	total, room load.Amount
	known       bool
	unwell      bool
	draining    bool
	victim      *Member
}

func (j *judge) count() {
	for i := range j.Members {
		m := &j.Members[i]
		switch {
		case m.Active:
			j.v.Active++
			j.unwell = j.unwell || !m.Well
		case m.Victim && (j.victim == nil || m.Incarnation < j.victim.Incarnation):
			j.victim = m // of several, which only hands can have made, one after the other
		case m.All > 0 && !m.Victim:
			j.draining = true
		}
	}
}

// weigh finds out how full members are. Regions without owners are somebody's soon.
func (j *judge) weigh() {
	j.known = j.v.Active > 0
	if !j.Settings.ByLoad {
		j.room = load.Amount(j.Settings.PerMember) * load.Amount(j.v.Active)
		j.total = load.Amount(j.Orphaned)
	}
	for i := range j.Members {
		switch m := &j.Members[i]; {
		case !j.Settings.ByLoad:
			j.total += load.Amount(m.Regions)
		case m.Active:
			j.total, j.room, j.known = j.total.Plus(m.Load), j.room.Plus(m.Capacity), j.known && m.Capacity > 0
		default:
			j.total = j.total.Plus(m.Load)
		}
	}
	if j.known = j.known && j.room > 0; j.known {
		j.v.Full = part(j.total, j.room)
	}
}

// part is how many of 1,000 an amount is of another.
func part(a, of load.Amount) uint64 { return uint64(a.Share(1000, uint64(max(of, 1)))) }

// side notes since when members are beyond a bound.
func (j *judge) side(m Memory) Memory {
	side := int8(0)
	switch {
	case j.known && j.v.Full > j.Settings.Up:
		side = 1
	case j.known && j.v.Full < j.Settings.Down:
		side = -1
	}
	if side != m.Side {
		m.Side, m.Beyond = side, j.Now
	}
	return m
}

func (j *judge) decide(m *Memory) {
	s := &j.Settings
	if j.victim != nil {
		j.v.Victim, j.v.Drained, j.v.Reason = j.victim.ID, j.victim.All == 0, Draining
		if j.v.Drained {
			j.v.Reason = Load
		}
		m.Wish, m.Changed = 0, j.Now
		return
	}
	middle := (s.Up + s.Down) / 2
	switch {
	case j.unwell || j.Held:
		j.v.Reason = MembersUnwell
	case j.v.Active < s.Min:
		j.v.Reason = BelowMin
		j.wish(m, s.Min)
	case m.Wish > 0 && j.known && j.v.Full <= middle:
		m.Wish = 0
	case j.draining:
		j.v.Reason = Draining
	case !j.known:
		if j.v.Reason = NoLimit; s.ByLoad {
			j.v.Reason = LoadUnknown
		}
	case m.Wish > 0 && j.v.Active < s.Max:
		j.v.Reason = Load
		j.wish(m, j.v.Active+1)
	case m.Side > 0:
		j.more(m)
	case m.Side < 0:
		j.fewer(m)
	}
}

// wish begins a wish, or another one of the same if that before was not met for so long.
func (j *judge) wish(m *Memory, members int) {
	if m.Wish == members && j.Now < m.Since.Add(j.Settings.Spacing) {
		return
	}
	m.Wish, m.Since, m.Changed = members, j.Now, j.Now
	m.Wishes++
}

// early reports whether it is too early for anything, which has to be wanted for so long.
func (j *judge) early(m *Memory, sustained time.Duration) bool {
	return j.Now < m.Changed.Add(j.Settings.Spacing) || j.Now < m.Beyond.Add(sustained)
}

func (j *judge) more(m *Memory) {
	switch {
	case j.v.Active >= j.Settings.Max:
		j.v.Reason = AtMax
	case j.early(m, min(j.Settings.Spacing/4, mostSustained)):
		j.v.Reason = Spacing
	default:
		j.v.Reason = Load
		j.wish(m, j.v.Active+1)
	}
}

func (j *judge) fewer(m *Memory) {
	victim := j.least()
	switch {
	case j.v.Active <= j.Settings.Min:
		j.v.Reason = AtMin
	case j.Orphaned > 0:
		j.v.Reason = Orphaned
	case j.early(m, quiet*j.Settings.Spacing):
		j.v.Reason = Spacing
	case victim == nil:
		j.v.Reason = NoVictim
	case j.without(victim) >= j.Settings.Up:
		j.v.Reason = TooFullThen
	default:
		j.v.Reason, j.v.Drain = Load, victim.ID
		m.Changed = j.Now
	}
}

// least is the member that costs least to move what it has, of those that have nothing of
// other keyspaces; of equals the one that came last.
func (j *judge) least() (best *Member) {
	for i := range j.Members {
		m := &j.Members[i]
		if !m.Active || m.All != m.Regions {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(j.weight(m), j.weight(best)), cmp.Compare(m.Regions, best.Regions), cmp.Compare(best.Incarnation, m.Incarnation)) < 0 {
			best = m
		}
	}
	return best
}

func (j *judge) weight(m *Member) load.Amount {
	if j.Settings.ByLoad {
		return m.Load
	}
	return load.Amount(m.Regions)
}

// without is how full the others would be.
func (j *judge) without(m *Member) uint64 {
	room := load.Amount(j.Settings.PerMember)
	if j.Settings.ByLoad {
		room = m.Capacity
	}
	return part(j.total, j.room-room)
}
