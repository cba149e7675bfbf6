package router

import (
	"context"
	"math/rand/v2"
	"time"
)

// Follow looks at a key about so often when nothing is heard of it, and again after so long when
// a look failed.
const (
	followEvery = 10 * time.Second
	followAgain = time.Second
)

// Follow runs a function with what Resolve says of a key: now, and whenever it may say something
// else. It returns nil when the function returns false; an error when ctx has ended, or Resolve would
// never take the key or the keyspace. A change costs nothing for those who follow other keys.
// Options.Hold counts for nothing: where Resolve has to ask, it does so for 250 ms.
func (r *Router) Follow(ctx context.Context, key []byte, o Options, run func(Target, error) bool) error {
	v, err := r.viewOf(o.Keyspace)
	if err == nil {
		err = checkKey(key)
	}
	if err != nil {
		return err
	}
	o.Hold = askEvery
	net := time.NewTimer(0)
	defer net.Stop()
	for {
		changed, end := v.cache.ChangedAt(key)
		t, err := r.Resolve(ctx, key, o)
		if ctx.Err() != nil {
			end()
			return ctx.Err()
		}
		if !run(t, err) {
			end()
			return nil
		}
		look := followEvery/2 + rand.N(followEvery)
		if err != nil {
			look = followAgain
		}
		net.Reset(look)
		select {
		case <-changed:
		case <-net.C:
		case <-ctx.Done():
		}
		end()
	}
}
