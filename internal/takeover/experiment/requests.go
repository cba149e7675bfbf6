package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// request is one that was made, and when its answer came.
type request struct {
	at, took time.Duration
	retried  bool
	err      error
}

// record is what was asked of members, or of the root, in the order of the answers.
type record struct {
	mu  sync.Mutex
	all []request // guarded by mu
}

func (r *record) add(q request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, q)
}

// between are the requests that were made in a time.
func (r *record) between(from, to time.Duration) (out []request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.all {
		if q.at >= from && q.at < to {
			out = append(out, q)
		}
	}
	return out
}

// took are the times of requests that succeeded, and how many did not, or only when they
// were made again, and what one that failed said.
func took(all []request) (times []time.Duration, failed, retried int, err error) {
	for _, q := range all {
		if q.err != nil {
			failed, err = failed+1, q.err
			continue
		}
		if q.retried {
			retried++
		}
		times = append(times, q.took)
	}
	slices.SortFunc(times, cmp.Compare)
	return times, failed, retried, err
}

const (
	// maxRequests bounds those under way.
	maxRequests = 4096
	// requestTime is the deadline of a request with its retry.
	requestTime = 5 * time.Second
	tickTime    = time.Millisecond
)

// ask has requests made of members at a rate, each for the owner of a region by a
// caller's cache, and once more where the member says that it is.
func (s *site) ask(ctx context.Context, rate int, out *record) {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport}
	var under sync.WaitGroup
	defer under.Wait()
	slots := make(chan struct{}, maxRequests)
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for due, last := 0.0, time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		due += now.Sub(last).Seconds() * float64(rate)
		for last = now; due >= 1; due-- {
			at := s.now()
			select {
			case slots <- struct{}{}:
			default:
				out.add(request{at: at, err: fmt.Errorf("%d requests were under way", maxRequests)})
				continue
			}
			under.Go(func() {
				defer func() { <-slots }()
				retried, err := s.request(ctx, c, s.readers[rand.IntN(len(s.readers))].cache, hostedKey(rand.IntN(s.h.Regions)))
				if ctx.Err() == nil {
					out.add(request{at: at, took: s.now() - at, retried: retried, err: err})
				}
			})
		}
	}
}

// request is one, with the one retry that a caller may need.
func (s *site) request(ctx context.Context, c *http.Client, cache *client.Cache, key []byte) (retried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	route, ok := cache.Lookup(key)
	if !ok || route.Address() == "" {
		return false, errors.New("no route")
	}
	epoch := route.Region.Epoch
	next, nextEpoch, err := get(ctx, c, route.Address(), key, fmt.Sprintf("%d.%d", epoch.Version, epoch.ConfVersion))
	if err == nil {
		return false, nil
	}
	if next == "" {
		cache.Invalidate(route)
		// A coordinator's view may be as old as the cache was: the answer has to be newer than the refusal.
		if route, err = cache.Route(ctx, key, client.Strong()); err != nil || route.Address() == "" {
			return true, fmt.Errorf("no newer route: %w", err)
		}
		epoch = route.Region.Epoch
		next, nextEpoch = route.Address(), fmt.Sprintf("%d.%d", epoch.Version, epoch.ConfVersion)
	}
	_, _, err = get(ctx, c, next, key, nextEpoch)
	return true, err
}

// get asks one member; next is whom to ask instead, if it says so.
func get(ctx context.Context, c *http.Client, address string, key []byte, epoch string) (next, nextEpoch string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/%s/%s?epoch=%s", address, hostedKeyspace, key, epoch), nil)
	if err != nil {
		return "", "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, said)
	}
	return resp.Header.Get("Nokv-Member-Address"), resp.Header.Get("Nokv-Epoch"), err
}

// commitEvery is the time between two changes of a caller.
const commitEvery = 5 * time.Millisecond

// commit has callers change regions of their own, in a keyspace of their own, one after
// another.
func (s *site) commit(ctx context.Context, callers int, out *record) error {
	made, err := s.admin.CreateKeyspace(ctx, "bench-others", "kv", nil)
	if err != nil {
		return err
	}
	for i := range callers {
		s.running.Go(func() {
			id := uint64(0)
			for n := uint64(1); wait(ctx, commitEvery) == nil; n++ {
				region := &rootv1.Region{Id: id, KeyspaceId: made.GetKeyspace().GetId(), StartKey: hostedKey(i), EndKey: hostedKey(i + 1), Epoch: &rootv1.RegionEpoch{Version: n, ConfVersion: 1}}
				at := s.now()
				result, err := s.admin.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}})
				if err == nil && id == 0 {
					id = result.GetEvents()[0].GetRegion().GetId()
				}
				if ctx.Err() == nil {
					out.add(request{at: at, took: s.now() - at, err: err})
				}
			}
		})
	}
	return nil
}
