package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/nokv/nokv/internal/disk"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// copyBuffer is the size of a read or write of a checkpoint.
const copyBuffer = 1 << 20

// fileWriter appends to a file; it tells disk errors from others.
type fileWriter struct {
	file disk.File
	off  int64
	err  error
	// flush sends full buffers to the disk as they come, so that no single sync
	// is long enough to hold up those of the log.
	flush bool
	// crowded says that the log needs the room; nil: nobody does.
	crowded *atomic.Bool
}

func (w *fileWriter) Write(b []byte) (int, error) {
	if w.crowded != nil && w.crowded.Load() {
		w.err = errCrowded
		return 0, w.err
	}
	n, err := w.file.WriteAt(b, w.off)
	w.off += int64(n)
	if err == nil && w.flush && len(b) >= copyBuffer {
		err = w.file.Sync()
	}
	w.err = err
	return n, err
}

// currentCheckpoint finds the checkpoint file and insists that it is the
// registered one or a newer one: a crash between the rename and the register
// leaves a whole, newer file.
func (s *Storage) currentCheckpoint(known rooted) (*CheckpointMeta, uint32, error) {
	meta, digest, err := peekCheckpoint(s.fs, s.path(checkpointFile))
	if errors.Is(err, fs.ErrNotExist) && known.checkpoint == nil {
		return nil, 0, nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = checkRegistered(s.path(checkpointFile), meta, digest, known)
	}
	if err != nil {
		return nil, 0, err
	}
	return meta, digest, nil
}

// checkRegistered compares a checkpoint file (nil: missing) with the registers.
func checkRegistered(name string, meta *CheckpointMeta, digest uint32, known rooted) error {
	damaged := func(what string) error { return &DamageError{File: name, What: what, Do: doFile} }
	if reg := known.checkpoint; reg != nil {
		switch {
		case meta == nil:
			return damaged(fmt.Sprintf("the checkpoint of index %d is missing", reg.Meta.Index))
		case meta.Index < reg.Meta.Index:
			return damaged(fmt.Sprintf("the checkpoint is of index %d, an older one than that of index %d that was here", meta.Index, reg.Meta.Index))
		case meta.Index == reg.Meta.Index && (*meta != reg.Meta || digest != reg.Digest):
			return damaged(fmt.Sprintf("the checkpoint is not the one of index %d that was here", reg.Meta.Index))
		}
	}
	id := known.identity
	if meta != nil && id != nil && id.ClusterID != 0 && meta.ClusterID != 0 && meta.ClusterID != id.ClusterID {
		return damaged(fmt.Sprintf("the checkpoint is of cluster %x, the workdir of cluster %x", meta.ClusterID, id.ClusterID))
	}
	return nil
}

// peekCheckpoint reads and checks header and footer of a checkpoint file.
func peekCheckpoint(fsys disk.FS, name string) (_ *CheckpointMeta, digest uint32, err error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, 0, err
	}
	if size < checkpointHeaderBytes+footerBytes {
		return nil, 0, &DamageError{File: name, Offset: size, What: "the file ends", Do: doReplace}
	}
	var header [checkpointHeaderBytes]byte
	var footer [footerBytes]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return nil, 0, err
	}
	if _, err := f.ReadAt(footer[:], size-footerBytes); err != nil && err != io.EOF {
		return nil, 0, err
	}
	meta, err := parseCheckpointHeader(header[:])
	if err != nil {
		return nil, 0, damagedCheckpoint(name, err)
	}
	records, digest, ok := parseFooter(footer[:], uint64(size))
	if !ok {
		return nil, 0, &DamageError{File: name, Offset: size - footerBytes, What: "the footer is not valid", Do: doReplace}
	}
	meta.Records, meta.Bytes = records, uint64(size)
	return &meta, digest, nil
}

// damagedCheckpoint names the file in an error of readCheckpoint.
func damagedCheckpoint(name string, err error) error {
	var bad *badCheckpoint
	if errors.As(err, &bad) {
		return &DamageError{File: name, Offset: bad.offset, What: bad.what, Do: doReplace}
	}
	var version checkpointVersionError
	if errors.As(err, &version) {
		return &VersionError{File: name, Found: uint32(version), Known: checkpointVersion}
	}
	return err
}

