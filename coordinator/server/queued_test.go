package server_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What streams have queued while the root does not answer is bounded for all of them
// together: the stream whose request does not fit is refused, the others are
// answered when the root is back, and nothing stays counted.
func TestQueuedRequestsAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := budget.New(64 << 20) // 4 MiB for what is queued, half of it for a connection
		w := routed(t, limits(func(l *server.Limits) { l.StreamWait = time.Hour }), func(c *server.Config) { c.Budget = all })
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		blocked := make(chan struct{})
		w.root.mu.Lock()
		w.root.blocked = blocked
		w.root.mu.Unlock()
		request := &coordinatorv1.PublishRootEventsRequest{}
		for range 100 {
			request.Commands = append(request.Commands, &rootv1.Command{Events: []*rootv1.Event{publish(1, 1, strings.Repeat("a", 4000), strings.Repeat("b", 4000), 1, "m1")}})
		}
		answers := make(chan error)
		const streams = 8
		for range streams {
			stream, err := w.client.PublishStream(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(request); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // one request is on its way at a time
			go func() {
				_ = stream.CloseSend()
				_, err := stream.Recv()
				if err == nil {
					_, err = stream.Recv()
				}
				answers <- err
			}()
		}
		synctest.Wait()
		if v := all.Vars().Holders["queued"]; v.Used == 0 || v.Used > v.Limit/2 {
			t.Errorf("queued: %+v", v)
		}
		refused, answered := 0, 0
		close(blocked)
		for range streams {
			switch err := <-answers; {
			case errors.Is(err, io.EOF):
				answered++
			case reason.Of(err) == rootv1.Reason_REASON_OVERLOADED && reason.From(err).GetRetryAfterMillis() > 0:
				refused++
			default:
				t.Errorf("a stream ended with %v", err)
			}
		}
		if refused == 0 || answered == 0 {
			t.Errorf("%d streams were refused, %d answered", refused, answered)
		}
		synctest.Wait()
		if v := all.Vars().Holders["queued"]; v.Used != 0 {
			t.Errorf("when all are over %+v", v)
		}
	})
}
