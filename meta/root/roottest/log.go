package roottest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
)

// Log is the committed log: every entry that any peer ever applied. Peers that
// apply different bytes at one index are found at once.
type Log struct {
	entries map[uint64]logEntry
	last    uint64
	// seen is how far each peer's applied entries were looked at.
	seen map[*Peer]uint64
	err  error
}

type logEntry struct {
	term uint64
	data []byte
	by   uint64
}

func newLog() *Log {
	return &Log{entries: make(map[uint64]logEntry), seen: make(map[*Peer]uint64)}
}

// Last is the highest committed index seen.
func (l *Log) Last() uint64 { return l.last }

// record looks at what p has applied since the last look.
func (l *Log) record(p *Peer) {
	applied := p.core.view.Applied
	from := l.seen[p] + 1
	if from > applied {
		// A restart goes back to the checkpoint and applies again: the same, or it is found.
		if from > applied+1 {
			l.seen[p] = applied
		}
		return
	}
	first, err := p.store.FirstIndex()
	if err != nil {
		return
	}
	from = max(from, first)
	for from <= applied {
		entries, err := p.store.Committed(from, applied+1, 1<<30)
		if err != nil || len(entries) == 0 {
			break
		}
		for _, e := range entries {
			_, data, err := storage.Payload(e)
			if err != nil {
				return
			}
			l.add(p.ID, e.GetIndex(), e.GetTerm(), data)
		}
		from = entries[len(entries)-1].GetIndex() + 1
	}
	l.seen[p] = applied
}

func (l *Log) add(by, index, term uint64, data []byte) {
	old, ok := l.entries[index]
	if !ok {
		l.entries[index] = logEntry{term, bytes.Clone(data), by}
		l.last = max(l.last, index)
		return
	}
	if (old.term != term || !bytes.Equal(old.data, data)) && l.err == nil {
		l.err = fmt.Errorf("log agreement: at index %d root %d applied an entry of term %d, root %d one of term %d with other bytes", index, old.by, old.term, by, term)
	}
}

// Entry is the committed entry at index; term 0 when none was seen.
func (l *Log) Entry(index uint64) (term uint64, data []byte) {
	e := l.entries[index]
	return e.term, e.data
}

// Replay applies the whole log to an empty state, calling at after each entry.
// The error says that peers disagreed, that the log has a hole, or that an entry is poison.
func (l *Log) Replay(at func(*state.State, *state.Applied)) (*state.State, error) {
	if l.err != nil {
		return nil, l.err
	}
	st := state.New()
	var out state.Applied
	for i := uint64(1); i <= l.last; i++ {
		e, ok := l.entries[i]
		if !ok {
			return nil, fmt.Errorf("log: no peer was seen to apply index %d", i)
		}
		out.Reset()
		if err := st.ApplyEntry(e.term, i, e.data, &out); err != nil {
			return nil, fmt.Errorf("replay index %d: %w", i, err)
		}
		if at != nil {
			at(st, &out)
		}
	}
	return st, nil
}

// errDisagree is joined by checkers into what they report.
var errDisagree = errors.New("state hashes differ")

// CheckAgreement asks that every peer that runs has the state of the log
// replayed to its position, and that all are at the log's end. It replays the
// log once and calls at, if it is not nil, after each entry.
func (c *Cluster) CheckAgreement(at func(*state.State, *state.Applied)) error {
	final, err := c.Log.Replay(at)
	if err != nil {
		return err
	}
	for _, p := range c.Peers {
		if !p.Alive() {
			return fmt.Errorf("root %d is down: %w", p.ID, p.Err)
		}
		v := p.View()
		if v.Applied != c.Log.Last() {
			return fmt.Errorf("root %d is at %d, the log ends at %d", p.ID, v.Applied, c.Log.Last())
		}
		if v.State.Hash() != final.Hash() {
			return fmt.Errorf("%w: root %d has %016x at %d, the replayed log %016x", errDisagree, p.ID, v.State.Hash(), v.Applied, final.Hash())
		}
	}
	return errors.Join(c.Failures...)
}
