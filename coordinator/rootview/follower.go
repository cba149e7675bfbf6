package rootview

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Root is where a view comes from: any peer of the metadata root. An
// implementation with several peers takes another one when the last stream
// ended badly, whoever ended it.
type Root interface {
	// Tail streams committed entries behind a position. The stream ends with the
	// context, and with it a Recv that waits. REASON_BOOTSTRAP_REQUIRED, here or from Recv: the peer no longer
	// has what follows.
	Tail(ctx context.Context, after state.Token) (TailStream, error)
	// Snapshot calls fn with the chunks of one snapshot, in order, and returns
	// nil after the last one. An error of fn ends it and is returned.
	Snapshot(ctx context.Context, fn func(*rootv1.SnapshotChunk) error) error
}

// TailStream is one tail, used by one goroutine. After an error Recv returns
// errors only; Close releases it in any case.
type TailStream = interface {
	Recv() (*rootv1.TailResponse, error)
	Close()
}

// Config is what a Follower needs. Root, ReadIndexer and Clock are required.
type Config struct {
	// Core holds the thresholds of the view.
	Core CoreConfig
	// Root is where the view comes from.
	Root Root
	// ReadIndexer answers strong reads.
	ReadIndexer ReadIndexer
	// Clock tells elapsed time.
	Clock clock.Clock
	// Logger gets changes of the connection. Default: none.
	Logger hclog.Logger
	// ConnectTimeout bounds the wait for the first message of a tail. Default 2 s.
	ConnectTimeout time.Duration
	// LeaderlessAfter is how long a peer may be without a leader before another
	// one is tried. Default 500 ms.
	LeaderlessAfter time.Duration
	// BehindAfter is how long a peer may know less than the view before another
	// one is tried. Default 500 ms.
	BehindAfter time.Duration
	// AskEvery is the pause between two read indexes that nobody waits for: they show
	// what is committed when the peer that is followed does not. Default 2 s.
	AskEvery time.Duration
	// RetryMin and RetryMax bound the pause between two streams that brought
	// nothing; it doubles, with jitter. Defaults 10 ms and 500 ms.
	RetryMin, RetryMax time.Duration
	// SnapshotRetryMax is RetryMax after a snapshot that could not be used:
	// loading it again is not cheap. Default 10 s.
	SnapshotRetryMax time.Duration
	// ReadIndexTimeout bounds one read index. Default 2 s.
	ReadIndexTimeout time.Duration
	// ReplyMargin is kept of a deadline for the refusal to reach the caller, at
	// most an eighth of what is left. Default 20 ms.
	ReplyMargin time.Duration
	// RetainedChanges bounds what watchers can go back to, in entries and
	// changes together, and RetainedBytes in about what they take in memory; the
	// newest batch is kept whatever its size. Defaults 65,536 and 64 MiB.
	RetainedChanges int
	RetainedBytes   int
	// MaxWaiting bounds the requests that wait for a position, and those that
	// wait for one read index. Default 65,536.
	MaxWaiting int
}

// Validate says what is missing or wrong.
func (c *Config) Validate() error {
	switch {
	case c.Root == nil || c.ReadIndexer == nil || c.Clock == nil:
		return errors.New("rootview: Root, ReadIndexer and Clock are required")
	case c.AskEvery < 0 || c.RetryMin < 0 || c.RetryMax < c.RetryMin || c.RetainedChanges < 0 || c.RetainedBytes < 0 || c.MaxWaiting < 0:
		return errors.New("rootview: AskEvery, RetryMin, RetryMax, RetainedChanges, RetainedBytes or MaxWaiting is out of bounds")
	}
	return nil
}

