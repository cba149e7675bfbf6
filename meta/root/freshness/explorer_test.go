package freshness_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/test/size"
)

// The explorer runs every order, within bounds, of what three root peers do while a folder of one
// of them is copied, and the copy is put back or started beside the original: entries that one
// peer gets and another lacks, processes that begin anew, elections with and without the leader.
// Raft is as small as it can be; what peers remember and how they judge is this package's own.
// All peers are reached, and what one promises is heard by all: see the package comment for what
// is not found otherwise.

var mostWorlds = size.Int("explorer.worlds", 20_000, 2_000_000, "how many worlds the explorer of folders from the past goes on from")

const (
	mostEntries = 2
	mostTerm    = 2
	mostStarts  = 4
)

// folder is what a peer has durably.
type folder struct {
	history    freshness.History
	log        string // a byte an entry: its term
	term, vote uint64
	known      [4]freshness.Known // by node
	barred     bool
}

// machine is a folder and the process that runs on it.
type machine struct {
	folder
	node  int
	life  int // of the process, among all; 0: none runs
	claim freshness.Claim
	// admitted is the life that was let in last, by node.
	admitted [4]int
	// leads is the term that it leads, 0 for none; acked is what it counts of others, by node.
	leads uint64
	acked [4]int
}

// past is how a folder comes back from its past, and which rules are left out: forgetful ones judge
// nobody, deaf ones hear of no promises.
type past struct{ putBack, clone, forgetful, deaf bool }

type peers struct {
	past
	machines  []machine
	copied    *folder
	of        int // the node of the copy
	back      bool
	lives     int
	leaders   [mostTerm + 1]int // lives, by term
	committed string
	broken    string
}

func (w peers) copy() *peers {
	w.machines = slices.Clone(w.machines)
	return &w
}

// key tells worlds apart. All numbers are small.
func (w *peers) key() string {
	k := append([]byte(w.committed), byte(w.of), byte(len(w.machines)))
	if w.back {
		k = append(k, 255)
	}
	if w.copied != nil {
		k = w.copied.key(k)
	}
	for i := range w.machines {
		m := &w.machines[i]
		k = append(m.key(k), byte(m.life), byte(m.leads), byte(m.claim.Term), byte(m.claim.Vote), byte(m.claim.Last), byte(len(m.claim.Runs)))
		for _, r := range m.claim.Runs {
			k = append(k, byte(r.Term), byte(r.Last))
		}
		for node := 1; node <= 3; node++ {
			k = append(k, byte(m.admitted[node]), byte(m.acked[node]))
		}
	}
	return string(k)
}

func (f *folder) key(k []byte) []byte {
	k = append(k, f.log...)
	k = append(k, byte(f.term), byte(f.vote), byte(f.history.Count))
	for _, n := range f.history.Nonces {
		k = append(k, byte(n))
	}
	if f.barred {
		k = append(k, 255)
	}
	for _, o := range f.known[1:] {
		k = append(k, byte(o.Start.Count), byte(o.Start.Nonce))
		for _, p := range []freshness.Promise{o.Before, o.Now} {
			k = append(k, byte(p.Term), byte(p.Vote), byte(p.Index), byte(p.IndexTerm))
		}
	}
	return k
}

// start begins a process on a machine.
func (w *peers) start(m *machine) {
	w.lives++
	m.history = m.history.Next(uint64(w.lives))
	m.life, m.admitted, m.leads, m.acked = w.lives, [4]int{}, 0, [4]int{}
	m.claim = freshness.Claim{History: m.history, Footing: freshness.Footing{Term: m.term, Vote: m.vote}}
	for i, term := range []byte(m.log) {
		m.claim.Add(uint64(i+1), uint64(term))
	}
}

func (m *machine) memory() *freshness.Memory {
	saved := map[uint64]freshness.Known{}
	for node, k := range m.known {
		if k != (freshness.Known{}) {
			saved[uint64(node)] = k
		}
	}
	return freshness.NewMemory(saved, nil, nil)
}

func (m *machine) remember(memory *freshness.Memory) {
	for node, k := range memory.Table() {
		m.known[node] = k
	}
}

// bar ends a process that is refused as an older copy, for good.
func (m *machine) bar() { m.barred, m.life, m.leads = true, 0, 0 }

