package tenure

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Settings say who a Core is and how patient it is.
type Settings struct {
	// ID is the coordinator's name; Incarnation is random per process and not
	// 0. Together they are the holder.
	ID          string
	Incarnation uint64
	// Address is where callers reach the coordinator, host:port.
	Address string
	// TTL is how long a confirmation is good for, in whole milliseconds. It is
	// part of the claim, so root and holder cannot disagree. 0: every batch is confirmed.
	TTL time.Duration
	// MostTTL is up to where the ttl of claims grows while confirmations come late, and
	// from where it goes back to TTL. Not above TTL: it does not grow.
	MostTTL time.Duration
	// Mandates are the duties to claim.
	Mandates []rootv1.Mandate
	// Probed says that OnProbe will be called: then a holder of which nothing
	// is known for UnknownAfter is suspect.
	Probed bool
	// UnknownAfter is how long the holder may go unheard before it is suspect.
	// 0 counts as DefaultUnknownAfter.
	UnknownAfter time.Duration
	// HandoverDeadline is how long a handover may stay open before it counts
	// as a violation of Finality. 0 counts as DefaultHandoverDeadline.
	HandoverDeadline time.Duration
}

// Pacing of the Core.
const (
	// MaxConfirmations is how many confirmations may be in flight.
	MaxConfirmations = 2
	// DefaultUnknownAfter is the patience with a holder that neither answers
	// nor refuses.
	DefaultUnknownAfter = 300 * time.Millisecond
	// DefaultHandoverDeadline is how long a handover may stay open.
	DefaultHandoverDeadline = 5 * time.Second

	// An unsuspected holder with a ttl is tried all the same this often, or
	// each two ttl: the root refuses while it is confirmed. It catches what no
	// probe sees: without probes everything, with them somebody else at the holder's
	// address.
	pollInterval       = time.Second
	probedPollInterval = 10 * time.Second
	// LeastEra is how long an era lasts before somebody may ask it to end: as long
	// as the holder of one that was asked to end leaves the Tenure to others.
	LeastEra = 5 * time.Second
	yieldFor = LeastEra
	// UnheardAfter is how long a standby has had no answer of a holder before that says something of
	// the ways between them, and no more of the holder alone.
	UnheardAfter = 10 * time.Second
	// lonelyFor is how long a coordinator that no member reaches leaves the Tenure to others.
	lonelyFor = 2 * time.Second

	retryLeast = 5 * time.Millisecond
	retryMost  = 200 * time.Millisecond
	// never is later than every moment.
	never = clock.Instant(1<<63 - 1)
)

// Phase is what a Core is doing.
type Phase uint8

// Phases. A Core goes from Standby to Holding and back any number of times;
// Draining and Stopped are final.
const (
	// Standby watches the Tenure and claims when it may.
	Standby Phase = iota
	// Holding has an era.
	Holding
	// Draining has an era, takes nothing new, and still confirms for those that wait.
	Draining
	// Stopped claims no more.
	Stopped
)

// Authority is what the view says about authority.
type Authority struct {
	// Tenure is the newest one, nil when there was never one.
	Tenure *rootv1.Tenure
	// Handover is the newest one, nil when there was never one.
	Handover *rootv1.Handover
	// Index is the position of the view.
	Index uint64
	// MostTTL is the longest ttl that the cluster's settings allow a claim; 0: not known.
	MostTTL time.Duration
}

// ActionKind says what an Action asks for.
type ActionKind uint8

// Actions. Claim, Confirm and Advance are answered by OnClaimed, OnConfirmed
// and OnAdvanced, at most one Claim, one Advance and MaxConfirmations Confirms
// being open; Begin, End and Retire are not answered.
const (
	// Claim: send Action.Claim to the root.
	Claim ActionKind = iota
	// Confirm: ask the root whether Action.Era is active, under Action.Seq.
	Confirm
	// Advance: propose the handover stages behind Action.From up to Action.To.
	Advance
	// Begin: the era of Action.Tenure is ours; make its windows. Action.Windows
	// are rooted already.
	Begin
	// End: the era is over for us; serve nothing more by it, drop its windows.
	End
	// Retire: propose that Action.Era ends with the exact frontiers of its
	// windows, or with those of Action.Tenure when it was never begun.
	Retire
)

// Action is something that a Core asks its owner to do, in order.
type Action struct {
	Kind   ActionKind
	Era    uint64
	Seq    uint64
	Claim  *rootv1.TenureClaimed
	Tenure *rootv1.Tenure
	// Windows came with the claim's answer, in the order in which they were asked
	// for.
	Windows []*rootv1.Window
	From    rootv1.HandoverStage
	To      rootv1.HandoverStage
}

