package replica_test

import (
	"fmt"
	"strings"
	"testing"
)

func countSent(p *peer, what string) (n int) {
	for _, line := range p.trace {
		if strings.HasPrefix(line, what) {
			n++
		}
	}
	return n
}

// A follower answers the entries, and not the news that they are committed.
func TestOneAnswerAnAppend(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	c.tick(3)
	for _, id := range c.order {
		c.peers[id].trace = nil
	}
	const writes = 5
	for i := range writes {
		l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
		c.settle()
	}
	for _, id := range c.order {
		p := c.peers[id]
		if got := countSent(p, "send MsgAppResp"); p != l && got != writes {
			t.Errorf("follower %d answered %d times, want %d: %q", id, got, writes, p.trace)
		}
		if p.view.Applied != l.view.Applied {
			t.Errorf("peer %d has applied %d, the leader %d", id, p.view.Applied, l.view.Applied)
		}
	}
}

// An answer that was lost is repeated when the leader asks, though it says
// nothing new.
func TestLostAnswerIsRepeated(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	c.tick(3)
	for _, id := range c.order {
		if id != l.id {
			c.cut[[2]uint64{id, l.id}] = true // answers are lost
		}
	}
	p := propose(t, "c1")
	l.turn(0, p)
	c.settle()
	if l.answered(p) {
		t.Fatal("answered without a quorum")
	}
	c.heal()
	for ticks := 0; !l.answered(p); ticks++ {
		if ticks > 5 {
			t.Fatal("the answer is not repeated")
		}
		c.tick(1)
	}
	if p.Err != nil {
		t.Fatal(p.Err)
	}
}
