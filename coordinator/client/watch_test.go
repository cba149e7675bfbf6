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

var zero client.Position

func at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

// says is what a coordinator of cluster 7 says of itself, with its view at index.
func says(index uint64) *coordinatorv1.Disclosure {
	return &coordinatorv1.Disclosure{ClusterId: 7, ServedRootToken: at(index), CurrentRootToken: at(index)}
}

// whole is a batch, or the last part of one.
func whole(index uint64) *coordinatorv1.WatchRegionsResponse {
	return &coordinatorv1.WatchRegionsResponse{Token: at(index), Disclosure: says(index)}
}

// snapshot is the last part of a snapshot.
func snapshot(index uint64) *coordinatorv1.WatchRegionsResponse {
	return &coordinatorv1.WatchRegionsResponse{Token: at(index), Snapshot: true, Disclosure: says(index)}
}

// firstOf is a part of a snapshot that others follow.
func firstOf(index uint64) *coordinatorv1.WatchRegionsResponse {
	return &coordinatorv1.WatchRegionsResponse{Snapshot: true, Partial: true, Disclosure: says(index)}
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
			send(broken, firstOf(5)),
			send(broken, firstOf(6), snapshot(6), whole(7)),
			// Silence.
			send(nil, whole(8)),
			// A batch that is cut off comes again as a whole.
			send(broken, &coordinatorv1.WatchRegionsResponse{Token: at(8), Partial: true, Disclosure: says(9)}),
			// The position is gone: a snapshot, which is not of before it.
			send(nil, firstOf(7)),
			send(reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "no"), snapshot(20), whole(21)),
		)
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var got []string
		var last error
		for b, err := range c.WatchRegions(t.Context(), zero, client.In("ks")) {
			if err != nil {
				last = err
				break
			}
			got = append(got, fmt.Sprintf("%v %t %t %t", b.Position(), b.GetSnapshot(), b.First, b.Last))
		}
		wantIs(t, last, client.ErrInvalidRequest)
		const of = "@0000000000000007"
		want := []string{
			" true true false", " true true false", "1.1.6" + of + " true false true", "1.1.7" + of + " false true true",
			"1.1.8" + of + " false true true", "1.1.8" + of + " false true false",
			"1.1.20" + of + " true true true", "1.1.21" + of + " false true true",
		}
		if !slices.Equal(got, want) {
			t.Errorf("batches\n%q\nwant\n%q", got, want)
		}
		if want := []uint64{0, 0, 7, 8, 8, 8}; !slices.Equal(asked, want) {
			t.Errorf("asked from %v, want %v", asked, want)
		}
		if s := c.Stats(); s.WatchResumes != 5 || s.WatchRestarts != 1 {
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
			must(t, s.Send(whole(3)))
			<-s.Context().Done()
			return nil
		}
		b.watch = func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			must(t, s.Send(whole(req.GetAfter().GetIndex()+1)))
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
		for batch, err := range c.WatchRegions(ctx, client.Position{Token: rooted.Token{Incarnation: 1, Index: 2}}) {
			must(t, err)
			got = append(got, batch.Position().Token.Index)
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
		for _, err := range c.WatchRegions(ctx, client.Position{Token: rooted.Token{Incarnation: 9, Index: 2}}) {
			wantIs(t, err, client.ErrClusterMismatch)
			if ctx.Err() != nil {
				t.Error("it was tried until the context ended")
			}
		}
	})
}

// A position names its cluster: another one refuses it at once, whether the
// client was told which cluster is meant or not, and nothing of it is shown.
func TestWatchFromANamedPositionOfAnotherCluster(t *testing.T) {
	for _, meant := range []uint64{0, 7} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			f := &fake{cluster: newCluster(7)}
			f.watch = script(func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error { return s.Send(whole(9)) })
			w.start("a", f)
			w.start("b", &fake{cluster: f.cluster})
			c, end := w.client(client.Config{ClusterID: meant}, "a", "b")
			defer end()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			from, err := client.ParsePosition("1.1.3@0000000000000008")
			must(t, err)
			n := 0
			for _, err := range c.WatchRegions(ctx, from) {
				n++
				wantIs(t, err, client.ErrClusterMismatch)
			}
			if n != 1 || ctx.Err() != nil || f.called("WatchRegions") != 0 {
				t.Errorf("%d results, %d watches, %v", n, f.called("WatchRegions"), ctx.Err())
			}
		})
	}
}

// Inside a snapshot the reader still stands where it came from, which is of no
// known cluster when it did not say one.
func TestAPartHasThePositionOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.watch = script(func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
			part := firstOf(9)
			part.Token = req.GetAfter()
			if err := s.Send(part); err != nil {
				return err
			}
			return s.Send(snapshot(9))
		})
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		from, err := client.ParsePosition("1.1.3")
		must(t, err)
		for b, err := range c.WatchRegions(t.Context(), from) {
			must(t, err)
			if b.Last {
				if got := b.Position().String(); got != "1.1.9@0000000000000007" {
					t.Errorf("behind the snapshot at %s", got)
				}
				break
			}
			if got := b.Position(); got != from {
				t.Errorf("inside the snapshot at %s, came from %s", got, from)
			}
		}
	})
}