// Core decides when to claim, confirm, advance and retire. It is pure: time is
// an argument, actions are returned by Actions. It is for one goroutine.
type Core struct {
	s     Settings
	rng   *rand.Rand
	count *Counters

	phase      Phase
	superseded bool
	actions    []Action

	// The view: what is rooted, as far as is known here.
	seen     bool
	tenure   *rootv1.Tenure
	tenureAt clock.Instant
	reported uint64
	// lastEra is the highest era this process has held: none is begun twice.
	lastEra uint64
	// lonely and alone: see OnLonely. heardAt is when a holder was last heard, or was this process.
	lonely, alone bool
	heardAt       clock.Instant
	// overAt is when the newest era was heard to be retired, or asked to end.
	overAt clock.Instant
	// askedEra is the newest era known to have been asked to end, askedAt when that
	// was heard of.
	askedEra uint64
	askedAt  clock.Instant

	// ttl is what the next claim asks for, mostTTL what the cluster allows; 0: not known.
	ttl, mostTTL time.Duration
	// takenAt is when an era of takenTTL was taken from this process; 0: none was.
	takenAt  clock.Instant
	takenTTL time.Duration

	standby standby
	holding holding
}

// NewCore makes a Core in Standby. It counts in counters, which must not be nil.
func NewCore(s Settings, counters *Counters) *Core {
	if s.UnknownAfter <= 0 {
		s.UnknownAfter = DefaultUnknownAfter
	}
	if s.HandoverDeadline <= 0 {
		s.HandoverDeadline = DefaultHandoverDeadline
	}
	return &Core{s: s, ttl: s.TTL, rng: rand.New(rand.NewPCG(s.Incarnation, 0x6e6f6b76)), count: counters}
}

// Actions returns what is to be done, in order, and forgets it.
func (c *Core) Actions() []Action {
	a := c.actions
	c.actions = nil
	return a
}

func (c *Core) emit(a Action) { c.actions = append(c.actions, a) }

// Phase is what the Core is doing.
func (c *Core) Phase() Phase { return c.phase }

// Superseded reports that a newer process runs under this id.
func (c *Core) Superseded() bool { return c.superseded }

// Era is the era held, 0 for none.
func (c *Core) Era() uint64 { return c.holding.era }

// Tenure is the newest Tenure known, nil for none. It must not be changed.
func (c *Core) Tenure() *rootv1.Tenure { return c.tenure }

// Deadline is the moment by which Tick must be called.
func (c *Core) Deadline() clock.Instant {
	switch c.phase {
	case Standby:
		return c.claimAt()
	case Holding, Draining:
		return min(c.confirmAt(), c.advanceAt(), c.finalityAt(), c.calmAt())
	default:
		return never
	}
}

// Tick says that time has passed.
func (c *Core) Tick(now clock.Instant) {
	switch c.phase {
	case Standby:
		c.maybeClaim(now)
	case Holding, Draining:
		c.pump(now)
		c.maybeAdvance(now)
		c.checkFinality(now)
		c.maybeShrink(now)
	}
}

// OnView tells what the view says now. A view may lag; it never lies.
func (c *Core) OnView(v Authority, now clock.Instant) {
	if !c.seen {
		c.heardAt = now
	}
	c.seen, c.mostTTL = true, v.MostTTL
	c.learn(v.Tenure, now)
	if h := v.Handover; h != nil && h.Era == c.holding.era {
		c.holding.stage = max(c.holding.stage, h.Stage)
	}
	c.Tick(now)
}

// learn takes in a Tenure from the view or from an answer. Older ones than the
// newest known are ignored.
func (c *Core) learn(t *rootv1.Tenure, now clock.Instant) {
	if t == nil || t.Era < c.tenure.GetEra() {
		return
	}
	if t.Era == c.tenure.GetEra() {
		if c.tenure.HolderIncarnation != t.HolderIncarnation || c.tenure.HolderId != t.HolderId {
			c.count.Violations.Primacy.Add(1)
			if t.Era == c.holding.era {
				c.end(now)
			}
			return
		}
		if c.tenure.Retired || !t.Retired && (t.End == nil || c.tenure.End != nil) {
			return
		}
	}
	if t.Era > c.tenure.GetEra() {
		c.outpaced(t, now)
		c.tenureAt, c.ttl = now, c.grownAs(t)
		c.count.EraTransitions.Add(1)
	}
	if (t.Retired || t.End != nil) && (t.Era > c.tenure.GetEra() || !c.tenure.Retired && c.tenure.End == nil) {
		c.overAt = now
	}
	c.tenure = t
	c.standby.reset(now)
	if c.holding.era != 0 && (t.Era > c.holding.era || t.Retired) {
		c.end(now)
	}
	c.askedToEnd(now)
	c.beginMine(now)
}

