package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// TailStream is a stream of committed entries from one peer. Recv blocks until
// the next message, which may be a sign of life without entries; after an error
// it returns errors only. Recv and Close may be called at the same time; Close
// ends a Recv that waits, and must be called in the end.
type TailStream = interface {
	Recv() (*rootv1.TailResponse, error)
	Close()
}

// Tail opens one stream to one peer: the entries behind a position, in order,
// without a gap. When it breaks, the caller calls Tail again with the position it
// has reached and gets another peer. A position that is no longer retained is
// refused with REASON_BOOTSTRAP_REQUIRED, at the latest by the first Recv. After
// each peer has failed once, Tail waits before it tries, longer each time.
func (c *Client) Tail(ctx context.Context, after state.Token) (TailStream, error) {
	p, err := c.tailPeer(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t := &tail{c: c, p: p, ctx: ctx, cancel: cancel}
	t.silence = time.AfterFunc(c.cfg.TailSilence, func() { cancel(errSilent) })
	if err = c.identify(ctx, p); err == nil {
		t.stream, err = p.root.Tail(ctx, &rootv1.TailRequest{
			After: after.Proto(), ClusterId: c.cluster.Load(), ReaderId: c.cfg.ReaderID, FeatureLevel: state.SupportedLevel(),
		})
	}
	if err != nil {
		return nil, t.broken(err)
	}
	return t, nil
}

// tailPeer picks the peer for a tail or a snapshot and waits when all failed.
func (c *Client) tailPeer(ctx context.Context) (*peer, error) {
	if err := ctx.Err(); err != nil {
		return nil, unanswered(context.Cause(ctx), false, nil)
	}
	id, rounds := c.tails.pick(c.peers.ids())
	if rounds > 0 {
		wait := min(c.cfg.MinBackoff<<min(rounds-1, 16), c.cfg.MaxBackoff)
		if !sleep(ctx, jitter(wait), nil) {
			return nil, unanswered(context.Cause(ctx), false, nil)
		}
	}
	return c.peers.get(id)
}

// tail is an open TailStream.
type tail struct {
	c       *Client
	p       *peer
	ctx     context.Context // the stream's own; ends with it
	cancel  context.CancelCauseFunc
	stream  grpc.ServerStreamingClient[rootv1.TailResponse]
	silence *time.Timer
	healthy bool // a message came; used by Recv alone
	judged  sync.Once
}

// Recv implements TailStream.
func (t *tail) Recv() (*rootv1.TailResponse, error) {
	resp, err := t.stream.Recv()
	if err != nil {
		return nil, t.broken(err)
	}
	t.silence.Reset(t.c.cfg.TailSilence)
	if err := t.c.pin(t.p, resp.GetClusterId()); err != nil {
		t.cancel(err)
		return nil, t.broken(err)
	}
	leaderless := time.Duration(resp.GetLeaderlessMillis()) * time.Millisecond
	if leaderless > t.c.cfg.LeaderlessLimit && t.c.leader.count() > 1 {
		err := fmt.Errorf("root peer %d at %s has had no leader for %v", t.p.id, t.p.address, leaderless)
		t.cancel(err)
		t.c.tails.leaderless(t.p.id, leaderless)
		return nil, t.broken(err)
	}
	if leaderless == 0 {
		t.c.leader.observe(resp.GetLeaderId(), t.c.cfg.HintPatience)
		if !t.healthy {
			t.healthy = true
			t.c.tails.succeeded(t.p.id)
		}
	}
	return resp, nil
}

// broken notes a failure of the peer, unless the caller ended the stream or the
// peer refused the position, and says what happened.
func (t *tail) broken(err error) error {
	t.silence.Stop()
	err = causeOf(t.ctx, err)
	if own := t.c.barred(err); own != nil {
		err = own
	}
	t.judged.Do(func() {
		if reason.Of(err) == rootv1.Reason_REASON_BOOTSTRAP_REQUIRED {
			t.c.tails.succeeded(t.p.id)
		} else if context.Cause(t.ctx) != errTailClosed {
			t.c.tails.failed(t.p.id)
			t.c.unreached(t.p)
		}
	})
	t.cancel(err)
	return fmt.Errorf("tail root peer %d at %s: %w", t.p.id, t.p.address, reason.FromGRPC(err))
}

var errTailClosed = fmt.Errorf("tail: %w", context.Canceled)

// Close implements TailStream. A caller whose context ended with a cause has left the peer
// for that, whether or not a Recv was waiting: the next tail is another one's.
func (t *tail) Close() {
	t.silence.Stop()
	t.cancel(errTailClosed)
	t.judged.Do(func() {
		if cause := context.Cause(t.ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
			t.c.tails.failed(t.p.id)
		}
	})
}

// Snapshot streams the whole state of one peer, chunk after chunk, to fn; it
// ends with the chunk that has Last set, with the first error of fn, or with a
// failure, after which the next call tries another peer and begins again. fn owns
// the chunk; at most two more are received meanwhile.
func (c *Client) Snapshot(ctx context.Context, fn func(*rootv1.SnapshotChunk) error) error {
	p, err := c.tailPeer(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.cfg.snapshotSilence(), func() { cancel(errSilent) })
	defer silence.Stop()
	failed := func(err error) error {
		if own := c.barred(err); own != nil {
			err = own
		}
		c.tails.failed(p.id)
		c.unreached(p)
		return fmt.Errorf("snapshot of root peer %d at %s: %w", p.id, p.address, reason.FromGRPC(causeOf(ctx, err)))
	}
	if err := c.identify(ctx, p); err != nil {
		return failed(err)
	}
	stream, err := p.root.Snapshot(ctx, &rootv1.SnapshotRequest{
		ClusterId: c.cluster.Load(), ReaderId: c.cfg.ReaderID, FeatureLevel: state.SupportedLevel(),
	})
	if err != nil {
		return failed(err)
	}
	chunks, ended := make(chan *rootv1.SnapshotChunk, 1), error(nil)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		defer close(chunks)
		ended = receiveSnapshot(ctx, stream, chunks)
	})
	defer receiving.Wait()
	defer cancel(nil)
	for chunk := range chunks {
		silence.Stop()
		if err := fn(chunk); err != nil {
			return err
		}
		if chunk.GetLast() {
			c.tails.succeeded(p.id)
			return nil
		}
		silence.Reset(c.cfg.snapshotSilence())
	}
	return failed(ended)
}

