package simulation

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	callTimeout = 80 * time.Millisecond
	callLimit   = 400 * time.Millisecond
	writeLimit  = 300 * time.Millisecond
)

// client is a caller: one call at a time, to any coordinator or, for writes, to
// the root itself. It is never wrong about time: its calls are the history.
type client struct {
	r     *run
	id    int
	place roottest.Place
	link  *roottest.Link
	// asked is the coordinator to ask next.
	asked int
	// floor is the highest era seen, session the newest position.
	floor   uint64
	session state.Token
	next    int
	// own are the regions that this client has published, as it was told.
	own  []*state.Region
	quit bool
}

func newClient(r *run, id int) *client {
	place := roottest.Place(fmt.Sprintf("client-%d", id))
	return &client{r: r, id: id, place: place, link: r.roots.NewLink(place), asked: r.Rand.IntN(len(r.nodes))}
}

// loop makes one call after the other.
func (c *client) loop() {
	if c.quit {
		return
	}
	switch p := c.r.Rand.IntN(100); {
	case p < 25:
		c.values(ids)
	case p < 55:
		c.values(timestamps)
	case p < 75:
		c.publish()
	default:
		c.read()
	}
}

func (c *client) done() { c.r.After(c.r.Between(0, 3*time.Millisecond), c.loop) }

// call calls a coordinator; see run.call.
func (c *client) call(n *node, serve func(n *node, reply func(fn func(late bool))), done func(ok bool)) {
	c.r.call(c.place, n, serve, done)
}

// call sends a request to a coordinator and calls done once: with true when
// the reply arrived, with false when that took too long. serve runs in the
// coordinator's process; what it gives to reply runs here when it arrives, late
// when the caller has given up by then.
func (r *run) call(from roottest.Place, n *node, serve func(n *node, reply func(fn func(late bool))), done func(ok bool)) {
	over := false
	finish := func(ok bool) {
		if !over {
			over = true
			done(ok)
		}
	}
	net := r.roots.Net
	net.Send(from, n.place, func() {
		if !n.up {
			net.Send(n.place, from, func() { finish(false) })
			return
		}
		n.then(func() {
			serve(n, func(fn func(bool)) {
				net.Send(n.place, from, func() {
					fn(over)
					finish(true)
				})
			})
		})()
	})
	r.After(callTimeout, func() { finish(false) })
}

// values asks for ids or timestamps until it has some or gives up.
func (c *client) values(m rootv1.Mandate) {
	count := 1 + c.r.Rand.Uint64N(3)
	if c.r.Chance(0.2) {
		c.turnTo("") // two holders, if there were two, would both be asked
	}
	deadline := c.r.now() + callLimit
	var try func()
	try = func() {
		got, hint, called := false, "", c.r.now()
		n := c.r.nodes[c.asked]
		c.call(n, func(n *node, reply func(func(bool))) {
			served := n.holder.Serve(m, count, func(first, era uint64) {
				g := &history.Grant{
					Mandate: m, First: first, Count: count, Era: era, Holder: n.name, Incarnation: n.incarnation,
					Called: called, Returned: history.Never, Wall: c.r.wall(),
				}
				c.r.history.Grants = append(c.r.history.Grants, g)
				reply(func(late bool) {
					g.Returned = min(g.Returned, c.r.now())
					// A client that has seen a higher era discards a lower one and tries again.
					if era >= c.floor && !late {
						c.floor, got = era, true
					}
				})
			})
			if !served {
				to := n.hint()
				reply(func(bool) { hint = to })
			}
		}, func(bool) {
			if got || c.r.now() > deadline || c.quit {
				c.done()
				return
			}
			c.turnTo(hint)
			c.r.After(c.r.Between(0, 4*time.Millisecond), try)
		})
	}
	try()
}

// turnTo chooses the coordinator to ask next: the hinted one, mostly.
func (c *client) turnTo(hint string) {
	c.asked = c.r.Rand.IntN(len(c.r.nodes))
	for i, n := range c.r.nodes {
		if n.name == hint && c.r.Chance(0.9) {
			c.asked = i
		}
	}
}

// write is a command that was sent, and what its client was told.
type write struct {
	client int
	cmd    *rootv1.Command
	// token is where it was judged; the zero Token: the client was not told.
	token   state.Token
	applied bool
}

// publish makes one or two new regions, or a newer descriptor of one, by a
// coordinator or at the root.
func (c *client) publish() {
	w := &write{client: c.id, cmd: c.command()}
	c.r.writes = append(c.r.writes, w)
	answer := func(r *rootv1.CommandResult) { c.onResult(w, r) }
	if c.r.Chance(0.5) {
		proposeOver(c.link, w.cmd, writeLimit, func(r *rootv1.CommandResult) {
			answer(r)
			c.done()
		})
		return
	}
	n := c.r.nodes[c.r.Rand.IntN(len(c.r.nodes))]
	c.call(n, func(n *node, reply func(func(bool))) {
		n.propose(w.cmd, writeLimit, func(r *rootv1.CommandResult) {
			if r != nil {
				reply(func(bool) { answer(r) })
			}
		})
	}, func(bool) { c.done() })
}

