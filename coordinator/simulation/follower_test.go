package simulation

import (
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	connectTimeout  = 300 * time.Millisecond
	leaderlessAfter = 200 * time.Millisecond
	chunkRecords    = 5
)

// follower is what rootview.Follower does, around the same Core.
type follower struct {
	n    *node
	core *rootview.Core
	link *roottest.Link
	// stream is the one open; attempt numbers them.
	stream   *roottest.Stream
	attempt  int
	opened   clock.Instant
	heard    clock.Instant
	behind   clock.Instant
	reached  uint64
	stuck    clock.Instant
	failures int
	// waiting are reads that wait for a position.
	waiting []waiting
	regions map[state.RegionID]*state.Region
	// previous is the view before the present one.
	previous *rootview.View
}

type waiting struct {
	at state.Token
	fn func()
}

var (
	errSilent     = errors.New("nothing heard")
	errLeaderless = errors.New("no leader")
	errBehind     = errors.New("behind the view")
	errStuck      = errors.New("does not go on")
)

func (f *follower) start(n *node) {
	*f = follower{n: n, core: rootview.NewCore(rootview.CoreConfig{
		ClusterID: roottest.ClusterID, UnavailableAfter: unavailableAfter, SilentAfter: silentAfter,
	}), link: n.newLink()}
	f.connect()
}

func (f *follower) stop() {
	f.link.Close()
	if f.stream != nil {
		f.stream.Close()
	}
	f.core.OnDisconnected(f.n.now()) // ends the coroutine of a snapshot
}

func (f *follower) connect() {
	now := f.n.now()
	f.attempt++
	f.opened, f.heard, f.behind, f.stuck = now, now, 0, 0
	attempt := f.attempt
	if f.core.NeedsSnapshot() {
		f.core.BeginSnapshot(now)
		f.stream = f.link.Snapshot(chunkRecords, func(chunk *rootv1.SnapshotChunk, err error) {
			f.n.then(func() { f.onChunk(attempt, chunk, err) })()
		})
	} else {
		f.core.OnConnected(now)
		f.stream = f.link.Tail(f.core.View().Token, func(resp *rootv1.TailResponse, err error) {
			f.n.then(func() { f.onTail(attempt, resp, err) })()
		})
	}
	f.watch(attempt, connectTimeout)
}

// watch gives a stream up that says nothing.
func (f *follower) watch(attempt int, patience time.Duration) {
	heard := f.heard
	f.n.after(patience, func() {
		if f.attempt != attempt {
			return
		}
		if f.heard == heard {
			f.end(errSilent)
			return
		}
		f.watch(attempt, silentAfter)
	})
}

// end drops the stream and takes another peer a while later.
func (f *follower) end(error) {
	f.attempt++
	f.stream.Close()
	f.core.OnDisconnected(f.n.now())
	f.publish(rootview.Batch{})
	f.link.Rotate(0)
	pause := min(5*time.Millisecond<<min(f.failures, 6), 100*time.Millisecond)
	f.failures++
	f.n.after(f.n.r.Between(pause/2, pause), f.connect)
}

func (f *follower) onTail(attempt int, resp *rootv1.TailResponse, err error) {
	if f.attempt != attempt {
		return
	}
	now := f.n.now()
	f.heard = now
	if err != nil {
		if reason.Of(err) == rootv1.Reason_REASON_BOOTSTRAP_REQUIRED {
			f.n.r.Fault("bootstrap required")
			f.core.OnBootstrapRequired(now)
		} else if !errors.Is(err, roottest.ErrReset) {
			f.n.r.fail("Tail: %s: %w", f.n.name, err)
		}
		f.end(err)
		return
	}
	f.stream.Taken()
	before := f.core.View().Token
	if len(resp.GetEntries()) > 0 {
		f.previous = f.core.View()
	}
	batch, err := f.core.OnTail(f.spoilt(resp), now)
	f.checkMessage(before, resp, err)
	f.publish(batch)
	if err == nil {
		err = f.worthIt(resp, now)
	}
	if err != nil {
		f.end(err)
		return
	}
	f.failures = 0
}

// spoilt is the message, in the variant without one of its entries and
// renumbered so that nobody notices.
func (f *follower) spoilt(resp *rootv1.TailResponse) *rootv1.TailResponse {
	n := len(resp.GetEntries())
	if f.n.r.k.variant != tailSkipsEntry || n == 0 || !f.n.r.Chance(0.02) {
		return resp
	}
	entries := append([]*rootv1.TailEntry(nil), resp.Entries...)
	last := entries[n-1]
	entries[n-1] = &rootv1.TailEntry{Term: last.Term, Index: last.Index}
	return &rootv1.TailResponse{
		Entries: entries, CommitIndex: resp.CommitIndex, LeaderId: resp.LeaderId,
		LeaderlessMillis: resp.LeaderlessMillis, ClusterId: resp.ClusterId, Incarnation: resp.Incarnation,
	}
}

