package tenure_test

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/history"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// simNode is a coordinator: the real Core and windows, and a shell of one
// goroutine that can be stopped between any two of its steps.
type simNode struct {
	w           *world
	name        string
	incarnation uint64
	clock       simClock
	wallOffset  int64
	up          bool
	pausedUntil time.Duration
	// cutUntil: no message passes between this process and the root.
	cutUntil time.Duration

	core   *tenure.Core
	count  tenure.Counters
	ids    *idalloc.Window
	tso    *tso.Window
	era    uint64
	fences int
	// queue waits for windows, checks for confirmations.
	queue  []*request
	checks []*check
	// lastUntil is the guard of the variant that counts from the answer.
	lastUntil clock.Instant
	leaving   bool
	inFlight  int
	// batch is what arrived, in the variant that checks a batch before it is
	// generated.
	batch    []*request
	checking bool
	retiring *rootv1.Frontiers
}

type request struct {
	kind   rootv1.Mandate
	count  uint64
	called time.Duration
	first  uint64
}

type check struct {
	*request
	era    uint64
	ticket uint64
}

func (n *simNode) start() {
	n.incarnation = n.w.rng.Uint64() | 1
	n.clock = n.w.newClock()
	n.core = tenure.NewCore(tenure.Settings{
		ID: n.name, Incarnation: n.incarnation, Address: n.name + ":1", TTL: n.w.knobs.ttl, Probed: true,
		UnknownAfter: 40 * time.Millisecond,
		Mandates:     []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}, &n.count)
	n.up, n.leaving, n.era, n.inFlight = true, false, 0, 0
	n.queue, n.checks, n.retiring, n.batch, n.checking = nil, nil, nil, nil, false
	if n.w.knobs.variant != windowsReused {
		n.ids, n.tso = nil, nil
	}
	r := n.w.root.machine
	n.w.send(n.unlessCut(func() { n.onView(r.s.Tenure(), r.handover()) }))
}

// unlessCut drops what would pass between this process and the root while
// it is cut off.
func (n *simNode) unlessCut(fn func()) func() {
	return func() {
		if n.cutUntil <= n.w.now {
			fn()
		}
	}
}

func (n *simNode) crash() {
	n.up = false
	n.w.after(n.w.spread(60*time.Millisecond), n.start)
}

// then runs fn as this process, when it is not paused, and not at all when it
// has crashed or been replaced since.
func (n *simNode) then(fn func()) func() {
	incarnation := n.incarnation
	var attempt func()
	attempt = func() {
		if !n.up || n.incarnation != incarnation {
			return
		}
		if n.pausedUntil > n.w.now {
			n.w.after(n.pausedUntil-n.w.now, attempt)
			return
		}
		fn()
		n.settle()
	}
	return attempt
}

func (n *simNode) now() clock.Instant { return n.clock.now() }

func (n *simNode) wall() uint64 { return uint64(int64(n.w.wall()) + n.wallOffset) }

func (n *simNode) onView(t *rootv1.Tenure, h *rootv1.Handover) {
	n.then(func() { n.core.OnView(tenure.Authority{Tenure: t, Handover: h}, n.now()) })()
}

func (n *simNode) tick() {
	n.then(func() { n.core.Tick(n.now()) })()
}

// probe looks at the holder like a refused or an accepted connection would.
func (n *simNode) probe() {
	t := n.core.Tenure()
	if !n.up || t == nil || t.Retired || t.HolderId == n.name {
		return
	}
	health := tenure.HealthUnknown
	for _, other := range n.w.nodes {
		switch {
		case other.name != t.HolderId || other.cutUntil > n.w.now:
		case !other.up:
			health = tenure.HealthRefused
		case other.era == t.Era && other.pausedUntil <= n.w.now:
			health = tenure.HealthServing
		}
	}
	n.w.send(n.then(func() { n.core.OnProbe(t.HolderAddress, health, n.now()) }))
}

