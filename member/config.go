package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// MaxFrontierBytes is the most bytes of a frontier that Release, Merge or Checkpoint returns.
// A longer one is an error of that call: an application that has more to say keeps it
// elsewhere, and returns where.
const MaxFrontierBytes = held.MaxFrontierBytes

// MaxCoordinators is the most coordinators that a member keeps a line to.
const MaxCoordinators = held.MaxStreams / 2

// Config says who a member is. ID, Address and Client must be set; the zero value of
// every other field means its default.
type Config struct {
	// ID names the member for as long as it exists; Address is where callers reach it,
	// host:port.
	ID      string
	Address string
	// ProbeAddress is host:port that this process listens at, so that coordinators see at
	// once when it has died. It must be its own, with nothing in between, and one that
	// coordinators reach: what is registered is the IP address and the port that the listener
	// is bound to. A name is resolved to one address, port 0 takes a free one, and all
	// addresses of a machine are refused, as is loopback unless Address is that too. Empty:
	// none; then its death is known by its silence.
	ProbeAddress string
	Labels       map[string]string
	// Capacity is the share of load that it takes, relative to others: 0 counts as 1,
	// 1,000,000 at most.
	Capacity uint64
	// Kind is a free word for what it is. Default "worker".
	Kind string
	// Keyspaces are the assigned keyspaces whose regions it takes. Empty: all.
	Keyspaces []string

	// Client finds coordinators, and outlives the member. Members may share it.
	Client *client.Client
	// TLS is what the probe listener shows; nil: plain connections.
	TLS *mtls.Source

	// Coordinators is how many coordinators it keeps a line to, the holder of the Tenure
	// among them. Default 3.
	Coordinators int
	// Workers is how many calls to the Handler overlap. Release and Evict come first and may have
	// all of them, Acquire and Merge all but an eighth. Of the others each kind has a quarter at
	// most, so that slow ones hold up no region that is not served: Prepare and Abandon;
	// Checkpoint, Idle and TransferLeader; what has failed before and is tried again. Where there
	// is more than one keyspace, each has three quarters at most, but for Release and Evict. With
	// 1 there is nothing to share.
	// Default 32.
	Workers int
	// HandlerTimeout is how long a call to the Handler may take before it is reported;
	// its context ends then. It also bounds the end of Run. Default 30 s.
	HandlerTimeout time.Duration
	// RequestGrace is how long requests may go on when their region is to be let go, or was
	// lost: Region.Leaving says so at once. Then their contexts end, and their right: whatever
	// they return, Do returns *NotOwned. Release, or Acquire of what comes next, is called when
	// they have returned, or HandlerTimeout later. Each of both is a quarter of a move's deadline
	// at most, but PinsConfig.Grace is whole. Default 10 s, and PinsConfig.Grace at least.
	RequestGrace time.Duration
	// MaxHeld is how many requests may wait for regions that are on their way; those for one
	// region have three quarters of that at most. Default 10,000.
	MaxHeld int

	// Pins bounds what callers pin to this process.
	Pins PinsConfig

	// Listen opens the listener of probes; default net.ListenConfig's.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Killed is asked before each call to the Handler, which is not made if it says so: a test
	// ends a member as if its process were gone. nil: never.
	Killed func() bool
	// Elapsed tells elapsed time since some moment: it never goes back, and counts a suspended
	// machine's sleep. nil: the machine's; a test in a bubble of virtual time has time.Since.
	Elapsed func() time.Duration
	// Logger hears of changes at Info. nil: none.
	Logger hclog.Logger

	clock clock.Clock // Elapsed, or the machine's
}

// elapsed is the clock of Config.Elapsed.
type elapsed struct {
	*clock.Monotonic // its wall clock
	since            func() time.Duration
}

// Now implements clock.Clock.
func (e elapsed) Now() clock.Instant { return clock.Instant(e.since()) + 1 }

