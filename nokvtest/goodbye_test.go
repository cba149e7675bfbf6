package nokvtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
)

// places are how far regions got, by those who let go of them, and where their next owners began.
type places struct {
	mu       sync.Mutex
	released map[string]string
	began    map[string]string
	releases int
}

// ledger is a handler that tells places.
type ledger struct{ *places }

func (l ledger) Acquire(_ context.Context, r member.Region) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began[r.Start] = string(r.Frontier)
	return nil
}

func (l ledger) Release(_ context.Context, r member.Region) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releases++
	l.released[r.Start] = fmt.Sprintf("exactly-%d", l.releases)
	delete(l.began, r.Start)
	return []byte(l.released[r.Start]), nil
}

// Rule 7: what Release returned is where the next owner starts, also when nobody asked for it: a
// process that ends without a drain has released everything, as its goodbye says. So it is when
// another member follows, and when there is none and the process is started again.
func TestRule7WhoEndsWithoutADrainIsFollowedWhereItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &places{released: map[string]string{}, began: map[string]string{}}
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions"))
		m := c.Member(t, "m1", ledger{p})
		all := 0
		c.Await(t, "it has all regions", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			all = len(p.began)
			return all == 128
		})
		for round, id := range []string{"m2", "m2", "m1"} {
			m.Stop(t)
			p.mu.Lock()
			releases := p.releases
			p.mu.Unlock()
			if want := (round + 1) * all; releases != want {
				t.Fatalf("round %d: %d regions were released, want %d", round, releases, want)
			}
			m = c.Member(t, id, ledger{p})
			c.Await(t, "the next one has all regions", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return len(p.began) == all
			})
			for start, at := range p.released {
				if p.began[start] != at {
					t.Errorf("round %d: region %q begins at %q, and was released at %q", round, start, p.began[start], at)
				}
			}
		}
	})
}

// Rule 10: what a member says reaches the holder by any coordinator. A region is moved off a member
// that reaches every coordinator but the holder as off any other: it is released when the next
// owner is ready, exactly where it is, and nobody waits for the end of the move's deadline.
func TestRule10AMoveOffAMemberThatCannotReachTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &places{released: map[string]string{}, began: map[string]string{}}
		c := nokvtest.Start(t, nokvtest.Coordinators(3), nokvtest.Keyspace("streams", "partitions"))
		thaw := c.FreezePlanner()
		c.Member(t, "m1", ledger{p})
		c.Member(t, "m2", ledger{p})
		for i := range 8 {
			c.Assign(t, "streams", fmt.Appendf(nil, "key-%d", i), "m1")
		}
		mend := c.Cut("m1", c.Holder(t))
		time.Sleep(time.Minute) // it is heard, and confirmed, by way of another coordinator
		thaw()
		for i := range 8 {
			begun := time.Now()
			r := c.Assign(t, "streams", fmt.Appendf(nil, "key-%d", i), "m2").Region
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("region %d: the move took %v", r.ID, took)
			}
			c.Await(t, "the next owner begins where it was released", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				at := p.released[r.Start]
				return at != "" && p.began[r.Start] == at && string(r.Frontier) == at
			})
		}
		mend()
	})
}
