package load

import (
	"slices"

	"github.com/nokv/nokv/meta/root/state"
)

// TakeRegions takes what another Book knows of regions, as it is: to be read by somebody
// else, while that Book goes on.
func (b *Book) TakeRegions(from *Book, ids []state.RegionID) {
	for _, id := range ids {
		if r := from.regions[id]; r != nil {
			own := *r
			own.parts = slices.Clone(r.parts)
			b.regions[id] = &own
		}
	}
}

// TakeMembers takes what another Book knows of members.
func (b *Book) TakeMembers(from *Book) {
	for incarnation, m := range from.members {
		own := *m
		b.members[incarnation] = &own
	}
}
