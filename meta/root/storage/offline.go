package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
)

// Offline is a workdir that is read and not changed: no process has it open,
// and none can until Close. A torn tail is left as it is and not read.
type Offline struct {
	// Identity is whom the workdir belongs to.
	Identity Identity
	// Checkpoint is the current one; HasCheckpoint is false when there is none.
	Checkpoint    CheckpointMeta
	HasCheckpoint bool
	// Commit is the last index that the peer knew to be committed; LastIndex
	// the last entry in its log, which may never have been.
	Commit, LastIndex uint64

	dir     string
	options Options
	lock    io.Closer
	base    uint64
	entries []*raftpb.Entry
}

// OpenOffline locks a workdir and reads its log. Errors: *LockedError while a
// process has it, *DamageError, *VersionError, or what the file system said; a
// folder that no peer ever used is an error too.
func OpenOffline(dir string, o Options) (*Offline, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("read workdir %s: %w", dir, err)
	}
	w := &Offline{dir: dir, options: o}
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("read workdir %s: %w", dir, errors.Join(err, w.Close()))
	}
	return w, nil
}

// Close gives the workdir free.
func (w *Offline) Close() error {
	if w.lock == nil {
		return nil
	}
	err := w.lock.Close()
	w.lock = nil
	return err
}

func (w *Offline) open() error {
	if err := w.take(); err != nil {
		return err
	}
	v := verifier{dir: w.dir, options: w.options}
	known, ok, err := v.registers()
	switch {
	case err != nil:
		return err
	case len(v.report.Damage) > 0:
		d := DamageError(v.report.Damage[0])
		return &d
	case !ok || known.mark == nil:
		return errors.New("it is not the workdir of a root peer: it has neither identity nor log")
	}
	if known.identity != nil {
		w.Identity = *known.identity
	}
	if err := w.findCheckpoint(known); err != nil {
		return err
	}
	return w.readLog(known)
}

// take locks the workdir, without making the file.
func (w *Offline) take() error {
	name := path.Join(w.dir, lockFile)
	if _, err := w.options.FS.Stat(w.dir); err != nil {
		return err
	}
	if _, err := w.options.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := w.options.FS.Lock(name)
	if errors.Is(err, disk.ErrLocked) {
		return &LockedError{Dir: w.dir, Err: err}
	}
	w.lock = lock
	return err
}

func (w *Offline) findCheckpoint(known rooted) error {
	name := path.Join(w.dir, checkpointFile)
	meta, digest, err := peekCheckpoint(w.options.FS, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if meta != nil {
		w.Checkpoint, w.HasCheckpoint = *meta, true
	}
	return checkRegistered(name, meta, digest, known)
}

func (w *Offline) readLog(known rooted) error {
	dir := path.Join(w.dir, walDir)
	if _, err := w.options.FS.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return &DamageError{File: dir, What: "the log is missing", Do: doFile}
	}
	segments, err := listSegments(w.options.FS, dir, known)
	if err != nil {
		return err
	}
	r := &replay{segments: segments, mark: known.mark}
	if err := r.run(); err != nil {
		return err
	}
	if r.base > w.Checkpoint.Index {
		return &DamageError{
			File: path.Join(w.dir, checkpointFile),
			What: fmt.Sprintf("the log begins behind index %d, and no checkpoint reaches it", r.base),
			Do:   doFile,
		}
	}
	w.base, w.entries = r.base, r.entries
	w.Commit, w.LastIndex = max(r.hard.GetCommit(), w.Checkpoint.Index), r.base+uint64(len(r.entries))
	return nil
}

// ReadCheckpoint streams the checkpoint, as Storage.ReadCheckpoint does.
func (w *Offline) ReadCheckpoint(fn func(packed []byte) error) (CheckpointMeta, error) {
	if !w.HasCheckpoint {
		return CheckpointMeta{}, ErrNoCheckpoint
	}
	return ReadCheckpointFile(w.options.FS, path.Join(w.dir, checkpointFile), fn)
}

// Entries calls fn for each committed entry behind the checkpoint, in order,
// until it fails. A checkpoint that was installed over another log has none.
func (w *Offline) Entries(fn func(*raftpb.Entry) error) error {
	at := w.Checkpoint.Index
	if at > w.base && (at > w.LastIndex || w.entries[at-w.base-1].GetTerm() != w.Checkpoint.Term) {
		return nil
	}
	for _, e := range w.entries[at-w.base:] {
		if e.GetIndex() > w.Commit {
			return nil
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// ReadCheckpointFile streams a checkpoint file that may lie anywhere, and
// checks every bit of it. What fn got is right only if the error is nil.
// *DamageError, *VersionError, what fn returned, or what the file system said.
func ReadCheckpointFile(fsys disk.FS, name string, fn func(packed []byte) error) (_ CheckpointMeta, err error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return CheckpointMeta{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return CheckpointMeta{}, err
	}
	meta, _, err := readCheckpoint(bufio.NewReaderSize(io.NewSectionReader(f, 0, size), copyBuffer), fn)
	if err != nil {
		return meta, damagedCheckpoint(name, err)
	}
	return meta, nil
}

// PeekCheckpointFile describes a checkpoint file by its header and footer; the
// records between them are not read. Errors as of ReadCheckpointFile.
func PeekCheckpointFile(fsys disk.FS, name string) (CheckpointMeta, error) {
	meta, _, err := peekCheckpoint(fsys, name)
	if err != nil {
		return CheckpointMeta{}, err
	}
	return *meta, nil
}
