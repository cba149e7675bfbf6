package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// The load of the tests with real processes: callers of ids, timestamps and
// region publishes, each with a client of its own, so that no client's own
// guard hides from one caller what another one saw. What was acknowledged is
// recorded and judged at the end.

// kindOfLoad is what a caller asks for.
type kindOfLoad int

const (
	loadID kindOfLoad = iota
	loadTso
	loadPublish
	loadKinds
)

func (k kindOfLoad) String() string { return [...]string{"ids", "timestamps", "publishes"}[k] }

// callersPerKind is small: the machine also runs the cluster.
const callersPerKind = 3

// answer is one acknowledged run of ids or timestamps.
type answer struct {
	// Time of call and return since the load began.
	began, ended time.Duration
	first, last  uint64
}

// published is what became of one region: its newest acknowledged version, and
// the newest one that was tried.
type published struct {
	id                 rooted.RegionID
	key                string
	acked, tried       uint64
	acknowledgedTokens int
}

type load struct {
	t       testing.TB
	began   time.Time
	within  time.Duration // bounds each request
	pause   time.Duration // of a caller between two
	stop    context.CancelFunc
	callers sync.WaitGroup
	clients []*client.Client
	// done and failed count answers and errors by kind.
	done, failed [loadKinds]atomic.Uint64
	lastErr      atomic.Pointer[string]

	mu sync.Mutex
	// Guarded by mu: what every caller was told.
	ids, timestamps []answer
	regions         []*published
}

// startLoad begins the load; finish ends it.
func startLoad(t testing.TB, endpoints []string) *load {
	t.Helper()
	return startPacedLoad(t, endpoints, tryFor, 2*time.Millisecond)
}

// startPacedLoad is startLoad with another deadline of each request, and a pause
// of each caller between two.
func startPacedLoad(t testing.TB, endpoints []string, within, pause time.Duration) *load {
	t.Helper()
	return startLoadOf(t, client.Config{Endpoints: endpoints}, within, pause)
}

// startLoadOf is startPacedLoad by clients of a configuration.
func startLoadOf(t testing.TB, cfg client.Config, within, pause time.Duration) *load {
	t.Helper()
	endpoints := cfg.Endpoints
	ctx, stop := context.WithCancel(t.Context())
	l := &load{t: t, began: time.Now(), within: within, pause: pause, stop: stop}
	for kind := range loadKinds {
		for i := range callersPerKind {
			// Each caller has its own order of endpoints.
			cfg.Endpoints = slices.Concat(endpoints[i%len(endpoints):], endpoints[:i%len(endpoints)])
			cl, err := client.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			l.clients = append(l.clients, cl)
			caller := fmt.Sprintf("%d-%d", kind, i)
			l.callers.Go(func() {
				for n := uint64(0); ctx.Err() == nil; n++ {
					l.call(ctx, kind, cl, caller, n)
					time.Sleep(l.pause)
				}
			})
		}
	}
	t.Cleanup(l.finish)
	return l
}

// finish ends the load.
func (l *load) finish() {
	l.stop()
	l.callers.Wait()
	for _, cl := range l.clients {
		_ = cl.Close()
	}
}

// tryFor bounds a request: longer than any outage takes, also on a busy machine.
const tryFor = proctest.Patience / 2

func (l *load) call(ctx context.Context, kind kindOfLoad, cl *client.Client, caller string, n uint64) {
	var err error
	switch kind {
	case loadID:
		err = l.allocID(ctx, cl, 1+n%5)
	case loadTso:
		err = l.tso(ctx, cl, 1+n%5)
	default:
		err = l.publish(ctx, cl, caller, n)
	}
	switch {
	case err == nil:
		l.done[kind].Add(1)
	case ctx.Err() == nil:
		l.failed[kind].Add(1)
		text := err.Error()
		l.lastErr.Store(&text)
	}
}

func (l *load) allocID(ctx context.Context, cl *client.Client, count uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	began := time.Since(l.began)
	r, err := cl.AllocID(ctx, count)
	if err != nil {
		return err
	}
	l.record(&l.ids, answer{began, time.Since(l.began), r.First, r.Last()})
	return nil
}

func (l *load) tso(ctx context.Context, cl *client.Client, count uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	began := time.Since(l.began)
	r, err := cl.Tso(ctx, count)
	if err != nil {
		return err
	}
	l.record(&l.timestamps, answer{began, time.Since(l.began), uint64(r.First), uint64(r.Last())})
	return nil
}

func (l *load) record(to *[]answer, a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*to = append(*to, a)
}

// publishesPerRegion is how often a region gets a newer epoch before its
// caller goes on to the next one.
const publishesPerRegion = 8

func (l *load) publish(ctx context.Context, cl *client.Client, caller string, n uint64) error {
	p := &published{key: fmt.Sprintf("%s/%08d", caller, n)}
	l.mu.Lock()
	l.regions = append(l.regions, p)
	l.mu.Unlock()
	for version := uint64(1); version <= publishesPerRegion; version++ {
		region := &rootv1.Region{
			Id: uint64(p.id), KeyspaceId: 1, StartKey: []byte(p.key), EndKey: []byte(p.key + "~"),
			Epoch: &rootv1.RegionEpoch{Version: version, ConfVersion: 1},
		}
		p.tried = version
		one, cancel := context.WithTimeout(ctx, l.within)
		r, err := cl.PublishEvent(one, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}})
		cancel()
		if err != nil {
			return err
		}
		p.id, p.acked = rooted.RegionID(r.Events[0].GetRegion().GetId()), version
		p.acknowledgedTokens++
	}
	// A strong read must see what was just acknowledged, wherever it goes.
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	route, err := cl.GetRegionByKey(ctx, []byte(p.key), client.Strong())
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return err
	}
	if !route.Found() || route.Region.Epoch.Version < p.acked {
		l.t.Errorf("strong read of %s after version %d was acknowledged: %v", p.key, p.acked, route.Region)
	}
	return nil
}

