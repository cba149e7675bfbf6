package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/meta/root/restore"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// CheckpointTask is a checkpoint to be written, in the background if one likes.
type CheckpointTask struct {
	Meta  storage.CheckpointMeta
	state *state.State
}

// Write writes the checkpoint. It may overlap with Turns. It gives up with the
// error of stopped, which is asked from time to time.
func (t *CheckpointTask) Write(log Checkpoints, stopped func() error) *Checkpointed {
	n := 0
	err := log.WriteCheckpoint(t.Meta, func(yield func([]byte) error) error {
		return t.state.EncodedRecords(func(r []byte) error {
			if n++; n%256 == 0 {
				if err := stopped(); err != nil {
					return err
				}
			}
			return yield(r)
		})
	})
	return &Checkpointed{Meta: t.Meta, Err: err}
}

// Checkpointed is how a CheckpointTask ended.
type Checkpointed struct {
	Meta storage.CheckpointMeta
	Err  error
}

// checkpoints decide when to write one and what to keep of the log.
type checkpoints struct {
	every, everyBytes   uint64
	retain, retainBytes uint64
	// entries and bytes applied since the last checkpoint began.
	entries, bytes uint64
	writing        bool
	// dropped says that the disk had no room for the last one; the next is tried at
	// the tick retryAt.
	dropped bool
	retryAt uint64
	// at is the applied index, total the bytes applied since the start; marks
	// are earlier values of both, oldest first, to find what RetainBytes covers.
	at, total uint64
	marks     []retainMark
}

type retainMark struct{ index, total uint64 }

// retainMarks is how finely RetainEntries and RetainBytes are measured.
const retainMarks = 64

func (k *checkpoints) init(cfg Config, applied uint64) {
	k.every, k.everyBytes = cfg.CheckpointEntries, cfg.CheckpointBytes
	k.retain, k.retainBytes = cfg.RetainEntries, cfg.RetainBytes
	k.reset(applied)
}

func (k *checkpoints) reset(applied uint64) {
	k.entries, k.bytes, k.at = 0, 0, applied
	// What is in the log already counts as empty.
	k.marks = append(k.marks[:0], retainMark{0, k.total})
}

func (k *checkpoints) applied(index uint64, bytes int) {
	k.entries++
	k.bytes += uint64(bytes)
	k.at = index
	k.total += uint64(bytes)
	last := k.marks[len(k.marks)-1]
	if index-last.index > k.retain/retainMarks || k.total-last.total > k.retainBytes/retainMarks {
		k.marks = append(k.marks, retainMark{index, k.total})
	}
	for len(k.marks) > 1 && !k.retained(k.marks[1]) {
		k.marks = k.marks[1:]
	}
}

func (k *checkpoints) retained(m retainMark) bool {
	return k.at-m.index <= k.retain && k.total-m.total <= k.retainBytes
}

// floor is the last index that need not be kept.
func (k *checkpoints) floor() uint64 {
	return max(k.marks[0].index, k.at-min(k.at, k.retain))
}

// nextCheckpoint asks for a checkpoint when enough was applied since the last.
func (c *Core) nextCheckpoint() *CheckpointTask {
	k := &c.cut
	if k.writing || c.state.Cluster() == nil || !c.checkpointDue() && !c.peersChanged() {
		return nil
	}
	if k.dropped && c.ticks < k.retryAt {
		return nil
	}
	k.writing, k.entries, k.bytes = true, 0, 0
	st := c.state.Fork()
	token := st.Token()
	return &CheckpointTask{state: st, Meta: storage.CheckpointMeta{
		ClusterID: st.Cluster().GetClusterId(), ClusterIncarnation: token.Incarnation,
		Index: token.Index, Term: token.Term, StateHash: st.Hash(),
	}}
}

// checkpointDue says that enough was applied since the last checkpoint. One is as
// large as the state: it waits until the log has grown by a share of that, so that
// what is written grows with what changes and not with what is there.
func (c *Core) checkpointDue() bool {
	k := &c.cut
	if k.dropped {
		return true
	}
	if k.entries < k.every && k.bytes < k.everyBytes {
		return false
	}
	last, _ := c.log.Checkpoint()
	return k.bytes >= min(last.Bytes/checkpointShare, checkpointMost*k.everyBytes)
}

const (
	// checkpointShare: the log grows by at least one part in so many of the last
	// checkpoint before the next.
	checkpointShare = 4
	// checkpointMost bounds that, in CheckpointBytes: a restart applies the log again.
	checkpointMost = 4
	// checkpointRetryTicks is the time until a checkpoint that found no room is tried
	// again, 30 s in production: until it fails it takes the room that there is.
	checkpointRetryTicks = 600
)

