package storage

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/freshness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The files of a workdir.
const (
	registersFile  = "root.raft.bin"
	walDir         = "root.events.wal"
	checkpointFile = "root.checkpoint.binpb"
	checkpointTmp  = checkpointFile + ".tmp"
	incomingFile   = checkpointFile + ".incoming"
)

// Storage is one open workdir. Append and InstallCheckpoint belong to one
// goroutine; everything else may be called by any.
type Storage struct {
	dir       string
	options   Options
	fs        disk.FS
	lock      disk.Lock
	registers Registers
	failed    atomic.Pointer[FailedError]
	closed    atomic.Bool

	// log belongs to the goroutine of Append.
	log appender

	// segments is held while a segment is made. Append takes it only when none was
	// made ahead.
	segments token
	files    segmentFiles
	// missed is where the log ended when no room was found for the next segment.
	missed position

	// starts belongs to who opened the workdir; footing is never changed behind Open.
	starts  starts
	footing freshness.Footing
	memory  *freshness.Memory

	// grown is a level: there may be something to maintain.
	grown chan struct{}
	// shortage is what found no room last, and was dropped.
	shortage shortage

	// maintain is held by whoever puts the mark or retires segments: the end of
	// WriteCheckpoint, InstallCheckpoint, Maintain, Close. It is taken before
	// segments, never by Append or Compact.
	maintain token
	marked   mark

	// writing and receiving are held for a whole checkpoint; filling, within writing,
	// while its file grows, which crowded ends.
	writing, receiving, filling token
	crowded                     atomic.Bool
	// received is what waits in incomingFile, under receiving.
	received *CheckpointMeta
	// receivedCluster is the cluster record in it.
	receivedCluster *rootv1.Cluster
	// held says that the goroutine of Append has receiving; it alone looks.
	held bool

	// mu guards what follows; never held across I/O.
	mu       sync.RWMutex
	mem      memory
	retained []retained
	// next is the segment made ahead, nil for none; set under segments too.
	next *segment
	// bound is the index of the newest checkpoint whose name is durable: the log
	// behind it is not needed.
	bound uint64
	// durable is the end of the log's synced frames; First and Clean unused.
	durable  mark
	identity *Identity
}

var _ raft.Storage = (*Storage)(nil)

// Run does the work that is off the commit path until ctx ends or the disk
// fails: it prepares the next segment, retires those that Compact left empty and
// updates the durable mark, at most every MarkInterval and only after something
// was appended or compacted. Without Run, segments are made
// when they are needed and never retired, and the mark moves with checkpoints
// and at Close. Returns a *FailedError, or nil when ctx ended.
func (s *Storage) Run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		if err := s.Maintain(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.grown:
			pause.Reset(s.options.MarkInterval)
		}
	}
}

// grew has Run look.
func (s *Storage) grew() {
	select {
	case s.grown <- struct{}{}:
	default:
	}
}

// Maintain does once what Run repeats. Simulations call it themselves.
func (s *Storage) Maintain() error {
	if err := s.inPlace(); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.retireSpent(); err != nil {
		return err
	}
	return s.MarkDurable()
}

// MarkDurable records how far the log is known to be durable, if it has grown
// since the last time.
func (s *Storage) MarkDurable() error {
	s.maintain.take()
	defer s.maintain.give()
	if err := s.usable(); err != nil {
		if errors.Is(err, ErrClosed) {
			return nil
		}
		return err
	}
	if m := s.currentMark(); m != s.marked || s.memory.Dirty() {
		return s.putMark(m, nil)
	}
	return nil
}

// currentMark is the mark as it could be now.
func (s *Storage) currentMark() mark {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := s.durable
	m.First = s.retained[0].sequence
	return m
}

// putMark makes a mark durable, with more registers and what is remembered of other
// peers. The maintain token is held.
func (s *Storage) putMark(m mark, more map[string]any) error {
	if err := s.tryMark(m, more); err != nil {
		return s.fail("put the durable mark", err)
	}
	return nil
}

