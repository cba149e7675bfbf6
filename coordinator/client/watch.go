package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
	"unsafe"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Batch is one message of a watch: a batch of changes, or a part of one when
// they are too many for a message. Applied as a whole, from First to Last, a
// batch takes a reader from one position to the next. A batch without changes is
// a sign of life.
//
// A batch with Snapshot set is the whole of what is watched: what is not in it
// does not exist. It may come at any time, and replaces everything.
type Batch struct {
	*coordinatorv1.WatchRegionsResponse
	// First is set on the first part of a batch: parts of another one before it
	// that did not come to its Last count for nothing.
	First bool
	// Last is set on the last part.
	Last bool

	cluster uint64
	asOf    time.Time
}

// AsOf is when the position that the reader stands at with this batch was the newest
// that there was, at the latest: by the clock of this process, from before the
// coordinator was called, so that it does not rise while one of the two stands
// still. The zero Time: not known.
func (b Batch) AsOf() time.Time { return b.asOf }

// Position is where a reader stands who has applied everything up to the last
// batch that is whole: a watch behind it loses nothing. The zero Position: there
// is none yet.
func (b Batch) Position() Position {
	at := rooted.TokenFromProto(b.GetToken())
	if at == (rooted.Token{}) {
		return Position{}
	}
	return Position{Cluster: b.cluster, Token: at}
}

// Known is the newest position that the coordinator knows to be committed.
func (b Batch) Known() rooted.Token {
	return rooted.TokenFromProto(b.GetDisclosure().GetCurrentRootToken())
}

// WithMembers asks a watch for members beside regions and keyspaces.
func WithMembers() ReadOption { return func(r *read) { r.members = true } }

// WatchRegions yields what changes behind a position, without a gap and without
// repetition, until the context ends; for the zero Position everything first, as
// a snapshot. Options say what and how fresh: In a keyspace (without it all),
// WithMembers, AtLeast and Strong for the beginning, and Bounded for as long as
// the watch lasts.
//
// When a coordinator breaks off, brings nothing for Config.WatchSilence, or has
// not been level with the root for that long, the watch goes on at the next one
// from the last position. When what follows it is no longer retained a snapshot
// comes, which is never behind the position. The sequence ends with an error: the context's when that ended,
// or one that will not go away: ErrInvalidRequest; ErrNotFound, when it begins
// without a position and there is no such keyspace; ErrClusterMismatch, when the
// position is of another cluster, also of the one before a restore from a backup:
// it is of no more use, and the zero Position begins anew; ErrRootLagExceeded, when no coordinator is
// Bounded as asked.
func (c *Client) WatchRegions(ctx context.Context, after Position, opts ...ReadOption) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		w := &watch{c: c, read: readOf(opts), cluster: after.Cluster, at: after.Token, yield: yield}
		if err := checkLookup("WatchRegions", w.read.keyspace); err != nil {
			yield(Batch{}, err)
			return
		}
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
			if w.walk.over(ctx) != nil {
				continue // the caller ended it: what that did to the stream is no news
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

// errStale is a coordinator that has been cut off from the root for long.
var errStale = fmt.Errorf("%w: it has not been level with the root for long", errUnfit)

// watch is one run of WatchRegions.
type watch struct {
	c       *Client
	read    read
	cluster uint64 // that at is of; 0: not known
	yield   func(Batch, error) bool
	walk    walk
	at      rooted.Token // reached by the reader
	inside  bool         // a batch, on this stream: a snapshot or not
	whole   bool
	movedAt time.Time // left a coordinator that was cut off

	called time.Time // when the stream was opened
	// asOf is Batch.AsOf of the last one. What a coordinator says of itself is of a
	// position that the reader may only come to: ahead, which was the newest at aheadOf.
	asOf, aheadOf time.Time
	ahead         rooted.Token
}

// follow watches at one coordinator until the stream breaks.
func (w *watch) follow(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.c.ctx, func() { cancel(ErrClosed) })()
	if w.cluster != 0 {
		if err := w.sameCluster(ctx, e); err != nil {
			return err
		}
	}
	req := &coordinatorv1.WatchRegionsRequest{Keyspace: w.read.keyspace, Read: w.read.options, Members: w.read.members}
	if w.at != (rooted.Token{}) {
		req.After = w.at.Proto()
	}
	w.inside = false
	guard := time.AfterFunc(w.c.cfg.WatchSilence, func() { cancel(errSilent) })
	defer guard.Stop()
	w.called, w.ahead = time.Now(), rooted.Token{}
	stream, err := e.rpc.WatchRegions(ctx, req)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		guard.Stop()
		if err != nil {
			return broken(ctx, err)
		}
		if err := w.c.accept(e, m); err != nil {
			return err
		}
		if err := w.fits(m); err != nil {
			return err
		}
		w.walk.reset(w.c, w.walk.op)
		w.walk.succeeded(e)
		if !w.give(m) {
			return errStopped
		}
		if ctx.Err() != nil {
			return ctx.Err() // nothing is shown after the caller's end
		}
		if w.stale(m) {
			return errStale
		}
		guard.Reset(w.c.cfg.WatchSilence)
	}
}

