package storage

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nokv/nokv/internal/disk"
)

// maxKeptBuffer is how large an encoding buffer may stay between Appends.
const maxKeptBuffer = 4 << 20

// appender is the end of the log. It belongs to the goroutine of Append.
type appender struct {
	active *segment
	at     position
	// hard is the newest hard state given, durable or deferred.
	hard *raftpb.HardState
	// index and term are of the last entry in the log's frames.
	index, term uint64
	// Given without sync, for the next frame.
	deferredHard    bool
	deferredEntries []*raftpb.Entry
	buf             []byte
}

// retained is a segment that readers of the log after a crash need.
type retained struct {
	sequence uint64
	bytes    int64
	// last is the highest index in it or before it.
	last uint64
}

// Append adds a hard state (nil: unchanged) and entries to the log. Entries
// replace those of their index and above. With sync all is durable on return,
// after one write and one fdatasync. Without sync it becomes durable with the
// next synced Append, or at Close: right for a mere commit index. Called by
// one goroutine; what is passed must not be modified afterwards. Errors but
// ErrClosed are a *FailedError and final.
func (s *Storage) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	if err := s.usable(); err != nil {
		return err
	}
	entries = s.admit(hs, entries)
	s.deferBatch(hs, entries)
	if sync {
		return s.flush()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.hard = s.log.hard
	s.mem.put(entries)
	return nil
}

// admit cuts off what is compacted and insists on a log without gaps and on
// a commit index inside it.
func (s *Storage) admit(hs *raftpb.HardState, entries []*raftpb.Entry) []*raftpb.Entry {
	// Only this goroutine moves the end; Compact may move the beginning.
	s.mu.RLock()
	base, last := s.mem.base, s.mem.lastIndex()
	s.mu.RUnlock()
	end := last
	if n := len(entries); n > 0 {
		end = max(base, entries[n-1].GetIndex())
	}
	if commit := hs.GetCommit(); commit > end {
		panic(fmt.Sprintf("storage: append: commit index %d is behind the last entry %d; a checkpoint must be installed first", commit, end))
	}
	if len(entries) == 0 {
		return nil
	}
	for i, e := range entries {
		if e.GetIndex() != entries[0].GetIndex()+uint64(i) {
			panic(fmt.Sprintf("storage: append: entry %d at place %d after entry %d", e.GetIndex(), i, entries[0].GetIndex()))
		}
	}
	if first := entries[0].GetIndex(); first > last+1 {
		panic(fmt.Sprintf("storage: append: entry %d leaves a gap behind entry %d", first, last))
	}
	if first := entries[0].GetIndex(); first <= base {
		entries = entries[min(base+1-first, uint64(len(entries))):]
	}
	return entries
}

// deferBatch adds to what the next frame must carry.
func (s *Storage) deferBatch(hs *raftpb.HardState, entries []*raftpb.Entry) {
	if hs != nil {
		s.log.hard, s.log.deferredHard = hs, true
	}
	if len(entries) == 0 {
		return
	}
	kept := s.log.deferredEntries
	if len(kept) == 0 || entries[0].GetIndex() <= kept[0].GetIndex() {
		s.log.deferredEntries = entries
		return
	}
	keep := entries[0].GetIndex() - kept[0].GetIndex()
	s.log.deferredEntries = append(kept[:keep:keep], entries...)
}

// flush makes everything deferred durable in one frame, then visible.
func (s *Storage) flush() error {
	b := batch{entries: s.log.deferredEntries}
	if s.log.deferredHard {
		b.hard = s.log.hard
	}
	if b.hard == nil && len(b.entries) == 0 {
		return nil
	}
	if err := s.writeFrame(b, s.log.at.Number, s.log.at.Chain, link{index: s.log.index, term: s.log.term}); err != nil {
		return err
	}
	s.log.deferredHard, s.log.deferredEntries = false, nil
	if n := len(b.entries); n > 0 {
		s.log.index, s.log.term = b.entries[n-1].GetIndex(), b.entries[n-1].GetTerm()
	}
	// Durable, and nobody has been told: a restart finds it.
	defer s.grew()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.durable = mark{At: s.log.at, LastIndex: s.log.index}
	s.mem.hard = s.log.hard
	s.mem.put(b.entries)
	tail := &s.retained[len(s.retained)-1]
	tail.last = max(tail.last, s.log.index)
	return nil
}

// writeFrame writes a frame at the end of the log with one write and one
// fdatasync. before is the entry in front of the frame, needed if it opens a
// segment.
func (s *Storage) writeFrame(b batch, number uint64, prev uint32, before link) error {
	payload := appendBatch(s.log.buffer(), b)
	size := frameBytes(len(payload) - frameHeaderBytes)
	if len(payload) > maxPayloadBytes {
		return s.fail("append", fmt.Errorf("a batch of %d bytes is above the limit of %d", len(payload), maxPayloadBytes))
	}
	if s.log.at.Offset+size > s.log.active.bytes {
		if b.link == nil {
			before.chain = prev
			b.link = &before
		}
		if b.hard == nil {
			b.hard = s.log.hard
		}
		payload = appendBatch(s.log.buffer(), b)
		size = frameBytes(len(payload) - frameHeaderBytes)
		if err := s.rotate(size); err != nil {
			return s.fail("begin a segment", err)
		}
	}
	sealed, chain := sealFrame(payload, s.log.active.salt, number, prev)
	if _, err := s.log.active.file.WriteAt(sealed, s.log.at.Offset); err != nil {
		return s.fail("write "+s.files.path(s.log.active.sequence), err)
	}
	// A crash from here on finds the frame whole, or a torn tail.
	if err := s.log.active.file.Sync(); err != nil {
		return s.fail("sync "+s.files.path(s.log.active.sequence), err)
	}
	s.log.at = position{Sequence: s.log.active.sequence, Offset: s.log.at.Offset + size, Number: number + 1, Chain: chain}
	if s.log.buf = sealed[:0]; cap(sealed) > maxKeptBuffer {
		s.log.buf = nil
	}
	return nil
}

