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
)

// Requests and answers that together do not fit the windows of a stream: who
// writes must not keep answers from being read.
func TestLargeRequestsDoNotBlockTheirAnswers(t *testing.T) {
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
}

func TestLargeCommandsDoNotBlockTheirAnswers(t *testing.T) {
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
