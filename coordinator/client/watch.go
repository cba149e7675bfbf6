package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Batch is one step of a watch. Applied as a whole it takes a reader from one
// position to the next.
//
// A batch with Snapshot set is part of a whole keyspace: what is not in the
// snapshot, from the batch with SnapshotBegin to the one with SnapshotEnd, does
// not exist. Until its end, a reader that had a position keeps what it had. A
// snapshot that was cut off counts for nothing: another one begins, or changes
// behind the old position come.
type Batch struct {
	*coordinatorv1.WatchRegionsResponse
	// SnapshotBegin is set on the first batch of a snapshot.
	SnapshotBegin bool
}

// Position is where the batch takes the reader; inside a snapshot, where its
// end will.
func (b Batch) Position() rooted.Token { return rooted.TokenFromProto(b.GetToken()) }

// Known is the newest position known to be committed.
func (b Batch) Known() rooted.Token { return rooted.TokenFromProto(b.GetCurrentRootToken()) }

// WatchRegions yields the changes of a keyspace behind a position, without a
// gap and without repetition, until the context ends. An empty keyspace means
// all; the zero Token means the whole keyspace first, as a snapshot. Of changes
// too many for one message only the last batch moves the position: when the
// watch breaks off before it, they come again from the first.
//
// When a coordinator breaks off or brings nothing for Config.WatchSilence, the
// watch goes on at the next one from the last position. When the position is
// no longer retained, a snapshot comes. The sequence ends with an error: the
// context's, or one that will not go away (ErrInvalidRequest, ErrNotFound,
// ErrClusterMismatch).
func (c *Client) WatchRegions(ctx context.Context, keyspace string, after rooted.Token) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		w := &watch{c: c, keyspace: keyspace, at: after, yield: yield}
		w.walk.reset(c, operation{name: "WatchRegions"})
		for {
			if cause := w.walk.over(ctx); cause != nil {
				yield(Batch{}, w.walk.trail.fail("WatchRegions", cause))
				return
			}
			e := w.walk.next()
			err := w.follow(ctx, e)
			if errors.Is(err, errStopped) {
				return
			}
			if err := w.walk.failed(ctx, e, err); err != nil {
				yield(Batch{}, err)
				return
			}
			c.count.watchResumes.Add(1)
		}
	}
}

// errStopped says that the loop over the sequence was left.
var errStopped = errors.New("stopped")

// watch is one run of WatchRegions.
type watch struct {
	c        *Client
	keyspace string
	yield    func(Batch, error) bool
	walk     walk
	at       rooted.Token // reached by the reader
	inside   bool         // a snapshot, on this stream
}

// follow watches at one coordinator until the stream breaks.
func (w *watch) follow(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.c.ctx, func() { cancel(ErrClosed) })()
	req := &coordinatorv1.WatchRegionsRequest{Keyspace: w.keyspace}
	if w.at != (rooted.Token{}) {
		req.After = w.at.Proto()
	}
	w.inside = false
	guard := time.AfterFunc(w.c.cfg.WatchSilence, func() { cancel(errSilent) })
	defer guard.Stop()
	stream, err := e.rpc.WatchRegions(ctx, req)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		guard.Stop()
		if err != nil {
			return w.broken(ctx, err)
		}
		if err := w.c.accept(e, m); err != nil {
			return err
		}
		w.walk.reset(w.c, w.walk.op)
		w.walk.succeeded(e)
		if !w.give(m) {
			return errStopped
		}
		guard.Reset(w.c.cfg.WatchSilence)
	}
}

// give yields a message and moves the position.
func (w *watch) give(m *coordinatorv1.WatchRegionsResponse) bool {
	b := Batch{WatchRegionsResponse: m}
	if m.GetSnapshot() && !w.inside {
		w.inside, b.SnapshotBegin = true, true
		if w.at != (rooted.Token{}) {
			w.c.count.watchRestarts.Add(1)
		}
	}
	if !m.GetSnapshot() || m.GetSnapshotEnd() {
		w.inside = false
		if at := b.Position(); at.Compare(w.at) > 0 || m.GetSnapshotEnd() {
			w.at = at
		}
	}
	return w.yield(b, nil)
}

// broken says how a stream ended.
func (w *watch) broken(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the stream was ended")
	}
	if w.at != (rooted.Token{}) && needsSnapshot(w.at, reason.From(err)) {
		w.at = rooted.Token{}
		w.c.count.watchRestarts.Add(1)
	}
	return err
}

// needsSnapshot says whether a refusal means that changes behind a position
// will never come: it is no longer retained, or of before a restore.
func needsSnapshot(at rooted.Token, d *rootv1.ErrorDetail) bool {
	switch d.GetReason() {
	case rootv1.Reason_REASON_BOOTSTRAP_REQUIRED:
		return true
	case rootv1.Reason_REASON_CLUSTER_MISMATCH:
		return d.GetCurrentToken().GetIncarnation() > at.Incarnation
	default:
		return false
	}
}
