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

// Report is what Verify found.
type Report struct {
	// Identity is the workdir's; HasIdentity is false when none was saved.
	Identity    Identity
	HasIdentity bool
	// InUse says that another process had the workdir open: what looks like
	// damage may be work in progress.
	InUse bool
	// Segments is the number of segment files that hold frames; Frames and
	// Entries count what is in them.
	Segments, Frames, Entries int
	// FirstIndex and LastIndex are the entries [FirstIndex, LastIndex] that a
	// start would find; LastIndex below FirstIndex: none.
	FirstIndex, LastIndex uint64
	// Checkpoint is the current one; HasCheckpoint is false when there is none.
	Checkpoint    CheckpointMeta
	HasCheckpoint bool
	// Torn says that an append was cut short by a crash behind the last
	// acknowledged one; a start cuts it off. Not damage.
	Torn bool
	// Damage is everything found wrong, in the order of the files.
	Damage []Damage
}

// Damage is one thing found wrong, as in DamageError.
type Damage struct {
	File   string
	Offset int64
	What   string
	Do     string
}

// Verify checks every bit of a workdir that matters and changes nothing. It
// goes on behind damage and reports all it finds. The error says that the
// workdir could not be checked; damage and newer formats are in the report.
func Verify(dir string, o Options) (Report, error) {
	w, err := newInspection(dir, o)
	if err == nil {
		w.all = true
		w.checkpoint = func(name string) (*CheckpointMeta, uint32, error) {
			return readCheckpointFile(w.options.FS, name, w.options.checkRecords)
		}
		err = w.verify()
	}
	if err != nil {
		return w.report, fmt.Errorf("verify workdir %s: %w", dir, err)
	}
	return w.report, nil
}

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
	fs      disk.FS
	lock    io.Closer
	base    uint64
	entries []*raftpb.Entry
}

// OpenOffline locks a workdir and reads its log. Errors: *LockedError while a
// process has it, *DamageError, *VersionError, or what the file system said; a
// folder that no peer ever used is an error too.
func OpenOffline(dir string, o Options) (*Offline, error) {
	w, err := newInspection(dir, o)
	off := &Offline{dir: dir, fs: w.options.FS}
	if err == nil {
		w.checkpoint = func(name string) (*CheckpointMeta, uint32, error) { return peekCheckpoint(off.fs, name) }
		err = off.open(w)
	}
	if err != nil {
		return nil, fmt.Errorf("read workdir %s: %w", dir, errors.Join(err, off.Close()))
	}
	return off, nil
}

func (o *Offline) open(w *inspection) (err error) {
	switch lock, err := w.options.FS.Lock(w.dir); {
	case errors.Is(err, disk.ErrLocked):
		return &LockedError{Dir: o.dir, Err: err}
	case err != nil:
		return err
	default:
		o.lock = lock
	}
	r, err := w.read()
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("it is not the workdir of a root peer: it has neither identity nor log")
	}
	o.Identity, o.Checkpoint, o.HasCheckpoint = w.report.Identity, w.report.Checkpoint, w.report.HasCheckpoint
	o.base, o.entries = r.base, r.entries
	o.Commit, o.LastIndex = max(r.hard.GetCommit(), o.Checkpoint.Index), w.report.LastIndex
	return nil
}

// Close gives the workdir free.
func (o *Offline) Close() error {
	if o.lock == nil {
		return nil
	}
	err := o.lock.Close()
	o.lock = nil
	return err
}

// ReadCheckpoint streams the checkpoint, as Storage.ReadCheckpoint does.
func (o *Offline) ReadCheckpoint(fn func(packed []byte) error) (CheckpointMeta, error) {
	if !o.HasCheckpoint {
		return CheckpointMeta{}, ErrNoCheckpoint
	}
	return ReadCheckpointFile(o.fs, path.Join(o.dir, checkpointFile), fn)
}

