package placement_test

import (
	"math"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A capacity of 0, which counts as 1, and the largest one: each member gets its part
// by what it can take, and nobody is left out.
func TestA21MembersOfAnyCapacityGetRegions(t *testing.T) {
	c := newCluster(t)
	for id, capacity := range map[string]uint64{"m1": 0, "m2": 1, "m3": math.MaxUint64} {
		c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{
			Id: id, Address: id + ":1", StartNonce: 9, Capacity: capacity,
		}}}})
	}
	c.keyspace("ks", slots(128), epochFence())
	c.settle()
	c.wantCounts([]int{1, 1, 126}, "m1", "m2", "m3")
}