// peersChanged says that no checkpoint knows the present root peers. One is due
// then: a new peer that lacks the log cannot do with an older one.
func (c *Core) peersChanged() bool {
	if c.members.revision == 0 {
		return false
	}
	meta, _ := c.log.Checkpoint()
	return meta.Index < c.members.revision
}

// checkpointed drops the log behind a durable checkpoint, keeping a window for
// tail readers and slow peers.
func (c *Core) checkpointed(done *Checkpointed) error {
	c.cut.writing, c.cut.dropped = false, false
	if errors.Is(done.Err, storage.ErrOutdated) {
		// A leader's checkpoint was installed meanwhile.
		return nil
	}
	if errors.As(done.Err, new(*storage.NoRoomError)) {
		// The log keeps what the checkpoint would have allowed to drop.
		c.cut.dropped, c.cut.retryAt = true, c.ticks+checkpointRetryTicks
		return nil
	}
	if done.Err != nil {
		return fmt.Errorf("write checkpoint at %d: %w", done.Meta.Index, done.Err)
	}
	c.changed = true
	index := min(c.cut.floor(), done.Meta.Index)
	first, err := c.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read first index: %w", err)
	}
	if index < first {
		return nil
	}
	if err := c.log.Compact(index); err != nil && !errors.Is(err, raft.ErrCompacted) {
		return fmt.Errorf("compact log to %d: %w", index, err)
	}
	return nil
}

// install replaces log and state by a checkpoint that the transport received
// and verified.
func (c *Core) install(snapshot *raftpb.Snapshot) error {
	if raft.IsEmptySnap(snapshot) {
		return nil
	}
	meta, err := received(snapshot)
	if err != nil {
		return err
	}
	if err := c.log.InstallCheckpoint(meta); err != nil {
		return fmt.Errorf("install checkpoint at %d: %w", meta.Index, err)
	}
	// A crash here: the new checkpoint is current and the log behind it empty.
	st, err := restore.State(meta, c.log.ReadCheckpoint)
	if err != nil {
		return err
	}
	c.state, c.persisted, c.changed = st, meta.Index, true
	c.cut.reset(meta.Index)
	c.setMembers()
	c.cfg.Logger.Info("checkpoint installed", "peer", c.cfg.NodeID, "term", meta.Term, "index", meta.Index)
	return nil
}

// Received makes of a MsgSnap the one to deliver once its checkpoint was
// received and verified: it carries what was received, which may be newer than
// what the sender announced.
func Received(m *raftpb.Message, meta storage.CheckpointMeta) *raftpb.Message {
	m = proto.Clone(m).(*raftpb.Message)
	var data []byte
	for _, v := range metaFields(&meta) {
		data = binary.BigEndian.AppendUint64(data, *v)
	}
	m.Snapshot = &raftpb.Snapshot{Data: data, Metadata: &raftpb.SnapshotMetadata{
		ConfState: m.GetSnapshot().GetMetadata().GetConfState(), Index: new(meta.Index), Term: new(meta.Term),
	}}
	return m
}

// received reads what Received put into a snapshot.
func received(snapshot *raftpb.Snapshot) (meta storage.CheckpointMeta, err error) {
	fields, data := metaFields(&meta), snapshot.GetData()
	if len(data) != 8*len(fields) {
		return meta, fmt.Errorf("install checkpoint at %d: delivered without its description", snapshot.GetMetadata().GetIndex())
	}
	for i, v := range fields {
		*v = binary.BigEndian.Uint64(data[8*i:])
	}
	return meta, nil
}

func metaFields(m *storage.CheckpointMeta) [7]*uint64 {
	return [7]*uint64{&m.ClusterID, &m.ClusterIncarnation, &m.Index, &m.Term, &m.StateHash, &m.Records, &m.Bytes}
}

// A checkpoint of a million regions is seconds of work, and all peers write
// theirs at about the same time, often on few cores. Nobody waits for it, and
// everybody waits for the log: it is written in short spells with pauses.
const (
	// throttleRun is about how long it works at a stretch.
	throttleRun = time.Millisecond
	// throttleShare is how many times as long it pauses behind that, and maxPause the
	// most: a spell that took long may have waited for a processor or the disk.
	throttleShare = 10
	maxPause      = 10 * time.Millisecond
)

// throttle spreads work over time.
type throttle struct {
	ctx   context.Context
	begun time.Time // of the spell
}

// wait is called by the work now and then. It returns the context's error,
// after a pause when one is due.
func (p *throttle) wait() error {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	}
	worked := now.Sub(p.begun)
	if worked < throttleRun {
		return p.ctx.Err()
	}
	timer := time.NewTimer(min(throttleShare*worked, maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
	}
	p.begun = time.Now()
	return p.ctx.Err()
}