// counts are the answers so far, by kind.
func (l *load) counts() (n [loadKinds]uint64) {
	for i := range n {
		n[i] = l.done[i].Load()
	}
	return n
}

// waitProgress waits until every kind has had n answers more, and returns how long that took.
func (l *load) waitProgress(n uint64, within time.Duration, when string) time.Duration {
	l.t.Helper()
	from, begin := l.counts(), time.Now()
	for {
		now, low := l.counts(), loadKinds
		for i := range now {
			if now[i] < from[i]+n {
				low = kindOfLoad(i)
			}
		}
		if low == loadKinds {
			return time.Since(begin)
		}
		if time.Since(begin) > within {
			last := "none"
			if p := l.lastErr.Load(); p != nil {
				last = *p
			}
			l.t.Fatalf("%s: fewer than %d %s within %s; the last error of the load: %s", when, n, low, within, last)
		}
		time.Sleep(5 * time.Millisecond) // the load runs in real processes: there is nothing to wait on
	}
}

// tsoGap is the longest time without a timestamp for anybody between two moments.
func (l *load) tsoGap(from, to time.Time) (gap time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, end := from.Sub(l.began), to.Sub(l.began)
	for _, a := range l.timestamps { // In the order of their return, nearly.
		if a.ended > last && a.ended < end {
			gap, last = max(gap, a.ended-last), a.ended
		}
	}
	return max(gap, end-last)
}

// judge checks everything that was acknowledged; it reads through cl.
func (l *load) judge(ctx context.Context, cl *client.Client) {
	l.t.Helper()
	l.judgeIDs()
	l.judgeTimestamps()
	l.judgePublishes(ctx, cl)
	for _, c := range l.clients {
		if n := c.Stats().OrderViolations; n > 0 {
			l.t.Errorf("a client discarded %d timestamps that were not above earlier ones", n)
		}
	}
}

// judgeIDs checks that no id was handed out twice.
func (l *load) judgeIDs() {
	l.t.Helper()
	sorted := slices.SortedFunc(slices.Values(l.ids), func(a, b answer) int { return compare(a.first, b.first) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; b.first <= a.last {
			l.t.Errorf("ids handed out twice: [%d, %d] at %s and [%d, %d] at %s", a.first, a.last, a.ended, b.first, b.last, b.ended)
		}
	}
}

// judgeTimestamps checks that whatever was asked for after an answer had come
// is above that answer: one sweep over calls and returns in order of time.
func (l *load) judgeTimestamps() {
	l.t.Helper()
	began := slices.SortedFunc(slices.Values(l.timestamps), func(a, b answer) int { return compare(a.began, b.began) })
	ended := slices.SortedFunc(slices.Values(l.timestamps), func(a, b answer) int { return compare(a.ended, b.ended) })
	var highest answer
	next := 0
	for _, a := range began {
		for ; next < len(ended) && ended[next].ended < a.began; next++ {
			if ended[next].last > highest.last {
				highest = ended[next]
			}
		}
		if a.first <= highest.last {
			l.t.Errorf("timestamps out of order: [%d, %d] asked for at %s, after %d had come back at %s",
				a.first, a.last, a.began, highest.last, highest.ended)
		}
	}
}

// judgePublishes checks that every acknowledged version is there, and none
// that nobody asked for.
func (l *load) judgePublishes(ctx context.Context, cl *client.Client) {
	l.t.Helper()
	rooted := make(map[string]*rooted.Region)
	for route, err := range cl.ScanRegions(ctx, nil, nil, client.Strong()) {
		if err != nil {
			l.t.Fatalf("scan: %v", err)
		}
		rooted[route.Region.Start] = route.Region
	}
	for _, p := range l.regions {
		r := rooted[p.key]
		switch {
		case r == nil && p.acked > 0:
			l.t.Errorf("acknowledged publish lost: region %d at %s, version %d, is not there", p.id, p.key, p.acked)
		case r == nil:
		case r.Epoch.Version < p.acked || r.Epoch.Version > p.tried:
			l.t.Errorf("region %d at %s has version %d; acknowledged %d, tried %d", r.ID, p.key, r.Epoch.Version, p.acked, p.tried)
		case p.id != 0 && r.ID != p.id:
			l.t.Errorf("region at %s was acknowledged with id %d and has id %d", p.key, p.id, r.ID)
		}
	}
	if len(rooted) > len(l.regions) {
		l.t.Errorf("%d regions are rooted, %d were published", len(rooted), len(l.regions))
	}
}

// acknowledged is how many publishes were acknowledged.
func (l *load) acknowledged() (n int) {
	for _, p := range l.regions {
		n += p.acknowledgedTokens
	}
	return n
}

func compare[T uint64 | time.Duration](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
