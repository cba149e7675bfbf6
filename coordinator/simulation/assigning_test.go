package simulation

import (
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// askTime is how long other coordinators have to say whom they hear, probeTime how long
// a member's own address may take.
const (
	askTime   = 60 * time.Millisecond
	probeTime = 150 * time.Millisecond
)

func (d *desk) startAssigner() {
	n := d.n
	d.raw = assigner.NewRaw(assigner.RawConfig{
		ID: state.CoordinatorID(n.name), Incarnation: n.incarnation, View: func() *rootview.View { return n.view.core.View() },
		Streams: d, Soft: d.soft, Settings: liveness.Settings{AskTime: askTime}, PoisonTime: time.Millisecond, Identities: identity.SourceOf(n.incarnation ^ 0xa551),
		Clock: n.clock, Logger: hclog.NewNullLogger(), Wake: d.wake,
	})
}

// wake has the assigner look soon.
func (d *desk) wake() {
	if d.woken {
		return
	}
	d.woken = true
	d.n.after(d.n.r.Between(0, 200*time.Microsecond), d.look)
}

// look is one turn of the assigner's goroutine.
func (d *desk) look() {
	d.woken = false
	v := d.n.view.core.View()
	switch b := d.plans; {
	case !v.Loaded():
		return
	case d.raw.At() == (state.Token{}) || b.jumped:
		d.raw.Jump(v)
	case b.any:
		d.raw.Follow(v.State, v.Token, b.changes)
	}
	d.plans = news{}
	d.join(v.State)
	orders, pause := d.raw.Look()
	d.carryOut(&orders)
	d.looks++
	if looks := d.looks; pause < time.Minute {
		d.n.after(pause+time.Microsecond, func() {
			if d.looks == looks {
				d.look()
			}
		})
	}
}

// join puts the coordinator on the list, so that others ask it.
func (d *desk) join(st *state.State) {
	n := d.n
	there := st.Coordinator(state.CoordinatorID(n.name))
	if d.joining || there.GetIncarnation() == n.incarnation {
		return
	}
	d.joining = true
	proposeOver(n.link, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
		Id: n.name, Address: n.address(), Incarnation: n.incarnation, Follows: there.GetIncarnation(), FeatureLevel: state.FeatureLevel,
	}}}}}, askLimit, func(*rootv1.CommandResult) {
		n.after(20*time.Millisecond, func() { d.joining = false })
	})
}

func (d *desk) carryOut(o *assigner.Orders) {
	d.era = o.Era
	for _, c := range o.Calls {
		d.propose(c, o.Era)
	}
	for _, p := range o.Probes {
		d.probe(p)
	}
	if o.Asking != nil {
		d.ask(o.Asking)
	}
}

// propose has commands judged, however long that takes while the era lasts.
func (d *desk) propose(c *assigner.Call, era state.Era) {
	if d.n.r.k.variant == lastWordsInMemory {
		forgetLastWords(c)
	}
	d.n.link.AskUntil(askLimit, func() replica.Request {
		p, err := replica.NewProposal(c.Commands)
		if err != nil {
			panic(err)
		}
		return p
	}, func(r replica.Request) {
		switch {
		case d.era != era:
			return
		case r == nil || roottest.Refusal(r) != nil:
			if why := reason.Of(roottest.Refusal(r)); why == rootv1.Reason_REASON_INVALID_REQUEST || why == rootv1.Reason_REASON_PERMISSION_DENIED {
				d.n.r.fail("Placement: %s has %d commands that the root does not take: %w", d.n.name, len(c.Commands), roottest.Refusal(r))
			}
			d.n.after(d.n.r.Between(5*time.Millisecond, 30*time.Millisecond), func() { d.propose(c, era) })
			return
		}
		var results []*rootv1.CommandResult
		for _, one := range r.(*replica.Proposal).Results {
			results = append(results, one.Proto())
		}
		d.raw.Judged(c, results)
		d.wake()
	})
}

// forgetLastWords leaves out what stands in front of verdicts: how far a process got that has left.
func forgetLastWords(c *assigner.Call) {
	for _, cmd := range c.Commands {
		if n := len(cmd.Events) - 1; n > 0 && cmd.Events[n].GetMemberStateChanged() != nil && cmd.Events[0].GetRegionsAssigned() != nil {
			cmd.Events = cmd.Events[n:]
		}
	}
}

// probe connects to a member's own address.
func (d *desk) probe(p liveness.Probe) {
	answered := false
	answer := within(&d.n.process, func(result liveness.ProbeResult) {
		if !answered {
			answered = true
			d.raw.Probed(p, result)
			d.wake()
		}
	})
	net := d.n.r.roots.Net
	for _, w := range d.n.r.workers {
		if w.address() == p.Address {
			net.Send(d.n.place, w.place, func() {
				w.probed(p, func(result liveness.ProbeResult) {
					net.Send(w.place, d.n.place, func() { answer(result) })
				})
			})
			if d.n.r.k.variant == cutTakenForDeath && net.IsCut(d.n.place, w.place) {
				d.n.after(time.Millisecond, func() { answer(liveness.Refused) })
			}
		}
	}
	d.n.after(probeTime, func() { answer(liveness.NoAnswer) })
}

// ask asks the other coordinators whom they hear. The machine of a process that has ended refuses.
func (d *desk) ask(q *assigner.Asking) {
	over, open := false, len(q.Others)
	var all []liveness.Word
	finish := func() {
		if !over {
			over = true
			d.raw.Told(q, all, open == 0)
			d.wake()
		}
	}
	n, net := d.n, d.n.r.roots.Net
	for _, asked := range q.Others {
		for _, other := range n.r.nodes {
			if other.address() != asked.GetAddress() {
				continue
			}
			told := false
			hear := within(&n.process, func(words []liveness.Word) {
				if told {
					return
				}
				told = true
				all = append(all, words...)
				if open--; open == 0 {
					finish()
				}
			})
			net.Send(n.place, other.place, func() {
				if !other.up {
					net.Send(other.place, n.place, func() { hear(nil) })
					return
				}
				other.then(func() {
					words := other.desk.words(q.Members)
					net.Send(other.place, n.place, func() { hear(words) })
				})()
			})
		}
	}
	n.after(askTime/2, finish)
}
