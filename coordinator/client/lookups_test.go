package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type (
	keysRequest  = coordinatorv1.GetRegionsByKeysRequest
	keysResponse = coordinatorv1.GetRegionsByKeysResponse
)

// numbered answers that key "n" is in region n, whose owner and leader are
// members of its own, but for the keys of which n is a multiple of 10.
func (f *fake) numbered(req *keysRequest) (*keysResponse, error) {
	out := &keysResponse{Disclosure: f.disclosure()}
	for _, key := range req.GetKeys() {
		var n uint64
		if _, err := fmt.Sscan(string(key), &n); err != nil {
			return nil, err
		}
		if n%10 == 0 {
			out.RegionOfKey = append(out.RegionOfKey, 0)
			continue
		}
		r := region(n, string(key), "", 1)
		r.Owners = []*rootv1.Owner{{MemberId: fmt.Sprint("m", n)}, {MemberId: fmt.Sprint("l", n)}}
		out.Regions = append(out.Regions, r)
		for _, o := range r.GetOwners() {
			out.Owners = append(out.Owners, &coordinatorv1.OwnerAddress{MemberId: o.GetMemberId(), Address: o.GetMemberId() + ":1", State: rootv1.MemberState_MEMBER_STATE_ACTIVE})
		}
		out.RegionOfKey = append(out.RegionOfKey, uint32(len(out.GetRegions())))
		out.LeaderOfRegion = append(out.LeaderOfRegion, uint32(len(out.GetOwners())))
	}
	return out, nil
}

