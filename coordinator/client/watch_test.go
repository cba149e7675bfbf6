package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var zero rooted.Token

func at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

type watchStream = grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]

// script answers watches one after the other.
func script(steps ...func(*coordinatorv1.WatchRegionsRequest, watchStream) error) func(*coordinatorv1.WatchRegionsRequest, watchStream) error {
	n := 0
	return func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
		if n == len(steps) {
			<-s.Context().Done()
			return nil
		}
		n++
		return steps[n-1](req, s)
	}
}

func (f *fake) WatchRegions(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
	if err := f.note(s.Context(), "WatchRegions"); err != nil {
		return err
	}
	if f.watch == nil {
		<-s.Context().Done()
		return nil
	}
	return f.watch(req, s)
}

func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		var asked []uint64
		send := func(end error, batches ...*coordinatorv1.WatchRegionsResponse) func(*coordinatorv1.WatchRegionsRequest, watchStream) error {
			return func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
				asked = append(asked, req.GetAfter().GetIndex())
				for _, b := range batches {
					must(t, s.Send(b))
				}
				if end == nil {
					<-s.Context().Done()
				}
				return end
			}
		}
		broken := status.Error(codes.Unavailable, "gone")
		f.watch = script(
			// A snapshot that is cut off, and again whole.
			send(broken, &coordinatorv1.WatchRegionsResponse{Token: at(5), Snapshot: true}),
			send(broken,
				&coordinatorv1.WatchRegionsResponse{Token: at(6), Snapshot: true},
				&coordinatorv1.WatchRegionsResponse{Token: at(6), Snapshot: true, SnapshotEnd: true},
				&coordinatorv1.WatchRegionsResponse{Token: at(7)}),
			// Silence.
			send(nil, &coordinatorv1.WatchRegionsResponse{Token: at(8)}),
			// The position is gone.
			send(reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "compacted")),
			send(reason.New(rootv1.Reason_REASON_NOT_FOUND, "no such keyspace"),
				&coordinatorv1.WatchRegionsResponse{Token: at(20), Snapshot: true, SnapshotEnd: true},
				&coordinatorv1.WatchRegionsResponse{Token: at(21)}),
		)
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var got []string
		var last error
		for b, err := range c.WatchRegions(t.Context(), "ks", zero) {
			if err != nil {
				last = err
				break
			}
			got = append(got, fmt.Sprintf("%d %t %t %t", b.Position().Index, b.GetSnapshot(), b.SnapshotBegin, b.GetSnapshotEnd()))
		}
		wantIs(t, last, client.ErrNotFound)
		want := []string{
			"5 true true false", "6 true true false", "6 true false true", "7 false false false",
			"8 false false false", "20 true true true", "21 false false false",
		}
		if !slices.Equal(got, want) {
			t.Errorf("batches\n%q\nwant\n%q", got, want)
		}
		if want := []uint64{0, 0, 7, 8, 0}; !slices.Equal(asked, want) {
			t.Errorf("asked from %v, want %v", asked, want)
		}
		if s := c.Stats(); s.WatchResumes != 4 || s.WatchRestarts != 1 {
			t.Errorf("%d resumes, %d restarts", s.WatchResumes, s.WatchRestarts)
		}
	})
}

func TestWatchMovesToAnotherCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		a.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			must(t, s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(3)}))
			<-s.Context().Done()
			return nil
		}
		b.watch = func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			must(t, s.Send(&coordinatorv1.WatchRegionsResponse{Token: at(req.GetAfter().GetIndex() + 1)}))
			<-s.Context().Done()
			return nil
		}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []uint64
		for batch, err := range c.WatchRegions(ctx, "", rooted.Token{Incarnation: 1, Index: 2}) {
			must(t, err)
			got = append(got, batch.Position().Index)
			if len(got) == 2 {
				break
			}
			w.stop("a")
		}
		if !slices.Equal(got, []uint64{3, 4}) {
			t.Errorf("positions %v, want 3 and 4", got)
		}
	})
}

// A position of another cluster is nobody's: the watch ends when all have said so.
func TestWatchFromAPositionOfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		for _, name := range []string{"a", "b"} {
			f := &fake{cluster: k}
			f.watch = func(*coordinatorv1.WatchRegionsRequest, watchStream) error {
				return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "another incarnation")
			}
			w.start(name, f)
		}
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, err := range c.WatchRegions(ctx, "", rooted.Token{Incarnation: 9, Index: 2}) {
			wantIs(t, err, client.ErrClusterMismatch)
			if ctx.Err() != nil {
				t.Error("it was tried until the context ended")
			}
		}
	})
}