// tryMark is putMark for those who may do without it.
func (s *Storage) tryMark(m mark, more map[string]any) error {
	values := map[string]any{registerMark: m}
	maps.Copy(values, more)
	var known map[uint64]freshness.Known
	if s.memory.Dirty() {
		known = s.memory.Saving()
		values[registerKnown] = known
	}
	if err := putRegisters(s.registers, values); err != nil {
		return err
	}
	s.memory.Saved(known)
	s.marked = m
	return nil
}

// Identity returns the saved identity, false when there is none.
func (s *Storage) Identity() (Identity, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.identity == nil {
		return Identity{}, false
	}
	id := *s.identity
	id.Peers, id.Former = slices.Clone(id.Peers), slices.Clone(id.Former)
	return id, true
}

// SaveIdentity replaces the identity and sets the voters to its peers, none for
// one that joined; durable on return.
func (s *Storage) SaveIdentity(id Identity) error {
	if err := s.usable(); err != nil {
		return err
	}
	id.Peers, id.Former = slices.Clone(id.Peers), slices.Clone(id.Former)
	if err := putRegisters(s.registers, map[string]any{registerIdentity: id, registerStarts: s.starts}); err != nil {
		return s.fail("save the identity", err)
	}
	s.adoptIdentity(id)
	return nil
}

func (s *Storage) adoptIdentity(id Identity) {
	s.SetVoters(voters(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = &id
}

func voters(id Identity) []uint64 {
	if id.Joined {
		return nil
	}
	ids := make([]uint64, len(id.Peers))
	for i, p := range id.Peers {
		ids[i] = p.NodeID
	}
	return ids
}

func (s *Storage) owner() Identity {
	id, _ := s.Identity()
	return id
}

// Compact drops entries up to and including index, never beyond the current
// checkpoint. It does not wait for the disk: the segments that hold nothing else
// are Maintain's to retire, and a restart before that finds their entries again.
func (s *Storage) Compact(index uint64) error {
	if err := s.usable(); err != nil {
		return err
	}
	defer s.grew()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.drop(min(index, s.bound, s.mem.lastIndex()))
	return nil
}

// retireSpent retires the oldest segments: those that hold only dropped entries.
func (s *Storage) retireSpent() error {
	s.maintain.take()
	defer s.maintain.give()
	if s.usable() != nil {
		return nil // MarkDurable says it.
	}
	spent := s.dropSpent()
	if len(spent) == 0 {
		return nil
	}
	if err := s.putMark(s.currentMark(), nil); err != nil {
		return err
	}
	// A crash from here on finds segments below the mark's first, and Open
	// removes them.
	switch err := s.files.retire(spent); {
	case disk.NoRoom(err):
		s.lacked(forSegment, "retire a segment", err) // The next Open removes it.
	case err != nil:
		return s.fail("retire a segment", err)
	}
	return nil
}

// dropSpent takes the segments that are to be retired out of the log: never one
// behind which nothing is durable yet. What begins the next one may still be lost.
func (s *Storage) dropSpent() []retained {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.retained)-1 && s.retained[n].sequence < s.durable.At.Sequence && s.retained[n].last <= s.mem.base {
		n++
	}
	spent := s.retained[:n:n]
	s.retained = slices.Clone(s.retained[n:])
	return spent
}

// Close makes everything durable, marks it and gives the workdir up. Call it
// from the goroutine of Append, after Run has returned. A failed storage is
// closed as it is.
func (s *Storage) Close() error {
	s.maintain.take()
	defer s.maintain.give()
	err := s.usable()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err == nil {
		if err = s.flush(); err == nil {
			m := s.currentMark()
			m.Clean = true
			err = s.putMark(m, nil)
		}
	}
	s.closed.Store(true)
	return errors.Join(err, s.release())
}

// release gives up files and, last, the lock.
func (s *Storage) release() error {
	var errs []error
	s.segments.take()
	s.mu.Lock()
	next := s.next
	s.mu.Unlock()
	for _, seg := range []*segment{s.log.active, next} {
		if seg != nil {
			errs = append(errs, seg.file.Close())
		}
	}
	s.segments.give()
	if s.registers != nil {
		errs = append(errs, s.registers.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

func (s *Storage) path(name string) string { return path.Join(s.dir, name) }
