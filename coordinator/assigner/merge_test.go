package assigner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rangeKey is where the nth range begins.
func rangeKey(n int) string { return fmt.Sprintf("%02d", n) }

// ranges publishes so many ranges, one beside the other, in keyspace 2.
func (c *crowd) ranges(n int) {
	c.t.Helper()
	for i := range n {
		r := &rootv1.Region{KeyspaceId: 2, StartKey: []byte(rangeKey(i)), EndKey: []byte(rangeKey(i + 1))}
		c.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})
	}
}

// Cold neighbours of a member become one range, after they have been cold for long enough, until
// the member has 32; what is warm stays as it is.
func TestColdNeighboursAreJoined(t *testing.T) {
	settings := state.DefaultSettings()
	settings.Policy.Rebalance = byLoad()
	settings.Policy.Rebalance.Reshape = true
	gather(t, settings, 1, func(t *testing.T, c *crowd) {
		c.ranges(40)
		cold := func(key string) bool { return key >= rangeKey(10) && key < rangeKey(22) }
		c.load = func(r *state.Region) float64 {
			sum := 0.0
			for i := range 40 {
				if key := rangeKey(i); key >= r.Start && key < r.End {
					if cold(key) {
						sum += 0.01
					} else {
						sum += 20
					}
				}
			}
			return sum
		}
		c.run(9 * time.Minute)
		if n := c.now().KeyspaceRegionCount(2); n != 40 {
			t.Errorf("before they have been cold for 10 minutes there are %d ranges", n)
		}
		c.run(time.Hour)
		ranges, warm := 0, 0
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			if ranges++; (r.Start < rangeKey(10) || r.Start >= rangeKey(22)) && c.load(r) == 20 {
				warm++
			}
			if len(r.Owners) != 1 || !c.now().Acts(r.Owners[0]) {
				t.Errorf("[%s, %s) is of %v", r.Start, r.End, r.Owners)
			}
			return true
		})
		if ranges != 32 || warm != 28 {
			t.Errorf("there are %d ranges, and %d that are warm, want 32 and 28", ranges, warm)
		}
		merges := 0
		for _, cmd := range c.commands() {
			for _, e := range cmd.GetEvents() {
				if m := e.GetMergePlanned(); m != nil {
					if merges++; m.GetReason() != rootv1.OperationReason_OPERATION_REASON_COLD || cmd.GetRequireEra() == 0 {
						t.Errorf("a merge is %v", m)
					}
				}
			}
		}
		if merges != 8 {
			t.Errorf("%d merges, want 8", merges)
		}
	})
}