// sameCluster finds out whether the position is of the cluster at e.
func (w *watch) sameCluster(ctx context.Context, e *endpoint) error {
	if err := w.c.nameCluster(ctx, e); err != nil {
		return err
	}
	return w.c.checkPosition(Position{Cluster: w.cluster, Token: w.at})
}

// fits refuses what would take the reader back, or out of the middle of a batch.
func (w *watch) fits(m *coordinatorv1.WatchRegionsResponse) error {
	to := rooted.TokenFromProto(m.GetToken())
	if m.GetSnapshot() && m.GetPartial() {
		to = rooted.TokenFromProto(m.GetDisclosure().GetServedRootToken())
	}
	if w.inside && m.GetSnapshot() != w.whole {
		return fmt.Errorf("%w: a batch broke off", errUnfit)
	}
	if to.Compare(w.at) < 0 {
		return fmt.Errorf("%w: it is at %s, the reader at %s", errUnfit, to, w.at)
	}
	return nil
}

// give yields a message and moves the position.
func (w *watch) give(m *coordinatorv1.WatchRegionsResponse) bool {
	b := Batch{WatchRegionsResponse: m, First: !w.inside, Last: !m.GetPartial(), cluster: w.cluster}
	if b.Last {
		b.cluster = w.c.cluster.Load()
	}
	if b.First && m.GetSnapshot() && w.at != (rooted.Token{}) {
		w.c.count.watchRestarts.Add(1)
	}
	w.inside, w.whole = !b.Last, m.GetSnapshot()
	if b.Last {
		w.at, w.cluster = rooted.TokenFromProto(m.GetToken()), b.cluster
		if w.read.session != nil {
			w.read.session.Saw(w.at)
		}
	}
	w.age(m)
	b.asOf = w.asOf
	return w.yield(b, nil)
}

// age finds out how old what the reader has is.
func (w *watch) age(m *coordinatorv1.WatchRegionsResponse) {
	d := m.GetDisclosure()
	if m.GetSentMillis() != 0 && w.ahead == (rooted.Token{}) {
		// What it says is a millisecond old at most.
		since := time.Duration(min(m.GetSentMillis()-1, 1<<40))*time.Millisecond - time.Duration(min(d.GetRootLagMillis(), 1<<40))*time.Millisecond
		w.ahead, w.aheadOf = rooted.TokenFromProto(d.GetServedRootToken()), w.called.Add(since-time.Millisecond)
		if now := time.Now(); w.aheadOf.After(now) {
			w.aheadOf = now
		}
	}
	if w.ahead != (rooted.Token{}) && w.at.Compare(w.ahead) >= 0 {
		if w.aheadOf.After(w.asOf) {
			w.asOf = w.aheadOf
		}
		w.ahead = rooted.Token{}
	}
}

