package simulation

import (
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	ids        = rootv1.Mandate_MANDATE_ALLOC_ID
	timestamps = rootv1.Mandate_MANDATE_TSO

	idWindow  = 7
	tsoAhead  = 20 * time.Millisecond
	askLimit  = 200 * time.Millisecond
	drainFor  = 30 * time.Millisecond
	retireFor = 400 * time.Millisecond
)

var errUnanswered = errors.New("no answer")

// holder is what tenure.Holder does, around the same Core and windows.
type holder struct {
	n     *node
	core  *tenure.Core
	count *tenure.Counters
	armed clock.Instant

	// The era held, 0 for none, and its windows.
	era    uint64
	ids    *idalloc.Window
	tso    *tso.Window
	fences int
	// queue waits for windows, checks for confirmations.
	queue    []*ask
	checks   []*check
	inFlight int

	leaving  bool
	retiring *rootv1.Frontiers

	// For the variants.
	lastUntil clock.Instant
	batch     []*ask
	checking  bool
}

// ask is a request for values, as it goes through the holder.
type ask struct {
	mandate rootv1.Mandate
	count   uint64
	first   uint64
	reply   func(first, era uint64)
}

type check struct {
	*ask
	era, ticket uint64
}

func (h *holder) start(n *node) {
	old := *h
	*h = holder{n: n, count: new(tenure.Counters)}
	n.counted = append(n.counted, h.count)
	h.core = tenure.NewCore(tenure.Settings{
		ID: n.name, Incarnation: n.incarnation, Address: string(n.place), TTL: n.r.k.ttl, Probed: true,
		UnknownAfter: 40 * time.Millisecond, Mandates: []rootv1.Mandate{ids, timestamps},
	}, h.count)
	if n.r.k.variant == windowsReused {
		h.ids, h.tso = old.ids, old.tso
	}
	h.probeLater()
}

func (h *holder) variant() variant { return h.n.r.k.variant }

func (h *holder) onView(a tenure.Authority) { h.core.OnView(a, h.n.now()) }

// settle does what the Core says, answers whom it can, and sets the alarm.
func (h *holder) settle() {
	for actions := h.core.Actions(); len(actions) > 0; actions = h.core.Actions() {
		for _, a := range actions {
			h.act(a)
		}
	}
	h.finishChecks()
	if h.leaving && h.core.Phase() == tenure.Draining && h.inFlight == 0 {
		h.drained()
		h.settle()
		return
	}
	if at := h.core.Deadline(); at != h.armed {
		h.armed = at
		if wait := at.Sub(h.n.now()); wait < time.Minute {
			h.n.after(max(wait, 0)+time.Microsecond, func() {
				h.armed = 0
				h.core.Tick(h.n.now())
			})
		}
	}
}

func (h *holder) act(a tenure.Action) {
	switch a.Kind {
	case tenure.Claim:
		h.claim(a)
	case tenure.Confirm:
		h.confirm(a)
	case tenure.Advance:
		h.advance(a)
	case tenure.Begin:
		h.begin(a.Tenure, a.Windows)
	case tenure.End:
		h.end()
	case tenure.Retire:
		consumed := h.retiring
		if consumed == nil {
			consumed = a.Tenure.GetInherited()
		}
		h.retire(a.Era, consumed)
	}
}

func (h *holder) claim(a tenure.Action) {
	h.n.link.AskUntil(askLimit, func() replica.Request {
		r, err := replica.NewClaim(a.Claim, h.firstWindows()...)
		if err != nil {
			panic(err)
		}
		return r
	}, func(r replica.Request) {
		if r == nil || r.(*replica.Claim).Err != nil {
			h.core.OnClaimed(nil, errUnanswered, h.n.now())
			return
		}
		h.core.OnClaimed(r.(*replica.Claim).Response, nil, h.n.now())
	})
}

func (h *holder) confirm(a tenure.Action) {
	q := &rootv1.ConfirmTenureRequest{Era: a.Era, HolderId: h.n.name, HolderIncarnation: h.n.incarnation}
	h.n.link.AskUntil(askLimit, func() replica.Request { return replica.NewConfirm(q) }, func(r replica.Request) {
		if r == nil || r.(*replica.Confirm).Err != nil {
			h.core.OnConfirmed(a.Era, a.Seq, nil, errUnanswered, h.n.now())
			return
		}
		answer := r.(*replica.Confirm).Response
		if answer.GetActive() && a.Era == h.era {
			h.lastUntil = h.n.now().Add(h.n.r.k.ttl)
		}
		h.core.OnConfirmed(a.Era, a.Seq, answer, nil, h.n.now())
	})
}

// propose proposes one command; done gets nil when the outcome is unknown. A
// refusal before the command is judged counts as a rejection.
func (h *holder) propose(limit time.Duration, done func(*rootv1.CommandResult), events ...*rootv1.Event) {
	h.n.propose(&rootv1.Command{Events: events}, limit, done)
}

