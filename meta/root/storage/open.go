package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/freshness"
)

// Open locks the workdir, recovers what it holds and repairs a torn tail. A
// workdir that is missing or empty becomes a fresh one without identity. It
// starts nothing: call Run. Errors: *LockedError, *DamageError, *VersionError,
// or what the file system said.
func Open(dir string, o Options) (*Storage, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open workdir %s: %w", dir, err)
	}
	s := &Storage{
		dir: dir, options: o, fs: o.FS, grown: make(chan struct{}, 1),
		segments: newToken(), maintain: newToken(), writing: newToken(), receiving: newToken(), filling: newToken(),
	}
	if err := s.lockDir(); err != nil {
		return nil, fmt.Errorf("open workdir %s: %w", dir, err)
	}
	if err := s.recover(); err != nil {
		return nil, fmt.Errorf("open workdir %s: %w", dir, errors.Join(err, s.release()))
	}
	return s, nil
}

// lockDir makes the workdir if it is missing, durably, and locks it.
func (s *Storage) lockDir() error {
	if _, err := s.fs.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDir(path.Clean(s.dir)); err != nil {
			return err
		}
	}
	lock, err := s.fs.Lock(s.dir)
	if errors.Is(err, disk.ErrLocked) {
		return &LockedError{Dir: s.dir, Err: err}
	}
	if err != nil {
		return err
	}
	s.lock = lock
	return nil
}

