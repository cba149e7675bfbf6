package client

import (
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// ReadOption says where to read and how fresh the answer must be. Conditions
// add up; none is ever weakened silently. Without any a read is best effort,
// in keyspace "default".
type ReadOption func(*read)

// read is what options add up to.
type read struct {
	keyspace string
	options  *coordinatorv1.ReadOptions
	limit    int
	session  *Session
	members  bool // of a watch
}

// In reads in a keyspace.
func In(keyspace string) ReadOption { return func(r *read) { r.keyspace = keyspace } }

// Strong asks for a linearizable read: it reflects every change acknowledged
// before the call.
func Strong() ReadOption {
	return func(r *read) { r.set().Freshness = coordinatorv1.Freshness_FRESHNESS_STRONG }
}

// BestEffort asks for whatever the coordinator has, labelled. It is the default.
func BestEffort() ReadOption {
	return func(r *read) { r.set().Freshness = coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT }
}

// Bounded is MaxLag and MaxAge together. A coordinator that lags more than either
// allows refuses; when all do, the error is ErrRootLagExceeded.
func Bounded(entries uint64, age time.Duration) ReadOption {
	return func(r *read) {
		MaxLag(entries)(r)
		MaxAge(age)(r)
	}
}

// MaxLag asks for an answer at most so many log entries behind, however old.
// With MaxAge both hold.
func MaxLag(entries uint64) ReadOption {
	return func(r *read) {
		o := r.set()
		o.Freshness, o.MaxRootLag = coordinatorv1.Freshness_FRESHNESS_BOUNDED, &entries
	}
}

// MaxAge asks for an answer from a view that was level with the root at most so
// long ago, to the millisecond, however many entries came since. With MaxLag both
// hold. Less than a millisecond is ErrInvalidRequest: Strong is what has no age.
func MaxAge(age time.Duration) ReadOption {
	return func(r *read) {
		o, millis := r.set(), uint64(max(age, 0).Milliseconds())
		o.Freshness, o.MaxRootLagMillis = coordinatorv1.Freshness_FRESHNESS_BOUNDED, &millis
	}
}

// AtLeast asks for an answer that reflects a position: read your writes. The
// call waits for it within its deadline.
func AtLeast(token rooted.Token) ReadOption {
	return func(r *read) {
		if o := r.set(); token.Compare(rooted.TokenFromProto(o.GetRequiredRootToken())) > 0 {
			o.RequiredRootToken = token.Proto()
		}
	}
}

// AtRevision asks for a region's descriptor of at least that revision.
func AtRevision(revision uint64) ReadOption {
	return func(r *read) {
		o := r.set()
		o.RequiredDescriptorRevision = max(o.RequiredDescriptorRevision, revision)
	}
}

// Limit ends a list after so many items. Without it, or at 0, a list is complete.
func Limit(items int) ReadOption { return func(r *read) { r.limit = items } }

func (r *read) set() *coordinatorv1.ReadOptions {
	if r.options == nil {
		r.options = &coordinatorv1.ReadOptions{}
	}
	return r.options
}

func readOf(opts []ReadOption) read {
	var r read
	for _, o := range opts {
		o(&r)
	}
	return r
}

// saw notes what an answer reflects.
func (r *read) saw(d *coordinatorv1.Disclosure) {
	if r.session != nil {
		r.session.Saw(rooted.TokenFromProto(d.GetServedRootToken()))
	}
}

// Route tells who has a region. It is read only, and stays as it was when the
// region moves on; of the addresses of its owners one from a cache has those of now.
type Route struct {
	// Region is the descriptor. nil: there is no such region.
	Region *rooted.Region
	// At is the position that the route reflects.
	At rooted.Token

	members directory
	peers   []*Peer // the owners, of a route from a cache
	leader  rooted.MemberID
	from    *coordinatorv1.Disclosure
}

// Member is what a route knows of a member beside its id.
type Member struct {
	ID rooted.MemberID
	// Address that callers reach it at, host:port; empty if unknown.
	Address     string
	State       rootv1.MemberState
	Incarnation uint64
	// Left: it is rooted as failed because it drained and ended, as the watch has it.
	Left bool
}

// directory finds members. Read only once it is in a Route.
type directory map[rooted.MemberID]Member

// member finds what is known of a member.
func (r *Route) member(id rooted.MemberID) (Member, bool) {
	if m, ok := r.members[id]; ok {
		return m, true
	}
	for i, p := range r.peers {
		if r.Region.Owners[i].Member == id {
			m := p.Member()
			return m, m != Member{ID: id}
		}
	}
	return Member{}, false
}

// Found says whether there is a region.
func (r Route) Found() bool { return r.Region != nil }

// Leader returns the owner that leads the region's replication group, as last
// reported; empty if unknown.
func (r Route) Leader() rooted.MemberID { return r.leader }

// Address is where to send requests for the region: the leader if it is known,
// or else the first active owner, or else the first with an address. Empty:
// there is none.
func (r Route) Address() string {
	if m, _ := r.member(r.leader); m.Address != "" {
		return m.Address
	}
	if r.Region == nil {
		return ""
	}
	any := ""
	for i := range r.Region.Owners {
		m, ok := r.member(r.Region.Owners[i].Member)
		if ok && m.State == rootv1.MemberState_MEMBER_STATE_ACTIVE && m.Address != "" {
			return m.Address
		}
		if any == "" {
			any = m.Address
		}
	}
	return any
}

// Members returns what is known of the owners, in the order of Region.Owners.
func (r Route) Members() []Member {
	if r.Region == nil {
		return nil
	}
	out := make([]Member, len(r.Region.Owners))
	for i, o := range r.Region.Owners {
		out[i], _ = r.member(o.Member)
		out[i].ID = o.Member
	}
	return out
}

// Disclosure says what the answer is worth: freshness, lag, era. nil for a
// route from a cache.
func (r Route) Disclosure() *coordinatorv1.Disclosure { return r.from }

func directoryOf(owners []*coordinatorv1.OwnerAddress) directory {
	d := make(directory, len(owners))
	for _, o := range owners {
		id := rooted.MemberID(o.GetMemberId())
		d[id] = Member{ID: id, Address: o.GetAddress(), State: o.GetState(), Incarnation: o.GetIncarnation()}
	}
	return d
}

// routeOf makes a route of a reply.
func routeOf(region *rootv1.Region, d directory, leader string, from *coordinatorv1.Disclosure) Route {
	return Route{
		Region: rooted.RegionFromProto(region), At: rooted.TokenFromProto(from.GetServedRootToken()),
		members: d, leader: rooted.MemberID(leader), from: from,
	}
}
