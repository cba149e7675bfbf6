package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// callTimeout bounds one call of a store, and holdOn how long a key is tried while its
	// store is away.
	callTimeout = 2 * time.Second
	holdOn      = 30 * time.Second
	lockLife    = 3 * time.Second
	// maxConns are connections to stores: they come back at other addresses.
	maxConns = 64
	scanPage = 100
)

// kv reaches keys at the stores that lead them. Its methods may be called by any number of
// goroutines.
type kv struct {
	control *client.Client
	routes  *router.Router
	// lockLife is how long a transaction may take; whoever finds an older lock ends it.
	lockLife time.Duration

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // guarded by mu

	// What was done, and how long callers waited for it: for timestamps, for routes (with what
	// it took to repair them), for stores.
	stamps, calls, refused, repaired, ended    atomic.Int64
	stampNanos, routeNanos, storeNanos, pauses atomic.Int64
}

// openKV follows the routes until ctx ends.
func openKV(ctx context.Context, coordinators []string) (*kv, error) {
	c, err := client.New(client.Config{Endpoints: coordinators})
	if err != nil {
		return nil, err
	}
	r, err := router.New(router.Config{Client: c, Hold: holdOn})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	go func() { _ = r.Run(ctx) }() // without it each call would ask, and say why that fails
	return &kv{control: c, routes: r, lockLife: lockLife, conns: map[string]*grpc.ClientConn{}}, nil
}

func (k *kv) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		_ = c.Close()
	}
	_ = k.control.Close()
}

// now is a timestamp above every one that anybody had before.
func (k *kv) now(ctx context.Context) (client.Timestamp, error) {
	begun := time.Now()
	ts, err := k.control.Now(ctx)
	k.stampNanos.Add(int64(time.Since(begun)))
	k.stamps.Add(1)
	return ts, err
}

// at runs a call at the store that leads the region of a key. Every call here may be repeated: a
// read is one, and a write names the version that it replaces.
func (k *kv) at(ctx context.Context, key string, call func(ctx context.Context, s storev1.StoreClient, r *storev1.RegionAt, t router.Target) error) error {
	begun, inStore, runs, refused := time.Now(), time.Duration(0), 0, false
	err := k.routes.Do(ctx, []byte(key), router.Options{Idempotent: true}, func(ctx context.Context, t router.Target) error {
		run := time.Now()
		defer func() { inStore += time.Since(run) }()
		runs++
		if t.Region == nil { // its number goes with every call
			return &router.Refusal{Kind: router.NotOwned}
		}
		s, err := k.store(t.Address)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "nokv-cluster", fmt.Sprintf("%016x", k.control.ClusterID()))
		err = call(ctx, s, regionAt(t), t)
		refused = refused || router.RefusalOf(err) != nil
		return err
	})
	k.calls.Add(1)
	k.storeNanos.Add(int64(inStore))
	if waited := time.Since(begun) - inStore; runs > 1 { // a store that was away, or changed the region
		k.pauses.Add(int64(waited))
	} else {
		k.routeNanos.Add(int64(waited))
	}
	if refused {
		k.refused.Add(1)
		if err == nil && runs == 2 {
			k.repaired.Add(1)
		}
	}
	if err != nil && ctx.Err() != nil { // that is why, whatever a store said last
		return ctx.Err()
	}
	return err
}

func regionAt(t router.Target) *storev1.RegionAt {
	return &storev1.RegionAt{RegionId: uint64(t.Region.ID), Epoch: t.Epoch.Proto()}
}

// store is a connection to an address, which is made at the first call.
func (k *kv) store(address string) (storev1.StoreClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.conns[address]
	if c == nil {
		if len(k.conns) >= maxConns {
			for old, conn := range k.conns { // any: calls of it are tried again
				_ = conn.Close()
				delete(k.conns, old)
				break
			}
		}
		var err error
		// A store that comes back is reached at once, not when gRPC has doubled its pause often.
		again := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: callTimeout}
		if c, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(again)); err != nil {
			return nil, err
		}
		k.conns[address] = c
	}
	return storev1.NewStoreClient(c), nil
}

// get reads the record of a key, as the store has it now.
func (k *kv) get(ctx context.Context, key string) (record, error) {
	var r record
	err := k.at(ctx, key, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, _ router.Target) error {
		got, err := s.Get(ctx, &storev1.GetRequest{Region: at, Key: []byte(key)})
		if err == nil {
			r, err = decode(got.GetValue(), got.GetVersion())
		}
		return err
	})
	return r, err
}

func decode(raw []byte, version uint64) (record, error) {
	r := record{}
	if version != 0 {
		if err := json.Unmarshal(raw, &r); err != nil {
			return r, fmt.Errorf("a value that is none of ours: %w", err)
		}
	}
	r.at = version
	return r, nil
}

// replace writes a record over the one that was read. false: the key has changed since; or the
// write came through, and its answer was lost.
func (k *kv) replace(ctx context.Context, key string, r *record) (bool, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	err = k.at(ctx, key, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, _ router.Target) error {
		_, err := s.Put(ctx, &storev1.PutRequest{Region: at, Key: []byte(key), Value: raw, ExpectedVersion: &r.at})
		return err
	})
	if reasonOf(err) == rootv1.Reason_REASON_VERSION_STALE {
		return false, nil
	}
	return err == nil, err
}

// scan reads the records of a range, page by page, wherever its regions are by then.
func (k *kv) scan(ctx context.Context, start, end string, each func(key string, r record) error) error {
	for next := start; ; {
		var page []*storev1.Entry
		var more string
		err := k.at(ctx, next, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, t router.Target) error {
			req := &storev1.ScanRequest{Region: at, StartKey: []byte(next), Limit: scanPage}
			if t.Region.End == "" || end != "" && end < t.Region.End {
				req.EndKey = []byte(end)
			}
			got, err := s.Scan(ctx, req)
			page, more = got.GetEntries(), string(got.GetNextKey())
			if more == "" {
				more = t.Region.End
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range page {
			r, err := decode(e.GetValue(), e.GetVersion())
			if err == nil {
				err = each(string(e.GetKey()), r)
			}
			if err != nil {
				return err
			}
		}
		if more == "" || end != "" && more >= end {
			return nil
		}
		next = more
	}
}

// reasonOf is why a store or coordinator refused.
func reasonOf(err error) rootv1.Reason {
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*rootv1.ErrorDetail); ok {
			return d.GetReason()
		}
	}
	return rootv1.Reason_REASON_UNSPECIFIED
}
