package client_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Requests and answers that together do not fit the windows of a stream: who
// writes must not keep answers from being read.
func TestLargeRequestsDoNotBlockTheirAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		long := bytes.Repeat([]byte("k"), 1000)
		f.batch = func(req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			reply := &coordinatorv1.GetRegionsByKeysResponse{Disclosure: f.disclosure()}
			for i := range req.GetKeys() {
				r := region(uint64(i+1), string(long), "", 1)
				reply.Regions, reply.RegionOfKey = append(reply.Regions, r), append(reply.RegionOfKey, uint32(i+1))
			}
			return reply, nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{TryTimeout: 20 * time.Second}, "a")
		defer end()
		keys := make([][]byte, client.MaxKeys)
		for i := range keys {
			keys[i] = append([]byte(fmt.Sprint(i)), long...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				if _, err := c.GetRegionsByKeys(ctx, keys); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := c.Stats().StreamBreaks; n != 0 {
			t.Errorf("%d streams broke", n)
		}
	})
}

func TestLargeCommandsDoNotBlockTheirAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.commit = func(*rootv1.Command) *rootv1.CommandResult {
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Error: &rootv1.ErrorDetail{Message: strings.Repeat("x", 50_000)}}
		}
		w.start("a", f)
		c, end := w.client(client.Config{TryTimeout: 20 * time.Second}, "a")
		defer end()
		event := &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{Reason: strings.Repeat("y", 100_000)}}}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				if _, err := c.PublishEvent(ctx, event); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := c.Stats().StreamBreaks; n != 0 {
			t.Errorf("%d streams broke", n)
		}
	})
}

// A command that cannot be encoded is its caller's error alone.
func TestUnencodableCommandHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		c, end := w.client(client.Config{}, "a")
		defer end()
		event := func(reason string) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m", Reason: reason}}}
		}
		start := time.Now()
		var callers sync.WaitGroup
		for i := range 50 {
			callers.Go(func() {
				if i == 20 {
					_, err := c.PublishEvent(t.Context(), event("\xff"))
					wantIs(t, err, client.ErrInvalidRequest)
					return
				}
				if _, err := c.PublishEvent(t.Context(), event("fine")); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		wantWithin(t, start, 0, time.Second)
		if _, err := c.GetRegionsByKeys(t.Context(), [][]byte{[]byte("k")}, client.In("\xff")); err == nil {
			t.Error("a name that is not text")
		}
		wantWithin(t, start, 0, time.Second)
	})
}

// A peer that does not read a shared stream holds up no caller past its deadline.
func TestAPeerThatDoesNotReadHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7), deaf: true})
		c, end := w.client(client.Config{TryTimeout: 5 * time.Second}, "a")
		defer end()
		keys := make([][]byte, 15)
		for i := range keys {
			keys[i] = bytes.Repeat([]byte("k"), 4096)
		}
		var callers sync.WaitGroup
		for range 64 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err := c.GetRegionsByKeys(ctx, keys)
				wantIs(t, err, context.DeadlineExceeded)
				wantWithin(t, start, 50*time.Millisecond, 51*time.Millisecond)
			})
		}
		callers.Wait()
	})
}

// The longest lookup that is documented is answered, and harms nobody who
// shares the stream; one that cannot be sent is its caller's error alone.
func TestOneLargeLookupHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.batch = func(req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			return &coordinatorv1.GetRegionsByKeysResponse{RegionOfKey: make([]uint32, len(req.GetKeys())), Disclosure: f.disclosure()}, nil
		}
		w.start("a", f, grpc.MaxRecvMsgSize(5<<20))
		c, end := w.client(client.Config{}, "a")
		defer end()
		largest, above := make([][]byte, client.MaxKeys), make([][]byte, client.MaxKeys)
		for i := range largest {
			largest[i], above[i] = bytes.Repeat([]byte("k"), 4096), bytes.Repeat([]byte("k"), 8192)
		}
		stop := make(chan struct{})
		var others sync.WaitGroup
		for range 8 {
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := c.GetRegionsByKeys(t.Context(), [][]byte{[]byte("k")}); err != nil {
						t.Errorf("somebody else: %v", err)
						return
					}
				}
			})
		}
		for range 3 {
			if routes, err := c.GetRegionsByKeys(t.Context(), largest); err != nil || len(routes) != len(largest) {
				t.Errorf("the largest lookup: %d routes, %v", len(routes), err)
			}
			for _, keys := range [][][]byte{above, {[]byte("k"), nil}} {
				_, err := c.GetRegionsByKeys(t.Context(), keys)
				wantIs(t, err, client.ErrInvalidRequest)
			}
			_, err := c.GetRegionByKey(t.Context(), above[0])
			wantIs(t, err, client.ErrInvalidRequest)
		}
		close(stop)
		others.Wait()
		if n := c.Stats().StreamBreaks; n != 0 {
			t.Errorf("%d streams broke", n)
		}
	})
}

// When a request ends the stream that others share, only who sent it is told.
func TestAnErrorThatEndsTheStreamIsTheOffendersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		held := make(chan struct{})
		f.batch = func(req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			<-held
			if string(req.GetKeys()[0]) == "bad 7" {
				return nil, status.Error(codes.ResourceExhausted, "message too large")
			}
			return &coordinatorv1.GetRegionsByKeysResponse{RegionOfKey: make([]uint32, len(req.GetKeys())), Disclosure: f.disclosure()}, nil
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		start := time.Now()
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				_, err := c.GetRegionsByKeys(t.Context(), [][]byte{fmt.Appendf(nil, "bad %d", i)})
				if (err != nil) != (i == 7) {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		synctest.Wait() // all of them are on the stream
		close(held)
		callers.Wait()
		wantWithin(t, start, 0, time.Second)
	})
}

// What a caller does with its keys after it stopped waiting is not sent.
func TestBuffersOfACancelledLookupAreTheCallersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c, end := w.client(client.Config{}, "a")
		defer end()
		key := []byte("asked for")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := c.GetRegionsByKeys(ctx, [][]byte{key}); err == nil {
			t.Error("an answer without a coordinator")
		}
		copy(key, "not mine!")
		f := &fake{cluster: newCluster(7)}
		f.batch = func(req *coordinatorv1.GetRegionsByKeysRequest) (*coordinatorv1.GetRegionsByKeysResponse, error) {
			for _, key := range req.GetKeys() {
				if string(key) == "not mine!" {
					t.Errorf("asked for %q", key)
				}
			}
			return &coordinatorv1.GetRegionsByKeysResponse{RegionOfKey: make([]uint32, len(req.GetKeys())), Disclosure: f.disclosure()}, nil
		}
		w.start("a", f)
		_, err := c.GetRegionsByKeys(t.Context(), [][]byte{[]byte("another")})
		must(t, err)
	})
}
