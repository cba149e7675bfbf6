package member_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

var tables = &coordinatorv1.KeyspaceTerms{
	KeyspaceId: 1, Name: "tables", Fence: rootv1.Fence_FENCE_EPOCH, HoldRequestsMillis: 2000,
	Layout: &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}},
}

// part is a range at (version, 1).
func part(id, version uint64, start, end, frontier string) *coordinatorv1.ShownRegion {
	return &coordinatorv1.ShownRegion{Region: &rootv1.Region{
		Id: id, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: version, ConfVersion: 1}, StartKey: []byte(start), EndKey: []byte(end), Frontier: []byte(frontier),
	}}
}

// reshaping is a range that is split, or, with a right one, merged with it.
func reshaping(r *coordinatorv1.ShownRegion, id string, left, right uint64) *coordinatorv1.ShownRegion {
	r.Move = &coordinatorv1.ShownMove{
		TransitionId: id, Role: coordinatorv1.MoveRole_MOVE_ROLE_RESHAPES, ReleaseNow: true, LeftRegionId: left, RightRegionId: right,
	}
	return r
}

// merger joins frontiers.
type merger struct{ *app }

func (m merger) Merge(ctx context.Context, left, right member.Region) ([]byte, error) {
	return fmt.Appendf(nil, "%s & %s", left.Frontier, right.Frontier), m.note(ctx, fmt.Sprintf("merge with %d", right.ID), left)
}

// Rules 8 and 9: ranges are split and merged again and again while callers ask for keys
// of both parts. A caller that knows no epoch sees no error, and one that does is told
// where the key is now. Nothing runs while the region is released.
func TestRule8Rule9SplitAndMergeUnderLoad(t *testing.T) {
	inBubble(t, tables, func(b *bubble) {
		p := b.start("m1", nil)
		b.cluster.Show("m1", part(17, 1, "a", "z", "f"))
		b.awaitPhase("m1", 17, serving)
		ctx, stop := context.WithCancel(b.Context())
		var callers sync.WaitGroup
		var mu sync.Mutex
		inside, served, told := 0, map[rooted.RegionID]int{}, 0
		work := func(_ context.Context, r member.Region) error {
			mu.Lock()
			inside++
			served[r.ID]++
			mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			inside--
			return nil
		}
		for i := range 20 {
			key := []byte{"bp"[i%2]}
			callers.Go(func() {
				req := member.Request{Keyspace: "tables", Key: key}
				knows := i%4 > 1
				if knows {
					req.Region, req.Epoch = 17, rooted.Epoch{Version: 1, ConfVersion: 1}
				}
				for ctx.Err() == nil {
					err := p.Do(context.Background(), req, work)
					if stale, ok := errors.AsType[*member.EpochStale](err); ok && knows {
						req.Region, req.Epoch = stale.Region, stale.Current
						mu.Lock()
						told++
						mu.Unlock()
						continue
					}
					if err != nil {
						t.Errorf("%q of %d at %s: %v", key, req.Region, req.Epoch, err)
						return
					}
				}
			})
		}
		released := func(id uint64, frontier string) {
			t.Helper()
			b.await("m1", fmt.Sprintf("%d is released at %q", id, frontier), func(r fakecoordinator.Reported) bool {
				return r.Phase(id) == released && string(r.Regions[id].GetFrontier()) == frontier
			})
			mu.Lock()
			defer mu.Unlock()
			if inside != 0 {
				t.Errorf("%d requests run behind the release", inside)
			}
		}
		time.Sleep(50 * time.Millisecond)
		frontier := "f"
		for version := uint64(1); version < 9; version += 2 {
			b.cluster.Show("m1", reshaping(part(17, version, "a", "z", frontier), fmt.Sprintf("split-17-%d.1", version), 0, 0))
			frontier = "after " + frontier
			released(17, frontier)
			b.cluster.Show("m1", part(17, version+1, "a", "m", frontier), part(18, version+1, "m", "z", frontier))
			b.awaitPhase("m1", 17, serving)
			b.awaitPhase("m1", 18, serving)
			time.Sleep(50 * time.Millisecond)
			id := fmt.Sprintf("merge-17-%d.1", version+1)
			b.cluster.Show("m1", reshaping(part(17, version+1, "a", "m", frontier), id, 17, 18), reshaping(part(18, version+1, "m", "z", frontier), id, 17, 18))
			frontier = "after " + frontier
			released(17, frontier) // both at one frontier: nobody has to be asked
			b.cluster.Join("m1", 18, part(17, version+2, "a", "z", frontier))
			b.awaitPhase("m1", 17, serving)
			time.Sleep(50 * time.Millisecond)
		}
		stop()
		callers.Wait()
		if served[17] == 0 || served[18] == 0 || told < 20 {
			t.Errorf("served: %v, told %d times where the key is", served, told)
		}
	})
}

// The application says how far two regions got as one; one that cannot keeps both.
func TestRule8MergeOfFrontiers(t *testing.T) {
	for name, can := range map[string]bool{"can": true, "cannot": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tables, func(b *bubble) {
				var p *process
				if can {
					p = b.startWith("m1", nil, func(a *app) member.Handler { return merger{a} })
				} else {
					p = b.start("m1", nil)
				}
				b.cluster.Show("m1", part(17, 2, "a", "m", "x"), part(18, 2, "m", "z", "y"))
				b.awaitPhase("m1", 17, serving)
				b.awaitPhase("m1", 18, serving)
				b.cluster.Show("m1", reshaping(part(17, 2, "a", "m", "x"), "merge-17-2.1", 17, 18), reshaping(part(18, 2, "m", "z", "y"), "merge-17-2.1", 17, 18))
				if can {
					b.await("m1", "of both", func(r fakecoordinator.Reported) bool {
						return r.Phase(17) == released && string(r.Regions[17].GetFrontier()) == "after x & after y" && r.Regions[17].GetTransitionId() == "merge-17-2.1"
					})
				} else {
					b.await("m1", "says that it cannot", func(r fakecoordinator.Reported) bool {
						return r.Phase(17) != released && r.Regions[17].GetError() == "the application cannot merge regions that got differently far"
					})
				}
				b.cluster.Show("m1", part(17, 2, "a", "m", "x"), part(18, 2, "m", "z", "y")) // given up
				b.awaitPhase("m1", 17, serving)
				b.awaitPhase("m1", 18, serving)
				for _, want := range []string{"acquire 17@2.1 after x", "acquire 18@2.1 after y"} {
					if p.app.called(want) != 1 {
						t.Errorf("it was asked %q, not once %q", p.app.calls, want)
					}
				}
			})
		})
	}
}