// Checkpoint returns the current checkpoint, false when there is none.
func (s *Storage) Checkpoint() (CheckpointMeta, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mem.checkpoint == nil {
		return CheckpointMeta{}, false
	}
	return *s.mem.checkpoint, true
}

// WriteCheckpoint writes a checkpoint and makes it the current one: durable
// and registered on return. Records come in the wire format, and are the
// caller's again when yield returns. The entry it ends with must be in the log, and
// committed. It runs concurrently with Append; a second one waits. An error
// of records is returned as it is and changes nothing. ErrOutdated: the
// current one is as new. *NoRoomError: the disk has no room for it; the current
// one stays, or the new one is current and the log is kept as if it were not.
func (s *Storage) WriteCheckpoint(meta CheckpointMeta, records func(yield func([]byte) error) error) error {
	s.writing.take()
	defer s.writing.give()
	if err := s.inPlace(); err != nil {
		return err
	}
	if err := s.checkNewer(meta); err != nil {
		return err
	}
	name := s.path(checkpointTmp)
	meta, digest, err := s.createCheckpoint(name, meta, records)
	if err != nil {
		return err
	}
	// A crash from here on finds the old checkpoint, and removes the new one.
	s.maintain.take()
	defer s.maintain.give()
	if current, ok := s.Checkpoint(); ok && current.Index >= meta.Index {
		return s.discard(name, ErrOutdated)
	}
	renamed, err := s.publish(name, meta, digest)
	switch {
	case !renamed:
		return s.discard(name, err)
	case err == nil:
		s.found(forCheckpoint)
	}
	return err
}

// createCheckpoint makes a file of a whole checkpoint, durable but for its name. An error
// leaves none.
func (s *Storage) createCheckpoint(name string, meta CheckpointMeta, records func(yield func([]byte) error) error) (CheckpointMeta, uint32, error) {
	s.filling.take()
	defer s.filling.give()
	f, err := s.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return meta, 0, s.discard(name, s.drop("create "+name, err))
	}
	meta, digest, err := s.fillCheckpoint(f, meta, records)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = s.drop("close "+name, closeErr)
	}
	if err != nil {
		err = s.discard(name, err)
	}
	return meta, digest, err
}

// checkNewer refuses a checkpoint that the log does not lead to.
func (s *Storage) checkNewer(meta CheckpointMeta) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c := s.mem.checkpoint; c != nil && c.Index >= meta.Index {
		return ErrOutdated
	}
	if term, err := s.mem.term(meta.Index); err != nil || term != meta.Term || meta.Index == 0 {
		return fmt.Errorf("write checkpoint: the log holds no entry of index %d term %d", meta.Index, meta.Term)
	}
	return nil
}

func (s *Storage) fillCheckpoint(f disk.File, meta CheckpointMeta, records func(yield func([]byte) error) error) (CheckpointMeta, uint32, error) {
	out := &fileWriter{file: f, flush: true, crowded: &s.crowded}
	w, err := newCheckpointWriter(out, meta)
	if err != nil {
		return meta, 0, s.drop("write a checkpoint", err)
	}
	err = records(func(r []byte) error {
		encode, disk := w.add(r)
		if disk != nil {
			return s.drop("write a checkpoint", disk)
		}
		return encode
	})
	if out.err != nil {
		return meta, 0, s.drop("write a checkpoint", out.err)
	}
	if err != nil {
		return meta, 0, err
	}
	if err := w.finish(); err != nil {
		return meta, 0, s.drop("write a checkpoint", err)
	}
	if err := f.Sync(); err != nil {
		return meta, 0, s.drop("sync a checkpoint", err)
	}
	meta.Records, meta.Bytes = w.records, w.bytes
	return meta, w.chain, nil
}

// discard removes an unfinished file, unless the disk has failed.
func (s *Storage) discard(name string, err error) error {
	if s.failed.Load() != nil {
		return err
	}
	removeErr := s.fs.Remove(name)
	switch {
	case removeErr == nil, errors.Is(removeErr, fs.ErrNotExist):
	case disk.NoRoom(removeErr):
		s.lacked(forCheckpoint, "remove "+name, removeErr) // The next one is written over it.
	default:
		return errors.Join(err, s.fail("remove "+name, removeErr))
	}
	return err
}

