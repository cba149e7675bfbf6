package roottest

import (
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
)

// wordPause is about how long a replica.Replica waits for words.
const wordPause = 4 * time.Millisecond

// confirmByWords confirms as a replica.Replica does outside of turns: by this
// peer's word, and then by those of as many others as make a quorum, which travel
// like messages. What takes too long takes a turn after all. It reports false when
// that is so from the beginning.
func (p *Peer) confirmByWords(r *replica.Confirm, done func(replica.Request)) bool {
	w := p.core.Word()
	answer := w.Confirm(r.Request)
	if p.paused || answer == nil {
		return false
	}
	life, missing, over := p.life, len(w.Voters)/2, false
	finish := func(ok bool) {
		if over || p.core == nil || p.life != life {
			return
		}
		if over = true; !ok {
			p.enqueue(r, done)
			return
		}
		r.Response, r.Token = answer, w.Token
		p.cluster.Words++
		done(r)
	}
	p.cluster.World.After(wordPause, func() { finish(false) })
	others := slices.DeleteFunc(slices.Clone(w.Voters), func(id uint64) bool { return id == p.ID })
	p.cluster.World.Rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, id := range others[:missing] {
		p.askWord(p.cluster.peer(id), func(term uint64) {
			if missing--; missing == 0 || term != w.Term {
				finish(term == w.Term && !p.paused)
			}
		})
	}
	return true
}

// askWord asks another peer for the term of its word. It is answered once at most.
func (p *Peer) askWord(to *Peer, told func(term uint64)) {
	answered := false
	p.cluster.Net.Send(p.Place, to.Place, func() {
		if to.core == nil || to.paused {
			return
		}
		term := to.core.Word().Term
		p.cluster.Net.Send(to.Place, p.Place, func() {
			if !answered {
				answered = true
				told(term)
			}
		})
	})
}

// checkWord fails the run when a message leaves that makes the peer's word untrue.
func (p *Peer) checkWord(m *raftpb.Message) {
	switch m.GetType() {
	case raftpb.MsgPreVote, raftpb.MsgPreVoteResp: // They promise nothing.
		return
	}
	if w := p.core.Word(); m.GetTerm() > w.Term {
		p.cluster.Failures = append(p.cluster.Failures, fmt.Errorf("root %d at %v: %v of term %d leaves while its word is of term %d",
			p.ID, p.cluster.World.Now(), m.GetType(), m.GetTerm(), w.Term))
	}
}
