package tenure

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// era is everything that belongs to one era held here; it is dropped with it.
type era struct {
	number uint64
	// sealed: its claim has a digest, so that retiring it takes the secret.
	sealed bool
	// until is the Instant before which the era counts as confirmed; 0: it does not.
	until atomic.Int64
	// open counts requests that are not answered.
	open atomic.Int64

	ids, tso *allocator
	// confirmations are waited for, by number, lowest first; waiting counts the
	// callers.
	confirmations []*Confirmation
	waiting       int
	// serves: that the era serves was logged.
	serves bool
	// broken: a value came up that a predecessor may have served (2).
	broken string
}

// Run is contiguous values that were taken in one era. They may be served once
// Good or a Confirmation has said so: generate, then check, then reply. A pause
// anywhere is harmless, because a value taken before a successful check is
// linearized at the check. Checking first and generating after is a bug.
type Run struct {
	First, Count uint64
	era          *era
}

// Era is the one that the values were taken in.
func (v Run) Era() uint64 { return v.era.number }

// Good reports whether the era counts as confirmed at now, a clock read after the
// values were taken. An era that was given up in between is then seen as given up.
func (v Run) Good(now clock.Instant) bool { return now < v.era.confirmedUntil() }

func (e *era) confirmedUntil() clock.Instant { return clock.Instant(e.until.Load()) }

// Confirmation is waited for by everybody who needs the same one.
type Confirmation struct {
	seq     uint64
	callers int
	err     error // set before done is closed
	done    chan struct{}
}

// Done is closed when the Confirmation is decided.
func (c *Confirmation) Done() <-chan struct{} { return c.done }

// Err is nil when the era was confirmed, after Done.
func (c *Confirmation) Err() error { return c.err }

// Reservation is a request that waits for values: in an era for a window, or
// between eras.
type Reservation struct {
	mandate rootv1.Mandate
	count   uint64
	// until bounds the wait between eras.
	until clock.Instant
	// run and err are set before done is closed.
	run  Run
	err  error
	done chan struct{}
}

// Done is closed when the Reservation is decided.
func (w *Reservation) Done() <-chan struct{} { return w.done }

// Result is the values, not yet checked, or why there are none, after Done.
func (w *Reservation) Result() (Run, error) { return w.run, w.err }

func (w *Reservation) finish(run Run, err error) {
	w.run, w.err = run, err
	close(w.done)
}

// window is what an allocator needs of an idalloc.Window or a tso.Window besides
// taking and asking, which differ.
type window interface {
	Low() bool
	Extended(from, to uint64) error
	Refused(fence uint64)
	Exhausted() bool
	Consumed() uint64
	Left() uint64
}

// allocator hands out the values of one mandate in one era: a window, and the
// queue of those that wait for it.
type allocator struct {
	mandate      rootv1.Mandate
	inherited    uint64
	window       window
	take         func(count uint64) (first uint64, ok bool)
	need         func(waiting uint64, now clock.Instant) (floor, size uint64, want bool)
	clockRefused func(now clock.Instant)
	// extensions counts windows rooted.
	extensions *atomic.Uint64

	queue  []*Reservation
	closed bool
	// refusal of the last window asked for, when the root's clock was its reason.
	clockBound *rootv1.ErrorDetail
	// rooted: the first window is.
	rooted    bool
	extension extension
}

// takeRun takes values in era e; ok is false when no rooted window has room.
func (a *allocator) takeRun(e *era, count uint64) (run Run, ok bool) {
	if a.closed || e.broken != "" {
		return Run{}, false
	}
	first, ok := a.take(count)
	if a.window.Low() {
		a.extension.wanted = true
	}
	if ok && first <= a.inherited {
		e.broken = fmt.Sprintf("%s: value %d is not above the inherited frontier %d", a.mandate, first, a.inherited)
		return Run{}, false
	}
	return Run{First: first, Count: count, era: e}, ok
}

// serve serves those that wait, in turn, as far as the window goes.
func (a *allocator) serve(e *era) {
	served := 0
	for _, w := range a.queue {
		run, ok := a.takeRun(e, w.count)
		if !ok {
			break
		}
		w.finish(run, nil)
		served++
	}
	a.queue = slices.Delete(a.queue, 0, served)
}

