package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// A root peer is started with its workdir at other addresses. The others keep their
// old lists and go on: they hear from the moved one where it is. A majority that
// needs its vote has it, and a restart of the others with the old list, too.
func TestARootPeerMoves(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	const moved = 1
	c.stop(moved)
	addrs := proctest.Addrs(t, 2)
	c.CommandLine = func(member int) []string {
		if member != moved {
			return c.Layout.Args(member)
		}
		l := *c.Layout
		l.RootAddrs, l.TransportAddrs = slices.Clone(l.RootAddrs), slices.Clone(l.TransportAddrs)
		l.RootAddrs[moved], l.TransportAddrs[moved] = addrs[0], addrs[1]
		return l.Args(member)
	}
	c.Start(moved)
	// await has one peer tell where it has the moved one, who answers there, level
	// with it.
	await := func(asked int) {
		t.Helper()
		proctest.Eventually(t, recoverWithin, func() error {
			r := c.Run("root", "status", "-o", "json", "--root-peer", fmt.Sprintf("%d=%s", asked+1, c.RootAddrs[asked]))
			var peers []struct {
				NodeID  uint64 `json:"node_id"`
				Address string `json:"address"`
				Leader  uint64 `json:"leader_id"`
				Applied uint64 `json:"applied_index"`
			}
			if err := json.Unmarshal([]byte(r.Stdout), &peers); err != nil {
				return fmt.Errorf("%w: %s%s", err, r.Stdout, r.Stderr)
			}
			var applied []uint64
			for _, p := range peers {
				if p.Leader == 0 || p.NodeID == moved+1 && p.Address != addrs[0] {
					return fmt.Errorf("root peer %d shows %+v", asked+1, peers)
				}
				applied = append(applied, p.Applied)
			}
			if len(applied) != 3 || slices.Min(applied) != slices.Max(applied) {
				return fmt.Errorf("root peer %d shows %+v", asked+1, peers)
			}
			return nil
		})
	}
	await(0)
	await(2)
	c.Process(0).WaitLog("correct -peer at the next start", recoverWithin)
	for _, away := range []int{0, 2} { // The two that are left are a majority with the moved one.
		c.stop(away)
		proctest.Eventually(t, recoverWithin, func() error { return c.Healthy(3) })
		if r := c.Run("id", "--coordinator-addr", c.Coordinators()); r.Code != 0 {
			t.Errorf("without root peer %d: %s", away+1, r.Stderr)
		}
		c.Start(away)
		await(away)
	}
}
