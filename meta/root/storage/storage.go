// Package storage keeps one root peer's log, checkpoint and identity on disk.
package storage

import (
	"context"
	"errors"
	"io"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const sectorBytes = 512

var errNotBuilt = errors.New("storage: not built yet")

// Storage is one open workdir.
type Storage struct{}

var _ raft.Storage = (*Storage)(nil)

// Open locks the workdir, recovers what it holds and repairs a torn tail. It
// starts nothing: call Run. Errors: *LockedError, *DamageError, *VersionError.
func Open(dir string, o Options) (*Storage, error) { return nil, errNotBuilt }

// OpenBolt opens the registers in a bbolt file and makes it when missing.
func OpenBolt(path string) (Registers, error) { return nil, errNotBuilt }

// ReadBolt reads all registers of a bbolt file and changes nothing.
func ReadBolt(path string) (map[string][]byte, error) { return nil, errNotBuilt }

// Run does the work that is off the commit path until ctx ends or the disk
// fails: it prepares the next segment and updates the durable mark. Without it
// segments are prepared when needed and the mark moves at Close.
func (s *Storage) Run(ctx context.Context) error { return errNotBuilt }

// Maintain does once what Run does in a loop; for simulations.
func (s *Storage) Maintain() error { return errNotBuilt }

// Identity returns the saved identity, false when there is none.
func (s *Storage) Identity() (Identity, bool) { return Identity{}, false }

// SaveIdentity replaces the identity; durable on return.
func (s *Storage) SaveIdentity(id Identity) error { return errNotBuilt }

// SetVoters sets the voters told by InitialState and Snapshot. Open takes them
// from the identity's peers.
func (s *Storage) SetVoters(ids []uint64) {}

// InitialState implements raft.Storage.
func (s *Storage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	return nil, nil, errNotBuilt
}

// Entries implements raft.Storage.
func (s *Storage) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) { return nil, errNotBuilt }

// Term implements raft.Storage.
func (s *Storage) Term(i uint64) (uint64, error) { return 0, errNotBuilt }

// LastIndex implements raft.Storage.
func (s *Storage) LastIndex() (uint64, error) { return 0, errNotBuilt }

// FirstIndex implements raft.Storage.
func (s *Storage) FirstIndex() (uint64, error) { return 0, errNotBuilt }

// Snapshot implements raft.Storage: the metadata of the newest durable
// checkpoint, without data.
func (s *Storage) Snapshot() (*raftpb.Snapshot, error) { return nil, errNotBuilt }

// Append adds a hard state (nil: unchanged) and entries to the log. With sync
// they are durable on return, after one write and one fdatasync. Without sync
// they become durable with the next synced Append, or at Close. Called by one
// goroutine; the entries must not be modified afterwards. Any error but
// ErrClosed is a *FailedError and final.
func (s *Storage) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	return errNotBuilt
}

// Committed returns entries of [lo, hi), at least one, and as many as fit into
// maxBytes of data. It may be called at any time by any goroutine. The entries
// must not be modified. ErrCompacted: lo is no longer retained.
func (s *Storage) Committed(lo, hi uint64, maxBytes uint64) ([]*raftpb.Entry, error) {
	return nil, errNotBuilt
}

// WriteCheckpoint writes a checkpoint and makes it the current one: durable
// and registered on return. It runs concurrently with Append. An error of
// records is returned as it is and changes nothing.
func (s *Storage) WriteCheckpoint(meta CheckpointMeta, records func(yield func(*rootv1.Record) error) error) error {
	return errNotBuilt
}

// Checkpoint returns the current checkpoint, false when there is none.
func (s *Storage) Checkpoint() (CheckpointMeta, bool) { return CheckpointMeta{}, false }

// ReadCheckpoint streams the current checkpoint. ErrNoCheckpoint,
// *DamageError.
func (s *Storage) ReadCheckpoint(fn func(*rootv1.Record) error) (CheckpointMeta, error) {
	return CheckpointMeta{}, errNotBuilt
}

// OpenCheckpoint opens the bytes of the current checkpoint file, for a peer's
// ReceiveCheckpoint. They stay readable when a newer one replaces it.
func (s *Storage) OpenCheckpoint() (io.ReadCloser, CheckpointMeta, error) {
	return nil, CheckpointMeta{}, errNotBuilt
}

// ReceiveCheckpoint stores a checkpoint file beside the current one and
// verifies all of it. ErrReceiving: another one is under way. An error of r or
// in what it gives changes nothing.
func (s *Storage) ReceiveCheckpoint(r io.Reader) (CheckpointMeta, error) {
	return CheckpointMeta{}, errNotBuilt
}

// InstallCheckpoint makes the received checkpoint the current one and the log
// empty behind it. Called by the goroutine of Append.
func (s *Storage) InstallCheckpoint(meta CheckpointMeta) error { return errNotBuilt }

// Compact drops entries up to and including index, never beyond the current
// checkpoint.
func (s *Storage) Compact(index uint64) error { return errNotBuilt }

// MarkDurable records how far the log is known to be durable.
func (s *Storage) MarkDurable() error { return errNotBuilt }

// Close makes everything durable, marks it and gives the workdir up.
func (s *Storage) Close() error { return nil }

// Verify checks a workdir and changes nothing. The error says that it could
// not be checked; damage is in the report.
func Verify(dir string, o Options) (Report, error) { return Report{}, errNotBuilt }
