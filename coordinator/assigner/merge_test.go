package assigner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ranges publishes ranges of a letter each, from a on, in keyspace 2.
func (c *crowd) ranges(n int) {
	c.t.Helper()
	for i := range n {
		r := &rootv1.Region{KeyspaceId: 2, StartKey: fmt.Appendf(nil, "%c", 'a'+i), EndKey: fmt.Appendf(nil, "%c", 'b'+i)}
		c.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})
	}
}

// Cold neighbours become one range, wherever they are, after they have been cold for long
// enough; what is warm stays as it is.
func TestColdNeighboursAreJoined(t *testing.T) {
	settings := state.DefaultSettings()
	settings.Policy.Rebalance = byLoad()
	settings.Policy.Rebalance.Reshape = true
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		c.ranges(12)
		cooled := false
		cold := func(key string) bool { return cooled && key >= "c" && key < "g" }
		c.load = func(r *state.Region) float64 {
			sum := 0.0
			for i := range 12 {
				if key := string(rune('a' + i)); key >= r.Start && key < r.End {
					if cold(key) {
						sum += 0.01
					} else {
						sum += 10
					}
				}
			}
			return sum
		}
		c.run(15 * time.Minute)
		if n := c.now().KeyspaceRegionCount(2); n != 12 {
			t.Fatalf("before anything is cold there are %d ranges", n)
		}
		cooled = true
		c.run(9 * time.Minute)
		if n := c.now().KeyspaceRegionCount(2); n != 12 {
			t.Errorf("before they have been cold for 10 minutes there are %d ranges", n)
		}
		c.run(time.Hour)
		var got []string
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			got = append(got, r.Start+r.End)
			if len(r.Owners) != 1 || !c.now().Acts(r.Owners[0]) {
				t.Errorf("[%s, %s) is of %v", r.Start, r.End, r.Owners)
			}
			return true
		})
		if want := "[ab bc cg gh hi ij jk kl lm]"; fmt.Sprint(got) != want {
			t.Errorf("the ranges are %v, want %s", got, want)
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
		if merges != 3 {
			t.Errorf("%d merges, want 3", merges)
		}
	})
}
