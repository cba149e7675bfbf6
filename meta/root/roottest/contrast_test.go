package roottest_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
)

// TestWipedDiskUnderItsNodeID is why a lost peer is replaced by one with another
// node id: an empty disk under the old one votes again for what it has forgotten,
// and what was acknowledged is gone within a few seeds.
func TestWipedDiskUnderItsNodeID(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		found := ""
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, seed)
			if err := wiped(roottest.NewWorld(seed)); err != nil {
				found = err.Error()
			}
		})
		if found != "" {
			t.Logf("seed %d: %s", seed, found)
			return
		}
	}
	t.Error("no check finds that a peer has forgotten what it acknowledged")
}

// wiped cuts a follower off, wipes the disk of the other one while the leader is
// away, and says what is wrong when all are back.
func wiped(w *roottest.World) error {
	c, err := roottest.New(w, roottest.Small())
	if err != nil {
		return err
	}
	wr := &writer{w: w, link: c.NewLink("client-0"), acked: map[uint64]string{}, active: true}
	wr.loop()
	w.RunFor(2*time.Second, func() bool { return len(wr.acked) > 20 })
	leader := c.Leader()
	if leader == nil {
		return nil
	}
	behind, forgets := c.Peers[leader.ID%3], c.Peers[(leader.ID+1)%3]
	for _, p := range []*roottest.Peer{leader, forgets} {
		c.Net.Cut(p.Place, behind.Place)
		c.Net.Cut(behind.Place, p.Place)
	}
	acked := len(wr.acked)
	w.RunFor(300*time.Millisecond, func() bool { return len(wr.acked) > acked+5 })
	leader.Kill()
	if err := forgets.Wipe(); err != nil {
		return err
	}
	c.Net.MendAll()
	w.RunFor(3*time.Second, nil)
	wr.active = false
	if err := c.Heal(); err != nil {
		return err
	}
	w.RunFor(3*time.Second, nil)
	return errors.Join(c.CheckAgreement(nil), wr.lost(c))
}

// lost is an acknowledged write that is not there.
func (wr *writer) lost(c *roottest.Cluster) error {
	final, err := c.Log.Replay(nil)
	if err != nil {
		return err
	}
	for index, key := range wr.acked {
		if r := final.RegionAt(state.DefaultKeyspace, key); r == nil || r.Start != key {
			return fmt.Errorf("region %q was acknowledged at %d and is not there", key, index)
		}
	}
	return nil
}
