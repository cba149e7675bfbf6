package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	rootclient "github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// listed are the coordinators that the root has.
func listed(t *testing.T, c *cluster) []string {
	t.Helper()
	r := c.Run("coordinator", "list", "--strong", "-o", "json", "--timeout", recoverWithin.String(), "--coordinator-addr", c.CoordinatorAddrs[0])
	var out []coordinatorOutput
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("coordinator list: %v\n%s", err, r.Stderr)
	}
	var ids []string
	for _, k := range out {
		ids = append(ids, k.ID)
	}
	return ids
}

// TestCoordinatorsLeave: a coordinator that is stopped is off the list when its
// process has ended. One that is killed stays, in the way of an upgrade, until an
// operator takes it off; one that lives is refused, and comes back by itself.
func TestCoordinatorsLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	u := &upgrading{c, t, nextBuild(t)}
	c.Builds = map[int]string{3: u.next, 4: u.next}
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	for peer := range 3 {
		u.restart(peer, false)
	}
	want := func(ids ...string) {
		t.Helper()
		if got := listed(t, c); !slices.Equal(got, ids) {
			t.Errorf("on the list: %v, want %v", got, ids)
		}
	}
	remove := func(id string) proctest.Result {
		t.Helper()
		return c.Run("coordinator", "remove", id, "--coordinator-addr", c.CoordinatorAddrs[0])
	}
	proctest.Eventually(t, recoverWithin, func() error { // They register after they serve.
		if got := listed(t, c); len(got) != 3 {
			return fmt.Errorf("on the list: %v", got)
		}
		return nil
	})
	c.stop(4)
	want("c1", "c3")

	if r := remove("c3"); r.Code != 1 || !strings.Contains(r.Stderr, "still_running") {
		t.Errorf("one that answers: exit status %d, %s", r.Code, r.Stderr)
	}
	c.Kill(5)
	want("c1", "c3")
	upgrade := func() proctest.Result { return c.Run(append([]string{"root", "upgrade"}, c.RootFlags()...)...) }
	if r := upgrade(); r.Code != 1 || !strings.Contains(r.Stdout, "nokv coordinator remove c3") {
		t.Errorf("upgrade: exit status %d\n%s\n%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := remove("c3"); r.Code != 0 {
		t.Errorf("one that is dead: exit status %d, %s", r.Code, r.Stderr)
	}
	want("c1")
	if r := remove("c3"); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("one that is not there: exit status %d, %s", r.Code, r.Stderr)
	}
	if r := upgrade(); r.Code != 0 {
		t.Errorf("upgrade: exit status %d\n%s\n%s", r.Code, r.Stdout, r.Stderr)
	}

	takeOff(t, c, "c1")
	c.Process(3).WaitLog("joining again", recoverWithin)
	proctest.Eventually(t, recoverWithin, func() error {
		if got := listed(t, c); !slices.Equal(got, []string{"c1"}) {
			return fmt.Errorf("on the list: %v", got)
		}
		return nil
	})
}

// takeOff takes a coordinator that lives off the list, which no coordinator does.
func takeOff(t *testing.T, c *cluster, id string) {
	t.Helper()
	peers := map[uint64]string{}
	for i, a := range c.RootAddrs {
		peers[uint64(i+1)] = a
	}
	root, err := rootclient.New(rootclient.Config{Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), recoverWithin)
	var running sync.WaitGroup
	running.Go(func() { _ = root.Run(ctx) })
	defer running.Wait()
	defer stop()
	cl, err := client.New(client.Config{Endpoints: c.CoordinatorAddrs[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for k, err := range cl.ListCoordinators(ctx, client.Strong()) {
		if err != nil {
			t.Fatal(err)
		}
		if k.GetId() != id {
			continue
		}
		results, err := root.Propose(ctx, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorLeft{
			CoordinatorLeft: &rootv1.CoordinatorLeft{Id: id, Incarnation: k.GetIncarnation()},
		}}}})
		if err != nil || results[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatalf("%v, %v", results, err)
		}
	}
}
