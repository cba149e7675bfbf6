package rootview

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var (
	errNoAnswer   = errors.New("root peer does not answer")
	errLeaderless = errors.New("root peer has no leader")
	errBehind     = errors.New("root peer is behind the view")
	errStuck      = errors.New("root peer does not go on: more is committed than it sends")
)

// follow reads one tail until it ends or is not worth reading on. progress says
// that it brought something.
func (f *Follower) follow(ctx context.Context) (progress bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := tail{f: f, opened: f.cfg.Clock.Now(), messages: make(chan *rootv1.TailResponse)}
	f.core.OnConnected(t.opened)
	f.publish(Batch{})
	var pump sync.WaitGroup
	after := f.View().Token
	pump.Go(func() { t.pump(ctx, after) })
	defer pump.Wait()
	progress, err = t.read(ctx)
	cancel(err) // The root client takes it for a failure of the peer.
	return progress, err
}

// tail is one stream on its way into the core.
type tail struct {
	f        *Follower
	opened   clock.Instant
	messages chan *rootv1.TailResponse
	behind   clock.Instant // since when the peer is behind the view; 0: it is not
	reached  uint64        // where the view was when it moved last
	stuck    clock.Instant // since when it has not moved though more is committed; 0: it has
	err      error         // why it ended; set before messages is closed
}

// pump receives, one message ahead of read, so that read can give a silent peer
// up.
func (t *tail) pump(ctx context.Context, after state.Token) {
	defer close(t.messages)
	stream, err := t.f.cfg.Root.Tail(ctx, after)
	if err != nil {
		t.err = fmt.Errorf("tail: %w", err)
		return
	}
	defer stream.Close()
	for {
		resp, err := stream.Recv()
		if err != nil {
			t.err = fmt.Errorf("tail: %w", err)
			return
		}
		select {
		case t.messages <- resp:
		case <-ctx.Done():
			t.err = ctx.Err()
			return
		}
	}
}

func (t *tail) read(ctx context.Context) (progress bool, err error) {
	silence := time.NewTimer(t.f.cfg.ConnectTimeout)
	defer silence.Stop()
	// What the peer says of itself cannot show that it does not go on: others are asked.
	others := time.NewTicker(t.f.cfg.AskEvery)
	defer others.Stop()
	for {
		select {
		case <-ctx.Done():
			return progress, nil
		case <-others.C:
			t.f.indexes.raise()
		case <-silence.C:
			return progress, errNoAnswer
		case <-t.f.raised:
			t.f.takeKnown()
		case resp, ok := <-t.messages:
			if !ok {
				return progress, t.ended()
			}
			if err := t.take(resp); err != nil {
				return progress, err
			}
			progress = true
			silence.Reset(t.f.cfg.Core.SilentAfter)
		}
	}
}

// ended notes why the stream ended.
func (t *tail) ended() error {
	if bootstrapRequired(t.err) {
		t.f.core.OnBootstrapRequired(t.f.cfg.Clock.Now())
		t.f.publish(Batch{})
	}
	return t.err
}

// take applies one message.
func (t *tail) take(resp *rootv1.TailResponse) error {
	f, now := t.f, t.f.cfg.Clock.Now()
	batch, err := f.core.OnTail(resp, now)
	f.stats.messages.Add(1)
	f.stats.entries.Add(uint64(len(batch.ends)))
	f.stats.changes.Add(uint64(len(batch.Changes)))
	f.publish(batch)
	if err != nil {
		return err
	}
	return t.worthIt(resp, now)
}

// worthIt says whether another peer should be tried. No peer is left before it
// had the time to recover: when all are alike, changing brings nothing.
func (t *tail) worthIt(resp *rootv1.TailResponse, now clock.Instant) error {
	cfg := &t.f.cfg
	if millis(resp.GetLeaderlessMillis()) > cfg.LeaderlessAfter && now.Sub(t.opened) > cfg.LeaderlessAfter {
		return errLeaderless
	}
	v := t.f.View()
	switch {
	case resp.GetCommitIndex() >= v.Token.Index:
		t.behind = 0
	case t.behind == 0:
		t.behind = now
	case now.Sub(t.behind) > cfg.BehindAfter:
		return errBehind
	}
	// By what anybody told: the peer's own numbers may stand still with it.
	switch known := max(v.Known.Index, resp.GetCommitIndex()); {
	case v.Token.Index != t.reached || known <= v.Token.Index:
		t.reached, t.stuck = v.Token.Index, 0
	case t.stuck == 0:
		t.stuck = now
	case now.Sub(t.stuck) > cfg.BehindAfter:
		return errStuck
	}
	return nil
}

// counters count what the Follower did.
type counters struct {
	messages, entries, changes, reconnects, bootstraps atomic.Uint64
	lastError                                          atomic.Pointer[string]
}

// Stats is what a Follower did since it was made.
type Stats struct {
	// Messages, entries and changes taken from tails.
	Messages, Entries, Changes uint64
	// Reconnects is how many streams ended with an error.
	Reconnects uint64
	// Bootstraps is how many snapshots became the view.
	Bootstraps uint64
	// LastError is why the last stream ended; empty if none did.
	LastError string
}

// Stats returns what the Follower did, for expvar.
func (f *Follower) Stats() Stats {
	s := Stats{
		Messages: f.stats.messages.Load(), Entries: f.stats.entries.Load(), Changes: f.stats.changes.Load(),
		Reconnects: f.stats.reconnects.Load(), Bootstraps: f.stats.bootstraps.Load(),
	}
	if text := f.stats.lastError.Load(); text != nil {
		s.LastError = *text
	}
	return s
}
