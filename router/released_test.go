package router_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	nokvmember "github.com/nokv/nokv/member"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/nokvtest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// The region of a key was released because nobody used it, and removed. A request that was on its way to the owner is
// refused there, and has the region made anew: by the same member, at the epoch that the one before had.
func TestDoClaimsAgainWhatWasReleased(t *testing.T) {
	for _, claims := range []bool{true, false} {
		t.Run(fmt.Sprint("ClaimOnMiss ", claims), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, end := start(t, router.Config{})
				defer end()
				b.snapshot(region(1, "k", "k\x00", 2, 1))
				b.c.claimed = region(2, "k", "k\x00", 2, 1)
				b.c.answers(func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
					return nil, reason.New(rootv1.Reason_REASON_NOT_FOUND, "no region has the key")
				})
				begun := time.Now()
				var at []router.Target
				err := b.Do(t.Context(), []byte("k"), router.Options{ClaimOnMiss: claims, Hold: time.Second}, func(_ context.Context, t router.Target) error {
					if at = append(at, t); t.Region.ID == 1 {
						return &nokvmember.NotOwned{Region: 1}
					}
					return nil
				})
				last, took := at[len(at)-1], time.Since(begun)
				switch {
				case !claims && (err == nil || took != time.Second || last.Region.ID != 1):
					t.Errorf("a region was made that was not asked for: %v after %v, last at %+v", err, took, last)
				case claims && (err != nil || took > 20*time.Millisecond || len(at) != 2 || last.Region.ID != 2 || !last.Claimed || last.Member != "m1" || last.Epoch != at[0].Epoch):
					t.Errorf("%d tries in %v, the last at %+v: %v", len(at), took, last, err)
				}
			})
		})
	}
}

// idleApp is an application that does nothing.
type idleApp struct{}

func (idleApp) Acquire(context.Context, nokvmember.Region) error           { return nil }
func (idleApp) Release(context.Context, nokvmember.Region) ([]byte, error) { return nil, nil }

// Requests come at any moment of the release of what nobody uses: none fails, and none waits for longer than a region
// takes to be made.
func TestNoRequestFailsAtAnIdleRelease(t *testing.T) {
	const (
		keys, rounds = 250, 20 // 5,000 requests
		evict, scan  = 2 * time.Second, 100 * time.Millisecond
		travel       = 100 * time.Millisecond // of a request to its member
		longest      = 500 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("games")
		s.Cadence = &rootv1.Cadence{IdleEvictMillis: uint64(evict.Milliseconds()), IdleScanMillis: uint64(scan.Milliseconds())}
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "", s))
		members := map[string]*nokvtest.Member{}
		for _, id := range []string{"m1", "m2"} {
			members[id] = c.Member(t, id, idleApp{})
		}
		r, err := router.New(router.Config{Client: c.Client(), Keyspaces: []string{"games"}})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { cancel(); must(t, <-done) }()
		must(t, r.Wait(t.Context()))
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed, slow, again int
		for i := range keys {
			all.Go(func() {
				key := fmt.Appendf(nil, "g%d", i)
				for j := range rounds {
					begun, tries := time.Now(), 0
					err := r.Do(ctx, key, router.Options{ClaimOnMiss: true, ReassignOrphans: true}, func(ctx context.Context, t router.Target) error {
						tries++
						time.Sleep(travel)
						return members[string(t.Member)].Do(ctx, nokvmember.Request{Keyspace: "games", Key: key, Region: t.Region.ID, Epoch: t.Epoch},
							func(context.Context, nokvmember.Region) error { return nil })
					})
					took := time.Since(begun)
					mu.Lock()
					if tries > 1 {
						again++
					}
					if err != nil {
						failed++
						t.Logf("%s in round %d, after %v: %v", key, j, took, err)
					} else if took > longest {
						slow++
					}
					mu.Unlock()
					time.Sleep(evict + time.Duration((i*7+j*131)%1700)*time.Millisecond)
				}
			})
		}
		all.Wait()
		t.Logf("of %d requests %d were tried again", keys*rounds, again)
		if failed > 0 || slow > 0 || again == 0 {
			t.Errorf("of %d requests %d failed, %d took longer than %v, and %d were tried again", keys*rounds, failed, slow, longest, again)
		}
	})
}
