package emptying_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/emptying"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

type idle struct{}

func (idle) Acquire(context.Context, member.Region) error           { return nil }
func (idle) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

// A keyspace goes, while callers claim keys and somebody else removes its regions too.
func TestAKeyspaceGoesWhileRegionsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		c.Member(t, "m1", idle{})
		cl := c.Client()
		var claimed atomic.Int32
		ended := make(chan error)
		go func() {
			for {
				time.Sleep(time.Millisecond)
				key := fmt.Appendf(nil, "game-%d", claimed.Load())
				ctx, done := context.WithTimeout(t.Context(), 5*time.Second)
				_, err := cl.Claim(ctx, "games", key)
				done()
				switch {
				case err == nil:
					claimed.Add(1)
				case !errors.Is(err, client.ErrNoActiveMembers):
					ended <- err
					return
				}
			}
		}()
		c.Await(t, "claims", func() bool { return claimed.Load() > 50 })
		remover := &gone{t: t, cl: cl}
		x := &emptying.Emptying{Client: cl, Name: "games", Progress: io.Discard, Step: remover.step}
		if _, err := x.Run(0); err != nil {
			t.Errorf("emptied: %v", err)
		}
		if err := <-ended; !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrLayoutMismatch) {
			t.Errorf("a claim behind it: %v", err)
		}
		if _, err := cl.GetKeyspace(t.Context(), "games", client.Strong()); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("the keyspace: %v", err)
		}
		if remover.removed == 0 {
			t.Error("nobody else removed a region")
		}
	})
}

// gone removes a region before each step.
type gone struct {
	t       *testing.T
	cl      *client.Client
	removed int
}

func (g *gone) step() (context.Context, context.CancelFunc) {
	for r, err := range g.cl.ScanRegions(g.t.Context(), nil, nil, client.In("games"), client.Strong(), client.Limit(1)) {
		if err != nil {
			break
		}
		e := &rootv1.RegionTombstoned{RegionId: uint64(r.Region.ID)}
		if _, err := g.cl.PublishEvent(g.t.Context(), &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: e}}); err == nil {
			g.removed++
		}
	}
	return context.WithTimeout(g.t.Context(), 10*time.Second)
}
