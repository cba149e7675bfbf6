package rootview

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// loading is a snapshot on its way in. state.Restore pulls records; chunks are
// pushed: Restore runs as a coroutine that is resumed with every chunk, so that
// no more than one chunk is ever held here besides the state that it becomes.
type loading struct {
	at      state.Token
	records []*rootv1.Record // of the chunk at hand, not yet taken
	taken   uint64
	last    bool // the chunk at hand is the last

	resume func() (struct{}, bool)
	stop   func()

	// What Restore returned; valid when resume returned false.
	restored *state.State
	err      error
}

var errStopped = errors.New("stopped")

func newLoading(at state.Token) *loading {
	l := &loading{at: at}
	l.resume, l.stop = iter.Pull(func(yield func(struct{}) bool) {
		l.restored, l.err = state.Restore(at, func() (*rootv1.Record, error) { return l.next(yield) })
	})
	return l
}

func (l *loading) next(yield func(struct{}) bool) (*rootv1.Record, error) {
	for len(l.records) == 0 {
		if l.last {
			return nil, io.EOF
		}
		if !yield(struct{}{}) {
			return nil, errStopped
		}
	}
	r := l.records[0]
	l.records[0], l.records = nil, l.records[1:]
	l.taken++
	return r, nil
}

// BeginSnapshot notes that a snapshot was asked for. The View stays as it is
// until the snapshot is complete.
func (c *Core) BeginSnapshot(now clock.Instant) {
	c.abortLoading()
	c.heardAt = now
	c.sync = coordinatorv1.SyncHealth_SYNC_HEALTH_BOOTSTRAPPING
	c.publish()
}

// OnSnapshotChunk takes one chunk. done says that the snapshot was complete and
// right, and is the View now; the Batch then says so to watchers. After an
// error, always an ErrSnapshot or ErrOtherCluster, nothing is left of it.
func (c *Core) OnSnapshotChunk(chunk *rootv1.SnapshotChunk, now clock.Instant) (batch Batch, done bool, err error) {
	c.heardAt = now
	c.hearQuorum(now)
	if err := c.feedLoading(chunk); err != nil {
		c.abortLoading()
		c.publish()
		return Batch{}, false, err
	}
	if !chunk.GetLast() {
		c.publish()
		return Batch{}, false, nil
	}
	restored, err := c.loading.finish(chunk)
	if err == nil {
		err = c.adopt(restored)
	}
	c.abortLoading()
	c.publish()
	if err != nil {
		return Batch{}, false, err
	}
	return Batch{Snapshot: true, Token: c.view.Token, Known: c.view.Known, Era: c.view.Era}, true, nil
}

// feedLoading hands a chunk's records to Restore.
func (c *Core) feedLoading(chunk *rootv1.SnapshotChunk) error {
	at := state.TokenFromProto(chunk.GetToken())
	if c.loading == nil {
		if err := c.wanted(at); err != nil {
			return err
		}
		c.loading = newLoading(at)
	}
	l := c.loading
	if at != l.at {
		return fmt.Errorf("%w: chunk of %s in a snapshot of %s", ErrSnapshot, at, l.at)
	}
	l.records, l.last = chunk.GetRecords(), chunk.GetLast()
	if _, running := l.resume(); running {
		return nil
	}
	if l.err != nil {
		return fmt.Errorf("%w: at %s: %w", ErrSnapshot, at, l.err)
	}
	if !l.last {
		return fmt.Errorf("%w: ends before its last chunk", ErrSnapshot)
	}
	return nil
}

// wanted says whether a snapshot of a position is of use: at or behind the
// View's, and behind an entry that could not be applied.
func (c *Core) wanted(at state.Token) error {
	if have := c.work.Token(); at.Index == 0 || at.Compare(have) < 0 {
		return fmt.Errorf("%w: it is of %s, the view at %s already", ErrSnapshot, at, have)
	}
	if at.Compare(c.poison) < 0 {
		return fmt.Errorf("%w: it is of %s, and entry %s could not be applied", ErrSnapshot, at, c.poison)
	}
	return nil
}

// finish checks the whole against what the last chunk promises.
func (l *loading) finish(chunk *rootv1.SnapshotChunk) (*state.State, error) {
	switch {
	case l.restored == nil:
		return nil, fmt.Errorf("%w: at %s: it did not end with its last chunk", ErrSnapshot, l.at)
	case l.taken != chunk.GetRecordCount():
		return nil, fmt.Errorf("%w: at %s: %d records, %d promised", ErrSnapshot, l.at, l.taken, chunk.GetRecordCount())
	case l.restored.Hash() != chunk.GetStateHash():
		return nil, fmt.Errorf("%w: at %s: hash %016x, %016x promised", ErrSnapshot, l.at, l.restored.Hash(), chunk.GetStateHash())
	}
	return l.restored, nil
}

// adopt makes a restored state the one to go on from.
func (c *Core) adopt(restored *state.State) error {
	id := restored.Cluster().GetClusterId()
	if id == 0 {
		return fmt.Errorf("%w: at %s: the peer has not got as far as the cluster's identity", ErrSnapshot, restored.Token())
	}
	if c.clusterID != 0 && id != c.clusterID {
		return fmt.Errorf("%w: id %016x, following %016x", ErrOtherCluster, id, c.clusterID)
	}
	c.clusterID = id
	c.work, c.moved = restored, true
	c.needsSnapshot, c.poison = false, state.Token{}
	return nil
}

// abortLoading ends the coroutine of an unfinished snapshot.
func (c *Core) abortLoading() {
	if c.loading == nil {
		return
	}
	c.loading.stop()
	c.loading = nil
}
