package assigner

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement/propose"
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
	// Subscribe reads the changes behind a position.
	Subscribe(after state.Token) *rootview.Reader
}

// Root changes rooted truth. It is filled by *client.Client of meta/root.
type Root interface {
	// Propose has commands judged and returns one result each. An error leaves the
	// outcome open, unless it has a reason that says otherwise.
	Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error)
}

// Streams says what the newest set is that an incarnation has taken on its stream here,
// and since when it has that stream. Zero: it has none. It is filled by *server.Server.
type Streams interface {
	Shown(id state.MemberID, incarnation uint64) (token state.Token, since clock.Instant)
}

// Hooks asks applications over HTTP, within ctx. It is filled by *hook.Client.
type Hooks interface {
	// Place asks where regions shall go; Scale tells how many members a keyspace wants.
	Place(ctx context.Context, url string, p *hook.Placement) (map[state.RegionID]state.MemberID, error)
	Scale(ctx context.Context, url string, w *hook.Wish) error
}

// Config says whom an Assigner asks. All but Hooks, Strategies,
// Frozen, Settings, Clock and Logger is required.
type Config struct {
	// ID and Incarnation are this coordinator's.
	ID          state.CoordinatorID
	Incarnation uint64

	Views Views
	Root  Root
	// Soft is what members report.
	Soft *catalog.Soft
	// Probe connects to a member's own address, within ctx.
	Probe func(ctx context.Context, p liveness.Probe) liveness.ProbeResult
	// Ask asks another coordinator when it last heard members, within ctx. Without
	// an answer of its own there is an error, also where its port refuses.
	Ask func(ctx context.Context, of *rootv1.Coordinator, members []state.MemberID) ([]liveness.Word, error)

	// Hooks asks applications over HTTP. Nil: nobody is asked, and what hooks are to place is
	// placed without them.
	Hooks Hooks
	// Strategies are those that are brought as code, by the names of keyspaces.
	Strategies map[string]propose.Strategy
	// Frozen is asked before each look of the planner: while it says so nothing is planned.
	// Nil: never.
	Frozen func() bool

	// Settings of the detector.
	Settings liveness.Settings
	// Clock tells elapsed time. Default: the machine's.
	Clock clock.Clock
	// Logger hears of verdicts, drains and refusals. Nil: nothing is logged.
	Logger hclog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	if c.ID == "" || c.Incarnation == 0 || c.Views == nil || c.Root == nil || c.Soft == nil || c.Probe == nil || c.Ask == nil {
		return errors.New("assigner: id, incarnation, views, root, soft, probe and ask are required")
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Clock == nil {
		c.Clock = clock.NewSystem()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
}

// RawConfig says whom a Raw belongs to, and what it looks at. All but Settings,
// Strategies and Frozen is required.
type RawConfig struct {
	// ID and Incarnation are the coordinator's.
	ID          state.CoordinatorID
	Incarnation uint64

	// View is the newest one.
	View    func() *rootview.View
	Streams Streams
	Soft    *catalog.Soft
	// Command sends a command to an incarnation that has a stream here, once. It does not
	// wait. Nil: nobody has one.
	Command func(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error
	// RefuseDrain tells an incarnation that has a stream here why it does not drain. It does not
	// wait. Nil: nobody has one.
	RefuseDrain func(id state.MemberID, incarnation uint64, because *rootv1.ErrorDetail)

	Settings liveness.Settings
	// PoisonTime is how soon after it got a region the death of a member speaks against the
	// region. 0: placement.PoisonTime.
	PoisonTime time.Duration
	Identities *identity.Source
	Clock      clock.Clock
	Logger     hclog.Logger
	// Wake has Look called soon, WakeDetector Detect. They do not wait. WakeDetector may be nil: Look
	// detects, too.
	Wake, WakeDetector func()
	// Strategies are those that are brought as code, by the names of keyspaces.
	Strategies map[string]propose.Strategy
	// Frozen: see Config.
	Frozen func() bool
}

const (
	// askTime is how long other coordinators have to say whom they hear: a round that is
	// under way, and one more.
	askTime = 200 * time.Millisecond
	// probeTime bounds one connection to a member's own address, maxProbes how many
	// there are at a time.
	probeTime = time.Second
	maxProbes = 512
	// proposeTime bounds one attempt to have commands judged; what is not answered is
	// sent again after retryLeast, doubling up to retryMost, for as long as the era lasts.
	proposeTime           = 2 * time.Second
	retryLeast, retryMost = 20 * time.Millisecond, 500 * time.Millisecond
	// maxCalls bounds the calls to the root that are under way, which it may merge into
	// one entry: one that is written, and one that waits. urgentCalls are those that
	// verdicts may have beside them. maxCommands, maxBytes and placement.MaxGrants
	// regions bound one call.
	maxCalls, urgentCalls = 2, 4
	maxCommands           = 256
	maxBytes              = state.MaxCommandBytes * 3 / 4
	// gatherTime is how long steps of very many moves wait for others.
	gatherTime = 100 * time.Millisecond
	// maxWaiting is the number of commands that wait for a call above which nothing
	// more is planned or judged.
	maxWaiting = 4096
	// maxTurned bounds the regions that were reported in another phase since Run looked.
	maxTurned = 1 << 16
	// refusedPause is how long nothing is planned for a region after a refusal; starvePause
	// is how often is looked again at what nobody could take.
	refusedPause = 200 * time.Millisecond
	starvePause  = 500 * time.Millisecond
	// detectPause is when the detector looks again that had no room for what it found.
	detectPause = 10 * time.Millisecond
	// frozenPause is how often is looked whether the planner is still frozen.
	frozenPause = 10 * time.Millisecond
)