// publish makes a synced file the current checkpoint. The maintain token is held.
// Renamed says that the file has its name: readers find it there, so that it is the
// current one also if what makes the name durable finds no room.
func (s *Storage) publish(name string, meta CheckpointMeta, digest uint32) (renamed bool, err error) {
	if err := s.fs.Rename(name, s.path(checkpointFile)); err != nil {
		return false, s.drop("rename "+name, err)
	}
	s.mu.Lock()
	s.mem.checkpoint = &meta
	s.mu.Unlock()
	// A crash here finds the old or the new file, both whole; the register
	// still names the old one, which the newer one satisfies. The log reaches both,
	// because bound is the old one's.
	if err := s.fs.SyncDir(s.dir); err != nil {
		return true, s.drop("sync "+s.dir, err)
	}
	if err := s.tryMark(s.currentMark(), map[string]any{registerCheckpoint: registered{Meta: meta, Digest: digest}}); err != nil {
		return true, s.drop("register a checkpoint", err)
	}
	s.mu.Lock()
	s.bound = meta.Index
	s.mu.Unlock()
	return true, nil
}

// ReadCheckpoint streams the current checkpoint and checks every bit of it: fn gets
// packed records, each with its length as a varint in front, and keeps them. They
// are all of it only if the error is nil. ErrNoCheckpoint, *DamageError,
// *VersionError, or what fn returned.
func (s *Storage) ReadCheckpoint(fn func(packed []byte) error) (CheckpointMeta, error) {
	in, _, err := s.OpenCheckpoint()
	if err != nil {
		return CheckpointMeta{}, err
	}
	meta, _, err := readCheckpoint(in, fn)
	if err != nil {
		err = damagedCheckpoint(s.path(checkpointFile), err)
	}
	return meta, errors.Join(err, in.Close())
}

// OpenCheckpoint opens the bytes of the current checkpoint file, for a peer's
// ReceiveCheckpoint. They stay readable when a newer one replaces it; the
// meta is that of the file opened.
func (s *Storage) OpenCheckpoint() (io.ReadCloser, CheckpointMeta, error) {
	// The file and its description change together under maintain.
	s.maintain.take()
	defer s.maintain.give()
	meta, ok := s.Checkpoint()
	if !ok {
		return nil, meta, ErrNoCheckpoint
	}
	f, err := s.fs.OpenFile(s.path(checkpointFile), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = &DamageError{File: s.path(checkpointFile), What: "the file is missing", Do: doFile}
	}
	if err != nil {
		return nil, meta, err
	}
	return newFileReader(f, int64(meta.Bytes)), meta, nil
}

type fileReader struct {
	*bufio.Reader
	file disk.File
}

func newFileReader(f disk.File, size int64) fileReader {
	return fileReader{bufio.NewReaderSize(io.NewSectionReader(f, 0, size), int(min(copyBuffer, size))), f}
}

func (r fileReader) Close() error { return r.file.Close() }

// ReceiveCheckpoint stores a checkpoint file beside the current one and
// verifies all of it; durable on return, and to be installed or replaced by
// the next receive. ErrReceiving: another one is under way. ErrOutdated: the
// current one is as new. *NoRoomError: the disk has no room for it. An error of r
// or in what it gives changes nothing.
func (s *Storage) ReceiveCheckpoint(r io.Reader) (CheckpointMeta, error) {
	if !s.receiving.try() {
		return CheckpointMeta{}, ErrReceiving
	}
	defer s.receiving.give()
	if err := s.inPlace(); err != nil {
		return CheckpointMeta{}, err
	}
	s.received, s.receivedCluster = nil, nil
	name := s.path(incomingFile)
	f, err := s.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return CheckpointMeta{}, s.drop("create "+name, err)
	}
	meta, err := s.storeIncoming(f, r)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = s.drop("close "+name, closeErr)
	}
	if err != nil {
		return meta, s.discard(name, err)
	}
	s.found(forCheckpoint)
	s.received = &meta
	return meta, nil
}

// recordCluster is the number of the field in rootv1.Record.
const recordCluster = 1

