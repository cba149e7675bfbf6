package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// claimer is a fake that makes regions: one a key, for ever. Key "full" fits nowhere.
type claimer struct {
	*fake
	mu   sync.Mutex
	made map[string]uint64
	most int // keys in a request
}

func (f *claimer) ClaimRegions(ctx context.Context, req *coordinatorv1.ClaimRegionsRequest) (*coordinatorv1.ClaimRegionsResponse, error) {
	if err := f.note(ctx, "ClaimRegions"); err != nil {
		return nil, err
	}
	time.Sleep(5 * time.Millisecond) // the root's
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most = max(f.most, len(req.GetKeys()))
	out := &coordinatorv1.ClaimRegionsResponse{Disclosure: f.disclosure(), Owners: []*coordinatorv1.OwnerAddress{{MemberId: "m1", Address: "m1:1", State: rootv1.MemberState_MEMBER_STATE_ACTIVE}}}
	for _, key := range req.GetKeys() {
		if string(key) == "full" {
			out.Regions = append(out.Regions, &coordinatorv1.ClaimedRegion{Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_CAPACITY_EXCEEDED, Message: "no more fit"}})
			continue
		}
		id, there := f.made[string(key)]
		if !there {
			id = uint64(len(f.made) + 1)
			f.made[string(key)] = id
		}
		r := region(id, string(key), string(key)+"\x00", 1)
		r.Owners = []*rootv1.Owner{{MemberId: "m1", Incarnation: 3}}
		out.Regions = append(out.Regions, &coordinatorv1.ClaimedRegion{Region: r, Made: !there, Token: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: f.log.Add(1)}})
	}
	return out, nil
}

// Callers share requests, each has its own answer, and one that is refused is nobody else's.
func TestP42P57ClaimsShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &claimer{fake: &fake{cluster: newCluster(7)}, made: map[string]uint64{}}
		standby := &claimer{fake: &fake{cluster: f.cluster}, made: map[string]uint64{}}
		standby.refuse(on(notHeld("c1:1"), "ClaimRegions"))
		w.start("c1:1", f)
		w.start("c2:1", standby)
		c, end := w.client(client.Config{}, "c2:1")
		defer end()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				key := fmt.Sprint("key", i/2)
				if i%10 == 0 {
					if _, err := c.Claim(t.Context(), "games", []byte("full")); !errors.Is(err, client.ErrCapacityExceeded) {
						t.Errorf("full: %v", err)
					}
				}
				got, err := c.Claim(t.Context(), "games", []byte(key))
				if err != nil || got.Region.Start != key || got.Address() != "m1:1" || got.At.Index == 0 {
					t.Errorf("%s: %+v, %v", key, got, err)
				}
			})
		}
		all.Wait()
		if n := f.called("ClaimRegions"); n > 6 || f.most < 50 || len(f.made) != 100 {
			t.Errorf("%d requests of %d keys at most made %d regions", n, f.most, len(f.made))
		}
		if s := c.Stats(); s.ClaimCallers != 220 || s.ClaimRequests == 0 {
			t.Errorf("%+v", s)
		}
		for _, key := range []string{"", string(make([]byte, 5000))} {
			if _, err := c.Claim(t.Context(), "games", []byte(key)); !errors.Is(err, client.ErrInvalidRequest) {
				t.Errorf("a key of %d bytes: %v", len(key), err)
			}
		}
	})
}

// A call whose outcome is not known is made again, and finds what it made; who waits no
// more is let go at once, and is in nobody's way.
func TestP40AClaimIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &claimer{fake: &fake{cluster: newCluster(7)}, made: map[string]uint64{}}
		w.start("c1:1", f)
		c, end := w.client(client.Config{}, "c1:1")
		defer end()
		f.made["alice"] = 5
		tries := 0
		f.refuse(func(_ context.Context, m string) error {
			if m != "ClaimRegions" {
				return nil
			}
			if tries++; tries < 3 {
				return reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the root did not answer")
			}
			return nil
		})
		got, err := c.Claim(t.Context(), "games", []byte("alice"))
		if err != nil || got.Made || got.Region.ID != 5 || tries != 3 {
			t.Errorf("%+v, %v after %d tries", got, err, tries)
		}
		f.refuse(silent("ClaimRegions"))
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := c.Claim(short, "games", []byte("bob")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 110*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		f.refuse(nil)
		if got, err := c.Claim(t.Context(), "games", []byte("bob")); err != nil || got.Region.Start != "bob" {
			t.Errorf("behind one that gave up: %v", err)
		}
	})
}

// Who gives up while its request waits for its turn takes nothing from those who join that
// request later; one for which nobody waits any more is not sent.
func TestP40WhoGivesUpWaitingForATurnIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &claimer{fake: &fake{cluster: newCluster(7)}, made: map[string]uint64{}}
		w.start("c1:1", f)
		c, end := w.client(client.Config{}, "c1:1")
		defer end()
		slow := make(chan struct{})
		f.refuse(func(_ context.Context, m string) error {
			if m == "ClaimRegions" {
				<-slow
			}
			return nil
		})
		var all sync.WaitGroup
		claim := func(key string) {
			all.Go(func() {
				if got, err := c.Claim(context.Background(), "games", []byte(key)); err != nil || got.Region.Start != key {
					t.Errorf("%s: %+v, %v", key, got, err)
				}
			})
			synctest.Wait()
		}
		giveUp := func(key string) {
			short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := c.Claim(short, "games", []byte(key)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", key, err)
			}
		}
		claim("first") // under way
		for i := range 20 {
			all.Go(func() { giveUp(fmt.Sprint("gone", i)) })
		}
		time.Sleep(20 * time.Millisecond)
		claim("joins")
		close(slow)
		all.Wait()
		slow = make(chan struct{})
		claim("second")
		giveUp("nobody's")
		sent := f.called("ClaimRegions")
		close(slow)
		all.Wait()
		synctest.Wait()
		if n := f.called("ClaimRegions"); n != sent {
			t.Errorf("%d requests more, for nobody", n-sent)
		}
		claim("third")
		all.Wait()
	})
}
