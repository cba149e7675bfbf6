package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func nothing() {}

// MaxBenchMembers bounds the members that a bench runs.
const MaxBenchMembers = 1000

// work is one call of one worker; it returns how many operations it was.
type work func(ctx context.Context, worker int) (uint64, error)

// Validate says what is wrong with c.
func (c *Config) Validate() error {
	known, ok := modes[c.Workload]
	most := map[string]int{"id": client.MaxIDCount, "tso": client.MaxTsoCount}[c.Workload]
	switch {
	case !ok:
		return fmt.Errorf("workload %q: use publish, watches, claim, route, id or tso", c.Workload)
	case c.Concurrency < 1 || c.Concurrency > 100_000:
		return fmt.Errorf("concurrency %d: want 1 to 100,000", c.Concurrency)
	case c.Batch < 1 || c.Duration <= 0:
		return errors.New("want a batch of 1 or more and a duration above 0")
	case most != 0 && c.Batch > most:
		return fmt.Errorf("batch %d: want 1 to %d", c.Batch, most)
	case c.Workload == "route" && (c.Regions < 1 || c.Regions > 10_000_000):
		return fmt.Errorf("regions %d: want 1 to 10,000,000", c.Regions)
	case c.Workload == "watches" && (c.Watches.Count < 1 || c.Watches.Connections < 1 || c.Watches.Slow < 0 || c.Watches.Rate < 0):
		return errors.New("want 1 watch and 1 connection or more, and no negative rate or share")
	case c.Workload == "claim" && (c.Members < 1 || c.Members > MaxBenchMembers):
		return fmt.Errorf("members %d: want 1 to %d", c.Members, MaxBenchMembers)
	case c.Mode != "" && len(known) == 1:
		return fmt.Errorf("mode %q: %s has none", c.Mode, c.Workload)
	case !slices.Contains(known, c.Mode):
		last := len(known) - 1
		return fmt.Errorf("mode %q: use %s or %s", c.Mode, strings.Join(known[:last], ", "), known[last])
	}
	return c.validateAgainst()
}

// against says what each workload may be compared with.
var against = map[string][]string{"publish": {"etcd="}, "route": {"echo", "etcd=", "redis="}, "id": {"pd="}, "tso": {"pd="}}

func (c *Config) validateAgainst() error {
	if c.Against == "" {
		return nil
	}
	kind, addrs, _ := strings.Cut(c.Against, "=")
	if addrs != "" {
		kind += "="
	}
	if !slices.Contains(against[c.Workload], kind) {
		return fmt.Errorf("against %q: use %s", c.Against, strings.ReplaceAll(strings.Join(against[c.Workload], " or "), "=", "=HOST:PORT"))
	}
	for addr := range strings.SplitSeq(addrs, ",") {
		if _, _, err := net.SplitHostPort(addr); addrs != "" && err != nil {
			return fmt.Errorf("address %q: want HOST:PORT", addr)
		}
	}
	return nil
}

// prepare readies the workload and says how to end it.
func (c *Config) prepare(ctx context.Context, cl *client.Client) (work, func(), error) {
	switch other, addrs, _ := strings.Cut(c.Against, "="); other {
	case "etcd":
		return c.prepareEtcd(ctx, addrs)
	case "pd":
		return c.preparePD(ctx, addrs)
	case "redis":
		return c.prepareRedis(ctx, addrs)
	case "echo":
		return prepareEcho(ctx)
	}
	switch c.Workload {
	case "id":
		return c.prepareID(ctx, cl)
	case "tso":
		return c.prepareTSO(ctx, cl)
	case "publish":
		return c.preparePublish(ctx, cl, "bench-publish")
	case "watches":
		return c.prepareWatches(ctx, cl)
	}
	return c.prepareRoute(ctx, cl)
}

func (c *Config) prepareID(ctx context.Context, cl *client.Client) (work, func(), error) {
	n := uint64(c.Batch)
	if _, err := cl.AllocID(ctx, 1); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, _ int) (uint64, error) {
		_, err := cl.AllocID(ctx, n)
		return n, err
	}, nothing, nil
}

func (c *Config) prepareTSO(ctx context.Context, cl *client.Client) (work, func(), error) {
	n := uint64(c.Batch)
	if _, err := cl.Tso(ctx, 1); err != nil {
		return nil, nil, err
	}
	if c.Mode == "single" {
		return c.tsoSingle(cl, n)
	}
	return func(ctx context.Context, _ int) (uint64, error) {
		_, err := cl.Tso(ctx, n)
		return n, err
	}, nothing, nil
}

func (c *Config) tsoSingle(cl *client.Client, n uint64) (work, func(), error) {
	clients := make([]*client.Client, c.Concurrency)
	end := func() {
		for _, one := range clients {
			if one != nil {
				_ = one.Close()
			}
		}
	}
	for i := range clients {
		var err error
		if clients[i], err = client.New(client.Config{Endpoints: cl.Endpoints(), TLS: c.TLS}); err != nil {
			end()
			return nil, nil, err
		}
	}
	return func(ctx context.Context, worker int) (uint64, error) {
		_, err := clients[worker].Tso(ctx, n)
		return n, err
	}, end, nil
}

// keyspaceFor makes a keyspace of ranges for a workload, or finds it.
func keyspaceFor(ctx context.Context, cl *client.Client, name string) (uint32, error) {
	s := &rootv1.KeyspaceSettings{
		Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}},
		Placement: rootv1.Placement_PLACEMENT_REPORTED,
	}
	r, err := cl.CreateKeyspace(ctx, name, "", s)
	if err != nil {
		return 0, fmt.Errorf("make keyspace %s: %w", name, err)
	}
	return r.Keyspace.Id, nil
}