// storeIncoming copies r to f while checking it.
func (s *Storage) storeIncoming(f disk.File, r io.Reader) (CheckpointMeta, error) {
	out := &fileWriter{file: f}
	buffered := bufio.NewWriterSize(out, copyBuffer)
	meta, _, err := readCheckpoint(io.TeeReader(r, buffered), func(packed []byte) (err error) {
		eachRecord(packed, func(record []byte) {
			if num, _, n := protowire.ConsumeTag(record); n > 0 && num == recordCluster && err == nil {
				rec := &rootv1.Record{}
				err = proto.Unmarshal(record, rec)
				s.receivedCluster = rec.GetCluster()
			}
		})
		return errors.Join(err, s.options.checkRecords(packed))
	})
	if err == nil {
		err = buffered.Flush()
	}
	if out.err != nil {
		return meta, s.drop("write a received checkpoint", out.err)
	}
	if err != nil {
		return meta, fmt.Errorf("receive checkpoint: %w", err)
	}
	if id, ok := s.Identity(); ok && id.ClusterID != 0 && id.ClusterID != meta.ClusterID {
		return meta, fmt.Errorf("receive checkpoint: it is of cluster %x, the workdir of cluster %x", meta.ClusterID, id.ClusterID)
	}
	if current, ok := s.Checkpoint(); ok && current.Index >= meta.Index {
		return meta, ErrOutdated
	}
	if err := f.Sync(); err != nil {
		return meta, s.drop("sync a received checkpoint", err)
	}
	return meta, nil
}

// HoldCheckpoint keeps the received checkpoint from being replaced, until it is
// installed or released: receives that begin meanwhile get ErrReceiving. Called by
// the goroutine of Append. False: the one received last is not this one, or a
// receive is under way.
func (s *Storage) HoldCheckpoint(meta CheckpointMeta) bool {
	held := s.held
	if !held && !s.receiving.try() {
		return false
	}
	s.held = true
	if s.received == nil || *s.received != meta {
		if !held { // Raft counts on the one that is held.
			s.ReleaseCheckpoint()
		}
		return false
	}
	return true
}

// ReceivedCluster is the cluster record in the checkpoint that is held; nil when
// it has none. Called by the goroutine of Append, while it holds it.
func (s *Storage) ReceivedCluster() *rootv1.Cluster { return s.receivedCluster }

// ReleaseCheckpoint ends HoldCheckpoint, if it is in force. Called by the
// goroutine of Append.
func (s *Storage) ReleaseCheckpoint() {
	if s.held {
		s.held = false
		s.receiving.give()
	}
}

// InstallCheckpoint makes the received checkpoint the current one and the log
// empty behind it; deferred entries are forgotten. The log must not have
// committed as far. Called by the goroutine of Append; it ends HoldCheckpoint.
// ErrReceiving: a receive is under way. ErrNoCheckpoint: the one received last is
// not this one.
func (s *Storage) InstallCheckpoint(meta CheckpointMeta) error {
	if !s.held && !s.receiving.try() {
		return ErrReceiving
	}
	s.held = true
	defer s.ReleaseCheckpoint()
	if err := s.inPlace(); err != nil {
		return err
	}
	if s.received == nil || *s.received != meta {
		return fmt.Errorf("install checkpoint of index %d: %w", meta.Index, ErrNoCheckpoint)
	}
	if commit := s.log.hard.GetCommit(); commit >= meta.Index {
		return fmt.Errorf("install checkpoint of index %d, committed %d: %w", meta.Index, commit, ErrOutdated)
	}
	s.maintain.take()
	defer s.maintain.give()
	if current, ok := s.Checkpoint(); ok && current.Index >= meta.Index {
		return ErrOutdated
	}
	s.received = nil
	name := s.path(incomingFile)
	_, digest, err := peekCheckpoint(s.fs, name)
	if err != nil {
		return s.fail("install a checkpoint", err)
	}
	if _, err := s.publish(name, meta, digest); err != nil {
		return s.fail("install a checkpoint", err) // Raft counts on it: it cannot wait.
	}
	// A crash here finds the new checkpoint and a log without its entry: Open
	// does what follows.
	return s.resetLog(meta.Index, meta.Term)
}
