package nokvtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

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
