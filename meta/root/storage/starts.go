package storage

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/nokv/nokv/meta/root/freshness"
)

// starts is how often the folder was started, and with which nonces; zero before the
// first start. Written with the identity and at each start.
type starts struct {
	Count  uint64
	Nonces []byte // 8 bytes each, the newest last
	// Barred says why the folder must not be started again; empty: it may be.
	Barred string `json:",omitempty"`
}

func (s *starts) history() freshness.History {
	h := freshness.History{Count: s.Count}
	for b := s.Nonces; len(b) >= 8; b = b[8:] {
		h.Nonces = append(h.Nonces, binary.BigEndian.Uint64(b))
	}
	return h
}

// valid says whether the register can be what Begin or SaveIdentity wrote.
func (s *starts) valid() bool {
	return len(s.Nonces)%8 == 0 && (s.Count == 0 && len(s.Nonces) == 0 || s.history().Valid())
}

// Begin counts a start of the peer's process, durably, and returns what the peer may
// claim from then on: its starts, and what the folder held when it was opened. Call
// it before anybody is told anything. *freshness.StaleError: the folder was barred.
func (s *Storage) Begin() (freshness.Claim, error) {
	if err := s.usable(); err != nil {
		return freshness.Claim{}, err
	}
	if why := s.starts.Barred; why != "" {
		return freshness.Claim{}, &freshness.StaleError{Node: s.owner().NodeID, Why: why}
	}
	nonce, err := newNonce()
	if err != nil {
		return freshness.Claim{}, err
	}
	h := s.starts.history().Next(nonce)
	next := starts{Count: h.Count}
	for _, n := range h.Nonces {
		next.Nonces = binary.BigEndian.AppendUint64(next.Nonces, n)
	}
	// A crash before this line finds the starts before: nobody has heard of this one.
	if err := putRegisters(s.registers, map[string]any{registerStarts: next}); err != nil {
		return freshness.Claim{}, s.fail("count a start", err)
	}
	s.starts = next
	return freshness.Claim{History: h, Footing: s.footing}, nil
}

func newNonce() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

// Bar keeps the folder from being started again; durable on return. The first
// reason stays.
func (s *Storage) Bar(why string) error {
	if err := s.usable(); err != nil {
		return err
	}
	next := s.starts
	if next.Barred != "" {
		return nil
	}
	next.Barred = why
	if err := putRegisters(s.registers, map[string]any{registerStarts: next}); err != nil {
		return s.fail("bar the workdir", err)
	}
	s.starts = next
	return nil
}

// Memory is what this peer remembers of the others. It is made durable with the
// durable mark, and at once when it admits a start.
func (s *Storage) Memory() *freshness.Memory { return s.memory }

// saveMemory makes the memory durable.
func (s *Storage) saveMemory() error {
	s.maintain.take()
	defer s.maintain.give()
	if err := s.usable(); err != nil {
		return err
	}
	return s.putMark(s.currentMark(), nil)
}

// takeFooting notes what the log holds, before anything is added to it.
func (s *Storage) takeFooting() {
	m := &s.mem
	s.footing = freshness.Footing{Term: m.hard.GetTerm(), Vote: m.hard.GetVote(), Base: m.base, Last: m.base}
	for _, e := range m.entries {
		s.footing.Add(e.GetIndex(), e.GetTerm())
	}
}
