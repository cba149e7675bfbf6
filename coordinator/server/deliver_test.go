package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A watch that what it has not read is no longer kept for is cut, is told where it
// stands, and goes on from there. One that reads is not cut.
func TestAWatchThatFallsBehindIsCutAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		open := func(after state.Token) (*mirror, coordinatorv1.Coordinator_WatchRegionsClient) {
			req := &coordinatorv1.WatchRegionsRequest{Members: true}
			if after.Index != 0 {
				req.After = after.Proto()
			}
			stream, err := w.client.WatchRegions(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			return newMirror(), stream
		}
		slow, stream := open(state.Token{})
		slow.load(t, stream)
		fast, reads := open(state.Token{})
		fast.load(t, reads)
		for i := range 6000 {
			w.must(t, publish(1, 1, "", strings.Repeat("f", 4000), uint64(2*i+2), "m1"), publish(1, 1, "", strings.Repeat("f", 4001), uint64(2*i+3), "m1"))
			fast.until(t, reads, w.root.token())
			time.Sleep(time.Millisecond)
		}
		fast.check(t, w, 0)
		var err error
		for err == nil {
			var resp *coordinatorv1.WatchRegionsResponse
			if resp, err = stream.Recv(); err == nil {
				slow.apply(t, resp)
			}
		}
		detail := refused(t, err, rootv1.Reason_REASON_OVERLOADED)
		if at := state.TokenFromProto(detail.GetCurrentToken()); at.Index == 0 || at.Compare(slow.token) < 0 || detail.GetRetryAfterMillis() == 0 {
			t.Errorf("cut at %s with %v", slow.token, detail)
		}
		_, again := open(slow.token)
		for slow.token.Compare(w.root.token()) < 0 {
			resp, err := again.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetSnapshot() {
				clear(slow.regions)
			}
			slow.apply(t, resp)
		}
		slow.check(t, w, 0)
	})
}

// Of what came together a crowd gets of each region the last change, and few get all.
func TestACrowdGetsTheLastChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		crowd := make([]*mirror, 300)
		streams := make([]coordinatorv1.Coordinator_WatchRegionsClient, len(crowd))
		watch := func(i int) {
			var err error
			if streams[i], err = w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default", Members: true}); err != nil {
				t.Fatal(err)
			}
			crowd[i] = newMirror()
			crowd[i].load(t, streams[i])
		}
		epoch := uint64(1)
		// changes are what each of n watches gets of ten changes of one region.
		changes := func(n int) int {
			var events []*rootv1.Event
			for range 10 {
				epoch++
				events = append(events, publish(1, 1, "", "g", epoch, "m1"))
			}
			at := state.TokenFromProto(w.must(t, events...).GetToken())
			all := 0
			for i := range n {
				for crowd[i].token.Compare(at) < 0 {
					resp, err := streams[i].Recv()
					if err != nil {
						t.Fatal(err)
					}
					all += len(resp.GetChanges())
					crowd[i].apply(t, resp)
				}
				crowd[i].check(t, w, 0)
			}
			return all
		}
		watch(0)
		synctest.Wait()
		if got := changes(1); got != 10 {
			t.Errorf("one watch got %d of 10 changes", got)
		}
		for i := range crowd[1:] {
			watch(i + 1)
		}
		synctest.Wait()
		if got := changes(len(crowd)); got != len(crowd) {
			t.Errorf("%d watches got %d changes, want the last one each", len(crowd), got)
		}
	})
}