// Validate says what is wrong with a Config. Zero values that have a default are not
// wrong.
func (c Config) Validate() error {
	switch {
	case c.ID == "":
		return errors.New("member config: ID is empty: give the process a name that it keeps when it restarts")
	case rooted.CheckID("ID", c.ID) != nil:
		return fmt.Errorf("member config: %w", rooted.CheckID("ID", c.ID))
	case c.Address == "":
		return errors.New("member config: Address is empty: give host:port, where callers reach this process")
	case everywhere(c.Address):
		return fmt.Errorf("member config: Address is %q, which is all addresses of this machine: give the one where callers reach this process", c.Address)
	case c.ProbeAddress != "" && everywhere(c.ProbeAddress):
		return fmt.Errorf("member config: ProbeAddress is %q, which is all addresses of this machine: give the one at which coordinators reach this process, or leave it empty", c.ProbeAddress)
	case c.Client == nil:
		return errors.New("member config: Client is nil: make one with client.New")
	case c.Coordinators < 0 || c.Coordinators > MaxCoordinators:
		return fmt.Errorf("member config: Coordinators is %d: give 1 to %d", c.Coordinators, MaxCoordinators)
	case c.Capacity > rooted.MaxCapacity:
		return fmt.Errorf("member config: Capacity is %d: give %d at most, it is relative to other members'", c.Capacity, rooted.MaxCapacity)
	case c.Workers < 0 || c.MaxHeld < 0 || c.HandlerTimeout < 0 || c.RequestGrace < 0:
		return errors.New("member config: Workers, MaxHeld, HandlerTimeout and RequestGrace may not be negative")
	}
	return c.Pins.validate(cmp.Or(c.HandlerTimeout, defaultHandlerTimeout))
}

// everywhere says whether an address is one to listen at, and not one to be dialled.
func everywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

const defaultHandlerTimeout = 30 * time.Second

func (c Config) withDefaults() Config {
	c.Kind = cmp.Or(c.Kind, "worker")
	c.Coordinators = cmp.Or(c.Coordinators, 3)
	c.Workers = cmp.Or(c.Workers, 32)
	c.MaxHeld = cmp.Or(c.MaxHeld, 10_000)
	c.HandlerTimeout = cmp.Or(c.HandlerTimeout, defaultHandlerTimeout)
	c.Pins = c.Pins.withDefaults(c.HandlerTimeout)
	c.RequestGrace = cmp.Or(c.RequestGrace, 10*time.Second)
	if c.Listen == nil {
		c.Listen = new(net.ListenConfig).Listen
	}
	c.clock = clock.NewSystem()
	if c.Elapsed != nil {
		c.clock = elapsed{clock.NewMonotonic(), c.Elapsed}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

// record is how the member registers.
func (c Config) record(probe string, nonce uint64) *rootv1.Member {
	return &rootv1.Member{
		Id: c.ID, Address: c.Address, ProbeAddress: probe, Labels: maps.Clone(c.Labels), Capacity: c.Capacity,
		Kind: c.Kind, Keyspaces: c.Keyspaces, StartNonce: nonce,
	}
}

// Stats is what an application tells of a region.
type Stats = rooted.Stats

// Load is a member's load as a whole.
type Load = rooted.Load

// Region is a region that the member has to do with. Start and End are route keys,
// [Start, End); an empty End is the end of the keyspace.
type Region struct {
	ID       rooted.RegionID
	Keyspace string
	Start    string
	End      string
	// Epoch that the member acts at: everything that lands elsewhere carries it.
	Epoch rooted.Epoch
	// Frontier is how far the owner before got.
	Frontier string
	// Owners are all owners of a shared region; shared: not to be changed.
	Owners []rooted.Owner

	grant *held.Grant
}

// Slot is the number of the slot that the region is, in a keyspace of slots; of keys it is
// rooted.Slot.
func (r Region) Slot() uint64 { return rooted.SlotAt(r.Start) }

// Leaving is closed when the region is to be let go, or was lost: requests that go on
// for long should end. nil outside of Do.
func (r Region) Leaving() <-chan struct{} {
	if r.grant == nil {
		return nil
	}
	return r.grant.Leaving()
}

func regionOf(r *rooted.Region, k *held.Keyspace, g *held.Grant) Region {
	return Region{ID: r.ID, Keyspace: k.Name, Start: r.Start, End: r.End, Epoch: r.Epoch, Frontier: r.Frontier, Owners: r.Owners, grant: g}
}

// Peer is the member that a region comes from.
type Peer struct {
	ID          rooted.MemberID
	Incarnation uint64
	Address     string
	// Epoch that it serves the region at until the move is done.
	Epoch rooted.Epoch
}
