package simulation

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/holdertest"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	ids        = rootv1.Mandate_MANDATE_ALLOC_ID
	timestamps = rootv1.Mandate_MANDATE_TSO

	idWindow  = 7
	tsoAhead  = 20 * time.Millisecond
	askLimit  = 200 * time.Millisecond
	retireFor = 400 * time.Millisecond
)

var errUnanswered = errors.New("no answer")

// holder is the part of a coordinator that gives ids and timestamps.
type holder struct {
	*holdertest.Holder
	n     *node
	count *tenure.Counters
}

// offOf is the rule that a variant leaves out of the holder.
var offOf = map[variant]holdertest.Rule{
	checkThenGenerate: holdertest.GenerateThenCheck, countsFromReply: holdertest.CountFromSending,
	successorBelowFence: holdertest.StartAboveFence, servesBeforeFence: holdertest.RootFirst,
	windowsReused: holdertest.WindowPerEra, retiresBeforeEnd: holdertest.CloseThenRetire,
	earlierConfirmation: holdertest.ConfirmAfter,
}

func (h *holder) start(n *node) {
	before := h.Holder
	*h = holder{n: n, count: new(tenure.Counters)}
	n.counted = append(n.counted, h.count)
	h.Holder = holdertest.New(tenure.RawConfig{
		Settings: tenure.Settings{
			ID: n.name, Incarnation: n.incarnation, Address: string(n.place), TTL: n.r.k.ttl, Probed: true,
			UnknownAfter: 40 * time.Millisecond, Mandates: []rootv1.Mandate{ids, timestamps},
		},
		IDStart: 1, TSOStart: 1, IDWindow: idWindow, TSOAhead: tsoAhead, Wall: n.clock.Wall,
		// Not drawn: seeds that are known to show something still do.
		Identities: identity.SourceOf(^n.incarnation), RetireKey: binary.BigEndian.AppendUint64(nil, n.incarnation),
	}, h.count, offOf[n.r.k.variant], holdertest.Env{
		Now: n.now, After: n.after, Between: n.between, Send: n.send, Left: n.leave,
	}, before)
	h.probeLater()
}

// between is the moment between two steps: sometimes the process stands still
// in it.
func (n *node) between(step func()) {
	if r := n.r; !r.calm && r.Chance(r.k.gaps) {
		r.Fault("paused between generate and check")
		n.pause(r.Between(0, 3*r.k.ttl+30*time.Millisecond))
	}
	n.after(n.r.Between(0, 60*time.Microsecond), step)
}

// send sends a message of the holder to the roots.
func (n *node) send(m *tenure.Message, answer func(tenure.Answer)) {
	limit := askLimit
	if m.Era == 0 && m.Command != nil {
		limit = retireFor
	}
	n.link.AskUntil(limit, func() replica.Request {
		r, err := requestOf(m)
		if err != nil {
			panic(err)
		}
		return r
	}, func(r replica.Request) {
		switch {
		case r == nil:
			answer(tenure.Answer{Err: errUnanswered})
		case roottest.Refusal(r) != nil:
			if reason.Of(roottest.Refusal(r)) == rootv1.Reason_REASON_CLOCK_BOUND {
				n.r.Fault("clock refused")
			}
			answer(tenure.Answer{Err: roottest.Refusal(r)})
		case m.Claim != nil:
			answer(tenure.Answer{Claim: r.(*replica.Claim).Response})
		case m.Confirm != nil:
			answer(tenure.Answer{Confirm: r.(*replica.Confirm).Response})
		default:
			result := r.(*replica.Proposal).Results[0].Proto()
			if m.Command.Events[0].GetFenceExtended() != nil && result.Outcome == rootv1.Outcome_OUTCOME_REJECTED {
				n.r.count.windowsRefused++
			}
			answer(tenure.Answer{Result: result})
		}
	})
}

func requestOf(m *tenure.Message) (replica.Request, error) {
	switch {
	case m.Claim != nil:
		return replica.NewClaim(m.Claim, m.Windows...)
	case m.Confirm != nil:
		return replica.NewConfirm(m.Confirm), nil
	}
	return replica.NewProposal([]*rootv1.Command{m.Command})
}

// shutdown is the orderly end of the process.
func (h *holder) shutdown() {
	if h.Leaving() || h.Raw.Status(h.n.now()).Phase == tenure.Stopped {
		return
	}
	h.n.r.Fault("coordinator shut down")
	h.Shutdown(h.n.name, h.n.incarnation)
	h.n.after(2*retireFor, h.n.leave)
}

// probeLater looks at the holder from time to time, as a connection would.
func (h *holder) probeLater() {
	h.n.after(h.n.r.Between(8*time.Millisecond, 20*time.Millisecond), func() {
		h.probe()
		h.probeLater()
	})
}

func (h *holder) probe() {
	t, r := h.Raw.Tenure(), h.n.r
	if h.Raw.ProbeTarget() == nil {
		return
	}
	answered := false
	answer := func(health tenure.Health) {
		h.n.then(func() {
			if !answered {
				answered = true
				h.Raw.OnProbe(t.HolderAddress, health, h.n.now())
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
				if other.holder.Era() == t.Era {
					back(tenure.HealthServing)
				} else {
					back(tenure.HealthUnknown)
				}
			})()
		})
	}
	h.n.after(30*time.Millisecond, func() { answer(tenure.HealthUnknown) })
}

// propose proposes one command on behalf of a caller.
func (n *node) propose(c *rootv1.Command, limit time.Duration, done func(*rootv1.CommandResult)) {
	proposeOver(n.link, c, limit, done)
}

// hint is whom callers should ask for values.
func (n *node) hint() string {
	if t := n.holder.Raw.Tenure(); t != nil && !t.Retired {
		return t.HolderId
	}
	return ""
}

// refusedEarly makes a result of a refusal that came before the command was judged.
func refusedEarly(r replica.Request) *rootv1.CommandResult {
	return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: reason.From(r.(*replica.Proposal).Err)}
}