// call sends a request to the root and gives the first answer to done, or nil
// when none came in time.
func call[T any](n *simNode, ask func(answer func(T)), done func(T, bool)) {
	answered := false
	finish := func(v T, ok bool) {
		if !answered {
			answered = true
			done(v, ok)
		}
	}
	n.w.send(n.unlessCut(func() {
		// An answer that is under way when the cut begins still arrives.
		ask(func(v T) { n.unlessCut(func() { n.w.send(n.then(func() { finish(v, true) })) })() })
	}))
	var none T
	n.w.after(80*time.Millisecond, n.then(func() { finish(none, false) }))
}

func errUnless(ok bool) error {
	if ok {
		return nil
	}
	return errLost
}

// settle does what the Core says and serves whom it can.
func (n *simNode) settle() {
	for actions := n.core.Actions(); len(actions) > 0; actions = n.core.Actions() {
		for _, a := range actions {
			n.act(a)
		}
	}
	n.finishChecks()
	if n.leaving && n.core.Phase() == tenure.Draining && n.inFlight == 0 {
		n.drained()
	}
}

func (n *simNode) act(a tenure.Action) {
	switch a.Kind {
	case tenure.Claim:
		call(n, func(answer func(*rootv1.ClaimTenureResponse)) { n.w.root.claim(a.Claim, n.firstWindows(), answer) },
			func(r *rootv1.ClaimTenureResponse, ok bool) { n.core.OnClaimed(r, errUnless(ok), n.now()) })
	case tenure.Confirm:
		q := &rootv1.ConfirmTenureRequest{Era: a.Era, HolderId: n.name, HolderIncarnation: n.incarnation}
		call(n, func(answer func(*rootv1.ConfirmTenureResponse)) { n.w.root.confirm(q, answer) },
			func(r *rootv1.ConfirmTenureResponse, ok bool) {
				if r.GetActive() {
					n.lastUntil = n.now().Add(n.w.knobs.ttl)
				}
				n.core.OnConfirmed(a.Era, a.Seq, r, errUnless(ok), n.now())
			})
	case tenure.Advance:
		n.advance(a)
	case tenure.Begin:
		n.begin(a.Tenure, a.Windows)
	case tenure.End:
		n.end()
	case tenure.Retire:
		consumed := n.retiring
		if consumed == nil {
			consumed = a.Tenure.GetInherited()
		}
		n.retire(a.Era, consumed)
	}
}

func (n *simNode) firstWindows() []*rootv1.FirstWindow {
	ids := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_ALLOC_ID}
	ids.Floor, ids.Size = idalloc.First(1, 7)
	stamps := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_TSO}
	stamps.Floor, stamps.Size = tso.First(1, 20*time.Millisecond, n.wall())
	return []*rootv1.FirstWindow{ids, stamps}
}

func (n *simNode) begin(t *rootv1.Tenure, windows []*rootv1.Window) {
	n.era, n.fences, n.retiring, n.lastUntil = t.Era, 0, nil, 0
	if n.w.knobs.variant != windowsReused || n.ids == nil {
		in := t.Inherited
		below := uint64(0)
		if n.w.knobs.variant == successorBelowFence {
			below = 2
		}
		n.ids = idalloc.New(in.AllocId-min(below, in.AllocId), 1, 7)
		n.tso = tso.New(in.Tso-min(below, in.Tso), 1, 20*time.Millisecond)
		if below > 0 && in.AllocId > below {
			if err := n.ids.Extended(in.AllocId-below, in.AllocId); err != nil {
				panic(err)
			}
		}
	}
	for i, w := range windows {
		n.w.fault.firstWindows++
		n.extended([]rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}[i], w.From, w.To)
	}
	n.extend(rootv1.Mandate_MANDATE_ALLOC_ID)
	n.extend(rootv1.Mandate_MANDATE_TSO)
}

func (n *simNode) end() {
	n.retiring = &rootv1.Frontiers{AllocId: n.ids.Consumed(), Tso: n.tso.Consumed()}
	n.era, n.inFlight = 0, 0
	n.queue, n.checks, n.batch, n.checking = nil, nil, nil, false
	if n.w.knobs.variant != windowsReused {
		n.ids, n.tso = nil, nil
	}
}

