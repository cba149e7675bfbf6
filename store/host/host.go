// Package host is the regions that a reference store hosts: which it may serve, and how
// they change hands.
//
// It owns the runtime catalog, a cache in memory of the recovery catalog on disk
// (store/local), which follows what the root says. A region is not replicated: its first
// owner leads it, and the frontier of its descriptor is the identity of the workdir that
// has its data. It promises:
//
//  1. A region is served by one store: the one that the root names as its first owner,
//     in the workdir that the root names. Where the data is not, nothing is served in its
//     place: neither by an owner without it nor behind a workdir that was wiped.
//  2. The lead leaves by the leader's own hand alone: it stops writes, copies, notes on
//     disk that it may not lead any more, and asks the root. Until it knows what became
//     of that it serves nothing, also after a restart.
//  3. What was answered to a writer is on disk, and judged at the region and epoch that
//     the writer named: behind a change of the region an old epoch writes nothing.
//  4. A change of a region is the root's before it is the catalog's. A crash between the
//     two heals: what is rooted comes again with the watch.
//  5. Nothing is served before Serve: a process cannot know from its folder alone whether
//     it is the one that speaks for the store, or runs on a copy. Behind it, without
//     coordinators, everything is served that was led when they were last heard. What was
//     admitted before Suspend or End and not answered yet is not answered as done.
//
// It leaves to others: who may call (store/server), and telling coordinators (package
// store).
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
)

// Root changes rooted truth. It is filled by *client.Client.
type Root interface {
	// Publish asks for a change. A rejection is an error beside the result; without a
	// result nobody knows the outcome.
	Publish(ctx context.Context, cmd *rootv1.Command) (*rootv1.CommandResult, error)
}

// Peers reaches other stores.
type Peers interface {
	// Copy sends a region to a store and returns the identity of its workdir when all of
	// it is on disk there. send passes entries on in key order.
	Copy(ctx context.Context, to rooted.MemberID, header *storev1.ImportHeader, send func(each func(*storev1.Entry) error) error) (workdir []byte, err error)
	// Address is where a store is reached; empty: not known.
	Address(id rooted.MemberID) string
}

// Config of a Host. All fields but Logger are required.
type Config struct {
	Self   rooted.MemberID
	Disk   *local.Disk
	Root   Root
	Peers  Peers
	Logger hclog.Logger
}

// Role is what a store may do with a region.
type Role uint8

// Roles.
const (
	// Following: another owner leads it.
	Following Role = iota
	// Leading: it is served.
	Leading
	// Claiming: it has no data anywhere, and the root is asked that it be here.
	Claiming
	// Copying: it is read, and not written, because it goes to another owner.
	Copying
	// HandingOver: the root was asked to give it to another owner, and has not said.
	HandingOver
	// Missing: it should be led here, and its data is not here.
	Missing
)

var roleNames = [...]string{"following", "leading", "claiming", "copying", "handing_over", "missing"}

// String is the role in the words of Status.
func (r Role) String() string { return roleNames[r] }

// hosted is a region in the runtime catalog. Everything but what is atomic is written
// once, before others see it, except role and busy, which Host.mu guards.
type hosted struct {
	region     *rooted.Region
	role       Role
	busy       bool // an operation changes it
	arrived    bool // the data has come whole, or there never was any
	handing    rooted.MemberID
	transition string
	why        string // of Missing

	counted     atomic.Bool
	keys, bytes atomic.Int64
}

func (r *hosted) leads() bool { return r.role == Leading || r.role == Copying || r.role == HandingOver }

func (r *hosted) record() *storev1.LocalRegion {
	return &storev1.LocalRegion{
		Region: r.region.Proto(), Leading: r.leads(), Arrived: r.arrived, HandingTo: string(r.handing), TransitionId: r.transition,
	}
}

// Host is the regions of one store. Make it with Open.
type Host struct {
	cfg     Config
	workdir string

	// taking is held by who fills a range that is not led yet.
	taking sync.Mutex
	// changing is held by who changes the recovery catalog; before mu.
	changing sync.Mutex
	// unsettled tells Run that there is something to ask the root for.
	unsettled chan struct{}
	served    atomic.Uint64

	mu      sync.RWMutex
	regions map[rooted.RegionID]*hosted // guarded by mu
	// closed is why nothing is served, nil while it is, ended that it stays so; guarded by mu.
	closed error
	ended  bool
}

