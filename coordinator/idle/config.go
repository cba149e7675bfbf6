package idle

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
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

// Commands sends a command to an incarnation that has a stream here, once; it does not wait.
// It is filled by *server.Server.
type Commands interface {
	Command(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error
}

// Config says whom a Releaser asks. All but Identities, Clock and Logger is required.
type Config struct {
	// ID and Incarnation are this coordinator's.
	ID          state.CoordinatorID
	Incarnation uint64

	Views Views
	Root  Root
	// Soft is what members report.
	Soft     *catalog.Soft
	Commands Commands

	// Identities of commands. Nil: those of a source of its own.
	Identities *identity.Source
	// Clock tells elapsed time. Default: the machine's.
	Clock clock.Clock
	// Logger hears of refusals. Nil: nothing is logged.
	Logger hclog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	if c.ID == "" || c.Incarnation == 0 || c.Views == nil || c.Root == nil || c.Soft == nil || c.Commands == nil {
		return errors.New("idle: id, incarnation, views, root, soft and commands are required")
	}
	return nil
}

func (c *Config) setDefaults() {
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
	// firstCommand is above the ids of commands that others send in an era.
	firstCommand = 1 << 62
	// maxFound bounds the regions that were found and not asked for: behind them nothing more
	// is looked through. maxAsked bounds those that one member is asked for at a time, which
	// is far below the answers that it remembers, and maxAskedAll those of all.
	maxFound    = 16_384
	maxAsked    = 256
	maxAskedAll = 16_384
	// answerTime is how long a member has to answer. One that does not may have lost the
	// command; what it stopped nevertheless is in its reports.
	answerTime = 30 * time.Second
	// maxStopped bounds the regions that members have stopped and that are not on their way
	// to the root; of more the reports are looked through again.
	maxStopped = 65_536
	// maxBurst bounds what is asked for at a time, and burstEvery is the time between: what is
	// released is work for all processes, and whoever looks a route up waits for so much of it.
	// With maxLeaving regions that are stopped and not removed nobody is asked: their keys
	// have nobody until the root has removed them.
	maxBurst   = 64
	burstEvery = 5 * time.Millisecond
	maxLeaving = 256
	// maxRemoved bounds the regions of one call to the root, and maxCommands its commands, when
	// they are removed one by one: an entry is one that everybody else's changes wait for.
	// One call is under way at a time, and behind it is a pause for as long as it took,
	// maxRest at most: the slower the root and the machines are, the less is removed.
	maxRemoved  = 128
	maxCommands = 4
	maxRest     = 100 * time.Millisecond
	// scanRest is how many times as long as a part of the reports took the pause behind it is.
	scanRest = 3
	// proposeTime bounds one attempt to have commands judged; what is not answered is sent
	// again after retryLeast, doubling up to retryMost, for as long as the era lasts.
	proposeTime           = 2 * time.Second
	retryLeast, retryMost = 20 * time.Millisecond, 500 * time.Millisecond
	// againAfter is when a region is looked at again that the root did not remove, and
	// reports of which there was no room for all.
	againAfter = time.Second
	// crowdedPause is how long a member with too many commands in its next answer is let be.
	crowdedPause = 2 * time.Millisecond
	// listEvery is how often the settings of keyspaces are looked at, if anything changes.
	listEvery = time.Second
	// leastScan is the least time between two looks of a keyspace.
	leastScan = 100 * time.Millisecond
)
