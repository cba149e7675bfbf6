package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// copied is what somebody had who followed a watch, at a position. Keyspaces and
// members are nil where they are not copied.
type copied struct {
	name     string
	at       client.Position
	keyspace string // of the regions; empty: all
	regions  map[state.RegionID]*rooted.Region

	keyspaces []*rootv1.Keyspace
	members   []*rootv1.Member
}

// shown is a route that a cache gave.
type shown struct {
	// at is a position that the cache had reached before it was asked, or that the
	// route names.
	at     state.Token
	region *rooted.Region
}

// copyEvery is how many batches go by between two looks at a whole copy.
const copyEvery = 40

// withCopies keeps a Mirror of everything and a Cache, and asks the cache for routes.
func (l *load) withCopies(ctx, following context.Context, cl *client.Client) {
	batches := 0
	l.mirror = cl.NewMirror(client.MirrorConfig{Members: true, OnChange: func(client.Update) {
		if batches++; batches%copyEvery == 0 {
			l.e.copied(l.mirrored())
		}
	}})
	l.cache = cl.NewCache(client.CacheConfig{OnChange: func(client.Update) { l.progress[loadCopies].Add(1) }})
	l.runs(following, "a mirror", l.mirror.Run)
	l.runs(following, "a cache", l.cache.Run)
	asker := &caller{load: l, name: "go-cache", rng: l.caller("go-cache", 1).rng}
	l.askers.Go(func() {
		for ctx.Err() == nil {
			l.route(ctx, asker)
			time.Sleep(thinking / 2) // how long this caller thinks
		}
	})
}

// runs keeps a copy going until ctx ends, the only reason for it to end.
func (l *load) runs(ctx context.Context, what string, run func(context.Context) error) {
	l.followers.Go(func() {
		if err := run(ctx); err != nil || ctx.Err() == nil {
			l.t.Errorf("Tail: %s ended: %v", what, err)
		}
	})
}

// route asks the cache for a route; now and then a member has refused it as stale.
func (l *load) route(ctx context.Context, c *caller) {
	key := []byte(goneKey(c.rng.IntN(goneRegions)))
	if c.rng.IntN(3) == 0 {
		key = []byte(c.someKey())
	}
	at, ready := l.cache.At()
	if !ready {
		return
	}
	if r, ok := l.cache.Lookup(key); ok {
		l.e.shown(shown{at.Token, r.Region}, c.now())
		if c.rng.IntN(20) == 0 {
			l.cache.Invalidate(r)
			l.invalidated.Store(string(key), true)
		}
		return
	}
	callCtx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	if r, err := l.cache.Route(callCtx, key); err == nil && r.Region != nil {
		if at.Token.Compare(r.At) < 0 {
			at.Token = r.At
		}
		l.e.shown(shown{at.Token, r.Region}, c.now())
	}
}

// mirrored is the Mirror as it is at one position. OnChange calls it, and whoever
// knows that nothing changes any more.
func (l *load) mirrored() copied {
	out := copied{name: "mirror", regions: map[state.RegionID]*rooted.Region{}, keyspaces: l.mirror.Keyspaces(), members: l.mirror.Members()}
	out.at, _ = l.mirror.At()
	for r := range l.mirror.All() {
		out.regions[r.ID] = r
	}
	return out
}

// cached is the Cache, when nothing changes any more.
func (l *load) cached() copied {
	out := copied{name: "cache", keyspace: "default", regions: map[state.RegionID]*rooted.Region{}}
	out.at, _ = l.cache.At()
	for r := range l.cache.All() {
		out.regions[r.Region.ID] = r.Region
	}
	return out
}

// copiesRest says whether the copies have come to the end of the log, and notes
// them. Nothing changes any more.
func (r *run) copiesRest() error {
	r.e.mu.Lock()
	last := uint64(len(r.e.log))
	r.e.mu.Unlock()
	// The cache takes in again what was wrongly said to be stale when it is asked.
	var err error
	r.load.invalidated.Range(func(key, _ any) bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), clientLimit)
		defer cancel()
		if _, err = r.load.cache.Route(ctx, []byte(key.(string))); errors.Is(err, client.ErrNotFound) {
			err = nil
		}
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("a route that was invalidated: %w", err)
	}
	for _, c := range []copied{r.load.mirrored(), r.load.cached()} {
		if c.at.Token.Index < last {
			return fmt.Errorf("Tail: the %s is at %s, the log is known up to %d", c.name, c.at, last)
		}
		r.e.copied(c)
	}
	return nil
}

func (e *evidence) copied(c copied) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copies = append(e.copies, c)
}

func (e *evidence) shown(s shown, at time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.routes = append(e.routes, s)
	e.acked = append(e.acked, ack{at, s.at.Index})
}

// lookAt compares copies of a position with the log replayed to it.
func (j *judge) lookAt(st *state.State, c copied) error {
	want := map[state.RegionID]*state.Region{}
	var keyspaces []*rootv1.Keyspace
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		keyspaces = append(keyspaces, k)
		if c.keyspace == "" || c.keyspace == k.GetName() {
			st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
				want[r.ID] = r
				return true
			})
		}
		return true
	})
	for id, r := range want {
		if got := c.regions[id]; got == nil || got.Epoch != r.Epoch || got.Start != r.Start || got.End != r.End || got.Revision != r.Revision || !slices.Equal(got.Owners, r.Owners) {
			return fmt.Errorf("the %s has %v at %s, the log %s", c.name, got, c.at, show(r))
		}
	}
	if len(c.regions) != len(want) {
		return fmt.Errorf("the %s has %d regions at %s, the log %d", c.name, len(c.regions), c.at, len(want))
	}
	if c.members == nil && c.keyspaces == nil {
		return nil
	}
	var members []*rootv1.Member
	st.Members(func(m *rootv1.Member) bool {
		members = append(members, m)
		return true
	})
	if err := sameRecords(c.members, members, (*rootv1.Member).GetId); err != nil {
		return fmt.Errorf("members of the %s at %s: %w", c.name, c.at, err)
	}
	if err := sameRecords(c.keyspaces, keyspaces, (*rootv1.Keyspace).GetName); err != nil {
		return fmt.Errorf("keyspaces of the %s at %s: %w", c.name, c.at, err)
	}
	return nil
}

func sameRecords[M proto.Message](got, want []M, name func(M) string) error {
	all := map[string]M{}
	for _, m := range got {
		all[name(m)] = m
	}
	for _, m := range want {
		if there, ok := all[name(m)]; !ok || !proto.Equal(there, m) {
			return fmt.Errorf("it has %v, the log %v", there, m)
		}
	}
	if len(all) != len(want) {
		return fmt.Errorf("it has %v, the log %d", slices.Sorted(maps.Keys(all)), len(want))
	}
	return nil
}

// removedShown: a route is not of a region that had been removed by the position
// that the cache was at.
func (j *judge) removedShown() error {
	for _, s := range j.routes {
		for _, removed := range j.removals[s.region.ID] {
			if s.region.Revision < removed && removed <= s.at.Index {
				return fmt.Errorf("a cache at %s gave region %d of revision %d, which was removed at %d", s.at, s.region.ID, s.region.Revision, removed)
			}
		}
	}
	return nil
}
