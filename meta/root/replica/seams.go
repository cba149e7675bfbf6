package replica

import (
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Log is the durable log of one peer, and the checkpoints behind it. All calls
// but those of Checkpoints come from the goroutine that calls Turn.
type Log interface {
	raft.Storage
	// Append writes a hard state (nil: unchanged) and entries, replacing what
	// the log has from the first entry's index on. With sync they are durable
	// on return. After an error every later call fails.
	Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error
	// Compact drops entries up to and including index; never entries that the
	// newest durable checkpoint does not cover.
	Compact(index uint64) error
	// HoldCheckpoint keeps a received checkpoint from being replaced by the next,
	// until it is installed or released. False: it has been replaced, or is being.
	HoldCheckpoint(meta storage.CheckpointMeta) bool
	ReleaseCheckpoint()
	// ReceivedCluster is the cluster record in the checkpoint that is held.
	ReceivedCluster() *rootv1.Cluster
	// InstallCheckpoint makes the received checkpoint the current one and the
	// log empty behind it. A crash leaves the old or the new. It ends
	// HoldCheckpoint.
	InstallCheckpoint(meta storage.CheckpointMeta) error
	Checkpoints
}

// Checkpoints is the part of a Log that may be used from another goroutine,
// while the log is appended to.
type Checkpoints interface {
	// WriteCheckpoint makes a checkpoint of the records durable and current.
	// storage.ErrOutdated: a newer one is current already. *storage.NoRoomError: it
	// was dropped, because the disk is full. Any other error that is not of records is
	// final.
	WriteCheckpoint(meta storage.CheckpointMeta, records func(yield func([]byte) error) error) error
	// ReadCheckpoint streams the current checkpoint: packed records, fn's to keep.
	ReadCheckpoint(fn func(packed []byte) error) (storage.CheckpointMeta, error)
	// Checkpoint describes the current checkpoint; false when there is none.
	Checkpoint() (storage.CheckpointMeta, bool)
}

// Transport takes messages to other peers. It never blocks and may lose, delay
// and repeat. It must not change a message and may keep it: nobody changes it
// afterwards.
//
// A MsgSnap stands for the sender's current checkpoint: the transport sends
// the checkpoint's bytes, the receiver verifies and keeps them, and only then
// delivers the message, made by Received. The sender is told how it ended by
// SnapshotDelivered, always.
type Transport interface {
	Send(messages []*raftpb.Message)
	// Tell tells every other peer what this one says of itself; to whom there is no
	// connection now, when there is one.
	Tell(s Standing)
	// SetPeers tells who the peers are from now on, and who was replaced: at the
	// start, when the state knows, and whenever they or the feature level change.
	SetPeers(c *rootv1.Cluster)
}

// Standing is what a peer says of itself from time to time.
type Standing struct {
	// Index is an applied position, Hash the hash of the state there.
	Index, Hash uint64
	// Promise is what it has promised and made durable.
	Promise freshness.Promise
}

// raftLogger hands raft's log to hclog: its Info is our Debug, because what
// operators need to know of elections the Core says itself. Fatal and Panic
// panic with a raftPanic, which Turn returns as an error.
type raftLogger struct {
	log     hclog.Logger
	verbose bool
}

var _ raft.Logger = (*raftLogger)(nil)

// raftPanic is a broken invariant that raft found.
type raftPanic string

func newRaftLogger(log hclog.Logger) *raftLogger {
	return &raftLogger{log: log, verbose: log.IsTrace()}
}

// Debug implements raft.Logger.
func (l *raftLogger) Debug(v ...any) {
	if l.verbose {
		l.log.Trace(fmt.Sprint(v...))
	}
}

// Debugf implements raft.Logger.
func (l *raftLogger) Debugf(format string, v ...any) {
	if l.verbose {
		l.log.Trace(fmt.Sprintf(format, v...))
	}
}

// Info implements raft.Logger.
func (l *raftLogger) Info(v ...any) {
	if l.log.IsDebug() {
		l.log.Debug(fmt.Sprint(v...))
	}
}

// Infof implements raft.Logger.
func (l *raftLogger) Infof(format string, v ...any) {
	if l.log.IsDebug() {
		l.log.Debug(fmt.Sprintf(format, v...))
	}
}

// Warning implements raft.Logger.
func (l *raftLogger) Warning(v ...any) { l.Info(v...) }

// Warningf implements raft.Logger.
func (l *raftLogger) Warningf(format string, v ...any) { l.Infof(format, v...) }

// Error implements raft.Logger.
func (l *raftLogger) Error(v ...any) { l.log.Error(fmt.Sprint(v...)) }

// Errorf implements raft.Logger.
func (l *raftLogger) Errorf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }

// Fatal implements raft.Logger.
func (l *raftLogger) Fatal(v ...any) { panic(raftPanic(fmt.Sprint(v...))) }

// Fatalf implements raft.Logger.
func (l *raftLogger) Fatalf(format string, v ...any) { panic(raftPanic(fmt.Sprintf(format, v...))) }

// Panic implements raft.Logger.
func (l *raftLogger) Panic(v ...any) { panic(raftPanic(fmt.Sprint(v...))) }

// Panicf implements raft.Logger.
func (l *raftLogger) Panicf(format string, v ...any) { panic(raftPanic(fmt.Sprintf(format, v...))) }