// checkMessage: a message is applied as a whole or not at all, and a stream that
// keeps its order never has a gap.
func (f *follower) checkMessage(before state.Token, resp *rootv1.TailResponse, err error) {
	after, r := f.core.View().Token, f.n.r
	if err != nil && !errors.Is(err, rootview.ErrSilent) {
		r.fail("Tail: %s at %s: %w", f.n.name, before, err)
		return
	}
	want := before.Index
	if n := len(resp.GetEntries()); n > 0 {
		want = max(want, resp.Entries[n-1].GetIndex())
	}
	if after.Index != want {
		r.fail("Tail: %s went from %s to %s, the message ends at %d", f.n.name, before, after, want)
	}
}

// worthIt is the Follower's judgement of a peer.
func (f *follower) worthIt(resp *rootv1.TailResponse, now clock.Instant) error {
	if time.Duration(resp.GetLeaderlessMillis())*time.Millisecond > leaderlessAfter && now.Sub(f.opened) > leaderlessAfter {
		return errLeaderless
	}
	switch {
	case resp.GetCommitIndex() >= f.core.View().Token.Index:
		f.behind = 0
	case f.behind == 0:
		f.behind = now
	case now.Sub(f.behind) > leaderlessAfter:
		return errBehind
	}
	v := f.core.View()
	switch known := max(v.Known.Index, resp.GetCommitIndex()); {
	case v.Token.Index != f.reached || known <= v.Token.Index:
		f.reached, f.stuck = v.Token.Index, 0
	case f.stuck == 0:
		f.stuck = now
	case now.Sub(f.stuck) > leaderlessAfter:
		return errStuck
	}
	return nil
}

func (f *follower) onChunk(attempt int, chunk *rootv1.SnapshotChunk, err error) {
	if f.attempt != attempt {
		return
	}
	now := f.n.now()
	f.heard = now
	if err != nil {
		f.end(err)
		return
	}
	f.stream.Taken()
	batch, done, err := f.core.OnSnapshotChunk(chunk, now)
	f.publish(batch)
	switch {
	case err != nil:
		if !errors.Is(err, rootview.ErrSnapshot) {
			f.n.r.fail("Tail: %s: %w", f.n.name, err)
		}
		f.end(err)
	case done:
		f.n.r.count.snapshots++
		f.failures = 0
		f.attempt++
		f.stream.Close()
		f.core.OnDisconnected(now)
		f.connect()
	}
}

// publish makes the core's view known inside the process.
func (f *follower) publish(b rootview.Batch) {
	v := f.core.View()
	f.follow(b, v)
	f.n.r.shows(f.n, b, v)
	if v.Loaded() {
		f.n.holder.OnView(tenure.Authority{Tenure: v.State.Tenure(), Handover: newest(v.State.Handovers()), Index: v.Token.Index})
	}
	f.n.desk.onView(b, v)
	ready := f.waiting
	f.waiting = nil
	for _, w := range ready {
		if w.at.Compare(v.Token) <= 0 {
			w.fn()
		} else {
			f.waiting = append(f.waiting, w)
		}
	}
}

// follow is a watcher: what it builds from the changes must be what the view has.
func (f *follower) follow(b rootview.Batch, v *rootview.View) {
	if b.Empty() {
		return
	}
	if b.Snapshot || f.regions == nil {
		f.regions = make(map[state.RegionID]*state.Region)
		v.State.Keyspaces("", func(k *rootv1.Keyspace) bool {
			v.State.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
				f.regions[r.ID] = r
				return true
			})
			return true
		})
	}
	for _, c := range b.Changes {
		switch {
		case c.Kind != state.ChangeRegion:
		case c.Removed:
			delete(f.regions, c.Region.ID)
		default:
			f.regions[c.Region.ID] = c.Region
		}
	}
	f.n.r.views = append(f.n.r.views, sample{
		node: f.n.name, incarnation: f.n.incarnation, token: v.Token, hash: v.State.Hash(), snapshot: b.Snapshot,
		regions: len(f.regions), rooted: v.State.RegionCount(),
	})
}

func newest(handovers []*rootv1.Handover) *rootv1.Handover {
	if len(handovers) == 0 {
		return nil
	}
	return handovers[len(handovers)-1]
}

// await calls fn when the view is at a position.
func (f *follower) await(at state.Token, fn func()) {
	if f.core.View().Token.Compare(at) >= 0 {
		fn()
		return
	}
	f.waiting = append(f.waiting, waiting{at, fn})
}
