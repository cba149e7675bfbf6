package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// TestRootAway takes the whole root away from running coordinators: what they
// have is served and labelled, everything else is refused soon and by name.
func TestRootAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	cli := func(args ...string) proctest.Result {
		t.Helper()
		return c.Run(append(args, "--coordinator-addr", c.Coordinators())...)
	}
	if r := cli("region", "publish", "a", "m", "--id", "7"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	if r := cli("region", "get", "b", "--strong"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	for _, addr := range c.CoordinatorAddrs { // what they have is what they are asked for below
		proctest.Eventually(t, recoverWithin, func() error {
			if r := c.Run("region", "get", "b", "--coordinator-addr", addr); r.Code != 0 {
				return errors.New(r.Stderr)
			}
			return nil
		})
	}
	for i := range c.Roots() {
		c.Kill(i)
	}
	// Both coordinators notice, and say so in their logs and in their health.
	for i := c.Roots(); i < c.Size(); i++ {
		c.Process(i).WaitLog("root is out of reach", recoverWithin)
		proctest.Eventually(t, recoverWithin, func() error {
			if err := c.Healthy(i); err == nil || !strings.Contains(err.Error(), "503") {
				return fmt.Errorf("%s without a root: health says %w", c.Name(i), err)
			}
			return nil
		})
	}
	var route struct {
		ID         uint64           `json:"id"`
		Disclosure disclosureOutput `json:"disclosure"`
	}
	r := cli("region", "get", "b", "-o", "json")
	if err := json.Unmarshal([]byte(r.Stdout), &route); err != nil || route.ID != 7 {
		t.Errorf("best effort without a root: %v %s%s", err, r.Stdout, r.Stderr)
	}
	if d := route.Disclosure; d.ServingClass != "best_effort" || d.DegradedMode != "root_unavailable" {
		t.Errorf("best effort without a root is labelled %+v", d)
	}
	// What was known of authority is shown, and never said to hold.
	proctest.Eventually(t, recoverWithin, func() error { // a coordinator may not answer within its time
		r = cli("witness", "--timeout", "2s")
		if r.Code != exitUnavailable || strings.Contains(r.Stdout, "holds  ") {
			t.Fatalf("witness without a root: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		if !strings.HasPrefix(r.Stdout, "CANNOT TELL whether the guarantees hold. Last known: c") {
			return fmt.Errorf("witness without a root:\n%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	t.Logf("nokv witness:\n%s%s", r.Stdout, r.Stderr)
	for _, args := range [][]string{
		{"region", "get", "b", "--strong"}, {"id"}, {"tso"}, {"region", "publish", "n", "o"}, {"keyspace", "create", "x"}, {"status"},
	} {
		r := cli(append(args, "--timeout", "1s")...)
		lines := strings.Count(strings.TrimSpace(r.Stderr), "\n") + 1
		if r.Code != exitUnavailable || lines != 1 {
			t.Errorf("nokv %s without a root: exit status %d, %d lines\n%s", strings.Join(args, " "), r.Code, lines, r.Stderr)
		}
		t.Logf("nokv %s: %s", strings.Join(args, " "), strings.TrimSpace(r.Stderr))
	}
	// One that starts now has read nothing: what the other one knows is shown, and how old it is.
	c.Kill(c.Roots() + 1)
	c.Start(c.Roots() + 1)
	proctest.Eventually(t, recoverWithin, func() error {
		r := cli("status", "-o", "json")
		var s statusOutput
		if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
			return fmt.Errorf("status: %w: %s", err, r.Stderr)
		}
		for _, one := range s.Coordinators {
			if one.Error != "" {
				return fmt.Errorf("%s: %s", one.Address, one.Error)
			}
		}
		if r.Code != exitUnavailable || s.State != stateDegraded || !strings.HasPrefix(s.StateWhy, "the root has no quorum") || !strings.HasSuffix(s.StateWhy, " old") || s.Era == 0 || s.Members == nil {
			t.Fatalf("status without a root: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		t.Logf("nokv status: %s: %s", s.State, s.StateWhy)
		return nil
	})
	for i := range c.Roots() {
		c.Start(i)
	}
	c.WaitHealthy(recoverWithin)
	proctest.Eventually(t, recoverWithin, func() error {
		if r := cli("tso"); r.Code != 0 {
			return fmt.Errorf("tso after the root is back: %s", r.Stderr)
		}
		return nil
	})
	c.Process(c.Roots()).WaitLog("root is back", recoverWithin)
}
