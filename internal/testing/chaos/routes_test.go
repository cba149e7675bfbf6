package chaos

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// write makes a region of its own or writes a shared one, at times with a
// conf version that somebody else may have used meanwhile.
func (c *caller) write(ctx context.Context) {
	if c.rng.IntN(3) == 0 {
		c.next++
		_ = c.make(ctx, fmt.Sprintf("%s/%06d", c.name, c.next)) // what became of it is in the evidence
		return
	}
	key := sharedKey(c.rng.IntN(sharedRegions))
	c.mu.Lock()
	id, conf := c.ids[key], c.conf[key]+1
	c.mu.Unlock()
	_ = c.publishAt(ctx, key, id, state.Epoch{Version: 1, ConfVersion: conf}) // the same
}

// make makes a region.
func (c *caller) make(ctx context.Context, key string) error {
	return c.publishAt(ctx, key, 0, state.Epoch{Version: 1, ConfVersion: 1})
}

// publishAt tries one change until it has an answer or has tried often enough.
func (c *caller) publishAt(ctx context.Context, key string, id uint64, epoch state.Epoch) error {
	c.next++
	w := &write{client: c.name, key: key, conf: numberOf(epoch), tag: fmt.Sprintf("%s#%d", c.name, c.next), called: c.now(), returned: history.Never}
	defer c.e.wrote(w)
	region := &rootv1.Region{
		Id: id, KeyspaceId: uint32(state.DefaultKeyspace), StartKey: []byte(key), EndKey: []byte(key + "~"),
		Epoch: epoch.Proto(), Frontier: []byte(w.tag),
	}
	req := &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Identity: c.load.identities.Next(0), Events: []*rootv1.Event{{
		Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}},
	}}}}}
	err := errNoAnswer
	for range c.tries {
		w.lastTry, w.tries = c.now(), w.tries+1
		var r *coordinatorv1.PublishRootEventsResponse
		if err = c.ask(ctx, func(ctx context.Context, n coordinatorv1.CoordinatorClient) (err error) {
			r, err = n.PublishRootEvents(ctx, req)
			return err
		}); err == nil {
			c.learn(w, r.GetResults()[0])
			return nil
		}
		if ctx.Err() != nil {
			break
		}
		c.turn(ctx)
	}
	return err
}

// numberOf is an epoch as a number: of a region's two versions one stays 1 here.
func numberOf(e state.Epoch) uint64 { return max(e.Version+e.ConfVersion, 1) - 1 }

// clusterID is what calls name. The first one asks the root for it, past the network.
func (l *load) clusterID() uint64 {
	for _, root := range l.c.clients {
		if l.cluster.Load() != 0 {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		if s, err := root.Status(ctx, &rootv1.StatusRequest{}); err == nil {
			l.cluster.Store(s.GetClusterId())
		}
		cancel()
	}
	return l.cluster.Load()
}

// read asks any coordinator for the region of a key.
func (c *caller) read(ctx context.Context) {
	c.at = c.rng.IntN(len(c.nodes))
	q := &read{client: c.name, node: coordinatorPlace(c.at), kind: kindOfRead(c.rng.IntN(int(kindsOfRead))), key: c.someKey(), maxLag: math.MaxUint64}
	req := &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte(q.key)}, Read: &coordinatorv1.ReadOptions{}}
	switch q.kind {
	case strong:
		req.Read.Freshness = coordinatorv1.Freshness_FRESHNESS_STRONG
	case bounded:
		q.maxAge = time.Duration(1+c.rng.IntN(500)) * time.Millisecond
		req.Read.Freshness, req.Read.MaxRootLagMillis = coordinatorv1.Freshness_FRESHNESS_BOUNDED, proto.Uint64(uint64(q.maxAge.Milliseconds()))
		if c.rng.IntN(2) == 0 {
			q.maxLag = uint64(c.rng.IntN(4))
			req.Read.MaxRootLag = proto.Uint64(q.maxLag)
		}
	case session:
		q.required = c.session
		req.Read.RequiredRootToken = q.required.Proto()
	default:
		req.Read.Freshness = coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT
	}
	q.called = c.now()
	var r *coordinatorv1.GetRegionsByKeysResponse
	err := c.ask(ctx, func(ctx context.Context, n coordinatorv1.CoordinatorClient) (err error) {
		r, err = n.GetRegionsByKeys(ctx, req)
		return err
	})
	if err != nil {
		return
	}
	q.returned, q.token, q.lag = c.now(), state.TokenFromProto(r.GetDisclosure().GetServedRootToken()), r.GetDisclosure().GetRootLag()
	if at := r.GetRegionOfKey()[0]; at > 0 {
		q.region = state.RegionFromProto(r.GetRegions()[at-1])
	}
	if c.session.Compare(q.token) < 0 {
		c.session = q.token
	}
	c.e.answered(q)
	if c.progress[loadRoutes].Add(1); q.kind == strong {
		c.progress[loadStrong].Add(1)
	}
}

// someKey is the key of a shared region mostly, or of any other, or of none.
func (c *caller) someKey() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := c.rng.IntN(12); {
	case p == 0 || len(c.keys) == 0:
		return fmt.Sprintf("nobody/%d", c.rng.IntN(100))
	case p > 9:
		return goneKey(c.rng.IntN(goneRegions))
	case p < 4:
		return c.keys[c.rng.IntN(len(c.keys))]
	default:
		return sharedKey(c.rng.IntN(sharedRegions))
	}
}
