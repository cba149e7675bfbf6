package server_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// gated is an authority whose checks come to an end one by one, once it is shut.
type gated struct {
	*counter
	shut atomic.Bool
	next chan struct{}
}

func (g *gated) Check(ctx context.Context, era uint64) error {
	if g.shut.Load() {
		select {
		case <-g.next:
		case <-ctx.Done():
		}
	}
	return g.counter.Check(ctx, era)
}

// A member that is confirmed waits for no more than a few sets, however many members are to be shown
// many regions at the same time.
func TestAConfirmationWaitsForFewSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var authority *gated
		w := hosting(t, func(c *server.Config) {
			authority = &gated{counter: c.Authority.(*counter), next: make(chan struct{})}
			c.Authority = authority
		})
		defer w.end(t)
		const each, crowd = 4096, 12
		settings := state.DefaultSettings()
		settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: each}}}
		var all []*speaker
		for i := range crowd {
			id := fmt.Sprintf("n%02d", i)
			w.root.must(t, join(id))
			w.must(t, create(id, settings))
			given := &rootv1.RegionsAssigned{}
			w.root.state.RegionsFrom(state.KeyspaceID(w.root.state.KeyspaceByName(id).GetId()), "", func(r *state.Region) bool {
				given.Assignments = append(given.Assignments, &rootv1.Assignment{RegionId: uint64(r.ID), Owners: []*rootv1.Owner{{MemberId: id}}})
				return true
			})
			for len(given.Assignments) > 0 {
				n := min(len(given.Assignments), 1024)
				w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: given.Assignments[:n]}}})
				given.Assignments = given.Assignments[n:]
			}
			all = append(all, w.speak(t, id, w.incarnation(state.MemberID(id))))
		}
		m := w.hosted(t, "m1")
		synctest.Wait()
		authority.shut.Store(true)
		var answered, confirmed atomic.Int64
		hear := func(s *speaker, n *atomic.Int64) {
			go func() {
				for {
					a, err := s.stream.Recv()
					if err != nil {
						return
					}
					if a.GetConfirmed() {
						n.Add(1)
					}
				}
			}()
		}
		hear(m, &confirmed)
		for _, s := range all {
			hear(s, &answered)
			s.say(&coordinatorv1.MemberFrame{Complete: true})
		}
		m.say(&coordinatorv1.MemberFrame{Shown: m.shown()})
		synctest.Wait() // a first round waits, of whoever came first
		rounds := 0
		for confirmed.Load() == 0 && rounds < 2 {
			authority.next <- struct{}{}
			synctest.Wait()
			rounds++
		}
		if n := answered.Load(); confirmed.Load() == 0 || n > crowd-4 {
			t.Errorf("behind %d rounds the member is confirmed %d times, and %d of %d are shown what they own", rounds, confirmed.Load(), n, crowd)
		}
		authority.shut.Store(false)
		close(authority.next)
		synctest.Wait()
		if n := answered.Load(); n < crowd {
			t.Errorf("%d of %d are confirmed in the end", n, crowd)
		}
		m.end()
		for _, s := range all {
			s.end()
		}
	})
}
