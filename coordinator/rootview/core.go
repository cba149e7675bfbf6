package rootview

import (
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Why a stream from the root is not worth reading on. After any of them the
// driver drops the stream, calls OnDisconnected, and goes on as NeedsSnapshot
// says.
var (
	// ErrOtherCluster: the peer belongs to another cluster, or to an incarnation
	// that is over. The message is dropped: nothing of another cluster is ever
	// applied, and one misconfigured peer does not stop the others' reader.
	ErrOtherCluster = errors.New("root peer of another cluster")
	// ErrGap: an entry is missing or out of order. The message is dropped as a
	// whole: the peer is asked again from the View's own position, and says
	// "bootstrap required" if it no longer has what follows.
	ErrGap = errors.New("gap in the tail")
	// ErrSilent: nothing was taken from the stream for so long that the message
	// may have waited, here or on the way: because the peer, the network or this
	// process stood still. What it carries is applied, but it does not vouch for
	// the present, and neither does what waits behind it: a new stream does.
	ErrSilent = errors.New("tail was silent")
	// ErrRestored: the cluster was restored from a backup and has a higher
	// incarnation. Its log is another one: a snapshot is needed.
	ErrRestored = errors.New("cluster has a higher incarnation")
	// ErrPoison: an entry cannot be applied by this software. The View stops in
	// front of it, keeps being served as lagging, and goes on only from a
	// snapshot behind it that this software can read: guessing is divergence.
	ErrPoison = errors.New("entry cannot be applied")
	// ErrSnapshot: a snapshot is damaged, incomplete, or not newer than the View.
	// It is dropped as a whole and another one is loaded.
	ErrSnapshot = errors.New("snapshot cannot be used")
)

// CoreConfig holds the bounds of a Core.
type CoreConfig struct {
	// ClusterID is the cluster to follow. 0: the first one that answers.
	ClusterID uint64
	// UnavailableAfter is how long no root peer with a leader may be heard before
	// the root counts as unavailable. Default 1 s.
	UnavailableAfter time.Duration
	// SilentAfter is how long a tail may say nothing before it counts as dead.
	// Peers give a sign of life every 100 ms. Default 500 ms.
	SilentAfter time.Duration
}

func (c CoreConfig) withDefaults() CoreConfig {
	if c.UnavailableAfter == 0 {
		c.UnavailableAfter = time.Second
	}
	if c.SilentAfter == 0 {
		c.SilentAfter = 500 * time.Millisecond
	}
	return c
}

// Core turns messages from root peers into Views. It has no goroutine and no
// clock: one goroutine at a time calls it, and passes instants that never
// decrease. The same calls give the same Views.
type Core struct {
	cfg CoreConfig

	work    *state.State // applied to; readers only ever see forks of it
	moved   bool         // work differs from the state of view
	applied state.Applied
	view    *View // published last
	loading *loading

	// What is known of the root.
	clusterID  uint64
	known      state.Token
	heardAt    clock.Instant // last message of this stream, or its start
	first      bool          // no message of this stream yet
	transit    transit       // of this stream
	leaderless time.Duration // as last reported
	quorumAt   clock.Instant
	levelAt    clock.Instant
	// target is what was known to be committed when the root was first heard;
	// whole: the view has reached it once.
	target        state.Token
	whole         bool
	sync          coordinatorv1.SyncHealth
	needsSnapshot bool
	poison        state.Token // entry that could not be applied; zero: none
}

// NewCore returns a Core whose View has no position yet.
func NewCore(cfg CoreConfig) *Core {
	c := &Core{
		cfg:       cfg.withDefaults(),
		work:      state.New(),
		clusterID: cfg.ClusterID,
		sync:      coordinatorv1.SyncHealth_SYNC_HEALTH_DISCONNECTED,
	}
	c.publish()
	return c
}

// View returns the View published last; never nil.
func (c *Core) View() *View { return c.view }

// NeedsSnapshot says whether the next thing to ask a root for is a snapshot,
// not the tail.
func (c *Core) NeedsSnapshot() bool { return c.needsSnapshot }

// OnConnected notes that a tail behind View().Token was asked for.
func (c *Core) OnConnected(now clock.Instant) {
	c.abortLoading()
	c.heardAt, c.first, c.transit = now, true, transit{}
	c.sync = coordinatorv1.SyncHealth_SYNC_HEALTH_STREAMING
	c.publish()
}

// OnDisconnected notes that no stream is open. The View stays as it is.
func (c *Core) OnDisconnected(clock.Instant) {
	c.abortLoading()
	c.sync = coordinatorv1.SyncHealth_SYNC_HEALTH_DISCONNECTED
	c.publish()
}

// OnBootstrapRequired notes that a peer no longer has the entry that follows.
func (c *Core) OnBootstrapRequired(clock.Instant) {
	c.needsSnapshot = true
	c.publish()
}

// OnKnown notes a position that a root peer gave by another way, such as a read
// index.
func (c *Core) OnKnown(token state.Token) {
	if c.known.Compare(token) < 0 {
		c.raiseKnown(token)
		c.publish()
	}
}

// OnTail takes one message of the tail. The Batch is what it changed, also with
// ErrSilent, and when ErrPoison ends it early; with any other error it is empty
// and nothing was applied.
func (c *Core) OnTail(resp *rootv1.TailResponse, now clock.Instant) (Batch, error) {
	if err := c.admit(resp); err != nil {
		c.publish()
		return Batch{}, err
	}
	entries := resp.GetEntries()
	for len(entries) > 0 && entries[0].GetIndex() <= c.work.Token().Index {
		entries = entries[1:] // a repetition
	}
	batch, err := c.apply(entries)
	c.hear(resp)
	if quiet := now.Sub(c.heardAt); quiet <= c.cfg.SilentAfter || c.first {
		c.vouch(resp, now)
	} else if err == nil {
		err = fmt.Errorf("%w for %s", ErrSilent, quiet)
	}
	c.publish()
	batch.Token, batch.Known, batch.Era = c.view.Token, c.view.Known, c.view.Era
	return batch, err
}

// admit judges a message before anything of it is applied.
func (c *Core) admit(resp *rootv1.TailResponse) error {
	at := c.work.Token()
	if c.clusterID != 0 && resp.GetClusterId() != c.clusterID {
		return fmt.Errorf("%w: id %016x, following %016x", ErrOtherCluster, resp.GetClusterId(), c.clusterID)
	}
	// A peer that has just started may not know its incarnation yet.
	if resp.GetIncarnation() != 0 && resp.GetIncarnation() < at.Incarnation {
		return fmt.Errorf("%w: incarnation %d, following %d", ErrOtherCluster, resp.GetIncarnation(), at.Incarnation)
	}
	if at.Incarnation != 0 && resp.GetIncarnation() > at.Incarnation {
		c.needsSnapshot = true
		c.raiseKnown(state.Token{Incarnation: resp.GetIncarnation(), Index: resp.GetCommitIndex()})
		return fmt.Errorf("%w: %d, following %d", ErrRestored, resp.GetIncarnation(), at.Incarnation)
	}
	return checkOrder(at, resp.GetEntries())
}

// checkOrder says whether entries continue, or repeat and continue, a log that
// ends at a token.
func checkOrder(at state.Token, entries []*rootv1.TailEntry) error {
	for i, e := range entries {
		next := at.Index + 1
		if i > 0 {
			next = entries[i-1].GetIndex() + 1
		}
		inOrder := e.GetIndex() == next || i == 0 && e.GetIndex() < next
		if !inOrder || e.GetIndex() == 0 {
			return fmt.Errorf("%w: entry %d where %d is due", ErrGap, e.GetIndex(), next)
		}
		if e.GetIndex() > at.Index && e.GetTerm() < at.Term || i > 0 && e.GetTerm() < entries[i-1].GetTerm() {
			return fmt.Errorf("%w: entry %d has term %d, the one before a higher one", ErrGap, e.GetIndex(), e.GetTerm())
		}
	}
	return nil
}

// apply applies entries that follow the state's token, up to the first that
// cannot be.
func (c *Core) apply(entries []*rootv1.TailEntry) (Batch, error) {
	if len(entries) == 0 {
		return Batch{}, nil
	}
	batch := Batch{first: entries[0].GetIndex(), ends: make([]uint32, 0, len(entries))}
	c.applied.Changes = nil // the batch before keeps its own
	for _, e := range entries {
		c.applied.Results = c.applied.Results[:0]
		if err := c.work.ApplyEntry(e.GetTerm(), e.GetIndex(), e.GetEntry(), &c.applied); err != nil {
			c.needsSnapshot = true
			c.poison = state.Token{Incarnation: c.work.Token().Incarnation, Term: e.GetTerm(), Index: e.GetIndex()}
			batch.Changes = c.applied.Changes
			return batch, fmt.Errorf("%w: index %d: %w", ErrPoison, e.GetIndex(), err)
		}
		c.moved = true
		batch.ends = append(batch.ends, uint32(len(c.applied.Changes)))
	}
	batch.Changes = c.applied.Changes
	return batch, nil
}

// hear notes what a message tells of the root, however old it is.
func (c *Core) hear(resp *rootv1.TailResponse) {
	c.clusterID = resp.GetClusterId()
	c.leaderless = millis(resp.GetLeaderlessMillis())
	c.sync = coordinatorv1.SyncHealth_SYNC_HEALTH_STREAMING
	c.raiseKnown(state.Token{Incarnation: c.work.Token().Incarnation, Index: resp.GetCommitIndex()})
}

// vouch notes what a message that was sent just now tells of the present, after
// its entries were applied.
func (c *Core) vouch(resp *rootv1.TailResponse, now clock.Instant) {
	sent := c.transit.sentAt(resp.GetSentMicros(), now)
	if c.first && now.Sub(c.heardAt) > c.cfg.SilentAfter {
		sent = c.heardAt // it may have waited since the stream was opened
	}
	c.heardAt, c.first = now, false
	c.hearQuorum(sent)
	// A peer that knows less than the view does not vouch for it.
	if at := c.work.Token(); at.Compare(c.known) >= 0 && resp.GetCommitIndex() >= at.Index {
		c.levelAt = max(c.levelAt, sent.Add(-c.leaderless))
	}
}

// millis is a duration from the wire; what is beyond reason is cut.
func millis(n uint64) time.Duration {
	return time.Duration(min(n, 1<<40)) * time.Millisecond
}

// hearQuorum notes that a peer is alive now and had a leader when it last said.
func (c *Core) hearQuorum(now clock.Instant) {
	if at := now.Add(-c.leaderless); at > c.quorumAt {
		c.quorumAt = at
	}
}

func (c *Core) raiseKnown(token state.Token) {
	if c.known.Compare(token) < 0 {
		c.known = token
	}
}

// publish makes the View of the present. A State that did not change is shared
// with the View before.
func (c *Core) publish() {
	old, token := c.view, c.work.Token()
	v := &View{
		Token: token, Known: c.known, LevelAt: c.levelAt, QuorumAt: c.quorumAt, Sync: c.sync,
		NeedsSnapshot: c.needsSnapshot, ClusterID: c.clusterID, unavailableAfter: c.cfg.UnavailableAfter,
	}
	if token.Compare(c.known) >= 0 {
		v.Known = token
	}
	if c.target.Index == 0 {
		c.target = c.known
	}
	c.whole = c.whole || c.target.Index != 0 && token.Compare(c.target) >= 0
	v.whole = c.whole
	if old != nil && !c.moved {
		v.State, v.Era, v.token = old.State, old.Era, old.token
	} else {
		c.moved = false
		v.State, v.token = c.work.Fork(), token.Proto()
		v.Era = state.Era(v.State.Tenure().GetEra())
	}
	switch {
	case v.Known == token:
		v.known = v.token
	case old != nil && old.Known == v.Known:
		v.known = old.known
	default:
		v.known = v.Known.Proto()
	}
	c.view = v
}
