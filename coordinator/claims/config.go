package claims

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Views are those of the root. They are filled by *rootview.Follower.
type Views interface {
	// View is the newest one, Changed is closed when there is a newer one.
	View() *rootview.View
	Changed() <-chan struct{}
}

// Root changes rooted truth. It is filled by *client.Client of meta/root.
type Root interface {
	// Propose has commands judged and returns one result each. An error leaves the
	// outcome open, unless it has a reason that says otherwise.
	Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error)
}

// Config says whom a Desk asks. All but Load, Identities, Clock and Logger is required.
type Config struct {
	// ID and Incarnation are this coordinator's.
	ID          state.CoordinatorID
	Incarnation uint64

	Views Views
	Root  Root
	// Observed is what is known of members beside the root.
	Observed placement.Observed
	// Load is what an incarnation last said of its load as a whole. Nil: nothing is known.
	Load func(id state.MemberID, incarnation uint64) (float64, bool)

	// Identities of commands. Nil: those of a source of its own.
	Identities *identity.Source
	// Clock tells elapsed time. Default: the machine's.
	Clock clock.Clock
	// Logger hears of refusals that nobody asked for. Nil: nothing is logged.
	Logger hclog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	if c.ID == "" || c.Incarnation == 0 || c.Views == nil || c.Root == nil || c.Observed == nil {
		return errors.New("claims: id, incarnation, views, root and observed are required")
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Load == nil {
		c.Load = func(state.MemberID, uint64) (float64, bool) { return 0, false }
	}
	if c.Identities == nil {
		c.Identities = identity.NewSource()
	}
	if c.Clock == nil {
		c.Clock = clock.NewSystem()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
}

const (
	// maxCalls bounds the calls to the root that are under way: one that is written, and
	// one that waits. maxCommands and maxBytes bound one call: it is an entry for which
	// others wait.
	maxCalls    = 2
	maxCommands = 512
	maxBytes    = state.MaxCommandBytes / 2
	// commandBytes is about what a command has beside its keys and why.
	commandBytes = 256
	// maxOpen and maxOpenBytes bound the claims that are not answered.
	maxOpen      = 65_536
	maxOpenBytes = 64 << 20
	// maxTries is how often a member is named for a region, after one was refused.
	maxTries = 3
	// proposeTime bounds one attempt to have commands judged; what is not answered is sent
	// again after retryLeast, doubling up to retryMost, while somebody waits for it.
	proposeTime           = 2 * time.Second
	retryLeast, retryMost = 20 * time.Millisecond, 500 * time.Millisecond
	// freshFor, and freshEach for each member, is for how long what is known of members is
	// good: the members of a keyspace are looked at no more often than that. Somebody is
	// refused for want of members by what is sureFor, and sureEach, old at most.
	freshFor, freshEach = 500 * time.Millisecond, 50 * time.Microsecond
	sureFor, sureEach   = 20 * time.Millisecond, 20 * time.Microsecond
	// maxFields bounds the keyspaces of which members are kept.
	maxFields = 1024
)