// close ends the allocator: nothing is taken any more, so that consumed is final.
func (a *allocator) close(e *era, err error) {
	a.closed = true
	a.fail(e, err)
}

func (a *allocator) fail(e *era, err error) {
	for _, w := range a.queue {
		e.open.Add(-1)
		w.finish(Run{}, err)
	}
	a.queue = nil
}

func (r *RawHolder) newEra(t *rootv1.Tenure) *era {
	e := &era{number: t.Era, sealed: len(t.GetRetireDigest()) > 0}
	in := t.GetInherited()
	ids := idalloc.New(in.GetAllocId(), r.cfg.IDStart, r.cfg.IDWindow)
	e.ids = &allocator{
		mandate: rootv1.Mandate_MANDATE_ALLOC_ID, inherited: in.GetAllocId(), window: ids, extensions: &r.count.IDExtensions,
		take: ids.Take, need: ids.NeedExtend, clockRefused: func(clock.Instant) {},
	}
	stamps := tso.New(in.GetTso(), r.cfg.TSOStart, r.cfg.TSOAhead)
	e.tso = &allocator{
		mandate: rootv1.Mandate_MANDATE_TSO, inherited: in.GetTso(), window: stamps, extensions: &r.count.TsoExtensions,
		take: func(count uint64) (uint64, bool) { return stamps.Take(count, r.cfg.Wall()) },
		need: func(waiting uint64, now clock.Instant) (floor, size uint64, want bool) {
			return stamps.NeedExtend(waiting, r.cfg.Wall(), now)
		},
		clockRefused: stamps.ClockRefused,
	}
	e.ids.extension.wanted, e.tso.extension.wanted = true, true
	return e
}

func (e *era) of(m rootv1.Mandate) *allocator {
	if m == rootv1.Mandate_MANDATE_TSO {
		return e.tso
	}
	return e.ids
}

// takeFirst makes the windows available that were rooted with the era, in the order
// of RawHolder.firstWindows; none is all right. Those that are not used are asked for
// like later ones.
func (e *era) takeFirst(asked []*rootv1.FirstWindow, windows []*rootv1.Window) (err error) {
	if n := len(windows); n != 0 && n != len(asked) {
		return fmt.Errorf("asked for %d windows, was told of %d", len(asked), n)
	}
	for i, w := range windows {
		err = errors.Join(err, e.extended(e.of(asked[i].Mandate), w, asked[i].Floor, asked[i].Size))
	}
	return err
}

// extended makes a window of a available if it can be the one that was asked for:
// size values of this era, behind floor and behind all that were given before. Of
// any other nothing may be served (2).
func (e *era) extended(a *allocator, w *rootv1.Window, floor, size uint64) error {
	if w.GetEra() != e.number || w.From < floor || w.To < w.From || w.To-w.From != size {
		return fmt.Errorf("%s: asked for %d values above %d in era %d, was told of (%d, %d] of era %d",
			a.mandate, size, floor, e.number, w.GetFrom(), w.GetTo(), w.GetEra())
	}
	if err := a.window.Extended(w.From, w.To); err != nil {
		return fmt.Errorf("extend %s: %w", a.mandate, err)
	}
	a.extensions.Add(1)
	a.rooted = true
	return nil
}

// fenced reports that every allocator has its first window.
func (e *era) fenced() bool { return e.ids.rooted && e.tso.rooted }

func (e *era) frontiers() *rootv1.Frontiers {
	return &rootv1.Frontiers{AllocId: e.ids.window.Consumed(), Tso: e.tso.window.Consumed()}
}

// Take takes count contiguous values of the era held. It reports false when there
// are none at once: Reserve waits for them. Every Run is closed.
func (r *RawHolder) Take(m rootv1.Mandate, count uint64) (run Run, ok bool) {
	e := r.era
	if e == nil || r.leaving {
		return Run{}, false
	}
	a := e.of(m)
	if len(a.queue) > 0 {
		return Run{}, false
	}
	if run, ok = a.takeRun(e, count); ok {
		r.core.Used()
		e.open.Add(1)
	}
	return run, ok
}