// receiveSnapshot passes a stream's chunks on until the last one, so that one
// is received and decoded while another is used. It returns why there are no
// more.
func receiveSnapshot(ctx context.Context, stream grpc.ServerStreamingClient[rootv1.SnapshotChunk], chunks chan<- *rootv1.SnapshotChunk) error {
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case chunks <- chunk:
		case <-ctx.Done():
			return ctx.Err()
		}
		if chunk.GetLast() {
			return nil
		}
	}
}

// tailPicker ranks the peers for tails and snapshots.
type tailPicker struct {
	mu    sync.Mutex // guards what follows
	peers map[uint64]*tailHealth
	turn  int
}

type tailHealth struct {
	failures   int // in a row
	leaderless time.Duration
}

func newTailPicker() *tailPicker { return &tailPicker{peers: map[uint64]*tailHealth{}} }

// pick returns the peer with the fewest failures in a row, then the one that was
// last without leader for the shortest time, then the next in turn; and how
// often even that one failed.
func (t *tailPicker) pick(ids []uint64) (best uint64, failures int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn++
	var bestHealth tailHealth
	for i := range ids {
		id := ids[(t.turn+i)%len(ids)]
		h := *t.healthLocked(id)
		if best == 0 || h.failures < bestHealth.failures ||
			(h.failures == bestHealth.failures && h.leaderless < bestHealth.leaderless) {
			best, bestHealth = id, h
		}
	}
	return best, bestHealth.failures
}

func (t *tailPicker) healthLocked(id uint64) *tailHealth {
	h, ok := t.peers[id]
	if !ok {
		h = &tailHealth{}
		t.peers[id] = h
	}
	return h
}

func (t *tailPicker) failed(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.healthLocked(id).failures++
}

// succeeded clears what is held against a peer. The others' failures are
// forgiven down to one, so that the next rotation may reach them again.
func (t *tailPicker) succeeded(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*t.healthLocked(id) = tailHealth{}
	for other, h := range t.peers {
		if other != id {
			h.failures = min(h.failures, 1)
		}
	}
}

func (t *tailPicker) leaderless(id uint64, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.healthLocked(id).leaderless = d
}
