package proxy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Requests come at any moment of the release of what nobody uses: none fails, and none waits for longer than a region
// takes to be made.
func TestNoRequestThroughTheProxyFailsAtAnIdleRelease(t *testing.T) {
	const (
		keys, rounds = 200, 10
		evict, scan  = 2 * time.Second, 100 * time.Millisecond
		travel       = 100 * time.Millisecond // of a request to its member
		longest      = 500 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		s, _ := state.Preset("games")
		s.Cadence = &rootv1.Cadence{IdleEvictMillis: uint64(evict.Milliseconds()), IdleScanMillis: uint64(scan.Milliseconds())}
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "", s))
		for _, id := range []string{"m1", "m2"} {
			serveMember(t, c.Member(t, id, hosts{}), travel)
		}
		r, err := router.New(router.Config{Client: c.Client(), Keyspaces: []string{"games"}})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		defer func() { cancel(); must(t, <-done) }()
		must(t, r.Wait(t.Context()))
		var again, slow atomic.Int64
		cfg := proxy.Config{Router: r, Key: proxy.Header("K"), ClaimOnMiss: true, OnResult: func(r proxy.Result) {
			if r.Status != http.StatusOK {
				t.Errorf("%s, after %v: %d, %v", r.Key, r.Duration, r.Status, r.Err)
			}
			if r.Tries > 1 {
				again.Add(1)
			}
			if r.Duration > longest {
				slow.Add(1)
			}
		}}
		cfg.DialBy(func(ctx context.Context, _, address string) (net.Conn, error) { return c.Dial(ctx, address) })
		p, err := proxy.New(cfg)
		must(t, err)
		defer p.Close()
		lan := &lan{at: map[string]*place{}}
		front, by := serveAt(t, lan, p.Lookup()), lan.client(t)
		var all sync.WaitGroup
		for i := range keys {
			all.Go(func() {
				for j := range rounds {
					askBy(t, by, "POST", front.URL, fmt.Sprint("g", i), "")
					time.Sleep(evict + time.Duration((i*7+j*131)%1700)*time.Millisecond)
				}
			})
		}
		all.Wait()
		t.Logf("of %d requests %d were tried again", keys*rounds, again.Load())
		if slow.Load() > 0 || again.Load() == 0 {
			t.Errorf("of %d requests %d took longer than %v, and %d were tried again", keys*rounds, slow.Load(), longest, again.Load())
		}
	})
}

// serveMember has a member answer by HTTP what it owns, until the test ends.
func serveMember(t *testing.T, m *nokvtest.Member, travel time.Duration) {
	t.Helper()
	lis, err := m.Listen(t.Context(), "7000")
	must(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(travel)
		region, _ := strconv.ParseUint(r.Header.Get(proxy.HeaderRegion), 10, 64)
		epoch, _ := router.ParseEpoch(r.Header.Get(router.HeaderEpoch))
		req := member.Request{Keyspace: r.Header.Get(proxy.HeaderKeyspace), Key: []byte(r.Header.Get("K")), Region: rooted.RegionID(region), Epoch: epoch}
		if err := m.Do(r.Context(), req, func(context.Context, member.Region) error { return nil }); err != nil {
			router.RefusalOf(err).WriteHTTP(w)
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(lis) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
}