// A caller that ends its watch hears that, and of no coordinator that did not
// answer.
func TestWatchEndedByItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		c, end := w.client(client.Config{}, "a")
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		for _, err := range c.WatchRegions(ctx, zero) {
			wantIs(t, err, context.Canceled)
			if err.Error() != "WatchRegions: context canceled" {
				t.Errorf("error %q", err)
			}
		}
	})
}

// A watch without a bound leaves a coordinator that is cut off from the root
// when another one is not, and does not run in circles when all are.
func TestWatchLeavesACoordinatorThatIsCutOff(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			k := newCluster(7)
			serve := func(name string, cut bool) *fake {
				f := &fake{cluster: k}
				begun := time.Now()
				f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
					for {
						m := whole(3)
						if cut {
							m.Disclosure.RootLagMillis = uint64(time.Since(begun).Milliseconds())
						}
						if err := s.Send(m); err != nil {
							return err
						}
						select {
						case <-time.After(time.Second):
						case <-s.Context().Done():
							return nil
						}
					}
				}
				w.start(name, f)
				return f
			}
			a, b := serve("a", true), serve("b", all)
			c, end := w.client(client.Config{WatchSilence: 10 * time.Second}, "a", "b")
			defer end()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, err := range c.WatchRegions(ctx, client.Position{Token: rooted.Token{Incarnation: 1, Term: 1, Index: 3}}) {
				if err != nil {
					wantIs(t, err, context.DeadlineExceeded)
				}
			}
			if n, m := a.called("WatchRegions"), b.called("WatchRegions"); !all && (n != 1 || m != 1) || all && (n+m < 4 || n+m > 6) {
				t.Errorf("all cut off: %t: %d and %d watches", all, n, m)
			}
		})
	}
}

func TestPositionText(t *testing.T) {
	for _, p := range []client.Position{
		{}, {Token: rooted.Token{Incarnation: 1, Term: 2, Index: 345}}, {Cluster: 0xc0ffee, Token: rooted.Token{Incarnation: 1, Term: 2, Index: 345}},
	} {
		text, err := p.MarshalText()
		must(t, err)
		var back client.Position
		must(t, back.UnmarshalText(text))
		if back != p {
			t.Errorf("%v became %q and %v", p, text, back)
		}
	}
	for _, text := range []string{"1.2", "1/2/3", "1.2.3@", "1.2.3@7", "1.2.3@000000000000000g", "@0000000000000007", "1.2.-3", "1.2.3@0000000000000000"} {
		if p, err := client.ParsePosition(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
}

// Parts move nobody, whatever position they carry: who comes back gets the whole
// again. A batch in whose middle another one begins has broken off.
func TestWatchBatchesAreWholeOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		var asked []uint64
		send := func(end error, batches ...*coordinatorv1.WatchRegionsResponse) func(*coordinatorv1.WatchRegionsRequest, watchStream) error {
			return func(req *coordinatorv1.WatchRegionsRequest, s watchStream) error {
				asked = append(asked, req.GetAfter().GetIndex())
				for _, b := range batches {
					_ = s.Send(b) // the client may have left
				}
				return end
			}
		}
		part := func(index uint64) *coordinatorv1.WatchRegionsResponse {
			return &coordinatorv1.WatchRegionsResponse{Token: at(index), Partial: true, Disclosure: says(9)}
		}
		broken := status.Error(codes.Unavailable, "gone")
		f.watch = script(
			send(broken, snapshot(5), part(9)),
			send(broken, part(5), snapshot(6)),
			send(reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "no"), whole(9)),
		)
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var got []string
		for b, err := range c.WatchRegions(t.Context(), zero) {
			if err == nil {
				got = append(got, fmt.Sprintf("%d %t %t", b.Position().Token.Index, b.First, b.Last))
			}
		}
		if want := []string{"5 true true", "9 true false", "5 true false", "9 true true"}; !slices.Equal(got, want) || !slices.Equal(asked, []uint64{0, 5, 5}) {
			t.Errorf("got %q, asked behind %v", got, asked)
		}
	})
}

// A session only rises.
func TestSessionsOnlyRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		c, end := w.client(client.Config{}, "a")
		defer end()
		s := c.NewSession(rooted.Token{Incarnation: 1, Term: 1, Index: 5})
		s.Saw(rooted.Token{Incarnation: 1, Term: 1, Index: 4})
		if got := s.Token().Index; got != 5 {
			t.Errorf("it fell to %d", got)
		}
		if s.Saw(rooted.Token{Incarnation: 1, Term: 1, Index: 6}); s.Token().Index != 6 {
			t.Errorf("it stays at %s", s.Token())
		}
	})
}