// admits says whether to lets a process in, as the transport does.
func (w *peers) admits(to, from *machine) bool {
	old := to.admitted[from.node]
	switch {
	case to.life == 0 || from.life == 0:
		return false
	case old == from.life:
		return true
	case w.forgetful:
		to.admitted[from.node] = from.life
		return true
	case old != 0 && slices.ContainsFunc(w.machines, func(m machine) bool { return m.life == old }):
		from.bar() // rule 8
		return false
	}
	claim, memory := from.claim, to.memory()
	claim.Runs = nil
	before, err := memory.Admit(uint64(from.node), claim)
	if errors.As(err, new(*freshness.StaleError)) || err == nil && from.claim.Lacks(before) != "" {
		from.bar()
		return false
	}
	if err == nil {
		to.admitted[from.node] = from.life
		to.remember(memory)
	}
	return err == nil
}

// talk says whether two processes take messages of one another.
func (w *peers) talk(a, b *machine) bool {
	return a.node != b.node && w.admits(a, b) && w.admits(b, a)
}

// promise has everybody hear what a process has promised by now.
func (w *peers) promise(m *machine) {
	if w.deaf {
		return
	}
	p := freshness.Promise{Term: m.term, Vote: m.vote, Index: uint64(len(m.log))}
	if p.Index > 0 {
		p.IndexTerm = uint64(m.log[p.Index-1])
	}
	for i := range w.machines {
		if to := &w.machines[i]; w.talk(m, to) {
			memory := to.memory()
			memory.Note(uint64(m.node), m.claim.Newest(), p)
			to.remember(memory)
		}
	}
}

// replicate gives the log of a leader to a follower, which acknowledges it.
func (w *peers) replicate(l, f *machine) bool {
	if !w.talk(l, f) || f.term > l.term || l.leads != l.term {
		return false
	}
	if f.term < l.term {
		f.term, f.vote, f.leads = l.term, 0, 0
	}
	f.log = l.log
	l.acked[f.node] = len(f.log)
	w.promise(f)
	if n := len(l.log); n > 0 && uint64(l.log[n-1]) == l.term && n > len(w.committed) {
		w.committed = l.log // the leader and one more: most of three
	}
	return true
}

// elect has a process ask another for its vote; with its own that is a majority.
func (w *peers) elect(c, v *machine) bool {
	term := c.term + 1
	last := func(log string) byte { return (log + "\x00")[max(len(log)-1, 0)] }
	newer := last(c.log) > last(v.log) || last(c.log) == last(v.log) && len(c.log) >= len(v.log)
	if term > mostTerm || !newer || v.term > term || v.term == term && v.vote != uint64(c.node) || !w.talk(c, v) {
		return false
	}
	c.term, c.vote, c.leads, c.acked = term, uint64(c.node), term, [4]int{}
	v.term, v.vote, v.leads = term, uint64(c.node), 0
	w.promise(c)
	w.promise(v)
	if other := w.leaders[term]; other != 0 && other != c.life {
		w.broken = fmt.Sprintf("two processes lead term %d", term)
	}
	w.leaders[term] = c.life
	if !strings.HasPrefix(c.log, w.committed) {
		w.broken = fmt.Sprintf("peer %d leads term %d with entries %x, acknowledged were %x", c.node, term, c.log, w.committed)
	}
	return true
}