// makeDir makes a folder and what is missing above it, each durable in its parent
// before anything is made inside.
func (s *Storage) makeDir(dir string) error {
	parent := path.Dir(dir)
	switch _, err := s.fs.Stat(parent); {
	case errors.Is(err, fs.ErrNotExist):
		if err := s.makeDir(parent); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		// A process that was killed here may have made it and not synced its name.
		// Where we may not read, we did not make it.
		if err := s.fs.SyncDir(path.Dir(parent)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	if err := s.fs.MkdirAll(dir, dirPerm); err != nil {
		return err
	}
	return s.fs.SyncDir(parent)
}

func (s *Storage) recover() error {
	// Names that a killed process saw may not be durable yet.
	for _, d := range []string{path.Dir(path.Clean(s.dir)), s.dir} {
		if err := s.fs.SyncDir(d); err != nil {
			return err
		}
	}
	known, err := s.openRegisters()
	if err != nil {
		return err
	}
	if err := s.removeStale(s.dir, func(name string) bool { return name == checkpointTmp || name == incomingFile }); err != nil {
		return err
	}
	current, digest, err := s.currentCheckpoint(known)
	if err != nil {
		return err
	}
	if current != nil {
		s.mem.checkpoint, s.bound = current, current.Index
	}
	if err := s.openLog(known); err != nil {
		return err
	}
	if known.identity != nil {
		s.adoptIdentity(*known.identity)
	}
	if err := s.reconcile(); err != nil {
		return err
	}
	if known.starts != nil {
		s.starts = *known.starts
	}
	s.takeFooting()
	s.memory = freshness.NewMemory(known.known, s.saveMemory, s.grew)
	// The log is about to be written behind the mark: it is clean no longer.
	var more map[string]any
	if current != nil {
		more = map[string]any{registerCheckpoint: registered{Meta: *current, Digest: digest}}
	}
	return s.putMark(s.currentMark(), more)
}

// openRegisters opens root.raft.bin.
func (s *Storage) openRegisters() (rooted, error) {
	name := s.path(registersFile)
	if _, err := registersMissing(s.fs, s.dir); err != nil {
		return rooted{}, err
	}
	registers, err := s.options.OpenRegisters(name)
	if err != nil {
		return rooted{}, err
	}
	s.registers = registers
	return loadRooted(name, registers.Get)
}

// registersMissing says whether root.raft.bin is missing, and insists that it exists
// when anything else does: without it nothing tells a lost file from one that never
// was.
func registersMissing(fsys disk.FS, dir string) (bool, error) {
	name := path.Join(dir, registersFile)
	if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, other := range []string{walDir, checkpointFile} {
		if _, err := fsys.Stat(path.Join(dir, other)); err == nil {
			return true, &DamageError{File: name, What: fmt.Sprintf("the file is missing, and %s exists", other), Do: doFile}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return true, nil
}

// removeStale removes what an interrupted operation left behind.
func (s *Storage) removeStale(dir string, stale func(string) bool) error {
	names, err := s.fs.ReadDir(dir)
	if err != nil {
		return err
	}
	removed := false
	for _, name := range names {
		if !stale(name) {
			continue
		}
		s.options.Logger.Info("removing what an interrupted operation left", "file", path.Join(dir, name))
		if err := s.fs.Remove(path.Join(dir, name)); err != nil {
			return err
		}
		removed = true
	}
	if !removed {
		return nil
	}
	return s.fs.SyncDir(dir)
}

// openLog opens or makes the log and reads it into memory.
func (s *Storage) openLog(known rooted) error {
	s.files = segmentFiles{fs: s.fs, dir: s.path(walDir), log: known.log, bytes: s.options.SegmentBytes, recycle: s.options.Recycle}
	if known.mark == nil {
		return s.createLog(known)
	}
	if _, err := s.fs.Stat(s.files.dir); errors.Is(err, fs.ErrNotExist) {
		return &DamageError{File: s.files.dir, What: "the log is missing", Do: doFile}
	} else if err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.files.dir); err != nil {
		return err
	}
	err := s.removeStale(s.files.dir, func(name string) bool {
		sequence, ok := parseSegmentName(name)
		return ok && sequence < known.mark.First || strings.HasSuffix(name, spareSuffix)
	})
	if err != nil {
		return err
	}
	segments, err := listSegments(s.fs, s.files.dir, known)
	if err != nil {
		return err
	}
	r := &replay{segments: segments, mark: known.mark}
	if err := r.run(); err != nil {
		return err
	}
	return s.adoptLog(r, known)
}

// createLog makes the first segment. A crash before the mark is durable finds
// a log without mark, identity or entries, and makes it again.
func (s *Storage) createLog(known rooted) error {
	if known.format == nil {
		id, err := newLogID()
		if err != nil {
			return err
		}
		if err := putRegisters(s.registers, map[string]any{registerFormat: format{Version: registersVersion, Log: id.String()}}); err != nil {
			return err
		}
		s.files.log = id
	}
	if err := s.fs.MkdirAll(s.files.dir, dirPerm); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return err
	}
	left := false
	if err := s.removeStale(s.files.dir, func(name string) bool {
		sequence, ok := parseSegmentName(name)
		left = left || ok && sequence != 1
		return strings.HasSuffix(name, spareSuffix)
	}); err != nil {
		return err
	}
	if left {
		return &DamageError{File: s.path(registersFile), What: "it knows of no log, and there is one", Do: doFile}
	}
	segment, err := s.files.create(1, s.options.SegmentBytes, Identity{})
	if err != nil {
		return err
	}
	s.log.active = segment
	s.log.at = position{Sequence: 1, Offset: sectorBytes, Number: 1}
	s.retained = []retained{{sequence: 1, bytes: segment.bytes}}
	s.durable = mark{At: s.log.at}
	return nil
}

// listSegments finds the segments of a log and checks their headers.
func listSegments(fsys disk.FS, dir string, known rooted) ([]*replaySegment, error) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var segments []*replaySegment
	for _, name := range names {
		sequence, ok := parseSegmentName(name)
		if !ok || sequence < known.mark.First {
			continue
		}
		if want := known.mark.First + uint64(len(segments)); sequence != want {
			return segments, &DamageError{File: path.Join(dir, segmentName(want)), What: "the segment is missing", Do: doFile}
		}
		s, err := openSegment(fsys, path.Join(dir, name), sequence, known.log)
		if err != nil {
			return segments, err
		}
		segments = append(segments, s)
	}
	if len(segments) == 0 {
		return nil, &DamageError{File: path.Join(dir, segmentName(known.mark.First)), What: "the segment is missing", Do: doFile}
	}
	return segments, nil
}

// openSegment reads and checks a segment's header.
func openSegment(fsys disk.FS, name string, sequence uint64, log logID) (*replaySegment, error) {
	head := make([]byte, sectorBytes)
	size, err := readSome(fsys, name, head)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	damaged := func(what string) error { return &DamageError{File: name, What: what, Do: doFile} }
	h, version, ok := decodeSegmentHeader(head)
	switch {
	case !ok:
		return nil, damaged("the segment header is not valid")
	case version > segmentVersion:
		return nil, &VersionError{File: name, Found: version, Known: segmentVersion}
	case h.log != log:
		return nil, damaged(fmt.Sprintf("the segment belongs to the log %v (cluster %x node %d), this workdir's is %v", h.log, h.owner.ClusterID, h.owner.NodeID, log))
	case h.sequence != sequence:
		return nil, damaged(fmt.Sprintf("the segment is number %d, its name says %d", h.sequence, sequence))
	case size < h.bytes:
		return nil, &DamageError{File: name, Offset: size, What: fmt.Sprintf("the file ends, its header says %d bytes", h.bytes), Do: doReplace}
	}
	load := func() ([]byte, error) {
		buf := make([]byte, h.bytes)
		_, err := readSome(fsys, name, buf)
		return buf, err
	}
	return &replaySegment{segmentHeader: h, path: name, load: load}, nil
}

// readSome fills b from the start of a file and returns the file's size.
func readSome(fsys disk.FS, name string, b []byte) (size int64, err error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err = f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	size, sizeErr := f.Size()
	return size, errors.Join(err, sizeErr)
}

// adoptLog continues a replayed log.
func (s *Storage) adoptLog(r *replay, known rooted) error {
	s.mem.base, s.mem.baseTerm, s.mem.entries, s.mem.hard = r.base, r.baseTerm, r.entries, r.hard
	for _, seg := range r.segments[:r.seg+1] {
		kept := retained{sequence: seg.sequence, bytes: seg.bytes, last: max(seg.last, r.base)}
		if n := len(s.retained); n > 0 {
			kept.last = max(kept.last, s.retained[n-1].last)
		}
		s.retained = append(s.retained, kept)
	}
	s.log.hard, s.log.at = r.hard, r.at
	s.log.index, s.log.term = r.lastIndex()
	s.marked = *known.mark
	clean := known.mark.Clean && known.mark.At == r.at
	var err error
	if s.log.active, err = s.reopen(r.segments[r.seg]); err != nil {
		return err
	}
	if err := s.adoptPrepared(r.segments[r.seg+1:], clean); err != nil {
		return err
	}
	if !clean {
		if err := s.repairTail(r, known); err != nil {
			return err
		}
	}
	s.durable = mark{At: s.log.at, LastIndex: s.log.index}
	var index uint64
	if c := s.mem.checkpoint; c != nil {
		index = c.Index
	}
	return r.reaches(s.path(checkpointFile), index)
}

func (s *Storage) reopen(r *replaySegment) (*segment, error) {
	f, err := s.fs.OpenFile(r.path, os.O_RDWR, filePerm)
	if err != nil {
		return nil, err
	}
	return &segment{segmentHeader: r.segmentHeader, file: f}, nil
}

// adoptPrepared keeps the segment prepared behind the active one if nothing
// can have been written to it, and otherwise removes it.
func (s *Storage) adoptPrepared(prepared []*replaySegment, clean bool) (err error) {
	if len(prepared) == 0 {
		return nil
	}
	if clean && len(prepared) == 1 {
		s.next, err = s.reopen(prepared[0])
		return err
	}
	for _, p := range slices.Backward(prepared) {
		if err := s.fs.Remove(p.path); err != nil {
			return err
		}
	}
	return s.fs.SyncDir(s.files.dir)
}

// repairTail cuts a torn tail off durably and makes sure of the last frame.
// A killed process may have written it without the sync, or the sync may have
// failed: it can be read and yet not be on the disk. It is not written over,
// because a power cut would then spoil what may be acknowledged, but written
// again behind itself. If the mark covers it there is no doubt.
func (s *Storage) repairTail(r *replay, known rooted) error {
	if r.torn() {
		s.options.Logger.Warn("cutting off an append that a crash interrupted", "file", s.files.path(r.at.Sequence), "offset", r.at.Offset, "index", s.log.index)
	}
	if err := fillZeros(s.log.active.file, r.at.Offset, s.log.active.bytes); err != nil {
		return err
	}
	if err := s.log.active.file.Sync(); err != nil {
		return err
	}
	if r.frames == 0 || r.at == known.mark.At {
		return nil
	}
	// A crash from here on finds the last frame once or twice.
	return s.writeFrame(r.last, r.before.Number, r.before.Chain, link{index: r.beforeIndex, term: r.beforeTerm})
}

// reconcile ends an install that a crash interrupted: when the log does not
// hold the checkpoint's entry, it is emptied behind the checkpoint.
func (s *Storage) reconcile() error {
	c := s.mem.checkpoint
	if c == nil {
		return nil
	}
	term, err := s.mem.term(c.Index)
	if err == nil && term == c.Term {
		return nil
	}
	if commit := s.mem.hard.GetCommit(); commit >= c.Index {
		return &DamageError{
			File: s.path(checkpointFile),
			What: fmt.Sprintf("the checkpoint is of index %d term %d, and the log committed another entry there", c.Index, c.Term),
			Do:   doReplace,
		}
	}
	s.options.Logger.Info("the log ends where the checkpoint begins", "index", c.Index, "term", c.Term)
	s.maintain.take()
	defer s.maintain.give()
	return s.resetLog(c.Index, c.Term)
}