func (c *Config) preparePublish(ctx context.Context, cl *client.Client, name string) (work, func(), error) {
	keyspace, err := keyspaceFor(ctx, cl, name)
	if err != nil {
		return nil, nil, err
	}
	// One run must not meet the regions of another: its keys are its own.
	run := fmt.Sprintf("%016x", time.Now().UnixNano())
	regions := make([]*rootv1.Region, c.Concurrency)
	for i := range regions {
		key := fmt.Sprintf("%s/%06d", run, i)
		regions[i] = &rootv1.Region{KeyspaceId: keyspace, StartKey: []byte(key), EndKey: []byte(key + "~"), Epoch: &rootv1.RegionEpoch{}}
	}
	return func(ctx context.Context, worker int) (uint64, error) {
		r := regions[worker]
		r.Epoch = &rootv1.RegionEpoch{Version: r.Epoch.Version + 1, ConfVersion: 1}
		result, err := cl.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})
		if err == nil && r.Id == 0 {
			r.Id = result.Events[0].GetRegion().GetId()
		}
		if err == nil && c.audience != nil {
			c.audience.published(result.GetToken().GetIndex())
		}
		return 1, err
	}, nothing, nil
}

func (c *Config) prepareRoute(ctx context.Context, cl *client.Client) (work, func(), error) {
	const keyspace = "bench-route"
	if c.Mode == "router" {
		return c.routeByRouter(ctx, cl)
	}
	if err := MakeRegions(ctx, cl, keyspace, c.Regions, c.Progress); err != nil {
		return nil, nil, err
	}
	key := func() []byte { return Key(rand.IntN(c.Regions)) }
	in := client.In(keyspace)
	single := func(opts ...client.ReadOption) work {
		opts = append(opts, in)
		return func(ctx context.Context, _ int) (uint64, error) {
			_, err := cl.GetRegionByKey(ctx, key(), opts...)
			return 1, err
		}
	}
	switch c.Mode {
	case "strong":
		return single(client.Strong()), nothing, nil
	case "bounded":
		return single(client.Bounded(1000, time.Second)), nothing, nil
	case "batch":
		n := c.Batch
		return func(ctx context.Context, _ int) (uint64, error) {
			keys, room := make([][]byte, n), make([]byte, 0, n*keyBytes)
			for i := range keys {
				at := len(room)
				room = appendKey(room, rand.IntN(c.Regions))
				keys[i] = room[at:]
			}
			_, err := cl.GetRegionsByKeys(ctx, keys, in)
			return uint64(n), err
		}, nothing, nil
	case "cache":
		return routeCache(ctx, cl, keyspace, c.Regions)
	}
	return single(), nothing, nil
}

// cachedLookups is how many hits of the cache count as one call, so that the
// clock is not what is measured.
const cachedLookups = 1000

func routeCache(ctx context.Context, cl *client.Client, keyspace string, regions int) (work, func(), error) {
	cache := cl.NewCache(client.CacheConfig{Keyspace: keyspace, MaxRegions: regions + 1})
	runCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cache.Run(runCtx) }()
	end := func() { stop(); <-ended }
	deadline := time.Now().Add(time.Minute)
	for cache.Len() < regions {
		if time.Now().After(deadline) || ctx.Err() != nil {
			end()
			return nil, nil, fmt.Errorf("the cache has %d of %d regions after a minute", cache.Len(), regions)
		}
		time.Sleep(10 * time.Millisecond)
	}
	keys := sampleOf(regions)
	return func(_ context.Context, worker int) (uint64, error) {
		for i := range cachedLookups {
			if _, ok := cache.Lookup(keys[(worker*31+i)%len(keys)]); !ok {
				return 0, errors.New("a key that is there was not found")
			}
		}
		return cachedLookups, nil
	}, end, nil
}

// sampleOf is keys of regions at random.
func sampleOf(regions int) [][]byte {
	keys := make([][]byte, 4096)
	for i := range keys {
		keys[i] = Key(rand.IntN(regions))
	}
	return keys
}

// keyBytes is the size of a key that the workloads look up.
const keyBytes = 12

// Key is the first key of region i of MakeRegions.
func Key(i int) []byte { return appendKey(nil, i) }

// appendKey is fmt's "key-%08d" at a price that does not show.
func appendKey(b []byte, i int) []byte {
	b = append(b, "key-00000000"...)
	for at := len(b) - 1; i > 0; i /= 10 {
		b[at] = byte('0' + i%10)
		at--
	}
	return b
}

// MakeRegions publishes regions that do not exist yet in a keyspace of ranges,
// many a command, until there are n, and tells progress how far it is. Region i
// begins at Key(i).
func MakeRegions(ctx context.Context, cl *client.Client, keyspace string, n int, progress io.Writer) error {
	id, err := keyspaceFor(ctx, cl, keyspace)
	if err != nil {
		return err
	}
	k, err := cl.GetKeyspace(ctx, keyspace, client.Strong())
	if err != nil {
		return err
	}
	const step = 500
	shown := time.Now()
	for at := int(k.Regions); at < n; at += step {
		cmd := &rootv1.Command{}
		for i := at; i < min(at+step, n); i++ {
			region := &rootv1.Region{KeyspaceId: id, StartKey: Key(i), EndKey: Key(i + 1)}
			cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}})
		}
		if _, err := cl.Publish(ctx, cmd); err != nil {
			return fmt.Errorf("make regions from %d: %w", at, err)
		}
		if time.Since(shown) > time.Second {
			shown = time.Now()
			fmt.Fprintf(progress, "making regions: %d of %d\n", at+step, n)
		}
	}
	return nil
}