// next calls fn with every world that is one step away.
func (w *peers) next(fn func(what string, next *peers)) {
	try := func(what string, step func(w *peers) bool) {
		if n := w.copy(); step(n) {
			fn(what, n)
		}
	}
	for i := range w.machines {
		m := &w.machines[i]
		if m.life == 0 {
			continue
		}
		if m.leads == m.term && len(m.log) < mostEntries {
			try(fmt.Sprintf("%d writes", i), func(w *peers) bool {
				m := &w.machines[i]
				m.log += string(rune(m.term))
				w.promise(m)
				return true
			})
		}
		if m.history.Count < mostStarts && w.lives < mostStarts {
			try(fmt.Sprintf("%d begins anew", i), func(w *peers) bool { w.start(&w.machines[i]); return true })
		}
		if w.copied == nil && i == 1 { // the one that leads first has everything, and the third is as the second
			try(fmt.Sprintf("%d is copied", i), func(w *peers) bool {
				f := w.machines[i].folder
				w.copied, w.of = &f, w.machines[i].node
				return true
			})
		}
		for j := range w.machines {
			if j != i && m.leads == m.term {
				try(fmt.Sprintf("%d gets the log of %d", j, i), func(w *peers) bool { return w.replicate(&w.machines[i], &w.machines[j]) })
			}
			if j != i {
				try(fmt.Sprintf("%d is elected by %d", i, j), func(w *peers) bool { return w.elect(&w.machines[i], &w.machines[j]) })
			}
		}
	}
	if w.copied == nil || w.back {
		return
	}
	if w.putBack {
		try("the copy is put back", func(w *peers) bool {
			m := &w.machines[w.of-1]
			m.folder, w.back = *w.copied, true
			w.start(m)
			return true
		})
	}
	if w.clone {
		try("the copy is started beside", func(w *peers) bool {
			w.machines, w.back = append(w.machines, machine{folder: *w.copied, node: w.of}), true
			w.start(&w.machines[len(w.machines)-1])
			return true
		})
	}
}

// explore searches breadth first, and returns the shortest way to a broken promise that says a word.
func explore(p past, word string) (worlds, barred int, way []string, broken string) {
	first := &peers{past: p}
	for node := 1; node <= 3; node++ {
		first.machines = append(first.machines, machine{folder: folder{term: 1, vote: 1}, node: node})
		first.start(&first.machines[node-1])
	}
	first.machines[0].leads, first.leaders[1] = 1, first.machines[0].life
	type place struct {
		w    *peers
		from int
		what string
	}
	all, seen := []place{{w: first, from: -1}}, map[string]bool{first.key(): true}
	for i := 0; i < len(all) && i < *mostWorlds; i++ {
		all[i].w.next(func(what string, next *peers) {
			if key := next.key(); !seen[key] {
				seen[key] = true
				all = append(all, place{w: next, from: i, what: what})
			}
		})
		if w := all[i].w; w.broken != "" && strings.Contains(w.broken, word) {
			for at := i; at > 0; at = all[at].from {
				way = append(way, all[at].what)
			}
			slices.Reverse(way)
			return len(all), barred, way, w.broken
		}
		if slices.ContainsFunc(all[i].w.machines, func(m machine) bool { return m.barred }) {
			barred++
		}
		all[i].w = nil
	}
	return len(all), barred, nil, ""
}

// Whatever peers do, a folder from the past makes no two leaders of one term and loses nothing that
// was acknowledged; and a peer of whose folder there is no copy is never refused.
func TestExplorePasts(t *testing.T) {
	for name, p := range map[string]past{"put back": {putBack: true}, "a clone beside the original": {clone: true}} {
		worlds, barred, way, broken := explore(p, "")
		if broken != "" {
			t.Errorf("%s: %s, behind:\n  %s", name, broken, strings.Join(way, "\n  "))
		}
		if barred == 0 {
			t.Errorf("%s: nobody was refused", name)
		}
		testreport.Linef(t, "explorer of folders from the past, %s: %d worlds, in %d of them it was refused", name, worlds, barred)
	}
	if _, barred, _, broken := explore(past{}, ""); barred != 0 || broken != "" {
		t.Errorf("without a copy put back, %d refused: %s", barred, broken)
	}
}

// TestExplorePastsContrast leaves rules out: the explorer finds what they are for.
func TestExplorePastsContrast(t *testing.T) {
	const twice, lost = "two processes lead", "acknowledged were"
	for _, c := range []struct {
		past
		word string
	}{
		{past{putBack: true, forgetful: true}, twice},
		{past{putBack: true, forgetful: true}, lost},
		{past{clone: true, forgetful: true}, twice},
		{past{clone: true, forgetful: true}, lost},
		{past{putBack: true, deaf: true}, twice},
		{past{putBack: true, deaf: true}, lost},
	} {
		_, _, way, broken := explore(c.past, c.word)
		if broken == "" {
			t.Errorf("%+v: the explorer does not look where it matters: nobody finds that %s", c.past, c.word)
		}
		t.Logf("%+v: %s, behind %s", c.past, broken, strings.Join(way, ", "))
	}
}
