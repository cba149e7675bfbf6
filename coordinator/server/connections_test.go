package server_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/budget"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// In little memory there is room for fewer connections.
func TestConnectionsFitInTheBudget(t *testing.T) {
	w := start(t, func(c *server.Config) { c.Budget = budget.New(budget.Minimum) })
	defer w.end(t)
	if _, err := w.client.GetKeyspace(within(t), &coordinatorv1.GetKeyspaceRequest{Name: "default"}); err != nil {
		t.Fatal(err)
	}
	receiving := w.server.GateVars().Listener.Limit * 8 << 10
	if share := int(budget.Minimum) / 8; receiving == 0 || receiving > share*3/4 {
		t.Errorf("connections that each hold little hold %d bytes of %d", receiving, share)
	}
}

// In little memory there is room for fewer watches: what each takes is not counted one by one.
func TestWatchesFitInTheBudget(t *testing.T) {
	w := start(t, func(c *server.Config) { c.Budget = budget.New(budget.Minimum) })
	defer w.end(t)
	room := int(budget.Minimum) / (64 << 10) / 2 // for one caller
	opened := 0
	for ; opened <= room; opened++ {
		stream, err := w.client.WatchRegions(t.Context(), &coordinatorv1.WatchRegionsRequest{Keyspace: "default"})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			refused(t, err, rootv1.Reason_REASON_OVERLOADED)
			break
		}
	}
	if opened > room || opened < room/2 {
		t.Errorf("%d watches of a caller in a budget of %d bytes, want %d at most", opened, budget.Minimum, room)
	}
}