// errNotRegistered is why a host serves nothing before Serve.
var errNotRegistered = &reason.Error{Detail: &rootv1.ErrorDetail{
	Reason: rootv1.Reason_REASON_RANGE_CHANGE_PENDING, RetryAfterMillis: retryAfterMillis,
	Message: "the store has started and serves nothing before a coordinator has answered its registration: try again",
}}

// Serve has the regions served: this process is registered as the store.
func (h *Host) Serve() {
	h.mu.Lock()
	if !h.ended {
		h.closed = nil
	}
	h.mu.Unlock()
	h.settleSoon()
}

// Suspend has nothing served until the next Serve: the registration is over.
func (h *Host) Suspend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.closed = errNotRegistered
	}
}

// End has nothing served any more: another process speaks for the store.
func (h *Host) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.closed = reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "another process runs as %s: ask a coordinator where it is", h.cfg.Self)
}

// open returns why nothing is served; nil: it is.
func (h *Host) open() error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.closed
}

// Open reads the recovery catalog.
func Open(cfg Config) (*Host, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	identity, err := cfg.Disk.Identity()
	if err != nil {
		return nil, err
	}
	records, err := cfg.Disk.Regions()
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, workdir: string(identity.GetId()), unsettled: make(chan struct{}, 1), regions: map[rooted.RegionID]*hosted{}, closed: errNotRegistered}
	for _, record := range records {
		r := &hosted{
			region: rooted.RegionFromProto(record.GetRegion()), arrived: record.GetArrived(),
			handing: rooted.MemberID(record.GetHandingTo()), transition: record.GetTransitionId(),
		}
		switch {
		case record.GetLeading() && r.handing != "":
			r.role = HandingOver
		case record.GetLeading():
			r.role = Leading
		default:
			r.role, r.why = h.roleOf(r.region, r, nil)
		}
		h.regions[r.region.ID] = r
	}
	h.settleSoon()
	return h, nil
}

// WorkdirID is the identity of the workdir.
func (h *Host) WorkdirID() []byte { return []byte(h.workdir) }

func (h *Host) settleSoon() {
	select {
	case h.unsettled <- struct{}{}:
	default:
	}
}

// find returns a region.
func (h *Host) find(id rooted.RegionID) *hosted {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.regions[id]
}

// inOrder are all regions by key.
func (h *Host) inOrder() []*hosted {
	h.mu.RLock()
	all := slices.Collect(maps.Values(h.regions))
	h.mu.RUnlock()
	slices.SortFunc(all, func(a, b *hosted) int {
		return cmp.Or(cmp.Compare(a.region.Start, b.region.Start), cmp.Compare(a.region.ID, b.region.ID))
	})
	return all
}

// begin takes a region that is led for an operation at an epoch; end gives it back.
func (h *Host) begin(at *storev1.RegionAt) (*hosted, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regions[rooted.RegionID(at.GetRegionId())]
	if err := h.judge(r, at, true); err != nil {
		return nil, err
	}
	if r.busy {
		return nil, pending(r, "another operation changes region %d", r.region.ID)
	}
	r.busy = true
	return r, nil
}

func (h *Host) end(regions ...*hosted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range regions {
		r.busy = false
	}
}

// retryAfterMillis is the pause that is asked for while a region changes.
const retryAfterMillis = 20

func pending(r *hosted, format string, args ...any) error {
	e := reason.New(rootv1.Reason_REASON_RANGE_CHANGE_PENDING, format+": try again", args...)
	e.Detail.RetryAfterMillis, e.Detail.Region = retryAfterMillis, r.region.Proto()
	return e
}

// published is what became of a change: its result, a refusal of the root, or that
// nobody knows.
func (h *Host) published(ctx context.Context, events ...*rootv1.Event) (*rootv1.CommandResult, error) {
	result, err := h.cfg.Root.Publish(ctx, &rootv1.Command{Events: events})
	switch {
	case result == nil && err == nil:
		err = errors.New("there is no answer")
		fallthrough
	case result == nil:
		return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the root was not heard of: %v", err)
	case result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED:
		return nil, &reason.Error{Detail: cmp.Or(result.GetError(), &rootv1.ErrorDetail{Message: fmt.Sprint(err)})}
	}
	return result, nil
}

func unknown(err error) bool { return reason.Of(err) == rootv1.Reason_REASON_OUTCOME_UNKNOWN }
