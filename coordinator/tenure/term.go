package tenure

import (
	"fmt"
	"sync/atomic"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// term is everything that belongs to one era held here; it is dropped with it.
type term struct {
	grant    grant
	tenure   *rootv1.Tenure
	ids, tso *allocator
	// confirms and advances are for the term's workers. The Core never has more
	// open than fit.
	confirms chan uint64
	advances chan Action
	// over is closed when the era has ended here.
	over chan struct{}
	// open counts requests inside AllocID and Tso.
	open atomic.Int64

	// rounds wait for confirmations, by number, lowest first; waiting counts
	// the callers in them. Guarded by Holder.mu.
	rounds  []*round
	waiting int
	// serves: that the era serves was logged. Guarded by Holder.mu.
	serves bool
	// fences counts allocators whose first window is rooted.
	fences atomic.Int32
}

// round is everybody who waits for the same confirmation.
type round struct {
	seq uint64
	// err is set before done is closed.
	err  error
	done chan struct{}
}

func (h *Holder) newTerm(t *rootv1.Tenure) *term {
	n := &term{
		tenure:   t,
		confirms: make(chan uint64, MaxConfirmations),
		advances: make(chan Action, 1),
		over:     make(chan struct{}),
	}
	n.grant.era = t.Era
	in := t.GetInherited()
	ids := idalloc.New(in.GetAllocId(), h.cfg.IDStart, h.cfg.IDWindow)
	n.ids = h.newAllocator(rootv1.Mandate_MANDATE_ALLOC_ID, in.GetAllocId(), ids)
	n.ids.extensions = &h.counters.IDExtensions
	n.ids.take = ids.Take
	n.ids.need = ids.NeedExtend
	n.ids.clockRefused = func(clock.Instant) {}

	stamps := tso.New(in.GetTso(), h.cfg.TSOStart, h.cfg.TSOAhead)
	n.tso = h.newAllocator(rootv1.Mandate_MANDATE_TSO, in.GetTso(), stamps)
	n.tso.extensions = &h.counters.TsoExtensions
	n.tso.take = func(count uint64) (uint64, bool) { return stamps.Take(count, h.cfg.Clock.Wall()) }
	n.tso.need = func(waiting uint64, now clock.Instant) (from, to uint64, want bool) {
		return stamps.NeedExtend(waiting, h.cfg.Clock.Wall(), now)
	}
	n.tso.clockRefused = stamps.ClockRefused
	return n
}

func (h *Holder) newAllocator(m rootv1.Mandate, inherited uint64, w window) *allocator {
	return &allocator{
		mandate: m, inherited: inherited, window: w,
		limit: h.cfg.MaxWaiting, count: &h.counters, low: make(chan struct{}, 1),
	}
}

// mandatesFenced is how many allocators need a first window.
const mandatesFenced = 2

// takeFirst makes the windows available that were rooted with the era; none is
// all right.
func (t *term) takeFirst(windows []*rootv1.Window) error {
	allocators := [mandatesFenced]*allocator{t.ids, t.tso}
	if n := len(windows); n != 0 && n != mandatesFenced {
		return fmt.Errorf("asked for %d windows, was told of %d", mandatesFenced, n)
	}
	for i, w := range windows {
		if w.Era != t.grant.era {
			return fmt.Errorf("window (%d, %d] is of era %d", w.From, w.To, w.Era)
		}
		if _, err := t.extended(allocators[i], w.From, w.To); err != nil {
			return err
		}
	}
	return nil
}

// extended makes a rooted window available; fenced says that with it every
// allocator has its first one.
func (t *term) extended(a *allocator, from, to uint64) (fenced bool, err error) {
	if err := a.extended(from, to); err != nil {
		return false, err
	}
	a.extensions.Add(1)
	return !a.fenced.Swap(true) && t.fences.Add(1) == mandatesFenced, nil
}

// roundLocked finds or makes the round for confirmation seq. Numbers only grow.
func (t *term) roundLocked(seq uint64) *round {
	if n := len(t.rounds); n > 0 && t.rounds[n-1].seq == seq {
		return t.rounds[n-1]
	}
	r := &round{seq: seq, done: make(chan struct{})}
	t.rounds = append(t.rounds, r)
	return r
}

// releaseLocked ends every round up to seq.
func (t *term) releaseLocked(seq uint64, err error) {
	n := 0
	for _, r := range t.rounds {
		if r.seq > seq {
			break
		}
		r.err = err
		close(r.done)
		n++
	}
	t.rounds = append(t.rounds[:0], t.rounds[n:]...)
}

func (t *term) frontiers() *rootv1.Frontiers {
	return &rootv1.Frontiers{AllocId: t.ids.consumed(), Tso: t.tso.consumed()}
}
