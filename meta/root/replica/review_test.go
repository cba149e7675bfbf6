package replica_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
)

// A peer that stood still for ten seconds, at whatever place, and hears from nobody
// afterwards, does not vouch for what it had before: others lead and have written
// since.
func TestNothingIsVouchedForBehindAStall(t *testing.T) {
	for _, c := range []struct {
		place string
		leads bool
	}{
		{"Append, sync true", false},
		{"Append, sync true", true},
		{"Send", false},
		{"Send", true},
		{"ReleaseCheckpoint", false},
		{"ReleaseCheckpoint", true},
		{"FirstIndex", false},
		{"FirstIndex", true},
		{"Append, sync false", true},
	} {
		t.Run(fmt.Sprintf("%s, leads %v", c.place, c.leads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				s := begin(t, g, c.leads, 1000, func(id uint64) replica.Log {
					if id == 1 {
						return gatedLog{newMemLog(), g}
					}
					return newMemLog()
				})
				time.Sleep(500 * time.Millisecond)
				g.arm(c.place)
				if c.place == "Append, sync false" {
					s.end()
				}
				if s.reached() {
					s.cut.Store(s.peer)
					time.Sleep(10 * time.Second)
					p, cfg := s.peers[s.peer], replica.Defaults()
					var newest uint64
					for _, other := range s.peers {
						newest = max(newest, other.View().Commit)
					}
					s.gate.release <- struct{}{}
					for range 3 {
						time.Sleep(cfg.Tick / 2)
						if v := p.View(); !v.Stalled && v.LeaderlessSince == 0 {
							t.Errorf("it vouches for %d as %v, the others are at %d", max(v.Known, v.Commit), v.Role, newest)
							break
						}
					}
				}
				s.cut.Store(0)
				s.recover()
			})
		})
	}
}
