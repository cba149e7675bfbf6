package catalog

import (
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// fewOwners is up to how many owners a list is cheaper to search than a map.
const fewOwners = 16

// Owners tells where the owners of regions are reached, each member once. A
// member that the State does not know has no address.
func Owners(st *state.State, regions ...*state.Region) []*coordinatorv1.OwnerAddress {
	var (
		found []*coordinatorv1.OwnerAddress
		seen  map[state.MemberID]struct{}
	)
	for _, r := range regions {
		for i := range r.Owners {
			id := r.Owners[i].Member
			if known(found, seen, id) {
				continue
			}
			if found == nil {
				found = make([]*coordinatorv1.OwnerAddress, 0, len(r.Owners))
			}
			found = append(found, address(st, id))
			if len(found) > fewOwners {
				seen = remember(seen, found)
			}
		}
	}
	return found
}

func known(found []*coordinatorv1.OwnerAddress, seen map[state.MemberID]struct{}, id state.MemberID) bool {
	if seen != nil {
		_, ok := seen[id]
		return ok
	}
	for _, o := range found {
		if o.MemberId == string(id) {
			return true
		}
	}
	return false
}

// remember adds to seen what of found it does not have yet.
func remember(seen map[state.MemberID]struct{}, found []*coordinatorv1.OwnerAddress) map[state.MemberID]struct{} {
	if seen == nil {
		seen = make(map[state.MemberID]struct{}, 2*len(found))
	}
	for _, o := range found[len(seen):] {
		seen[state.MemberID(o.MemberId)] = struct{}{}
	}
	return seen
}

func address(st *state.State, id state.MemberID) *coordinatorv1.OwnerAddress {
	m := st.Member(id)
	if m == nil {
		return &coordinatorv1.OwnerAddress{MemberId: string(id)}
	}
	return &coordinatorv1.OwnerAddress{
		MemberId: m.GetId(), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation(),
	}
}