// stale says whether another coordinator should be tried because this one is
// cut off from the root. When all are, it changes no more often than silence
// would make it.
func (w *watch) stale(m *coordinatorv1.WatchRegionsResponse) bool {
	lag := time.Duration(min(m.GetDisclosure().GetRootLagMillis(), 1<<40)) * time.Millisecond
	if w.inside || lag < w.c.cfg.WatchSilence || time.Since(w.movedAt) < w.c.cfg.WatchSilence || len(*w.c.ends.list.Load()) == 1 {
		return false
	}
	w.movedAt = time.Now()
	return true
}

// broken says how a stream ended.
func broken(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the stream was ended")
	}
	return err
}

// changeset is one whole batch of a watch.
type changeset struct {
	snapshot  bool
	at        Position
	regions   []regionChange
	keyspaces []keyspaceChange
	members   []memberChange
	bytes     int // of regions
	// skipped counts regions above the limit.
	skipped int
	asOf    time.Time
}

type regionChange struct {
	region  *rooted.Region
	removed bool
}

type keyspaceChange struct {
	keyspace *rootv1.Keyspace
	removed  bool
}

type memberChange struct {
	member  Member
	removed bool
	record  *rootv1.Member
}

// take puts a message to those before it, and returns the batch when that is
// whole; nil: it is not. At most limit regions of a snapshot are kept, and of bytes.
func (n *changeset) take(b Batch, limit, bytes int) *changeset {
	if b.First {
		*n = changeset{snapshot: b.GetSnapshot()}
	}
	for _, c := range b.GetChanges() {
		if n.snapshot && (len(n.regions) >= limit || n.bytes > bytes) {
			n.skipped++
			continue
		}
		r := rooted.RegionFromProto(c.GetRegion())
		n.regions = append(n.regions, regionChange{r, c.GetRemoved()})
		n.bytes += sizeOf(r)
	}
	for _, c := range b.GetKeyspaces() {
		n.keyspaces = append(n.keyspaces, keyspaceChange{c.GetKeyspace(), c.GetRemoved()})
	}
	for _, c := range b.GetMembers() {
		n.members = append(n.members, memberChange{memberOf(c.GetMember()), c.GetRemoved(), c.GetMember()})
	}
	if !b.Last {
		return nil
	}
	whole := *n
	*n = changeset{}
	whole.at, whole.asOf = b.Position(), b.asOf
	return &whole
}

// sizeOf is about how many bytes a region takes in a copy of its own, with its place
// in the tables that lead to it.
func sizeOf(r *rooted.Region) int {
	if r == nil {
		return 0
	}
	const index = 2*int(unsafe.Sizeof(entry{})) + 64
	n := index + int(unsafe.Sizeof(*r)) + len(r.Start) + len(r.End) + len(r.Frontier)
	for i := range r.Owners {
		n += int(unsafe.Sizeof(r.Owners[i])) + len(r.Owners[i].Member)
	}
	return n
}

// takes says whether a member may be given regions of a keyspace.
func takes(m *rootv1.Member, keyspace string) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && (len(m.GetKeyspaces()) == 0 || slices.Contains(m.GetKeyspaces(), keyspace))
}

func memberOf(m *rootv1.Member) Member {
	return Member{ID: rooted.MemberID(m.GetId()), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation(), Left: rooted.HasLeft(m)}
}

// Update is what one batch of a watch did to a Cache or a Mirror.
type Update struct {
	// At is where the copy stands now.
	At Position
	// Whole is set when everything was replaced by a snapshot: Regions is empty,
	// and what there is now is in All.
	Whole bool
	// Regions that came, changed or went.
	Regions []RegionUpdate
}

// RegionUpdate is what became of a region. Old is nil for one that is new, New
// for one that is gone.
type RegionUpdate struct{ Old, New *rooted.Region }
