package balance

import (
	"cmp"
	"time"
)

// By is what is evened out.
type By uint8

// What is evened out: how many regions members have, their load, or both, which is
// load with as much again for every region.
const (
	Count By = iota
	Load
	Both
)

// Policy is how a keyspace is evened out. Zeros count as written.
type Policy struct {
	By By
	// Even says that members are evened out at all; if not, only what breaks a constraint
	// moves, and what is saturated gets owners.
	Even bool
	// Relative is how many of 1,000 of its fair part a member may have, and Until how many it
	// has after it was relieved: 0: any, and 1,100.
	Relative, Until uint64
	// Absolute is how many regions a member may have before it is relieved whatever the
	// others have. 0: any.
	Absolute int
	// PerMember is how many regions a member may have. 0: any.
	PerMember int
	// Gap is by how many average regions a move lowers the higher one of two loads. 0: by
	// something; by load, by 1/50 of the fair part at least.
	Gap uint64
	// Cooldown is between two rounds that relieve members. Spacing is between two such moves
	// of a region, 2 min, and Backoff after one that failed, 5 min.
	Cooldown, Spacing, Backoff time.Duration
	// InFlight is how many moves may be under way from one member, and to one: 16.
	InFlight int
	// Round and Hour are how many of 1,000 of all load and of all regions are moved to
	// relieve members in a round and in an hour: 50, 500. MostMoves in a round: any.
	Round, Hour uint64
	MostMoves   int
	// Reserve is how many of 1,000 of what all members can take the regions weigh together
	// at least: 20. A member with fewer than Idle of 1,000 of what it can take is not
	// relieved: 50. Over Unknown of 1,000 of the load being estimated, nothing is evened
	// out: 200.
	Reserve, Idle, Unknown uint64
	// Settle is how long a member is let be after it joined.
	Settle time.Duration
	// OwnersMin and OwnersMax of a region: 1 and 1.
	OwnersMin, OwnersMax int
	// MaxKeys is how many keys a region may have; 0: any number. CutKeys: ranges that have
	// more are cut.
	MaxKeys uint64
	CutKeys bool
	// Ranges says that regions may be cut and joined. Quiet is how long both of two have
	// been cold before they are joined, 10 min, and Cut how long after they were cut, 30 min.
	Ranges     bool
	Quiet, Cut time.Duration
	// Rules say which labels a member needs, by the beginning of a region's first key; the
	// longest one that fits holds. Spread is the label whose value no two owners of a
	// region share. "": they may.
	Rules  []Rule
	Spread string
}

// Rule is which labels a member needs for regions whose first key begins so.
type Rule struct {
	Prefix string
	Labels map[string]string
}

// What decides whether something moves and is no setting.
const (
	// newcomer is how long a member counts as having joined, at least: so long does a process
	// take to start in earnest.
	newcomer = 10 * time.Minute
	// leastPart is how many of 1,000 of its fair part a member has at least that had its part: who
	// has less came too late for what a strategy gave.
	leastPart = 750
	// leastGap is the part of the fair part by which a move by load lowers the higher load at
	// least; so much too much is not too much. Averages are not more exact than that.
	leastGap = 50
	// worth is the part of all that an exchange moves by which it lowers the higher load at least: else
	// much moves for little.
	worth = 8
	// losing is the part of its load that a member gives away at most at a time: what it has then
	// is not what it says yet.
	losing = 8
	// A member that has more load than it can take is relieved until it has limitUntil of 1,000 of that,
	// by members that have limitTo of 1,000 of theirs at most then. To even out nobody gets more than limitUntil.
	limitUntil, limitTo = 950, 900
	// ownRound is how many of 1,000 of all load and of all regions are moved in a round because of
	// the absolute limit, and in one that changes how many owners or regions there are, at least.
	ownRound = 100
	// joinEvery is how long a round is at most in which joiners get something, whatever the Cooldown:
	// they serve nothing before.
	joinEvery = 30 * time.Second
	// splitPart of a member's fair part is what a region must have to be cut, mergePart of
	// that what two must not have together to be joined.
	splitPart, mergePart = 4, 4
	// aloneFrom is how much of a region's load a key has that gets a region of its own, of
	// 1,000.
	aloneFrom = 400
	// leastRegions is how many regions a member has at least before any of them are joined: with
	// fewer there is nothing left to even out with.
	leastRegions = 32
	// ColdPart of what a member has on average is what a region has at most that may be joined with
	// another one.
	ColdPart = 2 * splitPart * mergePart
)

func (p Policy) withDefaults() Policy {
	p.Until = cmp.Or(p.Until, 1100)
	p.Spacing, p.Backoff = cmp.Or(p.Spacing, 2*time.Minute), cmp.Or(p.Backoff, 5*time.Minute)
	p.InFlight = cmp.Or(p.InFlight, 16)
	p.Round, p.Hour = cmp.Or(p.Round, 50), cmp.Or(p.Hour, 500)
	p.Reserve, p.Idle, p.Unknown = cmp.Or(p.Reserve, 20), cmp.Or(p.Idle, 50), cmp.Or(p.Unknown, 200)
	p.OwnersMin, p.OwnersMax = cmp.Or(p.OwnersMin, 1), cmp.Or(p.OwnersMax, 1)
	p.Quiet, p.Cut = cmp.Or(p.Quiet, 10*time.Minute), cmp.Or(p.Cut, 30*time.Minute)
	return p
}
