package member_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/member"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func (p *process) askKey(key string, conf uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.Do(ctx, member.Request{Keyspace: "games", Key: []byte(key), Epoch: epoch(conf)}, func(context.Context, member.Region) error { return nil })
}

// A request that names its key and an epoch, and no region, waits at the next owner as others do: until the region that
// the key is in is there, so long and no longer, and so many and no more.
func TestRule9RequestsWithoutARegionAreHeld(t *testing.T) {
	for name, layout := range map[string]*rootv1.Layout{
		"points": {Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
		"ranges": {Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}},
		"slots":  {Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 16}}},
	} {
		t.Run(name, func(t *testing.T) {
			terms := proto.CloneOf(games)
			terms.Layout = layout
			inBubble(t, terms, func(b *bubble) {
				p := b.start("m1", func(c *member.Config) { c.MaxHeld = 3 })
				region := own(17, 3)
				if name != "points" {
					region.Region.StartKey, region.Region.EndKey = nil, nil
				}
				results := make(chan error, 5)
				for range 5 {
					go func() { results <- p.askKey("k17", 3) }()
				}
				synctest.Wait()
				for range 2 {
					if err := <-results; !errors.Is(err, member.ErrTooManyHeld) {
						t.Errorf("one more than may wait: %v", err)
					}
				}
				time.Sleep(300 * time.Millisecond)
				b.cluster.Show("m1", region)
				begun := time.Now()
				for range 3 {
					if err := <-results; err != nil || time.Since(begun) > time.Second {
						t.Errorf("it waited for the region of its key, and was told %v after %v", err, time.Since(begun))
					}
				}
				is[*member.EpochStale](t, p.askKey("k17", 2))
				begun = time.Now()
				if is[*member.NotOwned](t, p.askKey("k17", 9)); time.Since(begun) != 2*time.Second {
					t.Errorf("an epoch that does not come was waited for for %v", time.Since(begun))
				}
				begun = time.Now()
				is[*member.NotOwned](t, p.Do(b.Context(), member.Request{Keyspace: "other", Key: []byte("k17")}, nil))
				if time.Since(begun) != 0 {
					t.Errorf("a request of this process itself waited for %v", time.Since(begun))
				}
			})
		})
	}
}

// Who gave a key away answers at once, to whom a request has to go where that is known, and holds nothing: but for an
// epoch that was never here.
func TestRule9WhoGaveAKeyAwayDoesNotHoldIt(t *testing.T) {
	inBubble(t, games, func(b *bubble) {
		p := b.start("m1", nil)
		at := func(want, took time.Duration) {
			t.Helper()
			if took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
		}
		b.cluster.Show("m1", own(17, 3))
		b.cluster.Show("m1", own(18, 3))
		b.awaitPhase("m1", 17, serving)
		b.awaitPhase("m1", 18, serving)
		b.cluster.Show("m1", moving(17, 3, coordinatorv1.MoveRole_MOVE_ROLE_GIVES, "m2", true))
		b.awaitPhase("m1", 17, released)
		b.cluster.End("m1", 17)
		b.cluster.End("m1", 18) // another has it, and nobody says who
		b.eventually("they are dropped", func() bool { return p.app.called("evict 18@1.3 f3") == 1 })
		synctest.Wait()
		for _, conf := range []uint64{3, 4} {
			begun := time.Now()
			if e := is[*member.Moved](t, p.askKey("k17", conf)); e.To != "m2" || e.Epoch != epoch(4) {
				t.Errorf("who asks at %d is told %v", conf, e)
			}
			at(0, time.Since(begun))
		}
		begun := time.Now()
		is[*member.NotOwned](t, p.askKey("k18", 3))
		at(0, time.Since(begun))
		for _, key := range []string{"k17", "k18", "k19"} { // of which nothing is known at that epoch
			begun := time.Now()
			is[*member.NotOwned](t, p.askKey(key, 9))
			at(2*time.Second, time.Since(begun))
		}
	})
}
