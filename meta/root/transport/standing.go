package transport

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
)

// standing is what a peer says of itself, and what it remembers of the others.
type standing struct {
	replica.Standing
	known map[uint64]freshness.Known
}

// maxTold bounds the peers that a standing tells of.
const maxTold = 64

func (s *standing) append(b []byte) []byte {
	w := wire{b: b}
	s.fields(&w)
	return w.b
}

func parseStanding(b []byte) (s standing, err error) {
	in := wire{b: b, reads: true}
	s.fields(&in)
	return s, in.end()
}

func (s *standing) fields(w *wire) {
	numbers(w, &s.Index, &s.Hash)
	w.promise(&s.Promise)
	nodes := slices.Sorted(maps.Keys(s.known))
	n := uint16(len(nodes))
	numbers(w, &n)
	if w.reads {
		s.known = map[uint64]freshness.Known{}
		w.bad = w.bad || n > maxTold
	}
	for i := 0; i < int(n) && !w.bad; i++ {
		var node uint64
		if !w.reads {
			node = nodes[i]
		}
		k := s.known[node]
		numbers(w, &node, &k.Start.Count, &k.Start.Nonce)
		w.promise(&k.Before)
		w.promise(&k.Now)
		if w.reads {
			s.known[node] = k
		}
	}
}

// Tell implements replica.Transport.
func (t *Transport) Tell(s replica.Standing) {
	t.said.Store(&s)
	next := t.standing(s)
	for _, p := range t.remotes() {
		p.put(item{standing: next})
	}
}

func (t *Transport) standing(s replica.Standing) *standing {
	return &standing{Standing: s, known: t.cfg.Memory.Table()}
}

// hears takes what a peer says of itself in a start of its process.
func (t *Transport) hears(from *remote, start freshness.Start, s standing) {
	node := from.id.NodeID
	t.cfg.Memory.Note(node, start, s.Promise)
	delete(s.known, node)
	t.cfg.Memory.Hear(t.cfg.Identity.NodeID, s.known)
	t.receiver.PeerStateHash(node, s.Index, s.Hash)
}