func (n *simNode) retire(era uint64, consumed *rootv1.Frontiers) {
	c := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
		Era: era, HolderId: n.name, HolderIncarnation: n.incarnation, Consumed: consumed,
	}}}}}
	call(n, func(answer func(*rootv1.CommandResult)) { n.w.root.propose(c, answer) },
		func(_ *rootv1.CommandResult, ok bool) {
			if !ok {
				n.retire(era, consumed)
				return
			}
			n.crash()
		})
}

// shutdown is the orderly end.
func (n *simNode) shutdown() {
	n.then(func() {
		n.w.fault.shutdowns++
		n.leaving = true
		if n.w.knobs.variant == retireBeforeClosing && n.era != 0 {
			n.retire(n.era, &rootv1.Frontiers{AllocId: n.ids.Consumed(), Tso: n.tso.Consumed()})
			n.leaving = false
			return
		}
		n.core.Shutdown(n.now())
		if n.era == 0 && !n.core.ClaimOpen() {
			n.crash()
			return
		}
		n.w.after(30*time.Millisecond, n.then(n.drained))
		n.w.after(400*time.Millisecond, n.then(n.crash))
	})()
}

func (n *simNode) drained() {
	if n.leaving {
		n.leaving = false
		n.core.OnDrained(n.now())
	}
}

func (n *simNode) advance(a tenure.Action) {
	c := &rootv1.Command{}
	for s := a.From + 1; s <= a.To; s++ {
		c.Events = append(c.Events, &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{
			HandoverAdvanced: &rootv1.HandoverAdvanced{Era: a.Era, Stage: s},
		}})
	}
	call(n, func(answer func(*rootv1.CommandResult)) { n.w.root.propose(c, answer) },
		func(r *rootv1.CommandResult, ok bool) {
			if ok && r.Outcome == rootv1.Outcome_OUTCOME_REJECTED {
				ok = false
			}
			n.core.OnAdvanced(a.Era, a.To, errUnless(ok), n.now())
		})
}

// extend asks for the next window of kind, if one is due.
func (n *simNode) extend(kind rootv1.Mandate) {
	var from, to uint64
	var want bool
	waiting := uint64(0)
	for _, r := range n.queue {
		if r.kind == kind {
			waiting += r.count
		}
	}
	if kind == rootv1.Mandate_MANDATE_TSO {
		from, to, want = n.tso.NeedExtend(waiting, n.wall(), n.now())
	} else {
		from, to, want = n.ids.NeedExtend(waiting, n.now())
	}
	if want {
		if n.w.knobs.variant == servesBeforeFence {
			n.extended(kind, from, to)
		}
		n.propose(kind, n.era, from, to)
	}
}

func (n *simNode) propose(kind rootv1.Mandate, era, from, to uint64) {
	c := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{
		FenceExtended: &rootv1.FenceExtended{Mandate: kind, Era: era, Floor: from, Size: to - from},
	}}}}
	call(n, func(answer func(*rootv1.CommandResult)) { n.w.root.proposeFence(c, answer) },
		func(r *rootv1.CommandResult, ok bool) {
			switch {
			case n.era != era:
			case !ok:
				n.propose(kind, era, from, to)
			case r.Outcome != rootv1.Outcome_OUTCOME_REJECTED:
				w := r.Events[0].Window
				n.extended(kind, w.From, w.To)
			default:
				n.refused(kind, era, from, r.Error)
			}
		})
}

func (n *simNode) extended(kind rootv1.Mandate, from, to uint64) {
	var err error
	if kind == rootv1.Mandate_MANDATE_TSO {
		err = n.tso.Extended(from, to)
	} else {
		err = n.ids.Extended(from, to)
	}
	if err != nil && n.w.knobs.variant == noVariant {
		panic(err)
	}
	if n.fences++; n.fences == 2 {
		n.core.OnFenced(n.era, n.now())
	}
	n.serveQueue(kind)
}

