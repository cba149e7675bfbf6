package assigner_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// what happens in a cluster where nothing has happened for a while happens now, not in
// a past that is read again: a member that comes there is a newcomer, and gets its whole part.
func TestR11NewcomerInAQuietCluster(t *testing.T) {
	s := evened(100, &rootv1.Rebalance{MeanPermille: 1200})
	tenants, _ := state.Preset("tenants")
	s.Liveness = tenants.GetLiveness() // members speak each 10 s
	gather(t, s, 3, func(t *testing.T, c *crowd) {
		c.run(20 * time.Minute)
		c.come("m4")
		c.run(2 * time.Minute)
		if got := c.counts("m1", "m2", "m3", "m4"); !slices.Equal(got, []int{25, 25, 25, 25}) {
			t.Errorf("the members have %v of 100", got)
		}
	})
}
