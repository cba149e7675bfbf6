package nokvtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	"github.com/nokv/nokv/rooted"
)

// slowly fails the first Acquire of each region at once, and does the second one in 20 s.
type slowly struct {
	app
	mu     sync.Mutex
	began  map[rooted.RegionID]int
	called int
}

func (u *slowly) Acquire(ctx context.Context, r member.Region) error {
	u.mu.Lock()
	u.began[r.ID]++
	n := u.began[r.ID]
	u.mu.Unlock()
	if n == 1 {
		return errors.New("the connection was reset")
	}
	select {
	case <-time.After(20 * time.Second):
		return u.app.Acquire(ctx, r)
	case <-ctx.Done():
		u.mu.Lock()
		u.called++
		u.mu.Unlock()
		return ctx.Err()
	}
}

// An Acquire that is under way is not called off because the try before it failed.
func TestRule11SlowAcquireBehindAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions"))
		c.Member(t, "m1", &app{})
		owns := func(id rooted.MemberID) (n int) {
			for r, err := range c.Client().ScanRegions(t.Context(), nil, nil, client.In("streams")) {
				if err != nil {
					return -1
				}
				for _, o := range r.Region.Owners {
					if o.Member == id {
						n++
					}
				}
			}
			return n
		}
		c.Await(t, "all are owned", func() bool { return owns("m1") == 128 })
		s := &slowly{began: map[rooted.RegionID]int{}}
		c.Member(t, "m2", s)
		most := 0
		for range 120 {
			time.Sleep(time.Second)
			most = max(most, owns("m2"))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.called > 0 {
			t.Errorf("%d of the Acquires that were under way were called off; m2 had up to %d regions, has %d", s.called, most, owns("m2"))
		}
	})
}

// stuck never returns from Acquire, whatever its context says.
type stuck struct {
	app
	end chan struct{}
}

func (u *stuck) Acquire(context.Context, member.Region) error {
	<-u.end
	return errors.New("ended")
}

// A region whose Acquire hangs goes elsewhere as one whose Acquire fails does.
func TestRule11AcquireThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Keyspace("streams", "partitions"))
		c.Member(t, "m1", &app{})
		owns := func(id rooted.MemberID) (n int) {
			for r, err := range c.Client().ScanRegions(t.Context(), nil, nil, client.In("streams")) {
				if err != nil {
					return -1
				}
				for _, o := range r.Region.Owners {
					if o.Member == id {
						n++
					}
				}
			}
			return n
		}
		c.Await(t, "all are owned", func() bool { return owns("m1") == 128 })
		s := &stuck{end: make(chan struct{})}
		defer close(s.end)
		c.Member(t, "m2", s)
		c.Await(t, "m2 gets some", func() bool { return owns("m2") > 0 })
		has := 0
		for range 30 {
			time.Sleep(time.Minute)
			if owns("m2") > 0 {
				has++
			}
		}
		if has > 10 {
			t.Errorf("in %d of 30 minutes m2 has regions, and it has never acquired one", has)
		}
	})
}