// buffer returns room for a frame header to append a payload to.
func (l *appender) buffer() []byte {
	return append(l.buf[:0], zeros[:frameHeaderBytes]...)
}

// rotate makes the next segment the active one, with room for size bytes.
func (s *Storage) rotate(size int64) error {
	room := max(s.options.SegmentBytes, sectorBytes+size)
	next := s.takeNext(room)
	if next == nil {
		var err error
		if next, err = s.makeNext(room); err != nil {
			return err
		}
	}
	old := s.log.active
	s.log.active = next
	s.log.at.Sequence, s.log.at.Offset = next.sequence, sectorBytes
	return old.file.Close()
}

// takeNext makes the prepared segment the last of the log and returns it; nil:
// there is none with so much room.
func (s *Storage) takeNext(room int64) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.next
	if next == nil || next.bytes < room {
		return nil
	}
	s.next = nil
	s.retainLocked(next)
	return next
}

func (s *Storage) retainLocked(next *segment) {
	s.retained = append(s.retained, retained{sequence: next.sequence, bytes: next.bytes, last: s.retained[len(s.retained)-1].last})
}

// makeNext makes a segment where none was made ahead, or a too small one. It
// waits for one that is being made.
func (s *Storage) makeNext(room int64) (*segment, error) {
	s.segments.take()
	defer s.segments.give()
	if err := s.inPlace(); err != nil {
		return nil, err
	}
	if next := s.takeNext(room); next != nil {
		return next, nil
	}
	s.mu.Lock()
	small := s.next
	s.next = nil
	s.mu.Unlock()
	if small != nil {
		if err := small.file.Close(); err != nil {
			return nil, err
		}
	}
	next, err := s.files.create(s.log.active.sequence+1, room, s.owner())
	if disk.NoRoom(err) {
		s.makeRoom()
		next, err = s.files.create(s.log.active.sequence+1, room, s.owner())
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retainLocked(next)
	return next, nil
}

// prepare makes the next segment ahead of its use.
func (s *Storage) prepare() error {
	s.segments.take()
	defer s.segments.give()
	s.mu.RLock()
	// Nobody else makes one meanwhile, so the newest stays the newest.
	there, newest, at := s.next != nil, s.retained[len(s.retained)-1].sequence, s.durable.At
	s.mu.RUnlock()
	if there || s.usable() != nil || !s.worthwhile(at) {
		return nil
	}
	next, err := s.files.create(newest+1, s.options.SegmentBytes, s.owner())
	if disk.NoRoom(err) {
		// The log has the rest of its last segment, and makes the next one when it must.
		s.missed = at
		s.lacked(forSegment, "prepare a segment", err)
		return nil
	}
	if err != nil {
		return s.fail("prepare a segment", err)
	}
	s.found(forSegment)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed, s.next = position{}, next
	return nil
}

// prepareShare: a segment that found no room is tried again when so large a part of one
// was appended.
const prepareShare = 16

// worthwhile says that the log, which ends at at, has grown since no room was found for
// a segment, so that the disk is not filled and emptied all the time. The segments token is held.
func (s *Storage) worthwhile(at position) bool {
	return at.Sequence != s.missed.Sequence || at.Offset-s.missed.Offset >= s.options.SegmentBytes/prepareShare
}

// resetLog makes the log empty behind an entry: one frame in a new segment
// says so. The older segments are Maintain's to retire. The maintain token is held.
func (s *Storage) resetLog(index, term uint64) error {
	s.log.deferredHard, s.log.deferredEntries = false, nil
	s.log.at.Offset = s.log.active.bytes // Nothing more fits: the frame opens a segment.
	before := link{index: index, term: term, reset: true}
	if err := s.writeFrame(batch{}, s.log.at.Number, s.log.at.Chain, before); err != nil {
		return err
	}
	s.log.index, s.log.term = index, term
	defer s.grew()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.base, s.mem.baseTerm, s.mem.entries = index, term, nil
	s.mem.hard = s.log.hard
	s.durable = mark{At: s.log.at, LastIndex: index}
	for i := range s.retained {
		s.retained[i].last = index
	}
	return nil
}

// usable says why nothing can be done any more.
func (s *Storage) usable() error {
	if f := s.failed.Load(); f != nil {
		return f
	}
	if s.closed.Load() {
		return ErrClosed
	}
	return nil
}

// fail makes the storage failed for good and returns the first reason.
func (s *Storage) fail(op string, err error) error {
	var first *FailedError
	if errors.As(err, &first) {
		return first
	}
	s.failed.CompareAndSwap(nil, &FailedError{Op: op, Err: err})
	first = s.failed.Load()
	s.options.Logger.Error("storage failed for good", "op", first.Op, "err", first.Err)
	s.grew() // Run ends.
	return first
}
