package claims

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
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

// Config says whom a Desk asks. All but Load, Strategies, AskHook, Identities, Clock and Logger
// is required.
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

	// Strategies are those that are brought as code, by the names of keyspaces. The Desk calls
	// them beside the planner.
	Strategies map[string]propose.Strategy
	// AskHook asks the hook of a keyspace about regions that are not there yet, within ctx and
	// as long as the hook has time. It is filled by *assigner.Assigner. Nil: nobody is asked.
	AskHook func(ctx context.Context, k *rootv1.Keyspace, regions []hook.Region, candidates []propose.Candidate) (map[state.RegionID]state.MemberID, error)

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
	// maxOpen and maxOpenBytes bound the claims that are not answered. Those of one keyspace
	// have share times what they leave to others.
	maxOpen      = 65_536
	maxOpenBytes = 64 << 20
	share        = 3
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
	// maxGiven bounds the regions that were given and are in no view: one that is so far
	// behind says too little of limits, and of who is there.
	maxGiven = 65_536
	// maxQuestions bounds the hooks that are asked at a time, maxAsked the claims of one
	// question, and maxAskedBytes about the bytes of their keys.
	maxQuestions  = 16
	maxAsked      = 1024
	maxAskedBytes = 1 << 20
	// questionTime bounds how long claims wait to be asked about, and then for the hook, whose
	// timeout may be longer than those who claim wait.
	questionTime = 2 * time.Second
	// restLeast, doubling up to restMost, is how long nobody waits for a hook that failed.
	restLeast, restMost = time.Second, 30 * time.Second
	// mostThought is how long a strategy that is brought may take until members are looked at anew.
	mostThought = 100 * time.Millisecond
)
