package storage

import (
	"math/bits"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// memory is the retained log as readers see it. The array behind entries is
// only ever appended to, so that slices given out stay as they are.
type memory struct {
	// base and baseTerm are of the entry before the first.
	base, baseTerm uint64
	entries        []*raftpb.Entry
	hard           *raftpb.HardState
	voters         []uint64
	checkpoint     *CheckpointMeta
}

func (m *memory) lastIndex() uint64 { return m.base + uint64(len(m.entries)) }

// term returns raft's errors for indexes outside [base, last].
func (m *memory) term(index uint64) (uint64, error) {
	switch {
	case index < m.base:
		return 0, raft.ErrCompacted
	case index == m.base:
		return m.baseTerm, nil
	case index > m.lastIndex():
		return 0, raft.ErrUnavailable
	}
	return m.entries[index-m.base-1].GetTerm(), nil
}

// put replaces everything from the first of entries on.
func (m *memory) put(entries []*raftpb.Entry) {
	for len(entries) > 0 && entries[0].GetIndex() <= m.base {
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return
	}
	keep := entries[0].GetIndex() - m.base - 1
	if keep < uint64(len(m.entries)) {
		m.entries = m.entries[:keep:keep]
	}
	m.entries = append(m.entries, entries...)
}

// drop forgets entries up to and including index, into a new array so that
// the old one can go.
func (m *memory) drop(index uint64) {
	if index <= m.base {
		return
	}
	m.baseTerm, _ = m.term(index)
	m.entries = slices.Clone(m.entries[index-m.base:])
	m.base = index
}

// limit cuts entries to those that fit into bytes, at least one.
func limit(entries []*raftpb.Entry, bytes uint64) []*raftpb.Entry {
	var sum uint64
	for i, e := range entries {
		if sum += entryBytes(e); sum > bytes && i > 0 {
			entries = entries[:i]
			break
		}
	}
	return entries[:len(entries):len(entries)]
}

// entryBytes is proto.Size of an entry without reflection.
func entryBytes(e *raftpb.Entry) uint64 {
	var n uint64
	if e.Type != nil {
		n += 1 + uvarintBytes(uint64(*e.Type))
	}
	if e.Term != nil {
		n += 1 + uvarintBytes(*e.Term)
	}
	if e.Index != nil {
		n += 1 + uvarintBytes(*e.Index)
	}
	if e.Data != nil {
		n += 1 + uvarintBytes(uint64(len(e.Data))) + uint64(len(e.Data))
	}
	return n
}

func uvarintBytes(v uint64) uint64 { return uint64(bits.Len64(v|1)+6) / 7 }

// InitialState implements raft.Storage. The commit index is never below the
// log's beginning, and the term never below a checkpoint's: a crash between
// the install of a checkpoint and the next Append leaves them behind.
func (s *Storage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	conf := &raftpb.ConfState{Voters: slices.Clone(s.mem.voters)}
	if s.mem.hard == nil && s.mem.base == 0 {
		return nil, conf, nil
	}
	term, vote, commit := s.mem.hard.GetTerm(), s.mem.hard.GetVote(), s.mem.hard.GetCommit()
	if term < s.mem.baseTerm {
		// Whoever voted in a term has saved that term.
		term, vote = s.mem.baseTerm, 0
	}
	return hardState(term, vote, max(commit, s.mem.base)), conf, nil
}

// SetVoters sets the voters told by InitialState and Snapshot. Open takes them
// from the identity's peers.
func (s *Storage) SetVoters(ids []uint64) {
	sorted := slices.Clone(ids)
	slices.Sort(sorted)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.voters = sorted
}

// Entries implements raft.Storage.
func (s *Storage) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if lo <= s.mem.base {
		return nil, raft.ErrCompacted
	}
	if hi > s.mem.lastIndex()+1 || lo > hi {
		return nil, raft.ErrUnavailable
	}
	return limit(s.mem.entries[lo-s.mem.base-1:hi-s.mem.base-1], maxSize), nil
}

// Committed returns entries of [lo, hi), as many as fit into maxBytes and at
// least one when there is one. It may be called at any time by any goroutine,
// and knows nothing of commits: hi is the caller's. The entries must not be
// modified. ErrCompacted: lo is no longer retained.
func (s *Storage) Committed(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if lo <= s.mem.base {
		return nil, ErrCompacted
	}
	hi = min(hi, s.mem.lastIndex()+1)
	if lo >= hi {
		return nil, nil
	}
	return limit(s.mem.entries[lo-s.mem.base-1:hi-s.mem.base-1], maxBytes), nil
}

// Term implements raft.Storage.
func (s *Storage) Term(i uint64) (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mem.term(i)
}

// LastIndex implements raft.Storage.
func (s *Storage) LastIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mem.lastIndex(), nil
}

// FirstIndex implements raft.Storage.
func (s *Storage) FirstIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mem.base + 1, nil
}

// Snapshot implements raft.Storage: the metadata of the newest durable
// checkpoint, without data; empty when there is none.
func (s *Storage) Snapshot() (*raftpb.Snapshot, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var index, term uint64
	if c := s.mem.checkpoint; c != nil {
		index, term = c.Index, c.Term
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		ConfState: &raftpb.ConfState{Voters: slices.Clone(s.mem.voters)},
		Index:     &index,
		Term:      &term,
	}}, nil
}
