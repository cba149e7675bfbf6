// Package audit judges a root peer's files by the rules of the Witness, while
// no process has them open.
//
// It owns the way from files to rooted truth. It promises: (1) nothing is
// changed, and a workdir in use is refused; (2) damage is an error with file and
// offset, never a verdict; (3) every committed entry behind the checkpoint is
// judged, in order, not only what is left at the end; (4) entries that may
// never have been committed are counted and not judged.
//
// What is right and wrong is package witness's to say, what files hold package
// storage's.
package audit

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/restore"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Result is what was found.
type Result struct {
	Report *witness.Report
	// NodeID is the peer's and ClusterID its cluster's; 0 for a backup.
	NodeID, ClusterID uint64
	// From is the position of the records that the audit began with; Index 0:
	// it began before the first entry.
	From state.Token
	// Entries were judged behind From; Uncommitted are in the log behind them,
	// and may never have been committed.
	Entries, Uncommitted uint64
	// Tenures are one Tenure an era, oldest first.
	Tenures []*rootv1.Tenure
	// RootIDs are the ids that the root itself gave out in the entries judged.
	RootIDs []uint64
}

// Workdir audits a stopped peer's workdir. *storage.LockedError while a process
// has it, *storage.DamageError, *storage.VersionError, or an error that says
// which entry no state machine takes.
func Workdir(dir string, o storage.Options) (*Result, error) { return workdir(dir, o, nil) }

// workdir is Workdir, and calls at with the state it begins with and behind each entry.
func workdir(dir string, o storage.Options, at func(*state.State)) (_ *Result, err error) {
	if at == nil {
		at = func(*state.State) {}
	}
	w, err := storage.OpenOffline(dir, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	st := state.New()
	if w.HasCheckpoint {
		if st, err = restore.State(w.Checkpoint, w.ReadCheckpoint); err != nil {
			return nil, fmt.Errorf("audit workdir %s: %w", dir, err)
		}
	}
	r := &Result{NodeID: w.Identity.NodeID, ClusterID: w.Identity.ClusterID, From: st.Token(), Uncommitted: w.LastIndex - min(w.LastIndex, w.Commit)}
	a := witness.NewAudit(witness.Of(st.Fork()))
	at(st)
	if err := w.Entries(func(e *raftpb.Entry) error {
		err := follow(a, st, e)
		at(st)
		return err
	}); err != nil {
		return nil, fmt.Errorf("audit workdir %s: %w", dir, err)
	}
	r.Report, r.Entries, r.Tenures, r.RootIDs = a.Report(witness.Of(st)), a.Entries(), a.Tenures(), a.RootIDs()
	return r, nil
}

// Backup audits a backup, or any other file in the format of a checkpoint. It
// has records and no entries. Errors as of Workdir.
func Backup(file string) (*Result, error) {
	read := func(fn func([]byte) error) (storage.CheckpointMeta, error) {
		return storage.ReadCheckpointFile(disk.OS(), file, fn)
	}
	meta, err := storage.PeekCheckpointFile(disk.OS(), file)
	if err != nil {
		return nil, fmt.Errorf("audit backup %s: %w", file, err)
	}
	st, err := restore.State(meta, read)
	if err != nil {
		return nil, fmt.Errorf("audit backup %s: %w", file, err)
	}
	truth := witness.Whole(st)
	return &Result{Report: witness.Judge(truth), From: st.Token(), Tenures: truth.Tenures()}, nil
}

// follow applies an entry and tells the audit.
func follow(a *witness.Audit, st *state.State, e *raftpb.Entry) error {
	_, data, err := storage.Payload(e)
	if err != nil {
		return fmt.Errorf("entry %d: %w", e.GetIndex(), err)
	}
	var entry rootv1.Entry
	if err := proto.Unmarshal(data, &entry); err != nil {
		return fmt.Errorf("entry %d: %w", e.GetIndex(), err)
	}
	var applied state.Applied
	if err := st.ApplyEntry(e.GetTerm(), e.GetIndex(), data, &applied); err != nil {
		return err
	}
	a.Entry(applied.Token, &entry, &applied)
	return nil
}