func (n *simNode) refused(kind rootv1.Mandate, era, from uint64, d *rootv1.ErrorDetail) {
	switch d.Reason {
	case rootv1.Reason_REASON_ERA_STALE, rootv1.Reason_REASON_SILENCE:
		n.core.OnEraOver(era, n.now())
		return
	case rootv1.Reason_REASON_CLOCK_BOUND:
		n.tso.ClockRefused(n.now())
	case rootv1.Reason_REASON_INHERITANCE:
		if d.Fence <= from && n.w.knobs.variant == noVariant {
			panic(fmt.Sprintf("fence %d below %d", d.Fence, from))
		}
		if kind == rootv1.Mandate_MANDATE_TSO {
			n.tso.Refused(d.Fence)
		} else {
			n.ids.Refused(d.Fence)
		}
	}
	n.serveQueue(kind)
	n.extend(kind)
}

// serveQueue goes on with those that waited for a window, in order.
func (n *simNode) serveQueue(kind rootv1.Mandate) {
	waiting := n.queue
	n.queue = nil
	for _, r := range waiting {
		if r.kind != kind {
			n.queue = append(n.queue, r)
			continue
		}
		n.generate(r)
	}
}

func (n *simNode) handle(r *request) {
	if n.w.knobs.variant == checkThenGenerate {
		n.handleBatch(r)
		return
	}
	n.then(func() {
		if n.era == 0 || n.core.Phase() == tenure.Draining {
			return
		}
		n.inFlight++
		n.generate(r)
	})()
}

// handleBatch is the variant: requests gather while the check is made, and
// then all that have arrived are generated.
func (n *simNode) handleBatch(r *request) {
	if n.era == 0 || !n.up {
		return
	}
	n.inFlight++
	n.batch = append(n.batch, r)
	n.then(func() {
		if !n.checking && n.era != 0 && len(n.batch) > 0 {
			n.checking = true
			n.verify(n.batch[0])
		}
	})()
}

// generate takes the value; verify follows after a while in which anything
// may happen.
func (n *simNode) generate(r *request) {
	var ok bool
	if r.kind == rootv1.Mandate_MANDATE_TSO {
		r.first, ok = n.tso.Take(r.count, n.wall())
	} else {
		r.first, ok = n.ids.Take(r.count)
	}
	n.extend(r.kind)
	if !ok {
		n.queue = append(n.queue, r)
		n.extend(r.kind)
		return
	}
	if n.w.knobs.variant == checkThenGenerate {
		n.reply(r, n.era)
		return
	}
	n.between(func() { n.verify(r) })
}

func (n *simNode) between(fn func()) {
	era := n.era
	n.w.after(time.Duration(n.w.rng.Int64N(int64(100*time.Microsecond))), n.then(func() {
		if n.era == era {
			fn()
		}
	}))
}

// verify is the guard: at once while confirmed, else with a ticket.
func (n *simNode) verify(r *request) {
	until := n.core.Until()
	if n.w.knobs.variant == countsFromReply && n.w.knobs.ttl > 0 {
		until = n.lastUntil
	}
	if n.now() < until {
		n.pass(r, n.era)
		return
	}
	ticket := n.core.Want(n.now())
	if n.w.knobs.variant == earlierConfirmation {
		ticket = n.core.Confirmed()
	}
	n.checks = append(n.checks, &check{request: r, era: n.era, ticket: ticket})
}

func (n *simNode) finishChecks() {
	waiting := n.checks
	n.checks = nil
	for _, c := range waiting {
		if c.ticket <= n.core.Confirmed() || n.now() < n.core.Until() {
			n.pass(c.request, c.era)
		} else {
			n.checks = append(n.checks, c)
		}
	}
}

func (n *simNode) pass(r *request, era uint64) {
	if n.w.knobs.variant == checkThenGenerate {
		n.between(func() {
			batch := n.batch
			n.batch, n.checking = nil, false
			for _, r := range batch {
				n.generate(r)
			}
		})
		return
	}
	n.reply(r, era)
}

// reply sends the value off; the caller has it a while later, or never.
func (n *simNode) reply(r *request, era uint64) {
	n.inFlight--
	g := &history.Grant{
		Mandate: r.kind, First: r.first, Count: r.count, Era: era, Holder: n.name, Incarnation: n.incarnation,
		Called: r.called, Returned: history.Never,
	}
	n.w.log.Grants = append(n.w.log.Grants, g)
	n.w.send(func() { g.Returned = min(g.Returned, n.w.now) })
}
