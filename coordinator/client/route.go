package client

import (
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Route tells who has a region. It is read only, and stays as it was when the
// region moves on.
type Route struct {
	// Region is the descriptor. nil: there is no such region.
	Region *rooted.Region
	// At is the position that the route reflects.
	At rooted.Token

	members directory
	cached  memberTable // of a route from a cache
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
}

// directory finds members. Read only once it is in a Route.
type directory map[rooted.MemberID]Member

// member finds what is known of a member.
func (r *Route) member(id rooted.MemberID) (Member, bool) {
	if m, ok := r.members[id]; ok {
		return m, true
	}
	return r.cached.get(id)
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
