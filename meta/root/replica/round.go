package replica

import (
	"context"
	"slices"
	"sync"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A round waits for the peers it asked for once to twice roundPause. Then the
// request takes the way through raft, which asks all of them, and others are
// asked first from then on.
const roundPause = 3 * time.Millisecond

// rounds ask other peers for their terms, outside of raft and of Turns: as few
// as make a quorum with this one, the ones that answered last time.
type rounds struct {
	// ask asks a peer, which is answered by told; false: it is not reached.
	ask func(node, id uint64) bool
	me  uint64

	mu sync.Mutex // guards what follows
	// late are peers that did not answer in time, the last one last: they are asked
	// behind all others.
	late []uint64
	last uint64
	open []*round
	// guard looks at the open rounds while there are some: a timer for each of
	// them would wake a thread for each. It has looked when looked was the last.
	guard  *time.Timer
	armed  bool
	looked uint64
}

// round is one question to some peers.
type round struct {
	id, term uint64
	// asked are those without an answer yet; old: guard has seen it. Guarded by
	// rounds.mu.
	asked []uint64
	old   bool
	// done gets whether all said that they are of this term; capacity 1.
	done chan bool
}

func newRounds(cfg Config) *rounds {
	return &rounds{ask: cfg.AskTerm, me: cfg.NodeID}
}

// quorum reports whether so many others as make a quorum with this peer have
// said, after the call, that they are of the term of w.
func (r *rounds) quorum(ctx context.Context, w Word) bool {
	if r.ask == nil {
		return false
	}
	if len(w.Voters) == 1 {
		return true
	}
	one, asked := r.begin(w)
	defer r.end(one)
	for _, node := range asked {
		if !r.ask(node, one.id) {
			return false
		}
	}
	select {
	case ok := <-one.done:
		return ok
	case <-ctx.Done():
		return false
	}
}

func (r *rounds) begin(w Word) (one *round, asked []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	one = &round{id: r.last, term: w.Term, asked: r.firstLocked(w.Voters, len(w.Voters)/2), done: make(chan bool, 1)}
	r.open = append(r.open, one)
	switch {
	case r.guard == nil:
		r.guard = time.AfterFunc(roundPause, r.look)
	case !r.armed:
		r.guard.Reset(roundPause)
	}
	r.armed = true
	return one, slices.Clone(one.asked)
}

// firstLocked are n of the voters without this peer, the late ones behind all others.
func (r *rounds) firstLocked(voters []uint64, n int) []uint64 {
	order := make([]uint64, 0, len(voters)+len(r.late))
	for _, id := range voters {
		if id != r.me && !slices.Contains(r.late, id) {
			order = append(order, id)
		}
	}
	for _, id := range r.late {
		if slices.Contains(voters, id) {
			order = append(order, id)
		}
	}
	return order[:n]
}

// look ends the rounds that it has seen before.
func (r *rounds) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.open {
		if one.old {
			one.finish(false)
		}
		one.old = true
	}
	r.armed = len(r.open) > 0 || r.looked != r.last
	r.looked = r.last
	if r.armed {
		r.guard.Reset(roundPause)
	}
}

// end forgets a round. Who did not answer it is asked last from now on.
func (r *rounds) end(one *round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(o *round) bool { return o == one })
	for _, node := range one.asked {
		r.late = append(slices.DeleteFunc(r.late, func(id uint64) bool { return id == node }), node)
	}
}

// told is the answer of a peer to a round.
func (r *rounds) told(node, id, term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.open {
		if one.id != id {
			continue
		}
		i := slices.Index(one.asked, node)
		if i < 0 {
			return
		}
		if one.asked = slices.Delete(one.asked, i, i+1); term != one.term {
			one.finish(false)
		} else if len(one.asked) == 0 {
			one.finish(true)
		}
		return
	}
}

// finish ends the waiting; the first answer counts.
func (one *round) finish(ok bool) {
	select {
	case one.done <- ok:
	default:
	}
}

// confirmNow confirms an era by words alone; nil: that is left to a Turn.
func (r *Replica) confirmNow(ctx context.Context, request *rootv1.ConfirmTenureRequest) *rootv1.ConfirmTenureResponse {
	// This peer's own word first: the others' are of a later moment.
	w := r.core.Word()
	answer := w.Confirm(request)
	if answer == nil || !r.rounds.quorum(ctx, w) {
		return nil
	}
	return answer
}

// Term is that of this peer's word; 0 while it has none.
func (r *Replica) Term() uint64 { return r.core.Word().Term }

// PeerTerm tells the term that a peer was of when it answered Config.AskTerm.
func (r *Replica) PeerTerm(node, id, term uint64) { r.rounds.told(node, id, term) }
