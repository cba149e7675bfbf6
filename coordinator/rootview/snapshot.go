package rootview

import (
	"fmt"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// loading is a snapshot on its way in.
type loading struct {
	at    state.Token
	state *state.Restoring
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
	c.abortLoading()
	if err == nil {
		err = c.adopt(restored)
	}
	c.publish()
	if err != nil {
		return Batch{}, false, err
	}
	return Batch{Snapshot: true, Token: c.view.Token, Known: c.view.Known, Era: c.view.Era}, true, nil
}

// feedLoading takes a chunk's records.
func (c *Core) feedLoading(chunk *rootv1.SnapshotChunk) error {
	at := state.TokenFromProto(chunk.GetToken())
	if c.loading == nil {
		if err := c.wanted(at); err != nil {
			return err
		}
		c.loading = &loading{at: at, state: state.NewRestoring()}
	}
	if want := c.loading.at; at != want {
		return fmt.Errorf("%w: chunk of %s in a snapshot of %s", ErrSnapshot, at, want)
	}
	part, err := state.PartOf(chunk.GetRecords())
	if err == nil {
		err = c.loading.state.Add(part)
	}
	if err != nil {
		return fmt.Errorf("%w: at %s: %w", ErrSnapshot, at, err)
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
	if n := l.state.Records(); n != chunk.GetRecordCount() {
		return nil, fmt.Errorf("%w: at %s: %d records, %d promised", ErrSnapshot, l.at, n, chunk.GetRecordCount())
	}
	st, err := l.state.Finish(l.at, chunk.GetStateHash())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return st, nil
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

// abortLoading forgets an unfinished snapshot.
func (c *Core) abortLoading() { c.loading = nil }