func (h *holder) firstWindows() []*rootv1.FirstWindow {
	id, stamp := &rootv1.FirstWindow{Mandate: ids}, &rootv1.FirstWindow{Mandate: timestamps}
	id.Floor, id.Size = idalloc.First(1, idWindow)
	stamp.Floor, stamp.Size = tso.First(1, tsoAhead, h.n.clock.Wall())
	return []*rootv1.FirstWindow{id, stamp}
}

func (h *holder) begin(t *rootv1.Tenure, windows []*rootv1.Window) {
	h.era, h.fences, h.retiring, h.lastUntil = t.Era, 0, nil, 0
	if h.variant() != windowsReused || h.ids == nil {
		id, stamp := t.Inherited.AllocId, t.Inherited.Tso
		below := uint64(0)
		if h.variant() == successorBelowFence {
			below = 2
		}
		h.ids = idalloc.New(id-min(below, id), 1, idWindow)
		h.tso = tso.New(stamp-min(below, stamp), 1, tsoAhead)
		if below > 0 && id > below {
			if err := h.ids.Extended(id-below, id); err != nil {
				panic(err)
			}
		}
	}
	for i, w := range windows {
		h.n.r.count.firstWindows++
		h.extended([]rootv1.Mandate{ids, timestamps}[i], w.From, w.To)
	}
	h.extend(ids)
	h.extend(timestamps)
}

func (h *holder) end() {
	h.retiring = &rootv1.Frontiers{AllocId: h.ids.Consumed(), Tso: h.tso.Consumed()}
	h.era, h.inFlight = 0, 0
	h.queue, h.checks, h.batch, h.checking = nil, nil, nil, false
	if h.variant() != windowsReused {
		h.ids, h.tso = nil, nil
	}
}

func (h *holder) retire(era uint64, consumed *rootv1.Frontiers) {
	h.propose(retireFor, func(*rootv1.CommandResult) { h.n.leave() },
		&rootv1.Event{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
			Era: era, HolderId: h.n.name, HolderIncarnation: h.n.incarnation, Consumed: consumed,
		}}})
}

// shutdown is the orderly end of the process.
func (h *holder) shutdown() {
	if h.leaving || h.core.Phase() == tenure.Stopped {
		return
	}
	h.n.r.Fault("coordinator shut down")
	h.leaving = true
	if h.variant() == retiresBeforeEnd && h.era != 0 {
		h.retire(h.era, &rootv1.Frontiers{AllocId: h.ids.Consumed(), Tso: h.tso.Consumed()})
		return
	}
	h.core.Shutdown(h.n.now())
	if h.era == 0 && !h.core.ClaimOpen() {
		h.n.leave()
		return
	}
	h.n.after(drainFor, h.drained)
	h.n.after(2*retireFor, h.n.leave)
}

func (h *holder) drained() {
	if h.leaving {
		h.leaving = false
		h.core.OnDrained(h.n.now())
	}
}

func (h *holder) advance(a tenure.Action) {
	var events []*rootv1.Event
	for s := a.From + 1; s <= a.To; s++ {
		events = append(events, &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{
			HandoverAdvanced: &rootv1.HandoverAdvanced{Era: a.Era, Stage: s},
		}})
	}
	h.propose(askLimit, func(r *rootv1.CommandResult) {
		err := errUnanswered
		if r != nil && r.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
			err = nil
		}
		h.core.OnAdvanced(a.Era, a.To, err, h.n.now())
	}, events...)
}

// probeLater looks at the holder from time to time, as a connection would.
func (h *holder) probeLater() {
	h.n.after(h.n.r.Between(8*time.Millisecond, 20*time.Millisecond), func() {
		h.probe()
		h.probeLater()
	})
}

func (h *holder) probe() {
	t, r := h.core.Tenure(), h.n.r
	if h.core.Phase() != tenure.Standby || t == nil || t.Retired || t.HolderId == h.n.name {
		return
	}
	answered := false
	answer := func(health tenure.Health) {
		h.n.then(func() {
			if !answered {
				answered = true
				h.core.OnProbe(t.HolderAddress, health, h.n.now())
			}
		})()
	}
	for _, other := range r.nodes {
		if string(other.place) != t.HolderAddress {
			continue
		}
		r.roots.Net.Send(h.n.place, other.place, func() {
			back := func(health tenure.Health) {
				r.roots.Net.Send(other.place, h.n.place, func() { answer(health) })
			}
			if !other.up {
				back(tenure.HealthRefused)
				return
			}
			other.then(func() {
				if other.holder.era == t.Era {
					back(tenure.HealthServing)
				} else {
					back(tenure.HealthUnknown)
				}
			})()
		})
	}
	h.n.after(30*time.Millisecond, func() { answer(tenure.HealthUnknown) })
}
