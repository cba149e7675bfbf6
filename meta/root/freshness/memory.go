package freshness

import (
	"fmt"
	"maps"
	"sync"
)

// maxKnown bounds the peers that are remembered.
const maxKnown = 64

// Known is what a peer remembers of another.
type Known struct {
	// Start is the newest start that was admitted here, or by a peer that told.
	Start Start
	// Before was promised before Start, Now since.
	Before, Now Promise
}

// next is what is known once another start was admitted.
func (k Known) next(s Start) Known { return Known{Start: s, Before: k.Before.Merge(k.Now)} }

// Memory is what one peer remembers of the others. Its methods may be called by many
// goroutines.
type Memory struct {
	// save makes Table durable, by the time it returns.
	save func() error
	// grew is told that there is something to be made durable by and by.
	grew func()

	mu      sync.Mutex // guards what follows
	table   map[uint64]Known
	durable map[uint64]Start // the starts that save has saved
	dirty   bool             // table has what save has not
}

// NewMemory makes a memory of what was saved. save is called while nothing is held; it
// takes Table, and calls Saved when that is durable. grew must not block. Both may be nil.
func NewMemory(saved map[uint64]Known, save func() error, grew func()) *Memory {
	m := &Memory{save: save, grew: grew, table: map[uint64]Known{}, durable: map[uint64]Start{}}
	maps.Copy(m.table, saved)
	for node, k := range saved {
		m.durable[node] = k.Start
	}
	return m
}

// Admit judges a peer by what it claims, and remembers its start, durably. It returns
// what the peer promised before. *StaleError and *UnknownError: it is refused, and
// nothing is remembered of it. Other errors are those of save.
func (m *Memory) Admit(node uint64, c Claim) (before Promise, err error) {
	k, saved, err := m.admit(node, c)
	if err != nil || saved || m.save == nil {
		return k.Before, err
	}
	// A crash before this line finds the start before: the peer comes again, and is judged again.
	if err := m.save(); err != nil {
		return k.Before, fmt.Errorf("remember a start of root peer %d: %w", node, err)
	}
	return k.Before, nil
}

func (m *Memory) admit(node uint64, c Claim) (k Known, saved bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, known := m.table[node]
	if k, err = judge(node, k, known, c); err != nil {
		return k, false, err
	}
	if !known && len(m.table) >= maxKnown {
		return k, false, &UnknownError{Node: node, Why: fmt.Sprintf("%d other root peers are remembered, and it is none of them", maxKnown)}
	}
	m.table[node] = k
	saved = m.durable[node] == k.Start
	m.dirty = m.dirty || !saved
	return k, saved, nil
}

// judge is rules 4 and 5. It returns what is known once the peer is admitted.
func judge(node uint64, k Known, known bool, c Claim) (Known, error) {
	now := c.Newest()
	stale := func(format string, args ...any) (Known, error) {
		return k, &StaleError{Node: node, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case !c.Valid():
		return k, &UnknownError{Node: node, Why: "it does not say how often it was started"}
	case !known:
		k = Known{Start: now}
	case now.Count < k.Start.Count:
		return stale("it is start %d of the folder, and its start %d is known", now.Count, k.Start.Count)
	case now.Count == k.Start.Count && now.Nonce != k.Start.Nonce:
		return stale("it is start %d of the folder, and another start %d is known", now.Count, k.Start.Count)
	case now.Count > k.Start.Count:
		switch nonce, there := c.nonce(k.Start.Count); {
		case !there:
			return k, &UnknownError{Node: node, Why: fmt.Sprintf("it is start %d of the folder, which remembers %d of them, and start %d is the last that is known", now.Count, len(c.Nonces), k.Start.Count)}
		case nonce != k.Start.Nonce:
			return stale("it is start %d of the folder, and another start %d is known than the one that it remembers", now.Count, k.Start.Count)
		}
		k = k.next(now)
	}
	if why := c.Lacks(k.Before); why != "" {
		return stale("%s", why)
	}
	return k, nil
}

// Note remembers what a peer promised in a start of its process.
func (m *Memory) Note(node uint64, s Start, p Promise) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, known := m.table[node]
	switch {
	case !known || s.Count > k.Start.Count:
		return // Who was not admitted is not listened to.
	case s == k.Start:
		k.Now = k.Now.Merge(p)
	default:
		k.Before = k.Before.Merge(p)
	}
	m.put(node, k)
}

// Hear takes over what another peer remembers, except of self.
func (m *Memory) Hear(self uint64, table map[uint64]Known) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, theirs := range table {
		mine, known := m.table[node]
		if node == self || theirs.Start.Count == 0 || !known && len(m.table) >= maxKnown {
			continue
		}
		m.put(node, join(mine, theirs))
	}
}

// join is what is known by two peers of a third. Of two starts with one count the first
// stays: whichever comes, one of the two peers refuses it.
func join(mine, theirs Known) Known {
	switch {
	case mine.Start == theirs.Start:
		mine.Before, mine.Now = mine.Before.Merge(theirs.Before), mine.Now.Merge(theirs.Now)
	case theirs.Start.Count > mine.Start.Count:
		theirs.Before = theirs.Before.Merge(mine.Before).Merge(mine.Now)
		return theirs
	default:
		mine.Before = mine.Before.Merge(theirs.Before).Merge(theirs.Now)
	}
	return mine
}

// put stores what is known of a peer. The lock is held.
func (m *Memory) put(node uint64, k Known) {
	if m.table[node] == k {
		return
	}
	m.table[node] = k
	if !m.dirty && m.grew != nil {
		m.grew()
	}
	m.dirty = true
}

// Of is what is remembered of a peer; false: nothing.
func (m *Memory) Of(node uint64) (Known, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, known := m.table[node]
	return k, known
}

// Forget drops those that gone names: peers that were replaced are refused for that.
func (m *Memory) Forget(gone func(node uint64) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node := range m.table {
		if gone(node) {
			delete(m.table, node)
			delete(m.durable, node)
			m.dirty = true
		}
	}
}

// Table is a copy of what is remembered.
func (m *Memory) Table() map[uint64]Known {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.table)
}

// Dirty says whether there is something to save.
func (m *Memory) Dirty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dirty
}

// Saving is Table, and takes it for what save is about to save.
func (m *Memory) Saving() map[uint64]Known {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirty = false
	return maps.Clone(m.table)
}

// Saved says that a Table of Saving is durable.
func (m *Memory) Saved(table map[uint64]Known) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, k := range table {
		m.durable[node] = k.Start
	}
}