func (c *client) command() *rootv1.Command {
	if len(c.own) > 0 && c.r.Chance(0.4) {
		r := c.own[c.r.Rand.IntN(len(c.own))].Proto()
		r.Epoch.ConfVersion++
		r.Frontier = fmt.Appendf(nil, "%d", r.Epoch.ConfVersion)
		return &rootv1.Command{Events: []*rootv1.Event{published(r)}}
	}
	cmd := &rootv1.Command{}
	for range 1 + c.r.Rand.IntN(2) {
		c.next++
		key := keyOf(c.id, c.next)
		cmd.Events = append(cmd.Events, published(&rootv1.Region{KeyspaceId: uint32(state.DefaultKeyspace), StartKey: []byte(key), EndKey: []byte(key + "~")}))
	}
	return cmd
}

func published(r *rootv1.Region) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
}

func keyOf(client, n int) string { return fmt.Sprintf("%d/%05d", client, n) }

// onResult notes the answer to a write.
func (c *client) onResult(w *write, r *rootv1.CommandResult) {
	switch {
	case r == nil:
		c.r.count.unknown++
		return
	case r.Outcome == rootv1.Outcome_OUTCOME_REJECTED:
		// An older attempt may lose against a newer descriptor of the same client.
		if r.Error.GetReason() != rootv1.Reason_REASON_EPOCH_STALE {
			c.r.fail("Root writes: %v rejected: %v", w.cmd, r.Error)
		}
		return
	}
	w.token, w.applied = state.TokenFromProto(r.Token), r.Outcome == rootv1.Outcome_OUTCOME_APPLIED
	c.r.count.writes++
	c.saw(w.token)
	for _, e := range r.Events {
		c.owns(state.RegionFromProto(e.Region))
	}
}

// owns remembers the newest descriptor of a region of this client.
func (c *client) owns(r *state.Region) {
	for i, old := range c.own {
		if old.ID == r.ID {
			if r.Epoch.NewerThan(old.Epoch) {
				c.own[i] = r
			}
			return
		}
	}
	c.own = append(c.own, r)
	if len(c.own) > 8 {
		c.own = c.own[1:]
	}
}

// saw notes a position that this client was told of.
func (c *client) saw(t state.Token) {
	c.r.acknowledge(t.Index)
	if c.session.Compare(t) < 0 {
		c.session = t
	}
}

// read asks any coordinator for the region of a key, at some freshness.
func (c *client) read() {
	r := c.r
	q := &read{client: c.id, key: keyOf(r.Rand.IntN(len(r.clients)), 1+r.Rand.IntN(max(c.next, 1))), called: r.now(), maxLag: 1 << 30, maxAge: time.Hour}
	switch r.Rand.IntN(4) {
	case 0:
		q.freshness, q.known = coordinatorv1.Freshness_FRESHNESS_STRONG, lastAcknowledged(r.acked)
	case 1:
		q.freshness = coordinatorv1.Freshness_FRESHNESS_BOUNDED
		q.maxAge = r.Between(time.Millisecond, 100*time.Millisecond)
		if r.Chance(0.5) {
			q.maxLag = uint64(r.Rand.IntN(3))
		}
	case 2:
		q.freshness, q.required = coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT, c.session
	default:
		q.freshness = coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT
	}
	n := r.nodes[r.Rand.IntN(len(r.nodes))]
	c.call(n, func(n *node, reply func(func(bool))) {
		n.read(q, func(answer *read) {
			if answer == nil {
				reply(func(bool) { r.count.refused++ })
				return
			}
			reply(func(late bool) { c.answered(answer, late) })
		})
	}, func(bool) { c.done() })
}

func (c *client) answered(a *read, late bool) {
	c.r.count.reads++
	a.late = late
	c.r.reads = append(c.r.reads, a)
	c.r.acknowledge(a.token.Index)
	if !late {
		c.saw(a.token)
	}
}

// proposeOver proposes one command over a link; done gets nil when the outcome
// is unknown.
func proposeOver(l *roottest.Link, c *rootv1.Command, limit time.Duration, done func(*rootv1.CommandResult)) {
	commands := []*rootv1.Command{c}
	l.AskUntil(limit, func() replica.Request {
		p, err := replica.NewProposal(commands)
		if err != nil {
			panic(err)
		}
		return p
	}, func(r replica.Request) {
		switch {
		case r == nil:
			done(nil)
		case roottest.Refusal(r) != nil:
			done(refusedEarly(r))
		default:
			done(r.(*replica.Proposal).Results[0].Proto())
		}
	})
}
