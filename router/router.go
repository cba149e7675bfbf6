package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/pinkeys"
)

// Router finds the owners of keys. Its methods may be called by any number of
// goroutines.
type Router struct {
	cfg   Config
	first *view
	views map[string]*view
}

// New makes a Router, which knows nothing before Run: until then it asks.
func New(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Router{cfg: cfg, views: map[string]*view{}}
	for _, name := range cfg.Keyspaces {
		v := &view{r: r, keyspace: name, pins: pinkeys.New(cfg.Client, name), cache: cfg.Client.NewCache(client.CacheConfig{
			Keyspace: name, MaxRegions: cfg.MaxRegions, MaxBytes: cfg.MaxBytes, MaxAnswers: cfg.MaxAnswers,
		})}
		r.views[name] = v
		if r.first == nil {
			r.first = v
		}
	}
	return r, nil
}

// view is what a Router has of one keyspace.
type view struct {
	r        *Router
	keyspace string
	cache    *client.Cache
	pins     *pinkeys.Keys
	// untold is until when coordinators are asked to open pins: this process may not.
	untold  atomic.Pointer[time.Time]
	waiting atomic.Int64
	// asOf is when what the cache has was the newest at the latest, as answers said.
	asOf    atomic.Pointer[time.Time]
	cursors [cursors]cursor
}

// cursors is how many of them regions share.
const cursors = 64

// cursor takes turns, in a line of its own.
type cursor struct {
	next atomic.Uint32
	_    [60]byte
}

// Run follows the keyspaces until ctx ends, which is no error. One that is not there is
// waited for, and so is permission; nothing is held of it meanwhile. It returns an error
// that will not go away: the client was closed, or the cluster is another one.
func (r *Router) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, v := range r.views {
		all.Go(func() {
			if err := v.follow(ctx); err != nil {
				cancel(fmt.Errorf("follow keyspace %q: %w", v.keyspace, err))
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

// A keyspace that cannot be followed is tried again after about so long, twice as long
// each time.
const (
	againMin = 100 * time.Millisecond
	againMax = 5 * time.Second
)

func (v *view) follow(ctx context.Context) error {
	warned := "" // of what, since it was followed last
	for pause := againMin; ; pause = min(2*pause, againMax) {
		begun := time.Now()
		before, _ := v.cache.At()
		err := v.cache.Run(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrClosed), errors.Is(err, client.ErrClusterMismatch), errors.Is(err, client.ErrInvalidRequest):
			return err
		}
		if time.Since(begun) > againMax {
			pause = againMin
		}
		if at, _ := v.cache.At(); at != before {
			warned = ""
		}
		if why := reasonOf(err); why != warned {
			v.r.cfg.Logger.Warn("a keyspace is not followed, and tried again until it is", "keyspace", v.keyspace, "err", err)
			warned = why
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return nil
		}
	}
}

// reasonOf is what an error is the same by, whoever said it and however often it was asked.
func reasonOf(err error) string {
	var said *client.Error
	if errors.As(err, &said) {
		return said.Reason.String()
	}
	return fmt.Sprint(err)
}

// Wait returns when everything has been complete once, or ctx has ended.
func (r *Router) Wait(ctx context.Context) error {
	for _, v := range r.views {
		select {
		case <-v.cache.Ready():
		case <-ctx.Done():
			return fmt.Errorf("keyspace %q is not followed yet: %w", v.keyspace, ctx.Err())
		}
	}
	return nil
}

// State is what a Router holds of a keyspace.
type State struct {
	Keyspace string
	// Position that it is at; AsOf is when that was the newest, at the latest. Zero: it
	// has nothing yet, or does not know.
	Position client.Position
	AsOf     time.Time
	// Regions held, and about how many bytes they take.
	Regions, Bytes int
	// Waiting callers.
	Waiting int
}

// State says what is held, in the order of Config.Keyspaces.
func (r *Router) State() []State {
	out := make([]State, len(r.cfg.Keyspaces))
	for i, name := range r.cfg.Keyspaces {
		v := r.views[name]
		at, _ := v.cache.At()
		out[i] = State{
			Keyspace: name, Position: at, AsOf: v.known(v.cache.AsOf()),
			Regions: v.cache.Len(), Bytes: v.cache.Bytes(), Waiting: int(v.waiting.Load()),
		}
	}
	return out
}

// known is the later of a time and what answers said.
func (v *view) known(asOf time.Time) time.Time {
	if said := v.asOf.Load(); said != nil && said.After(asOf) {
		return *said
	}
	return asOf
}