// checkNumbered says what is wrong with the answer to a lookup of key n.
func checkNumbered(n uint64, r client.Route, err error) error {
	if n%10 == 0 {
		var e *client.Error
		if !errors.Is(err, client.ErrNotFound) || !errors.As(err, &e) || e.Op != "GetRegionByKey" || e.Detail.GetCurrentToken() == nil {
			return fmt.Errorf("key %d: got %v, want not found", n, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	leader := rooted.MemberID(fmt.Sprint("l", n))
	if uint64(r.Region.ID) != n || r.Leader() != leader || r.Address() != string(leader)+":1" ||
		r.Members()[0].Address != fmt.Sprintf("m%d:1", n) || r.Disclosure().GetClusterId() != 7 {
		return fmt.Errorf("key %d: region %v, leader %q at %q, members %v", n, r.Region, r.Leader(), r.Address(), r.Members())
	}
	return nil
}

// Lookups under way together share requests, each is answered for its own key,
// and only those share that ask under the same conditions.
func TestLookupsShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.batch = func(req *keysRequest) (*keysResponse, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, key := range req.GetKeys() {
				if want := condition(string(key)); !proto.Equal(req.GetRead(), want.read) || req.GetKeyspace() != want.keyspace {
					t.Errorf("key %s is asked for in %q under %v", key, req.GetKeyspace(), req.GetRead())
				}
			}
			f.calls = map[string]int{"requests": f.calls["requests"] + 1}
			return f.numbered(req)
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		const each = 100
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				for j := range each {
					n := uint64(i*each + j)
					r, err := c.GetRegionByKey(t.Context(), fmt.Append(nil, n), condition(fmt.Sprint(n)).options...)
					if err := checkNumbered(n, r, err); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		callers.Wait()
		if n := f.called("requests"); n > 64*each/2 {
			t.Errorf("%d requests for %d lookups", n, 64*each)
		}
		if n := c.Stats().StreamBreaks; n != 0 {
			t.Errorf("%d streams broke", n)
		}
	})
}

// asking is what a lookup asks for beside its key.
type asking struct {
	keyspace string
	options  []client.ReadOption
	read     *coordinatorv1.ReadOptions
}

// condition gives each key one of a few.
func condition(key string) asking {
	strong, bounded := coordinatorv1.Freshness_FRESHNESS_STRONG, coordinatorv1.Freshness_FRESHNESS_BOUNDED
	switch key[len(key)-1] {
	case '1', '2':
		return asking{options: []client.ReadOption{client.Strong()}, read: &coordinatorv1.ReadOptions{Freshness: strong}}
	case '3':
		return asking{keyspace: "other", options: []client.ReadOption{client.In("other")}}
	case '4':
		at := rooted.Token{Incarnation: 1, Term: 1, Index: uint64(len(key))}
		return asking{options: []client.ReadOption{client.AtLeast(at)}, read: &coordinatorv1.ReadOptions{RequiredRootToken: at.Proto()}}
	case '5', '6':
		lag, age := uint64(key[len(key)-1]), uint64(1000)
		return asking{options: []client.ReadOption{client.Bounded(lag, time.Second)}, read: &coordinatorv1.ReadOptions{Freshness: bounded, MaxRootLag: &lag, MaxRootLagMillis: &age}}
	case '7':
		return asking{options: []client.ReadOption{client.AtRevision(3)}, read: &coordinatorv1.ReadOptions{RequiredDescriptorRevision: 3}}
	default:
		return asking{}
	}
}

// A refusal under some condition is for those who asked under it: they go
// elsewhere, and nobody else notices.
func TestARefusedLookupGoesElsewhereAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		lagging := reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "behind")
		a.refuse(on(lagging, "GetRegionByKey"))
		a.batch = func(req *keysRequest) (*keysResponse, error) {
			if req.GetRead() != nil {
				return nil, lagging
			}
			return a.numbered(req)
		}
		var refusing atomic.Bool
		b.batch = func(req *keysRequest) (*keysResponse, error) { // for who is moved there
			if refusing.Load() {
				return nil, lagging
			}
			return b.numbered(req)
		}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		var callers sync.WaitGroup
		for i := range 40 {
			callers.Go(func() {
				n := uint64(10*i + 1)
				if i%2 == 0 {
					r, err := c.GetRegionByKey(t.Context(), fmt.Append(nil, n), client.Bounded(0, time.Second))
					if err != nil || r.Region.ID != 1 && uint64(r.Region.ID) != n { // a call of its own finds region 1 at b
						t.Errorf("bounded: %v, %v", r.Region, err)
					}
					return
				}
				r, err := c.GetRegionByKey(t.Context(), fmt.Append(nil, n))
				if err := checkNumbered(n, r, err); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		// When nobody can help, the error says who said what.
		b.refuse(on(lagging, "GetRegionByKey"))
		refusing.Store(true)
		_, err := c.GetRegionByKey(t.Context(), []byte("1"), client.Bounded(0, time.Second))
		wantIs(t, err, client.ErrRootLagExceeded)
		var e *client.Error
		if !errors.As(err, &e) || len(e.Tries) != 2 {
			t.Errorf("error %v", err)
		}
	})
}

// Callers who share a request leave it when their own time is over.
func TestCallersOfASharedLookupLeaveInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		held := make(chan struct{})
		f.batch = func(req *keysRequest) (*keysResponse, error) {
			<-held
			return f.numbered(req)
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				patience := time.Duration(i+1) * 50 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				r, err := c.GetRegionByKey(ctx, []byte("3"))
				if i < 9 {
					wantIs(t, err, context.DeadlineExceeded)
					wantWithin(t, start, patience, patience)
				} else if err := checkNumbered(3, r, err); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(480 * time.Millisecond) // of the bubble
		close(held)
		callers.Wait()
	})
}

