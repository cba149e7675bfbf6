package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Ids and timestamps of a coordinator that names no cluster are nobody's.
func TestValuesOfNoClusterAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(0)})
		c, end := w.client(client.Config{}, "a")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if r, err := c.AllocID(ctx, 1); err == nil {
			t.Errorf("ids %+v", r)
		}
		if r, err := c.Tso(ctx, 1); err == nil {
			t.Errorf("timestamp %+v", r)
		}
	})
}

// An answer of a coordinator that is behind the cache, which had asked for one that is not,
// is refused, and not kept.
func TestCacheDoesNotBelieveWhatIsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.lookup = func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			return &coordinatorv1.GetRegionByKeyResponse{
				Region: region(1, "", "m", 2), Disclosure: &coordinatorv1.Disclosure{ClusterId: 7, ServedRootToken: at(5)},
			}, nil
		}
		k, ch, end := cached(t, f, client.CacheConfig{})
		defer end()
		ch.snapshot(9, region(2, "m", "", 2))
		if r, err := k.Route(t.Context(), []byte("a")); err == nil {
			t.Errorf("the cache is at 9, and answers at %s", r.At)
		}
		if r, ok := k.Lookup([]byte("a")); ok {
			t.Errorf("kept %+v at %s", r.Region, r.At)
		}
	})
}

// A claim that is answered from before what the cache has is refused, and not kept.
func TestCacheDoesNotBelieveAClaimThatIsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &claimer{fake: &fake{}, made: map[string]uint64{}}
		k, ch, end := cachedBy(t, f.fake, f, client.CacheConfig{})
		defer end()
		ch.snapshot(1<<40, region(99, "m", "", 2))
		if r, err := k.Claim(t.Context(), []byte("a")); err == nil {
			t.Errorf("the cache is at %d, and claims at %s", 1<<40, r.At)
		}
		if r, ok := k.Lookup([]byte("a")); ok {
			t.Errorf("kept %+v at %s", r.Region, r.At)
		}
	})
}
