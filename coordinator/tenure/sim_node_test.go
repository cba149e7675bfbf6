package tenure_test

import (
	"encoding/binary"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/testing/holdertest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// simNode is a coordinator: a real RawHolder in one goroutine that can be stopped
// between any two of its steps.
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

	count  tenure.Counters
	holder *holdertest.Holder
}

// request is a caller's.
type request struct {
	kind   rootv1.Mandate
	count  uint64
	called time.Duration
}

// offOf is the rule that a variant leaves out of the holder.
var offOf = map[variant]holdertest.Rule{
	checkThenGenerate: holdertest.GenerateThenCheck, countsFromReply: holdertest.CountFromSending,
	successorBelowFence: holdertest.StartAboveFence, servesBeforeFence: holdertest.RootFirst,
	windowsReused: holdertest.WindowPerEra, retireBeforeClosing: holdertest.CloseThenRetire,
	earlierConfirmation: holdertest.ConfirmAfter,
}

func (n *simNode) start() {
	n.incarnation = n.w.rng.Uint64() | 1
	n.clock = n.w.newClock()
	n.up = true
	n.holder = holdertest.New(tenure.RawConfig{
		Settings: tenure.Settings{
			ID: n.name, Incarnation: n.incarnation, Address: n.name + ":1", TTL: n.w.knobs.ttl, Probed: true,
			UnknownAfter: 40 * time.Millisecond,
			Mandates:     []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
		},
		IDStart: 1, TSOStart: 1, IDWindow: 7, TSOAhead: 20 * time.Millisecond,
		Wall: func() uint64 { return uint64(int64(n.w.wall()) + n.wallOffset) },
		// Not drawn: seeds that are known to show something still do.
		Identities: identity.SourceOf(^n.incarnation), RetireKey: binary.BigEndian.AppendUint64(nil, n.incarnation),
	}, &n.count, offOf[n.w.knobs.variant], holdertest.Env{
		Now: n.now, Send: n.send, Left: n.crash,
		After: func(d time.Duration, step func()) { n.w.after(d, n.then(step)) },
		Between: func(step func()) {
			if n.w.trouble(1) {
				n.w.pause(n)
			}
			n.w.after(time.Duration(n.w.rng.Int64N(int64(100*time.Microsecond))), n.then(step))
		},
	}, n.holder)
	n.w.send(n.unlessCut(n.observe))
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
	n.w.fault.firstWindows += n.holder.FirstWindows
	n.w.after(n.w.spread(60*time.Millisecond), n.start)
}

// then makes fn a step of this process: when it is not paused, and not at all when
// it has crashed or been replaced since.
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
		if n.up {
			n.holder.Settle()
		}
	}
	return attempt
}

func (n *simNode) now() clock.Instant { return n.clock.now() }

// observe has this process see what is rooted.
func (n *simNode) observe() {
	r := n.w.root.machine
	n.onView(tenure.Authority{Tenure: r.s.Tenure(), Handover: r.handover(), Index: r.index})
}

func (n *simNode) onView(a tenure.Authority) { n.then(func() { n.holder.OnView(a) })() }

// probe looks at the holder like a refused or an accepted connection would.
func (n *simNode) probe() {
	if !n.up {
		return
	}
	t := n.holder.Raw.Tenure()
	if n.holder.Raw.ProbeTarget() == nil {
		return
	}
	health := tenure.HealthUnknown
	for _, other := range n.w.nodes {
		switch {
		case other.name != t.HolderId || other.cutUntil > n.w.now:
		case !other.up:
			health = tenure.HealthRefused
		case other.holder.Era() == t.Era && other.pausedUntil <= n.w.now:
			health = tenure.HealthServing
		}
	}
	n.w.send(n.then(func() { n.holder.Raw.OnProbe(t.HolderAddress, health, n.now()) }))
}

// send sends a message to the root. What is not answered in time is lost.
func (n *simNode) send(m *tenure.Message, answer func(tenure.Answer)) {
	once := false
	finish := func(a tenure.Answer) {
		if !once {
			once = true
			answer(a)
		}
	}
	n.w.send(n.unlessCut(func() {
		// An answer that is under way when the cut begins still arrives.
		n.w.root.ask(m, func(a tenure.Answer) {
			n.unlessCut(func() { n.w.send(n.then(func() { finish(a) })) })()
		})
	}))
	n.w.after(80*time.Millisecond, n.then(func() { finish(tenure.Answer{Err: errLost}) }))
}

// shutdown is the orderly end.
func (n *simNode) shutdown() {
	n.then(func() {
		n.w.fault.shutdowns++
		n.holder.Shutdown(n.name, n.incarnation)
		n.w.after(400*time.Millisecond, n.then(n.crash))
	})()
}

// handle serves a caller; it has the values a while later, or never.
func (n *simNode) handle(r *request) {
	n.then(func() {
		n.holder.Serve(r.kind, r.count, func(first, era uint64) {
			g := &history.Grant{
				Mandate: r.kind, First: first, Count: r.count, Era: era, Holder: n.name, Incarnation: n.incarnation,
				Called: r.called, Returned: history.Never,
			}
			n.w.log.Grants = append(n.w.log.Grants, g)
			n.w.send(func() { g.Returned = min(g.Returned, n.w.now) })
		})
	})()
}