// Strong reads of one key that wait together are one, which begins when all have asked: none is told what a read before
// it says. Who gives up leaves the others theirs.
func TestP37StrongReadsOfOneKeyAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		var revision atomic.Uint64 // what is rooted
		var keys []int             // of each request
		f.batch = func(req *keysRequest) (*keysResponse, error) {
			keys = append(keys, len(req.GetKeys()))
			r := region(1, "", "", revision.Load())
			time.Sleep(100 * time.Millisecond) // of the bubble
			out := &keysResponse{Disclosure: f.disclosure(), Regions: []*rootv1.Region{r}}
			for range req.GetKeys() {
				out.RegionOfKey = append(out.RegionOfKey, 1)
			}
			return out, nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var callers sync.WaitGroup
		ask := func(key string, patience time.Duration, want uint64) {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				r, err := c.GetRegionByKey(ctx, []byte(key), client.Strong())
				if want == 0 {
					wantIs(t, err, context.DeadlineExceeded)
				} else if err != nil || r.Region.Revision != want {
					t.Errorf("a read that began at revision %d: %v, %v", want, r.Region, err)
				}
			})
			synctest.Wait()
		}
		revision.Store(1)
		ask("k", time.Minute, 1)
		revision.Store(2) // behind the read that is under way
		for range 100 {
			ask("k", time.Minute, 2)
			ask("k", 10*time.Millisecond, 0)
		}
		ask("other", time.Minute, 2)
		callers.Wait()
		if !slices.Equal(keys, []int{1, 2}) {
			t.Errorf("%d keys were asked for, want 1 and then 2", keys)
		}
		// A request that all have given up leaves the next one its turn.
		for range 3 {
			ask("k", 10*time.Millisecond, 0)
		}
		callers.Wait()
		revision.Store(3)
		ask("k", time.Minute, 3)
		callers.Wait()
	})
}

// An answer may come in parts; one whose stream breaks in between comes again whole.
func TestAnswersInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		parts := &partsServer{fake: &fake{cluster: newCluster(7)}, size: 3}
		w.start("a", parts)
		c, end := w.client(client.Config{}, "a")
		defer end()
		keys := make([][]byte, 20)
		for i := range keys {
			keys[i] = fmt.Append(nil, i)
		}
		check := func(routes []client.Route, err error) {
			t.Helper()
			must(t, err)
			for i, r := range routes {
				if i%10 == 0 && r.Found() {
					t.Errorf("key %d is found", i)
				} else if err := checkNumbered(uint64(i), r, nil); i%10 != 0 && err != nil {
					t.Error(err)
				}
			}
			if len(routes) != len(keys) {
				t.Errorf("%d routes for %d keys", len(routes), len(keys))
			}
		}
		check(c.GetRegionsByKeys(t.Context(), keys))
		parts.breakAfter.Store(4)
		check(c.GetRegionsByKeys(t.Context(), keys))
		var callers sync.WaitGroup
		for n := range uint64(50) {
			callers.Go(func() {
				r, err := c.GetRegionByKey(t.Context(), fmt.Append(nil, n))
				if err := checkNumbered(n, r, err); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		// A long one goes on a stream of its own.
		long := slices.Clone(keys)
		long[1] = []byte("1" + strings.Repeat(" ", 4000))
		for range 20 {
			long = append(long, long[1])
		}
		routes, err := c.GetRegionsByKeys(t.Context(), long)
		if err != nil || len(routes) != len(long) || routes[len(long)-1].Region.ID != 1 {
			t.Errorf("%d routes, %v", len(routes), err)
		}
	})
}

// partsServer answers in parts of so many keys.
type partsServer struct {
	*fake
	size       int
	breakAfter atomic.Int64 // parts, once
}

func (p *partsServer) RouteStream(s coordinatorv1.Coordinator_RouteStreamServer) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		n := 0
		for keys := range slices.Chunk(req.GetKeys(), p.size) {
			reply, err := p.numbered(&keysRequest{Keys: keys})
			if err != nil {
				return err
			}
			n += len(keys)
			reply.RequestId, reply.Partial = req.GetRequestId(), n < len(req.GetKeys())
			if err := s.Send(reply); err != nil {
				return err
			}
			if p.breakAfter.Add(-1) == 0 {
				return status.Error(codes.Unavailable, "broken")
			}
		}
	}
}