// Entries calls fn for each committed entry behind the checkpoint, in order,
// until it fails. A checkpoint that was installed over another log has none.
func (o *Offline) Entries(fn func(*raftpb.Entry) error) error {
	at := o.Checkpoint.Index
	if at > o.base && (at > o.LastIndex || o.entries[at-o.base-1].GetTerm() != o.Checkpoint.Term) {
		return nil
	}
	for _, e := range o.entries[at-o.base:] {
		if e.GetIndex() > o.Commit {
			return nil
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// inspection reads a workdir and changes nothing.
type inspection struct {
	dir     string
	options Options
	// all goes on behind damage and reports it; otherwise the first is the error.
	all bool
	// checkpoint reads a checkpoint file, as thoroughly as is wanted.
	checkpoint func(name string) (*CheckpointMeta, uint32, error)
	report     Report
}

func newInspection(dir string, o Options) (*inspection, error) {
	o, err := o.withDefaults()
	return &inspection{dir: dir, options: o}, err
}

func (w *inspection) path(name string) string { return path.Join(w.dir, name) }

// verify looks whether a process has the workdir, and reads all of it.
func (w *inspection) verify() error {
	switch lock, err := w.options.FS.Lock(w.dir); {
	case errors.Is(err, disk.ErrLocked):
		w.report.InUse = true
	case err != nil:
		return err
	default:
		if err := lock.Close(); err != nil {
			return err
		}
	}
	_, err := w.read()
	return err
}

// read reads registers, checkpoint and log. The log is nil when nothing says
// that there is one.
func (w *inspection) read() (*replay, error) {
	known, ok, err := w.readRegisters()
	if err != nil {
		return nil, err
	}
	if known.identity != nil {
		w.report.Identity, w.report.HasIdentity = *known.identity, true
	}
	if err := w.readCheckpoint(known, ok); err != nil || !ok || known.mark == nil {
		return nil, err
	}
	return w.readLog(known)
}

// found takes damage into the report, or returns it; other errors come back.
func (w *inspection) found(err error) error {
	var damage *DamageError
	var version *VersionError
	switch {
	case !w.all:
		return err
	case errors.As(err, &damage):
		w.report.Damage = append(w.report.Damage, Damage(*damage))
	case errors.As(err, &version):
		w.report.Damage = append(w.report.Damage, Damage{
			File: version.File,
			What: fmt.Sprintf("format version %d is newer than %d", version.Found, version.Known),
			Do:   "use the newer release",
		})
	default:
		return err
	}
	return nil
}

// readRegisters reads root.raft.bin; false when there is nothing to go by.
func (w *inspection) readRegisters() (rooted, bool, error) {
	name := w.path(registersFile)
	if missing, err := registersMissing(w.options.FS, w.dir); missing || err != nil {
		return rooted{}, false, w.found(err)
	}
	values, err := w.options.ReadRegisters(name)
	if err != nil {
		return rooted{}, false, w.found(err)
	}
	known, err := loadRooted(name, func(key string) ([]byte, error) { return values[key], nil })
	return known, err == nil, w.found(err)
}

func (w *inspection) readCheckpoint(known rooted, registers bool) error {
	name := w.path(checkpointFile)
	meta, digest, err := w.checkpoint(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return w.found(err)
	}
	if meta != nil {
		w.report.Checkpoint, w.report.HasCheckpoint = *meta, true
	}
	if !registers {
		return nil
	}
	return w.found(checkRegistered(name, meta, digest, known))
}

func (w *inspection) readLog(known rooted) (*replay, error) {
	dir := w.path(walDir)
	if _, err := w.options.FS.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, w.found(&DamageError{File: dir, What: "the log is missing", Do: doFile})
	}
	segments, err := listSegments(w.options.FS, dir, known)
	if err != nil {
		if err := w.found(err); err != nil {
			return nil, err
		}
		// What is left cannot reach the mark, and that is reported already.
		known.mark = nil
	}
	r := &replay{segments: segments, mark: known.mark}
	if w.all {
		r.complain = func(d *DamageError) { w.report.Damage = append(w.report.Damage, Damage(*d)) }
	}
	if err := r.run(); err != nil {
		return nil, err
	}
	v := &w.report
	v.Frames, v.Entries, v.Torn = r.frames, len(r.entries), r.torn()
	v.FirstIndex, v.LastIndex = r.base+1, r.base+uint64(len(r.entries))
	if r.frames > 0 {
		v.Segments = r.seg + 1
	}
	if len(v.Damage) > 0 {
		return r, nil
	}
	return r, w.found(r.reaches(w.path(checkpointFile), v.Checkpoint.Index))
}

// ReadCheckpointFile streams a checkpoint file that may lie anywhere, and
// checks every bit of it. What fn got is right only if the error is nil.
// *DamageError, *VersionError, what fn returned, or what the file system said.
func ReadCheckpointFile(fsys disk.FS, name string, fn func(packed []byte) error) (CheckpointMeta, error) {
	meta, _, err := readCheckpointFile(fsys, name, fn)
	if err != nil {
		return CheckpointMeta{}, err
	}
	return *meta, nil
}

func readCheckpointFile(fsys disk.FS, name string, fn func(packed []byte) error) (_ *CheckpointMeta, digest uint32, err error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, 0, err
	}
	meta, digest, err := readCheckpoint(bufio.NewReaderSize(io.NewSectionReader(f, 0, size), copyBuffer), fn)
	if err != nil {
		return nil, 0, damagedCheckpoint(name, err)
	}
	return &meta, digest, nil
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