// askedToEnd ends and retires the era held when somebody asked it to end: it is
// confirmed no more. A standby gives its holder the time to retire before it tries:
// a holder without a ttl would otherwise be superseded at once.
func (c *Core) askedToEnd(now clock.Instant) {
	t := c.tenure
	if t.GetEnd() == nil || c.askedEra == t.GetEra() {
		return
	}
	c.askedEra, c.askedAt = t.GetEra(), now
	switch {
	case c.holding.era == t.GetEra():
		c.end(now)
		c.emit(Action{Kind: Retire, Era: t.GetEra()})
	case !t.GetRetired():
		c.suspectHolder()
		c.standby.waitForView(now)
	}
}

// yieldUntil is the moment before which this coordinator leaves the Tenure to
// others, because its era was asked to end; 0: it need not.
func (c *Core) yieldUntil() clock.Instant {
	switch t := c.tenure; {
	case t.GetEnd() != nil && t.GetHolderId() == c.s.ID:
		return c.askedAt.Add(yieldFor)
	case c.alone && (t.GetRetired() || t.GetEnd() != nil), c.lonely && t.GetEnd().GetCutOff():
		return c.overAt.Add(lonelyFor)
	}
	return 0
}

// OnLonely tells, now and then, whether no member reaches this coordinator. One that is lonely
// leaves the era to others behind one whose holder was cut off from its members. One that is
// alone, because it has not heard a holder for long either, may reach the root and nobody else: it
// leaves every era to others. A cluster without members has lonely coordinators that hear the holder.
func (c *Core) OnLonely(lonely bool, now clock.Instant) {
	c.lonely = lonely
	c.alone = lonely && c.s.Probed && c.seen && c.phase == Standby && now.Sub(c.heardAt) >= UnheardAfter
}

// beginMine takes up the newest era if it was given to this process. Not while a
// claim is open: the view may be faster than its answer, which has the windows.
func (c *Core) beginMine(now clock.Instant) {
	if t := c.tenure; c.mine(t) && !t.GetRetired() && t.GetEra() > c.lastEra && !c.standby.claiming {
		c.begin(t, now)
	}
}

// mine reports that t was given to this process.
func (c *Core) mine(t *rootv1.Tenure) bool {
	return t.GetHolderId() == c.s.ID && t.GetHolderIncarnation() == c.s.Incarnation
}

// OnEraOver tells that the root refused an act of era because it is over.
func (c *Core) OnEraOver(era uint64, now clock.Instant) {
	if era == c.holding.era {
		c.end(now)
		c.standby.waitForView(now)
		c.Tick(now)
	}
}

// StepDown gives the era up because this process found something wrong with
// it. It claims again like any other standby.
func (c *Core) StepDown(era uint64, now clock.Instant) { c.OnEraOver(era, now) }

// OnSuperseded tells that a newer process runs under this id: the Core ends its
// era, retires it, and claims no more.
func (c *Core) OnSuperseded(now clock.Instant) {
	c.superseded = true
	c.retire(now)
}

// Shutdown begins an orderly end. With an era the Core is Draining until
// OnDrained, otherwise Stopped.
func (c *Core) Shutdown(now clock.Instant) {
	switch c.phase {
	case Holding:
		c.phase = Draining
		c.pump(now)
	case Standby:
		c.phase = Stopped
	}
}

// OnDrained tells that nobody waits any more, or may wait no longer: the era
// ends and is retired.
func (c *Core) OnDrained(now clock.Instant) { c.retire(now) }

func (c *Core) retire(now clock.Instant) {
	era := c.holding.era
	if era != 0 {
		c.end(now)
		c.emit(Action{Kind: Retire, Era: era})
	}
	c.phase = Stopped
}

// OnRetired tells the outcome of a Retire: whom requests are sent to from now on.
func (c *Core) OnRetired(r *rootv1.CommandResult, now clock.Instant) {
	for _, e := range r.GetEvents() {
		c.learn(e.GetTenure(), now)
	}
}

// ClaimOpen reports that a claim has been sent and not answered: its outcome
// may still give this process an era.
func (c *Core) ClaimOpen() bool { return c.standby.claiming }

// backoff is the wait before another try: doubled each time, with jitter.
func (c *Core) backoff(failures int) time.Duration {
	d := retryLeast << min(failures, 10)
	d = min(d, retryMost)
	return d/2 + time.Duration(c.rng.Int64N(int64(d)))
}

func (c *Core) claimMessage(now clock.Instant) *rootv1.TenureClaimed {
	return &rootv1.TenureClaimed{
		HolderId:          c.s.ID,
		HolderIncarnation: c.s.Incarnation,
		HolderAddress:     c.s.Address,
		ExpectedEra:       c.tenure.GetEra(),
		TtlMillis:         uint64(c.claimTTL(now).Milliseconds()),
		LeastTtlMillis:    uint64(c.s.TTL.Milliseconds()),
		Mandates:          slices.Clone(c.s.Mandates),
		UnlessConfirmed:   !c.standby.suspect && !c.tenure.GetRetired() && c.tenure.GetHolderId() != c.s.ID,
	}
}
