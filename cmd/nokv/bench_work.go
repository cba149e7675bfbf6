package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func nothing() {}

func prepareID(ctx context.Context, _ *env, o *benchOptions, cl *client.Client) (work, func(), error) {
	if *o.batch > client.MaxIDCount {
		return nil, nil, usagef("batch %d: want 1 to %d", *o.batch, client.MaxIDCount)
	}
	n := uint64(*o.batch)
	if _, err := cl.AllocID(ctx, 1); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, _ int) (uint64, error) {
		_, err := cl.AllocID(ctx, n)
		return n, err
	}, nothing, nil
}

func prepareTSO(ctx context.Context, _ *env, o *benchOptions, cl *client.Client) (work, func(), error) {
	if *o.batch > client.MaxTsoCount {
		return nil, nil, usagef("batch %d: want 1 to %d", *o.batch, client.MaxTsoCount)
	}
	n := uint64(*o.batch)
	if _, err := cl.Tso(ctx, 1); err != nil {
		return nil, nil, err
	}
	switch *o.mode {
	case "merged":
		return func(ctx context.Context, _ int) (uint64, error) {
			_, err := cl.Tso(ctx, n)
			return n, err
		}, nothing, nil
	case "single":
		return tsoSingle(o, cl, n)
	}
	return nil, nil, usagef("mode %q: use merged or single", *o.mode)
}

func tsoSingle(o *benchOptions, cl *client.Client, n uint64) (work, func(), error) {
	clients := make([]*client.Client, *o.concurrency)
	end := func() {
		for _, c := range clients {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	for i := range clients {
		var err error
		if clients[i], err = client.New(client.Config{Endpoints: cl.Endpoints()}); err != nil {
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

func preparePublish(ctx context.Context, _ *env, o *benchOptions, cl *client.Client) (work, func(), error) {
	if addr, ok := strings.CutPrefix(*o.against, "etcd="); ok {
		return prepareEtcd(o, addr)
	}
	if *o.against != "" {
		return nil, nil, usagef("against %q: use etcd=HOST:PORT", *o.against)
	}
	keyspace, err := keyspaceFor(ctx, cl, "bench-publish")
	if err != nil {
		return nil, nil, err
	}
	// One run must not meet the regions of another: its keys are its own.
	run := fmt.Sprintf("%016x", time.Now().UnixNano())
	regions := make([]*rootv1.Region, *o.concurrency)
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
		return 1, err
	}, nothing, nil
}

func prepareRoute(ctx context.Context, e *env, o *benchOptions, cl *client.Client) (work, func(), error) {
	if *o.against == "echo" {
		return prepareEcho(ctx)
	}
	if *o.against != "" {
		return nil, nil, usagef("against %q: use echo", *o.against)
	}
	if *o.reg < 1 || *o.reg > 10_000_000 {
		return nil, nil, usagef("regions %d: want 1 to 10,000,000", *o.reg)
	}
	const keyspace = "bench-route"
	if err := makeRegions(ctx, e, cl, keyspace, *o.reg); err != nil {
		return nil, nil, err
	}
	key := func() []byte { return benchKey(rand.IntN(*o.reg)) }
	in := client.In(keyspace)
	single := func(opts ...client.ReadOption) work {
		opts = append(opts, in)
		return func(ctx context.Context, _ int) (uint64, error) {
			_, err := cl.GetRegionByKey(ctx, key(), opts...)
			return 1, err
		}
	}
	switch *o.mode {
	case "unary":
		return single(), nothing, nil
	case "strong":
		return single(client.Strong()), nothing, nil
	case "bounded":
		return single(client.Bounded(1000, time.Second)), nothing, nil
	case "batch":
		n := max(*o.batch, 1)
		return func(ctx context.Context, _ int) (uint64, error) {
			keys, room := make([][]byte, n), make([]byte, 0, n*benchKeyBytes)
			for i := range keys {
				at := len(room)
				room = appendBenchKey(room, rand.IntN(*o.reg))
				keys[i] = room[at:]
			}
			_, err := cl.GetRegionsByKeys(ctx, keys, in)
			return uint64(n), err
		}, nothing, nil
	case "cache":
		return routeCache(ctx, cl, keyspace, *o.reg, key)
	}
	return nil, nil, usagef("mode %q: use unary, batch, strong, bounded or cache", *o.mode)
}

// cachedLookups is how many hits of the cache count as one call, so that the
// clock is not what is measured.
const cachedLookups = 1000

func routeCache(ctx context.Context, cl *client.Client, keyspace string, regions int, key func() []byte) (work, func(), error) {
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
	keys := make([][]byte, 4096)
	for i := range keys {
		keys[i] = key()
	}
	return func(_ context.Context, worker int) (uint64, error) {
		for i := range cachedLookups {
			if _, ok := cache.Lookup(keys[(worker*31+i)&4095]); !ok {
				return 0, errors.New("a key that is there was not found")
			}
		}
		return cachedLookups, nil
	}, end, nil
}

// benchKeyBytes is the size of a key that the workloads look up.
const benchKeyBytes = 12

func benchKey(i int) []byte { return appendBenchKey(nil, i) }

// appendBenchKey is fmt's "key-%08d" at a price that does not show.
func appendBenchKey(b []byte, i int) []byte {
	b = append(b, "key-00000000"...)
	for at := len(b) - 1; i > 0; i /= 10 {
		b[at] = byte('0' + i%10)
		at--
	}
	return b
}

// makeRegions publishes regions that do not exist yet, many a command, and
// says how far it is.
func makeRegions(ctx context.Context, e *env, cl *client.Client, keyspace string, n int) error {
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
			region := &rootv1.Region{KeyspaceId: id, StartKey: benchKey(i), EndKey: benchKey(i + 1)}
			cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}})
		}
		if _, err := cl.Publish(ctx, cmd); err != nil {
			return fmt.Errorf("make regions from %d: %w", at, err)
		}
		if time.Since(shown) > time.Second {
			shown = time.Now()
			fmt.Fprintf(e.stderr, "making regions: %d of %d\n", at+step, n)
		}
	}
	return nil
}
