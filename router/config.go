package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
)

// Config says what a Router follows and how it chooses. Only Client must be set.
type Config struct {
	// Client asks coordinators. It is the caller's: the Router does not close it.
	Client *client.Client
	// Keyspaces are names, 64 at most. Options that name none mean the first. Default:
	// "default".
	Keyspaces []string
	// MaxRegions, MaxBytes and MaxAnswers bound what is held of each keyspace, as in
	// client.CacheConfig.
	MaxRegions, MaxBytes, MaxAnswers int

	// Pick says which of several owners of a region is taken. Those of a keyspace that
	// members report are replicas, of which the first leads: it is taken, if it lives.
	Pick Strategy
	// PickFunc, if set, is asked instead: for the number of one of the members, of which
	// there are two at least. Another number counts as 0. It may not keep the slice.
	PickFunc func(key []byte, among []client.Member) int
	// Load is what LeastLoaded and TwoChoices go by. Default: what this Router has under
	// way at the member by Do.
	Load func(client.Member) int64

	// Claim makes regions of keys that have none, where Options.ClaimOnMiss asks for it.
	// nil: Client.Claim does.
	Claim Claimer
	// MaxAge is that of calls whose Options have none. 0: any.
	MaxAge time.Duration
	// Hold is how long a call waits at most for a coordinator's answer and an owner that lives,
	// and to be tried again, where Options say nothing else. Default 5 s.
	Hold time.Duration
	// MaxWaiting is how many callers wait in one keyspace. Default 4,096.
	MaxWaiting int
	// AvoidFor is how long a member is avoided that could not be reached. Default 1 s.
	AvoidFor time.Duration
	// OnUnreachable, if set, hears of it, on the caller's goroutine.
	OnUnreachable func(m client.Member, err error)
	// FailedWithin is how long a member that was said to have failed may be silent before requests
	// there end whose key another one has. Default 1 s.
	FailedWithin time.Duration
	// Logger gets what Run goes on behind at Warn. nil: none.
	Logger hclog.Logger
}

// Claimer makes the region of a key that has none. made is false when it was there. Who
// claims a key again finds its region.
type Claimer interface {
	Claim(ctx context.Context, keyspace string, key []byte) (r client.Route, made bool, err error)
}

// byClient is the Claimer that a Config has by itself.
type byClient struct{ c *client.Client }

// Claim implements Claimer.
func (b byClient) Claim(ctx context.Context, keyspace string, key []byte) (client.Route, bool, error) {
	claimed, err := b.c.Claim(ctx, keyspace, key)
	return claimed.Route, claimed.Made, err
}

// Strategy is a way to choose one of several owners.
type Strategy int

// RoundRobin takes one after another. Random takes any. LeastLoaded takes the one with
// the least load, in turn where they are equal. TwoChoices takes the less loaded of any
// two, so that many callers who see the same load do not all go to one.
const (
	RoundRobin Strategy = iota
	Random
	LeastLoaded
	TwoChoices
)

// MaxKeyspaces is the most keyspaces a Config may list.
const MaxKeyspaces = 64

// Validate says what is wrong with a Config. Zero values are not wrong.
func (c Config) Validate() error {
	if c.Client == nil {
		return errors.New("router config: Client is nil: make one with client.New")
	}
	if len(c.Keyspaces) > MaxKeyspaces {
		return fmt.Errorf("router config: %d Keyspaces are more than %d", len(c.Keyspaces), MaxKeyspaces)
	}
	for i, name := range c.Keyspaces {
		if name == "" || slices.Contains(c.Keyspaces[:i], name) {
			return fmt.Errorf("router config: Keyspaces[%d] is %q: name each keyspace once", i, name)
		}
	}
	if c.Pick < RoundRobin || c.Pick > TwoChoices {
		return fmt.Errorf("router config: Pick %d is no strategy", c.Pick)
	}
	for _, d := range []struct {
		name  string
		value int64
	}{
		{"MaxRegions", int64(c.MaxRegions)},
		{"MaxBytes", int64(c.MaxBytes)},
		{"MaxAge", int64(c.MaxAge)},
		{"Hold", int64(c.Hold)},
		{"MaxWaiting", int64(c.MaxWaiting)},
		{"AvoidFor", int64(c.AvoidFor)},
		{"FailedWithin", int64(c.FailedWithin)},
	} {
		if d.value < 0 {
			return fmt.Errorf("router config: %s is negative: %d", d.name, d.value)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	if len(c.Keyspaces) == 0 {
		c.Keyspaces = []string{"default"}
	}
	if c.Claim == nil {
		c.Claim = byClient{c.Client}
	}
	if c.Hold == 0 {
		c.Hold = 5 * time.Second
	}
	if c.MaxWaiting == 0 {
		c.MaxWaiting = 4096
	}
	if c.AvoidFor == 0 {
		c.AvoidFor = time.Second
	}
	if c.FailedWithin == 0 {
		c.FailedWithin = time.Second
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}
