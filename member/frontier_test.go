package member_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// sluggish is a Handler that is slow and fails, and knows what its Release returned last.
type sluggish struct {
	mu       sync.Mutex
	chance   *rand.Rand
	last     string
	releases int
	calm     bool
	wrong    []string
}

var errSluggish = errors.New("not this time")

// spend takes some time, as long as the context lasts, and may fail.
func (s *sluggish) spend(ctx context.Context) error {
	s.mu.Lock()
	pause, fails := time.Duration(s.chance.IntN(300))*time.Millisecond, s.chance.IntN(4) == 0
	if s.calm {
		pause, fails = 0, false
	}
	s.mu.Unlock()
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return ctx.Err()
	}
	if fails {
		return errSluggish
	}
	return nil
}

func (s *sluggish) Acquire(ctx context.Context, r member.Region) error {
	s.mu.Lock()
	if r.Frontier != s.last {
		s.wrong = append(s.wrong, fmt.Sprintf("released at %q, and acquired from %q", s.last, r.Frontier))
	}
	s.mu.Unlock()
	return s.spend(ctx)
}

func (s *sluggish) Release(ctx context.Context, _ member.Region) ([]byte, error) {
	if err := s.spend(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releases++
	s.last = fmt.Sprintf("exactly-%d", s.releases)
	return []byte(s.last), nil
}

// Rule 8: moves that are planned and given up at any moment, of an application that is slow and
// fails: what is reported as released is what Release returned last, and Acquire gets that.
func TestRule8TheFrontierOutlivesMovesThatAreGivenUp(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, games, func(b *bubble) {
				chance := rand.New(rand.NewPCG(seed, 1))
				h := &sluggish{chance: rand.New(rand.NewPCG(seed, 2)), last: "f3"}
				b.startWith("m1", nil, func(*app) member.Handler { return h })
				for range 100 {
					b.cluster.Show("m1", own(17, 3))
					time.Sleep(time.Duration(chance.IntN(400)) * time.Millisecond)
					b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
					time.Sleep(time.Duration(chance.IntN(400)) * time.Millisecond)
				}
				h.mu.Lock()
				h.calm = true
				h.mu.Unlock()
				b.await("m1", "released at what Release returned", func(r fakecoordinator.Reported) bool {
					h.mu.Lock()
					defer h.mu.Unlock()
					return r.Phase(17) == released && string(r.Regions[17].GetFrontier()) == h.last
				})
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.wrong) > 0 || h.releases < 10 {
					t.Errorf("%d releases; it was acquired from elsewhere %d times: %q", h.releases, len(h.wrong), h.wrong[:min(len(h.wrong), 3)])
				}
			})
		})
	}
}
