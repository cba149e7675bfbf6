package freshness

import (
	"fmt"
	"slices"
)

// MaxNonces bounds the starts that a folder remembers of itself.
const MaxNonces = 128

// Start is one start of a peer's process. The zero value is none.
type Start struct {
	// Count is 1 for the first start of the folder.
	Count uint64
	// Nonce is random, not 0.
	Nonce uint64
}

// History is the starts of a folder.
type History struct {
	// Count is that of the newest start; 0: there was none.
	Count uint64
	// Nonces are those of the newest starts, the newest last, at most MaxNonces.
	Nonces []uint64
}

// Next is the history with one more start.
func (h History) Next(nonce uint64) History {
	next := History{Count: h.Count + 1, Nonces: append(slices.Clone(h.Nonces), nonce)}
	if n := len(next.Nonces) - MaxNonces; n > 0 {
		next.Nonces = next.Nonces[n:]
	}
	return next
}

// Newest is the newest start.
func (h History) Newest() Start {
	nonce, _ := h.nonce(h.Count)
	return Start{Count: h.Count, Nonce: nonce}
}

// nonce is that of a start; false when it is not remembered.
func (h History) nonce(count uint64) (uint64, bool) {
	back := h.Count - count // Of a count above: no index.
	if count == 0 || count > h.Count || back >= uint64(len(h.Nonces)) {
		return 0, false
	}
	return h.Nonces[uint64(len(h.Nonces))-1-back], true
}

// Valid says whether the history is of a folder that was started.
func (h History) Valid() bool {
	return h.Count > 0 && len(h.Nonces) > 0 && len(h.Nonces) <= MaxNonces && uint64(len(h.Nonces)) <= h.Count && !slices.Contains(h.Nonces, 0)
}

// Promise is what a peer has promised in its term. The zero value is nothing.
type Promise struct {
	// Term is the peer's term.
	Term uint64
	// Vote is whom it voted for in Term; 0: nobody, or not known.
	Vote uint64
	// Index is up to where its log agrees with that of Term's leader; 0: not known.
	Index uint64
	// IndexTerm is the term of the entry at Index; 0: not known.
	IndexTerm uint64
}

// Merge is everything that is promised by p or q, which are of one peer.
func (p Promise) Merge(q Promise) Promise {
	switch {
	case q.Term > p.Term:
		return q
	case q.Term < p.Term:
		return p
	}
	if p.Vote == 0 {
		p.Vote = q.Vote
	}
	if q.Index > p.Index || q.Index == p.Index && p.IndexTerm == 0 {
		p.Index, p.IndexTerm = q.Index, q.IndexTerm
	}
	return p
}

// Footing is what a folder held when its process started.
type Footing struct {
	// Term and Vote are those of the hard state.
	Term, Vote uint64
	// Base is the last entry that is not in the log any more: what is up to it is
	// committed. Last is the log's last one.
	Base, Last uint64
	// Runs are the terms of the entries above Base, in order. Empty: not known.
	Runs []Run
}

// Run is a series of entries of one term.
type Run struct {
	Term uint64
	// Last is the index of its last entry.
	Last uint64
}

// Add appends an entry of the log to the footing.
func (f *Footing) Add(index, term uint64) {
	f.Last = index
	if n := len(f.Runs); n > 0 && f.Runs[n-1].Term == term {
		f.Runs[n-1].Last = index
		return
	}
	f.Runs = append(f.Runs, Run{Term: term, Last: index})
}

// term is that of the entry at an index above Base.
func (f Footing) term(index uint64) uint64 {
	for _, r := range f.Runs {
		if index <= r.Last {
			return r.Term
		}
	}
	return 0
}

// Lacks says what of a promise the folder lacks; empty: nothing.
func (f Footing) Lacks(p Promise) string {
	switch {
	case f.Term < p.Term:
		return fmt.Sprintf("it was in term %d, and the folder is of term %d", p.Term, f.Term)
	case f.Term > p.Term:
		return ""
	case p.Vote != 0 && p.Vote != f.Vote:
		return fmt.Sprintf("it voted for root peer %d in term %d, and the folder does not know", p.Vote, p.Term)
	case p.Index > f.Last:
		return fmt.Sprintf("it acknowledged entry %d in term %d, and the folder ends at entry %d", p.Index, p.Term, f.Last)
	case p.IndexTerm != 0 && p.Index > f.Base && len(f.Runs) > 0 && f.term(p.Index) != p.IndexTerm:
		return fmt.Sprintf("it acknowledged entry %d of term %d, and the folder has one of term %d there", p.Index, p.IndexTerm, f.term(p.Index))
	}
	return ""
}

// Claim is what a peer says of its folder.
type Claim struct {
	History
	Footing
}

// StaleError says that a peer runs on an older copy of its folder, or beside the
// original. Nothing but its replacement helps.
type StaleError struct {
	// Node is the peer, Why what is known to be newer.
	Node uint64
	Why  string
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("the folder of root peer %d is an older copy, or a second one: %s. Do not start it again. If the peer runs with its own folder, remove this one; if that is lost, replace the peer: "+
		"start a new one with -join, an empty workdir and a node id that was never used, then run `nokv root replace --lost %d --with ID`", e.Node, e.Why, e.Node)
}

// UnknownError says that it cannot be told whether a peer's folder is the newest.
type UnknownError struct {
	// Node is the peer, Why what is missing.
	Node uint64
	Why  string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("it cannot be told whether the folder of root peer %d is the newest: %s; `nokv root replace` replaces the peer", e.Node, e.Why)
}