// Enter begins a request that takes no values, in an era that is held; false: in none, or in
// another one. What was made before may be served as a Run's values may.
func (r *RawHolder) Enter(number uint64) (run Run, ok bool) {
	e := r.era
	if e == nil || r.leaving || e.number != number {
		return Run{}, false
	}
	r.core.Used()
	e.open.Add(1)
	return Run{era: e}, true
}

// Reserve waits for values, in turn. An error says at once that there are none to
// wait for.
func (r *RawHolder) Reserve(m rootv1.Mandate, count uint64, now clock.Instant) (*Reservation, error) {
	w := &Reservation{mandate: m, count: count, done: make(chan struct{})}
	e := r.era
	if e == nil || r.leaving {
		return w, r.hold(w, now)
	}
	if !r.enqueue(e, w) {
		r.count.Overloads.Add(1)
		return nil, overloaded(r.cfg.MaxWaiting)
	}
	e.of(m).serve(e)
	r.settle(now)
	return w, nil
}

func (r *RawHolder) enqueue(e *era, w *Reservation) bool {
	a := e.of(w.mandate)
	if len(a.queue) >= r.cfg.MaxWaiting {
		return false
	}
	a.queue = append(a.queue, w)
	r.core.Used()
	a.extension.wanted = true
	e.open.Add(1)
	return true
}

// Cancel ends a Reservation that is not decided; it reports false when it was.
func (r *RawHolder) Cancel(w *Reservation, now clock.Instant) bool {
	select {
	case <-w.done:
		return false
	default:
	}
	is := func(other *Reservation) bool { return other == w }
	if n := len(r.held); n > 0 {
		r.held = slices.DeleteFunc(r.held, is)
		if len(r.held) < n {
			r.settle(now)
			return true
		}
	}
	a := r.era.of(w.mandate)
	a.queue = slices.DeleteFunc(a.queue, is)
	r.era.open.Add(-1)
	r.settle(now)
	return true
}

// Confirm waits for a confirmation of the run's era that is sent after the call.
func (r *RawHolder) Confirm(run Run, now clock.Instant) (*Confirmation, error) {
	e := r.era
	if e == nil || e != run.era {
		return nil, eraStale(run.era.number, r.core.Tenure().GetEra())
	}
	if e.waiting >= r.cfg.MaxWaiting {
		r.count.Overloads.Add(1)
		return nil, overloaded(r.cfg.MaxWaiting)
	}
	e.waiting++
	c := e.confirmation(r.core.Want(now))
	c.callers++
	r.settle(now)
	return c, nil
}

// confirmation finds or makes the one with this number. Numbers only grow.
func (e *era) confirmation(seq uint64) *Confirmation {
	if n := len(e.confirmations); n > 0 && e.confirmations[n-1].seq == seq {
		return e.confirmations[n-1]
	}
	c := &Confirmation{seq: seq, done: make(chan struct{})}
	e.confirmations = append(e.confirmations, c)
	return c
}

// release decides every confirmation up to seq.
func (e *era) release(seq uint64, err error) {
	n := 0
	for _, c := range e.confirmations {
		if c.seq > seq {
			break
		}
		c.err = err
		e.waiting -= c.callers
		close(c.done)
		n++
	}
	e.confirmations = slices.Delete(e.confirmations, 0, n)
}

// confirm tells those that wait what the Core knows.
func (r *RawHolder) confirm(e *era, now clock.Instant) {
	if !e.serves && r.core.Serves() {
		e.serves = true
		r.log.Info("era serves", "era", e.number)
	}
	until := r.core.Until()
	e.until.Store(int64(until))
	e.release(r.core.Confirmed(), nil)
	if now < until {
		// Whoever waits was here before now, and the era is confirmed now.
		e.release(r.core.holding.sent+1, nil)
	}
}

// Close ends a Run: it was served, or it will not be. It may be called beside the
// RawHolder. It reports that no request of the era is left: then an orderly end
// should be ticked.
func (v Run) Close() (last bool) { return v.era.open.Add(-1) == 0 }