func (c Config) withDefaults() Config {
	setDefault(&c.ConnectTimeout, 2*time.Second)
	setDefault(&c.LeaderlessAfter, 500*time.Millisecond)
	setDefault(&c.BehindAfter, 500*time.Millisecond)
	setDefault(&c.AskEvery, 2*time.Second)
	setDefault(&c.RetryMin, 10*time.Millisecond)
	setDefault(&c.RetryMax, 500*time.Millisecond)
	setDefault(&c.SnapshotRetryMax, 10*time.Second)
	setDefault(&c.ReadIndexTimeout, defaultReadIndexTimeout)
	setDefault(&c.ReplyMargin, 20*time.Millisecond)
	setDefault(&c.RetainedChanges, 65536)
	setDefault(&c.RetainedBytes, 64<<20)
	setDefault(&c.MaxWaiting, 65536)
	c.Core = c.Core.withDefaults()
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

func setDefault[T comparable](value *T, to T) {
	if *value == *new(T) {
		*value = to
	}
}

// Follower keeps a View level with the root for as long as Run runs. Its other
// methods may be called by anybody at any time.
type Follower struct {
	cfg  Config
	core *Core // Run's alone

	view    atomic.Pointer[View]
	waiters waitList
	indexes readIndexes
	feed    feed
	stats   counters
	raised  chan struct{} // newest rose; capacity one

	mu sync.Mutex
	// Guarded by mu.
	changed chan struct{} // closed at the next change of the token; nil: nobody asked
	newest  state.Token   // position from a read index
}

// New returns a Follower. Nothing starts before Run.
func New(cfg Config) (*Follower, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Follower{
		cfg:     cfg,
		core:    NewCore(cfg.Core),
		waiters: waitList{limit: cfg.MaxWaiting},
		indexes: readIndexes{limit: int64(cfg.MaxWaiting), wake: make(chan struct{}, 1)},
		feed:    feed{limit: cfg.RetainedChanges, limitBytes: cfg.RetainedBytes},
		raised:  make(chan struct{}, 1),
	}
	f.view.Store(f.core.View())
	return f, nil
}

// View returns the newest View; never nil. It is one atomic load.
func (f *Follower) View() *View { return f.view.Load() }

// Changed returns a channel that is closed when a View with another Token, or the first
// one that is loaded, is published.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

// Run follows the root until the context ends, and then returns nil. No fault of
// the root ends it: the View is served as it is, and says so.
func (f *Follower) Run(ctx context.Context) error {
	var reads sync.WaitGroup
	reads.Go(func() { f.runReadIndex(ctx) })
	defer reads.Wait()
	failures := 0
	for ctx.Err() == nil {
		progress, err := f.connect(ctx)
		f.core.OnDisconnected(f.cfg.Clock.Now())
		f.publish(Batch{})
		if ctx.Err() != nil {
			break
		}
		if progress {
			failures = 0
		}
		f.report(err, failures)
		f.pause(ctx, failures, err)
		failures++
	}
	return nil
}

// connect does one thing with one peer: a snapshot if one is needed, the tail
// otherwise.
func (f *Follower) connect(ctx context.Context) (progress bool, err error) {
	if f.core.NeedsSnapshot() {
		return f.bootstrap(ctx)
	}
	return f.follow(ctx)
}

func (f *Follower) report(err error, failures int) {
	if err == nil {
		return
	}
	f.stats.reconnects.Add(1)
	text := err.Error()
	f.stats.lastError.Store(&text)
	switch {
	case errors.Is(err, ErrPoison):
		f.cfg.Logger.Error("the root has an entry that this software cannot apply: upgrade it", "index", f.View().Token.Index+1, "err", err)
	case failures == 0 && refusedByCertificates(err):
		f.cfg.Logger.Warn("the root refuses this process, or this process the root", "err", err)
	case failures == 0:
		f.cfg.Logger.Info("root stream ended", "index", f.View().Token.Index, "err", err)
	case f.cfg.Logger.IsDebug():
		f.cfg.Logger.Debug("root stream ended", "index", f.View().Token.Index, "err", err)
	}
}

func refusedByCertificates(err error) bool {
	_, refused := mtls.RefusalOf(err)
	return refused
}

// pause waits before the next stream, longer with every failure.
func (f *Follower) pause(ctx context.Context, failures int, err error) {
	longest := f.cfg.RetryMax
	if errors.Is(err, ErrSnapshot) {
		longest = f.cfg.SnapshotRetryMax
	}
	d := min(f.cfg.RetryMin<<min(failures, 16), longest)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// publish makes the core's View everybody's, and wakes who waits for it: first
// the View, so that a watcher who reads after a batch finds it applied.
func (f *Follower) publish(b Batch) {
	old, v := f.view.Load(), f.core.View()
	if b.Empty() {
		f.view.Store(v)
	} else {
		f.feed.mu.Lock()
		f.view.Store(v)
		f.feed.addLocked(b)
		f.feed.mu.Unlock()
	}
	if v.Token == old.Token && v.Loaded() == old.Loaded() && !b.Snapshot {
		return
	}
	f.waiters.wake(v.Token)
	f.mu.Lock()
	changed := f.changed
	f.changed = nil
	f.mu.Unlock()
	if changed != nil {
		close(changed)
	}
}

// noteKnown hands a position from a read index to the goroutine that owns the
// core.
func (f *Follower) noteKnown(token state.Token) {
	f.mu.Lock()
	newer := f.newest.Compare(token) < 0
	if newer {
		f.newest = token
	}
	f.mu.Unlock()
	if newer && f.View().Known.Compare(token) < 0 {
		select {
		case f.raised <- struct{}{}:
		default:
		}
	}
}

func (f *Follower) takeKnown() {
	f.mu.Lock()
	newest := f.newest
	f.mu.Unlock()
	f.core.OnKnown(newest)
	f.publish(Batch{})
}

// bootstrap loads one snapshot.
func (f *Follower) bootstrap(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := f.cfg.Clock.Now()
	f.core.BeginSnapshot(started)
	f.publish(Batch{})
	// A peer that stops in the middle of a chunk is given up like a silent tail.
	silence := time.AfterFunc(f.cfg.ConnectTimeout, func() { cancel(errNoAnswer) })
	defer silence.Stop()
	err = f.cfg.Root.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		silence.Stop()
		var b Batch
		var chunkErr error
		b, done, chunkErr = f.core.OnSnapshotChunk(chunk, f.cfg.Clock.Now())
		f.publish(b)
		silence.Reset(f.cfg.ConnectTimeout)
		return chunkErr
	})
	if done {
		f.stats.bootstraps.Add(1)
		f.cfg.Logger.Info("view loaded from a snapshot", "index", f.View().Token.Index, "took", f.cfg.Clock.Now().Sub(started))
		return true, nil
	}
	if err == nil {
		err = fmt.Errorf("%w: the stream ended before the last chunk", ErrSnapshot)
	} else if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return false, fmt.Errorf("load snapshot: %w", err)
}

// bootstrapRequired says whether a peer no longer has what follows.
func bootstrapRequired(err error) bool {
	return reason.Of(err) == rootv1.Reason_REASON_BOOTSTRAP_REQUIRED
}
