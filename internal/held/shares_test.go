package held_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// acquires is a Core of so many workers that wants regions of two keyspaces: those of the
// first come first.
func acquires(t *testing.T, workers, first, second int) *held.Core {
	t.Helper()
	c := held.New(held.Config{Member: "m1", Incarnation: 1, Workers: workers})
	c.Open(0)
	set := &coordinatorv1.ShownSet{Token: at(1), Complete: true}
	for i := range first + second {
		keyspace := uint32(1)
		if i >= first {
			keyspace = 2
		}
		key := fmt.Appendf(nil, "%05d", i)
		set.Regions = append(set.Regions, &coordinatorv1.ShownRegion{Region: &rootv1.Region{
			Id: uint64(i + 1), KeyspaceId: keyspace, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, StartKey: key, EndKey: append(key, 0),
		}})
	}
	a := &coordinatorv1.MemberAnswer{Era: 1, Set: set, Terms: &coordinatorv1.MemberTerms{Keyspaces: []*coordinatorv1.KeyspaceTerms{
		{KeyspaceId: 1, Name: "a", Fence: rootv1.Fence_FENCE_EPOCH}, {KeyspaceId: 2, Name: "b", Fence: rootv1.Fence_FENCE_EPOCH},
	}}}
	if err := c.Answer(0, a, 1); err != nil {
		t.Fatal(err)
	}
	return c
}

// Calls of one keyspace that never return leave workers for those of another, and those that
// have failed leave workers for those that have not.
func TestCallsHaveShares(t *testing.T) {
	for workers, want := range map[int]int{1: 1, 2: 1, 4: 3, 32: 24, 100: 75} {
		c := acquires(t, workers, 200, 0)
		if n := len(c.Calls(1000, 1)); n != want {
			t.Errorf("of %d workers one keyspace has %d, want %d", workers, n, want)
		}
	}
	c := acquires(t, 32, 200, 200)
	byKeyspace := map[rooted.KeyspaceID]int{}
	for _, call := range c.Calls(1000, 1) {
		byKeyspace[call.Keyspace.ID]++
	}
	if byKeyspace[1] != 14 || byKeyspace[2] != 13 { // five are left for a third one
		t.Errorf("two keyspaces that want all have %v", byKeyspace)
	}

	c = acquires(t, 8, 100, 1)
	for range 100 { // all of the first keyspace fail
		for _, call := range c.Calls(1000, 1) {
			if call.Keyspace.ID == 1 {
				c.Done(call.ID, held.Result{Err: "it fails"}, 1)
			}
		}
	}
	now := clock.Instant(32 * time.Second)
	c.Tick(now)
	if n := len(c.Calls(1000, now)); n != 2 {
		t.Errorf("of 8 workers %d are for regions that have failed, want 2", n)
	}
}

// A call that is late has no worker any more; it is free once.
func TestLateCallsAreFreeOnce(t *testing.T) {
	c := acquires(t, 1, 3, 0)
	first := c.Calls(10, 1)
	if len(first) != 1 || len(c.Calls(10, 1)) != 0 {
		t.Fatalf("one worker makes %d calls", len(first))
	}
	if !c.Overdue(first[0].ID, "late") || c.Overdue(first[0].ID, "late") {
		t.Error("a call is late other than once")
	}
	if n := len(c.Calls(10, 1)); n != 1 {
		t.Errorf("behind a late call %d are made", n)
	}
	c.Done(first[0].ID, held.Result{}, 1)
	if n := len(c.Calls(10, 1)); n != 0 {
		t.Errorf("behind the end of a late call %d more are made", n)
	}
	if c.Overdue(first[0].ID, "late") {
		t.Error("a call that has returned is late")
	}
}
