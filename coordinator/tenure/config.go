package tenure

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// DefaultTTL is the ttl that the commands use by default. A takeover waits at
// most that long for a holder that died without retiring, and a holder lives on
// its last confirmation as long while the root elects a leader. 200 ms keeps
// the first below 300 ms; it costs 15 confirmations a second while there are
// callers and 7 while there are none, which write nothing; and a pause that
// outlasts it makes requests wait for the next confirmation, not fail.
const DefaultTTL = 200 * time.Millisecond

// DefaultMostTTL is up to where the commands let the ttl grow by default: a machine that
// has ten times too much to do answers within it.
const DefaultMostTTL = 3 * time.Second

// MaxTTL bounds the ttl; the root refuses longer ones.
const MaxTTL = time.Hour

// Bounds of a Holder.
const (
	// DefaultMaxWaiting bounds the requests that wait for one window, and those
	// that wait for confirmations.
	DefaultMaxWaiting = 16_384
	// DefaultProbeEvery is the time between two probes of the holder.
	DefaultProbeEvery = 150 * time.Millisecond

	// alarmPause is the least time between two probes that alarms asked for.
	alarmPause = 5 * time.Millisecond

	// holdFor is how long a request waits while the Tenure is vacant: longer than an
	// orderly handover takes.
	holdFor = 50 * time.Millisecond

	// keepFor is how long one that has retired keeps requests that wait: as long as
	// a successor takes on an idle machine.
	keepFor = 10 * time.Millisecond

	// clockWait is the pause after the root refused a window for its clock's sake.
	clockWait = 20 * time.Millisecond

	// drainFor is how long requests in flight may take to finish at an orderly
	// end; stopWithin bounds draining and retiring together.
	drainFor   = time.Second
	stopWithin = 2 * time.Second
	// callTimeout ends a call to the root; what it was for is repeated.
	callTimeout = time.Second
)

// Root is how a Holder reaches the metadata root. Calls block until the
// outcome is known or ctx ends; several may overlap. An error means that the
// outcome is unknown and the request may be repeated. What is passed in and
// what is returned is nobody's to change afterwards.
type Root interface {
	// Claim asks for an era, and for windows to begin it with: all or none are
	// rooted with it, and the result has an event for each behind that of the era.
	Claim(ctx context.Context, claim *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error)
	// Confirm asks whether an era is active at some moment between the call and
	// the return. An answer may not be shared with an earlier call.
	Confirm(ctx context.Context, r *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error)
	// Propose proposes commands, each judged on its own, in order.
	Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error)
}

// Views is where a Holder sees what is rooted.
type Views interface {
	// Authority returns what the newest view says; false while there is none.
	Authority() (Authority, bool)
	// Changed returns a channel that is closed once the view is newer than it
	// was at the call.
	Changed() <-chan struct{}
}

// Config configures a Holder.
type Config struct {
	// ID is the coordinator's name, Incarnation random per process and not 0.
	ID          string
	Incarnation uint64
	// Address is where callers reach this coordinator, host:port.
	Address string
	// TTL is how long a confirmation is good for, in whole milliseconds, an
	// hour at most. 0 trusts no clock: every reply is confirmed by the root after
	// it was generated.
	TTL time.Duration
	// MostTTL is up to where the ttl grows while confirmations come late, in whole
	// milliseconds, an hour at most; see Settings. 0: it does not grow.
	MostTTL time.Duration
	// IDStart and TSOStart are the lowest values ever to serve.
	IDStart, TSOStart uint64
	// IDWindow is the least number of ids to root at a time, TSOAhead how far
	// ahead of use to root timestamps. 0: the defaults of idalloc and tso.
	IDWindow uint64
	TSOAhead time.Duration

	Root  Root
	Views Views
	// Probe says how the holder of a Tenure is; it is asked only by
	// standbys. HealthServing should mean that it can serve ids and timestamps,
	// not only that it accepts connections. Nil: with a ttl a dead holder is
	// found by claiming now and then; with a ttl of 0 only by OnHolderSuspect.
	Probe func(ctx context.Context, holder *rootv1.Tenure) Health
	// Alarm, when it can be received from, says that the next probe is due at
	// once: something has happened to the holder. Nil: nobody raises one.
	Alarm <-chan struct{}
	// ProbeEvery is the time between probes; one may take two thirds of it, so that
	// the one after it comes before UnknownAfter. 0 counts as DefaultProbeEvery. UnknownAfter is how long a holder may answer
	// none before it is suspect; 0 counts as DefaultUnknownAfter.
	ProbeEvery, UnknownAfter time.Duration
	// MaxWaiting bounds requests that wait. 0 counts as DefaultMaxWaiting.
	MaxWaiting int

	Clock clock.Clock
	// Logger hears of eras that begin and end. Nil: nothing is logged.
	Logger hclog.Logger
}

// Validate says what is wrong with the Config, if anything.
func (c *Config) Validate() error {
	switch {
	case c.ID == "":
		return errors.New("tenure: ID is empty")
	case c.Incarnation == 0:
		return errors.New("tenure: Incarnation is 0")
	case c.Root == nil || c.Views == nil || c.Clock == nil:
		return errors.New("tenure: Root, Views and Clock are needed")
	case c.TTL < 0 || c.TTL > MaxTTL || c.TTL%time.Millisecond != 0:
		return errors.New("tenure: TTL is not a whole number of milliseconds up to an hour")
	case c.MostTTL < 0 || c.MostTTL > MaxTTL || c.MostTTL%time.Millisecond != 0:
		return errors.New("tenure: MostTTL is not a whole number of milliseconds up to an hour")
	}
	return nil
}

func (c *Config) raw() RawConfig {
	return RawConfig{Settings: Settings{
		ID: c.ID, Incarnation: c.Incarnation, Address: c.Address, TTL: c.TTL, MostTTL: c.MostTTL,
		Mandates: []rootv1.Mandate{
			rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO, rootv1.Mandate_MANDATE_SCHEDULE,
		},
		Probed: c.Probe != nil, UnknownAfter: c.UnknownAfter,
	}, IDStart: c.IDStart, TSOStart: c.TSOStart, IDWindow: c.IDWindow, TSOAhead: c.TSOAhead, MaxWaiting: c.MaxWaiting, Logger: c.Logger, Wall: c.Clock.Wall}
}

func (c *Config) setDefaults() {
	if c.ProbeEvery <= 0 {
		c.ProbeEvery = DefaultProbeEvery
	}
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = DefaultMaxWaiting
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
}
