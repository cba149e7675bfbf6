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
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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

// Rule 7: what was released counts whatever becomes of the coordinators that heard the goodbye, while
// nobody follows: of their eras, of themselves, and of who stands in for a region meanwhile.
func TestRule7LastWordsOutliveTheirHearers(t *testing.T) {
	for how, do := range map[string]func(t *testing.T, c *nokvtest.Cluster, holder, other string){
		"nothing happens":    func(*testing.T, *nokvtest.Cluster, string, string) {},
		"the era ends":       func(t *testing.T, c *nokvtest.Cluster, _, _ string) { c.EndEra(t) },
		"the holder is gone": func(t *testing.T, c *nokvtest.Cluster, holder, _ string) { c.KillCoordinator(t, holder) },
		"all start again": func(t *testing.T, c *nokvtest.Cluster, holder, other string) {
			c.RestartCoordinator(t, other)
			time.Sleep(30 * time.Second)
			c.RestartCoordinator(t, holder)
		},
		"the other one did not hear it": func(t *testing.T, c *nokvtest.Cluster, _, _ string) { c.EndEra(t) },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &places{released: map[string]string{}, began: map[string]string{}}
				c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions"))
				m := c.Member(t, "m1", ledger{p})
				p.await(t, c)
				holder := c.Holder(t)
				other := map[string]string{"c1": "c2", "c2": "c1"}[holder]
				if how == "the other one did not hear it" {
					defer c.Cut("m1", other)()
				}
				time.Sleep(time.Minute)
				m.Stop(t)
				time.Sleep(10 * time.Second)
				do(t, c, holder, other)
				time.Sleep(10 * time.Second)
				c.Member(t, "m2", ledger{p})
				p.await(t, c)
				p.check(t)
			})
		})
	}
}

// Rule 7: so it is where an operator gives a region away that waits for its owner's next process.
func TestRule7AnOperatorGivesAwayWhatWasReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &places{released: map[string]string{}, began: map[string]string{}}
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions", &rootv1.KeyspaceSettings{
			Ownership: &rootv1.Ownership{Fence: rootv1.Fence_FENCE_EPOCH},
			Start:     &rootv1.Start{HoldMillis: 600_000},
		}))
		m := c.Member(t, "m1", ledger{p})
		p.await(t, c)
		thaw := c.FreezePlanner()
		defer thaw()
		c.Member(t, "m2", ledger{p})
		time.Sleep(20 * time.Second)
		m.Stop(t)
		time.Sleep(5 * time.Second)
		r := c.Assign(t, "streams", []byte("key"), "m2").Region
		p.mu.Lock()
		defer p.mu.Unlock()
		if at := p.released[r.Start]; at == "" || r.Frontier != at {
			t.Errorf("region %d was released at %q, and its next owner begins at %q", r.ID, at, r.Frontier)
		}
	})
}

// await waits until all regions have begun.
func (p *places) await(t *testing.T, c *nokvtest.Cluster) {
	t.Helper()
	c.Await(t, "somebody has all regions", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.began) == 128
	})
}

// check wants regions to have begun where they were released.
func (p *places) check(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	wrong := 0
	for start, at := range p.released {
		if p.began[start] != at {
			if wrong++; wrong == 1 {
				t.Errorf("region %q begins at %q, and was released at %q", start, p.began[start], at)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d regions begin elsewhere than where they were released", wrong, len(p.released))
	}
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
